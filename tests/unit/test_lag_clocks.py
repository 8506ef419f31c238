"""Coordinators whose clocks are ahead or behind: they date the commits, and another clock dates the samples."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouptrail.config import Config
from grouptrail.exporter.families import pipeline_families
from grouptrail.lag.calculator import LagCalculator
from grouptrail.lag.clocks import CoordinatorClocks, NewestCommits
from grouptrail.runtime.doctor import check_clocks
from support import small_tables
from support.exporter_tables import configured, figures, lag_row, lag_table
from support.from_config import snapshot_reader
from support.lag_samples import SECOND, Row, add_commits, add_sample, commit, log, micros, new_calculator

RATE = 10


def rows_of(
    ahead: float,
    *,
    behind_end: int = 0,
    until: int = 300,
    every: int = 1,
    delay: float = 1,
    calculator: LagCalculator | None = None,
    with_read_at: bool = True,
) -> Iterator[Row]:
    """Yield the rows at samples every 10 s of a log with `RATE` records a second, of which all but the last
    `behind_end` are committed.

    A commit comes every so many seconds, 0.4 s after it, and is read `delay` seconds after a sample.
    """
    calculator = calculator or new_calculator()
    made = 0
    for second in range(0, until, 10):
        while made * every + 0.4 <= second + delay:
            time = made * every + 0.4
            offset = max(int(RATE * time) - behind_end, 0)
            add_commits(calculator, commit(time + ahead, offset, record_offset=made))
            made += 1
        add_sample(calculator, log(second, RATE * second))
        read_at = micros(second + delay) if with_read_at else None
        yield from calculator.compute({}, until=micros(second), read_at=read_at).to_pylist()


@pytest.mark.parametrize("ahead", [-8, -30, -300, -890])
@pytest.mark.parametrize("with_read_at", [True, False])
def test_lag_with_a_clock_that_is_behind_is_right_from_the_third_sample_on(
    ahead: float, *, with_read_at: bool
) -> None:
    rows = list(rows_of(ahead, with_read_at=with_read_at))
    assert {row["problem"] for row in rows[2:]} == {None}
    assert {row["status"] for row in rows[2:]} == {"OK"}
    assert max(row["lag"] for row in rows[2:]) <= 2 * RATE
    assert max(abs(row["clock_offset_seconds"] - ahead) for row in rows[2:]) <= 2


@pytest.mark.parametrize("ahead", [8, 60, 400, 3_600])
@pytest.mark.parametrize("delay", [1, 4])
def test_lag_with_a_clock_that_is_ahead_is_right_from_the_second_sample_on(ahead: float, delay: float) -> None:
    """The group is 50 records behind, as every second."""
    rows = list(rows_of(ahead, behind_end=50, delay=delay))
    assert {row["status"] for row in rows[1:]} == {"OK"}
    # What is read later than it was made seems to be less far ahead.
    assert all(50 <= row["lag"] <= 50 + (delay + 1) * RATE for row in rows[1:])
    if ahead > 9:
        assert max(abs(row["clock_offset_seconds"] - ahead) for row in rows[1:]) <= delay


@pytest.mark.parametrize("ahead", [-4, -1, 0, 1, 4])
@pytest.mark.parametrize("delay", [0.5, 4, 20])
def test_lag_with_clocks_that_hardly_differ_is_not_corrected(ahead: float, delay: float) -> None:
    for row in rows_of(ahead, behind_end=5, delay=delay):
        assert (row["clock_offset_seconds"], row["status"]) == (None, "OK")


def test_lag_of_late_samples_uses_the_commits_made_before_them() -> None:
    """An hour of samples is processed at once, after all commits: no clock is ahead."""
    calculator = new_calculator(*(commit(time, RATE * time, record_offset=time) for time in range(0, 3_600, 10)))
    for second in range(5, 3_600, 100):
        add_sample(calculator, log(second, RATE * second))
        [row] = calculator.compute({}, until=micros(second), read_at=micros(3_700)).to_pylist()
        assert (row["lag"], row["clock_offset_seconds"]) == (50, None)


def test_lag_after_a_clock_was_set_right_is_right_again() -> None:
    calculator = new_calculator()
    list(rows_of(400, calculator=calculator, until=200))
    rows = []
    for second in range(200, 400, 10):
        add_commits(calculator, commit(second, RATE * second, record_offset=second + 1_000))
        add_sample(calculator, log(second, RATE * second))
        rows += calculator.compute({}, until=micros(second), read_at=micros(second + 1)).to_pylist()
    assert {(row["lag"], row["clock_offset_seconds"]) for row in rows[2:]} == {(0, None)}


def above(calculator: LagCalculator, offset: int, ends: dict[int, int], **more: Any) -> list[Row]:
    """Return the rows at samples of these log ends by time; the offset is committed at 12 s, 8 s before a sample."""
    rows = []
    for second, end in ends.items():
        if second == 20:
            add_commits(calculator, commit(12, offset, **more))
        add_sample(calculator, log(second, end))
        rows += calculator.compute({}, until=micros(second), read_at=micros(second + 1)).to_pylist()
    return rows


@pytest.mark.parametrize(
    ("offset", "ends"),
    [
        pytest.param(150, {0: 100, 10: 100, 20: 100, 30: 100, 40: 100}, id="committed too far"),
        pytest.param(150, {0: 100, 10: 100, 20: 110, 30: 120, 40: 130, 50: 140}, id="copied from another cluster"),
        pytest.param(101, {0: 100, 10: 100, 20: 100, 30: 101, 40: 102}, id="one too far"),
        pytest.param(150, {0: 160, 10: 160, 20: 100, 30: 155, 40: 200}, id="truncated and written again"),
        pytest.param(150, {0: 160, 10: 20, 20: 100, 30: 99, 40: 200}, id="recreated twice"),
    ],
)
def test_clock_is_not_held_to_be_behind_where_the_log_explains_it(offset: int, ends: dict[int, int]) -> None:
    rows = above(new_calculator(commit(-9, 90)), offset, ends)
    assert {row["clock_offset_seconds"] for row in rows} == {None}


def test_clock_of_a_coordinator_is_known_from_any_of_its_groups() -> None:
    """And of no other coordinator's."""
    groups = ({"group_id": "quiet"}, {"group_id": "far", "record_partition": 8})
    calculator = new_calculator(*(commit(-20, 5, record_offset=0, **group) for group in groups))
    list(rows_of(-60, calculator=calculator, until=100))
    offsets = {row["group_id"]: row["clock_offset_seconds"] for row in calculator.compute({}).to_pylist()}
    assert offsets["quiet"] == offsets["billing"] == pytest.approx(-60, abs=2)
    assert offsets["far"] is None


