"""Groups of which some records cannot be decoded: what they changed is not known, and no empty group is claimed.

Early-access KIP-848 (3.5 to 3.7) writes epochs that can be read, and members that cannot; a later release may do the
same.
"""

from __future__ import annotations

import pytest

from grouptrail.history.evidence import UNREADABLE_NOTE
from grouptrail.history.operations import UNREADABLE, Record
from support.fold_records import (
    HOUR,
    at_once,
    classic,
    current,
    epoch,
    first_epoch,
    joins,
    last,
    leaves,
    states,
    target,
    target_epoch,
)
from support.group_records import fold, gone


def unreadable(offset: int, at: int) -> Record:
    return Record(offset, at, UNREADABLE, None, None, read_at_once=True)


def of_3_7(first: int = 1, last: int = 3, *, is_shown: bool = True) -> list[Record]:
    """Return epochs of a group whose members cannot be read; they may be missing altogether."""
    records: list[Record] = []
    for number in range(first, last + 1):
        at = 1_000 * number
        records += [unreadable(10 * number, at)] * is_shown
        records += at_once([epoch(10 * number + 1, at, number), target_epoch(10 * number + 2, at, number)])
    return records


def known() -> list[Record]:
    return at_once(first_epoch(0))


@pytest.mark.parametrize("is_shown", [True, False])
def test_group_without_a_member_that_can_be_read_has_no_state(is_shown: bool) -> None:
    """There are some: they neither left nor is this the group's beginning."""
    assert states(fold(of_3_7(is_shown=is_shown))) == []


@pytest.mark.parametrize("is_shown", [True, False])
def test_epochs_of_a_group_without_a_member_that_can_be_read_have_unknown_causes(is_shown: bool) -> None:
    rows = fold(of_3_7(is_shown=is_shown))
    assert {(row["cause"], row["certainty"]) for row in rows["rebalances"]} == {("unknown", "ambiguous")}
    assert {(row["duration_ms"], row["ended_at"]) for row in rows["rebalances"]} == {(None, None)}


def test_members_that_cannot_be_read_are_not_counted_as_none() -> None:
    assert [row["member_count"] for row in fold(of_3_7())["generations"]] == [None, None, None]


def test_group_that_was_emptied_is_empty_though_a_target_was_computed_before() -> None:
    rows = fold([*known(), *at_once([*leaves(10, HOUR, "a"), epoch(13, HOUR, 3)])])
    assert states(rows)[-1] == ("Empty", "recorded", HOUR, None)
    assert (last(rows)["cause"], last(rows, "generations")["member_count"]) == ("group_emptied", 0)


def emptied_in_4_4(offset: int, at: int, number: int) -> list[Record]:
    """Return an epoch without members as 4.4 writes it: its target assignment has no time."""
    return [epoch(offset, at, number, metadataHash=0), target_epoch(offset + 1, at, number)]


@pytest.mark.parametrize("is_late", [True, False])
def test_group_that_4_4_emptied_is_empty_though_it_writes_a_target_assignment(is_late: bool) -> None:
    log = [*first_epoch(0), *leaves(10, HOUR, "a"), *emptied_in_4_4(13, HOUR, 3)]
    rows = fold(log if is_late else at_once(log))
    assert states(rows)[-1] == ("Empty", "recorded", HOUR, None)
    assert (last(rows)["cause"], last(rows, "generations")["member_count"]) == ("group_emptied", 0)
    joined = [joins(15, 2 * HOUR, "b"), epoch(16, 2 * HOUR, 4), target(17, 2 * HOUR, "b", [0])]
    joined += [target_epoch(18, 2 * HOUR, 4), current(19, 2 * HOUR, "b", 4, [0], previous=0)]
    assert ("Empty", "recorded", HOUR, 2 * HOUR) in states(fold([*log, *joined]))


def test_compacted_group_without_members_whose_target_was_computed_has_no_state() -> None:
    """4.4 emptied it, or compaction kept the records of its members only further on."""
    rows = fold(emptied_in_4_4(13, HOUR, 3))
    assert (states(rows), last(rows, "generations")["member_count"]) == ([], None)


def test_state_is_known_up_to_a_record_that_cannot_be_read() -> None:
    rows = fold([*known(), unreadable(10, HOUR)])
    assert states(rows) == [("Stable", "recorded", 1_000, HOUR)]


def test_state_after_a_record_that_cannot_be_read_is_inferred() -> None:
    rows = fold([*known(), unreadable(10, HOUR), *at_once([current(11, HOUR + 1, "a", 2, [0])])])
    assert states(rows) == [("Stable", "recorded", 1_000, HOUR), ("Stable", "inferred", HOUR + 1, None)]
    assert last(rows, "group_states")["not_before"] == HOUR


