"""`grouptrail rebuild history`: recomputes all group history from the decoded records."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from grouptrail.history.job import (
    PROGRESS,
    REBUILDING,
    BatchSummary,
    OffsetRanges,
    ensure_tables,
    fold,
    fresh_records,
    rows_of,
)
from grouptrail.history.names import TopicNames
from grouptrail.history.rows import TABLES
from grouptrail.history.tasks import POSITIONS
from grouptrail.runtime.lease import sole_driver
from grouptrail.spark.session import start_session
from grouptrail.storage import tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from grouptrail.config import Config

_RECORDS_A_TASK = 250_000


def rebuild_history(config: Config, report: Callable[[str], None] = print) -> None:
    """Puts rows made from all decoded records in place of the history tables' rows, and reports how many.

    The job goes on from there. It must not run meanwhile; broken off, run it again before the job.
    """
    spark = start_session(config, "grouptrail-rebuild-history", report)
    try:
        with sole_driver(spark, config, ["history"], report):
            rebuild(spark, config, report)
    finally:
        spark.stop()


def rebuild(spark: SparkSession, config: Config, report: Callable[[str], None]) -> None:
    """As `rebuild_history`, in a session that is there."""
    started = time.monotonic()
    ensure_tables(spark, config)
    covered = OffsetRanges.of(tables.read(spark, config, PROGRESS))
    if not covered.ranges:
        report("no records have landed yet: nothing to rebuild")
        return
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
        found = BatchSummary.of(changed)
        for table in (*TABLES, POSITIONS):
            tables.replace(rows_of(changed, table, found, config), config, table)
            report(f"{table}: {found.rows.get(table, 0):,} rows")
    finally:
        changed.unpersist()
    seconds = time.monotonic() - started
    report(f"{count:,} records in {seconds:.1f} s, {count / seconds:,.0f} a second")
