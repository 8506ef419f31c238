"""Each rebalance is counted once, and a removal has the same row however its records became readable."""

from __future__ import annotations

from typing import Any

import pytest

from grouptrail.history.operations import Record
from support.fold_records import (
    DAY,
    classic,
    commit_tombstone,
    consumer,
    current,
    epoch,
    joins,
    leaves,
    target,
    target_epoch,
)
from support.group_records import fold, gone

TWO = {"sessionTimeoutMs": 45_000, "supportedProtocols": [{"name": "range", "metadata": ""}]}


def mixed(number: int = 8) -> list[Record]:
    """Return a group of a classic member and of one that is not."""
    records = [joins(0, 1_000, "a", classicMemberMetadata=TWO), joins(1, 1_000, "b"), epoch(2, 1_000, number)]
    records += [target(3, 1_000, "a", [0]), target(4, 1_000, "b", [1]), target_epoch(5, 1_000, number)]
    return [*records, current(6, 1_000, "b", number, [1]), current(7, 1_200, "a", number, [0])]


def downgrade(number: int = 8, *, at: int = 9_000) -> list[Record]:
    """Return what is written when b leaves: the classic group keeps the number (GMM.convertToClassicGroup)."""
    parts = ("CurrentMemberAssignment", "TargetAssignmentMember", "MemberMetadata")
    removed: list[tuple[str, str | None]] = [(part, name) for part in parts for name in "ab"]
    removed += [("TargetAssignmentMetadata", None), ("Metadata", None)]
    records = [consumer(20 + index, at, part, name, None) for index, (part, name) in enumerate(removed)]
    return [*records, classic(28, at, number, {"a": {"orders": [0]}})]


def follows(number: int = 9, members: dict[str, Any] | None = None) -> Record:
    return classic(40, 12_000, number, members or {"a": {"orders": [0, 1]}}, state_at=11_990)


NAMES = {"T": "orders"}


def test_downgrade_is_no_rebalance_and_the_one_that_follows_is_its_own() -> None:
    rows = fold([*mixed(), *downgrade(), follows()], names=NAMES)
    numbers = [(row["from_generation"], row["to_generation"], row["cause"]) for row in rows["rebalances"]]
    assert numbers == [(None, 8, "unknown"), (8, 9, "protocol_migrated")]


def test_generations_of_a_downgraded_group_are_of_both_protocols() -> None:
    rows = fold([*mixed(), *downgrade(), follows()], names=NAMES)
    assert [(row["generation"], row["group_kind"]) for row in rows["generations"]] == [
        (8, "consumer"),
        (8, "classic"),
        (9, "classic"),
    ]


def test_member_whose_leaving_downgraded_the_group_left_in_the_rebalance_that_follows() -> None:
    rows = fold([*mixed(), *downgrade(), follows()], names=NAMES)
    assert [row["members_left"] for row in rows["rebalances"]] == [[], ["b"]]
    assert rows["rebalances"][-1]["partitions_moved"] == 1


def test_rebalances_of_a_downgraded_group_are_as_many_as_its_numbers() -> None:
    later = classic(50, 20_000, 10, {"a": {"orders": [0]}, "c": {"orders": [1]}}, state_at=19_990)
    rows = fold([*mixed(), *downgrade(), follows(), later], names=NAMES)
    assert len(rows["rebalances"]) == len({row["generation"] for row in rows["generations"]}) == 3
    assert rows["rebalances"][-1]["members_left"] == []


def test_downgrade_that_no_rebalance_follows_yet_only_ends_the_rebalance_before() -> None:
    """The classic group is stable in the record."""
    [before] = fold(mixed(), names=NAMES)["rebalances"]
    assert fold([*mixed(), *downgrade()], names=NAMES)["rebalances"] == [before | {"ended_at": 9_000}]


def test_downgrade_to_a_later_number_is_a_rebalance_of_its_own() -> None:
    """Compaction took epochs in between: which rebalance it was is not known, but there was one."""
    rows = fold([*mixed(8), *downgrade(11)], names=NAMES)
    assert [row["to_generation"] for row in rows["rebalances"]] == [8, 11]


def test_upgrade_is_one_rebalance() -> None:
    upgraded = [gone(10, 9_000), joins(11, 9_000, "a", classicMemberMetadata=TWO), epoch(12, 9_000, 5)]
    upgraded += [target(13, 9_000, "a", [0]), target_epoch(14, 9_000, 5), current(15, 9_000, "a", 5, [0])]
    upgraded += [joins(16, 9_000, "b"), epoch(17, 9_000, 6), target(18, 9_000, "b", [1]), target_epoch(19, 9_000, 6)]
    rows = fold(
        [classic(1, 1_000, 5, {"a": {"orders": [0]}}), *upgraded, current(20, 9_000, "b", 6, [])], names=NAMES
    )
    assert [row["to_generation"] for row in rows["rebalances"]] == [5, 6]


@pytest.mark.parametrize("cut", range(1, 18))
def test_rebalances_of_a_downgraded_group_do_not_depend_on_the_cut(cut: int) -> None:
    records = [*mixed(), *downgrade(), follows()]
    calls = [(cut, records[cut - 1].offset + 1), (len(records), 99)]
    assert fold(records, calls, names=NAMES) == fold(records, names=NAMES)


PARTS = ("TargetAssignmentMetadata", "PartitionMetadata", "Metadata")


def removal(*, is_consumer: bool, commits: int = 2) -> list[Record]:
    """Return a clean-up, which is not atomic (GroupCoordinatorShard.cleanupGroupMetadata)."""
    tombstones = [commit_tombstone(20 + number, 8 * DAY) for number in range(commits)]
    if not is_consumer:
        return [*tombstones, gone(20 + commits, 8 * DAY)]
    parts = [consumer(20 + commits + number, 8 * DAY, part, None, None) for number, part in enumerate(PARTS)]
    return [*tombstones, *parts]


def emptied(*, is_consumer: bool) -> list[Record]:
    if not is_consumer:
        return [classic(1, 1_000, 1, {"a": {"orders": [0]}}), classic(2, 2_000, 2, {})]
    records = [joins(0, 1_000, "a"), epoch(1, 1_000, 2), target(2, 1_000, "a", [0]), target_epoch(3, 1_000, 2)]
    return [*records, current(4, 1_000, "a", 2, [0], previous=0), *leaves(5, 2_000, "a"), epoch(8, 2_000, 3)]


@pytest.mark.parametrize("is_consumer", [True, False])
@pytest.mark.parametrize("commits", [0, 1, 3])
def test_removal_whose_batches_become_readable_one_by_one_has_the_row_of_a_rebuild(
    is_consumer: bool, commits: int
) -> None:
    records = [*emptied(is_consumer=is_consumer), *removal(is_consumer=is_consumer, commits=commits)]
    whole = fold(records)["group_states"]
    assert whole[-1]["record_offset"] == records[-1].offset
    for cut in range(len(records) - len(PARTS) - commits, len(records)):
        if cut > 0:
            calls = [(cut, records[cut - 1].offset + 2), (len(records), 99)]
            assert fold(records, calls)["group_states"] == whole, cut
