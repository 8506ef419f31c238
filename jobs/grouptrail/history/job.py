"""The history job: folds the decoded records of groups into the history tables.

Its stream is `ingest_progress`, which the decode job writes last: records up to its offsets are in every table.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.errors import GrouptrailError
from grouptrail.history import records
from grouptrail.history.handovers import HandoverSpan, fill_commits, fill_commits_with_spark
from grouptrail.history.names import TABLE as NAMES
from grouptrail.history.names import TopicNames
from grouptrail.history.rows import TABLES
from grouptrail.history.tasks import POSITIONS, fold_groups, output_ddl
from grouptrail.jobs import HISTORY, Progress, Start
from grouptrail.spark.streams import interpret, query_id, start_query
from grouptrail.storage import checkpoints, tables
from grouptrail.storage.progress import PROGRESS, OffsetRanges
from grouptrail.storage.rows import dataset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from grouptrail.config import Config

DECODED = ("offset_commits", "group_metadata", "group_records")

_RECORDS_AT_A_TIME = 2_048

REBUILDING = -1
"""The partition in `history_positions` whose row marks a rebuild that is running or was interrupted."""


class HistoryError(GrouptrailError):
    """The history tables are incomplete, so that the job cannot continue from them."""


def check(config: Config) -> None:
    """Raise unless the warehouse can be written; runs before Spark is started."""
    tables.check_warehouse(config)


def ensure_tables(spark: SparkSession, config: Config) -> None:
    """Create every table that the job reads or writes, so that it can start before the decode job."""
    tables.ensure_tables(spark, config, (*DECODED, PROGRESS, *TABLES, NAMES, POSITIONS))


def start(spark: SparkSession, config: Config, *, once: bool, report: Callable[[str], None]) -> StreamingQuery:
    """Start the query, which reads `ingest_progress` and the decoded tables and writes the history tables."""
    ensure_tables(spark, config)
    refuse_half_rebuilt(spark, config)
    begun = checkpoints.begin(spark, config, HISTORY.name, HISTORY.writes)
    writer = HistoryBatchWriter(spark, config, app=lambda: query_id(spark, config, HISTORY.name), report=report)
    progress = tables.read_appends(spark, config, PROGRESS, version=begun.get("version"))
    return start_query(progress, config, HISTORY.name, land=writer.land, once=once)


def start_after_loss(spark: SparkSession, config: Config, report: Progress) -> Start:
    """Rebuild the history, and return the version of `ingest_progress` at which that began.

    Records that are decoded meanwhile are read again and skipped, because each group's state knows its offset.
    """
    from grouptrail.history.rebuild import rebuild

    tables.ensure_table(spark, config, PROGRESS)
    version = tables.versions(spark, config, PROGRESS)[0][0]
    rebuild(spark, config, report)
    return {"version": version}


def refuse_half_rebuilt(spark: SparkSession, config: Config) -> None:
    """Raise HistoryError while a rebuild is running or if one was interrupted."""
    if tables.has_rows(spark, config, POSITIONS, f"record_partition = {REBUILDING}"):
        raise HistoryError("a rebuild of the history is running or was interrupted: run grouptrail rebuild history")


class HistoryBatchWriter:
    """Writes each micro-batch exactly once, also when it is retried: the positions are written last."""

    def __init__(
        self, spark: SparkSession, config: Config, *, app: Callable[[], str], report: Callable[[str], None]
    ) -> None:
        self._config = config
        self._app = app
        self._report = report
        self._names = TopicNames(spark, config)

    def land(self, progress: DataFrame, batch: int) -> None:
        """Process one micro-batch of rows of `ingest_progress`."""
        from pyspark.sql import functions as F

        started = time.monotonic()
        spark = progress.sparkSession
        # A batch has a few thousand rows, and ten plans with wide rows.
        interpret(spark, is_small=True)
        covered = OffsetRanges.of(progress.where(F.col("cluster") == self._config.cluster))
        if not covered.ranges:
            return
        counts = self._fold(spark, covered, batch) if self._has_work(spark, covered) else {}
        self._report(_summary(batch, covered.newest_batch, counts, time.monotonic() - started))

    def _has_work(self, spark: SparkSession, covered: OffsetRanges) -> bool:
        """Return whether there are records of groups, or incomplete operations that may be complete now.

        Most batches hold only commits, which do not change any group, and Spark takes long to find nothing.
        """
        if covered.has_classic_records or covered.has_group_records:
            return True
        tombstones = f"is_tombstone AND {covered.condition(tables.literal(self._config))}"
        return tables.has_rows(spark, self._config, POSITIONS, _waiting(covered)) or tables.has_rows(
            spark, self._config, "offset_commits", tombstones
        )

    def _fold(self, spark: SparkSession, covered: OffsetRanges, batch: int) -> dict[str, int]:
        fresh = fresh_records(spark, self._config, covered).persist()
        try:
            return self._fold_records(fresh, covered, batch)
        finally:
            fresh.unpersist()

    def _fold_records(self, fresh: DataFrame, covered: OffsetRanges, batch: int) -> dict[str, int]:
        from pyspark.sql import functions as F

        positions = tables.read(fresh.sparkSession, self._config, POSITIONS)
        names = self._names.of(fresh) if covered.has_group_records else self._names.known()
        groups = fresh.select("record_partition", "group_id").distinct()
        states = positions.join(
            F.broadcast(groups.withColumn("is_new", F.lit(True))), ["record_partition", "group_id"], "left"
        )
        states = states.where(F.col("is_new").isNotNull() | F.expr(_waiting(covered)))
        with_states = fresh.unionByName(records.saved_states(states))
        cores = fresh.sparkSession.sparkContext.defaultParallelism
        changed = fold(with_states, covered.complete_to, names, self._config, cores).persist()
        try:
            found = BatchSummary.of(changed)
            self._write(changed, found, batch)
        finally:
            changed.unpersist()
        return found.rows

    def _write(self, changed: DataFrame, found: BatchSummary, batch: int) -> None:
        app = self._app()
        few = changed.toArrow() if found.are_few(self._config) else None

        def write(table: str) -> None:
            buckets = found.buckets[table]
            if few is None:
                rows = rows_of(changed, table, found, self._config)
                tables.update(rows, buckets, self._config, table, app=app, version=batch)
            else:
                arrow = few_rows_of(few, table, found, self._config)
                tables.merge(arrow, buckets, self._config, table, app=app, version=batch)

        with ThreadPoolExecutor(len(TABLES)) as pool:
            list(pool.map(write, [table for table in TABLES if table in found.rows]))
        if POSITIONS in found.rows:
            write(POSITIONS)


@dataclass(frozen=True)
class BatchSummary:
    """The changes of a batch by table: number of rows and buckets of open rows; and its handovers."""

    rows: dict[str, int]
    buckets: dict[str, list[int]]
    handovers: HandoverSpan | None

    @classmethod
    def of(cls, changed: DataFrame) -> BatchSummary:
        """Return the summary of `fold`'s rows."""
        from pyspark.sql import functions as F

        found = (F.count("*").alias("rows"), F.collect_set("open_bucket").alias("buckets"))
        rows = changed.groupBy("of").agg(*found, *HandoverSpan.aggregates("rebalances")).collect()
        return cls(
            {row.of: row.rows for row in rows},
            {row.of: row.buckets for row in rows},
            next((HandoverSpan.of(row) for row in rows if row.groups), None),
        )

    def are_few(self, config: Config) -> bool:
        """Return whether the driver can process the rows and the commits that their handovers need."""
        return tables.are_few(config, sum(self.rows.values())) and (self.handovers is None or self.handovers.is_short)


