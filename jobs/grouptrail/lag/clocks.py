"""By how much the coordinators' clocks, which date commits, differ from the clock of the samples.

A commit that has been read before the time that it bears shows that its coordinator's clock is ahead. One that is
dated before a sample, but lies above the log's end in it, was made after the sample if the next one has its record: a
clock that is behind. A log that was truncated shows the same once, but grew shorter; and an offset that was committed
too far stays above the end.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from grouptrail.lag.index import MICROS, UNKNOWN, Bools, Ints, at_numbers, lengthened

_NOTICEABLE_MICROS = 5 * MICROS
"""Commits are read a few seconds after they were made."""
_MOST_BEHIND_MICROS = 900 * MICROS
# Once a difference is known, its commits no longer seem to be above the log's end for long.
_REMEMBERED_MICROS = 600 * MICROS
# Some applications commit one offset too far.
_LEAST_ABOVE = 2


class NewestCommits(NamedTuple):
    """The newest commit of each position: the number of its partition, its offset, its record; in microseconds."""

    partitions: Ints
    offsets: Ints
    record_partitions: Ints
    record_offsets: Ints
    record_at: Ints

    def of(self, chosen: Bools) -> NewestCommits:
        """Return some of them."""
        return NewestCommits(*(column[chosen] for column in self))


class _Candidates(NamedTuple):
    """Commits that seem to be above the end of their log, and by how much their clock would be behind."""

    commits: NewestCommits
    behind: Ints


class CoordinatorClocks:
    """The differences by partition of `__consumer_offsets`, as its coordinator changes with that."""

    def __init__(self) -> None:
        none = np.empty(0, np.int64)
        self._seen = self._behind = self._behind_at = none
        # What the newest commits of the last two samples that had any have shown.
        self._ahead = [none, none]
        self._candidates: _Candidates | None = None
        self._at, self._is_first = UNKNOWN, True

    def are_new(self, record_partitions: Ints, record_offsets: Ints) -> Bools:
        """Return which commits no sample has seen yet."""
        seen = at_numbers(self._seen, np.maximum(record_partitions, 0))
        is_new: Bools = (record_partitions >= 0) & (record_offsets > seen)
        return is_new

    def learn(
        self, new: NewestCommits, new_ends: Ints, end_of: Ints, *, at: int, asked_at: int, read_at: int | None
    ) -> None:
        """Learn from the new commits at a sample and the log ends of their partitions, `UNKNOWN` where these are no
        measure, and of those of the sample before from the ends by the partitions' numbers.

        The sample was taken from `asked_at` to `at`. The commits had been read at `read_at`; None: when the sample
        was taken, apart from those of the first one, which may be of any time. A sample counts once.
        """
        if at == self._at:
            return
        self._at = at
        count = max(int(new.record_partitions.max(initial=-1)) + 1, len(self._seen))
        self._seen, self._behind, self._behind_at, *self._ahead = (
            lengthened(column, count) for column in (self._seen, self._behind, self._behind_at, *self._ahead)
        )
        np.maximum.at(self._seen, new.record_partitions, new.record_offsets)
        self._confirm(end_of, at)
        if read_at is not None or not self._is_first:
            self._learn_ahead(new, at if read_at is None else read_at)
        behind = asked_at - new.record_at
        is_above = (new_ends != UNKNOWN) & (new.offsets >= new_ends + _LEAST_ABOVE) & (new.record_at != UNKNOWN)
        is_above &= (behind >= _NOTICEABLE_MICROS) & (behind <= _MOST_BEHIND_MICROS)
        self._candidates = None if self._is_first else _Candidates(new.of(is_above), behind[is_above])
        self._is_first = False

    def forget(self, partitions: Ints) -> None:
        """Forget what commits to some partitions seem to show: their logs were replaced."""
        if self._candidates is not None:
            kept = ~np.isin(self._candidates.commits.partitions, partitions)
            self._candidates = _Candidates(self._candidates.commits.of(kept), self._candidates.behind[kept])

    def offsets(self, at: int) -> Ints:
        """Return by how much each clock is ahead (microseconds), below 0: behind; 0 where that is not noticeable."""
        ahead = np.maximum(*self._ahead)
        is_behind = (self._behind > 0) & (at - self._behind_at <= _REMEMBERED_MICROS)
        offsets = np.where(is_behind, -self._behind, 0)
        return np.where(ahead >= _NOTICEABLE_MICROS, ahead, offsets)

    def _learn_ahead(self, new: NewestCommits, read_at: int) -> None:
        ahead = np.full(len(self._seen), np.iinfo(np.int64).min)
        np.maximum.at(ahead, new.record_partitions, new.record_at - read_at)
        has_any = ahead != np.iinfo(np.int64).min
        before, last = self._ahead
        self._ahead = [np.where(has_any, last, before), np.where(has_any, np.maximum(ahead, 0), last)]

    def _confirm(self, end_of: Ints, at: int) -> None:
        """Keep what the candidates of the sample before show, where their records are in the logs by now."""
        if self._candidates is None or not len(self._candidates.behind):
            return
        commits, behind = self._candidates
        is_there = at_numbers(end_of, commits.partitions) >= commits.offsets
        of, behind = commits.record_partitions[is_there], behind[is_there]
        shown = np.full(len(self._seen), UNKNOWN)
        np.maximum.at(shown, of, behind)
        is_shown = shown != UNKNOWN
        is_known = at - self._behind_at <= _REMEMBERED_MICROS
        self._behind = np.where(is_shown, np.maximum(shown, np.where(is_known, self._behind, 0)), self._behind)
        self._behind_at[is_shown] = at


def of_partitions(offsets: Ints, record_partitions: Ints) -> Ints:
    """Return the differences of the clocks that dated records of these partitions; 0 where none is known."""
    is_known = (record_partitions >= 0) & (record_partitions < len(offsets))
    differences = np.zeros(len(record_partitions), np.int64)
    differences[is_known] = offsets[record_partitions[is_known]]
    return differences
