"""A group's records, cut into operations: what the coordinator wrote at once, and means as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

ADMIN = "admin"
"""The `source` of polled rows."""
CLASSIC = "GroupMetadata"
COMMIT_TOMBSTONE = "OffsetCommit"


class Record(NamedTuple):
    """One record: its offset, its timestamp in ms, Kafka's name of its type, and its value (None: a tombstone).

    `name` is what the key holds besides the group: a member id, or a regular expression. Of a polled group a record
    is what a poll found at that time, and had changed since `not_before` (ms; None: not known since when).
    """

    offset: int
    at: int
    type: str
    name: str | None
    body: dict[str, Any] | None
    is_polled: bool = False
    not_before: int | None = None


Operation = tuple[Record, ...]


def operations(records: Iterable[Record], complete_to: int) -> Iterator[tuple[Operation, bool]]:
    """Cuts one group's records, in the order of their offsets; says of each operation whether it is complete.

    An operation's records follow each other without a gap, under one timestamp; a classic group's value ends one.
    Only the last may be incomplete: when more of it could lie at `complete_to`, the offset up to which everything
    has been read. A coordinator's batch of records is visible whole or not at all, so that nothing is missing
    where the reader had reached the log's end; the caller then gives an offset beyond it.
    """
    current: list[Record] = []
    for record in records:
        if current and not _continues(current[-1], record):
            yield tuple(current), True
            current = []
        current.append(record)
    if current:
        last = current[-1]
        yield tuple(current), last.offset + 1 < complete_to or _ends(last)


def _continues(last: Record, record: Record) -> bool:
    return record.offset == last.offset + 1 and record.at == last.at and not _ends(last)


def _ends(record: Record) -> bool:
    return record.type == CLASSIC and record.body is not None
