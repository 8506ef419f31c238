"""Records by timestamps from a real broker, compared with Kafka's admin client and with the records themselves."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from kafka import KafkaConsumer, TopicPartition

from grouptrail.config import Config
from grouptrail.kafka.cluster import Cluster
from grouptrail.kafka.log import LARGEST_TIMESTAMP, NO_TOPIC, RecordTimestamp
from grouptrail.kafka.timestamps import TimestampReader
from grouptrail.lag.dated import DatedRecords, TimestampLookup
from grouptrail.lag.state import LagState
from servers.kafka import Broker
from support import small_tables
from support.contexts import lag_inputs
from support.kafka_clients import PATIENCE_SECONDS, await_that, producer
from support.lag_cluster import empty_tables
from support.lag_samples import LOGS

NOW_MS = time.time_ns() // 1_000_000
HOUR_MS = 3_600_000
RECORDS = 60
FAR_MS = NOW_MS + 1000 * HOUR_MS
ANY_FUTURE = {"message.timestamp.after.max.ms": str((1 << 63) - 1)}
CONFIGS = {
    "ordered": {},
    "batches": {"message.timestamp.type": "LogAppendTime"},
    "disordered": {},
    "deleted": {"segment.bytes": "1048576"},
    "compacted": {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"},
    "transacted": {},
    "future": ANY_FUTURE,
    "absurd": ANY_FUTURE,
}
IN_ORDER = ("ordered", "batches", "deleted", "compacted")
Records = dict[int, int]
"""Timestamps (milliseconds) by offset, markers of transactions left out."""


def produce(broker: Broker, kind: str, topic: str) -> None:
    chance = random.Random(7)
    gaps = [chance.choice([1, 1000, HOUR_MS]) for _ in range(RECORDS)]
    times = [NOW_MS - sum(gaps[number:]) for number in range(RECORDS)]
    if kind == "disordered":
        chance.shuffle(times)
    if kind in ("future", "absurd"):
        times[20] = FAR_MS if kind == "future" else (1 << 63) - 1
    if kind == "transacted":
        with producer(broker, **{"transactional.id": topic}) as producing:
            producing.init_transactions(PATIENCE_SECONDS)
            for number, timestamp in enumerate(times):
                producing.begin_transaction()
                producing.produce(topic, b"x", timestamp=timestamp)
                assert producing.flush(PATIENCE_SECONDS) == 0
                (producing.abort_transaction if number % 3 == 2 else producing.commit_transaction)(PATIENCE_SECONDS)
        return
    with producer(broker, **{"linger.ms": "20" if kind == "batches" else "0"}) as producing:
        for number, timestamp in enumerate(times):
            producing.produce(topic, b"x", key=str(number % 7), timestamp=timestamp)
            if number % 5 == 0:
                assert producing.flush(PATIENCE_SECONDS) == 0
    if kind == "compacted":  # the active segment is not compacted
        await_that(lambda: is_compacted(broker, topic))
        keep = {"cleanup.policy": "delete", "retention.ms": "-1"}
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in keep.items()
        ]
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        admin.incremental_alter_configs([resource])[resource].result(PATIENCE_SECONDS)


def is_compacted(broker: Broker, topic: str) -> bool:
    with producer(broker) as producing:
        producing.produce(topic, b"x", key="last")
    return len(records_of(broker, topic)) < RECORDS / 2


def records_of(broker: Broker, topic: str) -> Records:
    """Return all records that a consumer reads, aborted ones too."""
    partition = TopicPartition(topic, 0)
    with closing(KafkaConsumer(bootstrap_servers=broker.bootstrap, group_id=None)) as consumer:
        consumer.assign([partition])
        end = consumer.end_offsets([partition])[partition]
        consumer.seek_to_beginning(partition)
        records: Records = {}
        deadline = time.monotonic() + PATIENCE_SECONDS
        while consumer.position(partition) < end and time.monotonic() < deadline:
            for one in consumer.poll(timeout_ms=100).get(partition, ()):
                records[one.offset] = one.timestamp
        return records


@pytest.fixture(scope="module")
def topics(broker: Broker) -> dict[str, str]:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    names = {kind: f"{kind}-{uuid.uuid4().hex[:8]}" for kind in CONFIGS}
    new = [NewTopic(names[kind], 1, 1, config=config) for kind, config in CONFIGS.items()]
    for created in admin.create_topics(new).values():
        created.result(PATIENCE_SECONDS)
    for kind, name in names.items():
        produce(broker, kind, name)
    deleted = admin.delete_records([ConfluentPartition(names["deleted"], 0, 23)])
    assert all(one.result(PATIENCE_SECONDS) for one in deleted.values())
    return names


@pytest.fixture
def reader(broker: Broker) -> Iterator[TimestampReader]:
    with closing(TimestampReader({"bootstrap.servers": broker.bootstrap}, PATIENCE_SECONDS, 1000)) as made:
        yield made


def bounds(broker: Broker, topic: str) -> tuple[int, int]:
    with Cluster({"bootstrap.servers": broker.bootstrap}) as cluster:
        [place] = cluster.partition_metadata({topic: [0]})
        assert place.leader is not None
        known = cluster.log_bounds(place.leader, [(topic, 0)])[topic, 0]
    assert not isinstance(known, str)
    return known.log_start_offset, known.log_end_offset


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
        else:
            assert isinstance(answer, RecordTimestamp)


@pytest.mark.parametrize("kind", CONFIGS)
def test_dated_records_every_offset_is_never_wrong(
    broker: Broker, topics: dict[str, str], reader: TimestampReader, kind: str
) -> None:
    """The judge is a consumer, which reads all but the markers of transactions."""
    topic = topics[kind]
    start, end = bounds(broker, topic)
    records = records_of(broker, topic)
    offsets = np.arange(start, end)
    partitions = np.zeros(len(offsets), np.int64)
    deadline = time.monotonic() + PATIENCE_SECONDS
    dated, now = DatedRecords(), np.full(len(offsets), (NOW_MS + HOUR_MS) * 1000)
    dated.find(
        partitions,
        offsets,
        int(now[0]),
        lambda numbers: [(topic, 0)] * len(numbers),
        TimestampLookup(lambda asked: reader.records_since(asked, deadline), reader.has_transactions),
    )
    age = dated.age(partitions, offsets, now)
    latest = np.rint(now / 1000 - age.seconds * 1000)
    found = ~np.isnan(age.seconds)
    if kind in ("ordered", "deleted"):
        assert age.is_exact.all()
    for offset, limit, is_exact in zip(offsets[found], latest[found], age.is_exact[found], strict=True):
        first = min(at for at in (*records, end) if at >= offset)
        if first == end or (kind == "transacted" and first != offset):
            continue  # a marker's timestamp is that of its broker
        assert records[first] <= limit
        assert not is_exact or records[first] == limit
        if kind in IN_ORDER:
            later = (time for at, time in records.items() if at > first and time > records[first])
            assert limit <= next(later, records[first])
    if kind in IN_ORDER:
        assert found.all()
    assert dated.may_be_markers


def lag_at_samples(config: Config, broker: Broker, topic: str, committed: int, count: int) -> list[dict[str, Any]]:
    """Return the rows of the first samples of a group that committed an offset before them."""
    at = datetime.now(UTC)
    commit = {"topic": topic, "partition": 0, "record_offset": 1, "record_at": at - timedelta(minutes=1)}
    commit |= {"commit_at": commit["record_at"], "committed_offset": committed, "is_tombstone": False}
    small_tables.lay(config, "offset_commits", commit)
    lines: list[str] = []
    state = LagState(lag_inputs(config), lines.append)
    start, end = bounds(broker, topic)
    rows = []
    for number in range(count):
        sample = {"cluster": config.cluster, "topic": topic, "partition": 0, "log_start_offset": start}
        sample |= {"last_stable_offset": end, "log_end_offset": end}
        sample |= dict.fromkeys(("asked_at", "sampled_at"), at + timedelta(seconds=number))
        rows += state.lag(pa.Table.from_pylist([sample], LOGS)).to_pylist()
    assert lines == []
    return rows


@pytest.fixture
def empty(broker: Broker, tmp_path: Path) -> Config:
    return empty_tables(tmp_path).model_copy(update={"kafka": {"bootstrap.servers": broker.bootstrap}})


@pytest.mark.parametrize("kind", ["ordered", "deleted"])
def test_lag_state_first_samples_are_dated(empty: Config, broker: Broker, topics: dict[str, str], kind: str) -> None:
    """The other topics have transactions: so few offsets may be markers, until a record has been read."""
    topic = topics[kind]
    rows = lag_at_samples(empty, broker, topic, 30, count=3)
    truth = records_of(broker, topic)[30] / 1000
    assert [row["lag_seconds_method"] for row in rows] == ["bounded", "bounded", "dated"]
    assert (rows[-1]["lag"], rows[-1]["lag_seconds_error"]) == (RECORDS - 30, 0)
    assert rows[-1]["lag_seconds"] == pytest.approx(rows[-1]["sampled_at"].timestamp() - truth, abs=0.002)


def test_lag_state_marker_at_the_end_is_no_lag(empty: Config, broker: Broker, topics: dict[str, str]) -> None:
    topic = topics["transacted"]
    rows = lag_at_samples(empty, broker, topic, bounds(broker, topic)[1] - 1, count=3)
    assert [row["lag_seconds"] < 3 for row in rows] == [True] * 3
    assert (rows[-1]["lag"], rows[-1]["lag_seconds"], rows[-1]["status"]) == (1, 0, "OK")


def test_timestamp_reader_moved_leader_is_found_again(topics: dict[str, str], reader: TimestampReader) -> None:
    at = (topics["ordered"], 0)
    deadline = time.monotonic() + PATIENCE_SECONDS
    [known] = reader.records_since({at: 0}, deadline).values()
    leader, server = reader._leaders[at]
    reader._leaders[at] = leader + 7, server
    assert reader.records_since({at: 0}, deadline) in ({at: f"broker {leader + 7} did not answer"}, {})
    assert reader.records_since({at: 0}, deadline) == {at: known}
