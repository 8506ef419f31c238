"""The search for the timestamps of records, by answers of a simulated log that answers as a broker does."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouptrail.kafka.log import LARGEST_TIMESTAMP
from grouptrail.lag.index import UNKNOWN
from grouptrail.lag.timestamp_search import RecordTimes, TimestampSearch
from support.strategies import MANY

NOW = 1_800_000_000_000
HOUR = 3_600_000
NO_TIMESTAMP, LONGEST = -1, (1 << 63) - 1


@dataclass
class Segment:
    """Records by offset with their timestamps, and the largest timestamp of those ever in it."""

    records: dict[int, int]
    largest: int = NO_TIMESTAMP

    def __post_init__(self) -> None:
        self.largest = max([self.largest, *self.records.values()])


@dataclass
class Log:
    """A partition's log, and how many questions it was asked.

    `is_shallow`: the largest timestamp comes with the last offset of its batch, here of its segment. `is_in_order`:
    no record was ever written with a lower timestamp than one before it.
    """

    segments: list[Segment]
    start: int = 0
    is_shallow: bool = False
    is_in_order: bool = True
    questions: int = field(default=0, compare=False)

    @property
    def records(self) -> dict[int, int]:
        return {
            offset: time
            for segment in self.segments
            for offset, time in segment.records.items()
            if offset >= self.start
        }

    def answer(self, timestamp: int) -> tuple[int, int]:
        """Return an offset and its timestamp, as `UnifiedLog.fetchOffsetByTimestamp` does."""
        self.questions += 1
        if timestamp == LARGEST_TIMESTAMP:
            return self._largest()
        for segment in self.segments:
            if segment.largest >= timestamp:
                found = (one for one in segment.records.items() if one[1] >= timestamp and one[0] >= self.start)
                return next(found, (UNKNOWN, UNKNOWN))
        return UNKNOWN, UNKNOWN

    def _largest(self) -> tuple[int, int]:
        segment = max(self.segments, key=lambda one: one.largest, default=Segment({}))
        if not segment.records or segment.largest == NO_TIMESTAMP:
            return UNKNOWN, UNKNOWN
        first = next((at for at, time in segment.records.items() if time == segment.largest), max(segment.records))
        return max(segment.records) if self.is_shallow else first, segment.largest

    def first_at(self, offset: int) -> int | None:
        """Return the timestamp of the first record at or after an offset that has one."""
        return next((time for at, time in self.records.items() if at >= offset and time != NO_TIMESTAMP), None)


def in_segments(times: list[int], *, a_segment: int = 10) -> Log:
    numbered = list(enumerate(times))
    parts = [numbered[first : first + a_segment] for first in range(0, len(numbered), a_segment)]
    return Log([Segment(dict(part)) for part in parts])


def run(search: TimestampSearch, logs: list[Log], wanted: list[tuple[int, int]], now: int = NOW) -> RecordTimes:
    partitions, offsets = (np.array([one[column] for one in wanted], np.int64) for column in (0, 1))
    search.set_targets(partitions, offsets, now)
    while len(questions := search.questions()):
        assert len(set(questions.partitions.tolist())) == len(questions)
        answers = [
            logs[number].answer(timestamp)
            for number, timestamp in zip(questions.partitions.tolist(), questions.timestamps.tolist(), strict=True)
        ]
        search.add_answers(questions, *(np.array(column, np.int64) for column in zip(*answers, strict=True)))
    return search.found(partitions, offsets)


steps = st.one_of(
    st.integers(0, 3),
    st.integers(0, HOUR),
    st.just(0),
    st.integers(-HOUR, HOUR),
)
odd_times = st.sampled_from([NO_TIMESTAMP, 0, 1, NOW + HOUR, NOW, LONGEST, 1 << 61, (1 << 61) + 1])


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """A log with records out of order or not, removed by compaction, deleted, without or with absurd timestamps."""
    is_ordered = draw(st.booleans())
    has_odd = draw(st.booleans())
    time = NOW - draw(st.integers(0, 1000)) * HOUR
    offset, segments = 0, []
    for _ in range(draw(st.integers(1, 5))):
        records: dict[int, int] = {}
        largest = NO_TIMESTAMP
        for _ in range(draw(st.integers(0, 12))):
            step = draw(steps)
            time += abs(step) if is_ordered else step
            of_record = draw(odd_times) if has_odd and draw(st.integers(0, 3)) == 0 else time
            if draw(st.integers(0, 4)):
                records[offset] = of_record
            elif draw(st.booleans()):
                largest = max(largest, of_record)  # an empty batch keeps its timestamp
            offset += draw(st.sampled_from([1, 1, 1, 2, 7]))
        segments.append(Segment(records, largest))
    log = Log(segments, is_shallow=draw(st.booleans()), is_in_order=is_ordered and not has_odd)
    log.start = draw(st.integers(0, max(offset - 1, 0)))
    return log


def check(log: Log, offset: int, earliest: int, latest: int, *, is_exact: bool, has_grown: bool) -> None:
    time = log.first_at(offset)
    if latest == UNKNOWN or time is None:
        return
    first = next(time for at, time in log.records.items() if at >= offset)
    if has_grown and first == NO_TIMESTAMP:
        return  # what was found of such a record does not hold for those that were written since
    time = min(time, 1 << 61)
    assert time <= latest, "an upper limit holds for any log"
    if is_exact:
        assert time == latest
    if log.is_in_order:
        assert earliest <= time


@MANY
@given(st.lists(logs(), min_size=1, max_size=3), st.data())
def test_timestamp_search_any_log_never_excludes_true_timestamp(some: list[Log], data: st.DataObject) -> None:
    search = TimestampSearch()
    for number_of_search in range(3):
        wanted = []
        for number, log in enumerate(some):
            records = log.records
            if records:
                at = st.integers(log.start, max(records))
                wanted += [(number, offset) for offset in data.draw(st.lists(at, max_size=4))]
        found = run(search, some, wanted)
        for (number, offset), *times in zip(
            wanted, found.earliest.tolist(), found.latest.tolist(), found.is_exact.tolist(), strict=True
        ):
            check(some[number], offset, *times[:2], is_exact=times[2], has_grown=number_of_search > 0)
        for log in some:  # meanwhile, retention deletes, and producers write on
            if log.records and data.draw(st.booleans()):
                log.start = data.draw(st.integers(log.start, max(log.records)))
            last = max((max(one.records, default=0) for one in log.segments), default=0)
            new = {last + 1 + at: NOW + step for at, step in enumerate(data.draw(st.lists(steps, max_size=3)))}
            if new and not log.is_in_order:
                log.segments.append(Segment(new))


@given(st.lists(st.integers(1, HOUR), min_size=1, max_size=300), st.data())
def test_timestamp_search_timestamps_rise_finds_each_exactly(gaps: list[int], data: st.DataObject) -> None:
    times = (NOW - 400 * HOUR + np.cumsum(gaps)).tolist()
    offset = data.draw(st.integers(0, len(times) - 1))
    found = run(TimestampSearch(), [in_segments(times)], [(0, offset)])
    assert found.latest[0] - times[offset] <= max(1000, 0.01 * (NOW - times[offset]))
    assert found.latest[0] >= times[offset]


@given(st.lists(st.tuples(st.integers(1, HOUR), st.integers(1, 50)), min_size=1, max_size=60), st.data())
def test_timestamp_search_batches_share_timestamps_stays_within_tolerance_or_neighbours(
    batches: list[tuple[int, int]], data: st.DataObject
) -> None:
    """As with LogAppendTime: all records of a batch have its timestamp."""
    starts = NOW - 100 * HOUR + np.cumsum([gap for gap, _ in batches])
    times = np.repeat(starts, [count for _, count in batches]).tolist()
    offset = data.draw(st.integers(0, len(times) - 1))
    found = run(TimestampSearch(), [in_segments(times, a_segment=40)], [(0, offset)])
    assert found.earliest[0] <= times[offset] <= found.latest[0]
    is_close = found.latest[0] - found.earliest[0] <= max(1000, 0.01 * (NOW - found.latest[0]))
    neighbours = [time for time in (*sorted(set(times)),) if found.earliest[0] < time < found.latest[0]]
    assert is_close or not neighbours


def test_timestamp_search_week_of_records_takes_few_questions() -> None:
    random = np.random.default_rng(7)
    logs = [
        in_segments(np.sort(random.integers(NOW - 168 * HOUR, NOW, size)).tolist(), a_segment=200)
        for size in random.integers(50, 2000, 200)
    ]
    wanted = [(number, int(random.integers(0, max(log.records)))) for number, log in enumerate(logs)]
    found = run(TimestampSearch(), logs, wanted)
    true = np.array([logs[number].records[offset] for number, offset in wanted])
    assert (np.abs(found.latest - true) <= np.maximum(1000, 0.01 * (NOW - true))).all()
    assert sum(log.questions for log in logs) / len(logs) < 9


def test_timestamp_search_offsets_of_one_partition_share_answers() -> None:
    log = in_segments([NOW - HOUR + 1000 * at for at in range(3000)])
    search = TimestampSearch()
    run(search, [log], [(0, 2500)])
    alone = log.questions
    run(search, [log], [(0, 2500), (0, 2501)])
    assert log.questions - alone <= 2


def test_timestamp_search_same_offsets_again_asks_nothing() -> None:
    log = in_segments([NOW - HOUR + 1000 * at for at in range(300)])
    search = TimestampSearch()
    first = run(search, [log], [(0, 77)])
    questions = log.questions
    again = run(search, [log], [(0, 77)], now=NOW + 10_000)
    assert log.questions == questions
    assert first.latest.tolist() == again.latest.tolist()


def test_timestamp_search_later_commit_uses_known_records() -> None:
    log = in_segments([NOW - HOUR + 1000 * at for at in range(3000)])
    search = TimestampSearch()
    run(search, [log], [(0, 1000)])
    questions = log.questions
    found = run(search, [log], [(0, 1001)])
    assert found.is_exact.all()
    assert log.questions - questions <= 3


def test_timestamp_search_record_of_the_far_future_before_offset_says_nothing() -> None:
    log = in_segments([NOW - HOUR, LONGEST, NOW - 1000, NOW])
    found = run(TimestampSearch(), [log], [(0, 2), (0, 0)])
    assert found.latest.tolist() == [UNKNOWN, NOW - HOUR]


def test_timestamp_search_last_records_out_of_order_are_bounded_by_largest() -> None:
    log = in_segments([NOW - HOUR, NOW - 1000, NOW - 2 * HOUR])
    found = run(TimestampSearch(), [log], [(0, 2)])
    assert (found.latest.tolist(), found.is_exact.tolist()) == ([NOW - 1000], [False])


def test_timestamp_search_empty_log_finds_nothing() -> None:
    found = run(TimestampSearch(), [Log([])], [(0, 5)])
    assert found.latest.tolist() == [UNKNOWN]


def test_timestamp_search_deleted_record_hides_later_ones_finds_nothing_wrong() -> None:
    """A segment below the log's start, not removed yet, has the largest timestamp up to here."""
    log = Log([Segment({0: NOW - HOUR, 1: NOW - 10}), Segment({2: NOW - 500, 3: NOW - 400})], start=2)
    found = run(TimestampSearch(), [log], [(0, 3)])
    assert found.latest[0] in (UNKNOWN, NOW - 10, NOW - 400)
    assert not found.is_exact[0] or found.latest[0] == NOW - 400


