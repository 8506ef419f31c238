"""The time to data loss on a broker whose topics lose data: what was foreseen at each sample, and what was deleted.

The judge is Kafka's admin client: a record is gone once the log starts behind it.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from grouptrail.cluster_facts.sample import LOG_SIZES, TABLES
from grouptrail.cluster_facts.sampler import Sampler
from grouptrail.cluster_facts.state import OpenRows
from grouptrail.config import Config
from grouptrail.kafka.cluster_metadata import ClusterDescription
from grouptrail.lag import retention_inputs
from grouptrail.lag.retention import NO_AGE, NO_RATE, NO_SIZE, NOTHING_UNREAD, READ_IN_TIME
from grouptrail.lag.state import LagState
from grouptrail.runtime.warehouses import warehouse_of
from servers.kafka import Broker
from support import small_tables
from support.contexts import lag_inputs
from support.kafka_clients import PATIENCE_SECONDS, await_that, in_background
from support.kafka_versions import EVERY_VERSION
from support.lag_cluster import empty_tables
from support.lag_samples import LOGS
from support.noted_samples import note_sample

CHECK_SECONDS = 1.0
RETENTION_SECONDS, SEGMENT_SECONDS = 10, 3
FILL_SECONDS, OBSERVED_SECONDS = 4.0, 24.0
RECORD_BYTES, KEPT_BYTES, MEBIBYTE = 40_000, 3_000_000, 1 << 20
RECORDS_A_SECOND = 10
AHEAD_MS = 4_000

BY_TIME = {
    "cleanup.policy": "delete",
    "retention.ms": str(RETENTION_SECONDS * 1000),
    "segment.ms": str(SEGMENT_SECONDS * 1000),
}
TOPICS: dict[str, dict[str, str]] = {
    "busy": BY_TIME,
    "idle": {**BY_TIME, "segment.ms": "3600000"},
    "stamped": {**BY_TIME, "message.timestamp.type": "LogAppendTime"},
    "ahead": BY_TIME,
    "by-bytes": {"retention.ms": "-1", "retention.bytes": str(KEPT_BYTES), "segment.bytes": str(MEBIBYTE)},
    # Each compaction joins closed segments, so that the first is as young as the last of them.
    "both": {**BY_TIME, "cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0.9"},
    "compacted": {**BY_TIME, "cleanup.policy": "compact"},
    "unlimited": {"retention.ms": "-1"},
}
KEPT = ("compacted", "unlimited")
SLOW_RECORDS_A_SECOND = 2
"""A group that reads a fifth of what is written."""


@dataclass
class Position:
    """A group in a topic: its first committed offset, and how many records it reads a second."""

    topic: str
    group: str
    offset: int
    rate: float = 0.0

    def at(self, seconds: float) -> int:
        """Return the committed offset so long after the first sample."""
        return self.offset + int(self.rate * seconds)


POSITIONS = [
    *(Position(topic, "stuck", 0) for topic in TOPICS),
    *(Position(topic, "stuck-later", 15) for topic in TOPICS),
    Position("busy", "slow", 0, SLOW_RECORDS_A_SECOND),
    Position("stamped", "slow", 0, SLOW_RECORDS_A_SECOND),
    Position("busy", "quick", 0, 4 * RECORDS_A_SECOND),
]


@dataclass
class Bounds:
    """Starts and ends of logs as the admin client read them: between two times (seconds since 1970) each."""

    asked_at: float
    answered_at: float
    starts: dict[str, int]
    ends: dict[str, int]


@dataclass
class Observed:
    """What was foreseen, and what happened; the longest time from a record's timestamp until the broker had it."""

    bounds: list[Bounds] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    delay_seconds: float = 0.0


