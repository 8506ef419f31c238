"""Clients that commit the last offset that they have read, instead of the next one: no alert, and it is said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouptrail.lag.backtest import Alert, replay
from grouptrail.lag.calculator import LagCalculator, Rules
from grouptrail.lag.last_offset import LastOffsetHabits
from grouptrail.lag.verdict import Thresholds
from grouptrail.storage.schema import table_schema
from support.lag_samples import NOON, SECOND, Row, add_commits, add_sample, commit, log, new_calculator

STEP, PAUSE = 50, 600
ALERTED = {"STOP", "STALL", "REWIND", "WARN", "UNKNOWN"}

Reader = Callable[[int, int], int | None]
"""Returns what is committed of a log with this end, so many seconds after its last record came; None: nothing."""


def last(end: int, _waited: int) -> int:
    """As brod and others did."""
    return end - 1


def proper(end: int, _waited: int) -> int:
    return end


def rows_of(
    reader: Reader,
    *,
    bursts: int = 8,
    records: int = 5,
    until: int | None = None,
    since: int = 0,
    partitions: Sequence[int] = (0,),
    recommits: bool = False,
    calculator: LagCalculator | None = None,
    rules: Rules | None = None,
    **more: Any,
) -> list[Row]:
    """Return the rows at samples of logs that get records every `PAUSE` seconds, `bursts` times."""
    calculator = calculator or new_calculator(rules=rules)
    rows: list[Row] = []
    committed: dict[int, int | None] = {}
    for second in range(since, until if until is not None else bursts * PAUSE, STEP):
        burst = min(second // PAUSE, bursts - 1)
        end, waited = records * (burst + 1), second - burst * PAUSE
        for partition in partitions:
            offset = reader(end, waited)
            if offset is not None and (recommits or offset != committed.get(partition)):
                of = {"partition": partition, "record_offset": second * 10 + partition}
                add_commits(calculator, commit(second, offset, **of, **more))
            committed[partition] = offset
        add_sample(calculator, *(log(second, end, partition=partition) for partition in partitions))
        rows += calculator.compute({}).to_pylist()
    return rows


def after(rows: list[Row], second: float) -> list[Row]:
    return [row for row in rows if (row["sampled_at"] - NOON).total_seconds() >= second]


def alerts(rows: list[Row]) -> set[str]:
    return {row["status"] for row in rows} & ALERTED


# --- the habit -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("records", "recommits"),
    [
        *[(1, False), (2, True)],
        *(pytest.param(*more, marks=pytest.mark.full) for more in [(1, True), (2, False), (100, False), (100, True)]),
    ],
)
def test_status_of_a_client_that_commits_the_last_offset_is_ok_after_three_pauses(
    records: int, *, recommits: bool
) -> None:
    """And for ever, when no record comes any more; whether or not it commits the same offset again and again."""
    rows = after(rows_of(last, records=records, recommits=recommits, until=14 * PAUSE), 3 * PAUSE + STEP)
    assert alerts(rows) == set()
    newest = rows[-1]
    assert (newest["lag"], newest["lag_seconds"], newest["silent_seconds"]) == (1, 0, 0)
    assert (newest["catch_up_seconds"], newest["pauses_with_one_left"], newest["readable_lag"]) == (0, 7, 0)
    assert newest["status_reason"] == (
        "nothing is left to read: one offset is left, as at 7 pauses: the client commits the last offset that it has "
        "read instead of the next one"
    )


def test_status_of_a_stuck_reader_of_the_last_record_is_stop_without_the_habit() -> None:
    """It has read all before."""

    def stuck(end: int, _waited: int) -> int:
        return end - 1 if end == 40 else end

    rows = rows_of(stuck, until=12 * PAUSE)
    assert rows[-1]["status"] == "STOP"
    assert rows[-1]["pauses_with_one_left"] == 0


@pytest.mark.parametrize("left", [2, 3, 5])
def test_status_of_a_reader_that_leaves_more_than_one_is_stop(left: int) -> None:
    """At each pause, though it reads on when records come."""
    rows = rows_of(lambda end, _waited: end - left, until=12 * PAUSE)
    assert rows[-1]["status"] == "STOP"
    assert rows[-1]["pauses_with_one_left"] is None


@pytest.mark.parametrize("waiting", [1, 4])
def test_status_of_a_client_with_the_habit_that_dies_is_stop_once_records_come(waiting: int) -> None:
    def dies(end: int, _waited: int) -> int | None:
        return end - 1 if end < 35 else None

    rows = rows_of(dies, bursts=6 + waiting, until=13 * PAUSE)
    assert alerts(after(rows, 3 * PAUSE + STEP)) == {"STOP"}
    first = next(row for row in after(rows, 3 * PAUSE + STEP) if row["status"] == "STOP")
    # Records come at 6 * PAUSE.
    assert (first["sampled_at"] - NOON).total_seconds() == pytest.approx(6 * PAUSE + 300, abs=2 * STEP)
    assert first["lag"] == 6


@pytest.mark.parametrize("waited", [0, 250])
def test_status_of_a_client_with_the_habit_is_ok_when_records_come_after_a_long_pause(waited: int) -> None:
    """The offset that it has committed is that of a record which it read ten minutes ago, not one that waits."""

    def takes_a_while(end: int, now: int) -> int:
        return end - 1 if now > waited else max(end - 6, 0)

    rows = after(rows_of(takes_a_while), 4 * PAUSE)
    assert {row["status"] for row in rows} == {"OK"}
    assert max(row["lag_seconds"] for row in rows) <= waited + STEP


def test_status_of_a_client_with_the_habit_that_lags_is_judged_as_ever() -> None:
    """It falls behind by more and more."""
    calculator = new_calculator()
    rows_of(last, calculator=calculator)
    rows = []
    for second in range(8 * PAUSE, 10 * PAUSE, STEP):
        add_commits(calculator, commit(second, 40 + (second - 8 * PAUSE) // STEP))
        add_sample(calculator, log(second, 60 + (second - 8 * PAUSE) // 10))
        rows += calculator.compute({}).to_pylist()
    assert rows[-1]["status"] == "WARN"


def test_status_of_a_client_that_was_mended_is_stop_when_one_record_is_left() -> None:
    """Once it has left none, one that is left is unread."""

    def mended(end: int, _waited: int) -> int:
        return end if 25 <= end < 40 else end - 1

    rows = rows_of(mended, until=13 * PAUSE)
    assert rows[-1]["status"] == "STOP"


def test_status_of_a_slow_client_is_not_taken_for_the_habit() -> None:
    """It commits its last record before the next ones come, and dies on one."""

    def slow(end: int, waited: int) -> int:
        return end if waited >= 400 and end < 40 else end - 1

    rows = rows_of(slow, until=13 * PAUSE)
    assert {row["pauses_with_one_left"] for row in rows} <= {None, 0}
    assert rows[-1]["status"] == "STOP"


@pytest.mark.parametrize("seconds", [10, 20])
def test_status_of_a_client_that_reads_as_records_come_is_not_taken_for_the_habit(seconds: int) -> None:
    """A record comes right before each sample, and the commit after it."""
    calculator, row = new_calculator(), {}
    for second in range(0, 2_000, seconds):
        add_commits(calculator, commit(second, second))
        add_sample(calculator, log(second, second + 1))
        [row] = calculator.compute({}).to_pylist()
    assert row["pauses_with_one_left"] is None


def test_status_of_an_unread_record_after_deleted_ones_is_stop() -> None:
    """The lag is more than one, whatever is left of it."""
    calculator = new_calculator()
    rows_of(last, calculator=calculator)
    row = {}
    for second in range(8 * PAUSE, 10 * PAUSE, STEP):
        add_sample(calculator, log(second, 60, start=59))
        [row] = calculator.compute({}).to_pylist()
    assert (row["lag"], row["lost_records"], row["status"]) == (21, 20, "STOP")


# --- the habit of a group --------------------------------------------------------------------------------------


def test_status_of_a_new_partition_of_a_group_with_the_habit_is_ok() -> None:
    """The first record of a partition after three pauses of others."""
    calculator = new_calculator()
    rows_of(last, calculator=calculator, partitions=(0, 1), bursts=4)
    rows = []
    for second in range(4 * PAUSE, 8 * PAUSE, STEP):
        add_commits(calculator, commit(4 * PAUSE, 0, partition=2))
        add_sample(
            calculator, *(log(second, 20, partition=partition) for partition in (0, 1)), log(second, 1, partition=2)
        )
        rows += [row for row in calculator.compute({}).to_pylist() if row["partition"] == 2]
    assert alerts(rows) == set()
    assert rows[-1]["pauses_with_one_left"] is None
    assert "as at 6 pauses" in rows[-1]["status_reason"]


def test_status_of_a_partition_whose_group_reads_others_to_the_end_is_stop() -> None:
    """Another partition's habit, as of a topic with markers of transactions, says nothing of this one."""
    calculator = new_calculator()
    for second in range(0, 6 * PAUSE, STEP):
        burst = second // PAUSE
        ends = {0: burst + 1, 1: burst + 1, 2: 7}
        commits = [
            commit(second, offset, partition=at, record_offset=second * 10 + at)
            for at, offset in ((0, burst), (1, burst + 1), (2, 6))
        ]
        add_commits(calculator, *commits)
        add_sample(calculator, *(log(second, end, partition=at) for at, end in ends.items()))
        rows = {row["partition"]: row for row in calculator.compute({}).to_pylist()}
    assert {at: row["status"] for at, row in rows.items()} == {0: "OK", 1: "OK", 2: "STALL"}


