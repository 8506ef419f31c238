"""The data source of log offsets without Spark or a broker: options, tasks, and errors of brokers that fail."""

from __future__ import annotations

import pickle
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest

from grouptrail import contracts
from grouptrail.config import Config, job_settings
from grouptrail.kafka.cluster import bounds_or_reason, partitions_of
from grouptrail.kafka.errors import (
    ClusterError,
    KafkaDeniedError,
    KafkaLoginError,
    KafkaUnreachableError,
    TokenEndpointError,
)
from grouptrail.kafka.log import LogBounds, PartitionMetadata
from grouptrail.log_offsets import source
from grouptrail.log_offsets.committed import CommittedPartitions, OwnedPartitions
from grouptrail.log_offsets.job import which_partitions
from grouptrail.log_offsets.source import LeaderTask, LogOffsetsSource, OptionError, by_leader, sample
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.storage.schema import arrow_type
from support import small_tables

SERVERS = {"bootstrap.servers": "kafka:9092"}
OPTIONS = {"kafka.bootstrap.servers": "kafka:9092"}
ORDERS = "b3JkZXJzAAAAAAAAAAAAAA"
ORDERS_0 = PartitionMetadata("orders", 0, ORDERS, 1, "one:9092")
ORDERS_1 = PartitionMetadata("orders", 1, ORDERS, 2, "two:9092")
ORDERS_2 = PartitionMetadata("orders", 2, ORDERS, 1, "one:9092")
GONE = PartitionMetadata("gone", 0, error="no such topic")
# Partitions of the offsets topic: stable, held back by a transaction, and one without an answer.
OFFSETS = [PartitionMetadata("__consumer_offsets", partition, None, 1, "one:9092") for partition in (0, 1, 3)]
_BOUNDS: dict[tuple[str, int], LogBounds | str] = {
    ("orders", 2): "topic deleted",
    ("__consumer_offsets", 0): LogBounds(0, 9, 9),
    ("__consumer_offsets", 3): "not led by this broker",
}


