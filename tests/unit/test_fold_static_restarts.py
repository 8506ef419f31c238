"""The record that the return of a static member writes: the same generation, and the time of the state Stable.

GMM.updateStaticMemberThenRebalanceOrCompleteJoin. Where the generation's own record was not read, because compaction
took it, this one stands for it; it shows no sync phase, and not when the generation began.
"""

from __future__ import annotations

from typing import Any

import pytest

from grouptrail.history.operations import Record
from support.fold_records import DAY, HOUR, classic, last, member, states
from support.group_records import Row, fold, gone

MINUTE = 60_000
READ_AT = 20 * DAY
STATIC = {"group_instance_id": "s"}
TIMEOUTS = {"session_timeout_ms": 30_000, "rebalance_timeout_ms": 5 * MINUTE}


def static(*numbers: int, **more: Any) -> Row:
    return member({"orders": list(numbers)}, **{**STATIC, **TIMEOUTS, **more})


def late(record: Record) -> Record:
    return record._replace(read_late_at=READ_AT)


def restarted(offset: int, at: int, generation: int, *, stable_at: int, other: bool = False) -> Record:
    """Return the record of generation `generation` after `s-2` took the place of another id of the static member."""
    members = {"s-2": static(0), **({"b": member({"orders": [1]}, **TIMEOUTS)} if other else {})}
    return classic(offset, at, generation, members, state_at=stable_at)


@pytest.mark.parametrize("generation", [0, 1, 57])
def test_history_that_begins_with_a_restart_has_no_sync_phase(generation: int) -> None:
    rows = fold([restarted(50, 9 * DAY, generation, stable_at=3 * DAY)])
    assert [(row["duration_ms"], row["duration_of"]) for row in rows["rebalances"]] == [(None, None)] * bool(
        generation
    )
    assert states(rows) == [("Stable", "recorded", 3 * DAY, None)]
    assert last(rows, "generations")["started_at"] == 3 * DAY


def test_members_that_history_finds_in_a_restarts_record_did_not_join_then() -> None:
    rows = fold([restarted(50, 9 * DAY, 1, stable_at=3 * DAY, other=True)])
    assert {row["member_id"]: row["began"] for row in rows["memberships"]} == {"s-2": "there", "b": "there"}


def test_generation_before_a_restart_that_was_read_late_ends_when_the_next_became_stable() -> None:
    before = classic(1, 1_000, 5, {"s-1": static(0, 1)})
    rows = fold([before, late(restarted(900, 6 * HOUR, 6, stable_at=HOUR, other=True))])
    assert "CompletingRebalance" not in {row["state"] for row in rows["group_states"]}
    assert states(rows)[-1] == ("Stable", "recorded", HOUR, None)
    assert [(row["started_at"], row["ended_at"]) for row in rows["generations"]] == [(1_000, HOUR), (HOUR, None)]
    assert (last(rows)["at"], last(rows)["duration_ms"]) == (HOUR, None)


def test_state_before_a_restart_of_the_next_generation_lasted_until_that_where_a_member_stayed() -> None:
    """Member b was there before and after: no generation is missing between the two."""
    before = classic(1, 1_000, 5, {"s-1": static(0), "b": member({"orders": [1]}, **TIMEOUTS)})
    rows = fold([before, late(restarted(900, 6 * HOUR, 6, stable_at=HOUR, other=True))])
    assert states(rows) == [("Stable", "recorded", 1_000, HOUR), ("Stable", "recorded", HOUR, None)]


def test_state_before_a_restart_of_a_later_generation_is_known_up_to_the_last_record() -> None:
    before = [classic(1, 1_000, 5, {"s-1": static(0)}), classic(2, 9_000, 6, {"s-1": static(0)})]
    rows = fold([*before, late(restarted(900, 6 * HOUR, 9, stable_at=HOUR))])
    assert states(rows)[-2:] == [("Stable", "recorded", 9_000, 9_000), ("Stable", "recorded", HOUR, None)]
    assert last(rows, "group_states")["not_before"] == 9_000
    assert "not known" in last(rows, "group_states")["note"]


