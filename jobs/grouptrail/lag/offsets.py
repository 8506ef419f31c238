"""Lag in offsets: how many records a group has not consumed, or why that is not known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.lag.index import MICROS, UNKNOWN, Bools, Ints, Texts, ints, sentences, valid, whole
from grouptrail.lag.positions import UNDECODED

SAMPLES_TO_KEEP_UP = 2
"""A group that commits between two samples has read at each what was there so many samples before."""

# By how much the clocks of the brokers, which date commits, may differ from the clock of this job.
CLOCKS_DIFFER_SECONDS = 5
_ABOVE_THE_END = (
    ": the log was truncated or recreated, or the offset was copied from another cluster or committed too far"
)
_UNCOUNTED = (
    "the share coordinator does not count the records that are complete: upgrade the brokers to Kafka 4.2 or later"
)
_UNDECODED = (
    "the newest record of __share_group_state about it could not be decoded: upgrade grouptrail, then run grouptrail "
    "redecode"
)
# `made anew` is in rows that grouptrail 0.1 stored.
_OTHER_LOG = ("recreated", "made anew")
# Differences of offsets stay 64-bit numbers within this.
_MOST_OFFSETS = 1 << 62


@dataclass(frozen=True)
class Entries:
    """Positions at one sample: the numbers of them, their partitions and groups, their commits and logs, by entry.

    `at` is in microseconds. `commits` has the columns of `positions.READ`, null where there is no commit, `logs`
    those of `log_offsets` that are needed. `held_back` says why the decoded commits are not up to date; null where
    they are. `clock_offsets`: by how much the clock that dates the commits is ahead (microseconds).
    """

    at: int
    positions: Ints
    partitions: Ints
    groups: Ints
    commits: pa.Table
    logs: pa.Table
    held_back: pa.Array
    clock_offsets: Ints

    def __len__(self) -> int:
        return len(self.positions)

    @cached_property
    def is_held_back(self) -> Bools:
        """Whether an open transaction holds back what the group has committed."""
        return valid(self.held_back)

    @cached_property
    def committed(self) -> Ints:
        """Committed offsets."""
        return ints(self.commits["committed_offset"])

    @cached_property
    def are_shared(self) -> Bools:
        """Whether the group is a share group: it reads records in any order from the committed offset on."""
        return valid(self.commits["delivery_complete_count"])

    @cached_property
    def complete(self) -> Ints:
        """How many records from the committed offset on need no delivery any more; 0 where that is not known."""
        return np.maximum(ints(self.commits["delivery_complete_count"]), 0)

    @cached_property
    def consumed(self) -> Ints:
        """How many offsets are done with: the committed offset, and of a share group what is complete after it."""
        return np.where(self.committed == UNKNOWN, UNKNOWN, self.committed + self.complete)

    @cached_property
    def committed_at(self) -> Ints:
        """Times of the commits by the clock of the samples (microseconds)."""
        dated_at = ints(self.commits["record_at"])
        return np.where(dated_at == UNKNOWN, UNKNOWN, dated_at - self.clock_offsets)

    @cached_property
    def end(self) -> Ints:
        """Log end offsets."""
        return ints(self.logs["log_end_offset"])

    @cached_property
    def sampled_at(self) -> Ints:
        """Times at which the leaders had answered (microseconds)."""
        return ints(self.logs["sampled_at"])


@dataclass(frozen=True)
class Lag:
    """The lag of each entry; `UNKNOWN` where it is not known, and then `problem` says why (else null).

    `first_unread` are the lowest offsets that are unread and not deleted, `readable` how many offsets follow in which
    a record can still be. `is_of_other_log`: the commit may belong to another log than the one sampled.
    `holds_no_record`: only transaction markers and aborted records are left to read. `uncommitted` are the records of
    a log to which a group that owns it has not committed, as far as that needs no explanation; else `UNKNOWN`.
    `pauses_with_one_left` are those that show that the committed record itself was read; 0 elsewhere.
    """

    lag: Ints
    lost: Ints
    first_unread: Ints
    readable: Ints
    problem: pa.Array
    is_of_other_log: Bools
    holds_no_record: Bools
    uncommitted: Ints
    pauses_with_one_left: Ints

    def without(self, no_record: Bools) -> Lag:
        """Return the lag where, of these entries, brokers showed that no record is left to read."""
        is_known = self.lag != UNKNOWN
        readable = np.where(no_record & is_known, 0, self.readable)
        return replace(self, readable=readable, holds_no_record=no_record & is_known)

    def without_last(self, habitual: Ints) -> Lag:
        """Return the lag where clients commit the last offset: `habitual` counts the pauses that show it, or is 0."""
        is_read = (self.lag > 0) & (self.lost == 0) & (self.readable > 0) & (habitual > 0)
        return replace(
            self,
            readable=self.readable - is_read,
            first_unread=self.first_unread + is_read,
            pauses_with_one_left=np.where(is_read, habitual, 0),
        )

    @property
    def left(self) -> Ints:
        """How many offsets would be left if the committed one was the next."""
        left: Ints = self.readable + (self.pauses_with_one_left > 0)
        return left


def not_deleted(lag: Ints, lost: Ints, committed: Ints) -> Ints:
    """Return how many of the unread offsets may hold a record: not deleted, and not below 0; `UNKNOWN` as the lag."""
    below_zero = np.minimum(np.maximum(committed, -_MOST_OFFSETS), 0)
    return np.where(lag == UNKNOWN, UNKNOWN, np.maximum(lag - np.maximum(lost, 0) + below_zero, 0))


def lag_in_offsets(entries: Entries, is_ignored: Bools, is_isolated: Bools, is_overdue: Bools) -> Lag:
    """Compute the lag up to the log's end, or where `is_isolated` up to the last stable offset.

    `is_ignored`: no member of the group subscribes to the topic. `is_overdue`: records came while a member owned the
    partition, and the group has committed since, but not here.
    """
    committed, end = entries.committed, entries.end
    readable = np.where(is_isolated, ints(entries.logs["last_stable_offset"]), end)
    problem = Texts(len(entries))
    is_unknown = np.full(len(entries), False)

    def mark_unknown(where: Bools, reason: Callable[[Ints], str | pa.Array]) -> None:
        rows = np.flatnonzero(where & ~is_unknown)
        problem.set(rows, reason(rows))
        is_unknown[rows] = True

    errors, held_back = whole(entries.logs["error"]), entries.held_back
    mark_unknown(valid(errors), lambda rows: errors.take(pa.array(rows)))
    mark_unknown(is_ignored, lambda _: "no member of the group subscribes to the topic")
    mark_unknown(entries.is_held_back & (committed == UNKNOWN), lambda rows: held_back.take(pa.array(rows)))
    start = ints(entries.logs["log_start_offset"])
    # Clients commit only where they have read: an empty log has nothing to commit.
    is_empty = (committed == UNKNOWN) & (readable != UNKNOWN) & (start == readable)
    is_uncommitted = (committed == UNKNOWN) & ~is_empty
    has_records = is_uncommitted & (end != UNKNOWN)
    records = end - np.maximum(start, 0)
    uncommitted = np.where(has_records & ~is_overdue & ~is_unknown, records, UNKNOWN)
    mark_unknown(
        has_records & is_overdue,
        lambda rows: sentences(
            "no commit yet, although the group has committed elsewhere since records came: of ",
            records[rows],
            " records, auto.offset.reset says how many are to be read",
        ),
    )
    mark_unknown(
        has_records,
        lambda rows: sentences(
            "no commit yet: of ", records[rows], " records, auto.offset.reset says how many are to be read"
        ),
    )
    mark_unknown(is_uncommitted, lambda _: "no commit yet")
    complete = ints(entries.commits["delivery_complete_count"])
    mark_unknown(entries.are_shared & (complete == UNKNOWN), lambda _: _UNCOUNTED)
    mark_unknown(entries.are_shared & (complete == UNDECODED), lambda _: _UNDECODED)
    committed = np.where(is_empty, start, committed)
    has_other_id = pc.not_equal(entries.commits["topic_id"], entries.logs["topic_id"])
    is_recreated = _bools(pc.fill_null(has_other_id, False))
    mark_unknown(is_recreated, lambda _: "the topic was deleted and recreated since the commit")
    # A commit that is newer than the sample may well be ahead of it.
    is_old = entries.committed_at <= entries.sampled_at - CLOCKS_DIFFER_SECONDS * MICROS
    is_above = (committed > end) & (end != UNKNOWN) & is_old
    mark_unknown(
        is_above,
        lambda rows: sentences("committed ", committed[rows], " above the log's end ", end[rows], _ABOVE_THE_END),
    )
    held = np.flatnonzero(entries.is_held_back & ~problem.is_set)
    problem.set(held, held_back.take(pa.array(held)))
    # Kafka accepts a commit of any 64-bit number; no record has a negative offset.
    lost = np.maximum(start - np.maximum(committed, 0), 0)
    left = readable - np.maximum(committed, -_MOST_OFFSETS) - entries.complete
    lag = np.where(is_unknown, UNKNOWN, np.maximum(left, 0))
    # Which of a share group's deleted records were complete is not known.
    is_lost_unknown = is_unknown | (entries.are_shared & (lost > 0))
    return Lag(
        lag,
        np.where(is_lost_unknown, UNKNOWN, lost),
        np.maximum(committed, 0) + lost,
        not_deleted(lag, np.where(is_lost_unknown, 0, lost), committed),
        problem.array(),
        is_recreated | is_above,
        np.full(len(entries), False),
        uncommitted,
        np.zeros(len(entries), np.int64),
    )


def keeps_up(committed: Ints, readable: Ints, then: Ints) -> Bools:
    """Return where all has been read up to the log ends `then`, of `SAMPLES_TO_KEEP_UP` samples before."""
    keeps_up: Bools = (then != UNKNOWN) & (readable != UNKNOWN) & (committed >= then)
    return keeps_up


def are_of_other_log(problems: Any) -> Bools:
    """Return which stored `problem`s say that the log was truncated or recreated after the commit."""
    different = pc.unique(problems).to_pylist()
    texts = [text for text in different if text is not None and any(word in text for word in _OTHER_LOG)]
    return _bools(pc.is_in(problems, pa.array(texts, pa.string())))


def matching(names: Any, patterns: Sequence[str]) -> Bools:
    """Return which names match one of some shell patterns."""
    fitting = [name for name in pc.unique(names).to_pylist() if any(fnmatchcase(name, one) for one in patterns)]
    return _bools(pc.is_in(names, pa.array(fitting, pa.string())))


def _bools(column: Any) -> Bools:
    return np.asarray(whole(column).to_numpy(zero_copy_only=False), bool)
