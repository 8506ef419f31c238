"""How long records have waited: nothing that was deleted, and no longer than the samples of the logs allow."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grouptrail.kafka.log import FirstRecord, RecordRequest
from grouptrail.lag.calculator import Rules
from grouptrail.lag.positions import COMMITS
from grouptrail.lag.seconds import LogEnds, LogEndSample, kept_times
from grouptrail.lag.verdict import Thresholds
from support.lag_samples import SECOND, Row, add_commits, at, commit, log, micros, new_calculator, row_at

HOUR, DAY, YEAR = 3_600, 86_400, 365 * 86_400
FAR = 1 << 62


# --- deleted records ---


@pytest.mark.parametrize(
    ("start", "lag_seconds", "status"),
    [
        (0, (3_600, 1_800), "STOP"),
        (50, (3_600, 1_800), "STOP"),
        (51, (3_600, 1_800), "STOP"),
        (99, (3_600, 1_800), "STOP"),
        (100, (1_000, 600), "STOP"),
        (149, (1_000, 600), "STOP"),
        (150, (370, 231), "STOP"),
        (199, (200, 100), "OK"),
        (200, (0, 0), "OK"),
    ],
)
def test_lag_seconds_begin_at_the_first_record_that_still_exists(
    start: int, lag_seconds: tuple[float, float], status: str
) -> None:
    """Records 0 to 99 were written at about -1 h, those to 149 at about -1,000 s, the others after -600 s."""
    calculator = new_calculator(commit(-2 * HOUR, 0))
    for seconds, end in ((-5_400, 0), (-1_800, 100), (-600, 150), (-140, 200)):
        row_at(calculator, log(seconds, end))
    row = row_at(calculator, log(0, 200, start=start))
    assert (row["lag"], row["lost_records"], row["status"]) == (200, start, status)
    assert row["readable_lag"] == 200 - start
    true_age, error = lag_seconds
    assert abs(row["lag_seconds"] - true_age) <= max(row["lag_seconds_error"], error)
    assert row["lag_seconds"] <= (5_400 if start < 100 else 1_800 if start < 150 else 600)


def test_lag_seconds_of_a_log_emptied_by_retention_is_zero_for_ever() -> None:
    calculator = new_calculator(commit(-DAY, 50))
    for seconds in range(0, 30 * DAY, DAY):
        row = row_at(calculator, log(seconds, 100, start=100))
        assert (row["lag"], row["lag_seconds"], row["lag_seconds_error"], row["catch_up_seconds"]) == (50, 0, 0, 0)
        assert (row["readable_lag"], row["status"]) == (0, "OK")


def test_lag_of_an_exact_group_whose_unread_records_were_deleted_is_zero_without_a_request() -> None:
    calculator = new_calculator(commit(-DAY, 50), rules=Rules(exact_groups=("*",)))
    row_at(calculator, log(-10, 90))
    row = row_at(
        calculator, log(0, 100, start=100), fetch_records=lambda wanted: pytest.fail(str(wanted)) if wanted else {}
    )
    assert (row["lag"], row["lost_records"], row["lag_seconds"]) == (0, 50, 0)


# --- producers' clocks ---

EXACT = Rules(exact_groups=("*",))


def exact_row(
    stamp: int, *, before: bool = True, is_append_time: bool = False, silent: float = 5, later: float = 0
) -> Row:
    """Return the row at 10 + `later` s; record 100 came between 0 and 10 s, where a sample `before` shows that."""

    def records(wanted: Sequence[RecordRequest]) -> Mapping[RecordRequest, FirstRecord]:
        return {one: FirstRecord(100, stamp, is_append_time) for one in wanted}

    calculator = new_calculator(commit(10 - silent, 100), rules=EXACT)
    if before:
        row_at(calculator, log(0, 100))
    row = row_at(calculator, log(10, 101), fetch_records=records)
    return row_at(calculator, log(10 + later, 101), fetch_records=records) if later else row


@pytest.mark.parametrize(
    "stamp",
    [micros(-DAY), micros(YEAR), 0, 1, -1_000, micros(-1), micros(11), (1 << 63) - 1, -(1 << 63), micros(-YEAR)],
)
@pytest.mark.parametrize("before", [True, False])
def test_lag_seconds_a_producers_stamp_that_the_samples_refute_dates_nothing(stamp: int, *, before: bool) -> None:
    """Replication keeps yesterday's stamps; the member is healthy, caught up and has been idle for long."""
    row = exact_row(stamp, before=before, silent=HOUR)
    assert row["lag_seconds_method"] == ("observed" if before else "bounded")
    assert 0 <= row["lag_seconds"] <= 10
    assert row["status"] == "OK"
    known = 0 <= stamp < 253_402_300_800 * SECOND
    assert row["first_unread_record_at"] == (datetime.fromtimestamp(stamp / SECOND, UTC) if known else None)


