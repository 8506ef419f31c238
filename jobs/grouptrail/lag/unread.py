"""Find out whether a stopped group has a record left to read: its lag may consist of transaction markers alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

import numpy as np
import pyarrow as pa

from grouptrail.kafka.log import FirstRecord, RecordRequest
from grouptrail.lag.index import UNKNOWN, Bools, Ints, at_numbers, ints, lengthened
from grouptrail.lag.offsets import Entries, Lag

FetchRecords = Callable[[Sequence[RecordRequest]], Mapping[RecordRequest, FirstRecord | None]]
"""Returns the first records at or after offsets, as far as brokers answer; None: no record is left in the log."""

_MICROS = 1_000_000
_FEW_OFFSETS = 1000
_MOST_POSITIONS, _MOST_TOPICS = 100, 10
_RETRY_MICROS = 600 * _MICROS
_NOTHING, _SOMETHING, _NO_ANSWER = 2, 1, 0


class UnreadOffsets:
    """The brokers' answers by the positions' numbers; one query for each committed offset and log end.

    Only committed records count: whether a group reads under read_committed is not visible.
    """

    def __init__(self) -> None:
        self._found, self._committed, self._end, self._at = (np.empty(0, np.int64) for _ in range(4))

    def nothing_left(self, entries: Entries) -> Bools:
        """Return where all offsets from the committed one on are known to hold no record."""
        found, committed, end, _ = self._answers(entries)
        nothing: Bools = (found == _NOTHING) & (committed == entries.committed) & (entries.end <= end)
        return nothing

    def query(self, entries: Entries, lag: Lag, chosen: Bools, fetch_records: FetchRecords) -> None:
        """Query the chosen entries with few unread offsets and no open transaction.

        A call queries a limited number, and one topic at a time if there is no answer: a topic that may not be read
        does not fail the others.
        """
        is_stable = ints(entries.logs["last_stable_offset"]) >= entries.end
        is_candidate = chosen & (lag.readable > 0) & (lag.readable <= _FEW_OFFSETS) & is_stable
        due = np.flatnonzero(is_candidate & self._needs_query(entries))[:_MOST_POSITIONS]
        if not len(due):
            return
        commits = entries.commits.select(["topic", "partition"]).take(pa.array(due)).to_pydict()
        offsets = np.maximum(entries.committed, ints(entries.logs["log_start_offset"]))[due].tolist()
        ends = entries.end[due].tolist()
        of_topic: dict[str, list[int]] = defaultdict(list)
        for number, topic in enumerate(commits["topic"]):
            of_topic[topic].append(number)
        chosen_topics = dict(islice(of_topic.items(), _MOST_TOPICS))
        wanted = {
            number: RecordRequest(topic, commits["partition"][number], offsets[number], is_isolated=True)
            for topic, numbers in chosen_topics.items()
            for number in numbers
        }
        records = fetch_records(list(dict.fromkeys(wanted.values())))
        if not records and len(chosen_topics) > 1:  # one of them may not be read
            for numbers in chosen_topics.values():
                records = {**records, **fetch_records(list(dict.fromkeys(wanted[number] for number in numbers)))}
        found = [_meaning(records, one, ends[number]) for number, one in wanted.items()]
        self._note(due[list(wanted)], np.array(found), entries)

    def _answers(self, entries: Entries) -> list[Ints]:
        return [at_numbers(one, entries.positions) for one in (self._found, self._committed, self._end, self._at)]

    def _needs_query(self, entries: Entries) -> Bools:
        found, committed, end, at = self._answers(entries)
        is_retried = (found == _NO_ANSWER) & (entries.at - at >= _RETRY_MICROS)
        has_grown = (found == _NOTHING) & (entries.end > end)
        needs: Bools = (found == UNKNOWN) | (committed != entries.committed) | is_retried | has_grown
        return needs

    def _note(self, queried: Ints, found: Ints, entries: Entries) -> None:
        positions = entries.positions[queried]
        count = int(positions.max()) + 1
        self._found, self._committed, self._end, self._at = (
            lengthened(one, count) for one in (self._found, self._committed, self._end, self._at)
        )
        self._found[positions], self._at[positions] = found, entries.at
        self._committed[positions], self._end[positions] = entries.committed[queried], entries.end[queried]


def _meaning(records: Mapping[RecordRequest, FirstRecord | None], wanted: RecordRequest, end: int) -> int:
    """Return whether no record is left below an end."""
    if wanted not in records:
        return _NO_ANSWER
    record = records[wanted]
    return _NOTHING if record is None or record.offset >= end else _SOMETHING