@pytest.fixture(scope="module", params=EVERY_VERSION)
def losing_broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that checks its logs every second."""
    properties = {
        "log.retention.check.interval.ms": str(round(CHECK_SECONDS * 1000)),
        "log.initial.task.delay.ms": "1",
        "log.cleaner.backoff.ms": "500",
    }
    version: str = request.param
    with Broker(tmp_path_factory.mktemp("kafka"), version=version, properties=properties) as started:
        yield started


def _make_topics(admin: AdminClient) -> None:
    for made in admin.create_topics([NewTopic(name, 1, config=config) for name, config in TOPICS.items()]).values():
        made.result(PATIENCE_SECONDS)

    def have_leaders() -> bool:
        try:
            return bool(_read_bounds(admin))
        except KafkaException:
            return False

    await_that(have_leaders)


def _writer(broker: Broker, seen: Observed) -> Callable[[threading.Event], None]:
    """Return what writes records at an even rate to all topics, but to `idle` at first only."""

    def note_delay(_error: object, record: Message) -> None:
        seen.delay_seconds = max(seen.delay_seconds, record.latency())

    def write(ended: threading.Event) -> None:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0, "acks": "1"})
        number, due = 0, time.time()
        # What it was held up is not made up for: a rate that rises for a moment foretells deletions that do not come.
        while not ended.wait(max(due - time.time(), 0)):
            due = max(due + 1 / RECORDS_A_SECOND, time.time())
            for topic in TOPICS:
                if topic == "idle" and number / RECORDS_A_SECOND > FILL_SECONDS:
                    continue
                # Some records of `ahead` have a later timestamp than those after them.
                ahead = AHEAD_MS if topic == "ahead" and number % 7 == 0 else 0
                producer.produce(
                    topic,
                    b"x" * (RECORD_BYTES if topic == "by-bytes" else 100),
                    key=str(number).encode(),
                    timestamp=time.time_ns() // 1_000_000 + ahead,
                    on_delivery=note_delay,
                )
            producer.poll(0)
            number += 1
        assert producer.flush(PATIENCE_SECONDS) == 0

    return write


def _read_bounds(admin: AdminClient) -> Bounds:
    asked_at, offsets = time.time(), []
    for spec in (OffsetSpec.earliest(), OffsetSpec.latest()):
        answers = admin.list_offsets({TopicPartition(topic, 0): spec for topic in TOPICS})
        offsets.append({at.topic: answer.result(PATIENCE_SECONDS).offset for at, answer in answers.items()})
    return Bounds(asked_at, time.time(), *offsets)


@contextmanager
def _sampled_cluster(config: Config) -> Iterator[Callable[[], None]]:
    """Yield what samples the brokers' settings of topics and sizes of logs, as the job `cluster` does."""
    warehouse = warehouse_of(config)
    warehouse.ensure((*TABLES, LOG_SIZES))
    rows = OpenRows(warehouse, lambda: "app")
    with closing(ClusterDescription(config.kafka_settings(), 100)) as cluster:
        sampler = Sampler(cluster, log_sizes_seconds=0.001)

        def sample() -> None:
            rows.update(sampler.sample(rows.tables))
            sizes, problems = sampler.log_sizes()
            assert (sizes is not None, problems) == (True, ())
            rows.replace_log_sizes(sizes)
            note_sample(warehouse, "cluster", datetime.now(UTC))

        yield sample


def _commit_rows(at: datetime, seconds: float, number: int) -> list[dict[str, Any]]:
    return [
        {
            "topic": position.topic, "partition": 0, "group_id": position.group, "record_partition": 0,
            "record_offset": number * len(POSITIONS) + place, "record_at": at, "commit_at": at,
            "committed_offset": position.at(seconds), "is_tombstone": False,
        }
        for place, position in enumerate(POSITIONS)
    ]  # fmt: skip


def _sample_rows(config: Config, bounds: Bounds) -> pa.Table:
    asked_at, answered_at = (datetime.fromtimestamp(one, UTC) for one in (bounds.asked_at, bounds.answered_at))
    of_all = {"cluster": config.cluster, "partition": 0, "asked_at": asked_at, "sampled_at": answered_at}
    rows = [
        {**of_all, "topic": topic, "log_start_offset": bounds.starts[topic], "log_end_offset": end,
         "last_stable_offset": end}
        for topic, end in bounds.ends.items()
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, LOGS)


