"""The chart of a result: which columns it shows, and where its lines, bars and axes are."""

from __future__ import annotations

import math
import re
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouptrail.web.sql_chart import MAX_BARS, MAX_LINES, MAX_PANELS, Chart, chart

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)


def drawn(**columns: Any) -> Chart:
    return chart(pa.table(columns), list(columns))


def times(count: int, step: timedelta = timedelta(minutes=1)) -> pa.Array:
    return pa.array([NOON + number * step for number in range(count)], pa.timestamp("us", "UTC"))


def test_time_and_numbers_are_lines_with_a_panel_for_each_number() -> None:
    figure = drawn(at=times(3), lag=[0, 50, 100], lag_seconds=[1.5, None, 2.0])
    assert [(panel.name, panel.unit, len(panel.lines)) for panel in figure.panels] == [
        ("lag", "offsets", 1),
        ("lag_seconds", "s", 1),
    ]
    assert (figure.since, figure.until) == (NOON, NOON + timedelta(minutes=2))
    assert figure.panels[0].lines[0].path == "M0.0 1000.0h0L500.0 500.0L1000.0 0.0"


def test_unknown_values_leave_a_gap_in_a_line() -> None:
    [panel] = drawn(at=times(3), lag=[100, None, 100]).panels
    assert panel.lines[0].path.count("M") == 2


def test_texts_before_the_first_number_name_the_lines_and_those_after_it_do_not() -> None:
    columns = {"topic": ["a", "a", "b", "b"], "partition": [0, 1, 0, 0], "lag": [1, 2, 3, 4], "status": list("wxyz")}
    [panel] = drawn(at=times(4), **columns).panels
    assert [line.name for line in panel.lines] == ["a · 0", "a · 1", "b · 0"]


def test_points_are_joined_in_the_order_of_time() -> None:
    [panel] = drawn(at=times(3).take(pa.array([2, 0, 1])), lag=[2, 0, 1]).panels
    assert panel.lines[0].path == "M0.0 1000.0h0L500.0 500.0L1000.0 0.0"


def test_text_and_numbers_are_bars_in_the_order_of_the_rows() -> None:
    [lag] = drawn(group_id=["b", "a", "c"], lag=[50, 100, None]).panels
    assert [(bar.name, bar.start, bar.length, bar.text) for bar in lag.bars] == [
        ("b", 0, 50, "50"),
        ("a", 0, 100, "100"),
        ("c", 0, 0, "NULL"),
    ]


def test_negative_bars_end_where_positive_ones_begin() -> None:
    [panel] = drawn(topic=["a", "b"], moved_by=[-30, 10]).panels
    assert [(bar.start, bar.length) for bar in panel.bars] == [(0, 75), (75, 25)]


@pytest.mark.parametrize(
    "columns",
    [
        {"lag": [1, 2]},
        {"group_id": ["a", "b"]},
        {"partition": [1, 2], "topic": ["a", "b"]},
        {"lag": [1], "group_id": ["a"]},
        {"at": pa.array([None], pa.timestamp("us", "UTC")), "lag": [1]},
        {"group_id": pa.array([], pa.string()), "lag": pa.array([], pa.int64())},
    ],
)
def test_columns_that_fit_no_chart_have_no_panels(columns: dict[str, Any]) -> None:
    assert drawn(**columns).panels == ()