def test_beginning_of_a_generation_within_the_time_of_a_sync_phase_is_open() -> None:
    """It may be the generation's own record: no member takes longer to sync than its time to rejoin."""
    rows = fold([restarted(50, 9 * DAY, 57, stable_at=9 * DAY - MINUTE)])
    [state] = rows["group_states"]
    assert (state["not_before"], state["started_at"]) == (9 * DAY - MINUTE, 9 * DAY)
    assert last(rows, "generations")["stable_at"] is None
    assert last(rows)["duration_ms"] is None


def test_restart_whose_generation_was_read_changes_nothing_but_the_member() -> None:
    before = classic(1, 1_000, 5, {"s-1": static(0)}, state_at=900)
    rows = fold([before, restarted(2, 6 * HOUR, 5, stable_at=1_100)])
    assert states(rows) == [("Stable", "recorded", 1_000, None)]
    assert len(rows["generations"]) == 1
    assert [(row["ended"], row["began"]) for row in rows["memberships"]] == [
        ("replaced", "there"),
        (None, "replaced"),
    ]


def test_sync_phase_of_a_static_group_whose_records_are_all_there_is_measured() -> None:
    records = [classic(1, 1_000, 5, {"s-1": static(0)}), classic(2, 9_000, 6, {"s-1": static(0)}, state_at=8_800)]
    assert last(fold(records))["duration_ms"] == 200
    first = classic(1, 1_000, 5, {"s-1": static(0)}, state_at=700)._replace(read_at_once=True)
    assert last(fold([first]))["duration_ms"] == 300


@pytest.mark.parametrize("is_first", [False, True])
def test_member_that_is_gone_after_a_restart_read_late_may_have_expired(is_first: bool) -> None:
    """The restart's time is that of the state Stable, not the end of the join phase: d was silent from that on."""
    d = member({"orders": [1]}, **TIMEOUTS)
    before = [] if is_first else [classic(1, -500_000, 5, {"s-1": static(0), "d": d}, state_at=-500_000)]
    restart = classic(2, 25_000, 6, {"s-2": static(0), "d": d}, state_at=20_000)
    after = classic(3, 40_010, 7, {"s-2": static(0, 1)}, state_at=40_000)
    rows = fold([*before, *((restart, after) if is_first else map(late, (restart, after)))])
    [ended] = [row["ended"] for row in rows["memberships"] if row["member_id"] == "d"]
    assert ended == "left_or_expired"


def test_assignment_in_a_restarts_record_is_not_compared_with_its_assignor() -> None:
    """Its members may have other topics since the leader computed it."""
    two = {"s-2": static(), "b": member({"orders": [0, 1]}, **TIMEOUTS)}
    before = classic(1, 1_000, 5, {"s-1": static(0, 1)})
    row = last(fold([before, late(classic(900, 6 * HOUR, 6, two, state_at=HOUR))]), "generations")
    assert (row["is_assignors_own"], "may have rejoined" in row["assignment_note"]) == (None, True)


def test_restart_in_a_group_that_was_removed_before_is_no_restart() -> None:
    """All records of the deletion and of the new group were read: it is the generation's own."""
    records = [classic(1, 1_000, 5, {}), gone(2, 2_000), classic(3, 9_000, 1, {"s-1": static(0)}, state_at=8_000)]
    assert last(fold(records))["duration_ms"] == 1_000


def test_restart_in_a_group_without_times_keeps_the_time_of_its_record() -> None:
    """Brokers before 2.1 write no `currentStateTimestamp`."""
    value = classic(50, 9 * DAY, 57, {"s-2": static(0)})
    value = value._replace(body={**(value.body or {}), "state_at": None})
    assert last(fold([value]), "generations")["started_at"] == 9 * DAY


def test_restart_of_a_member_that_is_not_static_does_not_exist() -> None:
    """A late record of a group without static members is the generation's own, with its sync phase."""
    b = {"b": member({"orders": [0]}, **TIMEOUTS)}
    rows = fold([classic(1, 1_000, 5, b), late(classic(900, 2 * HOUR, 6, b, state_at=2 * HOUR - 1_000))])
    assert last(rows)["duration_ms"] == 1_000
