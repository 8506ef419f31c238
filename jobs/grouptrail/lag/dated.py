"""The ages of records that are older than the samples, by their own timestamps. Does no I/O.

A producer may set any timestamp: one from before Kafka existed is not the time at which a record was written.

The marker of a transaction has an offset and a timestamp, too, and brokers do not say that what they found by a
timestamp is a marker. In a cluster with transactions, the record at an offset is therefore known only if it was read.
Without that, a lower bound holds: a partition that is not compacted has at most `FEW_OFFSETS` markers in a row, so
that the offset behind so many has a record if none of these has one, and no record up to an answer has a later
timestamp than the answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from typing import Self

import numpy as np

from grouptrail.kafka.log import RecordTimestamp
from grouptrail.lag.index import MICROS, UNKNOWN, Bools, Floats, Ints, at_numbers, lengthened
from grouptrail.lag.timestamp_search import Questions, TimestampSearch

FEW_OFFSETS = 1000
"""More offsets than these are not taken to be markers of transactions alone."""

Partition = tuple[str, int]
"""Topic and partition."""
FetchTimestamps = Callable[[Mapping[Partition, int]], Mapping[Partition, RecordTimestamp | str | None]]
"""Returns the first record with at least a timestamp of each partition, None where there is none, or why not.

Timestamps are in milliseconds, or `LARGEST_TIMESTAMP`. Left out is what could not be asked in time.
"""


@dataclass(frozen=True)
class TimestampLookup:
    """The requests that find timestamps.

    `has_transactions` returns whether logs may have markers of transactions, `kept_topics` those of some topics that
    are known not to be compacted.
    """

    fetch: FetchTimestamps
    has_transactions: Callable[[], bool]
    kept_topics: Callable[[Collection[str]], Collection[str]] = lambda _: ()


_MICROS_A_MS = 1000
_FIRST_KAFKA_MS, _LAST_MS = 1_293_840_000_000, 253_402_300_800_000
CHECK_SECONDS = 3600
"""So often timestamps are looked up again: compaction may have removed a record, or begun."""


@dataclass(frozen=True)
class UnreadRecords:
    """First unread records that are older than the samples: of which partitions, by number, and from which offset on.

    `readable` is how many offsets are unread. `shown_offsets` and `shown_times` (microseconds) are the first
    committed record from there on, where it was read, otherwise `UNKNOWN`. `is_isolated`: aborted records do not
    count.
    """

    partitions: Ints
    offsets: Ints
    readable: Ints
    shown_offsets: Ints
    shown_times: Ints
    is_isolated: Bools

    def __len__(self) -> int:
        return len(self.partitions)

    @classmethod
    def none(cls) -> Self:
        """Return no records."""
        none = np.empty(0, np.int64)
        return cls(none, none, none, none, none, none.astype(bool))

    @classmethod
    def concat(cls, parts: list[Self]) -> Self:
        """Return all records of some parts."""
        parts = [cls.none(), *parts]
        return cls(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(cls)))


@dataclass(frozen=True)
class TimestampAge:
    """The ages of records by their timestamps; NaN where not known. Where not `is_exact`, they are lower bounds.

    `most_seconds`: some record of the log that is not behind them is so old at most; infinite where not known.
    `is_due`: the record has to be read to know more.
    """

    seconds: Floats
    most_seconds: Floats
    is_exact: Bools
    is_due: Bools


class StoredAges:
    """The ages that stored rows have by timestamps, by the positions' numbers: a restart asks for no others."""

    def __init__(self) -> None:
        self._offsets, self._times = (np.empty(0, np.int64) for _ in range(2))
        self._are_exact = np.empty(0, bool)

    def restore(self, positions: Ints, offsets: Ints, times: Ints, is_exact: Bools) -> None:
        """Set the first unread offsets of positions and their timestamps (microseconds); `UNKNOWN` where none are."""
        count = int(positions.max(initial=-1)) + 1
        self._offsets, self._times = (lengthened(column, count) for column in (self._offsets, self._times))
        self._are_exact = lengthened(self._are_exact, count)
        self._offsets[positions], self._times[positions] = np.where(times == UNKNOWN, UNKNOWN, offsets), times
        self._are_exact[positions] = is_exact

    def forget(self, positions: Ints) -> None:
        """Forget positions whose log was replaced."""
        self._offsets[positions[positions < len(self._offsets)]] = UNKNOWN

    def times(self, positions: Ints, offsets: Ints) -> tuple[Ints, Bools]:
        """Return the timestamps (microseconds) of the first unread offsets of positions, and which are exact."""
        is_known = (at_numbers(self._offsets, positions) == offsets) & (offsets != UNKNOWN)
        is_exact = at_numbers(self._are_exact.astype(np.int64), positions) == 1
        return np.where(is_known, at_numbers(self._times, positions), UNKNOWN), is_known & is_exact


