"""Lag in offsets: how many records a group has not consumed, or why that cannot be told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.lag.index import UNKNOWN, Bools, Ints, ints, whole

_MICROS = 1_000_000
# The brokers' clocks, which commits are dated by, and that of the one who samples may differ by so much.
_CLOCKS_DIFFER_SECONDS = 5


@dataclass(frozen=True)
class Entries:
    """Positions at a sample: their numbers, their partitions' numbers and, row by row, commits and logs.

    `commits` are as in `positions.COMMITS`, with nulls where there is no commit; `logs` as in `log_offsets`.
    `held_back`: why the commits that have landed are not those of the time; None where they are.
    """

    at: int
    positions: Ints
    partitions: Ints
    commits: pa.Table
    logs: pa.Table
    held_back: Sequence[str | None]

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def is_held_back(self) -> Bools:
        """Whether an open transaction holds back what the group has committed."""
        return np.array([reason is not None for reason in self.held_back], bool)

    @property
    def committed(self) -> Ints:
        """Committed offsets."""
        return ints(self.commits["committed_offset"])

    @property
    def committed_at(self) -> Ints:
        """When they were committed (microseconds)."""
        return ints(self.commits["record_at"])

    @property
    def end(self) -> Ints:
        """Log end offsets."""
        return ints(self.logs["log_end_offset"])

    @property
    def sampled_at(self) -> Ints:
        """When these had been told (microseconds)."""
        return ints(self.logs["sampled_at"])


@dataclass
class Lag:
    """Of each entry; `UNKNOWN` where it cannot be told, and then why.

    `is_of_other_log`: the commit is to a log that
    was truncated or made anew since; `holds_no_record`: what is left are transactions' markers and aborted records.
    """

    lag: Ints
    lost: Ints
    problem: list[str | None]
    is_of_other_log: Bools
    holds_no_record: Bools

    @property
    def readable(self) -> Ints:
        """How many of the unread records are still there."""
        there = np.maximum(self.lag - np.maximum(self.lost, 0), 0)
        return np.where(self.lag == UNKNOWN, UNKNOWN, np.where(self.holds_no_record, 0, there))


def lag_in_offsets(entries: Entries, is_ignored: Bools, read_committed_groups: Sequence[str]) -> Lag:
    """Up to the last stable offset for groups that fit one of the patterns, else up to the log's end.

    `is_ignored`: no member of the group subscribes to the topic.
    """
    committed, end = entries.committed, entries.end
    is_isolated = matching(entries.commits["group_id"], read_committed_groups)
    readable = np.where(is_isolated, ints(entries.logs["last_stable_offset"]), end)
    problem: list[str | None] = [None] * len(entries)
    is_unknown = np.full(len(entries), False)

    def tell(where: Bools, why: Callable[[int], str | None]) -> None:
        for place in np.flatnonzero(where & ~is_unknown).tolist():
            problem[place] = why(place)
        is_unknown[where] = True

    errors = entries.logs["error"].to_pylist()
    tell(np.array([error is not None for error in errors], bool), lambda place: errors[place])
    tell(is_ignored, lambda _: "no member of the group subscribes to the topic")
    tell(entries.is_held_back & (committed == UNKNOWN), lambda place: entries.held_back[place])
    tell(committed == UNKNOWN, lambda _: "no commit yet")
    is_other = _is_other(entries)
    tell(is_other, lambda _: "the topic was deleted and made anew since the commit")
    # A commit that is newer than the sample may well be ahead of it.
    is_old = entries.committed_at <= entries.sampled_at - _CLOCKS_DIFFER_SECONDS * _MICROS
    is_above = (committed > end) & (end != UNKNOWN) & is_old
    tell(
        is_above,
        lambda place: f"committed {committed[place]} above the log's end {end[place]}: truncated or made anew",
    )
    problem = [why or held for why, held in zip(problem, entries.held_back, strict=True)]
    lost = ints(entries.logs["log_start_offset"]) - committed
    return Lag(
        np.where(is_unknown, UNKNOWN, np.maximum(readable - committed, 0)),
        np.where(is_unknown, UNKNOWN, np.maximum(lost, 0)),
        problem,
        is_other | is_above,
        np.full(len(entries), False),
    )


def _is_other(entries: Entries) -> Bools:
    """Whether the commit was to another topic of the same name."""
    differ = pc.fill_null(pc.not_equal(entries.commits["topic_id"], entries.logs["topic_id"]), False)
    return _bools(differ)


def matching(names: Any, patterns: Sequence[str]) -> Bools:
    """Which names one of some patterns as of a shell fits."""
    fitting = [name for name in pc.unique(names).to_pylist() if any(fnmatchcase(name, one) for one in patterns)]
    return _bools(pc.is_in(names, pa.array(fitting, pa.string())))


def _bools(column: Any) -> Bools:
    return np.asarray(whole(column).to_numpy(zero_copy_only=False), bool)