def test_timestamp_search_empty_batch_at_segment_end_is_no_proof_that_nothing_follows() -> None:
    log = Log([Segment({0: 90}, largest=100), Segment({2: 110})])
    found = run(TimestampSearch(), [log], [(0, 2)], now=10_000)
    assert found.latest[0] in (UNKNOWN, 110)


@pytest.mark.parametrize("later", [0, 599_999])
def test_timestamp_search_failed_partition_is_not_asked_for_ten_minutes(later: int) -> None:
    search = TimestampSearch()
    wanted = np.array([3]), np.array([10])
    search.set_targets(*wanted, NOW)
    assert len(search.questions()) == 1
    search.add_failures(np.array([3]))
    search.set_targets(*wanted, NOW + later)
    assert len(search.questions()) == 0
    search.set_targets(*wanted, NOW + 600_000)
    assert len(search.questions()) == 1


def test_timestamp_search_replaced_log_forgets_its_records() -> None:
    log = in_segments([NOW - HOUR + at for at in range(30)])
    search = TimestampSearch()
    run(search, [log], [(0, 7)])
    search.forget(np.array([0]))
    assert search.found(np.array([0]), np.array([7])).latest.tolist() == [UNKNOWN]


def test_timestamp_search_unknown_timestamp_is_asked_for_again_in_ten_minutes() -> None:
    log = in_segments([LONGEST, NOW - HOUR])
    search = TimestampSearch()
    run(search, [log], [(0, 1)])
    questions = log.questions
    run(search, [log], [(0, 1)], now=NOW + 60_000)
    assert log.questions == questions
    log.segments, log.start = [Segment({1: NOW - HOUR})], 1
    assert run(search, [log], [(0, 1)], now=NOW + 600_000).latest.tolist() == [NOW - HOUR]