def test_stop_with_a_clock_that_is_off_comes_as_soon_as_ever() -> None:
    for ahead in (-200, 200):
        calculator = new_calculator()
        list(rows_of(ahead, calculator=calculator, until=300))
        stopped = []
        for second in range(300, 800, 10):
            add_sample(calculator, log(second, RATE * second))
            [row] = calculator.compute({}, until=micros(second), read_at=micros(second + 1)).to_pylist()
            stopped += [second] if row["status"] == "STOP" else []
        assert min(stopped) == pytest.approx(600, abs=30)


@given(
    st.lists(
        st.tuples(st.integers(-1_000, 1_000), st.integers(0, 100), st.integers(0, 100), st.booleans()), max_size=20
    )
)
def test_clocks_learn_nothing_of_commits_that_are_in_the_log_and_dated_before_they_were_read(
    samples: list[tuple[int, int, int, bool]],
) -> None:
    """Whatever their ages."""
    clocks, zero = CoordinatorClocks(), np.array([0])
    end = 0
    for number, (age, records, left, is_new) in enumerate(samples, 1):
        at, end = number * 10 * SECOND, end + records
        record = np.array([number if is_new else 0])
        dated = np.array([at - abs(age) * SECOND])
        newest = NewestCommits(zero, np.array([max(end - left, 0)]), zero, record, dated)
        new = newest.of(clocks.are_new(zero, record))
        ends = np.array([end])
        clocks.learn(new, ends[: len(new.offsets)], ends, at=at, asked_at=at, read_at=at + SECOND)
        assert clocks.offsets(at).tolist() == [0]


# --- where it is shown -----------------------------------------------------------------------------------------


def test_metric_of_clocks_is_the_largest_difference_and_absent_without_one(tmp_path: Path) -> None:
    name = "grouptrail_coordinator_clock_offset_seconds"
    for offsets, shown in (((None, -8.0, 5.5), {(): 8.0}), ((None, None), {})):
        rows = [lag_row(number, clock_offset_seconds=seconds) for number, seconds in enumerate(offsets)]
        snapshot = snapshot_reader(configured(tmp_path)).read(lag_table(*rows))
        assert figures(pipeline_families(snapshot, dropped={}), name) == shown


def test_doctor_names_clocks_that_are_off_and_nothing_else(tmp_path: Path) -> None:
    config = Config(warehouse=str(tmp_path))
    assert list(check_clocks(config)) == []
    now = datetime.now(UTC)
    old = now - timedelta(hours=1)
    small_tables.lay(config, "consumer_lag", {"sampled_at": now}, {"sampled_at": old, "clock_offset_seconds": 9.0})
    assert list(check_clocks(config)) == []
    small_tables.lay(
        config,
        "consumer_lag",
        {"sampled_at": now, "clock_offset_seconds": 400.2},
        {"sampled_at": now, "clock_offset_seconds": -8.0, "group_id": "audit"},
    )
    [finding] = check_clocks(config)
    assert (finding.status, finding.subject) == ("warn", "clocks")
    assert finding.text == (
        "the coordinators' clocks of 2 groups, such as 'audit', are up to 400 s ahead or 8 s behind of the lag "
        "samples' clock: synchronise brokers and this pipeline by NTP"
    )
