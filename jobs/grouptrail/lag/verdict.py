"""The status of a position by Burrow's rules over a time window, and the figures that led to it.

The first rule that holds decides (docs/lag.md):

    UNKNOWN       there is no lag to judge, or an open transaction holds back commits: `problem` says why
    UNSUBSCRIBED  the group's members do not subscribe to the topic
    OK            no more than `allowed_lag` records are left to read
    EMPTY         the group's members left on purpose
    STOP          no commit for `stop_seconds`, and a record that has waited for as long
    REWIND        the committed offset went back within the window, and is still lower than it was
    OK            the group had caught up at some time within the window
    STALL         the group keeps committing, but the same offset for `stop_seconds`
    WARN          lag did not fall once in the window, which spans at least `stop_seconds`
    OK            otherwise
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from grouptrail.lag.index import UNKNOWN, Bools, Floats, Ints, Texts, at_numbers, nulls, sentences, valid

_MICROS = 1_000_000
_SAMPLES_A_WINDOW = 60

_CAUGHT_UP, _NOTHING_LEFT = "lag is not above", "nothing is left to read"
CAUGHT_UP = (_CAUGHT_UP, _NOTHING_LEFT)
"""How the reasons of the rule on `allowed_lag` begin."""


class Thresholds(NamedTuple):
    """Settings of the section [lag]."""

    window_seconds: float = 600
    stop_seconds: float = 300
    allowed_lag: int = 0


@dataclass(frozen=True)
class PositionSample:
    """The figures of positions at one sample, by entry; seconds are NaN where not known.

    `lag` counts the records that are left to read, `lost` those before them that were deleted unread. `held_back`
    says why the decoded commits are not up to date (None: all are). `without_records` counts the unread offsets that
    hold no record.
    """

    positions: Ints
    committed: Ints
    lag: Ints
    lost: Ints
    lag_seconds: Floats
    commit_seconds: Floats
    is_empty: Bools
    is_unsubscribed: Bools
    held_back: pa.Array | None = None
    without_records: Ints | None = None

    def of(self, entries: Ints) -> PositionSample:
        """Return the figures of some entries."""
        given = {name: column[entries] for name, column in vars(self).items() if isinstance(column, np.ndarray)}
        held_back = None if self.held_back is None else self.held_back.take(pa.array(entries))
        return replace(self, **given, held_back=held_back)


class _Rule(NamedTuple):
    """A status, where its rule holds, and the reason: a text, or a function that returns those of some entries."""

    status: str
    holds: Bools | np.bool_
    reason: str | Callable[[Ints], pa.Array]


@dataclass
class _WindowSample:
    at: int
    committed: Ints
    committed_at: Ints
    lag: Ints


class Verdict(NamedTuple):
    """The status of each entry, and the rule that gave it with its figures."""

    status: pa.Array
    reason: pa.Array


class Window:
    """The samples in the window of a verdict, each with columns by the positions' numbers."""

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        self._past: list[_WindowSample] = []

    def __len__(self) -> int:
        return len(self._past)

    def add(self, at: int, positions: Ints, committed: Ints, committed_at: Ints, lag: Ints) -> None:
        """Add a sample's figures (times in microseconds), in place of those of the same time.

        Keeps about sixty samples a window: more would not change the status.
        """
        micros = self._thresholds.window_seconds * _MICROS
        if self._past and at == self._past[-1].at:
            self._past.pop()
        elif self._past and at < self._past[-1].at:  # the clock went back
            self._past.clear()
        elif len(self._past) > 1 and self._past[-1].at - self._past[-2].at < micros / _SAMPLES_A_WINDOW:
            self._past.pop()
        length = int(positions.max(initial=-1)) + 1
        past = _WindowSample(at, *(np.full(length, UNKNOWN) for _ in range(3)))
        past.committed[positions], past.lag[positions] = committed, lag
        past.committed_at[positions] = committed_at
        self._past.append(past)
        self._past = [past for past in self._past if past.at >= at - micros]

    def newest_at(self, at: int) -> _WindowSample | None:
        """Return the newest sample if it is of this time, for `restore`."""
        return self._past[-1] if self._past and self._past[-1].at == at else None

    def restore(self, past: _WindowSample) -> None:
        """Put a sample back in place of the newest, which is of the same time."""
        self._past[-1] = past

    def forget(self, positions: Ints) -> None:
        """Drop these positions' samples: their logs were replaced."""
        for past in self._past:
            known = positions[positions < len(past.committed)]
            past.committed[known] = UNKNOWN
            past.lag[known] = UNKNOWN

    def since(self, seconds: float, positions: Ints) -> tuple[Ints, int]:
        """Return the committed offsets at the oldest sample of the last seconds, and its time (microseconds)."""
        past = next(past for past in self._past if past.at >= self._past[-1].at - seconds * _MICROS)
        return at_numbers(past.committed, positions), past.at

    def judge(self, now: PositionSample) -> Verdict:
        """Return the status of the newest sample, which must have been added."""
        status, reason = Texts(len(now.lag)), Texts(len(now.lag))
        everything = np.arange(len(now.lag))
        status.set(everything, "OK")
        reason.set(everything, f"{_CAUGHT_UP} {self._thresholds.allowed_lag}")
        lost = np.flatnonzero((now.lag == 0) & (now.lost > 0))
        deleted = " records were deleted before they were consumed"
        reason.set(lost, sentences(f"{_NOTHING_LEFT}: ", now.lost[lost], deleted))
        if now.without_records is not None:
            without = np.flatnonzero(now.without_records)
            held = " offsets from the committed one on hold no committed record"
            reason.set(without, sentences(f"{_NOTHING_LEFT}: the ", now.without_records[without], held))
        undecided = np.flatnonzero(
            (now.lag > self._thresholds.allowed_lag) | (now.lag == UNKNOWN) | now.is_unsubscribed
        )
        for rules in (self._rules_without_window, self._rules_of_window):
            is_open = np.full(len(undecided), True)
            for rule in rules(now.of(undecided)):
                chosen = np.flatnonzero(is_open & rule.holds)
                is_open[chosen] = False
                status.set(undecided[chosen], rule.status)
                reason.set(undecided[chosen], rule.reason if isinstance(rule.reason, str) else rule.reason(chosen))
            undecided = undecided[is_open]
        return Verdict(status.array(), reason.array())

    def _rules_without_window(self, now: PositionSample) -> list[_Rule]:
        """Return the first rules for positions with more than `allowed_lag`; the first that holds decides."""
        waiting, quiet, stop = now.lag_seconds, now.commit_seconds, self._thresholds.stop_seconds
        held_back = nulls(len(now.lag)) if now.held_back is None else now.held_back

        def emptied(at: Ints) -> pa.Array:
            return sentences("the members left the group on purpose, with ", now.lag[at], " unread")

        def stopped(at: Ints) -> pa.Array:
            of_them = (now.lag[at], " unread, the first of them for ", waiting[at], " s")
            return sentences("no commit for ", quiet[at], " s, ", *of_them)

        return [
            _Rule("UNSUBSCRIBED", now.is_unsubscribed, "no member of the group subscribes to the topic"),
            _Rule("UNKNOWN", now.lag == UNKNOWN, "there is no lag to judge"),
            _Rule("UNKNOWN", valid(held_back), lambda at: held_back.take(pa.array(at))),
            _Rule("EMPTY", now.is_empty, emptied),
            _Rule("STOP", (quiet >= stop) & (waiting >= stop), stopped),
        ]

    def _rules_of_window(self, now: PositionSample) -> list[_Rule]:
        """Return the rules for positions that no earlier rule has decided."""
        window, stop = self._figures(now.positions), self._thresholds.stop_seconds
        quiet, same, span = now.commit_seconds, window.same_seconds, window.span_seconds

        def rewound(at: Ints) -> pa.Array:
            return sentences("committed went back from ", window.rewound_from[at], " to ", window.rewound_to[at])

        def stalled(at: Ints) -> pa.Array:
            since = (" for ", same[at], " s, ", now.lag[at], " unread")
            return sentences("has committed only offset ", now.committed[at], *since)

        def warned(at: Ints) -> pa.Array:
            lags = (window.first_lag[at], " before, ", now.lag[at], " now")
            return sentences("lag did not fall in ", span[at], " s: ", *lags)

        return [
            _Rule("REWIND", window.rewound_from != UNKNOWN, rewound),
            _Rule("OK", window.caught_up, f"had caught up within {self._thresholds.window_seconds:.0f} s"),
            _Rule("STALL", (same >= stop) & (quiet < same) & window.is_repeated, stalled),
            _Rule("WARN", (span >= stop) & ~window.fell, warned),
            _Rule("OK", window.fell, "lag fell in the window"),
            _Rule("OK", np.True_, "the window is too short to judge"),
        ]

    def _figures(self, positions: Ints) -> _WindowFigures:
        """Return what the samples show of these positions, from the oldest on."""
        figures = _WindowFigures.unknown(len(positions))
        newest = self._past[-1].at
        committed_at = at_numbers(self._past[-1].committed_at, positions)
        first_committed_at = np.full(len(positions), UNKNOWN)
        before = committed_before = np.full(len(positions), UNKNOWN)
        for past in self._past:
            committed, lag = at_numbers(past.committed, positions), at_numbers(past.lag, positions)
            moved = figures.add((newest - past.at) / _MICROS, committed, lag, committed_before, before)
            first_committed_at = np.where(moved, at_numbers(past.committed_at, positions), first_committed_at)
            figures.caught_up |= (lag != UNKNOWN) & (lag <= self._thresholds.allowed_lag)
            before = np.where(lag != UNKNOWN, lag, before)
            committed_before = np.where(committed != UNKNOWN, committed, committed_before)
        # Two samples may show the same commit: only a later commit time makes it a second one.
        figures.is_repeated = committed_at > first_committed_at
        return figures


@dataclass
class _WindowFigures:
    """What the window shows of each position; `UNKNOWN` where it shows no such thing."""

    rewound_from: Ints
    rewound_to: Ints
    caught_up: Bools
    fell: Bools
    is_repeated: Bools
    same_seconds: Floats
    span_seconds: Floats
    first_lag: Ints

    @classmethod
    def unknown(cls, count: int) -> _WindowFigures:
        numbers, flags, seconds = (np.full(count, filler) for filler in (UNKNOWN, False, 0.0))
        return cls(numbers, numbers, flags, flags.copy(), flags.copy(), seconds, seconds.copy(), numbers.copy())

    def add(self, ago_seconds: float, committed: Ints, lag: Ints, committed_before: Ints, before: Ints) -> Bools:
        """Add the next sample, so many seconds ago, with the last known figures before it.

        Return where the committed offset moved.
        """
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
