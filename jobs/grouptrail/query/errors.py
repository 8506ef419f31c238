"""The errors of queries."""

from __future__ import annotations

from grouptrail.storage.errors import QueryError, UnknownGroupError

__all__ = ["BeforeHistoryError", "QueryError", "UnknownGroupError"]


class BeforeHistoryError(QueryError):
    """A time at which a group's history has not begun."""
