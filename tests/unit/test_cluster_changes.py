"""Changes between samples of a cluster: replaying the rows gives back every sample."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouptrail.cluster_facts.changes import TableChanges, compare, is_outdated
from grouptrail.cluster_facts.sample import (
    BROKERS,
    CLUSTER_INFO,
    KEYS,
    OBSERVED_SCHEMAS,
    OPEN_SCHEMAS,
    PARTITIONS,
    TOPICS,
    LastSeen,
    Observation,
)

START = datetime(2026, 11, 1, tzinfo=UTC)
NAMES = ("a", "b", "naïve", "")

Row = dict[str, Any]


def minute(number: int) -> datetime:
    return START + timedelta(minutes=number)


def topic(name: str, topic_id: str | None = "id", partitions: int = 1) -> Row:
    shape = {"partition_count": partitions, "replication_factor": 1, "is_internal": False}
    return {"topic": name, "topic_id": topic_id, **shape}


def partition(name: str, number: int = 0, **more: Any) -> Row:
    led = {"leader": 1, "leader_epoch": 0, "replicas": [1, 2], "isr": [1, 2], "offline": []}
    return {"topic": name, "partition": number, **led, **more}


def seen(table: str, *rows: Row, unanswered: tuple[str, ...] = ()) -> Observation:
    return Observation(pa.Table.from_pylist(list(rows), OBSERVED_SCHEMAS[table]), START, START, unanswered)


class Replayed:
    """A table as its rows are written, one sample a minute."""

    def __init__(self, table: str) -> None:
        self.table = table
        self.open_rows = OPEN_SCHEMAS[table].empty_table()
        self.rows: dict[tuple[Any, ...], Row] = {}
        self.at = -1
        self._last: LastSeen | None = None

    def sample(self, observation: Observation) -> TableChanges:
        self.at += 1
        at, is_first = minute(self.at), self.at == 0
        changes = compare(self.table, self.open_rows, observation, at=at, last=self._last, is_first=is_first)
        self.open_rows = changes.open_rows
        self._last = LastSeen(at, observation.unanswered)
        for row in changes.rows.to_pylist():
            key = (*(row[name] for name in KEYS[self.table]), row["valid_from"])
            assert row["is_open"] or self.rows[key]["is_open"], "only open rows end"
            self.rows[key] = row
        return changes

    def valid_at(self, at: datetime) -> list[Row]:
        rows = [row for row in self.rows.values() if row["valid_from"] <= at and (row["valid_to"] or at + DAY) > at]
        return in_order(
            self.table, [{name: row[name] for name in OBSERVED_SCHEMAS[self.table].names} for row in rows]
        )


DAY = timedelta(days=1)


def in_order(table: str, rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: [row[name] for name in KEYS[table]])


def nodes() -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(1, 3), max_size=3, unique=True)


def partitions() -> st.SearchStrategy[Row]:
    return st.builds(
        partition,
        st.sampled_from(NAMES),
        st.integers(0, 2),
        leader=st.none() | st.integers(1, 3),
        leader_epoch=st.none() | st.integers(0, 2),
        replicas=nodes(),
        isr=nodes(),
        offline=nodes(),
    )


def topics() -> st.SearchStrategy[Row]:
    return st.builds(topic, st.sampled_from(NAMES), st.none() | st.sampled_from("xy"), st.integers(1, 2))


def observations(table: str, rows: st.SearchStrategy[Row]) -> st.SearchStrategy[list[Observation]]:
    """Samples with at most one row for each key, which say nothing of some topics."""

    def observation(answered: list[Row], unanswered: set[str]) -> Observation:
        kept = [row for row in answered if row["topic"] not in unanswered]
        return seen(table, *kept, unanswered=tuple(unanswered))

    unique = st.lists(rows, max_size=6, unique_by=lambda row: tuple(row[name] for name in KEYS[table]))
    return st.lists(st.builds(observation, unique, st.sets(st.sampled_from(NAMES), max_size=1)), max_size=5)


def assert_replays(table: str, samples: list[Observation]) -> None:
    replayed, expected = Replayed(table), list[list[Row]]()
    for observation in samples:
        before = expected[-1] if expected else []
        kept = [row for row in before if row["topic"] in observation.unanswered]
        expected.append(in_order(table, [*observation.rows.to_pylist(), *kept]))
        changes = replayed.sample(observation)
        assert bool(len(changes.rows)) is (expected[-1] != before)
        assert not len(replayed.sample(observation).rows), "the same sample again changes nothing"
    assert [replayed.valid_at(minute(2 * number)) for number in range(len(expected))] == expected
    for row in replayed.rows.values():
        assert row["is_open"] is (row["valid_to"] is None) is (row["open_bucket"] is not None)
        assert row["is_open"] or row["valid_from"] <= row["last_seen_at"] < row["valid_to"]


@given(observations(PARTITIONS, partitions()))
def test_compare_partitions_rows_replay_every_sample(samples: list[Observation]) -> None:
    assert_replays(PARTITIONS, samples)


@given(observations(TOPICS, topics()))
def test_compare_topics_rows_replay_every_sample(samples: list[Observation]) -> None:
    assert_replays(TOPICS, samples)


@given(observations(TOPICS, topics()))
def test_compare_topics_created_and_deleted_frame_each_topic_id(samples: list[Observation]) -> None:
    """A topic's rows with one id have one time of creation, and only the last of them one of deletion."""
    replayed = Replayed(TOPICS)
    for observation in samples:
        replayed.sample(observation)
    rows = sorted(replayed.rows.values(), key=lambda row: (row["topic"], row["valid_from"]))
    for before, after in pairwise(rows):
        if before["topic"] == after["topic"] and before["deleted_at"] is None:
            assert (before["topic_id"], before["created_at"]) == (after["topic_id"], after["created_at"])
        if before["topic"] == after["topic"] and before["deleted_at"] is not None:
            assert after["created_at"] == after["valid_from"]
    assert all(row["deleted_at"] in (None, row["valid_to"]) for row in rows)
    assert all(row["created_at"] is None or row["created_at"] <= row["valid_from"] for row in rows)


