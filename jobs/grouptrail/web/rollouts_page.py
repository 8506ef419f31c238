"""The rollouts of a group, which its page loads after itself: they take longer to compute than all else on it."""

from __future__ import annotations

from typing import Any

from grouptrail import contracts
from grouptrail.query.rollouts import rollouts_of
from grouptrail.storage.sql_snapshot import SqlSnapshot
from grouptrail.web.answers import Rollout, Rollouts, RolloutsQuery
from grouptrail.web.group_index import GroupIndex
from grouptrail.web.group_page import unknown_group

Row = dict[str, Any]

MOST_ROLLOUTS = 500


def rollouts_page(index: GroupIndex, group_id: str, query: RolloutsQuery) -> Rollouts:
    """Return the rollouts of a group. Raises PageError for an unknown one."""
    cluster = index.cluster_of("group_id", group_id, query.cluster)
    tables = SqlSnapshot(index.served(cluster).warehouse, contracts.views()["rollouts"].tables)
    rows = rollouts_of(tables, group_id, since=query.since, until=query.until)
    known = index.of(cluster)
    if not rows and index.summary(cluster, group_id) is None and known.deleted_at(group_id) is None:
        raise unknown_group(group_id, known)
    shown = [{name: row[name] for name in Rollout.model_fields} for row in rows[:MOST_ROLLOUTS]]
    return Rollouts(
        cluster=cluster,
        group_id=group_id,
        total=len(rows),
        rollouts=[Rollout.model_validate(row) for row in shown],
    )
