"""The samples in the window of a verdict, and what they show of each position.

Ten minutes of samples of a million positions are more than a gigabyte. Most figures of a sample follow from those of
the one before: offsets are committed for some positions, and the lag of the others grows by what was produced. So the
oldest sample, the newest one and the changes between them are kept, and what the verdict asks for is noted when it
happens.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from grouptrail.lag.index import MICROS, UNKNOWN, Bools, Floats, Ints, at_numbers, lengthened

_SAMPLES_A_WINDOW = 60

_Numbers = npt.NDArray[np.int32]


@dataclass
class Sample:
    """The figures of a sample by the positions' numbers; times are in microseconds, `partitions` are numbers.

    `keeps_up`: what was there some samples before has been read.
    """

    at: int
    committed: Ints
    committed_at: Ints
    lag: Ints
    partitions: Ints
    keeps_up: Bools


@dataclass
class Figures:
    """What the samples show of each position, the oldest first; `UNKNOWN` where they show no such thing.

    `rewound_from` and `rewound_to`: the first step back of the committed offset that no later one has made up for.
    `same_seconds`: for how long the committed offset has been the same, `is_repeated` whether it was committed again
    since. `span_seconds` and `first_lag`: how long ago lag was first known, and what it was.
    """

    rewound_from: Ints
    rewound_to: Ints
    caught_up: Bools
    kept_up: Bools
    fell: Bools
    is_repeated: Bools
    same_seconds: Floats
    span_seconds: Floats
    first_lag: Ints


class _Rewinds(NamedTuple):
    """Steps back of committed offsets at a sample; `since` are the times of the samples before."""

    positions: _Numbers
    before: Ints
    after: Ints
    since: Ints

    def of(self, kept: Bools) -> _Rewinds:
        return _Rewinds(self.positions[kept], self.before[kept], self.after[kept], self.since[kept])

    def without(self, positions: Ints) -> _Rewinds:
        return self.of(~np.isin(self.positions, positions))


class _Change(NamedTuple):
    """How a sample differs from the kept one before.

    `produced`: by partition, how much the lag of a position has grown unless `lag` has another value for it.
    `rewinds` are those of the samples since.
    """

    at: int
    moved: _Numbers
    committed: Ints
    produced: Ints
    other: _Numbers
    lag: Ints
    rewinds: list[_Rewinds]

    def without(self, positions: Ints) -> _Change:
        """Return the change without some positions."""
        moved, other = (~np.isin(at, positions) for at in (self.moved, self.other))
        return self._replace(
            moved=self.moved[moved],
            committed=self.committed[moved],
            other=self.other[other],
            lag=self.lag[other],
            rewinds=[rewinds.without(positions) for rewinds in self.rewinds],
        )


@dataclass
class _Positions:
    """Columns by the positions' numbers; times are those of samples.

    The first four are the figures of the oldest sample and of the last one, the next ones the last known figures and
    when they were known. `fell_since` and `repeated_since` are the times of the sample before the event. `lag_since`
    and `committed_since` are when figures became known, `lag_then` the lag at that time.
    """

    oldest_committed: Ints
    oldest_lag: Ints
    last_committed: Ints
    last_lag: Ints
    known_committed: Ints
    known_committed_at: Ints
    known_commit_at: Ints
    known_lag: Ints
    known_lag_at: Ints
    caught_up_at: Ints
    kept_up_at: Ints
    fell_since: Ints
    changed_at: Ints
    repeated_since: Ints
    lag_since: Ints
    lag_then: Ints
    committed_since: Ints
    partitions: Ints

    @classmethod
    def none(cls) -> _Positions:
        return cls(*(np.empty(0, np.int64) for _ in fields(cls)))

    def grow(self, count: int) -> None:
        """Give each column a value for this many positions."""
        for name, column in vars(self).items():
            setattr(self, name, lengthened(column, count))

    def of(self, positions: Ints) -> _Positions:
        """Return the columns of some positions, whose numbers are known."""
        return _Positions(*(column[positions] for column in vars(self).values()))


class Window:
    """The samples of the last `seconds`.

    What happened is noted at each sample; what has changed is kept of about sixty.
    """

    def __init__(self, seconds: float, allowed_lag: int) -> None:
        self._micros = round(seconds * MICROS)
        self._allowed_lag = allowed_lag
        self._newest: Sample | None = None
        self._times: list[int] = []
        self._changes: list[_Change] = []
        self._rewinds: list[_Rewinds] = []
        self._noted_at = UNKNOWN
        self._all = _Positions.none()

    def __len__(self) -> int:
        return len(self._times) + (self._newest is not None)

    def start_sample(self, at: int, count: int) -> None:
        """Start a sample (microseconds) of at most this many positions, in place of one of the same time."""
        newest = self._newest
        if newest is not None and at < newest.at:  # the clock went back
            self._times, self._changes, self._rewinds, self._all = [], [], [], _Positions.none()
        elif newest is not None and at > newest.at:
            self._note(newest)
        figures = [np.full(count, UNKNOWN) for _ in range(4)]
        self._newest = Sample(at, figures[0], figures[1], figures[2], figures[3], keeps_up=np.full(count, False))
        while self._times and self._times[0] < at - self._micros:
            self._drop_oldest()
        self._all.grow(count)

    def put(
        self,
        positions: Ints,
        partitions: Ints,
        *,
        committed: Ints,
        committed_at: Ints,
        lag: Ints,
        keeps_up: Bools | np.bool_ = np.False_,
    ) -> None:
        """Set the figures of some positions at the newest sample."""
        newest = self._newest
        assert newest is not None
        newest.committed[positions], newest.committed_at[positions] = committed, committed_at
        newest.lag[positions], newest.partitions[positions] = lag, partitions
        newest.keeps_up[positions] = keeps_up

    def newest_at(self, at: int) -> Sample | None:
        """Return the newest sample if it is of this time, for `restore`."""
        return self._newest if self._newest is not None and self._newest.at == at else None

    def restore(self, sample: Sample) -> None:
        """Put a sample back in place of the newest, which is of the same time."""
        self._newest = sample

    def forget(self, positions: Ints) -> None:
        """Drop these positions' samples: their logs were replaced."""
        if not len(positions):
            return
        known = positions[positions < len(self._all.partitions)]
        for name, column in vars(self._all).items():
            if name != "partitions":
                column[known] = UNKNOWN
        self._changes = [change.without(known) for change in self._changes]
        self._rewinds = [rewinds.without(known) for rewinds in self._rewinds]
        if self._newest is not None:
            there = positions[positions < len(self._newest.committed)]
            self._newest.committed[there] = self._newest.lag[there] = UNKNOWN
            self._newest.keeps_up[there] = False

    def since(self, seconds: float) -> tuple[Ints, int]:
        """Return the committed offsets at the oldest sample of the last seconds, and its time (microseconds).

        The offsets are by position; those of the newest sample are `put` later.
        """
        assert self._newest is not None
        start = self._newest.at - seconds * MICROS
        at = next((at for at in self._times if at >= start), None)
        if at is None:
            return self._newest.committed, self._newest.at
        committed = self._all.oldest_committed.copy()
        for change in self._changes:
            if change.at <= at:
                committed[change.moved] = change.committed
        return committed, at

    def figures(self, positions: Ints) -> Figures:
        """Return what the samples show of these positions, whose newest figures have been `put`."""
        assert self._newest is not None
        newest = self._newest
        past, start = self._all.of(positions), self._times[0] if self._times else newest.at
        committed, commit_at, lag = (
            column[positions] for column in (newest.committed, newest.committed_at, newest.lag)
        )
        has_lag, has_committed = lag != UNKNOWN, committed != UNKNOWN
        fell_now = has_lag & (past.known_lag_at >= start) & (lag < past.known_lag)
        caught_up_now = has_lag & (lag <= self._allowed_lag)
        first_at = np.where(past.oldest_lag != UNKNOWN, start, past.lag_since)
        first_lag = np.where(past.oldest_lag != UNKNOWN, past.oldest_lag, past.lag_then)
        is_first = first_at < start
        first_lag, first_at = np.where(is_first, lag, first_lag), np.where(is_first, newest.at, first_at)
        was_known = past.known_committed_at >= start
        moved_now = has_committed & ((committed != past.known_committed) | ~was_known)
        first_known_at = np.where(past.oldest_committed != UNKNOWN, start, past.committed_since)
        same_since = np.where(moved_now | ~was_known, newest.at, np.maximum(past.changed_at, first_known_at))
        repeats_now = ~moved_now & (commit_at > past.known_commit_at) & (past.known_committed_at >= same_since)
        rewound_from, rewound_to = self._rewound(positions, committed, past, start)
        return Figures(
            rewound_from,
            rewound_to,
            caught_up=(past.caught_up_at >= start) | caught_up_now,
            kept_up=(past.kept_up_at >= start) | newest.keeps_up[positions],
            fell=(past.fell_since >= start) | fell_now,
            is_repeated=was_known & ~moved_now & (repeats_now | (past.repeated_since >= same_since)),
            same_seconds=(newest.at - same_since) / MICROS,
            span_seconds=(newest.at - first_at) / MICROS,
            first_lag=first_lag,
        )

    def _note(self, sample: Sample) -> None:
        """Note what a sample shows that a later one follows, and keep it unless the one kept before is too close."""
        count, at, past = len(self._all.partitions), sample.at, self._all
        committed, commit_at, lag, partitions = (
            lengthened(column, count)
            for column in (sample.committed, sample.committed_at, sample.lag, sample.partitions)
        )
        past.partitions = np.where(partitions != UNKNOWN, partitions, past.partitions)
        self._rewinds.append(_rewinds(np.arange(count), committed, past))
        if not self._times or at - self._times[-1] >= self._micros / _SAMPLES_A_WINDOW:
            self._keep(at, committed, lag)
        has_lag, has_committed = lag != UNKNOWN, committed != UNKNOWN
        past.caught_up_at[has_lag & (lag <= self._allowed_lag)] = at
        past.kept_up_at[: len(sample.keeps_up)][sample.keeps_up] = at
        fell = has_lag & (lag < past.known_lag)
        past.fell_since[fell] = past.known_lag_at[fell]
        appeared = has_lag & (past.known_lag_at != self._noted_at)
        past.lag_since[appeared], past.lag_then[appeared] = at, lag[appeared]
        past.committed_since[has_committed & (past.known_committed_at != self._noted_at)] = at
        self._noted_at = at
        moved = has_committed & (committed != past.known_committed)
        past.changed_at[moved] = at
        repeated = has_committed & ~moved & (commit_at > past.known_commit_at)
        past.repeated_since[repeated] = past.known_committed_at[repeated]
        past.known_lag = np.where(has_lag, lag, past.known_lag)
        past.known_lag_at[has_lag] = at
        past.known_committed = np.where(has_committed, committed, past.known_committed)
        past.known_committed_at[has_committed] = at
        past.known_commit_at = np.where(has_committed, commit_at, past.known_commit_at)

    def _keep(self, at: int, committed: Ints, lag: Ints) -> None:
        """Keep the figures of a sample as changes to those of the one kept before."""
        past = self._all
        if self._times:
            self._changes.append(self._change(at, committed, lag))
        else:
            past.oldest_committed, past.oldest_lag = committed, lag
        self._rewinds = []
        self._times.append(at)
        # The oldest sample's columns are changed in place later.
        past.last_committed, past.last_lag = (committed, lag) if self._changes else (committed.copy(), lag.copy())

    def _change(self, at: int, committed: Ints, lag: Ints) -> _Change:
        past = self._all
        is_same = committed == past.last_committed
        grown = np.flatnonzero(is_same & (lag != UNKNOWN) & (past.last_lag != UNKNOWN))
        produced = np.zeros(int(past.partitions.max(initial=0)) + 1, np.int64)
        produced[past.partitions[grown]] = (lag - past.last_lag)[grown]
        moved = np.flatnonzero(~is_same).astype(np.int32)
        other = np.flatnonzero(lag != _grown(past.last_lag, produced, past.partitions)).astype(np.int32)
        return _Change(at, moved, committed[moved], produced, other, lag[other], self._rewinds)

    def _drop_oldest(self) -> None:
        self._times.pop(0)
        if not self._changes:
            self._rewinds, self._all = [], _Positions.none()
            return
        change, past = self._changes.pop(0), self._all
        past.oldest_committed[change.moved] = change.committed
        past.oldest_lag = _grown(past.oldest_lag, change.produced, past.partitions)
        past.oldest_lag[change.other] = change.lag

    def _rewound(self, positions: Ints, committed: Ints, past: _Positions, start: int) -> tuple[Ints, Ints]:
        """Return from which offset to which the committed one went back first, unless a later one was as high."""
        went_from, went_to = (np.full(len(positions), UNKNOWN) for _ in range(2))
        steps = [rewinds for change in self._changes for rewinds in change.rewinds]
        steps += [*self._rewinds, _rewinds(positions, committed, past)]
        steps = [step for step in (step.of(step.since >= start) for step in steps) if len(step.positions)]
        if not steps:
            return went_from, went_to
        entry_of = np.full(len(self._all.partitions), UNKNOWN)
        entry_of[positions] = np.arange(len(positions))
        highest_later = np.where(committed != UNKNOWN, committed, past.known_committed)
        for step in reversed(steps):
            wanted = step.of(entry_of[step.positions] != UNKNOWN)
            entries = entry_of[wanted.positions]
            lasts = wanted.before > highest_later[entries]
            went_from[entries[lasts]], went_to[entries[lasts]] = wanted.before[lasts], wanted.after[lasts]
            highest_later[entries] = np.maximum(highest_later[entries], wanted.before)
        return went_from, went_to


def _rewinds(positions: Ints, committed: Ints, past: _Positions) -> _Rewinds:
    """Return where the committed offsets of positions are lower than the last known ones."""
    where = np.flatnonzero((committed != UNKNOWN) & (committed < past.known_committed))
    before, since = past.known_committed[where], past.known_committed_at[where]
    return _Rewinds(positions[where].astype(np.int32), before, committed[where], since)


def _grown(lag: Ints, produced: Ints, partitions: Ints) -> Ints:
    """Return lag after records were produced, where it is known."""
    return np.where(lag == UNKNOWN, UNKNOWN, lag + at_numbers(produced, partitions))