class Cluster:
    """Two brokers that lead `orders`; `states` holds the errors that a server raises."""

    states: Mapping[str, ClusterError]
    queried: list[tuple[str, int]]

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._servers = settings["bootstrap.servers"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Do nothing: no connection is open."""

    def _answer(self) -> None:
        if self._servers in self.states:
            raise self.states[self._servers]

    def partition_metadata(
        self, wanted: Mapping[str, Collection[int] | None] | None = None
    ) -> list[PartitionMetadata]:
        self._answer()
        there = {(place.topic, place.partition): place for place in (ORDERS_0, ORDERS_1, ORDERS_2, *OFFSETS)}
        if wanted is None:
            return [ORDERS_0, ORDERS_1, ORDERS_2]
        places = [
            (topic, partition)
            for topic, chosen in wanted.items()
            for partition in (chosen if chosen is not None else [at for of, at in there if of == topic])
        ]
        return [there.get(at, PartitionMetadata(*at, error="no such topic")) for at in places]

    def log_bounds(
        self, leader: int, partitions: Collection[tuple[str, int]]
    ) -> dict[tuple[str, int], LogBounds | str]:
        self._answer()
        self.queried.append((self._servers, leader))
        return {at: _BOUNDS.get(at, LogBounds(1, 5, 7)) for at in partitions}


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch) -> type[Cluster]:
    monkeypatch.setattr(source, "Cluster", Cluster)
    monkeypatch.setattr(Cluster, "states", {}, raising=False)
    monkeypatch.setattr(Cluster, "queried", [], raising=False)
    return Cluster


def rows_of(options: Mapping[str, str]) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the rows of a batch read by topic and partition, planned and queried in one process."""
    reader = LogOffsetsSource(options).reader(None)  # type: ignore[arg-type]
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert len({(row["topic"], row["partition"]) for row in rows}) == len(rows)
    return {(row["topic"], row["partition"]): row for row in rows}


def test_by_leader_returns_one_task_per_leader() -> None:
    """Partitions without a leader share one task, and without any partition there is one empty task."""
    tasks = by_leader([ORDERS_0, GONE, ORDERS_1, ORDERS_2])
    assert tasks == [
        LeaderTask(1, "one:9092", (ORDERS_0, ORDERS_2)),
        LeaderTask(2, "two:9092", (ORDERS_1,)),
        LeaderTask(None, None, (GONE,)),
    ]
    assert by_leader([ORDERS_1]) == [LeaderTask(2, "two:9092", (ORDERS_1,))]
    assert by_leader([]) == [LeaderTask(None, None, ())]
    assert sample(SERVERS, LeaderTask(None, None, ())).num_rows == 0


def test_log_offsets_schema_is_the_contract_without_cluster() -> None:
    """As an Arrow schema and as Spark DDL."""
    columns = contracts.tables()["log_offsets"].columns[1:]
    batch = sample(SERVERS, LeaderTask(1, "one:9092", (ORDERS_0,)))
    assert [(field.name, field.type) for field in batch.schema] == [(c.name, arrow_type(c.type)) for c in columns]
    assert LogOffsetsSource(OPTIONS).schema() == ", ".join(f"`{c.name}` {c.type}" for c in columns)


def test_log_offsets_each_leader_is_queried_and_errors_are_per_partition(cluster: type[Cluster]) -> None:
    """A deleted partition does not affect the others."""
    rows = rows_of(OPTIONS | {"assign": '{"orders": [0, 1, 2], "gone": [0]}'})
    assert cluster.queried == [("one:9092", 1), ("two:9092", 2)]
    bounds = {
        at: (row["log_start_offset"], row["last_stable_offset"], row["log_end_offset"]) for at, row in rows.items()
    }
    assert bounds[("orders", 0)] == bounds[("orders", 1)] == (1, 5, 7)
    assert bounds[("orders", 2)] == bounds[("gone", 0)] == (None, None, None)
    assert {at: row["error"] for at, row in rows.items()} == {
        ("orders", 0): None,
        ("orders", 1): None,
        ("orders", 2): "topic deleted",
        ("gone", 0): "no such topic",
    }
    assert {at: row["topic_id"] for at, row in rows.items()} == {
        **{("orders", partition): ORDERS for partition in (0, 1, 2)},
        ("gone", 0): None,
    }
    assert None not in {row["sampled_at"] for row in rows.values()}


def test_log_offsets_without_assign_queries_all_partitions() -> None:
    assert list(rows_of(OPTIONS)) == [("orders", 0), ("orders", 2), ("orders", 1)]


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (KafkaUnreachableError("down"), "broker 2 did not answer"),
        (KafkaDeniedError("no"), "broker 2 refuses this principal"),
        (KafkaLoginError("no"), "broker 2 got no valid login"),
        (TokenEndpointError("down"), "broker 2 got no valid login"),
    ],
)
def test_log_offsets_one_failing_broker_affects_only_its_partitions(
    cluster: type[Cluster], fault: ClusterError, error: str
) -> None:
    """Its rows name the broker; those of the other broker are complete."""
    cluster.states = {"two:9092": fault}
    rows = rows_of(OPTIONS)
    assert {at[1]: row["error"] for at, row in rows.items()} == {0: None, 1: error, 2: "topic deleted"}
    assert (rows[("orders", 0)]["log_end_offset"], rows[("orders", 1)]["log_end_offset"]) == (7, None)


def test_log_offsets_no_broker_gives_an_error_row_per_known_partition(cluster: type[Cluster]) -> None:
    """If all partitions are selected, these are the last known ones. The stream does not end."""
    stream = LogOffsetsSource(OPTIONS).streamReader(None)  # type: ignore[arg-type]
    assert len(stream.partitions({}, {})) == 2
    cluster.states = {"kafka:9092": KafkaUnreachableError("down")}
    assert set(rows_of(OPTIONS | {"assign": '{"orders": [1]}'})) == {("orders", 1)}
    (task,) = stream.partitions({}, {})
    assert [row["error"] for batch in stream.read(task) for row in batch.to_pylist()] == ["no broker answered"] * 3
    stream.stop()
    assert rows_of(OPTIONS) == {}


