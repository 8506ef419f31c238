"""Times of two coordinators come from two clocks: only one coordinator, or a margin, shows how long something took.

The epoch of the partition's leader, in the header of each batch, changes with the coordinator.
"""

from __future__ import annotations

from typing import Any

import pytest

from support.fold_records import classic, member
from support.group_records import Row, fold

MORE = {"session_timeout_ms": 45_000, "rebalance_timeout_ms": 60_000}


def ended(elapsed_ms: int, *, epochs: tuple[int | None, int | None], more: Row = MORE) -> tuple[Any, ...]:
    """Return how b ended, gone so long after the last join phase, and the cause of that."""
    both = {name: member({"orders": [number]}, **more) for number, name in enumerate("ab")}
    before = classic(1, 1_000_001, 5, both, state_at=1_000_000)._replace(leader_epoch=epochs[0])
    alone = {"a": member({"orders": [0, 1]}, **more)}
    at = 1_000_000 + elapsed_ms
    rows = fold([before, classic(2, at + 5, 6, alone, state_at=at)._replace(leader_epoch=epochs[1])])
    [row] = [row for row in rows["memberships"] if row["member_id"] == "b"]
    last = rows["rebalances"][-1]
    return row["ended"], last["cause"], last["certainty"]


LEFT, UNKNOWN = ("left", "member_left", "likely"), ("left_or_expired", "member_left_or_expired", "ambiguous")


@pytest.mark.parametrize("elapsed_ms", [0, 1, 44_999])
def test_member_that_is_gone_within_its_timeouts_under_one_coordinator_left(elapsed_ms: int) -> None:
    assert ended(elapsed_ms, epochs=(3, 3)) == LEFT


@pytest.mark.parametrize("epochs", [(3, 4), (None, 3), (3, None), (None, None)])
def test_member_that_is_gone_within_its_timeouts_by_a_margin_left(epochs: tuple[int | None, int | None]) -> None:
    assert ended(34_999, epochs=epochs) == LEFT
    assert ended(35_000, epochs=epochs) == UNKNOWN


@pytest.mark.parametrize(
    ("session_ms", "skew_ms"), [(10_000, 8_000), (6_000, 5_000), (45_000, 9_000), (12_000, 3_000)]
)
def test_member_that_expired_under_a_coordinator_whose_clock_is_behind_did_not_leave(
    session_ms: int, skew_ms: int
) -> None:
    """The next coordinator starts the session's timer when it has loaded the group."""
    more = {"session_timeout_ms": session_ms, "rebalance_timeout_ms": 60_000}
    assert ended(session_ms + 3_000 - skew_ms, epochs=(3, 4), more=more) == UNKNOWN


@pytest.mark.parametrize("elapsed_ms", [45_000, 90_000, -1])
def test_member_that_is_gone_after_its_timeouts_may_have_expired(elapsed_ms: int) -> None:
    """Below 0 the coordinator's clock was set back."""
    assert ended(elapsed_ms, epochs=(3, 3)) == UNKNOWN


def test_reason_of_a_member_whose_ending_two_clocks_leave_open_says_so() -> None:
    both = {name: member({"orders": [number]}, **MORE) for number, name in enumerate("ab")}
    records = [classic(1, 1_001, 5, both, state_at=1_000)]
    records.append(classic(2, 41_005, 6, {"a": member({"orders": [0, 1]}, **MORE)}, state_at=41_000))
    [row] = [row for row in fold(records)["memberships"] if row["member_id"] == "b"]
    assert row["ended_because"] == (
        "gone 40000 ms after the last join phase: sooner than 45000 ms, but the clocks of two coordinators may be as "
        "far apart"
    )
