"""Whether a record is left to read where a group seems to stand still: offsets may be those of markers alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from grouptrail.kafka.log import FirstRecord, RecordRequest
from grouptrail.lag.index import Bools, ints
from grouptrail.lag.offsets import Entries, Lag

Ask = Callable[[Sequence[RecordRequest]], Mapping[RecordRequest, FirstRecord | None]]
"""Finds first records, as far as they can be told; None: none is left in the log."""

_MICROS = 1_000_000
_FEW_OFFSETS = 1000
_MOST_POSITIONS, _MOST_TOPICS = 100, 10
_ASK_AGAIN_MICROS = 600 * _MICROS


@dataclass(frozen=True)
class _Answer:
    """Whether nothing was left to read between two offsets; None: nobody told, at that time (microseconds)."""

    committed: int
    end: int
    is_nothing: bool | None
    at: int


class UnreadOffsets:
    """What brokers answered, by the positions' numbers; each is asked once for a committed offset and a log's end.

    Only committed records count: a group may read under read_committed, which does not show.
    """

    def __init__(self) -> None:
        self._answers: dict[int, _Answer] = {}

    def nothing_left(self, entries: Entries) -> Bools:
        """Where all offsets behind the committed one are known to hold no record."""
        found = np.full(len(entries), False)
        asked = np.flatnonzero(np.isin(entries.positions, list(self._answers)))
        for place, position, committed, end in _at(asked, entries):
            answer = self._answers[position]
            found[place] = bool(answer.is_nothing) and answer.committed == committed and end <= answer.end
        return found

    def ask(self, entries: Entries, lag: Lag, places: Iterable[int], ask: Ask) -> bool:
        """Asks for some places with few unread offsets and no open transaction; whether anything is new.

        So many at most, and those of each topic apart: that one may not be read says nothing of another.
        """
        is_stable = ints(entries.logs["last_stable_offset"]) >= entries.end
        worth_it = (lag.readable > 0) & (lag.readable <= _FEW_OFFSETS) & is_stable
        chosen = [one for one in _at(places, entries) if worth_it[one[0]] and self._is_open(*one[1:], entries.at)]
        topics, partitions = (entries.commits[name].to_pylist() for name in ("topic", "partition"))
        of_topic: dict[str, list[tuple[int, int, int, int]]] = defaultdict(list)
        for one in chosen[:_MOST_POSITIONS]:
            of_topic[topics[one[0]]].append(one)
        starts = ints(entries.logs["log_start_offset"])
        for topic, some in islice(of_topic.items(), _MOST_TOPICS):
            wanted = {
                place: RecordRequest(topic, partitions[place], max(committed, int(starts[place])), is_isolated=True)
                for place, _, committed, _ in some
            }
            told = ask(list(dict.fromkeys(wanted.values())))
            for place, position, committed, end in some:
                record = told.get(wanted[place])
                is_nothing = (record is None or record.offset >= end) if wanted[place] in told else None
                self._answers[position] = _Answer(committed, end, is_nothing, entries.at)
        return bool(chosen)

    def _is_open(self, position: int, committed: int, end: int, at: int) -> bool:
        answer = self._answers.get(position)
        if answer is None or answer.committed != committed:
            return True
        if answer.is_nothing is None:
            return at - answer.at >= _ASK_AGAIN_MICROS
        return answer.is_nothing and end > answer.end


def _at(places: Iterable[int], entries: Entries) -> list[tuple[int, int, int, int]]:
    """The place, the position, the committed offset and the log's end."""
    chosen = np.array(list(places), np.int64)
    columns = (entries.positions, entries.committed, entries.end)
    return list(zip(chosen.tolist(), *(column[chosen].tolist() for column in columns), strict=True))
