"""The rollouts of a group: rows of the view `rollouts`, for commands, pages and timelines."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from grouptrail import contracts
from grouptrail.query.views import LATEST, default_values, filled, view_query
from grouptrail.storage.sql import Value
from grouptrail.storage.sql_snapshot import SqlSnapshot

Row = dict[str, Any]

_EARLIEST = datetime.fromtimestamp(0, UTC)
_OF_GROUP = (
    "SELECT *, :seconds(ended_at, started_at) AS seconds FROM (",
    """)
WHERE group_id = :group AND started_at <= :until AND (ended_at IS NULL OR ended_at >= :since)
ORDER BY started_at DESC
""",
)


def rollouts_of(
    tables: SqlSnapshot, group_id: str, *, since: datetime | None = None, until: datetime | None = None
) -> list[Row]:
    """Return the rollouts of a group that were not over before `since` and began up to `until`, the newest first.

    Rows have the columns of the view, and `seconds`, how long each took; None while more members may follow. There
    are none where a table that the view reads does not exist. The engine needs about 0.1 s."""
    view = contracts.views()["rollouts"]
    if not set(view.tables) <= tables.versions.keys():
        return []
    # Values are filled in apart from the view: names may look like its placeholders.
    values: dict[str, Value] = {"group": group_id, "since": since or _EARLIEST, "until": until or LATEST}
    before, after = (filled(part, values) for part in _OF_GROUP)
    return tables.rows(before + view_query(view, tables.warehouse.cluster, default_values(view)) + after)


def name_of_way(way: str | None) -> str:
    """Return the words for a rollout's way; none if it is unknown."""
    return way.replace("_", "-") if way else ""
