"""The error of a query."""

from __future__ import annotations

from collections.abc import Sequence

from grouptrail.errors import GrouptrailError


class QueryError(GrouptrailError):
    """A query that cannot be answered."""


class UnknownGroupError(QueryError):
    """A table has no rows of a group; `near` are names like its name."""

    def __init__(self, message: str, near: Sequence[str]) -> None:
        super().__init__(message)
        self.near = tuple(near)


class BeforeHistoryError(QueryError):
    """A time at which a group's history has not begun."""
