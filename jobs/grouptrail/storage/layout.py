"""Table metadata derived from a contract, for every engine that creates tables."""

from __future__ import annotations

from grouptrail.contracts import Column, Table

# Spark's own default; with that of delta-rs, 100, up to 100 files are read whenever a table is opened.
_COMMITS_A_CHECKPOINT = 10


def meaning(column: Column) -> str:
    """Return the comment of a column."""
    return column.about if column.null_means is None else f"{column.about}; null: {column.null_means}"


def properties(table: Table) -> dict[str, str]:
    """Return Delta's properties of a table."""
    stats = (column.name for column in table.columns if column.stats and column.name not in table.partition_by)
    return {
        "delta.dataSkippingStatsColumns": ",".join(stats),
        "delta.checkpointInterval": str(_COMMITS_A_CHECKPOINT),
    }
