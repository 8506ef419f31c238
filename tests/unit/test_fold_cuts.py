"""The rows of a fold do not depend on how the records were cut."""

from __future__ import annotations

from typing import Any

import pytest

from grouptrail.history.fold import fold_group
from grouptrail.history.operations import operations
from grouptrail.history.state import FoldState, StateError, decode_state, encode_state
from support.fold_records import (
    DAY,
    Rows,
    classic,
    commit_tombstone,
    current,
    epoch,
    fold,
    joins,
    leaves,
    regex,
    target,
    target_epoch,
)
from support.group_records import gone

TWO_JOINS = [joins(10, 5_000, "b"), epoch(11, 5_000, 3), current(12, 5_000, "b", 2, [])]
TWO_JOINS += [joins(13, 5_000, "c"), epoch(14, 5_000, 4), current(15, 5_000, "c", 2, [])]
FIRST = [joins(0, 1_000, "a"), epoch(1, 1_000, 2), target(2, 1_000, "a", [0, 1]), target_epoch(3, 1_000, 2)]
FIRST += [current(4, 1_000, "a", 2, [0, 1])]


def test_generations_of_two_joins_in_one_millisecond_skip_none() -> None:
    """Both epochs are in the log (linger puts operations into one batch); none is skipped."""
    rows = fold(FIRST + TWO_JOINS)
    assert [row["skipped"] for row in rows["generations"][1:]] in ([0], [0, 0])


def test_rows_of_two_operations_in_one_millisecond_do_not_depend_on_the_cut() -> None:
    records = FIRST + TWO_JOINS
    cut = fold(
        records, [(8, 14), (11, 17)]
    )  # progress._complete_to: one beyond the end where that is the last stable offset
    assert cut["generations"] == fold(records)["generations"]


def test_rows_of_an_expiry_do_not_depend_on_a_cut_between_its_batches() -> None:
    """Clean-up is not atomic (GroupCoordinatorService.cleanupGroupMetadata): its batches share a timestamp and
    become readable one by one."""
    records = [classic(1, 1_000, 1, {"a": {"orders": [0]}}), classic(2, 2_000, 2, {})]
    records += [commit_tombstone(3, 8 * DAY), commit_tombstone(4, 8 * DAY), gone(5, 8 * DAY)]

    def note(rows: Rows) -> Any:
        return next(row["note"] for row in rows["group_states"] if row["state"] == "Dead")

    assert note(fold(records, [(4, 6), (5, 7)])) == note(fold(records))


def test_ownership_continues_when_a_topics_name_is_learned_later() -> None:
    """The assignment is evaluated again and is the same: nothing is given up or added."""
    first = fold_group(FoldState("billing", 0), FIRST, complete_to=6, names={})
    again = current(20, 9_000, "a", 2, [0, 1])
    second = fold_group(first.state, [again], complete_to=22, names={"T": "orders"})
    assert [row for row in second.rows if row.table == "partition_ownership" and row.values()["ended"]] == []


def test_joins_of_one_millisecond_keep_both_epochs_and_count_no_partition_below_zero() -> None:
    settled = [target(16, 6_000, "a", [0]), target(17, 6_000, "b", [1]), target(18, 6_000, "c", [])]
    settled += [target_epoch(19, 6_000, 4), current(20, 6_000, "a", 4, [0]), current(21, 6_100, "b", 4, [1])]
    rows = fold(FIRST + TWO_JOINS + settled)
    assert [row["generation"] for row in rows["generations"]] == [2, 3, 4]
    assert [row["cause"] for row in rows["rebalances"]] == ["group_started", "member_joined", "member_joined"]
    assert all(row["partitions_kept"] >= 0 for row in rows["rebalances"])


def test_what_a_pattern_matches_and_a_heartbeat_in_one_millisecond_are_two_operations() -> None:
    """GMM handleRegularExpressionsResult responds to no request: it writes patterns and an epoch, but no
    assignment."""
    by_pattern = {"subscribedTopicNames": [], "subscribedTopicRegex": "^o.*"}
    records = [joins(0, 1_000, "a", **by_pattern), epoch(1, 1_000, 1), target(2, 1_000, "a", [])]
    records += [target_epoch(3, 1_000, 1), current(4, 1_000, "a", 1, [], previous=0)]
    resolved = [regex(10, 2_000, "^o.*", "orders"), epoch(11, 2_000, 2)]
    assigned = [target(12, 2_000, "a", [0]), target_epoch(13, 2_000, 2), current(14, 2_000, "a", 2, [0], previous=1)]
    refreshed = [regex(20, 9_000, "^o.*", "orders"), current(21, 9_000, "a", 2, [0, 1], previous=2)]
    found = [len(operation) for operation, _ in operations([*records, *resolved, *assigned, *refreshed], 23)]
    assert found == [5, 2, 3, 1, 1]
    rows = fold([*records, *resolved, *assigned])
    assert [row["state"] for row in rows["group_states"]] == ["Stable", "Assigning", "Stable"]


