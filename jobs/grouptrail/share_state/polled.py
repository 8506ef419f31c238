"""How far a share group is in a partition, by the lag that its coordinator returns.

Lag is the log's end less the start offset and the records after it that are complete. The coordinator does not say at
which end it computed that: it lies between those that were read before and after the request, and so does the number
of complete records. Pure functions, without brokers, tables or a clock.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple, Self

from grouptrail.kafka.group import ShareOffset

LogEnds = tuple[int | None, int | None]
"""The end of a log before and after a request; None where it is not known."""


class Progress(NamedTuple):
    """The start offset, and how many offsets are done with: those before it, and what is complete after it.

    `done_least` and `done_most` are both None if the share coordinator does not count what is complete. `changed_at`
    is when the first poll began that showed beyond doubt that the group had got further; at most `done_then` offsets
    were done with at that time.
    """

    topic_id: str
    start_offset: int
    done_least: int | None
    done_most: int | None
    changed_at: datetime
    done_then: int | None

    @classmethod
    def of(cls, row: dict[str, Any]) -> Self:
        """Return what a row of `share_group_offsets` says."""
        start, least, most = (
            row[name] for name in ("start_offset", "delivery_complete_count", "delivery_complete_most")
        )
        done_least, done_most = (None if complete is None else start + complete for complete in (least, most))
        return cls(row["topic_id"], start, done_least, done_most, row["changed_at"], done_most)

    def columns(self) -> dict[str, Any]:
        """Return the columns of a row of `share_group_offsets` that have it."""
        least, most = (
            None if done is None else done - self.start_offset for done in (self.done_least, self.done_most)
        )
        return {
            "topic_id": self.topic_id,
            "start_offset": self.start_offset,
            "delivery_complete_count": least,
            "delivery_complete_most": most,
            "changed_at": self.changed_at,
        }


def progress(before: Progress | None, returned: ShareOffset, log_ends: LogEnds, at: datetime) -> Progress | None:
    """Return how far a group is by a poll that began at `at`, given what is known from the polls before.

    That is what was known, if the poll shows nothing. What is done with stays so until the offsets are reset: the
    least number never falls while a log is written to, which would look as if records were read again.
    """
    topic_id, start, lag = returned
    if start < 0:
        return before
    same = before if before and before.topic_id == topic_id and before.start_offset <= start else None
    if lag is None:
        is_unmoved = same is not None and same.start_offset == start
        return Progress(topic_id, start, None, None, same.changed_at if same and is_unmoved else at, None)
    first, last = log_ends
    if first is None or last is None or first > last or last - lag < start:  # not known, or the log was truncated
        return before
    least, most = max(first - lag, start), last - lag
    if same is None or (same.done_least or 0) > most:
        return Progress(topic_id, start, least, most, at, most)
    least = max(least, same.done_least or 0)
    has_moved = same.start_offset < start or (same.done_then is not None and same.done_then < least)
    if has_moved or same.done_then is None:
        return Progress(topic_id, start, least, most, at if has_moved else same.changed_at, most)
    return Progress(topic_id, start, least, most, same.changed_at, min(same.done_then, most))