@pytest.fixture(scope="module")
def observed(losing_broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Observed:
    """Sample once a second until all topics have lost records; the starts of the logs are read more often."""
    lag = {"retention_check_seconds": CHECK_SECONDS, "timestamp_lookup": False}
    config = empty_tables(tmp_path_factory.mktemp("warehouse"), **lag)
    config = config.model_copy(update={"kafka": {"bootstrap.servers": losing_broker.bootstrap}})
    admin = AdminClient({"bootstrap.servers": losing_broker.bootstrap})
    _make_topics(admin)
    seen, lines = Observed(), list[str]()

    def have_lost() -> bool:
        lost = {row["topic"] for row in seen.rows if row["group_id"] == "stuck" and row["lost_records"]}
        return lost >= TOPICS.keys() - set(KEPT)

    with pytest.MonkeyPatch.context() as patch, _sampled_cluster(config) as sample_cluster:
        patch.setattr(retention_inputs, "_EVERY_SECONDS", 0)
        state = LagState(lag_inputs(config), lines.append)
        with in_background(_writer(losing_broker, seen)):
            started, number = time.time(), 0
            while (now := time.time()) < started + OBSERVED_SECONDS or not have_lost():
                assert now < started + PATIENCE_SECONDS
                bounds = _read_bounds(admin)
                seen.bounds.append(bounds)
                if now < started + number:
                    time.sleep(0.05)
                    continue
                if number % 3 == 0:
                    sample_cluster()
                at = datetime.fromtimestamp(bounds.asked_at, UTC)
                small_tables.lay(config, "offset_commits", *_commit_rows(at, bounds.asked_at - started, number))
                seen.rows += state.lag(_sample_rows(config, bounds)).to_pylist()
                number += 1
    assert lines == []
    return seen


def _loss_after(seen: Observed, row: dict[str, Any], position: Position) -> tuple[float, float] | None:
    """Return between which times after a sample a record was deleted that was there and not read; None: none was."""
    sampled_at, end = row["sampled_at"].timestamp(), row["log_end_offset"]
    offset, last = max(row["committed_offset"], row["log_start_offset"]), 0.0
    for bounds in seen.bounds:
        after = bounds.answered_at - sampled_at
        if after <= 0:
            continue
        read_to = offset + int(position.rate * after)
        if min(bounds.starts[position.topic], end) > read_to:
            return last, after
        last = bounds.asked_at - sampled_at
    return None


def _held_up(seen: Observed, row: dict[str, Any], seconds: float) -> float:
    """Return for how long (s) of the time after a sample fewer records were written than at the even rate."""
    if row["topic"] == "idle":  # nothing is written to it
        return 0.0
    until = row["sampled_at"].timestamp() + seconds
    ends = [one.ends[row["topic"]] for one in seen.bounds if one.asked_at <= until]
    return max(0.0, seconds - (max(ends) - row["log_end_offset"]) / RECORDS_A_SECOND) if ends else 0.0


@dataclass
class Judged:
    """The samples of a position by reason, and of those with figures: least, most, and when a record was deleted."""

    reasons: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    figures: list[tuple[float, float | None, float, float]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def _judge(seen: Observed, position: Position) -> Judged:
    judged = Judged()
    for row in seen.rows:
        if (row["topic"], row["group_id"]) != (position.topic, position.group):
            continue
        if position.rate and row["lost_records"]:
            break  # a consumer would begin anew at the log's start
        least, most, reason = (row[f"time_to_loss_{name}"] for name in ("seconds", "most_seconds", "reason"))
        judged.reasons[reason] += 1
        lost = _loss_after(seen, row, position)
        what = f"{position.group} of {position.topic}, {least} to {most} ({reason}): {lost}"
        if reason == READ_IN_TIME and lost is not None:
            judged.wrong.append(f"{what}: not foreseen")
        if least is None or lost is None:
            continue
        judged.figures.append((least, most, *lost))
        # Retention goes by timestamps; a sample shows a record once it is in the log, later on a busy machine.
        delay = 0.0 if position.topic == "stamped" else seen.delay_seconds
        if lost[1] + delay < least:
            judged.wrong.append(f"{what}: too early")
        # Nothing limits how long a timestamp that is ahead holds its segment.
        if position.topic != "ahead" and most is not None and lost[0] - _held_up(seen, row, lost[0]) > most:
            judged.wrong.append(f"{what}: too late")
    return judged


def test_time_to_loss_contains_every_observed_deletion(observed: Observed) -> None:
    """Of each position at each sample; the table goes to `artifacts/retention.md`."""
    judged = {(one.topic, one.group): _judge(observed, one) for one in POSITIONS}
    lines = [
        "| topic | group | samples | at the first: foreseen | deleted after | of all: after the earliest time by "
        "| before the latest time by |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (topic, group), one in judged.items():
        if not one.figures:
            lines.append(
                f"| {topic} | {group} | {sum(one.reasons.values())} | {max(one.reasons, key=one.reasons.get)} | | | |"
            )
            continue
        least, most, _, deleted = one.figures[0]
        latest = "" if most is None else f"{most:.1f} s"
        early = [late - foreseen for foreseen, _, _, late in one.figures]
        late = [limit - since for _, limit, since, _ in one.figures if limit is not None]
        lines.append(
            f"| {topic} | {group} | {len(one.figures)} | {least:.1f} s to {latest or 'any time'} | {deleted:.1f} s | "
            f"{min(early):.1f} to {max(early):.1f} s | {f'{min(late):.1f} to {max(late):.1f} s' if late else ''} |"
        )
    folder = Path("artifacts")
    folder.mkdir(exist_ok=True)
    (folder / "retention.md").write_text("\n".join(lines) + "\n", "utf-8")
    assert not (wrong := [text for one in judged.values() for text in one.wrong]), "\n".join(wrong)
    for position in POSITIONS:
        figures = judged[position.topic, position.group].figures
        assert bool(figures) == (position.topic not in KEPT and position.group != "quick"), "\n".join(lines)


def test_time_to_loss_of_stuck_groups_has_an_upper_limit_where_segments_are_closed_by_time(
    observed: Observed,
) -> None:
    """Not where compaction joins segments."""
    for topic, has_limit in (("busy", True), ("stamped", True), ("both", False)):
        figures = _judge(observed, Position(topic, "stuck", 0)).figures
        assert {most is not None for _, most, _, _ in figures} == {has_limit}


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        ("compacted", "retention deletes nothing of the topic: cleanup.policy=compact"),
        ("unlimited", "retention.ms and retention.bytes have no limit"),
    ],
)
def test_time_to_loss_of_topics_that_lose_nothing_is_absent(observed: Observed, topic: str, reason: str) -> None:
    """And they lose nothing."""
    judged = _judge(observed, Position(topic, "stuck", 0))
    assert judged.reasons.keys() - {NOTHING_UNREAD} == {reason}
    assert all(bounds.starts[topic] == 0 for bounds in observed.bounds)


def test_time_to_loss_without_figure_has_one_of_the_known_reasons(observed: Observed) -> None:
    """In the topics that lose data."""
    reasons = {
        row["time_to_loss_reason"].split("=")[0]
        for row in observed.rows
        if row["time_to_loss_seconds"] is None and row["topic"] not in KEPT
    }
    known = (NO_AGE, NO_RATE, NO_SIZE, NOTHING_UNREAD, READ_IN_TIME)
    assert reasons <= {reason.split("=")[0] for reason in known}


def test_lost_records_are_those_that_the_admin_client_shows(observed: Observed) -> None:
    """At the end, the logs start behind the groups that did not read."""
    last = {(row["topic"], row["group_id"]): row for row in observed.rows}
    for position in POSITIONS:
        row = last[position.topic, position.group]
        if position.group == "stuck" and position.topic not in KEPT:
            assert row["lost_records"] == row["log_start_offset"] - row["committed_offset"] > 0