def test_a_members_new_metadata_and_a_join_in_one_millisecond_are_two_operations() -> None:
    """A classic member that rejoins with other metadata and the same topics writes it without an epoch (GMM
    classicGroupJoinToConsumerGroup); the generation begins at the record of the member that joined after it."""
    again = joins(10, 5_000, "a", rebalanceTimeoutMs=60_000)
    records = [*FIRST, again, joins(11, 5_000, "b"), epoch(12, 5_000, 3), target(13, 5_000, "b", [1])]
    records += [target_epoch(14, 5_000, 3), current(15, 5_000, "b", 3, [], previous=0)]
    assert [len(operation) for operation, _ in operations(records, 17)] == [5, 1, 5]
    rows = fold(records)
    assert [row["members_joined"] for row in rows["rebalances"]][-1] == ["b"]


def test_a_members_new_metadata_and_anothers_heartbeat_in_one_millisecond_are_two_operations() -> None:
    """A heartbeat that finds new partitions writes an epoch without its member's metadata; it ends with the
    assignment of its member (GMM consumerGroupHeartbeat)."""
    found = [joins(10, 5_000, "b", rebalanceTimeoutMs=60_000), epoch(11, 5_000, 3), target(12, 5_000, "a", [0, 1, 2])]
    found += [target_epoch(13, 5_000, 3), current(14, 5_000, "a", 3, [0, 1, 2])]
    assert [len(operation) for operation, _ in operations([*FIRST, *found], 16)] == [5, 1, 4]


def test_a_members_new_metadata_and_what_a_pattern_matches_in_one_millisecond_are_two_operations() -> None:
    resolved = [
        joins(10, 5_000, "a", rebalanceTimeoutMs=60_000),
        regex(11, 5_000, "^o.*", "orders"),
        epoch(12, 5_000, 3),
    ]
    assert [len(operation) for operation, _ in operations([*FIRST, *resolved], 14)] == [5, 1, 2]


def test_a_static_members_return_is_one_operation() -> None:
    """GMM replaceMember copies the old member's records, then responds to the new one: two assignments, two metadata
    records."""
    records = [joins(0, 1_000, "s1", instanceId="s"), epoch(1, 1_000, 2), target(2, 1_000, "s1", [0])]
    records += [target_epoch(3, 1_000, 2), current(4, 1_000, "s1", 2, [0], previous=0)]
    records += [current(10, 5_000, "s1", -2, [0], previous=2), *leaves(20, 6_000, "s1")]
    records += [joins(23, 6_000, "s2", instanceId="s"), target(24, 6_000, "s2", [0])]
    records += [current(25, 6_000, "s2", 0, [0], previous=0), joins(26, 6_000, "s2", instanceId="s")]
    records += [current(27, 6_000, "s2", 2, [0], previous=0)]
    rows = fold(records)
    assert [row["ended"] for row in rows["memberships"]] == ["replaced", None]
    states = sorted((row["started_at"], row["state"]) for row in rows["group_states"])
    assert states == [(1_000, "Stable"), (5_000, "Reconciling"), (6_000, "Stable")]
    assert len(rows["rebalances"]) == 1


def test_an_upgrade_is_one_operation() -> None:
    """GMM convertToConsumerGroup: tombstone, the classic members with the generation as epoch, then the joiner's."""
    classic_member = {"sessionTimeoutMs": 45_000, "supportedProtocols": [{"name": "range", "metadata": ""}]}
    records = [classic(0, 1_000, 4, {"a": {"orders": [0, 1]}}), gone(10, 9_000)]
    records += [joins(11, 9_000, "a", classicMemberMetadata=classic_member), epoch(12, 9_000, 4)]
    records += [target(13, 9_000, "a", [0, 1]), target_epoch(14, 9_000, 4), current(15, 9_000, "a", 4, [0, 1])]
    records += [joins(16, 9_000, "b"), epoch(17, 9_000, 5), target(18, 9_000, "a", [0]), target(19, 9_000, "b", [1])]
    records += [target_epoch(20, 9_000, 5), current(21, 9_000, "b", 5, [], previous=0, state=2)]
    rows = fold(records, names={"T": "orders"})
    assert [(row["group_kind"], row["generation"]) for row in rows["generations"]] == [
        ("classic", 4),
        ("consumer", 5),
    ]
    last = rows["rebalances"][-1]
    assert (last["cause"], last["certainty"], last["members_joined"]) == ("protocol_migrated", "recorded", ["b"])
    assert [row["incarnation"] for row in rows["generations"]] == [1, 1]


def test_fold_leaves_the_state_before_it_as_it_was() -> None:
    first = fold_group(FoldState("billing", 0), FIRST, complete_to=6, names={})
    encoded = encode_state(first.state)
    fold_group(first.state, TWO_JOINS, complete_to=17, names={})
    assert encode_state(first.state) == encoded
    assert encode_state(decode_state("billing", 0, encoded, {})) == encoded


def test_decode_of_a_later_versions_state_says_what_to_do() -> None:
    with pytest.raises(StateError, match="run grouptrail rebuild history"):
        decode_state("billing", 0, '{"version":99}', {})
