"""Groups whose clients commit the offset of the last record that they have read, instead of the next one.

Kafka's protocol wants the next one: with the last one, a record seems to be left for ever when no more come. A reader
that is stuck at the last record looks the same, but only once. What such a client leaves at each pause shows its
habit: exactly one record each time, and never none.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from grouptrail.lag.index import MICROS, UNKNOWN, Ints, at_numbers, lengthened

HABITUAL_PAUSES = 3
"""So many pauses in a row, each with one record left, are a habit."""
# In a shorter pause a client that commits the next offset may not have done so yet.
_PAUSE_MICROS = 30 * MICROS


@dataclass(frozen=True)
class _Pauses:
    """The figures of a sample by the positions' numbers; times are in microseconds.

    `since`: when log end and committed offset became what they are, `until` when they were last seen so. `pauses`: at
    how many pauses in a row one record was left; 0 if none was left at the last one, `UNKNOWN` before any.
    """

    end: Ints
    committed: Ints
    left: Ints
    since: Ints
    until: Ints
    pauses: Ints

    @classmethod
    def none(cls) -> _Pauses:
        return cls(*(np.empty(0, np.int64) for _ in fields(cls)))

    def of(self, positions: Ints) -> _Pauses:
        return _Pauses(*(at_numbers(column, positions) for column in vars(self).values()))

    def grown(self, count: int) -> _Pauses:
        """Return columns of at least this many positions, which may be changed."""
        return _Pauses(*(lengthened(column, count).copy() for column in vars(self).values()))


class LastOffsetHabits:
    """Which positions are committed one record too early, up to date with samples in the order of their times."""

    def __init__(self) -> None:
        self._at = UNKNOWN
        self._before = self.newest = _Pauses.none()

    def start_sample(self, at: int, count: int) -> None:
        """Start a sample (microseconds) of at most this many positions, in place of one of the same time."""
        if at != self._at:
            self._at, self._before = at, self.newest
        self.newest = self._before.grown(count)

    def put(self, positions: Ints, *, end: Ints, committed: Ints, left: Ints) -> None:
        """Set log ends and committed offsets, and how many records are left, `UNKNOWN` where that is not known."""
        before, newest = self._before.of(positions), self.newest
        is_known = (end != UNKNOWN) & (committed != UNKNOWN) & (left != UNKNOWN)
        is_same = (end == before.end) & (committed == before.committed)
        since = np.where(is_same, before.since, self._at)
        was_pause = (before.end != UNKNOWN) & (before.until - before.since >= _PAUSE_MICROS)
        has_ended = was_pause & (end > before.end)
        pauses = np.where(has_ended & (before.left == 1), np.maximum(before.pauses, 0) + 1, before.pauses)
        pauses = np.where(has_ended & (before.left > 1), UNKNOWN, pauses)
        pauses = np.where((left == 0) & (self._at - since >= _PAUSE_MICROS), 0, pauses)
        known = positions[is_known]
        figures = _Pauses(end, committed, left, since, np.full(len(positions), self._at), pauses)
        for name, column in vars(figures).items():
            getattr(newest, name)[known] = column[is_known]

    def restore(self, positions: Ints, pauses: Ints) -> None:
        """Set the stored number of pauses at the newest sample, whose figures have been `put`."""
        self.newest.pauses[positions] = pauses

    def forget(self, positions: Ints) -> None:
        """Forget some positions: their logs were replaced."""
        for figures in (self._before, self.newest):
            for column in vars(figures).values():
                column[positions[positions < len(column)]] = UNKNOWN

    def pauses(self, positions: Ints) -> Ints:
        """Return at how many pauses in a row one record was left, as `_Pauses` has it."""
        return at_numbers(self.newest.pauses, positions)

    def habitual(self, groups: Ints) -> Ints:
        """Return by position at how many pauses one record was left, where that is a habit; 0 elsewhere.

        `groups`: the numbers of the positions' groups. A client treats all partitions alike: one with fewer pauses
        has the habit of its group, if no partition of that was read to its end.
        """
        pauses = at_numbers(self._before.pauses, np.arange(len(groups)))
        count = int(groups.max(initial=-1)) + 1
        of_group, has_read_all = np.zeros(count, np.int64), np.full(count, False)
        if len(pauses):
            of_group = np.bincount(groups, np.maximum(pauses, 0), count).astype(np.int64)
            has_read_all[groups[pauses == 0]] = True
        of_group[has_read_all] = 0
        known = np.where(pauses >= HABITUAL_PAUSES, pauses, np.where(pauses == 0, 0, of_group[groups]))
        habitual: Ints = np.where(known >= HABITUAL_PAUSES, known, 0)
        return habitual
