"""Lag summarized by group and status: what the metrics of groups need of all partitions of a group.

Summaries of several parts of a sample can be combined, and so can those of many groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from grouptrail import contracts

_STATUSES = contracts.statuses()  # from the worst to the best
_HOW: Mapping[str, str] = {
    "positions": "sum",
    "lag": "sum",
    "max_lag": "max",
    "lag_seconds": "max",
    "most_lag_seconds": "max",
    "catch_up_seconds": "max",
    "time_to_loss_seconds": "min",
    "commit_at": "max",
    "consume_rate": "sum",
    "lost_records": "sum",
    "awaiting_redelivery": "sum",
    "most_deliveries": "max",
    "lag_is_least": "any",
    "lag_seconds_is_least": "any",
}

SUMMARY = pa.schema(
    {
        "group_id": pa.string(),
        "status": pa.string(),
        "positions": pa.int64(),
        "lag": pa.int64(),
        "max_lag": pa.int64(),
        "lag_seconds": pa.float64(),
        "most_lag_seconds": pa.float64(),
        "catch_up_seconds": pa.float64(),
        "time_to_loss_seconds": pa.float64(),
        "commit_at": pa.timestamp("us", "UTC"),
        "consume_rate": pa.float64(),
        "lost_records": pa.int64(),
        "awaiting_redelivery": pa.int64(),
        "most_deliveries": pa.int64(),
        "lag_is_least": pa.bool_(),
        "lag_seconds_is_least": pa.bool_(),
    }
)
"""The columns of a summary, which has a row for each group and status of its positions (topic and partition).

`positions` is their number, `lag`, `consume_rate`, `lost_records` and `awaiting_redelivery` (null but in share
groups) are sums, `time_to_loss_seconds` is a minimum, and each other number is a maximum; `most_lag_seconds` that of
`lag_seconds` with its error. `lag_is_least` and `lag_seconds_is_least` say that some position's is unknown, or in
seconds only bounded. `lost_records` is null where a sample is too large to hold."""


EXTENT = pa.schema({"group_id": pa.string(), "topic": pa.string(), "positions": pa.int64()})
"""The columns of an extent, which has the number of positions of each group and topic."""


def summarize(lag: pa.Table) -> pa.Table:
    """Return the summary of rows with the columns of `consumer_lag`, at most one for each position of a group."""
    has_lost = "lost_records" in lag.column_names
    error = error_bound(lag)
    columns = {
        "group_id": lag["group_id"],
        "status": lag["status"],
        "positions": pa.repeat(1, len(lag)),
        "lag": lag["lag"],
        "max_lag": lag["lag"],
        "lag_seconds": lag["lag_seconds"],
        "most_lag_seconds": pc.add(lag["lag_seconds"], error),
        "catch_up_seconds": catch_up(lag),
        "time_to_loss_seconds": lag["time_to_loss_seconds"],
        "commit_at": lag["commit_at"],
        "consume_rate": lag["consume_rate"],
        "lost_records": lag["lost_records"] if has_lost else pa.nulls(len(lag), pa.int64()),
        "awaiting_redelivery": lag["awaiting_redelivery"],
        "most_deliveries": pc.cast(lag["most_deliveries"], pa.int64()),
        "lag_is_least": pc.is_null(lag["lag"]),
        "lag_seconds_is_least": pc.or_(pc.is_null(lag["lag_seconds"]), pc.fill_null(pc.is_inf(error), False)),
    }
    return combine(pa.table(columns))


def combine(summary: pa.Table, by: Sequence[str] = ("group_id", "status")) -> pa.Table:
    """Return one row for each value of the columns `by`."""
    rows = summary.group_by(list(by), use_threads=False).aggregate(list(_HOW.items()))
    names = [*by, *_HOW]
    rows = rows.select([*by, *(f"{name}_{how}" for name, how in _HOW.items())]).rename_columns(names)
    return rows.cast(pa.schema([SUMMARY.field(name) for name in names]))


def worst_by_group(summary: pa.Table) -> pa.Table:
    """Return one row for each group of a summary, with its worst status; `partitions` are its positions."""
    groups = combine(summary, by=["group_id"])
    ranked = summary.append_column("rank", pc.index_in(summary["status"], pa.array(_STATUSES)))
    # Both have the groups in the order in which they appear.
    worst = ranked.group_by("group_id", use_threads=False).aggregate([("rank", "min")])["rank_min"]
    names = ["partitions" if name == "positions" else name for name in groups.column_names]
    return groups.rename_columns(names).append_column("status", pc.take(pa.array(_STATUSES), worst))


def extent(lag: pa.Table) -> pa.Table:
    """Return the extent of rows with the columns of `consumer_lag`, at most one for each position of a group."""
    return lag.group_by(["group_id", "topic"]).aggregate([([], "count_all")]).rename_columns(EXTENT.names)


def error_bound(lag: pa.Table) -> pa.Array:
    """Return the error bound: infinite if only the minimum of `lag_seconds` is known; the table has null there."""
    bounded = pc.and_(pc.is_valid(lag["lag_seconds"]), pc.is_null(lag["lag_seconds_error"]))
    return pc.if_else(bounded, float("inf"), lag["lag_seconds_error"])


def catch_up(lag: pa.Table) -> pa.Array:
    """Return the time to catch up, infinite if both rates are known and lag does not fall (null in the table)."""
    rates_known = pc.and_(pc.is_valid(lag["consume_rate"]), pc.is_valid(lag["produce_rate"]))
    never = pc.and_(pc.is_null(lag["catch_up_seconds"]), pc.and_(rates_known, pc.greater(lag["lag"], 0)))
    return pc.if_else(pc.fill_null(never, False), float("inf"), lag["catch_up_seconds"])
