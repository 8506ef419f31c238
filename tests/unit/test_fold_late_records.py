"""Records that were read long after they were written: compaction may have taken those before them."""

from __future__ import annotations

from typing import Any

import pytest

from grouptrail.history.evidence import COMPACTED_NOTE
from grouptrail.history.operations import Record
from support.fold_records import DAY, classic, current, epoch, joins, leaves, member, target, target_epoch
from support.group_records import Rows, fold, gone

FIRST_READ, NEXT_READ = 1_000_000, 2_000_000


def late(record: Record, read_at: int = FIRST_READ) -> Record:
    return record._replace(read_late_at=read_at)


def last_cause(rows: Rows) -> tuple[Any, ...]:
    row = rows["rebalances"][-1]
    return row["cause"], row["certainty"]


EMPTIED = (classic(1, 1_000, 1, {"a": {"orders": [0]}}), classic(2, 60_000, 2, {}))


def test_cause_of_a_record_read_at_once_is_recorded() -> None:
    rows = fold([*EMPTIED, classic(3, 90_000, 3, {"b": {"orders": [0]}})])
    assert last_cause(rows) == ("group_started", "recorded")


def test_cause_of_a_record_read_late_is_likely_because_the_group_may_have_been_recreated() -> None:
    rows = fold([*EMPTIED, late(classic(9, 90_000, 3, {"b": {"orders": [0]}}))])
    assert last_cause(rows) == ("group_started", "likely")
    assert rows["rebalances"][-1]["cause_note"] == f"the first members; {COMPACTED_NOTE}"


def test_cause_of_records_read_late_but_together_is_recorded() -> None:
    """Compaction keeps the newest record of each key: it cannot have taken one between the two."""
    rows = fold([late(record) for record in (*EMPTIED, classic(3, 90_000, 3, {"b": {"orders": [0]}}))])
    assert last_cause(rows) == ("group_started", "recorded")


def test_cause_of_records_read_late_in_two_batches_is_likely() -> None:
    rows = fold([*map(late, EMPTIED), late(classic(9, 90_000, 3, {"b": {"orders": [0]}}), NEXT_READ)])
    assert last_cause(rows) == ("group_started", "likely")


def test_cause_of_a_record_read_late_with_a_member_of_before_is_recorded() -> None:
    """A coordinator makes up new member ids: `a` shows that the group was not deleted."""
    rows = fold([EMPTIED[0], late(classic(9, 60_000, 2, {"a": {"orders": [0]}, "b": {}}))])
    assert last_cause(rows) == ("member_joined", "recorded")
    assert [row["began"] for row in rows["memberships"]] == ["joined", "joined"]


@pytest.mark.parametrize(
    ("number", "static"),
    [pytest.param(3, {}, id="skipped"), pytest.param(2, {"group_instance_id": "s"}, id="static")],
)
def test_memberships_around_records_that_may_be_missing_are_unknown(number: int, static: dict[str, str]) -> None:
    """Generation 2 is missing, or may have been written again when a static member came back."""
    before = classic(1, 1_000, 1, {"a": {"orders": [0]}, "x": {"orders": [1]}})
    after = late(classic(9, 60_000, number, {"a": {"orders": [0]}, "b": member({"orders": [1]}, **static)}))
    found = {row["member_id"]: row for row in fold([before, after])["memberships"]}
    assert found["a"]["ended"] is None
    assert (found["b"]["began"], found["b"]["joined_at"]) == ("there", 60_000)
    assert (found["x"]["ended"], found["x"]["left_at"], found["x"]["left_generation"]) == ("unknown", 60_000, None)


def test_memberships_and_cause_of_an_epoch_read_late_are_not_certain() -> None:
    began = [joins(1, 1_000, "a"), epoch(2, 1_000, 1), target(3, 1_000, "a", [0]), target_epoch(4, 1_000, 1)]
    began.append(current(5, 1_000, "a", 1, [0], previous=0))
    after = [*leaves(20, 60_000, "a"), joins(30, 70_000, "b"), epoch(31, 70_000, 2)]
    rows = fold([*began, *map(late, after)])
    found = {row["member_id"]: row for row in rows["memberships"]}
    assert (found["a"]["ended"], found["a"]["left_generation"], found["b"]["began"]) == ("unknown", None, "there")
    assert last_cause(rows)[1] == "likely"


@pytest.mark.parametrize(
    ("stopped_ms", "later_ms", "is_gone"),
    [(2 * DAY, 200_000, True), (2 * DAY, 1_000, False), (DAY // 2, 200_000, False)],
    ids=["long", "its session may not have ended", "its tombstone would be there"],
)
def test_member_whose_tombstone_is_gone_ends_once_it_does_not_reach_the_epoch(
    stopped_ms: int, later_ms: int, is_gone: bool
) -> None:
    """`a` leaves while nothing is read, and `b` takes over: all that is left is what `b` has."""
    began = [joins(1, 1_000, "a"), epoch(2, 1_000, 1), target(3, 1_000, "a", [0]), target_epoch(4, 1_000, 1)]
    began.append(current(5, 1_000, "a", 1, [0], previous=0))
    at = 1_000 + stopped_ms
    unread = [joins(30, at, "b"), epoch(31, at, 3), target(32, at, "b", [0]), target_epoch(33, at, 3)]
    unread.append(current(34, at, "b", 3, [0]))
    rows = fold([*began, *(late(record, at + 60_000) for record in unread), joins(40, at + later_ms, "b")])
    found = {row["member_id"]: row for row in rows["memberships"]}
    assert (found["a"]["ended"], found["a"]["left_at"]) == (("unknown", at + later_ms) if is_gone else (None, None))
    owners = [row["member_id"] for row in rows["partition_ownership"] if row["owned_until"] is None]
    assert owners == ["b"]  # the broker gives nobody what another member still has
    assert found["b"]["ended"] is None


def test_memberships_of_a_group_with_members_removed_unread_are_unknown() -> None:
    [row] = fold([EMPTIED[0], late(gone(9, 90_000))])["memberships"]
    assert (row["ended"], row["left_at"]) == ("unknown", 90_000)