def test_what_is_not_drawn_is_counted() -> None:
    names = [f"g{number}" for number in range(60)]
    bars = drawn(group_id=names, **{f"n{number}": range(60) for number in range(6)})
    assert (len(bars.panels), bars.numbers_left_out) == (MAX_PANELS, 2)
    assert (len(bars.panels[0].bars), bars.panels[0].left_out) == (MAX_BARS, 60 - MAX_BARS)
    [lines] = drawn(at=times(60), group_id=names, lag=range(60)).panels
    assert (len(lines.lines), lines.left_out) == (MAX_LINES, 60 - MAX_LINES)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, 0], ["0", "1"]),
        ([0, 93], ["0", "50", "100"]),
        ([3, 1930], ["0", "500", "1,000", "1,500", "2,000"]),
        ([-20, 40], ["-20", "0", "20", "40"]),
        ([10_000_000, 10_000_004], ["10,000,000", "10,000,001", "10,000,002", "10,000,003", "10,000,004"]),
        ([0.0, 0.0004], ["0", "0.0001", "0.0002", "0.0003", "0.0004"]),
        ([None, math.inf, math.nan], ["0", "1"]),
    ],
)  # fmt: skip
def test_axis_of_values_has_round_numbers_around_all_values(values: list[float], expected: list[str]) -> None:
    [panel] = drawn(at=times(len(values)), lag=pa.array(values, pa.float64())).panels
    assert [tick.text for tick in panel.values] == expected
    assert (panel.values[0].place, panel.values[-1].place) == (100, 0)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (timedelta(seconds=3), ["12:00:00", "12:00:02", "12:00:04", "12:00:06"]),
        (timedelta(minutes=40), ["12:00", "12:30", "13:00"]),
        (timedelta(hours=20), ["12:00", "2026-03-05", "12:00", "2026-03-06"]),
        (timedelta(days=30), ["2026-03-12", "2026-03-26", "2026-04-09", "2026-04-23"]),
        (timedelta(days=40_000), None),
    ],
)
def test_axis_of_times_has_round_times(step: timedelta, expected: list[str] | None) -> None:
    [panel] = drawn(at=times(3, step), lag=[1, 2, 3]).panels
    ticks = [tick.text for tick in panel.times]
    assert len(ticks) <= 10
    assert expected is None or ticks == expected
    assert all(0 <= tick.place <= 100 for tick in panel.times)


def test_one_time_has_one_tick_and_a_dot() -> None:
    [panel] = drawn(at=times(1), lag=[1]).panels
    assert [tick.text for tick in panel.times] == ["12:00:00"]
    assert panel.lines[0].path == "M0.0 0.0h0"


def test_days_and_times_beyond_python_are_drawn() -> None:
    assert len(drawn(day=[date(2026, 3, 4), date(2026, 3, 5)], lag=[1, 2]).panels[0].times) > 1
    far = pa.array([0, 9_000_000_000_000_000_000], pa.timestamp("us"))
    figure = drawn(at=far, lag=[1, 2])
    assert figure.until is None
    assert len(figure.panels[0].lines) == 1


def test_long_lines_keep_their_peaks() -> None:
    values = [0] * 50_000
    values[12_345] = 1000
    [panel] = drawn(at=times(len(values), timedelta(seconds=1)), lag=values).panels
    path = panel.lines[0].path
    assert len(path) < 60_000
    assert " 0.0" in path


@given(
    st.lists(
        st.tuples(
            st.integers(-(2**63), 2**63 - 1) | st.none(), st.floats() | st.none(), st.text(max_size=3) | st.none()
        ),
        max_size=30,
    )
)
def test_any_values_are_drawn_within_the_frame(rows: list[tuple[int | None, float | None, str | None]]) -> None:
    moments, values, names = zip(*rows, strict=True) if rows else ((), (), ())
    columns = {"name": pa.array(names, pa.string()), "value": pa.array(values, pa.float64())}
    timed = {"at": pa.array(moments, pa.timestamp("us", "UTC")), **columns}
    for panel in (*drawn(**columns).panels, *drawn(**timed).panels):
        assert len(panel.values) <= 10
        assert len(panel.times) <= 10
        assert all(bar.start >= 0 and bar.start + bar.length <= 100.1 for bar in panel.bars)
        places = [float(part) for line in panel.lines for part in re.findall(r"-?\d+\.\d", line.path)]
        assert all(-1 <= place <= 1001 for place in places)
