"""Repeat writes that conflict with another writer's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from threading import Lock
from typing import TypeVar

from deltalake.exceptions import CommitFailedError

from grouptrail.storage.location import TableLocation

T = TypeVar("T")

TRIES = 5

_CONFLICTS = ("[DELTA_CONCURRENT_", "[DELTA_PROTOCOL_CHANGED")

# For the clusters of one application; conflicts with other applications are retried.
_locks: defaultdict[str, Lock] = defaultdict(Lock)


def lock(table: TableLocation) -> Lock:
    """Return the lock of a table for the threads of this process."""
    return _locks[table.path]


def one_writer(write: Callable[[], None], table: TableLocation) -> None:
    """Write, and retry after a conflict with another writer.

    Delta treats two concurrent replacements of rows of a table as a conflict, even for rows of different clusters,
    and `grouptrail maintain` sorts the files of some tables while jobs run.
    """
    with lock(table):
        with_retries(write, TRIES)


def with_retries(work: Callable[[], T], tries: int) -> T:
    """Return what `work` returns; after a conflict with another writer it is repeated from the table's new state."""
    for _ in range(tries - 1):
        try:
            return work()
        except Exception as error:
            if not is_conflict(error):
                raise
    return work()


def require_version(table: TableLocation, newest: int, version: int) -> None:
    """Raise a conflict if a table has a newer version than the one that was read."""
    if newest != version:
        raise CommitFailedError(f"table {table.shown} has version {newest}, not {version} any more")


def is_conflict(error: Exception) -> bool:
    """Return whether an error is a conflict with another writer; Spark's exceptions have no class in common."""
    return isinstance(error, CommitFailedError) or any(kind in str(error) for kind in _CONFLICTS)
