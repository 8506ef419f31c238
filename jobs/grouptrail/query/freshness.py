"""How old the newest data of a cluster are, and the words for it where they do not show the present."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from grouptrail.query.errors import QueryError
from grouptrail.query.formats import duration
from grouptrail.query.views import filled, utc_now
from grouptrail.storage.sql_snapshot import SqlSnapshot
from grouptrail.storage.warehouse import Warehouse

LAG = {"consumer_lag": "sampled_at"}
RECORDED = LAG | {"ingest_progress": "landed_at"}
"""The tables that a running pipeline keeps adding to, with the time of a row by grouptrail's own clock."""

_STALE_SECONDS = 300
_STALE_INTERVALS = 3
_NEWEST = "SELECT max({column}) AS at FROM {table} WHERE cluster = :cluster"
_SINCE = "SELECT {column} AS at FROM {table} WHERE cluster = :cluster AND {column} >= :since LIMIT 1"


def stale_seconds(sample_seconds: float) -> float:
    """Return the age from which the newest data no longer show the present.

    `sample_seconds` is the time between samples of the logs (`log_offsets.interval_seconds`)."""
    return max(_STALE_SECONDS, _STALE_INTERVALS * sample_seconds)


def is_stale(sample_seconds: float, newest: datetime, until: datetime | None = None) -> bool:
    """Return whether the newest data are too old to show a time, by default the present."""
    return (until or utc_now()) - newest > timedelta(seconds=stale_seconds(sample_seconds))


def as_of(newest: datetime) -> str:
    """Return the time of the newest data and their age: `as of 2026-03-04 12:02:00 UTC (1 h 28 min ago)`."""
    return f"as of {newest:%Y-%m-%d %H:%M:%S} UTC ({duration((utc_now() - newest).total_seconds())} ago)"


def stale_text(newest: datetime) -> str:
    """Return the line that goes with data that are too old."""
    return f"{as_of(newest)}: nothing has been recorded since, see whether `grouptrail run` runs"


def newest_times(
    tables: SqlSnapshot, cluster: str, columns: Mapping[str, str] = RECORDED, *, since: datetime | None = None
) -> dict[str, datetime]:
    """Return the time of the cluster's newest row in each table, by its time column; only of those that have one.

    With `since`, that of any row since then, for which few files are read."""
    sql = _NEWEST if since is None else _SINCE
    newest = {
        name: tables.rows(filled(sql.format(table=name, column=column), {"cluster": cluster, "since": since or ""}))
        for name, column in columns.items()
        if name in tables.versions
    }
    return {name: datetime.fromisoformat(rows[0]["at"]) for name, rows in newest.items() if rows and rows[0]["at"]}


def stale_note(
    warehouse: Warehouse, sample_seconds: float, until: datetime | None = None, *, of_lag: bool = False
) -> str | None:
    """Return `stale_text` if the newest data, or samples of lag, are too old to show a time; by default the present.

    None if they are not, and if there are none.
    """
    if not warehouse.is_readable_without_spark:
        return None
    columns = LAG if of_lag else RECORDED
    since = (until or utc_now()) - timedelta(seconds=stale_seconds(sample_seconds))
    try:
        tables = SqlSnapshot(warehouse, columns)
        if newest_times(tables, warehouse.cluster, columns, since=since):
            return None
        newest = newest_times(tables, warehouse.cluster, columns)
    except QueryError as error:
        return f"it is not known how old this is: {error}"
    return stale_text(max(newest.values())) if newest else None
