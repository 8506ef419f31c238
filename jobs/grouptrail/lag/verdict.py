"""The verdict on a position: Burrow's rules, over a window in time, with the figures that led to it.

In this order, the first that holds (docs/lag.md):

    UNKNOWN       there is no lag to judge, or an open transaction holds back commits: `problem` says why
    UNSUBSCRIBED  the group's members do not subscribe to the topic
    OK            no more than `allowed_lag` records are left to read
    EMPTY         the group's members left by themselves
    STOP          no commit for `stop_seconds`, and a record that has waited for as long
    REWIND        the committed offset went back within the window, and has not come to where it was
    OK            it had caught up at some time within the window
    STALL         it commits again and again, but the same offset for `stop_seconds`
    WARN          lag did not fall once in the window, which spans at least `stop_seconds`
    OK            otherwise
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from grouptrail.lag.index import UNKNOWN, Bools, Floats, Ints, at_numbers

_MICROS = 1_000_000
_SAMPLES_A_WINDOW = 60

_CAUGHT_UP, _NOTHING_LEFT = "lag is not above", "nothing is left to read"
CAUGHT_UP = (_CAUGHT_UP, _NOTHING_LEFT)
"""What the reasons of those verdicts begin with that no rule after `allowed_lag` was asked for."""


class Thresholds(NamedTuple):
    """As in the configuration's section [lag]."""

    window_seconds: float = 600
    stop_seconds: float = 300
    allowed_lag: int = 0


@dataclass(frozen=True)
class Now:
    """What is known of positions at a sample, each by its number; seconds are NaN where not known.

    `lag` counts the records that are left to read; `lost` those before them that were deleted unread. `held_back`:
    why the commits that have landed are not those of the time; empty: all are. `without_records`: how many offsets
    are left that hold no record.
    """

    positions: Ints
    committed: Ints
    lag: Ints
    lost: Ints
    lag_seconds: Floats
    commit_seconds: Floats
    is_empty: Bools
    is_unsubscribed: Bools
    held_back: Sequence[str | None] = ()
    without_records: Ints | None = None


@dataclass
class _Past:
    at: int
    committed: Ints
    committed_at: Ints
    lag: Ints


class Verdict(NamedTuple):
    """A status for each position, and the rule with its figures."""

    status: list[str]
    reason: list[str]


