"""Lag in seconds: the age of a record, from samples of its log's end offset.

A record at offset 120 of a log that ended at 100 and, 10 s later, at 140 was written within these 10 s. The time is
interpolated as if the 40 records had come evenly; the error is the distance to the farther of the two samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grouptrail.lag.index import MICROS, UNKNOWN, Bools, Floats, Ints, at_numbers, lengthened

_RECENT_SECONDS = 600
_SPACING = 0.1
HORIZON_SECONDS = 7 * 24 * 3600
LONGEST_SPAN_SECONDS = HORIZON_SECONDS * _SPACING
"""Times from so long before the horizon decide which of those after it are kept."""


@dataclass
class LogEndSample:
    """Log end offsets by the partitions' numbers; `UNKNOWN` where the leader did not answer.

    The brokers were queried at `asked_at` at the earliest and had answered by `answered_at` (microseconds).
    """

    asked_at: int
    answered_at: int
    ends: Ints


@dataclass(frozen=True)
class Age:
    """The ages of records and their error bounds; NaN in `errors`: `seconds` is a lower bound."""

    seconds: Floats
    errors: Floats


@dataclass(frozen=True)
class Written:
    """When records were written: after a sample without and before one with them (microseconds, or `UNKNOWN`).

    `share` is where between the two they were written, had the records come evenly.
    """

    after: Ints
    before: Ints
    share: Floats

    @classmethod
    def unknown(cls, count: int) -> Written:
        """Return that nothing is known of some records."""
        return cls(np.full(count, UNKNOWN), np.full(count, UNKNOWN), np.zeros(count))

    def of(self, entries: Bools) -> Written:
        """Return some entries."""
        return Written(self.after[entries], self.before[entries], self.share[entries])

    def put(self, entries: Ints, written: Written) -> None:
        """Set some entries."""
        self.after[entries], self.before[entries], self.share[entries] = written.after, written.before, written.share

    def age(self, now: Ints) -> Age:
        """Return the ages at the times `now` (microseconds); a record that no sample shows came after the newest."""
        latest = np.where(self.before == UNKNOWN, now, self.before)
        is_bounded = self.after == UNKNOWN
        written = np.where(is_bounded, latest, self.after + np.clip(self.share, 0, 1) * (latest - self.after))
        errors = np.maximum(written - self.after, latest - written) / MICROS
        seconds = np.maximum(now - written, 0) / MICROS
        return Age(seconds, np.where(is_bounded, np.nan, errors))


class LogEnds:
    """Samples of the log end offsets of 7 days, thinned so that gaps are about a tenth of their age at most.

    Which samples are kept depends on their times and the newest one's alone, so that a restart keeps the same ones.
    """

    def __init__(self) -> None:
        self._samples: list[LogEndSample] = []  # the newest last
        self._rows: _Rows | None = None

    def __len__(self) -> int:
        return len(self._samples)

    def add(self, sample: LogEndSample) -> None:
        """Add a sample in place of one of the same time; after a clock step back, drop all earlier ones."""
        if self._samples and sample.answered_at == self._samples[-1].answered_at:
            self._samples.pop()
        elif self._samples and sample.answered_at < self._samples[-1].answered_at:
            self._samples.clear()
        self._samples.append(sample)
        kept = _thinned([sample.answered_at for sample in self._samples], sample.answered_at)
        self._samples = [self._samples[number] for number in kept]
        self._rows = None

    def forget(self, partitions: Ints) -> None:
        """Drop what was sampled of these partitions before the newest sample: their logs were replaced."""
        for sample in self._samples[:-1]:
            sample.ends[partitions[partitions < len(sample.ends)]] = UNKNOWN
        self._rows = None

    @property
    def samples(self) -> Sequence[LogEndSample]:
        """The samples that are kept, the oldest first."""
        return self._samples

    def written(self, partitions: Ints, offsets: Ints) -> Written:
        """Return when the records at these offsets were written, as far as the samples show."""
        count = int(partitions.max(initial=-1)) + 1
        if self._rows is None or self._rows.count < count:
            self._rows = _Rows.of(self._samples, count)
        return self._rows.written(partitions, offsets)

    def ends_at(self, partitions: Ints, times: Ints) -> Ints:
        """Return the log end offsets of the newest sample up to each time (microseconds); `UNKNOWN` without one."""
        ends = np.full(len(partitions), UNKNOWN)
        answered_at = np.array([sample.answered_at for sample in self._samples], np.int64)
        rows = np.searchsorted(answered_at, times, side="right") - 1
        for row in np.unique(rows[rows >= 0]).tolist():
            ours = rows == row
            ends[ours] = at_numbers(self._samples[row].ends, partitions[ours])
        return ends

    def ends_since(self, partitions: Ints, times: Ints) -> Ints:
        """Return the log end offsets of the oldest sample since each time (microseconds); `UNKNOWN` without one."""
        ends = np.full(len(partitions), UNKNOWN)
        rows = np.searchsorted(np.array([sample.asked_at for sample in self._samples], np.int64), times)
        for row in np.unique(rows[rows < len(self._samples)]).tolist():
            ours = rows == row
            ends[ours] = at_numbers(self._samples[row].ends, partitions[ours])
        return ends

    def end_since(self, partitions: Ints, at: int) -> tuple[Ints, int]:
        """Return the log end offsets of the oldest sample since `at`, and its time (microseconds).

        The offsets are `UNKNOWN` where there is no such sample.
        """
        none = LogEndSample(at, at, np.empty(0, np.int64))
        sample = next((sample for sample in self._samples if sample.answered_at >= at), none)
        return at_numbers(sample.ends, partitions), sample.answered_at


@dataclass(frozen=True)
class _Rows:
    """Samples as rows of a matrix with a column for each partition: the oldest first, between two without ends.

    `last_known` and `next_known` are the nearest rows with an end, `known_ends` the end in the last one.
    """

    ends: Ints
    known_ends: Ints
    last_known: npt.NDArray[np.int16]
    next_known: npt.NDArray[np.int16]
    asked_at: Ints
    answered_at: Ints

    @classmethod
    def of(cls, samples: Sequence[LogEndSample], least: int) -> _Rows:
        rows, count = len(samples), max([least, *(len(one.ends) for one in samples)])
        unknown = np.full((1, count), UNKNOWN)
        ends = np.concatenate([unknown, *(lengthened(one.ends, count)[None] for one in samples), unknown])
        row = np.arange(rows + 2, dtype=np.int16)[:, None]
        last_known = np.maximum.accumulate(np.where(ends == UNKNOWN, 0, row))
        next_known = np.minimum.accumulate(np.where(ends == UNKNOWN, np.int16(rows + 1), row)[::-1])[::-1]
        asked_at, answered_at = (
            np.array([UNKNOWN, *(getattr(one, name) for one in samples), UNKNOWN])
            for name in ("asked_at", "answered_at")
        )
        known_ends = np.take_along_axis(ends, last_known.astype(np.intp), axis=0)
        return cls(ends, known_ends, last_known, next_known, asked_at, answered_at)

    @property
    def count(self) -> int:
        return int(self.ends.shape[1])

    def written(self, partitions: Ints, offsets: Ints) -> Written:
        # A log's end rises from sample to sample: halving finds the first row in which the log had the record.
        low, high = np.ones(len(offsets), np.int64), np.full(len(offsets), len(self.ends) - 1)
        while (low < high).any():
            middle = (low + high) // 2
            had_record = self.known_ends[middle, partitions] > offsets
            low, high = np.where(had_record | (low == high), low, middle + 1), np.where(had_record, middle, high)
        before, after = self.last_known[low - 1, partitions], self.next_known[low, partitions]
        start = self.ends[before, partitions]
        share = (offsets - start + 0.5) / np.maximum(self.ends[after, partitions] - start, 1)
        return Written(self.asked_at[before], self.answered_at[after], share)


def kept_times(times: Ints, now: int, apart_seconds: float) -> list[tuple[int, int]]:
    """Return the `spans` of stored samples that `LogEnds` keeps, the oldest first."""
    stretches = spans(times, apart_seconds)
    return [stretches[number] for number in _thinned([last for _, last in stretches], now)]


def spans(times: Ints, apart_seconds: float) -> list[tuple[int, int]]:
    """Return the first and the last time of each sample, the oldest first.

    Times closer together than `apart_seconds` belong to one sample.
    """
    distinct = np.unique(times)
    if not len(distinct):
        return []
    is_first = np.diff(distinct, prepend=-np.inf) >= apart_seconds * MICROS
    return list(zip(distinct[is_first].tolist(), distinct[np.append(is_first[1:], True)].tolist(), strict=True))


def _thinned(times: Sequence[int], now: int) -> list[int]:
    """Return the indices of the ascending times to keep: of the older ones, the first in each span of the clock.

    Spans are powers of two of seconds, so that a longer one consists of whole shorter ones: what is dropped now would
    be dropped later, too.
    """
    kept: list[int] = []
    for number, time in enumerate(times):
        age = (now - time) / MICROS
        if age > HORIZON_SECONDS:
            continue
        span = 0 if age <= _RECENT_SECONDS else MICROS << int(math.log2(age * _SPACING))
        if not span or not number or times[number - 1] // span != time // span:
            kept.append(number)
    return kept
