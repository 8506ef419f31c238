"""The status of a position: when each rule applies, and the figures in its reason."""

from __future__ import annotations

import re

import numpy as np
import pytest

from grouptrail import contracts
from grouptrail.lag.index import UNKNOWN
from grouptrail.lag.verdict import PositionSample, Thresholds, VerdictRule, judge
from grouptrail.lag.window import Window

SECOND = 1_000_000
THRESHOLDS = Thresholds(window_seconds=600, stop_seconds=300)


def add(window: Window, at: int, committed: int, committed_at: int, lag: int) -> None:
    """Add a sample of one position."""
    figures = {"committed": committed, "committed_at": committed_at, "lag": lag}
    zero = np.array([0])
    window.start_sample(at, 1)
    window.put(zero, zero, **{name: np.array([figure]) for name, figure in figures.items()})


def verdict(
    *samples: tuple[float, int, int],
    commit_seconds: float = 5,
    lag_seconds: float = 60,
    is_empty: bool = False,
    is_unsubscribed: bool = False,
    thresholds: Thresholds = THRESHOLDS,
) -> tuple[str, str]:
    """Return status and reason of one position from samples (seconds, committed, lag), the newest last."""
    window = Window(thresholds.window_seconds, thresholds.allowed_lag)
    for seconds, committed, lag in samples:
        at = round(seconds * SECOND)
        add(window, at, committed, at - round(commit_seconds * SECOND), lag)
    _, committed, lag = samples[-1]
    judged = judge(
        window,
        PositionSample(
            positions=np.array([0]),
            committed=np.array([committed]),
            lag=np.array([lag]),
            lost=np.array([0]),
            lag_seconds=np.array([lag_seconds]),
            commit_seconds=np.array([commit_seconds]),
            is_empty=np.array([is_empty]),
            is_unsubscribed=np.array([is_unsubscribed]),
        ),
        thresholds,
    )
    return judged.status[0].as_py(), judged.reason[0].as_py()


def every(seconds: int, *figures: tuple[int, int]) -> list[tuple[float, int, int]]:
    return [(number * seconds, *figure) for number, figure in enumerate(figures)]


def test_status_lag_not_above_allowed_lag_is_ok() -> None:
    """Also after a rewind and in an Empty group."""
    assert verdict((0, 9, 0), (10, 5, 0), is_empty=True) == ("OK", "lag is not above 0")
    assert verdict((0, 9, 7), thresholds=Thresholds(allowed_lag=7))[0] == "OK"


def test_status_no_commit_while_records_wait_is_stop() -> None:
    """Only if a record has waited for that long, too."""
    assert verdict((0, 9, 3), commit_seconds=301, lag_seconds=300) == (
        "STOP",
        "no commit for 301 s, 3 unread, the first of them for 300 s",
    )
    assert verdict((0, 9, 3), commit_seconds=3600, lag_seconds=4)[0] == "OK"
    assert verdict((0, 9, 3), commit_seconds=299, lag_seconds=3600)[0] == "OK"


def test_status_empty_or_unsubscribed_group_is_not_stop() -> None:
    assert verdict((0, 9, 3), commit_seconds=9999, lag_seconds=9999, is_empty=True)[0] == "EMPTY"
    assert verdict((0, 9, UNKNOWN), is_unsubscribed=True)[0] == "UNSUBSCRIBED"


def test_status_rewind_lasts_until_recovered_or_out_of_the_window() -> None:

    assert verdict(*every(10, (100, 5), (40, 65), (60, 45))) == ("REWIND", "committed went back from 100 to 40")
    assert verdict(*every(10, (100, 5), (40, 65), (100, 9)))[0] == "OK"
    assert verdict(*every(10, (100, 5), (40, 65), (100, 9), (90, 19)))[0] == "REWIND"
    assert verdict((0, 100, 5), (10, 40, 65), (700, 50, 60))[0] == "OK"


def test_status_zero_lag_within_the_window_is_ok() -> None:
    """Also if the lag is large now."""
    assert verdict(*every(100, (10, 5), (20, 0), (20, 50), (20, 60), (20, 70))) == (
        "OK",
        "had caught up within 600 s",
    )


def test_status_same_offset_committed_repeatedly_is_stall() -> None:
    """A group that has not committed since is not STALL."""
    same = every(100, (20, 50), (20, 60), (20, 70), (20, 80))
    assert verdict(*same) == ("STALL", "has committed only offset 20 for 300 s, 80 unread")
    assert verdict(*same, commit_seconds=300, lag_seconds=250)[0] == "WARN"
    assert verdict(*same[:3])[0] == "OK"


def test_status_lag_never_falling_is_warn() -> None:
    """Also if it stays the same; a single fall gives OK."""
    assert verdict(*every(100, (20, 50), (21, 50), (22, 60), (23, 70))) == (
        "WARN",
        "lag did not fall in 300 s: 50 before, 70 now",
    )
    assert verdict(*every(100, (20, 50), (21, 60), (22, 59), (23, 70)))[0] == "OK"


def test_status_unknown_samples_are_ignored() -> None:
    """A sample without an answer is neither a fall of lag nor a rewind."""
    gap = (UNKNOWN, UNKNOWN)
    assert verdict(*every(100, (20, 50), gap, (22, 60), (23, 70)))[0] == "WARN"
    assert verdict((0, 20, 0), (10, UNKNOWN, UNKNOWN)) == ("UNKNOWN", "there is no lag to judge")


def test_status_single_sample_is_ok() -> None:
    """A window of one sample can only show STOP."""
    assert verdict((0, 20, 50)) == ("OK", "the window is too short to judge")


def test_status_sample_repeated_at_the_same_time_is_replaced() -> None:

    assert verdict((0, 20, 50), (10, 20, 60), (10, 21, 40)) == ("OK", "lag fell in the window")


def test_status_clock_step_back_starts_a_new_window() -> None:
    """Samples from before the step do not count."""
    assert verdict((5000, 100, 5), (0, 40, 65))[0] == "OK"


def test_window_keeps_about_sixty_samples() -> None:
    """At any sampling rate, with the oldest of the window among them."""
    window = Window(600, 0)
    for second in range(2000):
        add(window, second * SECOND, second, second, 1)
    assert 55 <= len(window) <= 65
    assert window.since(600)[1] / SECOND == pytest.approx(1400, abs=15)


def test_worst_groups_view_orders_statuses_as_the_contract() -> None:
    severities = dict(re.findall(r"WHEN '(\w+)' THEN (\d)", contracts.views()["worst_groups"].sql))
    assert (*sorted(severities, key=lambda status: -int(severities[status])), "UNSUBSCRIBED") == contracts.statuses()


def test_rules_order_ruled_out_names_only_verdicts_of_rules_before() -> None:
    for rule in VerdictRule:
        before = list(VerdictRule)[: list(VerdictRule).index(rule)]
        assert (rule.ruled_out is None) == all(one.value.otherwise is None for one in before)
        found = [one.value.otherwise in (rule.ruled_out or "") for one in VerdictRule if one.value.otherwise]
        assert found == [one in before for one in VerdictRule if one.value.otherwise]


def test_statuses_of_rules_are_those_of_the_table() -> None:
    assert {rule.value.status for rule in VerdictRule} == set(contracts.statuses())