def test_cause_of_an_epoch_in_a_group_with_a_record_that_cannot_be_read_is_not_recorded() -> None:
    joined = [
        joins(11, HOUR, "b", clientHost="/10.0.0.2"),
        epoch(12, HOUR, 3),
        current(13, HOUR, "b", 3, [], previous=0),
    ]
    assert last(fold([*known(), *at_once(joined)]))["certainty"] == "recorded"
    doubted = last(fold([*known(), unreadable(10, HOUR), *at_once(joined)]))
    assert (doubted["cause"], doubted["certainty"]) == ("member_joined", "likely")
    assert doubted["cause_note"].endswith(UNREADABLE_NOTE)


def test_group_whose_known_members_left_is_not_empty_if_others_cannot_be_read() -> None:
    rows = fold([*known(), unreadable(10, 2_000), *at_once([*leaves(11, HOUR, "a"), epoch(14, HOUR, 3)])])
    assert "Empty" not in [one[0] for one in states(rows)]
    assert last(rows)["cause"] == "unknown"
    assert last(rows, "generations")["member_count"] is None


def test_generation_of_a_classic_group_after_one_that_cannot_be_read_is_known_again() -> None:
    a = {"a": {"orders": [0]}}
    log = [classic(1, 1_000, 5, a), unreadable(2, HOUR), classic(3, 2 * HOUR, 7, a), classic(4, 3 * HOUR, 8, a)]
    rows = fold(at_once(log))
    listed = [one for one in states(rows) if one[0] == "Stable"]
    assert listed == [
        ("Stable", "recorded", 1_000, HOUR),
        ("Stable", "recorded", 2 * HOUR, 3 * HOUR),
        ("Stable", "recorded", 3 * HOUR, None),
    ]
    assert [row["cause_note"].endswith(UNREADABLE_NOTE) for row in rows["rebalances"]] == [False, True, False]


def test_records_of_a_group_that_begins_after_one_was_removed_are_all_readable_again() -> None:
    log = [
        classic(1, 1_000, 5, {}),
        unreadable(2, 2_000),
        gone(3, 3_000),
        classic(4, HOUR, 1, {"a": {"orders": [0]}}),
    ]
    rows = fold(at_once(log))
    assert not (last(rows)["cause_note"] or "").endswith(UNREADABLE_NOTE)
    assert states(rows)[-1] == ("Stable", "recorded", HOUR, None)


def test_duration_of_an_epoch_with_a_record_that_cannot_be_read_is_not_known() -> None:
    begun = at_once([joins(10, HOUR, "b", clientHost="/10.0.0.2"), epoch(11, HOUR, 3), target_epoch(12, HOUR, 3)])
    ends = at_once([current(21, HOUR + 9, "a", 3, [0]), current(22, HOUR + 9, "b", 3, [])])
    assert last(fold([*known(), *begun, *ends]))["duration_ms"] == 9
    assert last(fold([*known(), *begun, unreadable(20, HOUR + 5), *ends]))["duration_ms"] is None


def test_group_of_members_whose_assignments_cannot_be_read_has_no_state() -> None:
    """A member that joins gets an assignment at once: without one it does not reconcile for hours."""
    described = [joins(1, 1_000, "a"), epoch(2, 1_000, 2), target(3, 1_000, "a", [0]), target_epoch(4, 1_000, 2)]
    assert states(fold(at_once([*described, joins(9, HOUR, "a", clientHost="/10.0.0.9")]))) == []
    known_again = current(10, 2 * HOUR, "a", 2, [0])
    assert states(fold(at_once([*described, known_again]))) == [("Stable", "recorded", 2 * HOUR, None)]


def test_group_whose_epochs_are_all_that_can_be_read_is_not_empty() -> None:
    """An epoch takes a member that joins, leaves or sends heartbeats."""
    rows = fold(at_once([epoch(number, 1_000 * number, number) for number in (1, 2, 3)]))
    assert [row["cause"] for row in rows["rebalances"]] == ["unknown"] * 3
    assert states(rows) == []


def test_state_ends_where_a_member_joins_whose_assignment_cannot_be_read() -> None:
    rows = fold([*known(), *at_once([joins(11, HOUR, "b"), epoch(12, HOUR, 3), target_epoch(13, HOUR, 3)])])
    assert states(rows) == [("Stable", "recorded", 1_000, HOUR), ("Reconciling", "recorded", HOUR, None)]
    reached = current(14, HOUR + 1, "a", 3, [0])
    rows = fold(
        [
            *known(),
            *at_once([joins(11, HOUR, "b"), epoch(12, HOUR, 3), target_epoch(13, HOUR, 3), reached]),
        ]
    )
    assert states(rows)[1:] == [("Reconciling", "recorded", HOUR, HOUR + 1)]


@pytest.mark.parametrize("cut", range(1, 9))
def test_rows_with_records_that_cannot_be_read_do_not_depend_on_the_cut(cut: int) -> None:
    records = of_3_7()
    assert fold(records, [(cut, records[cut - 1].offset + 1), (len(records), 10_000)]) == fold(records)
