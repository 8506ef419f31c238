"""The ages of records that are older than the samples, by their own timestamps. Does no I/O.

A producer may set any timestamp: one from before Kafka existed is not the time at which a record was written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from grouptrail.kafka.log import RecordTimestamp
from grouptrail.lag.index import MICROS, UNKNOWN, Bools, Floats, Ints
from grouptrail.lag.timestamp_search import TimestampSearch

FetchTimestamps = Callable[[Mapping[tuple[str, int], int]], Mapping[tuple[str, int], RecordTimestamp | str | None]]
"""Returns the first record with at least a timestamp of each partition, None where there is none, or why not.

Timestamps are in milliseconds, or `LARGEST_TIMESTAMP`. Left out is what could not be asked in time.
"""


@dataclass(frozen=True)
class TimestampLookup:
    """The requests at a sample. `has_transactions` returns whether logs may have markers of transactions."""

    fetch: FetchTimestamps
    has_transactions: Callable[[], bool]


_MICROS_A_MS = 1000
_FIRST_KAFKA_MS, _LAST_MS = 1_293_840_000_000, 253_402_300_800_000


@dataclass(frozen=True)
class TimestampAge:
    """The ages of records by their timestamps; NaN where not known. Where not `is_exact`, they are lower bounds."""

    seconds: Floats
    is_exact: Bools


class DatedRecords:
    """The timestamps of first unread records, found by requests that the caller makes.

    `may_be_markers`: a few offsets may hold markers of transactions alone, as after the last record of an idle topic.
    """

    def __init__(self) -> None:
        self._search = TimestampSearch()
        self.may_be_markers = True

    def age(self, partitions: Ints, offsets: Ints, now: Ints) -> TimestampAge:
        """Return the ages at times (microseconds) of the first records at or after these offsets."""
        times = self._search.found(partitions, offsets)
        is_known = (times.latest >= _FIRST_KAFKA_MS) & (times.latest < _LAST_MS)
        seconds = (now - np.where(is_known, times.latest, 0) * _MICROS_A_MS) / MICROS
        return TimestampAge(np.where(is_known, seconds, np.nan), times.is_exact & is_known)

    def find(
        self,
        partitions: Ints,
        offsets: Ints,
        at: int,
        names_of: Callable[[Ints], list[tuple[str, int]]],
        lookup: TimestampLookup,
    ) -> Ints:
        """Find the timestamps at these offsets, for a sample at a time (microseconds), until no answer comes.

        `names_of` returns topic and partition of partitions by number. Returns the partitions about which something
        was learned.
        """
        if not len(partitions) and not len(self._search):
            return partitions
        self._search.set_targets(partitions, offsets, at // _MICROS_A_MS)
        learned = np.empty(0, np.int64)
        while len(questions := self._search.questions()):
            names = names_of(questions.partitions)
            answers = lookup.fetch(dict(zip(names, questions.timestamps.tolist(), strict=True)))
            if not answers:
                break
            found = [answers.get(name, "") for name in names]
            has_failed = np.array([isinstance(one, str) and one != "" for one in found])
            is_answered = np.array([not isinstance(one, str) for one in found])
            self._search.add_failures(questions.partitions[has_failed])
            records = [(UNKNOWN, UNKNOWN) if one is None else one for one in found if not isinstance(one, str)]
            self._search.add_answers(questions.of(is_answered), *np.array(records, np.int64).reshape(-1, 2).T)
            learned = np.union1d(learned, questions.partitions[is_answered])
        if len(learned):
            self.may_be_markers = lookup.has_transactions()
        return learned

    def forget(self, partitions: Ints) -> None:
        """Forget partitions whose log was replaced."""
        self._search.forget(partitions)
