"""The error of a query."""

from __future__ import annotations

from grouptrail.errors import GrouptrailError


class QueryError(GrouptrailError):
    """A query that cannot be answered."""
