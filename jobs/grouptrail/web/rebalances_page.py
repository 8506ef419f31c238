"""The page of the rebalances of all groups."""

from __future__ import annotations

from datetime import timedelta

from grouptrail.query.views import filled
from grouptrail.storage.sql import Value
from grouptrail.storage.sql_snapshot import SqlSnapshot
from grouptrail.web.answers import GroupRebalance, Rebalances, RebalancesQuery
from grouptrail.web.group_index import GroupIndex, page_of_list
from grouptrail.web.requests import of_cluster

_DAY = timedelta(days=1)
_FROM = """
FROM rebalances
WHERE cluster = :cluster AND at >= :since AND at <= :until AND group_id ILIKE :group
"""
_CAUSES = f"""
SELECT cause, count(*) AS rebalances
{_FROM}
GROUP BY cause
ORDER BY rebalances DESC, cause
"""
_OF_CAUSE = "AND (:cause = '' OR cause = :cause)"
_COUNTS = f"""
SELECT count(*) AS total, count(DISTINCT group_id) AS groups
{_FROM} {_OF_CAUSE}
"""
_PAGE = f"""
SELECT
  group_id, group_kind, at, from_generation, to_generation, cause, certainty, cause_note,
  array_length(members_joined) AS members_joined, array_length(members_left) AS members_left, partitions_moved,
  duration_ms, duration_of
{_FROM} {_OF_CAUSE}
ORDER BY at DESC, group_id, record_offset DESC
LIMIT :count OFFSET :before
"""


def rebalances_page(index: GroupIndex, query: RebalancesQuery) -> Rebalances:
    """Return the rebalances that a query selects: one page of them."""
    clusters = {name: index.served(name) for name in index.clusters}
    served = of_cluster(clusters, query.cluster or index.clusters[0])
    known = index.of(served.name)
    until = known.end_of(query.until)
    since = query.since or until - _DAY
    tables = SqlSnapshot(served.warehouse, ("rebalances",))
    values: dict[str, Value] = {
        "cluster": served.name,
        "since": since,
        "until": until,
        "group": _like(query.group),
        "cause": query.cause,
    }
    has_rows = "rebalances" in tables.versions
    causes = tables.rows(filled(_CAUSES, values)) if has_rows else []
    counts = tables.rows(filled(_COUNTS, values))[0] if has_rows else {"total": 0, "groups": 0}
    shown = page_of_list(counts["total"], query.page, query.per_page)
    places: dict[str, Value] = {"count": query.per_page, "before": shown.before}
    rows = tables.rows(filled(_PAGE, values | places)) if counts["total"] else []
    return Rebalances(
        notices=list(known.notices),
        cluster=served.name,
        clusters=index.clusters,
        since=since,
        until=until,
        causes={row["cause"]: row["rebalances"] for row in causes},
        **counts,
        page=shown.page,
        pages=shown.pages,
        rebalances=[GroupRebalance(**row, is_deleted=known.deleted_at(row["group_id"]) is not None) for row in rows],
    )


def _like(wanted: str) -> str:
    """Return a shell pattern with * and ?, or a part of a name, as a pattern of SQL."""
    escaped = wanted.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    is_pattern = "*" in wanted or "?" in wanted
    return escaped.replace("*", "%").replace("?", "_") if is_pattern else f"%{escaped}%"
