"""The history job: folds the decoded records of groups into the history tables.

Its stream is `ingest_progress`, which the decode job writes last: records up to its offsets are in every table.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow as pa

from grouptrail.errors import GrouptrailError
from grouptrail.history import records
from grouptrail.history.batch import (
    BatchSummary,
    ensure_tables,
    few_rows_of,
    fold,
    fresh_records,
    rows_of,
    waiting,
    with_commits,
)
from grouptrail.history.handovers import HandoverSpan
from grouptrail.history.names import TopicNames
from grouptrail.history.rebuild import REBUILDING, rebuild
from grouptrail.history.rows import TABLES
from grouptrail.history.tasks import POSITIONS
from grouptrail.history.without_spark import are_supported, few_records, few_states, fold_few
from grouptrail.jobs import HISTORY, Progress, Query, Start
from grouptrail.spark.streams import query_id
from grouptrail.storage import checkpoints, tables
from grouptrail.storage.following import Appended, follow
from grouptrail.storage.progress import PROGRESS, OffsetRanges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from grouptrail.config import Config


# The fold of so many takes the driver, which also serves metrics, about a second.
_FEW_RECORDS = 2_000


class HistoryError(GrouptrailError):
    """The history tables are incomplete, so that the job cannot continue from them."""


def check(config: Config) -> None:
    """Raise unless the warehouse can be written; runs before Spark is started."""
    tables.check_warehouse(config)


def start(
    spark: SparkSession,
    config: Config,
    *,
    once: bool,
    report: Callable[[str], None],
    is_written_here: bool = False,
) -> Query:
    """Start the query, which reads `ingest_progress` and the decoded tables and writes the history tables."""
    ensure_tables(spark, config)
    refuse_half_rebuilt(spark, config)
    begun = checkpoints.begin(spark, config, HISTORY.name, HISTORY.writes)
    writer = HistoryBatchWriter(spark, config, app=lambda: query_id(spark, config, HISTORY.name), report=report)
    progress = Appended(PROGRESS, begun.get("version"))
    return follow(
        spark,
        config,
        HISTORY.name,
        progress,
        land=writer.land,
        once=once,
        is_written_here=is_written_here,
        every_seconds=config.decode.trigger_seconds,
    )


def start_after_loss(spark: SparkSession, config: Config, report: Progress) -> Start:
    """Rebuild the history, and return the version of `ingest_progress` at which that began.

    Records that are decoded meanwhile are read again and skipped, because each group's state knows its offset.
    """
    tables.ensure_table(spark, config, PROGRESS)
    version = tables.versions(spark, config, PROGRESS)[0][0]
    rebuild(lambda: spark, config, report)
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

    def land(self, spark: SparkSession, progress: pa.Table, batch: int) -> None:
        """Process one micro-batch of rows of `ingest_progress`."""
        started = time.monotonic()
        if not len(progress):
            return
        covered = OffsetRanges.of(progress)
        counts = self._fold_few(covered, batch) if self._has_work(spark, covered) else {}
        if counts is None:
            counts = self._fold(spark, covered, batch)
        self._report(_summary(batch, covered.newest_batch, counts, time.monotonic() - started))

    def _has_work(self, spark: SparkSession, covered: OffsetRanges) -> bool:
        """Return whether there are records of groups, or incomplete operations that may be complete now.

        Most batches hold only commits, which do not change any group, and Spark takes long to find nothing.
        """
        if covered.of_groups:
            return True
        tombstones = f"is_tombstone AND {covered.condition(tables.literal(self._config))}"
        return tables.has_rows(spark, self._config, POSITIONS, waiting(covered)) or tables.has_rows(
            spark, self._config, "offset_commits", tombstones
        )

    def _fold_few(self, covered: OffsetRanges, batch: int) -> dict[str, int] | None:
        """Process a small batch without Spark, in a quarter of the time; return how many rows each table got.

        None if it has to be processed by Spark; nothing has been written then.
        """
        config = self._config
        if not are_supported(config) or covered.of_groups > _FEW_RECORDS:
            return None
        fresh = few_records(config, covered)
        if fresh is None:
            return None
        states = few_states(config, fresh, covered)
        names = self._names.of_few(fresh) if covered.group_records else self._names.known()
        found = fold_few(pa.concat_tables([fresh, states]), covered.complete_to, names, config)
        handovers = HandoverSpan.of_rows(found.of("rebalances"))
        if not tables.are_few(config, sum(found.counts.values())) or not (handovers is None or handovers.is_short):
            return None
        counts, app = found.counts, self._app()

        def write(table: str) -> None:
            rows = with_commits(found.taken(table), table, config)
            tables.merge(rows, found.buckets(table), config, table, app=app, version=batch)

        _write_all(counts, write)
        return counts

    def _fold(self, spark: SparkSession, covered: OffsetRanges, batch: int) -> dict[str, int]:
        fresh = fresh_records(spark, self._config, covered).persist()
        try:
            return self._fold_records(fresh, covered, batch)
        finally:
            fresh.unpersist()

    def _fold_records(self, fresh: DataFrame, covered: OffsetRanges, batch: int) -> dict[str, int]:
        from pyspark.sql import functions as F

        positions = tables.read(fresh.sparkSession, self._config, POSITIONS)
        names = self._names.of(fresh) if covered.group_records else self._names.known()
        groups = fresh.select("record_partition", "group_id").distinct()
        states = positions.join(
            F.broadcast(groups.withColumn("is_new", F.lit(True))), ["record_partition", "group_id"], "left"
        )
        states = states.where(F.col("is_new").isNotNull() | F.expr(waiting(covered)))
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
                arrow = few_rows_of(few, table, self._config)
                tables.merge(arrow, buckets, self._config, table, app=app, version=batch)

        _write_all(found.rows, write)


def _write_all(changed: Collection[str], write: Callable[[str], None]) -> None:
    """Write the tables that have changed rows, at once, and the positions last."""
    with ThreadPoolExecutor(len(TABLES)) as pool:
        list(pool.map(write, [table for table in TABLES if table in changed]))
    if POSITIONS in changed:
        write(POSITIONS)


def _summary(batch: int, newest: int, counts: dict[str, int], seconds: float) -> str:
    rows = ", ".join(f"{counts[table]:,} {table.replace('_', ' ')}" for table in TABLES if counts.get(table))
    found = f"{counts.get(POSITIONS, 0):,} groups; {rows or 'nothing new'}"
    return f"history batch {batch}, up to batch {newest} of decode: {found} in {seconds:.1f} s"