def test_status_of_another_group_does_not_follow_the_habit() -> None:
    calculator = new_calculator(commit(-9, 39, group_id="audit"))
    rows_of(last, calculator=calculator, until=12 * PAUSE)
    rows = {row["group_id"]: row for row in calculator.compute({}).to_pylist()}
    assert (rows["billing"]["status"], rows["audit"]["status"]) == ("OK", "STOP")


# --- restarts, recreated topics, the past ----------------------------------------------------------------------


def test_status_with_the_habit_is_ok_right_after_a_restart() -> None:
    rows = rows_of(last)
    again = new_calculator(commit(7 * PAUSE, 39, record_offset=1))
    newest = rows[-1]
    add_sample(again, log(8 * PAUSE - STEP, 40))
    again.add_stored_lag(pa.Table.from_pylist([newest], table_schema("consumer_lag")))
    resumed = []
    for second in range(8 * PAUSE, 12 * PAUSE, STEP):
        add_sample(again, log(second, 40))
        resumed += again.compute({}).to_pylist()
    assert {row["status"] for row in resumed} == {"OK"}
    assert {row["pauses_with_one_left"] for row in resumed} == {7}


def test_status_after_a_topic_was_recreated_forgets_the_habit() -> None:
    calculator = new_calculator()
    rows_of(last, calculator=calculator)
    row = {}
    for second in range(8 * PAUSE, 10 * PAUSE, STEP):
        add_commits(calculator, commit(8 * PAUSE, 2))
        add_sample(calculator, log(second, 3))
        [row] = calculator.compute({}).to_pylist()
    assert (row["status"], row["pauses_with_one_left"]) == ("STOP", None)


