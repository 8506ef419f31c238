"""Table metadata derived from a contract, for every engine that creates tables."""

from __future__ import annotations

from grouptrail.contracts import Column, Table

COMMITS_A_CHECKPOINT = 10
"""So many files of the log are read at most, whenever a table is opened."""

CHECKPOINT_INTERVAL = "delta.checkpointInterval"
STATS_COLUMNS = "delta.dataSkippingStatsColumns"


def meaning(column: Column) -> str:
    """Return the comment of a column."""
    return column.about if column.null_means is None else f"{column.about}; null: {column.null_means}"


def properties(table: Table) -> dict[str, str]:
    """Return Delta's properties of a table."""
    stats = (column.name for column in table.columns if column.stats and column.name not in table.partition_by)
    return {
        STATS_COLUMNS: ",".join(stats),
        CHECKPOINT_INTERVAL: str(COMMITS_A_CHECKPOINT),
    }
