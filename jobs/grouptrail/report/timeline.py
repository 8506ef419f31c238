"""`grouptrail timeline`: the history and lag of a group as one HTML file."""

from __future__ import annotations

from datetime import datetime

from grouptrail.report.group_rows import TABLES, GroupRows, read_group
from grouptrail.report.layout import arrange, visible
from grouptrail.report.page import page
from grouptrail.storage.sql_snapshot import SqlSnapshot
from grouptrail.storage.warehouse import Warehouse

SCRIPTS = ("shared", "view", "head", "lanes", "lag", "timeline")
"""The parts of the timeline's script, in their order."""


def timeline_rows(
    warehouse: Warehouse, group_id: str, *, since: datetime | None, until: datetime | None
) -> GroupRows:
    """Return what the page of a group between two times shows; see `read_group` for defaults and errors."""
    return read_group(SqlSnapshot(warehouse, TABLES), group_id, since=since, until=until, has_rollouts=True)


def timeline_page(rows: GroupRows) -> str:
    """Return the page."""
    return page("timeline", SCRIPTS, title=f"{visible(rows.group_id)} – grouptrail", data=arrange(rows))