def test_log_offsets_stream_is_picklable_and_its_offset_always_advances() -> None:
    """Spark sends its readers to executors before they have planned anything."""
    stream = pickle.loads(pickle.dumps(LogOffsetsSource(OPTIONS))).streamReader(None)
    sent = pickle.loads(pickle.dumps(stream))
    assert stream.latestOffset()["asked_at_ms"] > stream.initialOffset()["asked_at_ms"]
    (batch,) = sent.read(*by_leader([GONE]))
    assert batch.to_pylist()[0]["error"] == "no such topic"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "kafka.bootstrap.servers"),
        (OPTIONS | {"asign": "{}"}, "unknown option asign"),
        (OPTIONS | {"assign": "orders"}, '{"orders": [0, 1]}'),
        (OPTIONS | {"assign": "[1]"}, '{"orders": [0, 1]}'),
        (OPTIONS | {"assign": '{"orders": 1}'}, '{"orders": [0, 1]}'),
        (OPTIONS | {"committed": "t"}, "committed and cluster"),
        (OPTIONS | {"committed": "t", "held_back": "t"}, "committed and cluster"),
        (OPTIONS | {"committed": "t", "cluster": "c", "assign": "{}"}, "or none"),
    ],
)
def test_log_offsets_invalid_options_raise_one_line_error_without_secrets(
    options: dict[str, str], expected: str
) -> None:
    """The line contains no value of an option: it may be a secret."""
    with pytest.raises(OptionError) as caught:
        LogOffsetsSource({**options, "kafka.sasl.jaas.config": "hunter2"})
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_log_offsets_repr_does_not_contain_secrets() -> None:
    """Spark may log the repr of the source and of its readers."""
    of = LogOffsetsSource({**OPTIONS, "kafka.sasl.jaas.config": "hunter2"})
    reader = of.reader(None)  # type: ignore[arg-type]
    assert "hunter2" not in f"{of!r} {reader!r} {reader.partitions()!r}"


# --- brokers' answers ---------------------------------------------------------------------------------------

METADATA = {
    "brokers": [{"node_id": 1, "host": "one", "port": 9092}, {"node_id": 2, "host": "::2", "port": 9092}],
    "topics": [
        {
            "name": "orders",
            "error_code": 0,
            "topic_id": "6f726465-7273-0000-0000-000000000000",
            "partitions": [
                {"partition_index": 2, "leader_id": -1},
                {"partition_index": 1, "leader_id": 2},
                {"partition_index": 0, "leader_id": 1},
                {"partition_index": 3, "leader_id": 3},
            ],
        },
        {"name": "old", "error_code": 0, "partitions": [{"partition_index": 0, "leader_id": 1}]},
        {"name": "gone", "error_code": 3, "topic_id": "00000000-0000-0000-0000-000000000000", "partitions": []},
        {"name": "secret", "error_code": 29, "topic_id": "00000000-0000-0000-0000-000000000000", "partitions": []},
        {"name": "odd", "error_code": 17, "partitions": []},
    ],
}


def test_metadata_wanted_partitions_have_a_leader_or_an_error() -> None:
    """A leader comes with its address."""
    wanted = {"orders": [0, 1, 2, 3, 9], "old": [0], "gone": [0], "secret": [0], "odd": [0], "unheard": [0]}
    places = {(place.topic, place.partition): place for place in partitions_of(METADATA, wanted)}
    assert sorted(places) == sorted((topic, partition) for topic in wanted for partition in wanted[topic])
    assert places[("orders", 0)] == ORDERS_0
    assert (places[("orders", 1)].leader, places[("orders", 1)].server) == (2, "[::2]:9092")
    assert places[("old", 0)] == PartitionMetadata("old", 0, None, 1, "one:9092")
    assert {at: place.error for at, place in places.items() if place.leader is None} == {
        ("orders", 2): "leader not available",
        ("orders", 3): "leader not available",
        ("orders", 9): "no such partition",
        ("gone", 0): "no such topic",
        ("secret", 0): "DESCRIBE is denied",
        ("odd", 0): "InvalidTopicError",
        ("unheard", 0): "no such topic",
    }


