"""Recompute all group history from the decoded records."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from grouptrail.console.progress import waiting
from grouptrail.history.batch import BatchSummary, ensure_tables, fold, fresh_records, rows_of
from grouptrail.history.names import TopicNames
from grouptrail.history.rows import TABLES
from grouptrail.history.tasks import POSITIONS
from grouptrail.jobs import Progress
from grouptrail.storage import tables
from grouptrail.storage.progress import PROGRESS, OffsetRanges

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from grouptrail.config import Config

_RECORDS_A_TASK = 250_000

REBUILDING = -1
"""The partition in `history_positions` whose row marks a rebuild that is running or was interrupted."""


def rebuild(spark: SparkSession, config: Config, report: Progress) -> None:
    """Replace the rows of the history tables by rows made from all decoded records, and report how many.

    The history job must not run meanwhile. After an interruption, rebuild again before the job is started.
    """
    started = time.monotonic()
    ensure_tables(spark, config)
    covered = OffsetRanges.of(tables.read(spark, config, PROGRESS))
    if not covered.ranges:
        report("no records have landed yet: nothing to rebuild")
        return
    with waiting("reading the decoded records"):
        everything = fresh_records(spark, config, covered)
        names = TopicNames(spark, config).of(everything)
        count = everything.count()
    report(f"folding {count:,} records of groups")
    marker = [
        {
            "cluster": config.cluster,
            "record_partition": REBUILDING,
            "group_id": "",
            "told_to": 0,
            "waits": False,
            "state": "",
            "open_bucket": 0,
        }
    ]
    tables.append_new(spark, marker, config, POSITIONS)
    tasks = max(spark.sparkContext.defaultParallelism, count // _RECORDS_A_TASK + 1)
    changed = fold(everything, covered.complete_to, names, config, tasks).persist()
    try:
        with waiting("folding them"):
            found = BatchSummary.of(changed)
        for table in (*TABLES, POSITIONS):
            with waiting(f"writing {table}"):
                tables.replace(rows_of(changed, table, found, config), config, table)
            report(f"{table}: {found.rows.get(table, 0):,} rows")
    finally:
        changed.unpersist()
    seconds = time.monotonic() - started
    report(f"{count:,} records in {seconds:.1f} s, {count / seconds:,.0f} a second")
