"""The ages of unread records in logs that have transactions: never wrong, whatever the records are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouptrail.kafka.log import LARGEST_TIMESTAMP, RecordTimestamp
from grouptrail.lag import dated
from grouptrail.lag.dated import DatedRecords, TimestampLookup, UnreadRecords
from grouptrail.lag.index import UNKNOWN
from support.strategies import MANY

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000
FEW = 3
DATA, ABORTED, MARKER = "data", "aborted", "marker"


@dataclass(frozen=True)
class Entry:
    """A record of a transaction that was committed or aborted, or a marker."""

    offset: int
    kind: str
    time: int


@dataclass(frozen=True)
class Partition:
    """A log with at most `FEW` offsets in a row without a record if `is_kept`."""

    entries: list[Entry]
    end: int
    is_kept: bool

    def answer(self, timestamp: int) -> RecordTimestamp | None:
        wanted = timestamp
        if timestamp == LARGEST_TIMESTAMP:
            wanted = max((one.time for one in self.entries), default=0)
        found = (RecordTimestamp(one.offset, one.time) for one in self.entries if one.time >= wanted)
        return next(found, None)

    def first(self, offset: int, *kinds: str) -> Entry | None:
        return next((one for one in self.entries if one.offset >= offset and one.kind in kinds), None)


@pytest.fixture(autouse=True, scope="module")
def few_offsets() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dated, "FEW_OFFSETS", FEW)
        yield


@st.composite
def partitions(draw: st.DrawFn) -> Partition:
    is_kept, has_transactions = draw(st.booleans()), draw(st.booleans())
    entries: list[Entry] = []
    time, offset, without = NOW_MS - 100 * HOUR_MS, 0, 0
    for _ in range(draw(st.integers(1, 40))):
        time += draw(st.one_of(st.integers(0, 5000), st.integers(-HOUR_MS, 2 * HOUR_MS)))
        kind = draw(st.sampled_from([DATA, ABORTED, MARKER])) if has_transactions else DATA
        if is_kept and kind == MARKER and without >= FEW:
            kind = DATA
        without = without + 1 if kind == MARKER else 0
        entries.append(Entry(offset, kind, time))
        offset += 1 if is_kept else draw(st.sampled_from([1, 1, 2, 5]))
    return Partition(entries, offset, is_kept)


@MANY
@given(st.lists(partitions(), min_size=1, max_size=3), st.data())
def test_dated_records_any_log_never_excludes_the_first_unread_record(
    logs: list[Partition], data: st.DataObject
) -> None:
    has_transactions = any(one.kind != DATA for log in logs for one in log.entries)
    lookup = TimestampLookup(
        lambda asked: {at: logs[at[1]].answer(timestamp) for at, timestamp in asked.items()},
        lambda: has_transactions,
        lambda topics: [topic for topic in topics if logs[int(topic)].is_kept],
    )
    records = DatedRecords()
    for _ in range(2):
        rows = []
        for number, log in enumerate(logs):
            for offset in data.draw(st.lists(st.integers(0, log.end - 1), max_size=4)):
                committed = log.first(offset, DATA)
                shown = committed if data.draw(st.booleans()) else None
                is_isolated = data.draw(st.booleans())
                of_shown = (UNKNOWN, UNKNOWN) if shown is None else (shown.offset, shown.time * 1000)
                rows.append((number, offset, log.end - offset, *of_shown, is_isolated))
        columns = [np.array([row[column] for row in rows], np.int64) for column in range(6)]
        unread = UnreadRecords(*columns[:5], columns[5].astype(bool))
        records.want(unread, NOW_MS * 1000, lambda numbers: [(str(one), one) for one in numbers.tolist()])
        if records.has_questions:
            records.search(lookup)
        age = records.age(unread, np.full(len(unread), NOW_MS * 1000))
        for row, seconds, is_exact in zip(rows, age.seconds.tolist(), age.is_exact.tolist(), strict=True):
            kinds = (DATA,) if row[-1] else (DATA, ABORTED)
            first = logs[row[0]].first(row[1], *kinds)
            if np.isnan(seconds) or first is None:
                continue
            true = (NOW_MS - first.time) / 1000
            assert seconds <= true
            assert seconds == true or not is_exact


def test_dated_records_known_answers_ask_nothing_again() -> None:
    log = Partition([Entry(number, DATA, NOW_MS - (100 - number) * 1000) for number in range(100)], 100, is_kept=True)
    requests: list[Mapping[tuple[str, int], int]] = []

    def fetch(asked: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], RecordTimestamp | str | None]:
        requests.append(asked)
        return {at: log.answer(timestamp) for at, timestamp in asked.items()}

    lookup = TimestampLookup(fetch, lambda: False)
    offsets, none = np.arange(50), np.full(50, UNKNOWN)
    unread = UnreadRecords(np.zeros(50, np.int64), offsets, 100 - offsets, none, none, np.full(50, False))
    records = DatedRecords()
    for at in (0, 10, 20):
        records.want(unread, (NOW_MS + at * 1000) * 1000, lambda numbers: [("orders", 0)] * len(numbers))
        assert records.has_questions == (at == 0)
        if at == 0:
            assert records.search(lookup)
    assert len(requests) > 0
    assert records.age(unread, np.full(50, NOW_MS * 1000)).is_exact.all()
