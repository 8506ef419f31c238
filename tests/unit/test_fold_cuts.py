"""The rows of a fold do not depend on how the records were cut."""

from __future__ import annotations

from typing import Any

import pytest

from grouptrail.history.fold import fold_group
from grouptrail.history.operations import Operation, Record, operations
from grouptrail.history.state import FoldState, StateError, decode_state, encode_state
from support.fold_records import (
    DAY,
    classic,
    commit_tombstone,
    consumer,
    current,
    epoch,
    joins,
    leaves,
    regex,
    streams,
    target,
    target_epoch,
)
from support.group_records import Rows, fold, gone

TWO_JOINS = [joins(10, 5_000, "b"), epoch(11, 5_000, 3), current(12, 5_000, "b", 2, [])]
TWO_JOINS += [joins(13, 5_000, "c"), epoch(14, 5_000, 4), current(15, 5_000, "c", 2, [])]
FIRST = [joins(0, 1_000, "a"), epoch(1, 1_000, 2), target(2, 1_000, "a", [0, 1]), target_epoch(3, 1_000, 2)]
FIRST += [current(4, 1_000, "a", 2, [0, 1])]


def cut(records: list[Record]) -> list[Operation]:
    """Return the operations of records in which no member changes its topics."""
    return [operation for operation, _ in operations(records, records[-1].offset + 2, lambda _: False)]


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
    found = [len(operation) for operation in cut([*records, *resolved, *assigned, *refreshed])]
    assert found == [5, 2, 3, 1, 1]
    rows = fold([*records, *resolved, *assigned])
    assert [row["state"] for row in rows["group_states"]] == ["Stable", "Assigning", "Stable"]


def test_a_members_new_metadata_and_a_join_in_one_millisecond_are_two_operations() -> None:
    """A classic member that rejoins with other metadata and the same topics writes it without an epoch (GMM
    classicGroupJoinToConsumerGroup); the generation begins at the record of the member that joined after it."""
    again = joins(10, 5_000, "a", rebalanceTimeoutMs=60_000)
    records = [*FIRST, again, joins(11, 5_000, "b"), epoch(12, 5_000, 3), target(13, 5_000, "b", [1])]
    records += [target_epoch(14, 5_000, 3), current(15, 5_000, "b", 3, [], previous=0)]
    assert [len(operation) for operation in cut(records)] == [5, 1, 5]
    rows = fold(records)
    assert [row["members_joined"] for row in rows["rebalances"]][-1] == ["b"]


def test_a_members_new_metadata_and_anothers_heartbeat_in_one_millisecond_are_two_operations() -> None:
    """A heartbeat that finds new partitions writes an epoch without its member's metadata; it ends with the
    assignment of its member (GMM consumerGroupHeartbeat)."""
    found = [joins(10, 5_000, "b", rebalanceTimeoutMs=60_000), epoch(11, 5_000, 3), target(12, 5_000, "a", [0, 1, 2])]
    found += [target_epoch(13, 5_000, 3), current(14, 5_000, "a", 3, [0, 1, 2])]
    assert [len(operation) for operation in cut([*FIRST, *found])] == [5, 1, 4]


def test_a_members_other_topics_and_anothers_assignment_in_one_millisecond_begin_the_epoch_at_its_metadata() -> None:
    """Other topics call for an epoch in the same request (GMM hasMemberSubscriptionChanged); while a member revokes,
    its own assignment does not change, and the next assignment is another member's."""
    joined = [joins(5, 2_000, "b"), epoch(6, 2_000, 3), target(7, 2_000, "a", [0]), target(8, 2_000, "b", [1])]
    joined += [target_epoch(9, 2_000, 3), current(10, 2_000, "b", 3, [], state=2, previous=0)]
    revoking = current(11, 2_500, "a", 2, [0], state=1, pending=([1], "T"))
    found = [joins(12, 5_000, "a", subscribedTopicNames=["other"]), epoch(13, 5_000, 4), target_epoch(14, 5_000, 4)]
    found += [current(15, 5_000, "b", 4, [], state=2, previous=3)]
    rows = fold([*FIRST, *joined, revoking, *found])
    assert [(row["generation"], row["record_offset"]) for row in rows["generations"]] == [(2, 0), (3, 5), (4, 12)]
    assert rows["rebalances"][-1]["cause"] == "subscription_changed"
    assert [one["topics"] for one in rows["generations"][1]["members"]] == [["orders"], ["orders"]]
    same = [joins(12, 5_000, "a", rebalanceTimeoutMs=60_000), *found[1:]]
    assert fold([*FIRST, *joined, revoking, *same])["generations"][-1]["record_offset"] == 13


