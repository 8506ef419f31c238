"""What is wrong with a question."""

from __future__ import annotations

from grouptrail.errors import GrouptrailError


class QueryError(GrouptrailError):
    """A question that cannot be answered."""
