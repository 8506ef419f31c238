"""The history job: folds the decoded records of groups into the history tables.

Its stream is `ingest_progress`, which the decode job writes last: records up to its offsets are in every table.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from grouptrail.errors import GrouptrailError
from grouptrail.history.broker_log_update import update_rows
from grouptrail.history.fold_input import (
    is_waiting,
    read_records,
    read_states,
    scan_records,
    scan_states,
    scan_topic_references,
)
from grouptrail.history.folded_rows import MEMBERSHIPS, FoldedRows
from grouptrail.history.folding import ROWS_A_RECORD, Folding
from grouptrail.history.names import TopicNames, references_in
from grouptrail.history.rebuild import READ_OR_WRITTEN, rebuild
from grouptrail.history.rows import TABLES
from grouptrail.history.tasks import CHECKS, POSITIONS, REBUILDING
from grouptrail.history.tombstone_checks import TombstoneChecks
from grouptrail.jobs import HISTORY, JobContext
from grouptrail.spark.streams import interpret, own_session
from grouptrail.storage.engines.engine import Once
from grouptrail.storage.progress import PROGRESS, OffsetRanges, in_ranges

if TYPE_CHECKING:
    from grouptrail.config.job_settings import HistorySettings
    from grouptrail.storage.checkpoints import Start
    from grouptrail.storage.following import Query
    from grouptrail.storage.warehouse import Warehouse


class HistoryError(GrouptrailError):
    """The history tables are incomplete, so that the job cannot continue from them."""


def check(context: JobContext[HistorySettings]) -> None:
    """Raise unless the warehouse can be written; runs before Spark is started."""
    context.warehouse.check()


def start(context: JobContext[HistorySettings]) -> Query:
    """Start the query, which reads `ingest_progress` and the decoded tables and writes the history tables."""
    context = _with_own_session(context)
    warehouse = context.warehouse
    interpret(warehouse.session)
    warehouse.ensure(READ_OR_WRITTEN)
    refuse_half_rebuilt(warehouse)
    checkpoint = warehouse.checkpoint(HISTORY.name)
    started = checkpoint.open(warehouse.tables(HISTORY.writes))
    writer = HistoryBatchWriter(context, app=checkpoint.query_id)
    return warehouse.table(PROGRESS).follow(
        checkpoint,
        process=writer.process,
        once=context.once,
        is_written_here=context.is_written_here,
        every_seconds=context.settings.trigger_seconds,
        version=started.get("version"),
    )


def start_after_loss(context: JobContext[HistorySettings]) -> Start:
    """Rebuild the history, and return the version of `ingest_progress` at which that began.

    Records that are decoded meanwhile are read again and skipped, because each group's state knows its offset.
    """
    context = _with_own_session(context)
    progress = context.warehouse.table(PROGRESS)
    progress.ensure()
    version = progress.versions()[0][0]
    rebuild(context, lambda: context.warehouse)
    return {"version": version}


def refuse_half_rebuilt(warehouse: Warehouse) -> None:
    """Raise HistoryError while a rebuild is running or if one was interrupted."""
    if warehouse.table(POSITIONS).has_rows(f"record_partition = {REBUILDING}"):
        raise HistoryError("a rebuild of the history is running or was interrupted: run grouptrail rebuild history")


def _with_own_session(context: JobContext[HistorySettings]) -> JobContext[HistorySettings]:
    """Return the context with a session of the job's own, whose settings it changes."""
    warehouse = context.warehouse
    return replace(context, warehouse=warehouse.with_spark(own_session(warehouse.session)))


