"""How long a position's unread records usually wait for the next commit.

A group that commits once an hour is silent for an hour each time; silence of that length does not show that it has
stopped. What the last two waits in a row have reached is usual: a single outage is not. In a partition that rarely
gets a record, the rhythm of the group's other partitions counts, too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grouptrail.lag.index import MICROS, UNKNOWN, Bools, Floats, Ints, at_numbers, lengthened

LONGER_THAN_USUAL = 2
"""A silence of so many times the usual one is clearly longer."""
# Shorter waits are those of a group that reads all the time.
_LEAST_MICROS = 30 * MICROS


@dataclass
class SampleWaits:
    """The figures of one sample by the positions' numbers; `silent` in microseconds, `is_there`: with a row."""

    at: int
    committed: Ints
    silent: Ints
    is_there: Bools

    @classmethod
    def none(cls, at: int, count: int) -> SampleWaits:
        """Return a sample without rows."""
        return cls(at, np.full(count, UNKNOWN), np.zeros(count, np.int64), np.full(count, False))


class UsualWaits:
    """The usual wait of each position, up to date with samples in the order of their times.

    A wait is how long no commit came while a record was unread; the next commit ends it. A position without a row in
    a sample is forgotten: its commit was deleted.
    """

    def __init__(self) -> None:
        none = np.empty(0, np.int64)
        self.newest = SampleWaits.none(UNKNOWN, 0)
        # The last known figures before the newest sample, and the waits then.
        self._committed = self._silent = self._usual = self._last = none

    def start_sample(self, at: int, count: int) -> None:
        """Start a sample (microseconds) of at most this many positions, in place of one of the same time."""
        if at != self.newest.at:
            usual, last = self._waits(np.arange(count))
            newest, gone = self.newest, ~lengthened(self.newest.is_there, count)
            committed, silent = (lengthened(column, count) for column in (newest.committed, newest.silent))
            is_known = committed != UNKNOWN
            self._committed = np.where(is_known, committed, lengthened(self._committed, count))
            self._silent = np.where(is_known, silent, lengthened(self._silent, count))
            self._usual, self._last = usual, last
            self._committed[gone] = UNKNOWN
            self._usual[gone] = self._last[gone] = 0
        self.newest = SampleWaits.none(at, count)

    def put(self, positions: Ints, committed: Ints, silent_seconds: Floats) -> None:
        """Set figures of some positions; `committed` is `UNKNOWN` where it is not known how long they are silent."""
        self.newest.committed[positions] = committed
        self.newest.silent[positions] = _micros(silent_seconds)
        self.newest.is_there[positions] = True

    def restore(self, positions: Ints, usual_seconds: Floats, last_seconds: Floats) -> None:
        """Set the stored waits of some positions at the newest sample, whose figures have been `put`."""
        count = len(self.newest.committed)
        self._committed, self._silent, self._usual, self._last = (
            lengthened(column, count) for column in (self._committed, self._silent, self._usual, self._last)
        )
        self._usual[positions], self._last[positions] = _micros(usual_seconds), _micros(last_seconds)
        # What the newest sample shows is in these already.
        known = positions[self.newest.committed[positions] != UNKNOWN]
        self._committed[known], self._silent[known] = self.newest.committed[known], self.newest.silent[known]

    def forget(self, positions: Ints) -> None:
        """Forget some positions: their logs were replaced."""
        for one in (self.newest.committed, self._committed, self._usual, self._last):
            one[positions[positions < len(one)]] = UNKNOWN

    def waits(self, positions: Ints) -> tuple[Floats, Floats]:
        """Return the usual wait of these positions and their last one; NaN where it is short or not known."""
        usual, last = self._waits(positions)
        return _seconds(usual), _seconds(last)

    def ended(self, positions: Ints) -> Ints:
        """Return the waits (microseconds) that commits have ended at the newest sample; `UNKNOWN` without a commit.

        Short ones are 0.
        """
        committed, before, ended = (
            at_numbers(column, positions) for column in (self.newest.committed, self._committed, self._silent)
        )
        has_moved = (committed > before) & (before != UNKNOWN)
        return np.where(has_moved, np.where(ended < _LEAST_MICROS, 0, ended), UNKNOWN)

    def _waits(self, positions: Ints) -> tuple[Ints, Ints]:
        """Return the usual and the last waits at the newest sample; 0 where they are short."""
        usual, last = (np.maximum(at_numbers(column, positions), 0) for column in (self._usual, self._last))
        ended = self.ended(positions)
        has_moved = ended != UNKNOWN
        return np.where(has_moved, np.minimum(last, ended), usual), np.where(has_moved, ended, last)


class GroupWaits:
    """The usual wait of each group: what its last two commits have both ended, each in the partition it moved most.

    A partition whose reader is stuck does not count: no commit ends its wait. Kept by the groups' numbers.
    """

    def __init__(self) -> None:
        none = np.empty(0, np.int64)
        self._at = UNKNOWN
        # Before the newest sample, and at it.
        self._before = self._now = (none, none)

    def usual(self, groups: Ints) -> Floats:
        """Return the usual waits of these groups before the newest sample; NaN where they are short or not known."""
        return _seconds(np.maximum(at_numbers(self._before[0], groups), 0))

    def start_sample(self, at: int) -> None:
        """Start a sample (microseconds), in place of one of the same time."""
        if at != self._at:
            self._at, self._before = at, self._now

    def put(self, groups: Ints, ended: Ints) -> None:
        """Set what commits have ended at the newest sample, by position: its group, and `UsualWaits.ended`."""
        count = int(groups.max(initial=-1)) + 1
        longest = np.full(count, UNKNOWN)
        np.maximum.at(longest, groups, ended)
        is_there = np.full(count, False)
        is_there[groups] = True
        # A group without rows was deleted.
        usual, last = (
            np.where(is_there, np.maximum(at_numbers(column, np.arange(count)), 0), 0) for column in self._before
        )
        has_moved = longest != UNKNOWN
        self._now = (
            np.where(has_moved, np.minimum(last, longest), usual),
            np.where(has_moved, longest, last),
        )

    def restore(self, groups: Ints, usual_seconds: Floats) -> None:
        """Set what is known from the usual waits of positions that were stored at the newest sample."""
        count = int(groups.max(initial=-1)) + 1
        least = np.full(count, np.iinfo(np.int64).max)
        np.minimum.at(least, groups, _micros(usual_seconds))
        usual = np.where(least == np.iinfo(np.int64).max, 0, least)
        self._now = (usual, usual)


def _micros(seconds: Floats) -> Ints:
    micros: Ints = np.rint(np.nan_to_num(seconds) * MICROS).astype(np.int64)
    return micros


def _seconds(micros: Ints) -> Floats:
    return np.where(micros > 0, micros / MICROS, np.nan)
