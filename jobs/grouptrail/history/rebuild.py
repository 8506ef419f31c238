"""Recompute all group history from the decoded records: with Spark, or without a JVM if there are few."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, Self

import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.console.progress import waiting
from grouptrail.history.batch import (
    READ_OR_WRITTEN,
    BatchSummary,
    ensure_tables,
    fold,
    fresh_records,
    rows_of,
    with_commits,
)
from grouptrail.history.names import TopicNames, known_names, topic_ids
from grouptrail.history.rows import TABLES
from grouptrail.history.tasks import POSITIONS
from grouptrail.history.without_spark import RECORDS_AT_A_TIME, are_supported, few_records, fold_few
from grouptrail.jobs import Progress
from grouptrail.storage import tables
from grouptrail.storage.appending import append_without_spark
from grouptrail.storage.progress import PROGRESS, RANGE_COLUMNS, OffsetRanges
from grouptrail.storage.reader import open_table
from grouptrail.storage.rows import has_columns, select_arrow
from grouptrail.storage.schema import table_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from grouptrail.config import Config

_RECORDS_A_TASK = 250_000

REBUILDING = -1
"""The partition in `history_positions` whose row marks a rebuild that is running or was interrupted."""

# With these limits the driver takes up to 25 s and 1.2 GB (docs/performance.md).
_FEW_RECORDS = 50_000
_FEW_COMMITS = 2_000_000


def rebuild(start_spark: Callable[[], SparkSession], config: Config, report: Progress) -> None:
    """Replace the rows of the history tables by rows made from all decoded records, and report how many.

    Spark is started only if the driver cannot do it alone: see `FewRecords`. The history job must not run meanwhile.
    After an interruption, rebuild again before the job is started.
    """
    started = time.monotonic()
    with waiting("reading the decoded records"):
        found: _Records | None = FewRecords.read(config)
    if found is None:
        spark = start_spark()
        with waiting("reading the decoded records"):
            found = ManyRecords.read(spark, config)
    if found is None:
        report("no records have landed yet: nothing to rebuild")
        return
    report(f"folding {found.count:,} records of groups")
    found.mark(
        {
            "cluster": config.cluster,
            "record_partition": REBUILDING,
            "group_id": "",
            "told_to": 0,
            "waits": False,
            "state": "",
            "open_bucket": 0,
        }
    )
    try:
        with waiting("folding them"):
            rows = found.fold()
        for table in (*TABLES, POSITIONS):
            with waiting(f"writing {table}"):
                found.replace(table)
            report(f"{table}: {rows.get(table, 0):,} rows")
    finally:
        found.close()
    seconds = time.monotonic() - started
    report(f"{found.count:,} records in {seconds:.1f} s, {found.count / seconds:,.0f} a second")


class _Records(Protocol):
    """All decoded records of groups; `count` is their number."""

    count: int

    def mark(self, marker: dict[str, object]) -> None:
        """Add the row to `history_positions` that marks a rebuild."""

    def fold(self) -> dict[str, int]:
        """Compute the rows of all tables; return how many each has."""

    def replace(self, table: str) -> None:
        """Replace the rows of a table."""

    def close(self) -> None:
        """Release what `fold` has computed."""


class FewRecords:
    """So few records that the driver folds them, without a JVM."""

    def __init__(self, config: Config, found: pa.Table, covered: OffsetRanges, names: dict[str, str]) -> None:
        self._config = config
        self._found = found
        self._covered = covered
        self._names = names
        self.count = len(found)

    @classmethod
    def read(cls, config: Config) -> Self | None:
        """Return the records; None if Spark is needed.

        It is needed for no or many records, if a topic id has no name yet, if a table does not exist or lacks a
        column, and in a store that delta-rs does not support.
        """
        if not are_supported(config):
            return None
        if not all(has_columns(open_table(config, name), table_schema(name)) for name in READ_OR_WRITTEN):
            return None
        columns = (*RANGE_COLUMNS, "offset_commits")
        batches = list(select_arrow(config, PROGRESS, columns, "", rows_at_a_time=RECORDS_AT_A_TIME))
        if not batches:
            return None
        progress = pa.concat_tables(batches)
        covered = OffsetRanges.of(progress)
        if covered.of_groups > _FEW_RECORDS or pc.sum(progress["offset_commits"]).as_py() > _FEW_COMMITS:
            return None
        names = known_names(None, config)
        found = few_records(config, covered)
        if found is None or not names.keys() >= topic_ids(found["body"].to_pylist()):
            return None
        return cls(config, found, covered, names)

    def mark(self, marker: dict[str, object]) -> None:
        append_without_spark(self._config, POSITIONS, [marker])

    def fold(self) -> dict[str, int]:
        self._rows = fold_few(self._found, self._covered.complete_to, self._names, self._config)
        return self._rows.counts

    def replace(self, table: str) -> None:
        tables.replace_few(with_commits(self._rows.taken(table), table, self._config), self._config, table)

    def close(self) -> None:
        """Each table's rows were released as they were written."""


class ManyRecords:
    """Any number of records, folded by Spark."""

    def __init__(self, spark: SparkSession, config: Config, found: DataFrame, covered: OffsetRanges) -> None:
        self._spark = spark
        self._config = config
        self._found = found
        self._covered = covered
        self._names = TopicNames(spark, config).of(found)
        self.count = found.count()

    @classmethod
    def read(cls, spark: SparkSession, config: Config) -> Self | None:
        """Return the records, after creating the tables that do not exist; None if nothing has landed."""
        ensure_tables(spark, config)
        covered = OffsetRanges.of(tables.read(spark, config, PROGRESS).select(*RANGE_COLUMNS).toArrow())
        return cls(spark, config, fresh_records(spark, config, covered), covered) if covered.ranges else None

    def mark(self, marker: dict[str, object]) -> None:
        tables.append_new(self._spark, [marker], self._config, POSITIONS)

    def fold(self) -> dict[str, int]:
        tasks = max(self._spark.sparkContext.defaultParallelism, self.count // _RECORDS_A_TASK + 1)
        changed = fold(self._found, self._covered.complete_to, self._names, self._config, tasks)
        self._changed = changed.persist()
        self._summary = BatchSummary.of(self._changed)
        return self._summary.rows

    def replace(self, table: str) -> None:
        tables.replace(rows_of(self._changed, table, self._summary, self._config), self._config, table)

    def close(self) -> None:
        self._changed.unpersist()
