"""Table metadata derived from a contract, for every engine that creates tables."""

from __future__ import annotations

from grouptrail.contracts import Column, Table

COMMITS_A_CHECKPOINT = 10
"""So many files of the log are read at most, whenever a table is opened."""

CHECKPOINT_INTERVAL = "delta.checkpointInterval"

# Checkpoints of tables without partitions are written by `delta.Append`. Spark's take seconds of a core and are for
# the removal of old logs.
_COMMITS_OF_SPARK = 100


def meaning(column: Column) -> str:
    """Return the comment of a column."""
    return column.about if column.null_means is None else f"{column.about}; null: {column.null_means}"


def spark_properties(table: Table) -> dict[str, str]:
    """Return Delta's properties of a table that Spark writes."""
    return properties(table) | ({} if table.partition_by else {CHECKPOINT_INTERVAL: str(_COMMITS_OF_SPARK)})


def properties(table: Table) -> dict[str, str]:
    """Return Delta's properties of a table."""
    stats = (column.name for column in table.columns if column.stats and column.name not in table.partition_by)
    return {
        "delta.dataSkippingStatsColumns": ",".join(stats),
        CHECKPOINT_INTERVAL: str(COMMITS_A_CHECKPOINT),
    }
