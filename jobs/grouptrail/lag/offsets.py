"""Lag in offsets: how many records a group has not consumed, or why that is not known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.lag.index import UNKNOWN, Bools, Ints, Texts, ints, sentences, valid, whole

_MICROS = 1_000_000
# By how much the clocks of the brokers, which date commits, may differ from the clock of this job.
CLOCKS_DIFFER_SECONDS = 5
# `made anew` is in rows that grouptrail 0.1 stored.
_OTHER_LOG = ("recreated", "made anew")


@dataclass(frozen=True)
class Entries:
    """Positions at one sample: the numbers of them, their partitions and groups, their commits and logs, by entry.

    `at` is in microseconds. `commits` has the columns of `positions.READ`, null where there is no commit, `logs`
    those of `log_offsets` that are needed. `held_back` says why the decoded commits are not up to date; null where
    they are.
    """

    at: int
    positions: Ints
    partitions: Ints
    groups: Ints
    commits: pa.Table
    logs: pa.Table
    held_back: pa.Array

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
    def committed_at(self) -> Ints:
        """Times of the commits (microseconds)."""
        return ints(self.commits["record_at"])

    @cached_property
    def end(self) -> Ints:
        """Log end offsets."""
        return ints(self.logs["log_end_offset"])

    @cached_property
    def sampled_at(self) -> Ints:
        """Times at which the leaders had answered (microseconds)."""
        return ints(self.logs["sampled_at"])


@dataclass
class Lag:
    """The lag of each entry; `UNKNOWN` where it is not known, and then `problem` says why (else null).

    `is_of_other_log`: the log was truncated or recreated after the commit. `holds_no_record`: only transaction
    markers and aborted records are left to read.
    """

    lag: Ints
    lost: Ints
    problem: pa.Array
    is_of_other_log: Bools
    holds_no_record: Bools

    @property
    def readable(self) -> Ints:
        """How many of the unread records can still be read."""
        return np.where(self.holds_no_record & (self.lag != UNKNOWN), 0, not_deleted(self.lag, self.lost))


def not_deleted(lag: Ints, lost: Ints) -> Ints:
    """Return how many of the unread records have not been deleted; `UNKNOWN` where the lag is."""
    return np.where(lag == UNKNOWN, UNKNOWN, np.maximum(lag - np.maximum(lost, 0), 0))


def lag_in_offsets(entries: Entries, is_ignored: Bools, is_isolated: Bools) -> Lag:
    """Compute the lag up to the log's end, or where `is_isolated` up to the last stable offset.

    `is_ignored`: no member of the group subscribes to the topic.
    """
    committed, end = entries.committed, entries.end
    readable = np.where(is_isolated, ints(entries.logs["last_stable_offset"]), end)
    problem = Texts(len(entries))
    is_unknown = np.full(len(entries), False)

    def mark_unknown(where: Bools, reason: Callable[[Ints], str | pa.Array]) -> None:
        found = np.flatnonzero(where & ~is_unknown)
        problem.set(found, reason(found))
        is_unknown[found] = True

    errors, held_back = whole(entries.logs["error"]), entries.held_back
    mark_unknown(valid(errors), lambda found: errors.take(pa.array(found)))
    mark_unknown(is_ignored, lambda _: "no member of the group subscribes to the topic")
    mark_unknown(entries.is_held_back & (committed == UNKNOWN), lambda found: held_back.take(pa.array(found)))
    mark_unknown(committed == UNKNOWN, lambda _: "no commit yet")
    is_recreated = _is_recreated(entries)
    mark_unknown(is_recreated, lambda _: "the topic was deleted and recreated since the commit")
    # A commit that is newer than the sample may well be ahead of it.
    is_old = entries.committed_at <= entries.sampled_at - CLOCKS_DIFFER_SECONDS * _MICROS
    is_above = (committed > end) & (end != UNKNOWN) & is_old
    mark_unknown(
        is_above,
        lambda found: sentences(
            "committed ", committed[found], " above the log's end ", end[found], ": truncated or recreated"
        ),
    )
    held = np.flatnonzero(entries.is_held_back & ~problem.is_set)
    problem.set(held, held_back.take(pa.array(held)))
    lost = ints(entries.logs["log_start_offset"]) - committed
    return Lag(
        np.where(is_unknown, UNKNOWN, np.maximum(readable - committed, 0)),
        np.where(is_unknown, UNKNOWN, np.maximum(lost, 0)),
        problem.array(),
        is_recreated | is_above,
        np.full(len(entries), False),
    )


def are_of_other_log(problems: Any) -> Bools:
    """Return which stored `problem`s say that the log was truncated or recreated after the commit."""
    different = pc.unique(problems).to_pylist()
    found = [text for text in different if text is not None and any(word in text for word in _OTHER_LOG)]
    return _bools(pc.is_in(problems, pa.array(found, pa.string())))


def _is_recreated(entries: Entries) -> Bools:
    """Return whether the topic id of the commit differs from that of the log."""
    differ = pc.fill_null(pc.not_equal(entries.commits["topic_id"], entries.logs["topic_id"]), False)
    return _bools(differ)


def matching(names: Any, patterns: Sequence[str]) -> Bools:
    """Return which names match one of some shell patterns."""
    fitting = [name for name in pc.unique(names).to_pylist() if any(fnmatchcase(name, one) for one in patterns)]
    return _bools(pc.is_in(names, pa.array(fitting, pa.string())))


def _bools(column: Any) -> Bools:
    return np.asarray(whole(column).to_numpy(zero_copy_only=False), bool)
