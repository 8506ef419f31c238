"""When each group committed last, by the newest of `committed_offsets` and `offset_commits`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from grouptrail.query.views import filled
from grouptrail.storage.sql import Value
from grouptrail.storage.sql_snapshot import SqlSnapshot

TABLES = ("committed_offsets", "offset_commits")

# `committed_offsets` is rewritten every minute; the clocks of coordinators may differ.
_OVERLAP = timedelta(hours=1)
_REWRITTEN_TO = "SELECT max(record_at) AS at FROM committed_offsets WHERE cluster = :cluster"
_COMMITS = {
    "committed_offsets": "cluster = :cluster",
    # Older ones need not be read.
    "offset_commits": "cluster = :cluster AND record_at >= :since AND NOT is_tombstone",
}
_LAST = "SELECT group_id, CAST(max(at) AS BIGINT) AS last_commit FROM ({commits}) GROUP BY group_id"


def last_commits(tables: SqlSnapshot, cluster: str) -> dict[str, int]:
    """Return the time of each group's last commit, in microseconds since 1970.

    `tables` has those of `TABLES` that exist. A group without committed offsets, such as a deleted one, is missing
    unless it committed shortly before the newest commit."""
    there = [name for name in TABLES if name in tables.versions]
    if not there:
        return {}
    values: dict[str, Value] = {"cluster": cluster, "since": datetime.fromtimestamp(0, UTC)}
    if TABLES[0] in there and (at := tables.rows(filled(_REWRITTEN_TO, values))[0]["at"]):
        values["since"] = datetime.fromisoformat(at) - _OVERLAP
    commits = " UNION ALL ".join(
        f"SELECT group_id, coalesce(commit_at, record_at) AS at FROM {name} WHERE {_COMMITS[name]}" for name in there
    )
    rows = tables.rows(filled(_LAST.format(commits=commits), values))
    return {row["group_id"]: row["last_commit"] for row in rows}
