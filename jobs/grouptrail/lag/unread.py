"""Find out whether a stopped group has a record left to read: its lag may consist of transaction markers alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from grouptrail.kafka.log import FirstRecord, RecordRequest
from grouptrail.lag.index import Bools, ints
from grouptrail.lag.offsets import Entries, Lag

FetchRecords = Callable[[Sequence[RecordRequest]], Mapping[RecordRequest, FirstRecord | None]]
"""Returns the first records at or after offsets, as far as brokers answer; None: no record is left in the log."""

_MICROS = 1_000_000
_FEW_OFFSETS = 1000
_MOST_POSITIONS, _MOST_TOPICS = 100, 10
_RETRY_MICROS = 600 * _MICROS


@dataclass(frozen=True)
class _Answer:
    """Whether no record was left between two offsets at a time (microseconds); None: no broker answered."""

    committed: int
    end: int
    is_nothing: bool | None
    at: int


class UnreadOffsets:
    """The brokers' answers by the positions' numbers; one query for each committed offset and log end.

    Only committed records count: whether a group reads under read_committed is not visible.
    """

    def __init__(self) -> None:
        self._answers: dict[int, _Answer] = {}

    def nothing_left(self, entries: Entries) -> Bools:
        """Return where all offsets from the committed one on are known to hold no record."""
        found = np.full(len(entries), False)
        answered = np.flatnonzero(np.isin(entries.positions, list(self._answers)))
        for entry, position, committed, end in _figures(answered, entries):
            answer = self._answers[position]
            found[entry] = bool(answer.is_nothing) and answer.committed == committed and end <= answer.end
        return found

    def query(self, entries: Entries, lag: Lag, chosen: Iterable[int], fetch_records: FetchRecords) -> bool:
        """Query the chosen entries with few unread offsets and no open transaction; return whether there were any.

        A call queries a limited number, one topic at a time: a topic that may not be read does not fail the others.
        """
        is_stable = ints(entries.logs["last_stable_offset"]) >= entries.end
        is_candidate = (lag.readable > 0) & (lag.readable <= _FEW_OFFSETS) & is_stable
        due = [
            one
            for one in _figures(chosen, entries)
            if is_candidate[one[0]] and self._needs_query(*one[1:], entries.at)
        ]
        topics, partitions = (entries.commits[name].to_pylist() for name in ("topic", "partition"))
        of_topic: dict[str, list[tuple[int, int, int, int]]] = defaultdict(list)
        for one in due[:_MOST_POSITIONS]:
            of_topic[topics[one[0]]].append(one)
        starts = ints(entries.logs["log_start_offset"])
        for topic, some in islice(of_topic.items(), _MOST_TOPICS):
            wanted = {
                entry: RecordRequest(topic, partitions[entry], max(committed, int(starts[entry])), is_isolated=True)
                for entry, _, committed, _ in some
            }
            records = fetch_records(list(dict.fromkeys(wanted.values())))
            for entry, position, committed, end in some:
                record = records.get(wanted[entry])
                is_nothing = (record is None or record.offset >= end) if wanted[entry] in records else None
                self._answers[position] = _Answer(committed, end, is_nothing, entries.at)
        return bool(due)

    def _needs_query(self, position: int, committed: int, end: int, at: int) -> bool:
        answer = self._answers.get(position)
        if answer is None or answer.committed != committed:
            return True
        if answer.is_nothing is None:
            return at - answer.at >= _RETRY_MICROS
        return answer.is_nothing and end > answer.end


def _figures(chosen: Iterable[int], entries: Entries) -> list[tuple[int, int, int, int]]:
    """Return entry, position, committed offset and log end offset of the chosen entries."""
    numbers = np.array(list(chosen), np.int64)
    columns = (entries.positions, entries.committed, entries.end)
    return list(zip(numbers.tolist(), *(column[numbers].tolist() for column in columns), strict=True))