class HistoryBatchWriter:
    """Writes each micro-batch exactly once, also when it is retried: the positions are written last.

    `app` returns the application of the writes (`Once`).
    """

    def __init__(self, context: JobContext[HistorySettings], *, app: Callable[[], str]) -> None:
        self._warehouse = context.warehouse
        self._log = context.log
        self._app = app
        self._folding = Folding.of(context)
        self._names = TopicNames(context.warehouse, context.kafka)
        self._checks = TombstoneChecks(context)
        self._may_be_written = True

    def process(self, progress: pa.Table, batch: int) -> None:
        """Process one micro-batch of rows of `ingest_progress`."""
        started = time.monotonic()
        if not len(progress):
            return
        covered = OffsetRanges.of(progress)
        # The first batch, and one that failed, may have been written before.
        may_be_written, self._may_be_written = self._may_be_written, True
        counts: Mapping[str, int] = {}
        if self._has_work(covered) or (may_be_written and self._has_checks(covered)):
            counts = self._fold(covered, Once(self._app(), batch), may_be_written=may_be_written)
        checked = Once(f"{self._app()}-checked", batch)
        if self._checks.ask(progress, checked):
            counts = self._fold(covered, checked, may_be_written=may_be_written)
        self._may_be_written = False
        self._log(_summary(batch, covered.newest_batch, counts, time.monotonic() - started))

    def _fold(self, covered: OffsetRanges, once: Once, *, may_be_written: bool) -> Mapping[str, int]:
        """Fold the records of a batch that have not been folded, and write the rows; return how many by table."""
        rows = self._fold_on_driver(covered) or self._fold_with_spark(covered)
        try:
            self._write(rows, once)
            # They may have been written before the newest events of brokers' logs.
            if rows.dated is not None and (may_be_written or not rows.log.is_newest()):
                update_rows(self._warehouse, *rows.dated)
        finally:
            rows.close()
        return rows.counts

    def _has_checks(self, covered: OffsetRanges) -> bool:
        return self._warehouse.table(CHECKS).has_rows(f"is_gone AND ({in_ranges(covered.ranges)})")

    def _has_work(self, covered: OffsetRanges) -> bool:
        """Return whether there are records of groups, or incomplete operations that may be complete now.

        Most batches hold only commits, which do not change any group, and Spark takes long to find nothing.
        """
        if covered.of_groups:
            return True
        tombstones = f"is_tombstone AND {covered.condition(self._warehouse.literal)}"
        return self._warehouse.table(POSITIONS).has_rows(is_waiting(covered)) or self._warehouse.table(
            "offset_commits"
        ).has_rows(tombstones)

    def _fold_on_driver(self, covered: OffsetRanges) -> FoldedRows | None:
        """Fold a small batch without Spark, in a quarter of the time; None if Spark has to do it."""
        if self._warehouse.choose(rows=covered.of_groups * ROWS_A_RECORD) != "delta-rs":
            return None
        records = read_records(self._warehouse, covered)
        if records is None:
            return None
        names = self._names.known()
        if covered.group_records:
            names = self._names.look_up(references_in(records))
        states = read_states(self._warehouse, records, covered)
        rows = self._folding.on_driver(pa.concat_tables([records, states]), covered.complete_to, names)
        return rows if self._folding.has_room_for(rows) else None

    def _fold_with_spark(self, covered: OffsetRanges) -> FoldedRows:
        names = self._names.known()
        if covered.group_records:
            names = self._names.look_up(scan_topic_references(self._warehouse, covered))
        records = scan_records(self._warehouse, covered).persist()
        try:
            states = scan_states(self._warehouse, records, covered)
            tasks = records.sparkSession.sparkContext.defaultParallelism
            return self._folding.with_spark(records.unionByName(states), covered.complete_to, names, tasks=tasks)
        finally:
            records.unpersist()

    def _write(self, rows: FoldedRows, once: Once) -> None:
        """Write the tables that have changed rows, at once, and the positions last."""

        def write(table: str) -> None:
            buckets = rows.buckets(table)
            self._warehouse.table(table).upsert(rows.rows(table), buckets, once)

        changed = tuple(rows.counts)
        # What updates rows of memberships by the brokers' log looks for their rebalances.
        last = [table for table in (MEMBERSHIPS, POSITIONS) if rows.log.version is not None or table == POSITIONS]
        with ThreadPoolExecutor(len(TABLES)) as pool:
            list(pool.map(write, [table for table in TABLES if table in changed and table not in last]))
        for table in last:
            if table in changed:
                write(table)


def _summary(batch: int, newest: int, counts: Mapping[str, int], seconds: float) -> str:
    rows = ", ".join(f"{counts[table]:,} {table.replace('_', ' ')}" for table in TABLES if counts.get(table))
    changes = f"{counts.get(POSITIONS, 0):,} groups; {rows or 'nothing new'}"
    return f"history batch {batch}, up to batch {newest} of decode: {changes} in {seconds:.1f} s"
