"""Groups that commit rarely: how long records usually wait there, and when that is too long."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouptrail.lag.calculator import Rules
from grouptrail.lag.rhythm import UsualWaits
from grouptrail.lag.verdict import Thresholds
from support.lag_samples import NOON, SECOND, add_commits, add_sample, commit, log, new_calculator

HOUR = 3600


def judged(
    commits_at: list[int], until: int, *, step: int = 60, thresholds: Thresholds | None = None
) -> list[dict[str, Any]]:
    """Return the rows of samples of a topic with a record a second, of which a group commits all at these times."""
    calculator = new_calculator(rules=Rules(thresholds or Thresholds()))
    waiting, rows = sorted(commits_at), []
    for second in range(0, until, step):
        while waiting and waiting[0] <= second:
            committed_at = waiting.pop(0)
            add_commits(calculator, commit(committed_at, committed_at))
        add_sample(calculator, log(second, second))
        rows += calculator.compute({}).to_pylist()
    return rows


def stopped(rows: list[dict[str, Any]]) -> list[float]:
    """Return the seconds at which the status is STOP or STALL, which are alerted on."""
    return [(row["sampled_at"] - NOON).total_seconds() for row in rows if row["status"] in {"STOP", "STALL"}]


def test_status_of_an_hourly_committer_is_not_stop_once_two_waits_in_a_row_were_as_long() -> None:
    rows = judged(list(range(0, 5 * HOUR, HOUR)), 5 * HOUR)
    assert max(stopped(rows)) < 2 * HOUR
    last = rows[-1]
    assert (last["status"], last["usual_wait_seconds"], last["last_wait_seconds"]) == ("OK", 3539.5, 3539.5)
    assert last["status_reason"] == "no commit for 3540 s, 3540 unread: records usually wait 3540 s here for a commit"


def test_status_of_an_hourly_committer_that_dies_is_stop_after_two_hours_without_a_commit() -> None:
    rows = judged(list(range(0, 6 * HOUR, HOUR)), 12 * HOUR)
    assert min(second for second in stopped(rows) if second > 2 * HOUR) == pytest.approx(7 * HOUR, abs=120)


def test_status_of_a_rare_committer_is_stop_at_the_limit_of_the_operator() -> None:
    rows = judged(list(range(0, 6 * HOUR, HOUR)), 12 * HOUR, thresholds=Thresholds(stop_seconds_limit=1.5 * HOUR))
    assert min(second for second in stopped(rows) if second > 5 * HOUR) == pytest.approx(6.5 * HOUR, abs=60)


def test_status_after_a_single_outage_is_stop_as_soon_as_ever() -> None:
    """It was down for three hours, came back, and is down again."""
    commits = [*range(0, HOUR, 10), *range(4 * HOUR, 4 * HOUR + 600, 10)]
    again = [second for second in stopped(judged(commits, 6 * HOUR, step=20)) if second > 4 * HOUR]
    assert min(again) == pytest.approx(4 * HOUR + 590 + 300, abs=40)


def test_status_right_after_an_outage_is_stop_as_soon_as_ever() -> None:
    """It was down for three hours, committed once, and is down again."""
    commits = [*range(0, HOUR, 10), 4 * HOUR]
    again = [second for second in stopped(judged(commits, 6 * HOUR, step=20)) if second > 4 * HOUR]
    assert min(again) == pytest.approx(4 * HOUR + 300, abs=40)


def test_status_of_checkpoints_every_ten_minutes_is_ok() -> None:
    """As Flink commits; none after the first two checkpoints."""
    rows = judged(list(range(0, 2 * HOUR, 600)), 2 * HOUR)
    assert max(stopped(rows)) < 1_200


def test_status_of_an_idle_partition_is_stop_when_its_only_record_waits() -> None:
    """It gets a record a day, which its consumer reads at once: that it commits rarely is not its rhythm."""
    calculator = new_calculator()
    for day in range(4):
        add_commits(calculator, commit(86_400 * day, day))
        add_sample(calculator, log(86_400 * day + 5, day))
        calculator.compute({})
    for seconds in range(86_400 * 4, 86_400 * 4 + 400, 10):
        add_sample(calculator, log(seconds, 4))
        [row] = calculator.compute({}).to_pylist()
    assert (row["status"], row["usual_wait_seconds"]) == ("STOP", None)


def test_status_of_a_group_with_a_threshold_of_its_own_is_stop_by_that() -> None:
    """The first pattern that matches applies."""
    for patterns, first in (((("bill*", 600.0), ("*", 60.0)), 600), ((("audit", 600.0),), 300)):
        calculator = new_calculator(commit(0, 0), rules=Rules(group_stop_seconds=patterns))
        rows = []
        for second in range(0, 1_000, 20):
            add_sample(calculator, log(second, second))
            rows += calculator.compute({}).to_pylist()
        assert min(stopped(rows)) == pytest.approx(first, abs=20)


OFFSET, WAIT = st.integers(0, 5), st.sampled_from([0.0, 20.0, 31.0, 400.0, 3600.0])


@given(st.lists(st.tuples(st.just(-1) | OFFSET, WAIT), min_size=1, max_size=20), st.integers(0, 19))
def test_rhythm_restored_from_stored_waits_is_that_of_an_uninterrupted_run(
    samples: list[tuple[int, float]], stop: int
) -> None:
    """Of the samples before a stop, only the waits and what they show are stored."""
    whole, again = UsualWaits(), UsualWaits()
    zero = np.array([0])
    for number, (committed, silent) in enumerate(samples):
        whole.start_sample(number * SECOND, 1)
        whole.put(zero, np.array([committed]), np.array([silent]))
        again.start_sample(number * SECOND, 1)
        again.put(zero, np.array([committed]), np.array([silent]))
        if number <= stop:
            again.restore(zero, *whole.waits(zero))
    for restarted, expected in zip(again.waits(zero), whole.waits(zero), strict=True):
        assert restarted == pytest.approx(expected, nan_ok=True)


@given(st.lists(st.tuples(OFFSET, WAIT), min_size=1, max_size=20))
def test_rhythm_is_what_the_last_two_waits_that_a_commit_ended_have_reached(samples: list[tuple[int, float]]) -> None:
    """Computed one sample after the other."""
    rhythm, zero, waits = UsualWaits(), np.array([0]), [0.0, 0.0]
    for number, (committed, silent) in enumerate(samples):
        rhythm.start_sample(number * SECOND, 1)
        rhythm.put(zero, np.array([committed]), np.array([silent]))
        if number and committed > samples[number - 1][0]:
            before = samples[number - 1][1]
            waits.append(before if before >= 30 else 0.0)
    usual, last = (float(np.nan_to_num(one)[0]) for one in rhythm.waits(zero))
    assert (usual, last) == (min(waits[-2:]), waits[-1])