class DatedRecords:
    """The timestamps of first unread records, found by requests. One thread may search while others use the rest."""

    def __init__(self) -> None:
        self._search = TimestampSearch()
        self._again: TimestampSearch | None = None
        self._lock = threading.Lock()
        self._names: Callable[[Ints], list[Partition]] = lambda _: []
        self._wanted, self._at = UnreadRecords.none(), 0
        self._has_markers: bool | None = None
        self._is_kept: dict[int, bool] = {}
        self._has_to_check_kept = False
        self._replaced: list[Ints] = []

    def age(self, records: UnreadRecords, now: Ints) -> TimestampAge:
        """Return the ages of records at times (microseconds)."""
        with self._lock:
            targets = self._targets(records)
            times = self._search.found(records.partitions, targets)
        is_shown = self._are_shown(records)
        latest = np.where(is_shown, records.shown_times // _MICROS_A_MS, times.latest)
        is_known = (latest >= _FIRST_KAFKA_MS) & (latest < _LAST_MS)
        seconds = (now - np.where(is_known, latest, 0) * _MICROS_A_MS) / MICROS
        is_of_record = (targets == records.offsets) & (self._has_markers is False)
        is_exact = is_known & (is_shown | times.is_exact & is_of_record)
        is_due = np.full(len(records), self._has_markers is True)
        earliest = np.where(is_shown, latest, times.earliest)
        has_earlier = is_known & (is_shown | (targets == records.offsets)) & (earliest >= _FIRST_KAFKA_MS)
        most = (now - np.where(has_earlier, earliest, 0) * _MICROS_A_MS) / MICROS
        most = np.where(has_earlier, most, np.inf)
        return TimestampAge(np.where(is_known, seconds, np.nan), most, is_exact, is_due)

    def want(self, records: UnreadRecords, at: int, names: Callable[[Ints], list[Partition]]) -> None:
        """Set the records whose timestamps are wanted for a sample at a time (microseconds).

        `names` returns topic and partition of partitions by number.
        """
        with self._lock:
            span = CHECK_SECONDS * MICROS
            if self._at and at // span != self._at // span:
                self._again, self._has_to_check_kept = TimestampSearch(), True
            self._wanted, self._at, self._names = records, at, names
            self._set_targets()

    @property
    def is_in_use(self) -> bool:
        """Whether timestamps have ever been searched for."""
        return self._has_markers is not None

    @property
    def has_questions(self) -> bool:
        """Whether there is anything to search for."""
        with self._lock:
            if self._are_shown(self._wanted).all():
                return False
            is_unknown = self._has_markers is None or (self._has_markers and len(self._partitions_not_known()) > 0)
            return is_unknown or len(self._questions()) > 0

    def search(self, lookup: TimestampLookup) -> bool:
        """Ask questions until there are no more, or no answer comes; return whether anything was learned."""
        if not self._has_markers:
            self._has_markers = lookup.has_transactions()
        if self._has_markers:
            self._find_kept(lookup)
        with self._lock:
            self._set_targets()
        has_learned = False
        while True:
            with self._lock:
                questions = self._questions()
                names = self._names(questions.partitions)
                search = self._search if self._again is None else self._again
                if self._again is not None and not names:
                    self._search, self._again = self._again, None
                    has_learned = True
                self._replaced = []
            if not names:
                break
            answers = lookup.fetch(dict(zip(names, questions.timestamps.tolist(), strict=True)))
            if not answers:
                break
            found = [answers.get(name, "") for name in names]
            has_failed = np.array([isinstance(one, str) and one != "" for one in found])
            is_answered = np.array([not isinstance(one, str) for one in found])
            records = np.array(
                [(UNKNOWN, UNKNOWN) if one is None else one for one in found if not isinstance(one, str)], np.int64
            ).reshape(-1, 2)
            with self._lock:
                # What was asked of a log that has been replaced meanwhile is not known of the new one.
                is_same = ~np.isin(questions.partitions, np.concatenate([np.empty(0, np.int64), *self._replaced]))
                search.add_failures(questions.partitions[has_failed & is_same])
                kept = is_same[is_answered]
                search.add_answers(questions.of(is_answered & is_same), *records[kept].T)
            has_learned |= bool(is_answered.any())
        if has_learned and not self._has_markers:
            # A record that was found may be a marker only if there were transactions before.
            self._has_markers = lookup.has_transactions()
        return has_learned

    def forget(self, partitions: Ints) -> None:
        """Forget partitions whose log was replaced."""
        with self._lock:
            for search in self._searches():
                search.forget(partitions)
            self._replaced.append(partitions)
            for number in partitions.tolist():
                self._is_kept.pop(number, None)

    def _are_shown(self, records: UnreadRecords) -> Bools:
        """Return which records were read: what was read is not one after an aborted record that may count."""
        is_shown: Bools = (records.shown_offsets == records.offsets) | (
            records.is_isolated & (records.shown_offsets > records.offsets)
        )
        return is_shown

    def _targets(self, records: UnreadRecords) -> Ints:
        """Return the offsets up to which timestamps have an upper limit that is one of the records' timestamps.

        `UNKNOWN` where none is known to be, or is needed.
        """
        targets = records.offsets
        if self._has_markers is not False:
            is_kept = np.array([self._is_kept.get(number, False) for number in records.partitions.tolist()], bool)
            has_record = is_kept & (records.readable > FEW_OFFSETS) & ~records.is_isolated
            targets = np.where(has_record, records.offsets + FEW_OFFSETS, UNKNOWN)
            targets = np.where(records.shown_offsets > records.offsets, records.shown_offsets, targets)
        return np.where(self._are_shown(records), UNKNOWN, targets)

    def _set_targets(self) -> None:
        targets = self._targets(self._wanted)
        is_wanted = targets != UNKNOWN
        if self._has_markers is None:
            return
        for search in self._searches():
            search.set_targets(self._wanted.partitions[is_wanted], targets[is_wanted], self._at // _MICROS_A_MS)

    def _searches(self) -> list[TimestampSearch]:
        return [self._search] if self._again is None else [self._search, self._again]

    def _questions(self) -> Questions:
        """Return the next questions; what was found before holds until all is found again."""
        return (self._search if self._again is None else self._again).questions()

    def _partitions_not_known(self) -> Ints:
        """Return the wanted partitions of which it is not known whether they are compacted."""
        if self._has_to_check_kept:
            return np.unique(self._wanted.partitions)
        return np.setdiff1d(self._wanted.partitions, np.fromiter(self._is_kept, np.int64))

    def _find_kept(self, lookup: TimestampLookup) -> None:
        """Find out which partitions are not compacted."""
        with self._lock:
            unknown, names = self._partitions_not_known(), self._names
        if not len(unknown):
            return
        named = names(unknown)
        kept = set(lookup.kept_topics(sorted({topic for topic, _ in named})))
        with self._lock:
            self._has_to_check_kept = False
            self._is_kept |= {
                number: topic in kept for number, (topic, _) in zip(unknown.tolist(), named, strict=True)
            }
