"""Find out which record a group has left to read, if any: its lag may consist of transaction markers alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from grouptrail.kafka.log import FirstRecord, RecordRequest
from grouptrail.lag.dated import CHECK_SECONDS, FEW_OFFSETS
from grouptrail.lag.index import MICROS, UNKNOWN, Bools, Ints, at_numbers, ints, lengthened
from grouptrail.lag.offsets import Entries, Lag

FetchRecords = Callable[[Sequence[RecordRequest]], Mapping[RecordRequest, FirstRecord | None]]
"""Returns the first records at or after offsets, as far as brokers answer; None: no record is left in the log."""

MOST_QUERIES, _MOST_TOPICS = 100, 10
_RETRY_MICROS = 600 * MICROS
_NOTHING, _SOMETHING, _NO_ANSWER = 2, 1, 0
_NO_RECORD = FirstRecord(UNKNOWN, UNKNOWN)


class UnreadQuery(NamedTuple):
    """A query for the first record of a position at or after its committed offset, in a log with this end."""

    position: int
    committed: int
    end: int
    request: RecordRequest


class UnreadOffsets:
    """The brokers' answers by the positions' numbers; one query for each committed offset and log end.

    Only committed records count: whether a group reads under read_committed is not visible.
    """

    def __init__(self) -> None:
        self._answer, self._committed, self._end, self._at = (np.empty(0, np.int64) for _ in range(4))
        self._first_offset, self._first_time = (np.empty(0, np.int64) for _ in range(2))

    @staticmethod
    def are_few(lag: Lag) -> Bools:
        """Return where the unread offsets may hold markers of transactions alone."""
        return lag.readable <= FEW_OFFSETS

    def nothing_left(self, entries: Entries) -> Bools:
        """Return where all offsets from the committed one on are known to hold no record."""
        answer, committed, end, _ = self._answers(entries.positions)
        nothing: Bools = (answer == _NOTHING) & (committed == entries.committed) & (entries.end <= end)
        return nothing

    def first_left(self, entries: Entries, first_unread: Ints) -> tuple[Ints, Ints]:
        """Return the first records that brokers showed from these offsets on: their offsets and timestamps.

        Timestamps are in microseconds; `UNKNOWN` where none is known.
        """
        answer, committed, *_ = self._answers(entries.positions)
        offset, time = (at_numbers(one, entries.positions) for one in (self._first_offset, self._first_time))
        is_known = (answer == _SOMETHING) & (committed == entries.committed) & (offset >= first_unread)
        return np.where(is_known, offset, UNKNOWN), np.where(is_known, time, UNKNOWN)

    def due(self, entries: Entries, lag: Lag, chosen: Bools) -> list[UnreadQuery]:
        """Return the queries that are due for the chosen entries, where no transaction is open."""
        is_stable = ints(entries.logs["last_stable_offset"]) >= entries.end
        is_candidate = chosen & (lag.readable > 0) & is_stable
        candidates = np.flatnonzero(is_candidate)
        due = candidates[self._need_query(entries, candidates)][:MOST_QUERIES]
        if not len(due):
            return []
        commits = entries.commits.select(["topic", "partition"]).take(pa.array(due)).to_pydict()
        offsets = np.maximum(entries.committed, ints(entries.logs["log_start_offset"]))[due]
        requests = (
            RecordRequest(topic, partition, offset, is_isolated=True)
            for topic, partition, offset in zip(commits["topic"], commits["partition"], offsets.tolist(), strict=True)
        )
        columns = (column[due].tolist() for column in (entries.positions, entries.committed, entries.end))
        return list(map(UnreadQuery, *columns, requests))

    def query(self, due: Sequence[UnreadQuery], at: int, fetch_records: FetchRecords) -> Ints:
        """Query brokers at a time (microseconds); return the positions of which something was learned.

        A call queries a limited number, and one topic at a time if there is no answer: a topic that may not be read
        does not fail the others.
        """
        of_topic: dict[str, list[UnreadQuery]] = defaultdict(list)
        for one in due[:MOST_QUERIES]:
            of_topic[one.request.topic].append(one)
        chosen = dict(islice(of_topic.items(), _MOST_TOPICS))
        wanted = [one for queries in chosen.values() for one in queries]
        if not wanted:
            return np.empty(0, np.int64)
        records = fetch_records(list(dict.fromkeys(one.request for one in wanted)))
        if not records and len(chosen) > 1:  # one of them may not be read
            for queries in chosen.values():
                records = {**records, **fetch_records(list(dict.fromkeys(one.request for one in queries)))}
        positions = np.array([one.position for one in wanted])
        answers = np.array([_meaning(records, one.request, one.end) for one in wanted])
        first = [records.get(one.request) or _NO_RECORD for one in wanted]
        count = int(positions.max()) + 1
        self._answer, self._committed, self._end, self._at = (
            lengthened(one, count) for one in (self._answer, self._committed, self._end, self._at)
        )
        self._first_offset, self._first_time = (
            lengthened(one, count) for one in (self._first_offset, self._first_time)
        )
        self._first_offset[positions] = [one.offset for one in first]
        self._first_time[positions] = [np.clip(one.written_at, UNKNOWN, 1 << 62) for one in first]
        self._answer[positions], self._at[positions] = answers, at
        self._committed[positions] = [one.committed for one in wanted]
        self._end[positions] = [one.end for one in wanted]
        answered: Ints = positions[answers != _NO_ANSWER]
        return answered

    def _answers(self, positions: Ints) -> list[Ints]:
        return [at_numbers(column, positions) for column in (self._answer, self._committed, self._end, self._at)]

    def _need_query(self, entries: Entries, candidates: Ints) -> Bools:
        answer, committed, end, at = self._answers(entries.positions[candidates])
        is_retried = (answer == _NO_ANSWER) & (entries.at - at >= _RETRY_MICROS)
        has_grown = (answer == _NOTHING) & (entries.end[candidates] > end)
        is_retried |= (answer == _SOMETHING) & (entries.at - at >= CHECK_SECONDS * MICROS)
        need: Bools = (answer == UNKNOWN) | (committed != entries.committed[candidates]) | is_retried | has_grown
        return need


def _meaning(records: Mapping[RecordRequest, FirstRecord | None], wanted: RecordRequest, end: int) -> int:
    """Return whether no record is left below an end."""
    if wanted not in records:
        return _NO_ANSWER
    record = records[wanted]
    return _NOTHING if record is None or record.offset >= end else _SOMETHING
