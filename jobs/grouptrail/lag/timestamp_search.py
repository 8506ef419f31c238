"""Find the timestamps of the records at given offsets by asking brokers for offsets by timestamp. Does no I/O.

A broker answers a timestamp with the first record, by offset, whose timestamp is not lower, and with the timestamp of
that record (ListOffsets, KIP-79). So a record in an answer has a higher timestamp than all before it, and no other
record is ever in one. What follows for the first record at or after an offset:

- if an answer is at that very offset, its timestamp is known;
- an answer after the offset is an upper limit: records between the two have lower timestamps;
- an answer before the offset is a lower limit only if timestamps never fall, which answers cannot show: records that
  share a timestamp, that compaction removed, or that are out of order look the same.

That there is no answer proves nothing: a broker searches one segment, the first whose largest timestamp is high
enough, and that may be the timestamp of a record that has been deleted.

A marker of a transaction has an offset and a timestamp, and counts as a record. Records without a timestamp do not.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np

from grouptrail.kafka.log import LARGEST_TIMESTAMP
from grouptrail.lag.index import UNKNOWN, Bools, Floats, Ints

# Offsets and timestamps are 64-bit numbers that anyone may choose: within this, sums of two do not overflow.
_MOST = np.int64(1 << 61)
_LEAST_TOLERANCE_MS, _TOLERANCE = 1000, 0.01
# Interpolation finds a record in a log of any size in about four questions, unless timestamps jump.
_MOST_QUESTIONS = 32
# How many of them may go into finding the very record, once its timestamp is known well enough.
_QUESTIONS_WHEN_CLOSE = 6
_BISECT_EVERY = 3
# So near to a record before the offset, the next timestamp is asked for: records of a batch may share one.
_NEAR_OFFSETS, _NEAR_STEPS = 64, 4
_RETRY_MS = 600_000


@dataclass(frozen=True)
class RecordTimes:
    """The timestamps (milliseconds) of the first records at or after offsets; `UNKNOWN` where they are not known.

    No timestamp is after `latest`, and where `is_exact` it is `latest`. None is before `earliest` if timestamps never
    fall from one record to the next.
    """

    earliest: Ints
    latest: Ints
    is_exact: Bools


@dataclass(frozen=True)
class Questions:
    """The timestamps (milliseconds, or `LARGEST_TIMESTAMP`) to ask for, one for each of some partitions, in order.

    `offsets` are those whose timestamps are wanted.
    """

    partitions: Ints
    timestamps: Ints
    offsets: Ints

    def __len__(self) -> int:
        return len(self.partitions)

    def of(self, chosen: Bools | Ints) -> Questions:
        """Return some questions."""
        return Questions(self.partitions[chosen], self.timestamps[chosen], self.offsets[chosen])


@dataclass
class _Targets:
    """Offsets whose timestamps are wanted, ordered by partition and offset, and what is known of each.

    `low_offsets` and `low_times` are a record before the offset, `high_offsets` and `high_times` one that is not;
    `UNKNOWN` where there is none. Timestamps up to `low_times`, up to `floors` or above `tops` need no question. The
    first two are answered before the offset, and not at all; until a record is known that is not before it, `tops`
    come from the log's record with the timestamp `largest`, which is at `hint_offsets`. `limits` are upper limits of
    the timestamp wanted. `is_tail`: the record before the offset is that with the largest timestamp, whose offset may
    be any of its batch (KAFKA-16310), so that it is none to rely on for other offsets. `is_first`: no record of the
    log that has a timestamp is before the one that is not before the offset. `is_repeated`: the last answer was no
    news. `steps`: how many offsets the last question for the next timestamp went forward.
    """

    partitions: Ints
    offsets: Ints
    low_offsets: Ints
    low_times: Ints
    high_offsets: Ints
    high_times: Ints
    floors: Ints
    tops: Ints
    hint_offsets: Ints
    largest: Ints
    limits: Ints
    is_tail: Bools
    is_first: Bools
    is_repeated: Bools
    steps: Ints
    asked: Ints
    asked_when_close: Ints

    @classmethod
    def unknown(cls, partitions: Ints, offsets: Ints) -> Self:
        """Return targets of which nothing is known."""
        count = len(offsets)
        columns = {field.name: np.full(count, UNKNOWN) for field in fields(cls)}
        columns |= {name: np.zeros(count, np.int64) for name in ("asked", "asked_when_close")}
        columns |= {name: np.full(count, False) for name in ("is_tail", "is_first", "is_repeated")}
        return cls(**columns | {"partitions": partitions, "offsets": offsets})

    def __len__(self) -> int:
        return len(self.offsets)

    def of(self, chosen: Bools | Ints) -> _Targets:
        """Return a copy of some targets."""
        return replace(self, **{field.name: getattr(self, field.name)[chosen] for field in fields(self)})

    def put(self, where: Ints, targets: _Targets) -> None:
        """Replace some targets."""
        for field in fields(self):
            getattr(self, field.name)[where] = getattr(targets, field.name)

    @property
    def is_exact(self) -> Bools:
        """Whether the first record at or after the offset is known."""
        exact: Bools = (self.high_offsets == self.offsets) | self.is_first
        return exact

    @property
    def lowest(self) -> Ints:
        """The highest timestamp for which no question is of use, of those below the one wanted."""
        lowest: Ints = np.maximum(self.low_times, self.floors)
        return lowest

    def is_close(self, now: int) -> Bools:
        """Whether both limits are known, and close enough to each other for the record's age at a time."""
        tolerance = np.maximum(_LEAST_TOLERANCE_MS, _TOLERANCE * (now - self.limits))
        close: Bools = (self.limits != UNKNOWN) & (self.low_times != UNKNOWN)
        close &= self.limits - self.low_times <= tolerance
        return close

    def is_done(self, now: int) -> Bools:
        """Whether no further question is of use."""
        has_range = (self.largest == UNKNOWN) & (self.high_offsets == UNKNOWN) | (self.lowest < self.tops)
        is_spent = self.is_close(now) & (self.asked_when_close >= _QUESTIONS_WHEN_CLOSE)
        done: Bools = self.is_exact | ~has_range | is_spent | (self.asked >= _MOST_QUESTIONS)
        return done


