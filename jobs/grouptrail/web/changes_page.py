"""The page of what has changed in a cluster since a time."""

from __future__ import annotations

from datetime import timedelta
from http import HTTPStatus

from grouptrail import contracts
from grouptrail.query.views import expand, utc_now, view_query
from grouptrail.storage.sql_snapshot import SqlSnapshot
from grouptrail.web.answers import Changes, ChangesQuery, GroupChange, NewestRollout
from grouptrail.web.group_index import ClusterGroups, GroupIndex, page_of_list
from grouptrail.web.requests import PageError, of_cluster

_HOUR = timedelta(hours=1)
_TABLES = tuple({name for view in ("group_changes", "rollouts") for name in contracts.views()[view].tables})
_NEWEST_ROLLOUT = "SELECT group_id, started_at FROM rollouts ORDER BY started_at DESC, group_id LIMIT 1"


def changes_page(index: GroupIndex, query: ChangesQuery) -> Changes:
    """Return the groups that are not as they were, the most worrying first: one page of them.

    Raises PageError if the time is not before now, and if there is no rollout to compare with."""
    clusters = {name: index.served(name) for name in index.clusters}
    served = of_cluster(clusters, query.cluster or index.clusters[0])
    known = index.of(served.name)
    tables = SqlSnapshot(served.warehouse, _TABLES)
    rollout = _newest_rollout(tables, served.name) if query.since == "deploy" else None
    since = rollout.started_at if rollout is not None else query.since or utc_now() - _HOUR
    until = known.end_of(None)
    if since == "deploy" or since >= until:
        raise PageError(HTTPStatus.NOT_FOUND, _nothing_to_compare(known, is_deploy=since == "deploy"))
    changes = []
    if set(contracts.views()["group_changes"].tables) <= tables.versions.keys():
        sql = view_query(contracts.views()["group_changes"], served.name, {"time": since})
        changes = [GroupChange.model_validate(row) for row in tables.rows(sql)]
    changes.sort(key=_least_worrying)
    shown = page_of_list(len(changes), query.page, query.per_page)
    return Changes(
        notices=list(known.notices),
        cluster=served.name,
        clusters=index.clusters,
        since=since,
        until=until,
        is_stale=known.is_stale,
        rollout=rollout,
        total=len(changes),
        page=shown.page,
        pages=shown.pages,
        changes=changes[shown.before : shown.before + query.per_page],
    )


def _newest_rollout(tables: SqlSnapshot, cluster: str) -> NewestRollout | None:
    if not set(contracts.views()["rollouts"].tables) <= tables.versions.keys():
        return None
    rows = tables.rows(expand(_NEWEST_ROLLOUT, cluster).text)
    return NewestRollout.model_validate(rows[0]) if rows else None


def _nothing_to_compare(known: ClusterGroups, *, is_deploy: bool) -> str:
    if is_deploy:
        return f"no rollout of a group is known in cluster {known.cluster}: give a time, such as ?since=24h"
    newest = "now" if known.as_of is None else f"the newest data, {known.as_of:%Y-%m-%d %H:%M:%S} UTC"
    return f"the time is not before {newest}: give an earlier one"


def _least_worrying(change: GroupChange) -> tuple[int, bool, int, str]:
    """Return the order of a change: by how much the verdict is worse, deleted groups, rebalances."""
    worse = (change.severity or 0) - (change.severity_then or 0) if change.status and change.status_then else 0
    return -worse, change.vanished_at is None, -change.rebalances, change.group_id
