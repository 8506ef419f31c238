"""Errors of the tables and of queries."""

from __future__ import annotations

from collections.abc import Sequence

from grouptrail.errors import GrouptrailError


class TableError(GrouptrailError):
    """A table or the warehouse cannot be used: it differs from its contract, or cannot be read or written."""


class TableVersionError(TableError):
    """A table was written by a version of grouptrail that this one is not compatible with."""


class UnreadableTableError(TableError):
    """A table cannot be read: its log is damaged or of an older version, or its store cannot be reached.

    `fact` is the message without what to do.
    """

    def __init__(self, path: str, reason: str, advice: str = "check the warehouse and the access rights") -> None:
        self.fact = f"{path} cannot be read ({reason})"
        super().__init__(f"{self.fact}: {advice}")


class DamagedFileError(TableError):
    """A file of a table is damaged, missing, or must not be opened: its rows cannot be read."""


class NeedsSparkError(TableError):
    """Only Spark can do it, and no session runs: a change of a table's columns, or a store unknown to delta-rs."""


class QueryError(GrouptrailError):
    """A query that cannot be answered."""


class UnknownGroupError(QueryError):
    """A table has no rows of a group; `near` are names like its name."""

    def __init__(self, message: str, near: Sequence[str]) -> None:
        super().__init__(message)
        self.near = tuple(near)