def test_metadata_without_selection_lists_partitions_of_existing_topics() -> None:

    listed = [(place.topic, place.partition) for place in partitions_of(METADATA, None)]
    assert listed == [("orders", 0), ("orders", 1), ("orders", 2), ("orders", 3), ("old", 0)]


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([(0, 1), (0, 5), (0, 7)], LogBounds(1, 5, 7)),
        ([(0, 1), (3, -1), (3, -1)], "topic deleted"),
        ([(6, -1), (6, -1), (6, -1)], "not led by this broker"),
        ([(0, 1), (0, 5), (78, -1)], "OffsetNotAvailableError"),
    ],
)
def test_log_bounds_with_an_error_among_the_answers_is_the_error(
    answers: list[tuple[int, int]], expected: LogBounds | str
) -> None:
    assert bounds_or_reason(answers) == expected


# --- which partitions ----------------------------------------------------------------------------------------


def commit(offset: int, group: str, topic: str, partition: int, *, deleted: bool = False) -> dict[str, Any]:
    of = {"group_id": group, "topic": topic, "partition": partition, "cluster": "c"}
    return {"key_type": 1, "record_offset": offset, "is_tombstone": deleted, **of}


def selection_of(config: Config) -> dict[str, str]:
    """Return the data source's options for the partitions of a configuration."""
    return which_partitions(warehouse_of(config), job_settings.log_offsets(config))


def test_committed_partitions_follow_commits_and_tombstones(tmp_path: Path) -> None:
    """A partition counts while at least one group has a committed offset there."""
    config = Config(warehouse=str(tmp_path), cluster="c")
    lay = small_tables.lay
    lay(config, "offset_commits", commit(1, "a", "orders", 1), commit(2, "a", "orders", 0), commit(3, "b", "old", 0))
    committed = CommittedPartitions(warehouse_of(config).table("offset_commits"))
    assert committed.partitions() == {"old": [0], "orders": [0, 1]}
    assert committed.partitions() == {"old": [0], "orders": [0, 1]}
    lay(config, "offset_commits", commit(7, "b", "old", 0, deleted=True), commit(8, "b", "orders", 1, deleted=True))
    lay(config, "offset_commits", {**commit(9, "a", "else", 0), "cluster": "other"})
    assert committed.partitions() == {"orders": [0, 1]}
    lay(config, "offset_commits", commit(4, "b", "old", 0))  # an older record that lands late
    assert committed.partitions() == {"orders": [0, 1]}
    lay(config, "offset_commits", commit(9, "b", "old", 0))
    assert committed.partitions() == {"old": [0], "orders": [0, 1]}
    assert CommittedPartitions(warehouse_of(config).table("offset_commits")).partitions() == committed.partitions()


def test_log_offsets_empty_commits_table_queries_no_partitions(tmp_path: Path) -> None:
    """The job creates the table if the decode job has not run yet."""
    config = Config(warehouse=str(tmp_path), cluster="c")
    small_tables.lay(config, "offset_commits")
    options = OPTIONS | selection_of(config)
    del options["held_back"]
    assert rows_of(options) == {}
    small_tables.lay(config, "offset_commits", commit(1, "a", "orders", 0))
    assert set(rows_of(options)) == {("orders", 0)}


def test_log_offsets_all_topics_have_also_the_committed_partitions_that_are_gone(
    tmp_path: Path, cluster: type[Cluster]
) -> None:
    """Nobody has to guess why such a partition has no row; without a broker each known one says so."""
    config = Config(warehouse=str(tmp_path), cluster="c")
    small_tables.lay(config, "offset_commits", commit(1, "a", "orders", 0), commit(2, "a", "gone", 0))
    options = OPTIONS | which_partitions(
        warehouse_of(config), replace(job_settings.log_offsets(config), all_topics=True)
    )
    orders = [("orders", number) for number in range(3)]
    errors = {at: row["error"] for at, row in rows_of(options).items()}
    assert errors == {("gone", 0): "no such topic", **dict.fromkeys(orders), ("orders", 2): "topic deleted"}
    planner = source.Planner(source.Request.of(options))
    planner.plan()
    cluster.states = {"kafka:9092": KafkaUnreachableError("no broker")}
    [task] = planner.plan()
    assert {(place.topic, place.partition, place.error) for place in task.places} == {
        (*at, "no broker answered") for at in (("gone", 0), *orders)
    }


