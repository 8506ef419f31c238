"""`grouptrail timeline`: the picture of a group's history and lag as one HTML file."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from grouptrail.report.layout import arrange, visible
from grouptrail.report.page import page
from grouptrail.report.rows import read_group

if TYPE_CHECKING:
    from grouptrail.config import Config

_SCRIPTS = ("shared", "view", "head", "lanes", "lag", "timeline")


def timeline_page(config: Config, group_id: str, *, since: datetime | None, until: datetime | None) -> str:
    """The page of a group between two times; by default of its last day. Raises QueryError as `read_group` does."""
    found = read_group(config, group_id, since=since, until=until)
    return page("timeline", _SCRIPTS, title=f"{visible(group_id)} – grouptrail", data=arrange(found))
