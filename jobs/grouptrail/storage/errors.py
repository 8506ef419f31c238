"""Errors of the tables."""

from __future__ import annotations

from grouptrail.errors import GrouptrailError


class TableError(GrouptrailError):
    """A table or the warehouse cannot be used: it differs from its contract, or cannot be read or written."""


class TableVersionError(TableError):
    """A table was written by a version of grouptrail that this one is not compatible with."""
