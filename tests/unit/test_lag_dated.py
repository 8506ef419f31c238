"""Lag in seconds of records that are older than the samples, by timestamps that brokers look up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from grouptrail.config import Config
from grouptrail.kafka.errors import KafkaUnreachableError
from grouptrail.kafka.log import LARGEST_TIMESTAMP, FirstRecord, RecordRequest, RecordTimestamp
from grouptrail.lag.calculator import STORED_LAG, LagCalculator, Rules
from grouptrail.lag.dated import TimestampLookup
from grouptrail.lag.state import LagState
from grouptrail.lag.unread import FetchRecords
from support.contexts import lag_inputs
from support.lag_cluster import empty_tables
from support.lag_samples import add_commits, add_sample, commit, log, micros, new_calculator, row_at

HOUR = 3600
DENIED = "DESCRIBE is denied"


class Timestamps:
    """A partition's records: their timestamps in seconds after noon, from offset 0 on. Counts the requests."""

    def __init__(
        self, *seconds: float, refusal: str | None = None, has_transactions: bool = False, is_kept: bool = False
    ) -> None:
        self.times = [micros(one) // 1000 for one in seconds]
        self.requests = 0
        self.lookup = TimestampLookup(self, lambda: has_transactions, lambda topics: topics if is_kept else ())
        self._refusal = refusal

    def __call__(self, asked: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], RecordTimestamp | str | None]:
        self.requests += 1
        assert set(asked) == {("orders", 0)}
        [timestamp] = asked.values()
        if self._refusal is not None:
            return {("orders", 0): self._refusal}
        wanted = max(self.times) if timestamp == LARGEST_TIMESTAMP else timestamp
        found = ((offset, time) for offset, time in enumerate(self.times) if time >= wanted)
        first = next(found, None)
        return {("orders", 0): None if first is None else RecordTimestamp(*first)}


def hourly(count: int = 100, **how: Any) -> Timestamps:
    """Return a record for each of the last hours before noon, the newest an hour old."""
    return Timestamps(*(-HOUR * (count - number) for number in range(count)), **how)


def dated_row_at(
    calculator: LagCalculator, *logs: dict[str, Any], lookup: TimestampLookup, **how: Any
) -> dict[str, Any]:
    """Add a sample, find timestamps, and return the only row of `consumer_lag` at it."""
    row_at(calculator, *logs, **how)
    if calculator.has_timestamps_to_find:
        calculator.find_timestamps(lookup)
    [row] = calculator.compute({}).to_pylist()
    return dict(row)


def seconds_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["lag_seconds"], row["lag_seconds_method"], row["lag_seconds_error"]


def test_lag_seconds_first_sample_is_dated_by_the_records_timestamp() -> None:
    calculator = new_calculator(commit(-5, 90))
    assert seconds_of(dated_row_at(calculator, log(0, 100), lookup=hourly().lookup)) == (10 * HOUR, "dated", 0)


def test_lag_seconds_dated_offset_costs_no_further_request() -> None:
    calculator, records = new_calculator(commit(-5, 90)), hourly()
    dated_row_at(calculator, log(0, 100), lookup=records.lookup)
    requests = records.requests
    assert seconds_of(dated_row_at(calculator, log(10, 100), lookup=records.lookup)) == (
        10 * HOUR + 10,
        "dated",
        0,
    )
    assert records.requests == requests


def test_lag_seconds_dated_is_kept_between_samples_without_requests() -> None:
    calculator = new_calculator(commit(-5, 90))
    dated_row_at(calculator, log(0, 100), lookup=hourly().lookup)
    [row] = calculator.compute({}).to_pylist()
    assert seconds_of(row) == (10 * HOUR, "dated", 0)