def test_backtest_of_a_client_with_the_habit_fires_nothing_once_it_is_known() -> None:
    for recommits in (False, True):
        rows = after(rows_of(last, until=12 * PAUSE, recommits=recommits), 3 * PAUSE + STEP)
        tables = [pa.Table.from_pylist([row], table_schema("consumer_lag")) for row in rows]
        for thresholds in (Thresholds(), Thresholds(stop_seconds=60)):
            assert list(replay(tables, thresholds, Alert(frozenset(ALERTED)))) == []


@given(
    st.lists(st.tuples(st.sampled_from([10, 40, 100]), st.integers(0, 2), st.integers(0, 3)), max_size=25),
    st.integers(0, 24),
)
def test_habits_restored_from_stored_pauses_are_those_of_an_uninterrupted_run(
    samples: list[tuple[int, int, int]], stop: int
) -> None:
    """Samples: seconds since the one before, records that came, and how many are left."""
    whole, again, zero = LastOffsetHabits(), LastOffsetHabits(), np.array([0])
    stored: list[tuple[int, dict[str, Any], Any]] = []
    at = end = 0
    for number, (seconds, records, left) in enumerate(samples):
        at, end = at + seconds * SECOND, end + records
        if number == stop:
            again = LastOffsetHabits()
            for stored_at, figures, pauses in stored:
                again.start_sample(stored_at, 1)
                again.put(zero, **figures)
                again.restore(zero, pauses)
        figures = {"end": np.array([end]), "committed": np.array([end - left]), "left": np.array([left])}
        for one in (whole, again):
            one.start_sample(at, 1)
            one.put(zero, **figures)
        stored.append((at, figures, whole.pauses(zero)))
        assert again.pauses(zero) == whole.pauses(zero)