class TimestampSearch:
    """The search for the timestamps of records of many partitions, which are numbered.

    Ask the `questions`, give the answers to `add_answers`, and repeat until there are no more. All offsets of a
    partition learn from each answer, and new ones from those that were wanted before. Other offsets may be set
    between questions and answers.
    """

    def __init__(self) -> None:
        self._targets = _Targets.unknown(*(np.empty(0, np.int64) for _ in range(2)))
        self._wanted = self._targets.partitions, self._targets.offsets
        self._failed_at: dict[int, int] = {}
        self._now = 0

    def __len__(self) -> int:
        return len(self._targets)

    def set_targets(self, partitions: Ints, offsets: Ints, now: int) -> None:
        """Set the offsets that are wanted at a time (milliseconds), each of a partition and below its log's end.

        Of those wanted before, the others are forgotten. What no question could find is asked for again in the next
        ten minutes.
        """
        is_retry = now // _RETRY_MS != self._now // _RETRY_MS
        self._now = now
        if not is_retry and all(map(np.array_equal, (partitions, offsets), self._wanted)):
            return
        self._wanted = partitions, offsets
        order = np.lexsort((offsets, partitions))
        partitions, offsets = partitions[order], offsets[order]
        is_new = np.full(len(order), True)
        is_new[1:] = (np.diff(partitions) != 0) | (np.diff(offsets) != 0)
        targets = _Targets.unknown(partitions[is_new], offsets[is_new])
        before = self._targets
        if is_retry:  # a record may have come, or a segment gone, that allows an answer
            before = before.of(before.limits != UNKNOWN)
        _learn(targets, *_records(before))
        where = _find(before, targets.partitions, targets.offsets)
        again = np.flatnonzero(where != UNKNOWN)
        targets.put(again, before.of(where[again]))
        self._targets = targets
        self._failed_at = {number: at for number, at in self._failed_at.items() if now - at < _RETRY_MS}

    def questions(self) -> Questions:
        """Return the next question of each partition that has an offset whose timestamp is not known well enough.

        The very records are searched for once all timestamps are known well enough for an age.
        """
        is_failed = np.isin(self._targets.partitions, list(self._failed_at))
        open_ = np.flatnonzero(~self._targets.is_done(self._now) & ~is_failed)
        is_close = self._targets.is_close(self._now)[open_]
        targets = self._targets.of(open_ if is_close.all() else open_[~is_close])
        order = np.lexsort((targets.asked, targets.partitions))
        is_first = np.diff(targets.partitions[order], prepend=UNKNOWN) != 0
        chosen = order[is_first]
        targets = targets.of(chosen)
        return Questions(targets.partitions, _next_timestamps(targets, self._now), targets.offsets)

    def add_answers(self, questions: Questions, offsets: Ints, timestamps: Ints) -> None:
        """Add the answers to questions: records' offsets and timestamps (milliseconds), `UNKNOWN` for no answer."""
        targets = self._targets
        asked_for = _find(targets, questions.partitions, questions.offsets)
        asked_for = asked_for[asked_for != UNKNOWN]
        targets.asked[asked_for] += 1
        targets.asked_when_close[asked_for] += targets.is_close(self._now)[asked_for]
        place = np.searchsorted(questions.partitions, targets.partitions)
        place = np.minimum(place, max(len(questions) - 1, 0))
        rows = np.flatnonzero(questions.partitions[place] == targets.partitions) if len(questions) else place[:0]
        place = place[rows]
        asked, at, time = (np.minimum(column, _MOST)[place] for column in (questions.timestamps, offsets, timestamps))
        is_largest, has_answer = asked == LARGEST_TIMESTAMP, at != UNKNOWN
        is_found, is_silent = has_answer & ~is_largest, ~has_answer & ~is_largest
        _add_records(targets, rows[is_found], asked[is_found], at[is_found], time[is_found])
        _add_largest(targets, rows[is_largest], at[is_largest], time[is_largest], self._now)
        _add_silence(targets, rows[is_silent], asked[is_silent])

    def add_failures(self, partitions: Ints) -> None:
        """Note that partitions could not be asked: they are not asked again for ten minutes."""
        self._failed_at |= dict.fromkeys(partitions.tolist(), self._now)

    def forget(self, partitions: Ints) -> None:
        """Forget what is known of partitions whose log was replaced."""
        self._targets = self._targets.of(~np.isin(self._targets.partitions, partitions))
        self._wanted = np.empty(0, np.int64), np.empty(0, np.int64)

    def found(self, partitions: Ints, offsets: Ints) -> RecordTimes:
        """Return the timestamps at offsets, those that are known well enough or that no question can show better."""
        targets = self._targets
        where = _find(targets, partitions, offsets)
        is_settled = targets.is_done(self._now) | targets.is_close(self._now)
        is_settled &= targets.limits != UNKNOWN
        known = where != UNKNOWN
        known[known] = is_settled[where[known]]
        times = RecordTimes(np.full(len(where), UNKNOWN), np.full(len(where), UNKNOWN), np.full(len(where), False))
        of_known = targets.of(where[known])
        times.is_exact[known] = of_known.is_exact
        times.latest[known] = of_known.limits
        times.earliest[known] = np.where(of_known.is_exact, of_known.limits, of_known.low_times)
        return times