@pytest.mark.parametrize("is_later", [False, True])
def test_lag_seconds_restart_dates_the_same_offset_without_requests(is_later: bool) -> None:
    calculator = new_calculator(commit(-5, 90))
    row_at(calculator, log(0, 100))
    calculator.find_timestamps(hourly().lookup)
    stored = calculator.compute({}, columns=STORED_LAG.names)
    restarted = new_calculator(commit(-5, 90), *([commit(5, 91)] if is_later else []))
    add_sample(restarted, log(0, 100))
    restarted.add_stored_lag(stored)
    row = row_at(restarted, log(10, 100))
    assert seconds_of(row) == ((10, "bounded", None) if is_later else (10 * HOUR + 10, "dated", 0))
    assert restarted.has_timestamps_to_find == is_later


def test_lag_seconds_record_that_compaction_removes_is_dated_anew_within_the_hour() -> None:
    calculator, records = new_calculator(commit(-5, 90)), hourly()
    assert seconds_of(dated_row_at(calculator, log(0, 100), lookup=records.lookup)) == (10 * HOUR, "dated", 0)
    records.times[90] = -1
    requests = records.requests
    dated_row_at(calculator, log(HOUR - 10, 100), lookup=records.lookup)
    assert records.requests == requests
    row = row_at(calculator, log(HOUR, 100))
    assert seconds_of(row) == (11 * HOUR, "dated", 0), "until it is looked up"
    row = dated_row_at(calculator, log(HOUR + 10, 100), lookup=records.lookup)
    assert seconds_of(row) == (10 * HOUR + 10, "dated", None)


def test_lag_seconds_stored_age_is_looked_up_within_the_hour() -> None:
    calculator, records = new_calculator(commit(-5, 90)), hourly()
    row_at(calculator, log(0, 100))
    calculator.find_timestamps(records.lookup)
    restarted = new_calculator(commit(-5, 90))
    add_sample(restarted, log(0, 100))
    restarted.add_stored_lag(calculator.compute({}, columns=STORED_LAG.names))
    records.times[90] = -1
    row = row_at(restarted, log(HOUR, 100))
    assert seconds_of(row) == (11 * HOUR, "dated", 0)
    row = dated_row_at(restarted, log(HOUR + 10, 100), lookup=records.lookup)
    assert seconds_of(row) == (10 * HOUR + 10, "dated", None)


@pytest.mark.parametrize("seconds", [10, HOUR])
def test_lag_seconds_many_offsets_with_transactions_stay_dated_while_the_policy_is_asked_for(seconds: int) -> None:
    records = hourly(3000, has_transactions=True, is_kept=True)
    calculator = new_calculator(commit(-5, 90))
    dated_row_at(calculator, log(0, 3000), lookup=records.lookup)
    assert seconds_of(row_at(calculator, log(seconds, 3000))) == (1910 * HOUR + seconds, "dated", None)
    calculator.find_timestamps(TimestampLookup(records, lambda: True))
    [row] = calculator.compute({}).to_pylist()
    assert row["lag_seconds_method"] == ("dated" if seconds < HOUR else "bounded"), "it is compacted now"


def test_lag_seconds_restart_with_the_lookup_disabled_is_bounded() -> None:
    calculator = new_calculator(commit(-5, 90))
    row_at(calculator, log(0, 100))
    calculator.find_timestamps(hourly().lookup)
    restarted = new_calculator(commit(-5, 90), rules=Rules(timestamp_lookup=False))
    add_sample(restarted, log(0, 100))
    restarted.add_stored_lag(calculator.compute({}, columns=STORED_LAG.names))
    assert seconds_of(row_at(restarted, log(10, 100))) == (10, "bounded", None)


def test_lag_seconds_restart_with_recreated_topic_forgets_the_stored_age() -> None:
    calculator = new_calculator(commit(-5, 90))
    row_at(calculator, log(0, 100, topic_id="a"))
    calculator.find_timestamps(hourly().lookup)
    restarted = new_calculator(commit(-5, 90))
    add_sample(restarted, log(0, 100, topic_id="a"))
    restarted.add_stored_lag(calculator.compute({}, columns=STORED_LAG.names))
    assert seconds_of(row_at(restarted, log(10, 100, topic_id="b"))) == (0, "bounded", None)


