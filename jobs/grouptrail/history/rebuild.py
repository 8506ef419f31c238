"""Recompute all group history from the decoded records: with Spark, or without a JVM if there are few."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.console.progress import waiting
from grouptrail.history.broker_log_update import update_rows
from grouptrail.history.fold_input import (
    RECORDS_AT_A_TIME,
    count_records,
    read_records,
    scan_records,
    scan_topic_references,
)
from grouptrail.history.folded_rows import FoldedRows
from grouptrail.history.folding import ROWS_A_RECORD, Folding
from grouptrail.history.names import TopicNames, known_names, references_in
from grouptrail.history.rows import TABLES
from grouptrail.history.tasks import POSITIONS, REBUILDING
from grouptrail.jobs import HISTORY, JobContext
from grouptrail.storage.progress import PROGRESS, RANGE_COLUMNS, OffsetRanges
from grouptrail.storage.rows import has_columns

if TYPE_CHECKING:
    from grouptrail.config.job_settings import HistorySettings
    from grouptrail.storage.warehouse import Warehouse

READ_OR_WRITTEN = (*HISTORY.reads, *HISTORY.writes)

ROWS_A_COMMIT = 2.5
"""How many rows can be written in the time in which a commit is searched for handovers (`storage.engines.choice`).

With 50,000 records, or 2,000,000 commits, the driver takes up to 25 s and 1.2 GB (docs/performance.md).
"""

_RECORDS_A_TASK = 250_000


def rebuild(context: JobContext[HistorySettings], start_spark: Callable[[], Warehouse]) -> None:
    """Replace the rows of the history tables by rows made from all decoded records, and log how many.

    `start_spark` returns the warehouse with a session; it is called only if the driver cannot do it alone. The
    history job must not run meanwhile. After an interruption, rebuild again before the job is started.
    """
    started = time.monotonic()
    log = context.log
    with waiting("reading the decoded records"):
        records = read_on_driver(context)
    if records is None:
        context = replace(context, warehouse=start_spark())
        with waiting("reading the decoded records"):
            records = _read_with_spark(context)
    if records is None:
        log("no records have landed yet: nothing to rebuild")
        return
    log(f"folding {records.count:,} records of groups")
    _mark(context.warehouse)
    with waiting("folding them"):
        rows = records.fold()
    try:
        counts = rows.counts
        for table in (*TABLES, POSITIONS):
            with waiting(f"writing {table}"):
                context.warehouse.table(table).replace(rows.rows(table))
            log(f"{table}: {counts.get(table, 0):,} rows")
        if rows.dated is not None and not rows.log.is_newest():
            update_rows(context.warehouse, *rows.dated)
    finally:
        rows.close()
    seconds = time.monotonic() - started
    log(f"{records.count:,} records in {seconds:.1f} s, {records.count / seconds:,.0f} a second")


@dataclass(frozen=True)
class AllRecords:
    """All decoded records of groups: how many there are, and their fold."""

    count: int
    fold: Callable[[], FoldedRows]


def read_on_driver(context: JobContext[HistorySettings]) -> AllRecords | None:
    """Return the records; None if Spark is needed.

    It is needed for no or many records, if a topic id has no name yet, if a table does not exist or lacks a column,
    and in a store that delta-rs does not support.
    """
    warehouse = context.warehouse
    if not warehouse.is_readable_without_spark:
        return None
    if not all(has_columns(table.open(), table.schema) for table in warehouse.tables(READ_OR_WRITTEN)):
        return None
    columns = (*RANGE_COLUMNS, "offset_commits")
    batches = list(warehouse.table(PROGRESS).select_arrow(columns, rows_at_a_time=RECORDS_AT_A_TIME))
    if not batches:
        return None
    progress = pa.concat_tables(batches)
    covered = OffsetRanges.of(progress)
    commits = pc.sum(progress["offset_commits"]).as_py()
    work = max(covered.of_groups * ROWS_A_RECORD, round(commits * ROWS_A_COMMIT))
    records = read_records(warehouse, covered) if warehouse.choose(rows=work) == "delta-rs" else None
    if records is None:
        return None
    names = known_names(warehouse)
    references = references_in(records)
    if not names.keys() >= set(references["topic_id"].to_pylist()):
        return None
    folding = Folding.of(context)
    return AllRecords(len(records), lambda: folding.on_driver(records, covered.complete_to, names))


def _read_with_spark(context: JobContext[HistorySettings]) -> AllRecords | None:
    """Return the records, after creating the tables that do not exist; None if no records have been decoded."""
    warehouse = context.warehouse
    warehouse.ensure(READ_OR_WRITTEN)
    covered = OffsetRanges.of(warehouse.table(PROGRESS).dataframe().select(*RANGE_COLUMNS).toArrow())
    if not covered.ranges:
        return None
    names = TopicNames(warehouse, context.kafka)
    if covered.group_records:
        names.look_up(scan_topic_references(warehouse, covered))
    count = count_records(warehouse, covered)
    tasks = max(warehouse.session.sparkContext.defaultParallelism, count // _RECORDS_A_TASK + 1)

    def fold() -> FoldedRows:
        records = scan_records(warehouse, covered)
        return Folding.of(context).with_spark(records, covered.complete_to, names.known(), tasks=tasks)

    return AllRecords(count, fold)


def _mark(warehouse: Warehouse) -> None:
    """Add the row to `history_positions` that marks a rebuild."""
    marker = {
        "record_partition": REBUILDING,
        "group_id": "",
        "processed_to": 0,
        "waits": False,
        "state": "",
        "open_bucket": 0,
    }
    warehouse.table(POSITIONS).append_rows([marker])