def _find(targets: _Targets, partitions: Ints, offsets: Ints) -> Ints:
    """Return the numbers of the targets with these partitions and offsets, `UNKNOWN` where there is none."""
    keys = np.concatenate([targets.partitions, partitions])
    every = np.concatenate([targets.offsets, offsets])
    is_wanted = np.arange(len(keys)) >= len(targets)
    order = np.lexsort((is_wanted, every, keys))
    last = np.maximum.accumulate(np.where(is_wanted[order], UNKNOWN, order)) if len(order) else order
    found = np.full(len(partitions), UNKNOWN)
    wanted = is_wanted[order]
    found[order[wanted] - len(targets)] = last[wanted]
    is_same = found != UNKNOWN
    is_same[is_same] = (targets.partitions[found[is_same]] == partitions[is_same]) & (
        targets.offsets[found[is_same]] == offsets[is_same]
    )
    return np.where(is_same, found, UNKNOWN)


def _records(targets: _Targets) -> tuple[Ints, Ints, Ints]:
    """Return the partitions, offsets and timestamps of the records known, ordered by partition and offset."""
    has_low, has_high = (targets.low_offsets != UNKNOWN) & ~targets.is_tail, targets.high_offsets != UNKNOWN
    partitions, offsets, times = (
        np.concatenate([low[has_low], high[has_high]])
        for low, high in (
            (targets.partitions, targets.partitions),
            (targets.low_offsets, targets.high_offsets),
            (targets.low_times, targets.high_times),
        )
    )
    order = np.lexsort((offsets, partitions))
    return partitions[order], offsets[order], times[order]