class Window:
    """The samples that a verdict looks back on, each a column by the positions' numbers."""

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        self._past: list[_Past] = []

    def __len__(self) -> int:
        return len(self._past)

    def add(self, at: int, positions: Ints, committed: Ints, committed_at: Ints, lag: Ints) -> None:
        """A sample's figures (times in microseconds), in place of those that it had.

        More samples than some sixty a window tell no more.
        """
        micros = self._thresholds.window_seconds * _MICROS
        if self._past and at == self._past[-1].at:
            self._past.pop()
        elif self._past and at < self._past[-1].at:  # the clock went back
            self._past.clear()
        elif len(self._past) > 1 and self._past[-1].at - self._past[-2].at < micros / _SAMPLES_A_WINDOW:
            self._past.pop()
        length = int(positions.max(initial=-1)) + 1
        past = _Past(at, *(np.full(length, UNKNOWN) for _ in range(3)))
        past.committed[positions], past.lag[positions] = committed, lag
        past.committed_at[positions] = committed_at
        self._past.append(past)
        self._past = [past for past in self._past if past.at >= at - micros]

    def newest_at(self, at: int) -> _Past | None:
        """The newest sample, if it is of this time: for `restore`."""
        return self._past[-1] if self._past and self._past[-1].at == at else None

    def restore(self, past: _Past) -> None:
        """Puts a sample back in place of the newest, which is of the same time."""
        self._past[-1] = past

    def forget(self, positions: Ints) -> None:
        """Forgets these positions' samples: their logs are others since."""
        for past in self._past:
            known = positions[positions < len(past.committed)]
            past.committed[known] = UNKNOWN
            past.lag[known] = UNKNOWN

    def since(self, seconds: float, positions: Ints) -> tuple[Ints, int]:
        """The committed offsets at the oldest sample of so many seconds, and when that was."""
        past = next(past for past in self._past if past.at >= self._past[-1].at - seconds * _MICROS)
        return at_numbers(past.committed, positions), past.at

    def judge(self, now: Now) -> Verdict:
        """The newest sample, which must have been added."""
        told = Verdict(["OK"] * len(now.lag), [f"{_CAUGHT_UP} {self._thresholds.allowed_lag}"] * len(now.lag))
        for place in np.flatnonzero((now.lag == 0) & (now.lost > 0)).tolist():
            lost = f"{now.lost[place]} records were deleted before they were consumed"
            told.reason[place] = f"{_NOTHING_LEFT}: {lost}"
        without = np.zeros(0, np.int64) if now.without_records is None else now.without_records
        for place in np.flatnonzero(without).tolist():
            held = f"no committed record is in the {without[place]} offsets behind the committed one"
            told.reason[place] = f"{_NOTHING_LEFT}: {held}"
        lagging = np.flatnonzero(
            (now.lag > self._thresholds.allowed_lag) | (now.lag == UNKNOWN) | now.is_unsubscribed
        )
        seen = self._seen(now.positions[lagging])
        for number, place in enumerate(lagging.tolist()):
            told.status[place], told.reason[place] = self._told(now, place, seen, number)
        return told

    def _told(self, now: Now, place: int, seen: _Seen, number: int) -> tuple[str, str]:
        lag, stop = int(now.lag[place]), self._thresholds.stop_seconds
        if now.is_unsubscribed[place]:
            return "UNSUBSCRIBED", "no member of the group subscribes to the topic"
        if lag == UNKNOWN:
            return "UNKNOWN", "there is no lag to judge"
        if now.held_back and (why := now.held_back[place]):
            return "UNKNOWN", why
        if now.is_empty[place]:
            return "EMPTY", f"the members left the group by themselves, with {lag} unread"
        waiting, quiet = now.lag_seconds[place], now.commit_seconds[place]
        if quiet >= stop and waiting >= stop:
            return "STOP", f"no commit for {quiet:.0f} s, {lag} unread, the first of them for {waiting:.0f} s"
        return self._in_window(now, place, seen, number)

    def _in_window(self, now: Now, place: int, seen: _Seen, number: int) -> tuple[str, str]:
        lag, stop = int(now.lag[place]), self._thresholds.stop_seconds
        if seen.rewound_from[number] != UNKNOWN:
            return "REWIND", f"committed went back from {seen.rewound_from[number]} to {seen.rewound_to[number]}"
        if seen.caught_up[number]:
            return "OK", f"had caught up within {self._thresholds.window_seconds:.0f} s"
        same = float(seen.same_seconds[number])
        if same >= stop and now.commit_seconds[place] < same and seen.is_repeated[number]:
            return "STALL", f"commits offset {now.committed[place]} again and again for {same:.0f} s, {lag} unread"
        span = float(seen.span_seconds[number])
        if span >= stop and not seen.fell[number]:
            return "WARN", f"lag did not fall in {span:.0f} s: {seen.first_lag[number]} before, {lag} now"
        return "OK", "lag fell in the window" if seen.fell[number] else "too short a time to tell"

    def _seen(self, positions: Ints) -> _Seen:
        """What the window shows of these positions, its samples taken from the oldest on."""
        seen = _Seen.nothing(len(positions))
        newest = self._past[-1].at
        committed_at = at_numbers(self._past[-1].committed_at, positions)
        first_committed_at = np.full(len(positions), UNKNOWN)
        before = committed_before = np.full(len(positions), UNKNOWN)
        for past in self._past:
            committed, lag = at_numbers(past.committed, positions), at_numbers(past.lag, positions)
            moved = seen.add((newest - past.at) / _MICROS, committed, lag, committed_before, before)
            first_committed_at = np.where(moved, at_numbers(past.committed_at, positions), first_committed_at)
            seen.caught_up |= (lag != UNKNOWN) & (lag <= self._thresholds.allowed_lag)
            before = np.where(lag != UNKNOWN, lag, before)
            committed_before = np.where(committed != UNKNOWN, committed, committed_before)
        # One commit that a sample saw too late to be dated before it is not two.
        seen.is_repeated = committed_at > first_committed_at
        return seen


@dataclass
class _Seen:
    """Of each position; UNKNOWN where there was no such thing."""

    rewound_from: Ints
    rewound_to: Ints
    caught_up: Bools
    fell: Bools
    is_repeated: Bools
    same_seconds: Floats
    span_seconds: Floats
    first_lag: Ints

    @classmethod
    def nothing(cls, count: int) -> _Seen:
        numbers, flags, seconds = (np.full(count, filler) for filler in (UNKNOWN, False, 0.0))
        return cls(numbers, numbers, flags, flags.copy(), flags.copy(), seconds, seconds.copy(), numbers.copy())

    def add(self, ago_seconds: float, committed: Ints, lag: Ints, committed_before: Ints, before: Ints) -> Bools:
        """One more sample, so long ago, with the last known figures before it; returns where the offset moved."""
        is_there = committed != UNKNOWN
        went_back = is_there & (committed < committed_before) & (self.rewound_from == UNKNOWN)
        is_back = is_there & (self.rewound_from != UNKNOWN) & (committed >= self.rewound_from)
        self.rewound_to = np.where(went_back, committed, self.rewound_to)
        self.rewound_from = np.where(went_back, committed_before, np.where(is_back, UNKNOWN, self.rewound_from))
        self.fell |= (lag != UNKNOWN) & (before != UNKNOWN) & (lag < before)
        moved: Bools = is_there & (committed != committed_before)
        self.same_seconds = np.where(moved, ago_seconds, self.same_seconds)
        is_first = (lag != UNKNOWN) & (before == UNKNOWN)
        self.first_lag = np.where(is_first, lag, self.first_lag)
        self.span_seconds = np.where(is_first, ago_seconds, self.span_seconds)
        return moved