def test_compare_topic_recreated_ends_with_deleted_at_and_begins_with_created_at() -> None:
    replayed = Replayed(TOPICS)
    replayed.sample(seen(TOPICS, topic("orders", "old")))
    replayed.sample(seen(TOPICS, topic("orders", "old", partitions=2)))
    replayed.sample(seen(TOPICS, topic("orders", "new", partitions=2), topic("audit", "x")))
    rows = sorted(replayed.rows.values(), key=lambda row: (row["topic"], row["valid_from"]))
    assert [(row["topic"], row["topic_id"], row["created_at"], row["deleted_at"]) for row in rows] == [
        ("audit", "x", minute(2), None),
        ("orders", "old", None, None),
        ("orders", "old", None, minute(2)),
        ("orders", "new", minute(2), None),
    ]
    assert rows[2]["last_seen_at"] == minute(1)


@pytest.mark.parametrize("table", [TOPICS, PARTITIONS])
def test_compare_unanswered_topic_keeps_its_rows(table: str) -> None:
    row: Callable[[str], Row] = topic if table == TOPICS else partition
    replayed = Replayed(table)
    replayed.sample(seen(table, row("orders"), row("audit")))
    assert not len(replayed.sample(seen(table, row("audit"), unanswered=("orders",))).rows)
    replayed.sample(seen(table, row("audit")))
    [gone] = [row for row in replayed.rows.values() if not row["is_open"]]
    assert (gone["topic"], gone["last_seen_at"], gone["valid_to"]) == ("orders", minute(0), minute(2))