def _learn(targets: _Targets, partitions: Ints, offsets: Ints, times: Ints) -> None:
    """Give targets of which nothing is known the nearest of some records."""
    count = len(partitions)
    is_target = np.concatenate([np.full(count, False), np.full(len(targets), True)])
    keys = np.concatenate([partitions, targets.partitions]), np.concatenate([offsets, targets.offsets])
    # A record at a target's offset is not before it.
    order = np.lexsort((~is_target, keys[1], keys[0]))
    ranked = np.where(is_target[order], 0, 1).cumsum()
    next_record = ranked[is_target[order]]
    where = order[is_target[order]] - count
    for side, records in (("low", next_record - 1), ("high", next_record)):
        is_there = (records >= 0) & (records < count)
        is_there[is_there] = partitions[records[is_there]] == targets.partitions[where[is_there]]
        for kind, column in (("offsets", offsets), ("times", times)):
            getattr(targets, f"{side}_{kind}")[where[is_there]] = column[records[is_there]]
    has_high = targets.high_offsets != UNKNOWN
    targets.tops = np.where(has_high, targets.high_times - 1, UNKNOWN)
    targets.limits = np.where(has_high, targets.high_times, UNKNOWN)


def _next_timestamps(targets: _Targets, now: int) -> Ints:
    """Return the timestamps to ask for next."""
    low, lowest, top, offsets = targets.low_times, targets.lowest, targets.tops, targets.offsets
    has_high = targets.high_offsets != UNKNOWN
    end_offset = np.where(has_high, targets.high_offsets, np.maximum(targets.hint_offsets, offsets))
    end_time = np.where(has_high, np.minimum(targets.high_times, top + 1), top)
    # Between the records before and at the offset: in an even log that finds the very record.
    share: Floats = (offsets - 0.5 - targets.low_offsets) / np.maximum(end_offset - targets.low_offsets, 1)
    between = low + np.rint(np.clip(share, 0, 1) * (end_time - low)).astype(np.int64)
    middle = lowest + 1 + (top - lowest - 1) // 2
    # Halving finds where records are not evenly spread.
    is_halved = targets.is_repeated | (targets.asked % _BISECT_EVERY == _BISECT_EVERY - 1)
    timestamps = np.where(is_halved, middle, between)
    is_next = (low == UNKNOWN) | (targets.low_offsets == offsets - 1) | targets.is_tail
    distance = offsets - targets.low_offsets
    is_next |= has_high & (
        distance <= np.where(targets.steps == UNKNOWN, _NEAR_OFFSETS, _NEAR_STEPS * (targets.steps - 1))
    )
    is_next |= targets.is_close(now) & (targets.asked_when_close % 2 == 0)
    timestamps = np.where(is_next, lowest + 1, np.clip(timestamps, lowest + 1, np.maximum(top, lowest + 1)))
    return np.where((targets.largest == UNKNOWN) & ~has_high, LARGEST_TIMESTAMP, timestamps)