def test_lag_seconds_later_commit_starts_from_the_records_found() -> None:
    calculator, records = new_calculator(commit(-5, 90)), hourly()
    dated_row_at(calculator, log(0, 100), lookup=records.lookup)
    requests = records.requests
    add_commits(calculator, commit(5, 91))
    assert seconds_of(dated_row_at(calculator, log(10, 100), lookup=records.lookup))[:2] == (
        9 * HOUR + 10,
        "dated",
    )
    assert records.requests - requests <= 3


def test_lag_seconds_caught_up_group_sends_no_request() -> None:
    calculator, records = new_calculator(commit(-5, 100)), hourly()
    assert seconds_of(dated_row_at(calculator, log(0, 100), lookup=records.lookup)) == (0, "observed", 0)
    assert records.requests == 0


def test_lag_seconds_record_between_samples_stays_observed() -> None:
    calculator, records = new_calculator(commit(-5, 100)), hourly(200)
    add_sample(calculator, log(0, 100))
    assert seconds_of(dated_row_at(calculator, log(10, 120), lookup=records.lookup))[1] == "observed"
    assert records.requests == 0


def test_lag_seconds_records_out_of_order_are_a_lower_bound() -> None:
    """The record at offset 1 is older than that at 0; brokers cannot show it."""
    calculator = new_calculator(commit(-5, 1))
    records = Timestamps(-3 * HOUR, -9 * HOUR, -2 * HOUR)
    seconds, method, error = seconds_of(dated_row_at(calculator, log(0, 3), lookup=records.lookup))
    assert (seconds, method, error) == (2 * HOUR, "dated", None)


@pytest.mark.parametrize(
    "seconds",
    [
        (HOUR, HOUR + 1, HOUR + 2),  # clocks ahead
        (-micros(0) / 1e6 + 1, -micros(0) / 1e6 + 2, -micros(0) / 1e6 + 3),  # of 1970
        (HOUR, -HOUR, -HOUR),  # one in the future hides the others
    ],
)
def test_lag_seconds_absurd_timestamps_stay_bounded(seconds: tuple[float, ...]) -> None:
    calculator = new_calculator(commit(-5, 1))
    row = dated_row_at(calculator, log(0, 3), lookup=Timestamps(*seconds).lookup)
    assert seconds_of(row) == (0, "bounded", None)


def test_lag_seconds_timestamp_later_than_a_sample_with_the_record_stays_bounded() -> None:
    calculator = new_calculator(commit(-60, 1))
    add_sample(calculator, log(0, 3))
    row = dated_row_at(calculator, log(20, 3), lookup=Timestamps(-HOUR, 10, 11).lookup)
    assert seconds_of(row) == (20, "bounded", None)


def test_lag_seconds_deleted_records_are_dated_by_the_first_one_left() -> None:
    calculator = new_calculator(commit(-5, 10))
    row = dated_row_at(calculator, log(0, 100, start=95), lookup=hourly().lookup)
    assert (row["lost_records"], *seconds_of(row)) == (85, 5 * HOUR, "dated", 0)


def test_lag_seconds_replaced_log_is_dated_anew() -> None:
    calculator = new_calculator(commit(-5, 90))
    dated_row_at(calculator, log(0, 100, topic_id="a"), lookup=hourly().lookup)
    records = Timestamps(*(-60 for _ in range(100)))
    row = dated_row_at(calculator, log(10, 100, topic_id="b"), lookup=records.lookup)
    assert records.requests
    assert row["lag_seconds"] <= 70


def test_lag_seconds_denied_partition_is_asked_once_in_ten_minutes() -> None:
    calculator, records = new_calculator(commit(-5, 90)), Timestamps(refusal=DENIED)
    for seconds in (0, 10, 590):
        assert seconds_of(dated_row_at(calculator, log(seconds, 100), lookup=records.lookup))[1] == "bounded"
    assert records.requests == 1
    dated_row_at(calculator, log(600, 100), lookup=records.lookup)
    assert records.requests == 2