@pytest.mark.parametrize("stamp", [0, 3, 10])
def test_lag_seconds_a_producers_stamp_that_the_samples_bear_out_is_exact(stamp: float) -> None:
    row = exact_row(micros(stamp), later=100)
    assert (row["lag_seconds"], row["lag_seconds_method"], row["lag_seconds_error"]) == (110 - stamp, "exact", 0)
    assert row["first_unread_record_at"] == at(stamp)


def test_lag_seconds_a_producers_stamp_without_an_earlier_sample_is_another_figure() -> None:
    """Nothing shows that the record was not replicated just now."""
    row = exact_row(micros(-HOUR), before=False)
    assert (row["lag_seconds"], row["lag_seconds_method"], row["lag_seconds_error"]) == (0, "bounded", None)
    assert row["first_unread_record_at"] == at(-HOUR)


def test_lag_seconds_of_log_append_time_are_exact_without_an_earlier_sample() -> None:
    """The broker set the stamp when it appended the record."""
    row = exact_row(micros(-HOUR), before=False, is_append_time=True)
    assert (row["lag_seconds"], row["lag_seconds_method"]) == (HOUR + 10, "exact")


@pytest.mark.parametrize(("stamp", "method"), [(-4, "exact"), (14, "exact"), (-60, "observed"), (60, "observed")])
def test_lag_seconds_of_log_append_time_allow_for_two_clocks_but_no_more(stamp: float, method: str) -> None:
    assert exact_row(micros(stamp), is_append_time=True)["lag_seconds_method"] == method


def test_status_with_a_stamp_far_ahead_is_stop_once_the_record_has_waited() -> None:
    assert exact_row(micros(YEAR), silent=HOUR, later=600)["status"] == "STOP"


# --- sampling and committing in step ---


SHORT = Rules(Thresholds(window_seconds=120, stop_seconds=60))


def some_of(normal: set[tuple[float, ...]], *values: Sequence[float]) -> list[Any]:
    """Return all combinations as parameters; those that are not `normal` are for a full run."""
    marks: dict[bool, list[pytest.MarkDecorator]] = {True: [], False: [pytest.mark.full]}
    return [pytest.param(*one, marks=marks[one in normal]) for one in itertools.product(*values)]


