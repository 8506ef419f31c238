"""Records by timestamps from a broker without transactions, compared with Kafka's admin client and a consumer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from grouptrail.config import Config
from grouptrail.kafka.log import LARGEST_TIMESTAMP, NO_TOPIC, RecordTimestamp
from grouptrail.kafka.timestamps import TimestampReader
from grouptrail.lag.dated import DatedRecords, TimestampLookup, UnreadRecords
from grouptrail.lag.index import UNKNOWN
from grouptrail.lag.state import LagState
from servers.kafka import Broker
from support import small_tables
from support.contexts import lag_inputs
from support.kafka_clients import PATIENCE_SECONDS
from support.kafka_versions import EVERY_VERSION
from support.lag_cluster import empty_tables
from support.lag_samples import LOGS
from support.timestamped_topics import (
    CONFIGS,
    FAR_MS,
    HOUR_MS,
    IN_ORDER,
    NOW_MS,
    RECORDS,
    bounds,
    delete_records,
    make_topics,
    produce,
    records_of,
)

pytestmark = pytest.mark.parametrize("broker", EVERY_VERSION, indirect=True, scope="module")


@pytest.fixture(scope="module")
def topics(broker: Broker) -> dict[str, str]:
    names = make_topics(broker, {**CONFIGS, "empty": {}})
    for kind in CONFIGS:
        produce(broker, kind, names[kind])
    delete_records(broker, names["deleted"], 23)
    return names


@pytest.fixture
def reader(broker: Broker) -> Iterator[TimestampReader]:
    with closing(TimestampReader({"bootstrap.servers": broker.bootstrap}, PATIENCE_SECONDS, 1000)) as made:
        yield made


@pytest.mark.parametrize("kind", CONFIGS)
def test_records_since_matches_kafkas_admin_client(
    broker: Broker, topics: dict[str, str], reader: TimestampReader, kind: str
) -> None:
    topic = topics[kind]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    times = sorted(time for time in set(records_of(broker, topic).values()) if time <= FAR_MS)
    asked = [0, *times[::5], times[-1], times[-1] + 1, NOW_MS]
    specs = {one: OffsetSpec.for_timestamp(one) for one in asked} | {LARGEST_TIMESTAMP: OffsetSpec.max_timestamp()}
    for timestamp, spec in specs.items():
        [answer] = reader.records_since({(topic, 0): timestamp}, time.monotonic() + PATIENCE_SECONDS).values()
        [future] = admin.list_offsets({ConfluentPartition(topic, 0): spec}).values()
        expected = future.result(PATIENCE_SECONDS)
        if expected.offset < 0:
            assert answer is None
        else:
            assert answer == RecordTimestamp(expected.offset, expected.timestamp)


def test_records_since_many_partitions_have_each_its_answer_or_reason(
    topics: dict[str, str], reader: TimestampReader
) -> None:
    asked = {(topic, partition): 0 for topic in (*topics.values(), "no-such-topic") for partition in (0, 1)}
    answers = reader.records_since(asked, time.monotonic() + PATIENCE_SECONDS)
    assert answers.keys() == asked.keys()
    for (topic, partition), answer in answers.items():
        if topic == "no-such-topic":
            assert answer == NO_TOPIC
        elif partition:
            assert answer == "no such partition"
        elif topic == topics["empty"]:
            assert answer is None
        else:
            assert isinstance(answer, RecordTimestamp)


def test_kept_topics_are_those_that_are_not_compacted(topics: dict[str, str], reader: TimestampReader) -> None:
    kept = reader.kept_topics([*topics.values(), "no-such-topic"])
    assert set(kept) == set(topics.values()) - {topics["compacted"]}


@pytest.mark.parametrize("kind", CONFIGS)
def test_dated_records_every_offset_is_never_wrong(
    broker: Broker, topics: dict[str, str], reader: TimestampReader, kind: str
) -> None:
    """The judge is a consumer, which reads all records."""
    topic = topics[kind]
    start, end = bounds(broker, topic)
    records = records_of(broker, topic)
    offsets = np.arange(start, end)
    none = np.full(len(offsets), UNKNOWN)
    unread = UnreadRecords(none * 0, offsets, end - offsets, none, none, none > 0)
    deadline = time.monotonic() + PATIENCE_SECONDS
    dated, now = DatedRecords(), np.full(len(offsets), (NOW_MS + HOUR_MS) * 1000)
    dated.want(unread, int(now[0]), lambda numbers: [(topic, 0)] * len(numbers))
    assert not reader.has_transactions()
    lookup = TimestampLookup(lambda asked: reader.records_since(asked, deadline), reader.has_transactions)
    assert dated.search(lookup)
    age = dated.age(unread, now)
    latest = np.rint(now / 1000 - age.seconds * 1000)
    found = ~np.isnan(age.seconds)
    if kind in ("ordered", "deleted"):
        assert age.is_exact.all()
    if kind in IN_ORDER:
        assert found.all()
    for offset, limit, is_exact in zip(offsets[found], latest[found], age.is_exact[found], strict=True):
        first = min(at for at in records if at >= offset)
        assert records[first] <= limit
        assert not is_exact or records[first] == limit
        if kind in IN_ORDER:
            later = (time for at, time in records.items() if at > first and time > records[first])
            assert limit <= next(later, records[first])


def lag_at_samples(
    config: Config, broker: Broker, topic: str, committed: int, count: int, *, once: bool = False
) -> list[dict[str, Any]]:
    """Return the rows of the first samples of a group that committed before them, as stored and as published."""
    at = datetime.now(UTC)
    commit = {"topic": topic, "partition": 0, "record_offset": 1, "record_at": at - timedelta(minutes=1)}
    commit |= {"commit_at": commit["record_at"], "committed_offset": committed, "is_tombstone": False}
    small_tables.lay(config, "offset_commits", commit)
    lines: list[str] = []
    state = LagState(replace(lag_inputs(config), once=once), lines.append)
    start, end = bounds(broker, topic)
    rows = []
    for number in range(count):
        sample = {"cluster": config.cluster, "topic": topic, "partition": 0, "log_start_offset": start}
        sample |= {"last_stable_offset": end, "log_end_offset": end}
        sample |= dict.fromkeys(("asked_at", "sampled_at"), at + timedelta(seconds=number))
        rows += state.lag(pa.Table.from_pylist([sample], LOGS)).to_pylist()
        state.await_timestamps(PATIENCE_SECONDS)
        published = state.fresh_rows()
        assert published is not None
        rows += published.to_pylist()
    assert lines == []
    return rows


@pytest.fixture
def empty(broker: Broker, tmp_path: Path) -> Config:
    return empty_tables(tmp_path).model_copy(update={"kafka": {"bootstrap.servers": broker.bootstrap}})


@pytest.mark.parametrize("kind", ["ordered", "deleted"])
def test_lag_state_first_sample_is_dated_for_metrics_and_second_for_tables(
    empty: Config, broker: Broker, topics: dict[str, str], kind: str
) -> None:
    topic = topics[kind]
    rows = lag_at_samples(empty, broker, topic, 30, count=2)
    truth = records_of(broker, topic)[30] / 1000
    assert [row["lag_seconds_method"] for row in rows] == ["bounded", "dated", "dated", "dated"]
    for row in rows[1:]:
        assert (row["lag"], row["lag_seconds_error"]) == (RECORDS - 30, 0)
        assert row["lag_seconds"] == pytest.approx(row["sampled_at"].timestamp() - truth, abs=0.002)


def test_lag_state_job_that_ends_with_the_sample_waits_for_timestamps(
    empty: Config, broker: Broker, topics: dict[str, str]
) -> None:
    row = lag_at_samples(empty, broker, topics["ordered"], 30, count=1, once=True)[0]
    assert (row["lag_seconds_method"], row["lag_seconds_error"]) == ("dated", 0)


def test_lag_state_commit_before_log_start_is_dated_by_the_first_record_left(
    empty: Config, broker: Broker, topics: dict[str, str]
) -> None:
    row = lag_at_samples(empty, broker, topics["deleted"], 10, count=1)[-1]
    truth = records_of(broker, topics["deleted"])[23] / 1000
    assert (row["lost_records"], row["lag_seconds_method"], row["lag_seconds_error"]) == (13, "dated", 0)
    assert row["lag_seconds"] == pytest.approx(row["sampled_at"].timestamp() - truth, abs=0.002)


@pytest.mark.parametrize(("kind", "committed"), [("ordered", RECORDS), ("empty", 0)])
def test_lag_state_nothing_unread_is_no_lag(
    empty: Config, broker: Broker, topics: dict[str, str], kind: str, committed: int
) -> None:
    for row in lag_at_samples(empty, broker, topics[kind], committed, count=2):
        assert (row["lag"], row["lag_seconds"], row["lag_seconds_error"]) == (0, 0, 0)


@pytest.mark.parametrize("kind", ["future", "absurd"])
def test_lag_state_timestamp_in_the_future_is_never_a_negative_age(
    empty: Config, broker: Broker, topics: dict[str, str], kind: str
) -> None:
    for row in lag_at_samples(empty, broker, topics[kind], 20, count=2):
        assert (row["lag_seconds"] >= 0, row["lag_seconds_method"]) == (True, "bounded")


def test_timestamp_reader_moved_leader_is_found_again(topics: dict[str, str], reader: TimestampReader) -> None:
    at = (topics["ordered"], 0)
    deadline = time.monotonic() + PATIENCE_SECONDS
    [known] = reader.records_since({at: 0}, deadline).values()
    leader, server = reader._leaders[at]
    reader._leaders[at] = leader + 7, server
    assert reader.records_since({at: 0}, deadline) in ({at: f"broker {leader + 7} did not answer"}, {})
    assert reader.records_since({at: 0}, deadline) == {at: known}