def fresh_records(spark: SparkSession, config: Config, covered: OffsetRanges) -> DataFrame:
    """Return the groups' records in these ranges (`tasks.INPUT_DDL`)."""
    found = records.classic_records(covered.rows(tables.read(spark, config, "group_metadata"))).unionByName(
        records.commit_tombstones(covered.rows(tables.read(spark, config, "offset_commits")))
    )
    if not covered.has_group_records:
        return found
    return found.unionByName(records.other_records(covered.rows(tables.read(spark, config, "group_records"))))


def fold(
    group_records: DataFrame, complete_to: dict[int, int], names: dict[str, str], config: Config, tasks: int
) -> DataFrame:
    """Return the changed rows of all tables (`tasks.output_ddl`)."""
    # A classic group's record holds all its members: Spark's default batch of them would fill a worker's memory.
    group_records.sparkSession.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", _RECORDS_AT_A_TIME)
    retention_ms = round(config.history.offsets_retention_minutes * 60_000)
    folds = fold_groups(complete_to, names, retention_ms)
    return tables.with_open_bucket(records.by_group(group_records, tasks).mapInArrow(folds, output_ddl()))


def rows_of(changed: DataFrame, table: str, found: BatchSummary, config: Config) -> DataFrame:
    """Return one table's rows among those that changed."""
    rows = changed.where(changed["of"] == table).select(f"{table}.*")
    if table != "rebalances" or found.handovers is None:
        return rows
    commits = tables.read(changed.sparkSession, config, "offset_commits")
    return fill_commits_with_spark(rows, found.handovers, commits, _lookback(config))


def few_rows_of(changed: pa.Table, table: str, found: BatchSummary, config: Config) -> pa.Table:
    """Return the same as `rows_of` from Arrow, with `open_bucket`."""
    own = changed.filter(pc.equal(changed["of"], table))
    rows = pa.Table.from_struct_array(own[table])
    is_open = rows["is_open"] if "is_open" in rows.column_names else pa.scalar(value=True)
    rows = rows.append_column("open_bucket", pc.if_else(is_open, own["open_bucket"], None))
    if table != "rebalances" or found.handovers is None:
        return rows
    return fill_commits(rows, dataset(config, "offset_commits"), config.cluster, _lookback(config))


def _lookback(config: Config) -> timedelta:
    return timedelta(minutes=config.history.commit_lookback_minutes)


def _waiting(covered: OffsetRanges) -> str:
    """Return the condition on `history_positions` for groups with an incomplete operation."""
    return f"waits AND record_partition IN ({', '.join(map(str, covered.ranges))})"


def _summary(batch: int, newest: int, counts: dict[str, int], seconds: float) -> str:
    rows = ", ".join(f"{counts[table]:,} {table.replace('_', ' ')}" for table in TABLES if counts.get(table))
    found = f"{counts.get(POSITIONS, 0):,} groups; {rows or 'nothing new'}"
    return f"history batch {batch}, up to batch {newest} of decode: {found} in {seconds:.1f} s"
