"""A snapshot of the tables at one moment, as immutable Arrow tables.

`SnapshotReader.read` takes it. It has the groups whose state is not Dead, or whose lag is sampled since.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from grouptrail import contracts
from grouptrail.broker_log.status import FollowedFile, read_status
from grouptrail.config.model import EXPORTERS_OF_TOPICS
from grouptrail.config.patterns import is_allowed
from grouptrail.jobs import BROKER_LOG
from grouptrail.kafka.coordinator import OFFSETS_TOPIC
from grouptrail.kafka.log import GONE
from grouptrail.query.clusters import UnknownClusterError, stored_cluster
from grouptrail.query.freshness import stale_seconds
from grouptrail.snapshot.cluster_facts import ClusterFacts, ClusterFactsReader
from grouptrail.snapshot.errors import SnapshotError
from grouptrail.snapshot.large_sample import LargeSample
from grouptrail.snapshot.summary import EXTENT, SUMMARY, extent, summarize
from grouptrail.snapshot.totals import SAVED, NewestSample, Rising, Totals
from grouptrail.storage import positions
from grouptrail.storage.damage import damage_of, look_again, naming_damage
from grouptrail.storage.lineage import SavedRows
from grouptrail.storage.reader import table_id
from grouptrail.storage.rows import OpenTables, files_dataset, own_rows
from grouptrail.storage.schema import columns_of, compact
from grouptrail.storage.sql import datafusion_literal
from grouptrail.storage.warehouse import Warehouse

if TYPE_CHECKING:
    from grouptrail.config import ExporterConfig

LAG_COLUMNS = (
    "group_id", "topic", "partition", "sampled_at", "committed_offset", "commit_at", "log_start_offset",
    "log_end_offset", "lag", "lost_records", "readable_lag", "lag_seconds", "lag_seconds_error", "consume_rate",
    "produce_rate", "catch_up_seconds", "usual_wait_seconds", "clock_offset_seconds", "time_to_loss_seconds",
    "time_to_loss_most_seconds", "time_to_loss_reason", "delivery_complete_count", "awaiting_redelivery",
    "most_deliveries", "most_delivered_offset", "lag_error", "status",
)  # fmt: skip
INTERVAL_BUCKETS = contracts.metrics()["kafka_consumer_group_rebalance_interval_seconds"].buckets

OUTCOMES = {
    "offset_commits": ("offset_commit", "decoded"),
    "group_metadata": ("group_metadata", "decoded"),
    "group_records": ("group_record", "decoded"),
    "undecodable_records": ("unknown", "undecodable"),
    "holes": ("unknown", "hole"),
    "lost": ("unknown", "lost"),
}
_OFFSETS = ("end_offset", "last_stable_offset", "log_end_offset")

_READ = {
    "consumer_lag": ("cluster", *LAG_COLUMNS),
    "group_states": ("cluster", "group_id", "record_offset", "state", "started_at", "open_bucket"),
    "generations": (
        "cluster", "group_id", "record_offset", "generation", "member_count", "protocol_type", "protocol",
        "open_bucket",
    ),
    "rebalances": (
        *("cluster", "group_id", "cause", "certainty", "at", "ended_at", "is_open"),
        *("partitions_moved", "seconds_since_previous"),
    ),
    "offset_commits": ("cluster", "record_partition", "record_offset", "group_id", "is_tombstone"),
    "ingest_progress": ("cluster", "record_partition", "start_offset", "landed_at", *OUTCOMES, *_OFFSETS),
    "history_positions": ("cluster", "record_partition", "processed_to"),
    "log_offsets": (
        *("cluster", "topic", "partition", "sampled_at"),
        *("log_start_offset", "last_stable_offset", "log_end_offset", "error"),
    ),
    "check_results": ("cluster", "table_name", "success", "checked_at"),
    "share_deliveries": (
        "cluster", "record_partition", "record_offset", "group_id", "topic_id", "delivery_state", "records",
        "redeliveries", "is_first",
    ),
    "topic_names": ("cluster", "topic_id", "topic"),
}  # fmt: skip
_READ_FOR_MEMBERS = {
    "partition_ownership": (
        "cluster", "group_id", "topic", "partition", "member_id", "owned_until", "is_open",
    ),
}  # fmt: skip

_READ_FOR_OWNERS = {
    "partition_ownership": (
        "cluster", "group_id", "topic", "partition", "member_id", "client_id", "owned_from", "owned_until", "is_open",
    ),
    "memberships": ("cluster", "group_id", "member_id", "client_host", "is_open"),
}  # fmt: skip

_COUNTED_BY_GROUP = ("rebalances", "intervals", "commits", "deliveries")
BY_GROUP = ("lag", "summary", "extent", "groups", *_COUNTED_BY_GROUP, "ownership", "unassigned", "owners")
"""The tables of a snapshot that have the column group_id."""
_APART = ["seconds", *(f"le_{number}" for number in range(len(INTERVAL_BUCKETS) + 1))]

# What a broker says of a partition that is no longer there is an answer.
_IS_ANSWER = f"error IS NULL OR error IN ({', '.join(map(datafusion_literal, GONE))})"

# The partitions of one sample are at most a second apart, those of a broker that does not answer at most ten.
_LEAST_SAMPLE_SECONDS = 10
_MOST_SAMPLE_SECONDS = 15
STALE_SECONDS = 300

# The exporters of whose metrics some are about the members of groups.
_EXPORTERS_OF_MEMBERS = {"kminion"}

# So many rows are held even if far fewer series may be served: the pages show them all.
_FEW_ROWS = 250_000


@dataclass(frozen=True)
class Silence:
    """That no broker has returned log offsets since a time (None: none ever did), and the most common reason.

    `is_awaited`: the jobs of this process wait for a broker, and the reason says what to do.
    """

    since: datetime | None
    reason: str
    is_awaited: bool = False

    def __str__(self) -> str:
        since = "yet" if self.since is None else f"since {self.since:%Y-%m-%d %H:%M:%S} UTC"
        if self.is_awaited:
            return f"{self.reason}; no broker has returned log offsets {since}"
        return (
            f"no broker has returned log offsets {since} ({self.reason}): check that the brokers run, "
            "or run `grouptrail doctor`"
        )


@dataclass(frozen=True)
class StoredRows:
    """Rows of a snapshot from all tables but `consumer_lag`.

    `facts`: the cluster, in full for aliases that have it. Only for aliases there are rows of `logs`, the newest
    sample of each partition: topic, partition, log_start_offset, log_end_offset; `ownership`: group_id, topic, and
    how many partitions of it how many members own; `unassigned`: group_id, and how many members own nothing, if any.
    `owners`, only if they are served: group_id, topic, partition, member_id, client_id, client_host of each owned
    partition, once. `followed`: the brokers' log files that are followed now.
    `history_waits_since` is as in `Snapshot.newest`; `silence` is None if the newest sample of the logs was answered.
    """

    groups: pa.Table
    deleted: pa.Table
    rebalances: pa.Table
    intervals: pa.Table
    commits: pa.Table
    deliveries: pa.Table
    progress: pa.Table
    stable: pa.Table
    failures: pa.Table
    damage: Mapping[str, Sequence[str]]
    history_waits_since: float | None
    silence: Silence | None
    facts: ClusterFacts
    logs: pa.Table
    ownership: pa.Table
    unassigned: pa.Table
    owners: pa.Table
    followed: tuple[FollowedFile, ...]

    @property
    def awaits_broker(self) -> bool:
        """Whether the jobs of this process wait for a broker: no lag is current, however new its sample is."""
        return self.silence is not None and self.silence.is_awaited


@dataclass(frozen=True)
class Snapshot(StoredRows):
    """The tables of one cluster at one moment; fields are named for tables or their columns.

    `lag`: the newest sample of each group and partition. Where that is too many rows (`most_rows`), some groups have
    none in it, but in `summary` and `extent`, with the columns of `SUMMARY` and `EXTENT`; groups that were deleted
    since are in none. `sampled_at`: the time of its newest row. `groups`: group_id, state, generation, member_count,
    protocol_type, protocol. `deleted`: group_id, deleted_at. `rebalances`: group_id, cause, count, moved;
    `intervals`: group_id, last_at, seconds, and `le_N`, how many were in the Nth bucket. `commits`: group_id, count.
    `deliveries` of share groups: group_id, topic, outcome, records, redeliveries.
    `progress`: for each partition of __consumer_offsets the columns of `OUTCOMES` and `_OFFSETS`, and landed_at in
    microseconds. `stable`: for each of them last_stable_offset (null if no transaction is open) and `lag`, its
    distance to the log's end. `failures`: table, count. `damage`: of each table of which rows cannot be read, a
    sentence about each damaged file. `newest`: the time of a table's newest row, for lag of the newest for which a
    broker had answered; of history_positions, since when a batch waits for the history job, +Inf if none does. Tables
    without rows of the cluster are not in it. `not_ready`: why the values may not be current, None if they are, and
    once they were, only that no broker answers.
    """

    cluster: str
    made_at: float
    seconds: float
    lag: pa.Table
    sampled_at: datetime | None
    newest: Mapping[str, float]
    not_ready: str | None
    summary: pa.Table = field(default_factory=SUMMARY.empty_table)
    extent: pa.Table = field(default_factory=EXTENT.empty_table)

    def of(self, groups: Collection[str]) -> Snapshot:
        """Return the snapshot of some groups, and of the pipeline."""
        names = pa.array(sorted(groups), pa.string())
        return replace(self, **{rows: _of(names, getattr(self, rows)) for rows in BY_GROUP})

    def forgotten(self) -> Snapshot:
        """Return the snapshot without what is no longer so: of the pipeline only."""
        return replace(self.of(()), facts=ClusterFacts(), logs=_NO_LOGS, followed=())

    def lag_by_group(self) -> pa.Table:
        """Return the summary of all groups."""
        return pa.concat_tables([summarize(self.lag), self.summary])

    def positions_by_topic(self) -> pa.Table:
        """Return the extent of all groups."""
        return pa.concat_tables([extent(self.lag), self.extent])


Choose = Callable[[Snapshot], Collection[str]]
"""Returns the groups whose rows are needed, given a snapshot that has only the summary of all groups."""


def most_rows(config: ExporterConfig) -> int:
    """Return how many rows of lag a snapshot may hold: more than those of which each can have series."""
    return max(_FEW_ROWS, 2 * config.series_budget)


@dataclass(frozen=True)
class ServedCluster:
    """A cluster to serve: its tables, and the settings of its metrics.

    `sample_seconds` is the time between samples of the logs (`log_offsets.interval_seconds`), `sizes_seconds` that
    between samples of their sizes (`cluster_facts.log_sizes_interval_seconds`).
    """

    warehouse: Warehouse
    exporter: ExporterConfig
    sample_seconds: float
    sizes_seconds: float = 300

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self.warehouse.cluster

    @property
    def sample_span(self) -> timedelta:
        """How far apart the rows of one sample may be; beyond an interval they are of the one before."""
        return timedelta(seconds=min(_MOST_SAMPLE_SECONDS, max(_LEAST_SAMPLE_SECONDS, self.sample_seconds)))


# The cause is known when the next assignment is computed; a counter cannot be corrected afterwards.
_NOT_YET_KNOWN = "is_open AND ended_at IS NULL AND cause = 'topic_metadata_changed' AND certainty = 'recorded'"


class SnapshotReader:
    """Takes snapshots of a cluster's tables; each reads the rows since the previous one."""

    def __init__(self, cluster: ServedCluster, lag_since: datetime | None = None) -> None:
        """`lag_since`: snapshots are not ready before there is a lag sample since that time."""
        warehouse = cluster.warehouse
        self._cluster = cluster
        self._warehouse = warehouse
        self._lag_since = lag_since
        asked_for = set(cluster.exporter.also_as)
        self._has_topics = bool(asked_for & EXPORTERS_OF_TOPICS)
        self._has_members = bool(asked_for & _EXPORTERS_OF_MEMBERS)
        self._has_owners = cluster.exporter.owner_info
        read = _READ | (_READ_FOR_MEMBERS if self._has_members else {})
        read |= _READ_FOR_OWNERS if self._has_owners else {}
        self._tables = OpenTables([table.location for table in warehouse.tables(read)], read)
        self._facts = ClusterFactsReader(
            warehouse, has_details=self._has_topics, sizes_interval_seconds=cluster.sizes_seconds
        )
        self._owned: tuple[tuple[str, int], pa.Table, pa.Table] | None = None
        self._owners: tuple[tuple[int, ...], pa.Table] | None = None
        self._names: tuple[tuple[str, int], pa.Table] | None = None
        self._newest_lag = NewestSample(cluster.name, self._tables, "consumer_lag")
        self._newest_answer = NewestSample(cluster.name, self._tables, "log_offsets", _IS_ANSWER)
        self._commits = Totals(
            warehouse,
            "offset_commits",
            position="record_offset",
            keys=("record_partition", "group_id"),
            values={"count": ("!is_tombstone", "sum")},
        )
        self._deliveries = Totals(
            warehouse,
            "share_deliveries",
            position="record_offset",
            keys=("record_partition", "group_id", "topic_id", "delivery_state", "is_first"),
            values={"records": ("records", "sum"), "redeliveries": ("redeliveries", "sum")},
        )
        self._progress = Totals(
            warehouse,
            "ingest_progress",
            position="end_offset",
            keys=("record_partition",),
            values={name: (name, "sum") for name in OUTCOMES}
            | {name: (name, "max") for name in (*_OFFSETS, "landed_at")},
        )
        self._rebalances_version: tuple[str, int] | None = None
        self._rising = Rising()
        self._counted = _NO_REBALANCES
        self._last_at = _empty(group_id=pa.string(), last_at=pa.float64())
        self._processed_before: datetime | None = None
        self._waits = SavedRows(warehouse.checkpoint_path(SAVED), warehouse.options, "history_waits", _WAITS)
        self._backlog: dict[int, int] = {}
        self._is_ready = False
        self._others: str | None = None
        self._stored: StoredRows | None = None

    def read(
        self,
        lag: pa.Table | None = None,
        *,
        reads_tables: bool = True,
        outage: str | None = None,
        choose: Choose = lambda _: (),
    ) -> Snapshot:
        """Return the newest snapshot, with `lag` in place of `consumer_lag`'s rows. Raises SnapshotError.

        Without `reads_tables` all other rows are those of the last call. `outage`: why no broker answers, while the
        jobs of this process wait for one. Of a sample with too many rows, it has the rows of the groups that `choose`
        returns, and a summary of all others."""
        started = time.perf_counter()
        if reads_tables or self._stored is None:
            if (unreadable := self._tables.refresh()) is not None:
                raise unreadable
            self._stored = self._read_tables(outage)
        stored = self._stored
        newest: datetime | None
        sample = self._lag(lag) if not stored.awaits_broker else _NO_LAG
        if isinstance(sample, LargeSample):
            newest = sample.newest_at
            gone = stored.deleted.filter(pc.greater(stored.deleted["deleted_at"], newest))["group_id"]
            rows, (summary, extent) = _NO_LAG, (_without(gone, part) for part in sample.summary())
        else:
            rows = existing(_newest_sample(sample, self._cluster), stored.deleted)
            summary, extent = SUMMARY.empty_table(), EXTENT.empty_table()
            newest = pc.max(sample["sampled_at"]).as_py() or self._newest_lag.now()[0]
        ids = [*stored.groups["group_id"].chunks, *rows["group_id"].chunks, *extent["group_id"].chunks]
        alive = pc.unique(pa.chunked_array(ids, pa.string()))
        landed = pc.max(stored.progress["landed_at"]).as_py()
        times = {
            "consumer_lag": newest and newest.timestamp(),
            "ingest_progress": landed and landed / 1e6,
            "history_positions": stored.history_waits_since,
        }
        if newest and stored.silence is not None:
            # Rows are written on, and say nothing about the logs.
            answered = stored.silence.since
            times["consumer_lag"] = answered and min(newest, answered).timestamp()
        has_lag = len(rows) + len(extent) > 0
        snapshot = Snapshot(
            cluster=self._cluster.name,
            made_at=time.time(),
            seconds=time.perf_counter() - started,
            lag=rows,
            sampled_at=newest,
            summary=summary,
            extent=extent,
            **vars(stored) | {name: _of(alive, getattr(stored, name)) for name in _COUNTED_BY_GROUP},
            newest={table: at for table, at in times.items() if at},
            not_ready=self._not_ready(stored, newest, has_lag=has_lag)
            if stored.silence is None
            else str(stored.silence),
        )
        if not isinstance(sample, LargeSample):
            return snapshot
        chosen = pa.array(sorted(choose(snapshot)), pa.string())
        return replace(
            snapshot,
            lag=sample.rows(chosen).select(LAG_COLUMNS).cast(_NO_LAG.schema) if len(chosen) else _NO_LAG,
            summary=_without(chosen, summary),
            extent=_without(chosen, extent),
            seconds=time.perf_counter() - started,
        )

    def _read_tables(self, outage: str | None) -> StoredRows:
        rebalances, intervals = self._rebalances()
        groups, deleted = self._groups()
        progress = self._progress.now(self._tables.get("ingest_progress"))
        silence = self._silence(outage)
        facts = self._facts.now()
        ownership, unassigned = self._members(groups)
        return StoredRows(
            groups=groups,
            deleted=deleted,
            rebalances=rebalances,
            intervals=intervals,
            commits=self._commits.now(self._tables.get("offset_commits")).select(["group_id", "count"]),
            deliveries=self._delivered(),
            progress=progress,
            stable=self._stable(progress, is_silent=silence is not None),
            failures=self._failures(),
            damage=self._damage(),
            history_waits_since=self._history_waits_since(),
            silence=silence,
            facts=facts,
            logs=self._logs(facts),
            ownership=ownership,
            unassigned=unassigned,
            owners=self._owners_of(groups),
            followed=self._followed(),
        )

    def _delivered(self) -> pa.Table:
        """Return what became of the records of share groups, without what was so before the first that was read."""
        totals = self._deliveries.now(self._tables.get("share_deliveries"))
        totals = totals.filter(pc.invert(totals["is_first"]))
        table = self._tables.get("topic_names")
        if not len(totals) or table is None:
            return _NO_DELIVERIES
        version = table_id(table), table.version()
        if self._names is None or self._names[0] != version:
            names = self._tables.rows(f"SELECT topic_id, topic FROM topic_names WHERE {self._ours()}")
            self._names = version, names
        rows = totals.join(self._names[1], "topic_id", join_type="inner")
        rows = rows.rename_columns({"delivery_state": "outcome"})
        keys, counted = ["group_id", "topic", "outcome"], ["records", "redeliveries"]
        rows = rows.group_by(keys).aggregate([(name, "sum") for name in counted])
        return rows.select([*keys, "records_sum", "redeliveries_sum"]).rename_columns([*keys, *counted])

    def _followed(self) -> tuple[FollowedFile, ...]:
        status = read_status(self._warehouse, BROKER_LOG.name)
        return () if status is None or status.is_stale() else status.files

    def _logs(self, facts: ClusterFacts) -> pa.Table:
        """Return the bounds of the logs in their newest sample, if it is recent."""
        newest = self._tables.newest("log_offsets", "sampled_at") if self._has_topics else None
        if newest is None or newest < _stale(self._cluster):
            return _NO_LOGS
        since = newest - self._cluster.sample_span
        rows = self._tables.rows(
            "SELECT topic, partition, sampled_at, log_start_offset, log_end_offset FROM log_offsets "
            f"WHERE {self._ours()} AND error IS NULL AND sampled_at >= {datafusion_literal(since)}"
        )
        rows = positions.newest(rows, ["topic", "partition"], order="sampled_at").drop_columns("sampled_at")
        is_offsets = pc.equal(rows["topic"], OFFSETS_TOPIC)
        # Unless all topics are sampled, its partitions come and go with transactions.
        if pc.sum(is_offsets).as_py() not in (None, 0, facts.offsets_partitions):
            rows = rows.filter(pc.invert(is_offsets))
        return rows.cast(_NO_LOGS.schema)

    def _members(self, groups: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Return who owns how much of a topic, and how many members of groups that are Stable own nothing."""
        table = self._tables.get("partition_ownership") if self._has_members else None
        if table is None:
            return _NO_OWNERSHIP, _NO_UNASSIGNED
        version = table_id(table), table.version()
        if self._owned is None or self._owned[0] != version:
            owned = (
                f"FROM partition_ownership WHERE {self._ours()} AND is_open AND owned_until IS NULL "
                "AND partition >= 0"
            )
            of_topics = self._tables.rows(
                "SELECT group_id, topic, COUNT(*) AS partitions, COUNT(DISTINCT member_id) AS members "
                f"{owned} GROUP BY group_id, topic"
            )
            owners = self._tables.rows(
                f"SELECT group_id, COUNT(DISTINCT member_id) AS owners {owned} GROUP BY group_id"
            )
            self._owned = version, of_topics, owners
        _, of_topics, owners = self._owned
        # Connect's and Streams' tasks are no partitions.
        consumers = groups.filter(pc.equal(groups["protocol_type"], "consumer"))
        ownership = _of(consumers["group_id"].combine_chunks(), of_topics).cast(_NO_OWNERSHIP.schema)
        stable = consumers.filter(pc.equal(consumers["state"], "Stable"))
        place = pc.index_in(stable["group_id"], owners["group_id"].combine_chunks())
        idle = pc.subtract(stable["member_count"], pc.fill_null(owners["owners"].take(place), 0))
        unassigned = pa.table({"group_id": stable["group_id"], "members": idle})
        unassigned = unassigned.filter(pc.fill_null(pc.greater(idle, 0), False))
        return ownership, unassigned.cast(_NO_UNASSIGNED.schema)

    def _owners_of(self, groups: pa.Table) -> pa.Table:
        """Return the owner of each partition of groups of consumers, the newest if a table has two."""
        if not self._has_owners:
            return _NO_OWNERS
        opened = [table for name in _READ_FOR_OWNERS if (table := self._tables.get(name)) is not None]
        if len(opened) < len(_READ_FOR_OWNERS):
            return _NO_OWNERS
        versions = tuple(table.version() for table in opened)
        if self._owners is None or self._owners[0] != versions:
            owned = self._tables.rows(
                "SELECT group_id, topic, partition, member_id, client_id, owned_from FROM partition_ownership "
                f"WHERE {self._ours()} AND is_open AND owned_until IS NULL AND partition >= 0"
            )
            hosts = self._tables.rows(
                "SELECT group_id, member_id, max(client_host) AS client_host FROM memberships "
                f"WHERE {self._ours()} AND is_open GROUP BY group_id, member_id"
            )
            owned = positions.newest(owned, ["group_id", "topic", "partition"], order="owned_from")
            owned = owned.join(hosts, ["group_id", "member_id"])
            known = pc.fill_null(owned["client_host"], "")
            owned = owned.set_column(owned.column_names.index("client_host"), "client_host", known)
            self._owners = versions, owned.select(_NO_OWNERS.column_names).cast(_NO_OWNERS.schema)
        consumers = groups.filter(pc.equal(groups["protocol_type"], "consumer"))
        return _of(consumers["group_id"].combine_chunks(), self._owners[1])

    def _lag(self, published: pa.Table | None) -> pa.Table | LargeSample:
        return self._stored_lag() if published is None else self._published_lag(published)

    def _stored_lag(self) -> pa.Table | LargeSample:
        """Return the samples that may be the newest of their partition."""
        table = self._tables.get("consumer_lag")
        if table is None:
            return _NO_LAG
        stale = _stale(self._cluster)
        newest = self._tables.newest("consumer_lag", "sampled_at")
        rows = _NO_LAG
        # Only the newest files are read, unless their statistics led too far: those of another cluster may count.
        span = self._cluster.sample_span
        for since in [stale] if newest is None else [max(stale, newest - span), stale]:
            where = f"FROM consumer_lag WHERE {self._ours()} AND sampled_at >= {datafusion_literal(since)}"
            _, count = self._tables.files_since("consumer_lag", "sampled_at", since)
            if count > most_rows(self._cluster.exporter):
                newest = self._tables.rows(f"SELECT MAX(sampled_at) AS at {where}")["at"][0].as_py()
                if newest is not None:
                    columns = compact(columns_of("consumer_lag", _READ["consumer_lag"]))
                    options = self._warehouse.options
                    files, _ = self._tables.files_since("consumer_lag", "sampled_at", since)
                    stored = files_dataset(table, files, columns, options)
                    reading = partial(naming_damage, table, options)
                    return self._large(stored, newest, since, own_rows(self._cluster.name), reading=reading)
            elif len(rows := self._tables.rows(f"SELECT {', '.join(LAG_COLUMNS)} {where}")):
                break
        return rows.cast(_NO_LAG.schema)

    def _published_lag(self, rows: pa.Table) -> pa.Table | LargeSample:
        """Return published rows with lag in seconds as of now."""
        rows = _select_lag(rows)
        newest, stale = pc.max(rows["sampled_at"]).as_py(), _stale(self._cluster)
        as_of_now = partial(self._as_of_now, now=time.time())
        if len(rows) > most_rows(self._cluster.exporter) and newest >= stale:
            return self._large(ds.dataset(rows), newest, stale, as_of_now=as_of_now)
        return as_of_now(rows.cast(_NO_LAG.schema))

    def _large(
        self,
        rows: ds.Dataset,
        newest: datetime,
        since: datetime,
        among: ds.Expression | None = None,
        *,
        as_of_now: Callable[[pa.Table], pa.Table] = lambda rows: rows,
        reading: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> LargeSample:
        """Return the rows of the newest sample, taken at `newest`, among those after `since` that match `among`."""
        of_sample = pc.field("sampled_at") >= max(since, newest - self._cluster.sample_span)
        exporter = self._cluster.exporter
        return LargeSample(
            rows,
            of_sample if among is None else of_sample & among,
            newest,
            as_of_now=as_of_now,
            is_topic_allowed=lambda topic: is_allowed(topic, exporter.allow_topics, exporter.deny_topics),
            reading=reading,
        )

    def _as_of_now(self, rows: pa.Table, *, now: float) -> pa.Table:
        """Return the rows with lag in seconds and the time to loss as of `now`: unread records have aged meanwhile.

        At most two intervals are added: an older sample says nothing about now.
        """
        most = 2 * self._cluster.sample_seconds
        sampled_at = pc.cast(rows["sampled_at"], pa.int64())
        since = np.clip(now - np.asarray(pc.fill_null(sampled_at, 0)) / 1e6, 0, most)
        older = pc.if_else(pc.greater(rows["lag"], 0), pc.add(rows["lag_seconds"], since), rows["lag_seconds"])
        changed = {"lag_seconds": older}
        for name in ("time_to_loss_seconds", "time_to_loss_most_seconds"):
            if name in rows.column_names:
                changed[name] = pc.max_element_wise(pc.subtract(rows[name], since), 0.0, skip_nulls=False)
        for name, column in changed.items():
            rows = rows.set_column(rows.column_names.index(name), name, column)
        return rows

    def _groups(self) -> tuple[pa.Table, pa.Table]:
        """Return the groups that exist, and when the others were deleted."""
        states = self._open("group_states", "state", "started_at")
        is_dead = pc.equal(states["state"], "Dead")
        deleted = states.filter(is_dead).select(["group_id", "started_at"]).rename_columns(["group_id", "deleted_at"])
        states = states.filter(pc.invert(is_dead)).drop_columns("started_at")
        generations = self._open("generations", "generation", "member_count", "protocol_type", "protocol")
        groups = states.join(generations, "group_id", join_type="left outer")
        for name in ("protocol_type", "protocol"):
            place = groups.column_names.index(name)
            groups = groups.set_column(place, name, pc.fill_null(groups[name], ""))
        return groups, deleted

    def _open(self, name: str, *columns: str) -> pa.Table:
        """Return the open row of each group in a table."""
        if self._tables.get(name) is None:
            return columns_of(name, ("group_id", *columns)).empty_table()
        rows = self._tables.rows(
            f"SELECT group_id, record_offset, {', '.join(columns)} FROM {name} "
            f"WHERE {self._ours()} AND open_bucket IS NOT NULL"
        )
        return positions.newest(rows, ["group_id"]).drop_columns("record_offset")

    def _rebalances(self) -> tuple[pa.Table, pa.Table]:
        """Return counts by group and cause, and by group the time of the last one and the intervals between them."""
        table = self._tables.get("rebalances")
        if table is not None and (table_id(table), table.version()) != self._rebalances_version:
            counts = self._tables.rows(self._rebalances_query())
            last = counts.group_by("group_id").aggregate([("last_at", "max")])
            self._last_at = last.rename_columns({"last_at_max": "last_at"})
            self._counted = self._rising.now(counts.select(_NO_REBALANCES.column_names))
            self._rebalances_version = (table_id(table), table.version())
        apart = self._counted.group_by("group_id").aggregate([(name, "sum") for name in _APART])
        apart = apart.rename_columns({f"{name}_sum": name for name in _APART})
        return self._counted, apart.join(self._last_at, "group_id", join_type="inner")

    def _rebalances_query(self) -> str:
        bounds = ["'-Infinity'::double", *map(str, INTERVAL_BUCKETS), "'Infinity'::double"]
        since = "seconds_since_previous"
        buckets = [
            f"COUNT(*) FILTER (WHERE {since} > {low} AND {since} <= {high}) AS le_{number}"
            for number, (low, high) in enumerate(pairwise(bounds))
        ]
        return (
            "SELECT group_id, cause, COUNT(*) AS count, COALESCE(SUM(CAST(partitions_moved AS BIGINT)), 0) AS moved, "
            f"COALESCE(SUM({since}), 0.0) AS seconds, {', '.join(buckets)}, "
            "MAX(arrow_cast(at, 'Int64')) / 1e6 AS last_at "
            f"FROM rebalances WHERE {self._ours()} AND NOT ({_NOT_YET_KNOWN}) GROUP BY group_id, cause"
        )

    def _history_waits_since(self) -> float | None:
        """Return the time of the first batch with group records that history has not processed; +Inf if none.

        None if the tables have neither a batch nor history of the cluster."""
        progress = self._tables.get("ingest_progress")
        if self._tables.get("history_positions") is None or progress is None:
            return None
        if self._processed_before is None and (saved := self._waits.read(of=progress)) is not None:
            self._processed_before = saved[0]["processed_before"][0].as_py()
        positions = self._tables.rows(
            "SELECT record_partition, MAX(processed_to) AS processed_to FROM history_positions "
            f"WHERE {self._ours()} GROUP BY record_partition"
        )
        processed_to = dict(zip(*(column.to_pylist() for column in positions.columns), strict=True))
        # A partition below 0 marks a rebuild, which processes all batches again.
        since = None if min(processed_to, default=0) < 0 else self._processed_before
        batches = self._tables.rows(
            "SELECT record_partition, start_offset, landed_at, group_metadata + group_records > 0 AS of_groups "
            f"FROM ingest_progress WHERE {self._ours()}"
            + (f" AND landed_at >= {datafusion_literal(since)}" if since else "")
        )
        if not len(batches) and not processed_to:
            return None
        waiting = [
            row["landed_at"]
            for row in batches.filter(batches["of_groups"]).to_pylist()
            if row["start_offset"] >= processed_to.get(row["record_partition"], 0)
        ]
        self._processed_before = min(waiting, default=pc.max(batches["landed_at"]).as_py()) or since
        self._waits.keep(pa.table([[self._processed_before]], _WAITS), of=progress)
        return min(waiting).timestamp() if waiting else math.inf

    def _silence(self, outage: str | None) -> Silence | None:
        """Return since when no sample of the logs has an answer, and why; None if the newest one has one."""
        newest, answered = self._newest_answer.now()
        if outage is not None:
            return Silence(answered, outage, is_awaited=True)
        length = self._cluster.sample_span
        if newest is None or (answered is not None and newest - answered <= length):
            return None
        reasons = self._tables.rows(
            f"SELECT error, COUNT(*) AS count FROM log_offsets WHERE {self._ours()} AND error IS NOT NULL "
            f"AND sampled_at >= {datafusion_literal(newest - length)} "
            "GROUP BY error ORDER BY count DESC, error LIMIT 1"
        )
        return Silence(answered, reasons["error"][0].as_py())

    def _stable(self, progress: pa.Table, *, is_silent: bool) -> pa.Table:
        """Return the last stable offsets in the newest sample of the logs; a partition without a row is stable.

        If no sample is recent, return those of each partition's last batch; if no broker answered, none.
        """
        partitions = progress["record_partition"].to_pylist()
        newest = self._tables.newest("log_offsets", "sampled_at")
        if newest is None or newest < _stale(self._cluster):
            behind = pc.subtract(progress["log_end_offset"], progress["last_stable_offset"]).to_pylist()
            return _stable_offsets({at: (None, lag) for at, lag in zip(partitions, behind, strict=True)})
        apart = min(self._cluster.sample_span, timedelta(seconds=self._cluster.sample_seconds / 2))
        since = newest - apart
        rows = self._tables.rows(
            "SELECT partition, last_stable_offset AS stable, log_end_offset - last_stable_offset AS lag "
            "FROM log_offsets "
            f"WHERE {self._ours()} AND topic = '__consumer_offsets' AND sampled_at >= {datafusion_literal(since)}"
        )
        sampled = {row["partition"]: (row["stable"] if row["lag"] else None, row["lag"]) for row in rows.to_pylist()}
        return _stable_offsets(dict.fromkeys(partitions, (None, None if is_silent else 0)) | sampled)

    def _failures(self) -> pa.Table:
        """Return how many expectations failed in each table's newest check."""
        if self._tables.get("check_results") is None:
            return _empty(table=pa.string(), count=pa.int64())
        ours = self._ours()
        return self._tables.rows(
            'SELECT r.table_name AS "table", COUNT(*) FILTER (WHERE NOT r.success) AS count FROM check_results r '
            f"JOIN (SELECT table_name, MAX(checked_at) AS checked_at FROM check_results WHERE {ours} "
            "GROUP BY table_name) n ON r.table_name = n.table_name AND r.checked_at = n.checked_at "
            f"WHERE r.{ours} GROUP BY r.table_name"
        )

    def _damage(self) -> dict[str, list[str]]:
        """Return what is damaged of all tables, whoever in this process found it."""
        damage = {
            # The others have just been opened.
            table.name: damage_of(table.path) if table.name in _READ else look_again(table.location)
            for table in self._warehouse.tables(contracts.tables())
        }
        return {name: texts for name, texts in damage.items() if texts}

    def _not_ready(self, stored: StoredRows, sampled_at: datetime | None, *, has_lag: bool) -> str | None:
        """Return why the values are not current; None once the initial backlog is read and lag, if any, is recent."""
        if self._is_ready:
            return None
        progress = stored.progress
        if not len(progress):
            place = f"under {self._warehouse.shown} for cluster {self._cluster.name}"
            return self._other_clusters() or f"nothing of __consumer_offsets has landed {place}"
        if sampled_at is not None and not has_lag:
            return (
                f"the newest sample of consumer_lag is of {sampled_at:%Y-%m-%d %H:%M:%S} UTC: start `grouptrail run`"
            )
        left = 0
        for row in progress.select(["record_partition", *_OFFSETS]).to_pylist():
            upto = self._backlog.setdefault(row["record_partition"], row["last_stable_offset"] or 0)
            left += max(0, upto - row["end_offset"])
        if left:
            return f"{left:,} records of __consumer_offsets have not been read"
        is_earlier = self._lag_since is not None and (sampled_at is None or sampled_at < self._lag_since)
        if is_earlier and len(stored.commits):
            return "lag is not sampled yet since the start: what is served is of the run before"
        self._is_ready = True
        return None

    def _other_clusters(self) -> str | None:
        """Return that the warehouse has other clusters, which it looks for until there are some.

        None also while this process reads the cluster's first records."""
        if self._others is None and self._lag_since is None:
            try:
                # With a cluster that is set: none of the others is to be taken instead.
                stored_cluster(self._warehouse, is_named=True)
            except UnknownClusterError as error:
                self._others = str(error)
        return self._others

    def _ours(self) -> str:
        return f"cluster = {datafusion_literal(self._cluster.name)}"


def _stable_offsets(offsets: Mapping[int, tuple[int | None, int | None]]) -> pa.Table:
    stable, lag = ([row[number] for row in offsets.values()] for number in (0, 1))
    columns = {"record_partition": list(offsets), "last_stable_offset": stable, "lag": lag}
    types = {"record_partition": pa.int32(), "last_stable_offset": pa.int64(), "lag": pa.int64()}
    return pa.table(columns, schema=pa.schema(list(types.items())))


def _select_lag(rows: pa.Table) -> pa.Table:
    missing = [name for name in LAG_COLUMNS if name not in rows.column_names]
    if missing:
        raise SnapshotError(f"rows of consumer_lag without {missing[0]}: hand over all columns of the table")
    return rows.select(LAG_COLUMNS)


def _newest_sample(rows: pa.Table, cluster: ServedCluster) -> pa.Table:
    """Return the newest row of each group and partition, without those that the newest sample lacks."""
    newest_at = pc.max(rows["sampled_at"]).as_py()
    if newest_at is None:
        return rows
    since = max(newest_at - cluster.sample_span, _stale(cluster))
    is_new = pc.greater_equal(rows["sampled_at"], pa.scalar(since, rows["sampled_at"].type))
    if not pc.all(is_new, skip_nulls=False).as_py():  # filtering copies all rows, whose names may be long
        rows = rows.filter(is_new)
    return positions.newest(rows, order="sampled_at")


def existing(lag: pa.Table, deleted: pa.Table) -> pa.Table:
    """Return the samples of lag without those of groups that were deleted since, as the view `current_lag` does."""
    since = pc.min(lag["sampled_at"])
    later = deleted.filter(pc.fill_null(pc.greater(deleted["deleted_at"], since), False))
    if not len(later):
        return lag
    deleted_at = later["deleted_at"].take(pc.index_in(lag["group_id"], later["group_id"].combine_chunks()))
    return lag.filter(pc.fill_null(pc.less_equal(deleted_at, lag["sampled_at"]), True))


def _stale(cluster: ServedCluster) -> datetime:
    return datetime.now(UTC) - timedelta(seconds=stale_seconds(cluster.sample_seconds))


def _of(groups: pa.Array, rows: pa.Table) -> pa.Table:
    return rows.filter(pc.is_in(rows["group_id"], groups))


def _without(groups: pa.Array | pa.ChunkedArray, rows: pa.Table) -> pa.Table:
    return rows.filter(pc.invert(pc.is_in(rows["group_id"], groups))) if len(groups) else rows


def _empty(**types: pa.DataType) -> pa.Table:
    return pa.schema(list(types.items())).empty_table()


_NO_REBALANCES = _empty(
    group_id=pa.string(), cause=pa.string(), count=pa.int64(), moved=pa.int64(), **dict.fromkeys(_APART, pa.int64())
)
_NO_LOGS = _empty(topic=pa.string(), partition=pa.int32(), log_start_offset=pa.int64(), log_end_offset=pa.int64())
_NO_OWNERSHIP = _empty(group_id=pa.string(), topic=pa.string(), partitions=pa.int64(), members=pa.int64())
_NO_UNASSIGNED = _empty(group_id=pa.string(), members=pa.int64())
_NO_OWNERS = _empty(
    group_id=pa.string(),
    topic=pa.string(),
    partition=pa.int32(),
    **dict.fromkeys(("member_id", "client_id", "client_host"), pa.string()),
)
_NO_DELIVERIES = _empty(
    **dict.fromkeys(("group_id", "topic", "outcome"), pa.string()), records=pa.int64(), redeliveries=pa.int64()
)
NO_DELETED = _empty(group_id=pa.string(), deleted_at=pa.timestamp("us", "UTC"))
_WAITS = pa.schema([("processed_before", pa.timestamp("us", "UTC"))])
_NO_LAG = columns_of("consumer_lag", LAG_COLUMNS).empty_table()