@pytest.mark.parametrize(
    ("step", "every", "phase"),
    some_of({(1, 10, 0.1), (3, 5, 0.9), (10, 1, 0.1), (10, 10, 0.9)}, [1, 3, 10], [1, 5, 10], [0.1, 0.9]),
)
def test_status_of_a_group_that_keeps_up_is_never_warn(step: int, every: int, phase: float) -> None:
    """Whatever the distances of samples and commits; commits come at the same phase again and again."""
    calculator = new_calculator(commit(0, 0), rules=SHORT)
    committed_to = 0.0
    for number in range(1, 150 // step):
        second = step * number
        while committed_to + every <= second - phase * min(every, step):
            committed_to += every
            row = pa.Table.from_pylist([commit(committed_to, int(10 * committed_to) - 1)], COMMITS)
            calculator.positions.add(row)
        row = row_at(calculator, log(second, 10 * second))
        assert row["status"] == "OK", row["status_reason"]


@pytest.mark.parametrize(
    ("step", "every", "share"),
    some_of({(2, 1, 0.5), (5, 5, 1.0), (5, 10, 0.5), (10, 10, 1.0)}, [2, 5, 10], [1, 5, 10], [0.5, 1.0]),
)
def test_status_of_a_group_that_does_not_keep_up_is_warn(step: int, every: int, share: float) -> None:
    """It reads at most as fast as records come, and began a thousand seconds behind."""
    calculator = new_calculator(commit(0, 0), rules=SHORT)
    for number in range(1, 150 // step):
        second = step * number
        commits = [commit(n, int(10 * n * share)) for n in range(second - step + 1, second + 1) if n % every == 0]
        add_commits(calculator, *commits)
        row = row_at(calculator, log(second, 10_000 + 10 * second))
    # Commits that come less often than samples let lag fall from one sample to the next.
    assert row["status"] == ("WARN" if every <= step else row["status"])
    assert row["status"] in {"WARN", "OK"}


# --- odd offsets ---


@pytest.mark.parametrize("offset", [-5, -2, -(1 << 31), (1 << 53) + 1, (1 << 63) - 1, -(1 << 63), FAR, 101])
@pytest.mark.parametrize("start", [0, 7])
def test_lag_of_odd_committed_offsets_has_true_figures_and_texts(offset: int, start: int) -> None:
    """Kafka stores any 64-bit number that a client commits."""
    calculator = new_calculator(commit(-HOUR, offset))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seconds in (0, 400, 800):
            row = row_at(calculator, log(seconds, 100, start=start))
    assert row["committed_offset"] == offset
    if offset > 100:
        assert (row["lag"], row["status"]) == (None, "UNKNOWN")
        assert row["problem"].startswith(f"committed {offset} above the log's end 100: ")
        return
    assert row["lag"] == 100 + min(-offset, FAR)
    assert (row["lost_records"], row["status"]) == (start, "STOP")
    assert f", {100 - start} unread, " in row["status_reason"]


def test_status_reasons_of_large_offsets_are_exact() -> None:
    """They are no floating-point numbers."""
    large = (1 << 53) + 1
    calculator = new_calculator(commit(-10, large + 2))
    row_at(calculator, log(0, large + 10))
    add_commits(calculator, commit(5, large))
    row = row_at(calculator, log(10, large + 12))
    assert (row["status"], row["status_reason"]) == ("REWIND", f"committed went back from {large + 2} to {large}")


# --- restarts ---


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from([1, 5, 10, 10, 10, 60, 700, 5_000]), min_size=2, max_size=150),
    st.lists(st.integers(0, 149), min_size=1, max_size=3),
)
def test_log_ends_restored_after_a_restart_are_those_of_an_uninterrupted_run(
    gaps: list[int], stops: list[int]
) -> None:
    """The samples that a restart reads again are those that the running job had kept."""
    times = (np.cumsum(gaps) * SECOND + 1_700_000_000 * SECOND).tolist()
    samples = [LogEndSample(time, time, np.array([number])) for number, time in enumerate(times)]
    running, restarted = LogEnds(), LogEnds()
    for number, sample in enumerate(samples):
        running.add(sample)
        if number in stops:
            restarted = LogEnds()
            kept = {last for _, last in kept_times(np.array(times[: number + 1]), times[number], 0)}
            for earlier in samples[: number + 1]:
                if earlier.answered_at in kept:
                    restarted.add(earlier)
        else:
            restarted.add(sample)
        offsets = np.arange(number)
        ages = [
            one.written(np.zeros(number, np.int64), offsets).age(np.full(number, times[number]))
            for one in (running, restarted)
        ]
        assert np.array_equal(ages[0].seconds, ages[1].seconds)
        assert np.array_equal(ages[0].errors, ages[1].errors, equal_nan=True)


def test_thresholds_are_read_from_the_section_of_settings() -> None:
    class Section:
        window_seconds, stop_seconds, allowed_lag, stop_seconds_limit, empty_seconds = 1, 2, 3, 4, 5

    assert Thresholds.of(Section) == Thresholds(1, 2, 3, 4, 5)