def test_log_offsets_offsets_topic_has_rows_only_where_a_transaction_is_open_or_its_leader_failed(
    tmp_path: Path,
) -> None:
    """Also before any commit; a partition that a group commits to always has a row."""
    config = Config(warehouse=str(tmp_path), cluster="c")
    small_tables.lay(config, "offset_commits")
    options = OPTIONS | selection_of(config)
    rows = rows_of(options)
    assert {at[1]: (row["last_stable_offset"], row["error"]) for at, row in rows.items()} == {
        1: (5, None),
        3: (None, "not led by this broker"),
    }
    small_tables.lay(config, "offset_commits", commit(1, "a", "__consumer_offsets", 0))
    assert set(rows_of(options)) == {("__consumer_offsets", 0)}


def test_log_offsets_offsets_topic_is_left_out_where_no_broker_answers(
    tmp_path: Path, cluster: type[Cluster]
) -> None:
    config = Config(warehouse=str(tmp_path), cluster="c")
    small_tables.lay(config, "offset_commits", commit(1, "a", "orders", 0))
    cluster.states = {"kafka:9092": KafkaUnreachableError("down")}
    assert set(rows_of(OPTIONS | selection_of(config))) == {("orders", 0)}


def owned(topic: str, partition: int, **more: object) -> dict[str, object]:
    return {"topic": topic, "partition": partition, "cluster": "c", "is_open": True, "open_bucket": 1} | more


def test_log_offsets_partitions_that_members_own_are_sampled_without_a_commit(tmp_path: Path) -> None:
    """Clients commit only where they have read; a Connect task is no partition."""
    config = Config(warehouse=str(tmp_path), cluster="c")
    small_tables.lay(config, "offset_commits", commit(1, "a", "orders", 0))
    options = OPTIONS | selection_of(config)
    del options["held_back"]
    assert set(rows_of(options)) == {("orders", 0)}  # there is no history yet
    generation = {"group_kind": "classic", "cluster": "c", "is_open": True, "open_bucket": 1}
    small_tables.lay(config, "generations", generation, generation | {"protocol_type": "connect", "group_id": "sink"})
    small_tables.lay(
        config,
        "partition_ownership",
        owned("orders", 0),
        owned("orders", 1),
        owned("orders", 2, owned_until=small_tables.at(0)),
        owned("a-connector", 0, group_id="sink"),
    )
    assert set(rows_of(options)) == {("orders", 0), ("orders", 1)}


def test_owned_partitions_are_read_again_when_the_history_has_changed(tmp_path: Path) -> None:
    config = Config(warehouse=str(tmp_path), cluster="c")
    small_tables.lay(config, "partition_ownership", owned("orders", 1))
    partitions = OwnedPartitions(warehouse_of(config))
    assert partitions.partitions() == {}
    small_tables.lay(
        config, "generations", {"group_kind": "consumer", "cluster": "c", "is_open": True, "open_bucket": 1}
    )
    assert partitions.partitions() == {"orders": [1]}
    small_tables.lay(config, "partition_ownership", owned("orders", 0), owned("else", 0, cluster="other"))
    assert partitions.partitions() == {"orders": [0, 1]}


def chosen(**settings: Any) -> dict[str, str]:
    return selection_of(Config.model_validate({"warehouse": "/lake", "cluster": "c", **settings}))


def test_which_partitions_are_the_committed_ones_unless_all_topics_is_set() -> None:
    committed = {"committed": "/lake/offset_commits", "newest": "/lake/committed_offsets", "cluster": "c"}
    committed |= {"warehouse": "/lake"}
    assert chosen() == committed | {"held_back": "__consumer_offsets"}
    assert chosen(source="admin") == committed
    everything = committed | {"all_topics": "true"}
    assert chosen(log_offsets={"all_topics": True}) == everything
    for exporters, expected in (("kminion", everything), ("burrow,kafka_exporter", everything)):
        assert chosen(exporter={"also_as": exporters}) == expected
        assert "all_topics" not in chosen(exporter={"also_as": exporters}, log_offsets={"all_topics": False})
    assert chosen(exporter={"also_as": "burrow,kafka-lag-exporter"}) == chosen()