def _add_records(targets: _Targets, rows: Ints, asked: Ints, offsets: Ints, times: Ints) -> None:
    """Add records that answered to timestamps, of the partitions of these targets."""
    is_before = offsets < targets.offsets[rows]
    before, offset, time, of_before = (column[is_before] for column in (rows, offsets, times, asked))
    is_better = time > targets.low_times[before]
    before, offset, time = before[is_better], offset[is_better], time[is_better]
    is_next = (targets.low_times[before] + 1 == of_before[is_better]) & (targets.low_offsets[before] != UNKNOWN)
    targets.steps[before[is_next]] = offset[is_next] - targets.low_offsets[before[is_next]]
    targets.low_offsets[before], targets.low_times[before], targets.is_tail[before] = offset, time, False
    targets.is_repeated[rows] = False
    is_tail = (time == targets.largest[before]) & (targets.high_offsets[before] == UNKNOWN)
    targets.tops[before[is_tail]] = time[is_tail] + 1
    others, offset, time, at = (column[~is_before] for column in (rows, offsets, times, asked))
    is_new = targets.high_offsets[others] == UNKNOWN
    is_better = is_new | (time < targets.high_times[others])
    targets.is_repeated[others] = ~is_better
    better = others[is_better]
    targets.high_offsets[better], targets.high_times[better] = offset[is_better], time[is_better]
    is_lower = (targets.limits[others] == UNKNOWN) | (time < targets.limits[others])
    targets.limits[others[is_lower]] = time[is_lower]
    targets.is_first[others[at == 0]] = True
    targets.tops[others] = np.where(is_new, at - 1, np.minimum(targets.tops[others], at - 1))


def _add_largest(targets: _Targets, rows: Ints, offsets: Ints, times: Ints, now: int) -> None:
    """Add the records with the largest timestamps, of the partitions of these targets."""
    # Without one, there is nothing to find: the timestamp is one that no question is left for.
    targets.largest[rows] = np.where(offsets == UNKNOWN, 0, times)
    is_open = (offsets != UNKNOWN) & (targets.high_offsets[rows] == UNKNOWN)
    rows, offsets, times = rows[is_open], offsets[is_open], times[is_open]
    # What was known of a record with a higher timestamp was of one that has been deleted.
    of_deleted = rows[targets.low_times[rows] > times]
    targets.low_offsets[of_deleted] = targets.low_times[of_deleted] = UNKNOWN
    is_before = offsets < targets.offsets[rows]
    tail = rows[is_before]
    targets.low_offsets[tail], targets.low_times[tail] = offsets[is_before], times[is_before]
    targets.is_tail[tail] = True
    # One question shows whether a higher timestamp has come meanwhile; of the future, there is nothing to find.
    targets.tops[tail] = np.where(times[is_before] <= now, times[is_before] + 1, times[is_before])
    others = rows[~is_before]
    targets.hint_offsets[others] = offsets[~is_before]
    targets.tops[others] = np.minimum(times[~is_before], now)


def _add_silence(targets: _Targets, rows: Ints, asked: Ints) -> None:
    """Add that no record answered to timestamps, of the partitions of these targets."""
    low, largest = targets.low_times[rows], targets.largest[rows]
    is_above = (largest != UNKNOWN) & (asked > largest) & (targets.high_offsets[rows] == UNKNOWN)
    # Nothing exceeds the log's largest timestamp, which is that of a record before the offset.
    proved = rows[is_above & (asked == low + 1) & (low == largest)]
    targets.limits[proved] = targets.low_times[proved]
    targets.tops[rows[is_above]] = np.minimum(targets.tops[rows[is_above]], asked[is_above] - 1)
    # Otherwise a segment whose record was deleted hides the later ones from these timestamps.
    hidden = rows[~is_above]
    targets.floors[hidden] = np.maximum(targets.floors[hidden], asked[~is_above])