def test_lag_seconds_no_time_left_is_tried_at_the_next_sample() -> None:
    calculator = new_calculator(commit(-5, 90))
    assert (
        seconds_of(dated_row_at(calculator, log(0, 100), lookup=TimestampLookup(lambda _: {}, bool)))[1] == "bounded"
    )
    assert seconds_of(dated_row_at(calculator, log(10, 100), lookup=hourly().lookup))[1] == "dated"


def answers_of(record: FirstRecord | None, asked: list[int]) -> FetchRecords:
    """Return what answers requests for records, and counts the requests of each call."""

    def fetch(wanted: Sequence[RecordRequest]) -> dict[RecordRequest, FirstRecord | None]:
        asked.append(len(wanted))
        return dict.fromkeys(wanted, record)

    return fetch


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (90, (7 * HOUR, "dated", 0)),  # its own timestamp, whatever the brokers find by timestamps
        (93, (7 * HOUR + 10, "dated", None)),  # offsets 90 to 92 may hold aborted records that count
    ],
)
def test_lag_seconds_few_offsets_with_transactions_are_dated_once_a_record_is_read(
    first: int, expected: tuple[Any, ...]
) -> None:
    """Where there are transactions, the last offset of an idle topic is a marker."""
    asked: list[int] = []
    calculator, records = new_calculator(commit(-5, 90)), hourly(has_transactions=True)
    fetch = answers_of(FirstRecord(first, micros(10 - 7 * HOUR)), asked)
    assert (
        dated_row_at(calculator, log(0, 100), lookup=records.lookup, fetch_records=fetch)["lag_seconds_method"]
        == "bounded"
    )
    for _ in range(2):
        row = dated_row_at(calculator, log(10, 100), lookup=records.lookup, fetch_records=fetch)
        assert seconds_of(row) == expected
    assert asked == [1]


def test_lag_seconds_few_offsets_with_transactions_stay_bounded_without_read() -> None:
    calculator, records = new_calculator(commit(-5, 90)), hourly(has_transactions=True, is_kept=True)
    for seconds in (0, 10):
        row = dated_row_at(calculator, log(seconds, 100), lookup=records.lookup, fetch_records=lambda _: {})
    assert seconds_of(row) == (10, "bounded", None)
    assert records.requests == 0


def test_lag_seconds_aborted_record_does_not_count_for_group_that_reads_committed() -> None:
    rules = Rules(read_committed_groups=("billing",))
    calculator, records = new_calculator(commit(-5, 90), rules=rules), hourly(has_transactions=True, is_kept=True)
    fetch = answers_of(FirstRecord(93, micros(-2 * HOUR)), [])
    dated_row_at(calculator, log(0, 2000), lookup=records.lookup)
    row = dated_row_at(calculator, log(0, 2000), lookup=records.lookup, fetch_records=fetch)
    assert seconds_of(row) == (2 * HOUR, "dated", 0)
    assert records.requests == 0


def test_lag_seconds_markers_alone_are_no_lag() -> None:
    calculator, records = new_calculator(commit(-5, 99)), hourly(has_transactions=True)
    for seconds in (0, 10):
        row = dated_row_at(calculator, log(seconds, 100), lookup=records.lookup, fetch_records=answers_of(None, []))
    assert (row["lag"], row["lag_seconds"], row["status"]) == (1, 0, "OK")


def test_lag_seconds_many_offsets_with_transactions_are_a_lower_bound_by_the_record_behind_them() -> None:
    """The record at offset 90 may be a marker, and so may the next 1,000 at most."""
    records = hourly(3000, has_transactions=True, is_kept=True)
    row = dated_row_at(new_calculator(commit(-5, 90)), log(0, 3000), lookup=records.lookup)
    assert seconds_of(row) == (1910 * HOUR, "dated", None)


