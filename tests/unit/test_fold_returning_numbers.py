"""A generation number that returns after the group was deleted and began again unread is not the old generation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from grouptrail.history.operations import Record
from support.fold_records import HOUR, classic, current, epoch, joins, leaves, member, regex, target, target_epoch
from support.group_records import Rows, fold

READ_AT = 10 * HOUR
A, B = {"a": {"orders": [0]}}, {"b": {"orders": [0]}}


def late(*records: Record) -> list[Record]:
    return [record._replace(read_late_at=READ_AT) for record in records]


def static(name: str) -> dict[str, Any]:
    return {name: member({"orders": [0]}, group_instance_id="s")}


def incarnations(rows: Rows, table: str = "generations") -> list[tuple[Any, ...]]:
    names = [("incarnation", "generation"), ("incarnation", "to_generation")][table == "rebalances"]
    return [tuple(row[name] for name in names) for row in rows[table]]


@pytest.mark.parametrize("number", [1, 2, 57])
@pytest.mark.parametrize(
    ("before", "after"),
    [(A, B), (A, {**B, "c": {"orders": [1]}}), ({**A, "c": {"orders": [1]}}, B), ({}, B), (A, {})],
    ids=["one for one", "one for two", "two for one", "empty before", "empty now"],
)
def test_same_generation_with_other_members_is_that_of_another_group(
    number: int, before: dict[str, Any], after: dict[str, Any]
) -> None:
    rows = fold([classic(1, 1_000, number, before), *late(classic(500, 9 * HOUR, number, after))])
    assert incarnations(rows) == [(1, number), (2, number)]
    assert [sorted(one["member_id"] for one in row["members"]) for row in rows["generations"]] == [
        sorted(before),
        sorted(after),
    ]
    assert [row["started_at"] for row in rows["generations"]] == [1_000, 9 * HOUR]


def test_nothing_of_the_new_group_is_booked_on_the_old_ones_rebalance() -> None:
    first = classic(1, 1_000, 2, A, state_at=900)
    [alone] = fold([first])["rebalances"]
    rows = fold([first, *late(classic(500, 9 * HOUR, 2, {**B, "c": {"orders": [1]}}))])
    assert incarnations(rows, "rebalances") == [(1, 2), (2, 2)]
    old = rows["rebalances"][0]
    assert {name: old[name] for name in old if name != "is_open"} == {
        name: alone[name] for name in alone if name != "is_open"
    }
    assert rows["rebalances"][1]["handed_over"] == []


def test_member_of_the_old_group_ends_without_a_time_and_the_new_one_was_there() -> None:
    rows = fold([classic(1, 1_000, 5, A), *late(classic(500, 9 * HOUR, 5, B))])
    assert [(row["member_id"], row["began"], row["ended"]) for row in rows["memberships"]] == [
        ("a", "there", "unknown"),
        ("b", "there", None),
    ]
    assert [row["note"] for row in rows["group_states"] if row["state"] == "Dead"] == [
        "recreated: its removal is not in the log"
    ]


def test_same_generation_with_a_member_that_stays_is_the_same_group() -> None:
    both = {**A, **static("s-2")}
    rows = fold(
        [classic(1, 1_000, 5, {**A, **static("s-1")}), *late(classic(500, 9 * HOUR, 5, both, state_at=1_010))]
    )
    assert incarnations(rows) == [(1, 5)]


def test_same_generation_with_a_static_member_that_came_back_is_the_same_group() -> None:
    rows = fold(
        [classic(1, 1_000, 5, static("s-1")), *late(classic(500, 9 * HOUR, 5, static("s-2"), state_at=1_010))]
    )
    assert incarnations(rows) == [(1, 5)]


def test_same_generation_with_a_static_member_that_became_stable_later_is_another_group() -> None:
    rows = fold(
        [classic(1, 1_000, 5, static("s-1")), *late(classic(500, 9 * HOUR, 5, static("s-2"), state_at=8 * HOUR))]
    )
    assert incarnations(rows) == [(1, 5), (2, 5)]
    assert rows["generations"][1]["started_at"] == 8 * HOUR


def test_same_generation_of_an_empty_group_is_another_one_if_it_was_emptied_later() -> None:
    rows = fold([classic(1, 1_000, 5, {}), *late(classic(500, 9 * HOUR, 5, {}, state_at=8 * HOUR))])
    assert incarnations(rows) == [(1, 5), (2, 5)]
    again = fold([classic(1, 1_000, 5, {}), *late(classic(500, 9 * HOUR, 5, {}, state_at=1_000))])
    assert incarnations(again) == [(1, 5)]


def of_epoch(offset: int, at: int, number: int, *names: str) -> list[Record]:
    """Return the records of an epoch in which these members join, and get a partition each."""
    records = [joins(offset + index, at, name) for index, name in enumerate(names)]
    records.append(epoch(offset + 10, at, number))
    records += [target(offset + 11 + index, at, name, [index]) for index, name in enumerate(names)]
    records.append(target_epoch(offset + 20, at, number))
    return [*records, *(current(offset + 21 + index, at, name, number, [index]) for index, name in enumerate(names))]


@pytest.mark.parametrize("keeps_tombstones", [False, True])
def test_same_epoch_is_that_of_another_group(keeps_tombstones: bool) -> None:
    gone = leaves(200, 5 * HOUR, "a") if keeps_tombstones else []
    rows = fold([*of_epoch(0, 1_000, 2, "a"), *late(*gone, *of_epoch(300, 9 * HOUR, 2, "b"))], names={"T": "orders"})
    assert incarnations(rows) == [(1, 2), (2, 2)]
    assert [[one["member_id"] for one in row["members"]] for row in rows["generations"]][1:] == [["b"]]
    owners = [row["member_id"] for row in rows["partition_ownership"] if row["owned_until"] is None]
    assert owners == ["b"]


def test_member_that_chose_its_id_again_is_in_both_groups() -> None:
    rows = fold([*of_epoch(0, 1_000, 2, "a"), *late(*of_epoch(300, 9 * HOUR, 2, "a", "b"))], names={"T": "orders"})
    found = sorted((row["member_id"], row["incarnation"]) for row in rows["memberships"])
    assert found == [("a", 1), ("a", 2), ("b", 2)]


def test_pattern_of_the_old_group_is_not_one_of_the_new_group() -> None:
    """So that its first resolution is a new one."""
    old = [*of_epoch(0, 1_000, 2, "a"), regex(30, 1_000, "^o.*", "orders"), epoch(31, 1_000, 3)]
    new = late(*of_epoch(300, 9 * HOUR, 3, "b"))
    asked = joins(400, 9 * HOUR + 1, "r", subscribedTopicNames=[], subscribedTopicRegex="^o.*")
    asks = [asked, current(401, 9 * HOUR + 1, "r", 3, [], previous=0)]
    resolved = [regex(410, 9 * HOUR + 2, "^o.*", "orders"), epoch(411, 9 * HOUR + 2, 4)]
    last = fold([*old, *new, *asks, *resolved], names={"T": "orders"})["rebalances"][-1]
    assert (last["incarnation"], last["cause"]) == (2, "member_joined")


def test_next_epoch_after_a_stop_is_that_of_the_same_group_as_far_as_is_known() -> None:
    rows = fold([*of_epoch(0, 1_000, 2, "a"), *late(*of_epoch(300, 9 * HOUR, 3, "b"))])
    assert incarnations(rows) == [(1, 2), (1, 3)]


def test_lower_number_is_that_of_another_group() -> None:
    rows = fold([*of_epoch(0, 1_000, 7, "a"), *late(*of_epoch(300, 9 * HOUR, 3, "b"))], names={"T": "orders"})
    assert incarnations(rows) == [(1, 7), (2, 3)]
    assert [one["member_id"] for one in rows["generations"][1]["members"]] == ["b"]


@pytest.mark.parametrize("cut", [3, 5, 8])
def test_rows_do_not_depend_on_how_the_records_are_cut(cut: int) -> None:
    records: Sequence[Record] = [*of_epoch(0, 1_000, 2, "a"), *late(*of_epoch(300, 9 * HOUR, 2, "b"))]
    calls = [(cut, records[cut - 1].offset + 1), (len(records), 10_000)]
    assert fold(records, calls) == fold(records)
