"""The error of a query."""

from __future__ import annotations

from grouptrail.errors import GrouptrailError


class QueryError(GrouptrailError):
    """A query that cannot be answered."""


class BeforeHistoryError(QueryError):
    """A time at which a group's history has not begun."""
