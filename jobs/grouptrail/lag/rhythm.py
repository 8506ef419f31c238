"""How long a position's unread records usually wait for the next commit.

A group that commits once an hour is silent for an hour each time; silence of that length does not show that it has
stopped. What the last two waits in a row have reached is usual: a single outage is not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grouptrail.lag.index import UNKNOWN, Floats, Ints, at_numbers, lengthened

_MICROS = 1_000_000
LONGER_THAN_USUAL = 2
"""A silence of so many times the usual one is clearly longer."""
# Shorter waits are those of a group that reads all the time.
_LEAST_MICROS = 30 * _MICROS


@dataclass
class _Noted:
    """The figures of one sample by the positions' numbers; `silent` in microseconds."""

    at: int
    committed: Ints
    silent: Ints


class Rhythms:
    """The usual wait of each position, up to date with samples that are noted in the order of their times.

    A wait is how long no commit came while a record was unread; the next commit ends it.
    """

    def __init__(self) -> None:
        none = np.empty(0, np.int64)
        self.newest = self._before = _Noted(UNKNOWN, none, none)
        self._usual = self._last = none

    def begin(self, at: int, count: int) -> None:
        """Begin a sample (microseconds) of at most this many positions, in place of one of the same time."""
        if at != self.newest.at:
            self._usual, self._last = self._now(np.arange(count))
            before = [lengthened(column, count) for column in (self._before.committed, self._before.silent)]
            newest = [lengthened(column, count) for column in (self.newest.committed, self.newest.silent)]
            is_known = newest[0] != UNKNOWN
            committed, silent = (np.where(is_known, *pair) for pair in zip(newest, before, strict=True))
            self._before = _Noted(self.newest.at, committed, silent)
        self.newest = _Noted(at, np.full(count, UNKNOWN), np.zeros(count, np.int64))

    def put(self, positions: Ints, committed: Ints, silent_seconds: Floats) -> None:
        """Set the committed offsets of some positions, and how long they have been silent; NaN where not known."""
        self.newest.committed[positions] = committed
        self.newest.silent[positions] = _micros(silent_seconds)

    def restore(self, positions: Ints, usual_seconds: Floats, last_seconds: Floats) -> None:
        """Set the waits of some positions at the newest sample, as `waits` returned them."""
        count = len(self.newest.committed)
        self._usual, self._last = lengthened(self._usual, count), lengthened(self._last, count)
        self._usual[positions], self._last[positions] = _micros(usual_seconds), _micros(last_seconds)
        # What the newest sample shows is in these already.
        self._before = self.newest

    def waits(self, positions: Ints) -> tuple[Floats, Floats]:
        """Return the usual wait of these positions and their last one; NaN where it is short or not known."""
        usual, last = self._now(positions)
        return _seconds(usual), _seconds(last)

    def _now(self, positions: Ints) -> tuple[Ints, Ints]:
        """Return the usual and the last waits at the newest sample; 0 where they are short."""
        usual, last, ended = (
            np.maximum(at_numbers(column, positions), 0) for column in (self._usual, self._last, self._before.silent)
        )
        committed, before = (at_numbers(one.committed, positions) for one in (self.newest, self._before))
        has_moved = (committed > before) & (before != UNKNOWN)
        ended = np.where(ended < _LEAST_MICROS, 0, ended)
        return np.where(has_moved, np.minimum(last, ended), usual), np.where(has_moved, ended, last)


def _micros(seconds: Floats) -> Ints:
    found: Ints = np.rint(np.nan_to_num(seconds) * _MICROS).astype(np.int64)
    return found


def _seconds(micros: Ints) -> Floats:
    return np.where(micros > 0, micros / _MICROS, np.nan)
