"""What the brokers say of their cluster now: the open rows of the job `cluster`'s tables, as metrics need them.

The tables are read when the job has taken another sample, and all of their rows are held only if they are asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.jobs import CLUSTER
from grouptrail.kafka.coordinator import OFFSETS_TOPIC
from grouptrail.storage.errors import TableError
from grouptrail.storage.last_sample import LastSample, read_last_sample
from grouptrail.storage.rows import OpenTables
from grouptrail.storage.sql import datafusion_literal

if TYPE_CHECKING:
    from grouptrail.storage.warehouse import Warehouse

_NOT_KNOWN = "brokers, topics and replicas are not known"
NO_SAMPLE = f"{_NOT_KNOWN}: the job cluster has taken no sample: start `grouptrail run`, which has it by default"

_READ = {
    "brokers": ("cluster", "broker_id", "host", "port", "rack", "release_from", "is_controller", "open_bucket"),
    "topics": ("cluster", "topic", "partition_count", "replication_factor", "open_bucket"),
    "topic_partitions": ("cluster", "topic", "partition", "leader", "replicas", "isr", "offline", "open_bucket"),
    "topic_configs": ("cluster", "topic", "cleanup_policy", "min_insync_replicas", "open_bucket"),
    "coordinators": ("cluster", "record_partition", "broker_id", "open_bucket"),
    "cluster_info": ("cluster", "cluster_id", "controller", "open_bucket"),
    "log_sizes": ("cluster", "topic", "partition", "broker_id", "is_future", "size_bytes", "sampled_at"),
}
_PARTITIONS = (
    "SELECT topic, partition, leader, replicas[1] AS preferred, "
    "CAST(coalesce(cardinality(replicas), 0) AS INT) AS replicas, CAST(coalesce(cardinality(isr), 0) AS INT) AS isr, "
    "CAST(coalesce(cardinality(offline), 0) AS INT) AS offline FROM topic_partitions WHERE {ours}"
)
_TOTALS = (
    "SELECT COUNT(*) AS partitions, COUNT(*) FILTER (WHERE led.isr < led.replicas) AS under_replicated, "
    "COUNT(*) FILTER (WHERE led.leader IS NULL) AS without_leader, "
    "COUNT(*) FILTER (WHERE led.isr < settings.least) AS under_min_isr, "
    f"COUNT(*) FILTER (WHERE settings.least IS NULL) AS unknown FROM ({_PARTITIONS}) AS led "
    "LEFT JOIN (SELECT topic, min_insync_replicas AS least FROM topic_configs WHERE {ours}) AS settings "
    "ON settings.topic = led.topic"
)
# Sums of replicas that have not all answered would be too low.
_SIZES_OF_TOPICS = (
    "SELECT sizes.topic, sizes.bytes FROM "
    "(SELECT topic, COUNT(*) FILTER (WHERE NOT is_future) AS answered, SUM(size_bytes) AS bytes, "
    "MIN(sampled_at) AS sampled_at FROM log_sizes WHERE {cluster} GROUP BY topic) AS sizes "
    "JOIN (SELECT topic, SUM(coalesce(cardinality(replicas), 0) - coalesce(cardinality(offline), 0)) AS expected "
    "FROM topic_partitions WHERE {ours} GROUP BY topic) AS there "
    "ON there.topic = sizes.topic WHERE sizes.answered >= there.expected"
)


@dataclass(frozen=True)
class Totals:
    """How many there are; None where that is not known."""

    brokers: int | None = None
    topics: int | None = None
    partitions: int | None = None
    under_replicated: int | None = None
    without_leader: int | None = None
    under_min_isr: int | None = None


def _empty(**types: pa.DataType) -> pa.Table:
    return pa.schema(list(types.items())).empty_table()


_COUNT, _TEXT, _ID = pa.int64(), pa.string(), pa.int32()


@dataclass(frozen=True)
class ClusterFacts:
    """The cluster by its last sample. The tables have no rows if they are not asked for, or nothing is known.

    `partitions`: topic, partition, leader (null: none), preferred, and the numbers of `replicas`, of those in sync
    (`isr`) and of those `offline`. `topics`: topic, partition_count, replication_factor, cleanup_policy (null: not
    known). `brokers`: broker_id, host, port, rack, release_from, is_controller. `broker_bytes`: broker_id, bytes;
    `topic_bytes`: topic, bytes, of topics all of whose replicas are known. `coordinators`: the broker that leads a
    partition of __consumer_offsets. `problem`: why nothing is known.
    """

    totals: Totals = Totals()
    partitions: pa.Table = field(
        default_factory=lambda: _empty(
            topic=_TEXT, partition=_ID, leader=_ID, preferred=_ID, replicas=_ID, isr=_ID, offline=_ID
        )
    )
    topics: pa.Table = field(
        default_factory=lambda: _empty(topic=_TEXT, partition_count=_ID, replication_factor=_ID, cleanup_policy=_TEXT)
    )
    brokers: pa.Table = field(
        default_factory=lambda: _empty(
            broker_id=_ID, host=_TEXT, port=_ID, rack=_TEXT, release_from=_TEXT, is_controller=pa.bool_()
        )
    )
    broker_bytes: pa.Table = field(default_factory=lambda: _empty(broker_id=_ID, bytes=_COUNT))
    topic_bytes: pa.Table = field(default_factory=lambda: _empty(topic=_TEXT, bytes=_COUNT))
    cluster_id: str | None = None
    controller: int | None = None
    coordinators: Mapping[int, int] = field(default_factory=dict)
    offsets_partitions: int | None = None
    problem: str | None = None


class ClusterFactsReader:
    """Reads the facts of a cluster; keeps them until the job has taken another sample."""

    def __init__(self, warehouse: Warehouse, *, has_details: bool, sizes_interval_seconds: float) -> None:
        """Without `has_details` there are only the totals."""
        self._warehouse = warehouse
        self._has_details = has_details
        self._sizes_interval_seconds = sizes_interval_seconds
        self._tables = OpenTables([table.location for table in warehouse.tables(_READ)], _READ)
        self._read: tuple[datetime, ClusterFacts] | None = None
        self._sized: LastSample | None = None

    def now(self) -> ClusterFacts:
        """Return the facts by the last sample; nothing but the reason if there is none that shows the present."""
        last = read_last_sample(self._warehouse, CLUSTER.name)
        if last is None:
            return ClusterFacts(problem=NO_SAMPLE)
        if last.is_stale():
            return ClusterFacts(problem=_too_old(last))
        if self._read is None or self._read[0] != last.at:
            try:
                if (unreadable := self._tables.refresh()) is not None:
                    raise unreadable
                self._read = last.at, self._facts()
            except TableError as error:
                self._read = None
                return ClusterFacts(problem=f"{_NOT_KNOWN}: {error}")
        facts = self._read[1]
        if self._sized is None or self._sized.is_stale():
            none = ClusterFacts()
            return replace(facts, broker_bytes=none.broker_bytes, topic_bytes=none.topic_bytes)
        return facts

    def _facts(self) -> ClusterFacts:
        needed = ("brokers", "topics", "topic_partitions", "topic_configs", "coordinators", "cluster_info")
        if any(self._tables.get(name) is None for name in needed):
            return ClusterFacts(problem=NO_SAMPLE)
        brokers, topics = self._open("brokers"), self._open("topics")
        [counted] = self._rows(_TOTALS).to_pylist()
        # Nobody knows whether the settings that are not known are met.
        if counted.pop("unknown"):
            counted["under_min_isr"] = None
        totals = Totals(brokers=len(brokers), topics=len(topics), **counted)
        if not self._has_details:
            return ClusterFacts(totals)
        policies = self._rows("SELECT topic, cleanup_policy FROM topic_configs WHERE {ours}")
        place = pc.index_in(topics["topic"], policies["topic"].combine_chunks())
        info = self._open("cluster_info").to_pylist()
        of_topics = dict(zip(topics["topic"].to_pylist(), topics["partition_count"].to_pylist(), strict=True))
        led = self._open("coordinators")
        return ClusterFacts(
            totals,
            partitions=self._rows(_PARTITIONS),
            topics=topics.append_column("cleanup_policy", policies["cleanup_policy"].take(place)),
            brokers=brokers,
            **self._sizes(),
            cluster_id=info[0]["cluster_id"] if info else None,
            controller=info[0]["controller"] if info else None,
            coordinators=dict(zip(led["record_partition"].to_pylist(), led["broker_id"].to_pylist(), strict=True)),
            offsets_partitions=of_topics.get(OFFSETS_TOPIC),
        )

    def _sizes(self) -> dict[str, pa.Table]:
        self._sized = None
        if self._tables.get("log_sizes") is None:
            return {}
        of_brokers = self._rows(
            "SELECT broker_id, SUM(size_bytes) AS bytes, MIN(sampled_at) AS at FROM log_sizes WHERE {cluster} "
            "GROUP BY broker_id"
        )
        if (oldest := pc.min(of_brokers["at"]).as_py()) is not None:
            self._sized = LastSample(oldest, self._sizes_interval_seconds)
        return {"broker_bytes": of_brokers.drop_columns("at"), "topic_bytes": self._rows(_SIZES_OF_TOPICS)}

    def _open(self, name: str) -> pa.Table:
        columns = [column for column in _READ[name] if column not in ("cluster", "open_bucket")]
        return self._rows(f"SELECT {', '.join(columns)} FROM {name} WHERE {{ours}}")

    def _rows(self, query: str) -> pa.Table:
        """Return the rows of a query about `ours`, the open rows of the cluster, or `cluster`, all of its rows."""
        cluster = f"cluster = {datafusion_literal(self._warehouse.cluster)}"
        return self._tables.rows(query.format(ours=f"{cluster} AND open_bucket IS NOT NULL", cluster=cluster))


def _too_old(last: LastSample) -> str:
    return (
        f"{_NOT_KNOWN}: the last sample of the job cluster is of "
        f"{last.at:%Y-%m-%d %H:%M:%S} UTC: check that it runs and that brokers answer"
    )
