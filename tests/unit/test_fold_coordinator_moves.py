"""A classic generation that differs in nothing: what the epochs show in which it and the one before were written."""

from __future__ import annotations

import json
from typing import Any

import pytest

from grouptrail.history.fold import fold_group
from grouptrail.history.operations import Record
from grouptrail.history.state import FoldState, decode_state, encode_state
from support.fold_records import HOUR, classic, last, member, subscription
from support.group_records import Row, fold

BOTH, REJOINED, MOVED = "leader_rejoined_or_coordinator_moved", "leader_rejoined", "coordinator_moved"


def cause(rows: dict[str, list[Row]]) -> tuple[str, str]:
    row = last(rows)
    return row["cause"], row["certainty"]


def alike(
    epochs: tuple[int | None, int | None], *, after_ms: int = 9_000, generations: bool = False, **more: Any
) -> list[Record]:
    """Return two generations of the same members, written in these epochs; subscriptions may name generations."""

    def members(named: int) -> dict[str, Row]:
        joined = {"subscription": subscription("orders", generation=named if generations else -1)}
        return {name: member({"orders": [number]}, **joined) for number, name in enumerate("ab")}

    before = classic(7, 1_000, 4, members(3), **more)._replace(leader_epoch=epochs[0])
    return [before, classic(20, 1_000 + after_ms, 5, members(4), **more)._replace(leader_epoch=epochs[1])]


@pytest.mark.parametrize("epochs", [(None, None), (3, None), (None, 3), (4, 3)])
def test_cause_of_a_generation_like_the_one_before_without_both_epochs_stays_ambiguous(
    epochs: tuple[int | None, int | None],
) -> None:
    """An epoch that is lower is of an offsets topic that was made again."""
    assert cause(fold(alike(epochs))) == (BOTH, "ambiguous")


def test_cause_of_a_generation_like_the_one_before_in_its_epoch_is_leader_rejoined() -> None:
    rows = fold(alike((3, 3)))
    assert cause(rows) == (REJOINED, "likely")
    assert last(rows)["cause_note"].startswith(
        "nothing visible changed; both in leader epoch 3: the leader joined again,"
    )
    assert "coordinator crashed" in last(rows)["cause_note"]


@pytest.mark.parametrize("more", [{"generations": True}, {"protocol": "sticky"}])
def test_cause_of_a_generation_in_one_epoch_is_ambiguous_if_any_member_can_have_begun_it(
    more: dict[str, Any],
) -> None:
    """A subscription with its generation, or with user data, is another one each time."""
    rows = fold(alike((3, 3), **more))
    assert cause(rows) == (REJOINED, "ambiguous")
    assert "another member joined again" in last(rows)["cause_note"]


@pytest.mark.parametrize("after_ms", [-5_000, 100, 360_000])
def test_cause_of_a_generation_like_the_one_before_soon_after_a_move_is_coordinator_moved(after_ms: int) -> None:
    """Within the rebalance timeout and a minute; the new coordinator's clock may be behind."""
    rows = fold(alike((3, 5), after_ms=after_ms))
    assert cause(rows) == (MOVED, "likely")
    assert (
        "rose from 3 to 5 between offsets 7 and 20: the coordinator moved, or was restarted"
        in last(rows)["cause_note"]
    )


@pytest.mark.parametrize("more", [{"generations": True}, {"protocol": "sticky"}])
def test_cause_of_a_generation_soon_after_a_move_that_any_member_can_have_begun_is_ambiguous(
    more: dict[str, Any],
) -> None:
    """Most clients that write such subscriptions go on after a move as if there had been none."""
    rows = fold(alike((3, 5), **more))
    assert cause(rows) == (BOTH, "ambiguous")
    assert "rose from 3 to 5 between offsets 7 and 20, fresh metadata" in last(rows)["cause_note"]


def test_cause_of_a_generation_long_after_the_one_of_an_earlier_epoch_stays_ambiguous() -> None:
    """The coordinator may have moved at any time in between."""
    rows = fold(alike((3, 5), after_ms=5 * HOUR))
    assert cause(rows) == (BOTH, "ambiguous")
    assert "rose from 3 to 5 between offsets 7 and 20, which may have been long before" in last(rows)["cause_note"]


def test_cause_of_the_second_generation_of_an_epoch_is_leader_rejoined() -> None:
    log = [
        *alike((3, 5)),
        classic(30, 12_000, 6, {"a": {"orders": [0]}, "b": {"orders": [1]}})._replace(leader_epoch=5),
    ]
    rows = fold(log)
    assert [row["cause"] for row in rows["rebalances"]][1:] == [MOVED, REJOINED]
    assert fold(log, cuts=range(len(log))) == rows


def test_cause_of_a_generation_after_a_static_member_came_back_goes_by_the_epoch_of_its_return() -> None:
    """Its record, with the same generation, is the group's newest one."""
    log = [
        classic(1, 1_000, 4, {"s-1": member({"orders": [0]}, group_instance_id="s")})._replace(leader_epoch=3),
        classic(2, 50_000, 4, {"s-2": member({"orders": [0]}, group_instance_id="s")})._replace(leader_epoch=5),
        classic(3, 60_000, 5, {"s-2": member({"orders": [0]}, group_instance_id="s")})._replace(leader_epoch=5),
    ]
    assert cause(fold(log))[0] == REJOINED


def test_cause_of_a_change_right_after_a_move_is_the_change() -> None:
    log = alike((3, 5))
    log[1] = classic(20, 9_000, 5, {"a": {"orders": [0]}, "b": {"orders": [1]}, "c": {"orders": [2]}})
    assert cause(fold([log[0], log[1]._replace(leader_epoch=5)])) == ("member_joined", "recorded")


def test_cause_of_topics_that_the_leader_learns_of_in_one_epoch_is_leader_rejoined_or_their_creation() -> None:
    both = {"subscription": subscription("orders", "other")}
    log = [
        classic(1, 1_000, 1, {"a": {"orders": [0]}}),
        classic(2, 500_000, 2, {"a": member({"orders": [0]}, **both)}),
        classic(3, 500_300, 3, {"a": member({"orders": [0], "other": [0]}, **both)}),
    ]
    rows = fold(record._replace(leader_epoch=3) for record in log)
    assert cause(rows) == (REJOINED, "ambiguous")
    assert "created" in last(rows)["cause_note"]


def test_cause_after_a_state_that_has_no_offset_of_the_record_before_is_coordinator_moved() -> None:
    """Earlier releases did not save it."""
    before, after = alike((3, 5))
    saved = encode_state(fold_group(FoldState("g", 0), [before], complete_to=8, names={}).state)
    values = json.loads(saved)
    del values["group"]["record_offset"]
    state = decode_state("g", 0, json.dumps(values), {})
    rows = fold_group(state, [after], complete_to=21, names={}).rows
    [row] = [row.values() for row in rows if row.table == "rebalances" and row.values()["to_generation"] == 5]
    assert (row["cause"], row["certainty"]) == (MOVED, "likely")
    assert "rose from 3 to 5 before offset 20" in row["cause_note"]