def test_a_members_new_metadata_and_what_a_pattern_matches_in_one_millisecond_are_two_operations() -> None:
    resolved = [
        joins(10, 5_000, "a", rebalanceTimeoutMs=60_000),
        regex(11, 5_000, "^o.*", "orders"),
        epoch(12, 5_000, 3),
    ]
    assert [len(operation) for operation in cut([*FIRST, *resolved])] == [5, 1, 2]


def test_a_deletion_and_a_new_groups_first_member_in_one_millisecond_are_two_operations() -> None:
    """ConsumerGroup.createGroupTombstoneRecords ends with the group's epoch; the new group begins with its member."""
    parts = ("TargetAssignmentMetadata", "PartitionMetadata", "Metadata")
    deleted = [consumer(10 + index, 5_000, part, None, None) for index, part in enumerate(parts)]
    again = [joins(13, 5_000, "b"), epoch(14, 5_000, 1), target(15, 5_000, "b", [0])]
    again += [target_epoch(16, 5_000, 1), current(17, 5_000, "b", 1, [0], previous=0)]
    assert [len(operation) for operation in cut([*FIRST, *deleted, *again])] == [5, 3, 5]
    rows = fold([*FIRST, *deleted, *again])
    assert [(row["incarnation"], row["record_offset"]) for row in rows["generations"]] == [(1, 0), (2, 13)]


def test_the_deletion_of_a_streams_group_is_one_operation() -> None:
    """StreamsGroup.createGroupTombstoneRecords ends with the topology, after the group's epoch."""
    parts = ("TargetAssignmentMetadata", "Metadata", "Topology")
    deleted = [streams(10 + index, 5_000, part, None, None) for index, part in enumerate(parts)]
    again = streams(13, 5_000, "MemberMetadata", "b", {"clientId": "b", "clientHost": "/10.0.0.1"})
    assert [len(operation) for operation in cut([*deleted, again])] == [3, 1]


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


def test_cause_of_a_replaced_empty_group_is_likely_as_its_deletion_writes_the_same() -> None:
    """GMM maybeDeleteEmptyClassicGroup; DeleteGroups and the first member of a new group in one millisecond."""
    records = [classic(0, 1_000, 4, {"a": {"orders": [0]}}), classic(1, 2_000, 5, {}), gone(10, 9_000)]
    records += [joins(11, 9_000, "b"), epoch(12, 9_000, 1), target(13, 9_000, "b", [0])]
    records += [target_epoch(14, 9_000, 1), current(15, 9_000, "b", 1, [0], previous=0)]
    last = fold(records)["rebalances"][-1]
    assert (last["cause"], last["certainty"]) == ("protocol_migrated", "likely")
    assert "the empty group was deleted, and another began" in last["cause_note"]


def test_fold_leaves_the_state_before_it_as_it_was() -> None:
    first = fold_group(FoldState("billing", 0), FIRST, complete_to=6, names={})
    encoded = encode_state(first.state)
    fold_group(first.state, TWO_JOINS, complete_to=17, names={})
    assert encode_state(first.state) == encoded
    assert encode_state(decode_state("billing", 0, encoded, {})) == encoded


def test_decode_of_a_later_versions_state_says_what_to_do() -> None:
    with pytest.raises(StateError, match="run grouptrail rebuild history"):
        decode_state("billing", 0, '{"version":99}', {})
