"""Fold the decoded records of a range of offsets into rows of the history tables, with Spark."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.history import records
from grouptrail.history.handovers import HandoverSpan, fill_commits, fill_commits_with_spark
from grouptrail.history.names import TABLE as NAMES
from grouptrail.history.rows import TABLES
from grouptrail.history.tasks import POSITIONS, fold_groups, output_ddl
from grouptrail.storage import tables
from grouptrail.storage.progress import PROGRESS, OffsetRanges
from grouptrail.storage.rows import dataset
from grouptrail.storage.sql import datafusion_literal

if TYPE_CHECKING:
    import pyarrow.dataset as ds
    from pyspark.sql import DataFrame, SparkSession

    from grouptrail.config import Config

DECODED = ("offset_commits", "group_metadata", "group_records")

READ_OR_WRITTEN = (*DECODED, PROGRESS, *TABLES, NAMES, POSITIONS)

_RECORDS_AT_A_TIME = 2_048


def ensure_tables(spark: SparkSession, config: Config) -> None:
    """Create every table that the job reads or writes, so that it can start before the decode job."""
    tables.ensure_tables(spark, config, READ_OR_WRITTEN)


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
    if not covered.group_records:
        return found
    return found.unionByName(records.other_records(covered.rows(tables.read(spark, config, "group_records"))))


def fold(
    group_records: DataFrame, complete_to: dict[int, int], names: dict[str, str], config: Config, tasks: int
) -> DataFrame:
    """Return the changed rows of all tables (`tasks.output_ddl`)."""
    # A classic group's record holds all its members: Spark's default batch of them would fill a worker's memory.
    group_records.sparkSession.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", _RECORDS_AT_A_TIME)
    folds = fold_groups(complete_to, names, retention_ms(config))
    return records.by_group(group_records, tasks).mapInArrow(folds, output_ddl())


def waiting(covered: OffsetRanges) -> str:
    """Return the condition on `history_positions` for groups with an incomplete operation."""
    return f"waits AND record_partition IN ({', '.join(map(str, covered.ranges))})"


def retention_ms(config: Config) -> int:
    """Return how long the brokers keep the offsets of an empty group."""
    return round(config.history.offsets_retention_minutes * 60_000)


def rows_of(changed: DataFrame, table: str, found: BatchSummary, config: Config) -> DataFrame:
    """Return one table's rows among those that changed."""
    rows = changed.where(changed["of"] == table).select(f"{table}.*")
    if table != "rebalances" or found.handovers is None:
        return rows
    commits = tables.read(changed.sparkSession, config, "offset_commits")
    return fill_commits_with_spark(rows, found.handovers, commits, _lookback(config))


def few_rows_of(changed: pa.Table, table: str, config: Config) -> pa.Table:
    """Return the same as `rows_of` from Arrow."""
    return with_commits(own_rows(changed, table), table, config)


def own_rows(changed: pa.Table, table: str) -> pa.Table:
    """Return one table's rows among those that changed, before `with_commits`."""
    return pa.Table.from_struct_array(changed.filter(pc.equal(changed["of"], table))[table])


def with_commits(rows: pa.Table, table: str, config: Config) -> pa.Table:
    """Fill the commits of handovers in rows of `rebalances`; return those of other tables as they are."""
    if table != "rebalances":
        return rows

    def commits(first: datetime, last: datetime) -> ds.Dataset:
        among = f"record_at BETWEEN {datafusion_literal(first)} AND {datafusion_literal(last)}"
        return dataset(config, "offset_commits", among)

    return fill_commits(rows, commits, config.cluster, _lookback(config))


def _lookback(config: Config) -> timedelta:
    return timedelta(minutes=config.history.commit_lookback_minutes)
