"""Lag in seconds: when a record was written, from samples of where its log ended.

A record at offset 120 of a log that ended at 100 and, 10 s later, at 140 was written within these 10 s. Where in them
is estimated as if the 40 had come evenly; the error is the distance to the farther end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grouptrail.lag.index import UNKNOWN, Floats, Ints, at_numbers

_MICROS = 1_000_000
_RECENT_SECONDS = 600
_SPACING = 0.1
HORIZON_SECONDS = 7 * 24 * 3600


@dataclass
class Sample:
    """Where logs ended, by the partitions' numbers; `UNKNOWN` where no one told.

    The brokers were asked not before `asked_at` and had all answered by `told_at` (microseconds).
    """

    asked_at: int
    told_at: int
    ends: Ints


@dataclass(frozen=True)
class Age:
    """How long before a time records were written; NaN: not known. `errors` NaN: `seconds` is the least it can be."""

    seconds: Floats
    errors: Floats


class LogEnds:
    """Samples of the logs' ends, the older the further apart: at most a tenth of their age, for 7 days."""

    def __init__(self) -> None:
        self._samples: list[Sample] = []  # the newest last

    def __len__(self) -> int:
        return len(self._samples)

    def add(self, sample: Sample) -> None:
        """A sample, in place of one of the same time; where the clock has gone back, all before it is void."""
        if self._samples and sample.told_at == self._samples[-1].told_at:
            self._samples.pop()
        elif self._samples and sample.told_at < self._samples[-1].told_at:
            self._samples.clear()
        self._samples.append(sample)
        kept = _thinned([sample.told_at for sample in self._samples], sample.told_at)
        self._samples = [self._samples[number] for number in kept]

    def forget(self, partitions: Ints) -> None:
        """What was sampled of these before the newest sample: their logs are others since."""
        for sample in self._samples[:-1]:
            sample.ends[partitions[partitions < len(sample.ends)]] = UNKNOWN

    def age(self, partitions: Ints, offsets: Ints, now: Ints) -> Age:
        """The age of the records at these offsets at the times `now`, one for each."""
        before = np.full(len(offsets), UNKNOWN)
        after = np.full(len(offsets), UNKNOWN)
        share = np.full(len(offsets), 0.0)
        end = np.full(len(offsets), UNKNOWN)
        searched = np.arange(len(offsets))
        for sample in reversed(self._samples):
            ends = at_numbers(sample.ends, partitions[searched])
            was_there = ends > offsets[searched]
            before[searched[was_there]] = sample.told_at
            end[searched[was_there]] = ends[was_there]
            is_found = (ends != UNKNOWN) & ~was_there
            found = searched[is_found]
            after[found] = sample.asked_at
            share[found] = (offsets[found] - ends[is_found] + 0.5) / np.maximum(end[found] - ends[is_found], 1)
            searched = searched[~is_found]
            if not len(searched):
                break
        return _age(now, before, after, share)

    def end_since(self, partitions: Ints, at: int) -> tuple[Ints, int]:
        """Where logs ended at the oldest sample since `at`, and when that was; unknown where there is none."""
        none = Sample(at, at, np.empty(0, np.int64))
        sample = next((sample for sample in self._samples if sample.told_at >= at), none)
        return at_numbers(sample.ends, partitions), sample.told_at


def _age(now: Ints, before: Ints, after: Ints, share: Floats) -> Age:
    """From the samples around the writing; a record that no sample shows yet came after the newest."""
    latest = np.where(before == UNKNOWN, now, before)
    is_bounded = after == UNKNOWN
    written = np.where(is_bounded, latest, after + np.clip(share, 0, 1) * (latest - after))
    errors = np.maximum(written - after, latest - written) / _MICROS
    seconds = np.maximum(now - written, 0) / _MICROS
    return Age(seconds, np.where(is_bounded, np.nan, errors))


def kept_times(times: Ints, now: int, apart_seconds: float) -> list[tuple[int, int]]:
    """Of the times of samples, the spans [from, to] to read again for `LogEnds`, the oldest first.

    Answers closer together than `apart_seconds` are of one sample.
    """
    distinct = np.unique(times)
    if not len(distinct):
        return []
    is_first = np.diff(distinct, prepend=-np.inf) >= apart_seconds * _MICROS
    spans = list(zip(distinct[is_first].tolist(), distinct[np.append(is_first[1:], True)].tolist(), strict=True))
    return [spans[number] for number in _thinned([last for _, last in spans], now)]


def _thinned(times: list[int], now: int) -> list[int]:
    """The numbers of ascending times that stay: the oldest of the horizon, and so many that no gap is too wide."""
    kept: list[int] = []
    for number, time in enumerate(times):
        age = (now - time) / _MICROS
        if age > HORIZON_SECONDS:
            continue
        gap = (times[number + 1] - times[kept[-1]]) / _MICROS if kept and number + 1 < len(times) else np.inf
        if age <= _RECENT_SECONDS or gap > age * _SPACING:
            kept.append(number)
    return kept