def test_lag_seconds_many_offsets_of_a_topic_that_may_be_compacted_stay_bounded_with_transactions() -> None:
    """Compaction leaves any number of markers in a row."""
    records = hourly(3000, has_transactions=True)
    row = dated_row_at(new_calculator(commit(-5, 90)), log(0, 3000), lookup=records.lookup)
    assert seconds_of(row) == (0, "bounded", None)


def test_lag_seconds_transactions_begun_during_the_search_make_it_a_lower_bound() -> None:
    answers = iter([False, True])
    records = hourly(is_kept=True)
    lookup = TimestampLookup(records, lambda: next(answers))
    calculator = new_calculator(commit(-5, 90))
    assert seconds_of(dated_row_at(calculator, log(0, 100), lookup=lookup)) == (0, "bounded", None)


def test_lag_seconds_log_replaced_during_the_search_is_not_dated_by_the_old_one() -> None:
    calculator, records = new_calculator(commit(-5, 90)), hourly()

    def answer_late(asked: Mapping[tuple[str, int], int]) -> Mapping[tuple[str, int], Any]:
        found = records(asked)
        add_sample(calculator, log(5 + records.requests, 100, topic_id=f"topic-{records.requests}"))
        return found if records.requests < 5 else {}

    row_at(calculator, log(0, 100, topic_id="topic-0"))
    calculator.find_timestamps(TimestampLookup(answer_late, lambda: False))
    [row] = calculator.compute({}).to_pylist()
    assert row["lag_seconds_method"] == "bounded"


def test_verdict_dated_record_counts_by_samples_alone() -> None:
    """A producer may set any timestamp: no alert rests on it."""

    def judged(records: Timestamps) -> dict[str, Any]:
        row = dated_row_at(new_calculator(commit(-HOUR, 90)), log(0, 100), lookup=records.lookup)
        return {name: row[name] for name in ("status", "status_reason", "silent_seconds")}

    assert judged(hourly()) == judged(Timestamps(refusal=DENIED))


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return empty_tables(tmp_path)


def state_of(config: Config, lines: list[str], **lag: Any) -> LagState:
    config = config.model_copy(update={"lag": config.lag.model_copy(update=lag)})
    return LagState(lag_inputs(config), lines.append)


def test_lag_state_disabled_lookup_has_no_function(config: Config) -> None:
    assert state_of(config, [], timestamp_lookup=False)._timestamp_lookup() is None


def test_lag_state_unreachable_brokers_are_logged_once_and_left_alone_for_a_minute(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    state = state_of(config, lines)

    def fail(*_: object) -> None:
        raise KafkaUnreachableError("no Kafka broker answers")

    monkeypatch.setattr(state._timestamps, "records_since", fail)
    lookup = state._timestamp_lookup()
    assert lookup is not None
    assert lookup.fetch({("orders", 0): 5}) == {}
    assert lookup.fetch({("orders", 0): 5}) == {}
    assert lines == ["lag: timestamps cannot be looked up: no Kafka broker answers"]
    assert state._timestamp_lookup() is None


def test_lag_state_denied_topic_is_logged_once(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    state = state_of(config, lines)
    monkeypatch.setattr(state._timestamps, "records_since", lambda asked, _: dict.fromkeys(asked, DENIED))
    for _ in range(2):
        lookup = state._timestamp_lookup()
        assert lookup is not None
        assert lookup.fetch({("orders", 0): 5}) == {("orders", 0): DENIED}
    [line] = lines
    assert line.startswith(f"lag: some timestamps cannot be looked up ({DENIED}), so that lag in seconds is a lower")


def test_lag_calculator_without_requests_stays_as_it_was() -> None:
    calculator: LagCalculator = new_calculator(commit(-5, 90))
    assert seconds_of(row_at(calculator, log(0, 100))) == (0, "bounded", None)
