"""The errors of queries."""

from __future__ import annotations

from grouptrail.storage.errors import QueryError, UnknownGroupError

__all__ = ["BeforeHistoryError", "QueryError", "UnknownGroupError"]


class BeforeHistoryError(QueryError):
    """A time at which a group's history has not begun."""

    def __init__(self, group_id: str, begins_at: str) -> None:
        """`begins_at` is in UTC, in ISO 8601."""
        super().__init__(f"the history of {group_id!r} begins at {begins_at}: give a later time")