def test_parts_many_changed_rows_are_written_by_bucket() -> None:
    """A topic's rows are in one bucket, so that readers see them change at once."""
    replayed = Replayed(PARTITIONS)
    names = [f"topic-{number}" for number in range(20)]
    first = replayed.sample(seen(PARTITIONS, *map(partition, names)))
    assert [(len(rows), buckets) for rows, buckets in first.parts(20)] == [(20, [])]
    appended = [(rows["open_bucket"].unique().to_pylist(), buckets) for rows, buckets in first.parts(5)]
    assert appended == [([bucket], []) for bucket in sorted(set(first.buckets.tolist()))]
    kept = [partition(name, leader_epoch=int(number < 10)) for number, name in enumerate(names)]
    changes = replayed.sample(seen(PARTITIONS, *kept, partition("new")))
    [(rows, buckets)] = changes.parts(21)
    assert (rows, buckets) == (changes.rows, sorted(set(changes.buckets[:10].tolist())))
    parts = list(changes.parts(20))
    assert len(parts) == len(set(changes.buckets.tolist()))
    assert sum(len(rows) for rows, _ in parts) == 21
    for rows, buckets in parts:
        assert set(rows["open_bucket"].drop_null().to_pylist()) >= set(buckets)
        assert bool(buckets) is bool(rows["open_bucket"].null_count)
        assert len(buckets) <= 1


def test_compare_broker_and_cluster_changes_end_one_row_and_begin_another() -> None:
    brokers = Replayed(BROKERS)
    broker = {"broker_id": 1, "host": "kafka-1", "port": 9092, "rack": None, "is_controller": True}
    broker |= {"release_from": "4.1", "release_before": "4.2"}
    brokers.sample(seen(BROKERS, broker, {**broker, "broker_id": 2, "is_controller": False}))
    changes = brokers.sample(seen(BROKERS, {**broker, "rack": "a"}))
    assert (changes.ended, changes.began, changes.buckets.tolist()) == (2, 1, [0, 0, 0])
    info = Replayed(CLUSTER_INFO)
    known = {"cluster_id": "x", "controller": 1, "features": [{"name": "group.version", "level": 0}], "problem": None}
    info.sample(seen(CLUSTER_INFO, known))
    assert not len(info.sample(seen(CLUSTER_INFO, known)).rows)
    changes = info.sample(seen(CLUSTER_INFO, {**known, "features": [{"name": "group.version", "level": 1}]}))
    assert (changes.ended, changes.began) == (1, 1)
    assert len(info.sample(seen(CLUSTER_INFO, {**known, "features": None})).rows) == 2


@pytest.mark.parametrize(
    ("topic_id", "epoch", "expected"), [("id", 4, True), ("id", 5, False), ("id", 6, False), ("other", 0, False)]
)
def test_is_outdated_lower_epoch_of_the_same_topic(topic_id: str, epoch: int, expected: bool) -> None:
    """A topic that was created again begins with epoch 0."""
    open_topics, open_partitions = Replayed(TOPICS), Replayed(PARTITIONS)
    open_topics.sample(seen(TOPICS, topic("orders")))
    open_partitions.sample(seen(PARTITIONS, partition("orders", leader_epoch=5)))
    topics, led = seen(TOPICS, topic("orders", topic_id)), seen(PARTITIONS, partition("orders", leader_epoch=epoch))
    assert is_outdated(open_topics.open_rows, open_partitions.open_rows, topics.rows, led.rows) is expected
    assert not is_outdated(
        *(replayed.open_rows for replayed in (Replayed(TOPICS), Replayed(PARTITIONS))), topics.rows, led.rows
    )


def test_is_outdated_brokers_without_topic_ids_are_not_judged() -> None:
    open_topics, open_partitions = Replayed(TOPICS), Replayed(PARTITIONS)
    open_topics.sample(seen(TOPICS, topic("orders", None)))
    open_partitions.sample(seen(PARTITIONS, partition("orders", leader_epoch=5)))
    topics, led = seen(TOPICS, topic("orders", None)), seen(PARTITIONS, partition("orders", leader_epoch=0))
    assert not is_outdated(open_topics.open_rows, open_partitions.open_rows, topics.rows, led.rows)
