"""The fold of records that are out of order, broken or huge: the rows hold what is known, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from grouptrail.history.evidence import Evidence, RemovalEvidence
from grouptrail.history.operations import Record
from grouptrail.wire.blobs import Blob, encode_blob
from grouptrail.wire.records import Key, Value, encode_key, encode_value
from support.fold_records import commit_tombstone, consumer, joins
from support.group_records import Row, Rows, as_record, classic, fold, gone, member

ORDERS_0 = {"orders": [0]}
REMOVED = "removed without offsets: deleted, or removed by the broker's regular cleanup of empty groups"
NEVER_SEEN = "removed before history begins: deleted, expired, or converted to another protocol"
MANY = 10_000
LARGEST_BYTES = 1_048_588  # the default of message.max.bytes


def fold_both_ways(records: Sequence[Record]) -> Rows:
    """Return the rows of a fold, and check that folding record by record gives the same."""
    whole = fold(records)
    assert fold(records, cuts=range(len(records))) == whole
    return whole


def lines(rows: Rows, table: str, *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[column] for column in columns) for row in rows[table]]


def states(rows: Rows) -> list[tuple[Any, ...]]:
    """Return the states that the log records, ordered by time."""
    recorded = [row for row in rows["group_states"] if row["state"] != "PreparingRebalance"]
    columns = ("incarnation", "state", "started_at", "ended_at", "note")
    return [tuple(row[column] for column in columns) for row in recorded if row["started_at"] != row["ended_at"]]


def owned(rows: Rows) -> list[tuple[Any, ...]]:
    return lines(rows, "partition_ownership", "partition", "member_id", "owned_from", "owned_until", "ended")


# --- out of order --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [1, 5])
def test_fold_commit_tombstones_before_the_group_record_change_nothing(before: int) -> None:
    """Expired offsets of a group that is not known yet, also directly before its record."""
    group = classic(6, 1_000, 1, {"a": ORDERS_0})
    rows = fold_both_ways([commit_tombstone(0, 100), commit_tombstone(before, 900), group])
    assert rows == fold([group])
    assert states(rows) == [(1, "Stable", 1_000, None, None)]
    assert owned(rows) == [(0, "a", 1_000, None, None)]


def test_fold_leading_group_tombstone_is_a_dead_incarnation_of_its_own() -> None:
    """Only the end of the earlier group is known; the next record begins another incarnation."""
    rows = fold_both_ways([gone(1, 500), classic(2, 1_000, 0, {}), classic(3, 1_500, 1, {"a": ORDERS_0})])
    assert states(rows) == [
        (1, "Dead", 500, 1_000, NEVER_SEEN),
        (2, "Empty", 1_000, 1_500, None),
        (2, "Stable", 1_500, None, None),
    ]
    assert lines(rows, "generations", "incarnation", "generation", "skipped", "member_count") == [
        (2, 0, 0, 0),
        (2, 1, 0, 1),
    ]
    assert lines(rows, "memberships", "incarnation", "member_id", "began", "ended") == [(2, "a", "joined", None)]
    assert lines(rows, "rebalances", "incarnation", "cause", "from_generation", "partitions_added") == [
        (2, "group_started", 0, 1)
    ]


def test_fold_only_tombstones_gives_only_dead_states() -> None:
    """What compaction leaves of a group that was deleted twice: the ends of two incarnations."""
    rows = fold_both_ways([gone(1, 500), commit_tombstone(2, 600), gone(3, 600)])
    assert states(rows) == [
        (1, "Dead", 500, 600, NEVER_SEEN),
        (2, "Dead", 600, None, "deleted, or all its offsets expired"),
    ]
    assert {table for table, listed in rows.items() if listed} == {"group_states"}


@pytest.mark.parametrize("with_tombstone", [True, False])
def test_fold_lower_generation_starts_a_new_incarnation(with_tombstone: bool) -> None:
    """Whether or not compaction has left the tombstone between them."""
    tombstone = [gone(2, 2_000)] if with_tombstone else []
    rows = fold_both_ways(
        [classic(1, 1_000, 9, {"a": {"orders": [0, 1]}}), *tombstone, classic(5, 3_000, 1, {"a": ORDERS_0})]
    )
    ended, why = (
        (2_000, RemovalEvidence.HAD_MEMBERS.value)
        if with_tombstone
        else (3_000, "recreated: its removal is not in the log")
    )
    columns = ("incarnation", "generation", "started_at", "ended_at", "skipped")
    assert lines(rows, "generations", *columns) == [(1, 9, 1_000, ended, None), (2, 1, 3_000, None, 0)]
    assert lines(rows, "memberships", "incarnation", "began", "left_at", "ended", "ended_because") == [
        (1, "there", ended, "unknown", why),
        (2, "joined", None, None, None),
    ]
    assert owned(rows) == [
        (0, "a", 1_000, ended, "group_ended"),
        (1, "a", 1_000, ended, "group_ended"),
        (0, "a", 3_000, None, None),
    ]
    assert lines(rows, "rebalances", "cause", "certainty", "partitions_added", "partitions_moved", "handed_over") == [
        ("unknown", "ambiguous", 2, 0, []),
        ("group_started", "likely", 1, 0, []),
    ]


def settles(offset: int, at: int, name: str, epoch: int, numbers: list[int]) -> Record:
    """Return the record with which a KIP-848 member has its whole target assignment."""
    has = [{"topicId": "T", "partitions": numbers}]
    body = {"memberEpoch": epoch, "state": 0, "assignedPartitions": has, "partitionsPendingRevocation": []}
    return consumer(offset, at, "CurrentMemberAssignment", name, body)


def shall_have(offset: int, at: int, name: str, numbers: list[int]) -> Record:
    topics = [{"topicId": "T", "partitions": numbers}]
    return consumer(offset, at, "TargetAssignmentMember", name, {"topicPartitions": topics})


def test_fold_compacted_kip_848_group_is_stable_with_unknown_cause() -> None:
    """Compaction leaves the last record of each key, in any order; the group has rows once its epoch is known."""
    rows = fold_both_ways(
        [
            consumer(1, 100, "CurrentMemberAssignment", "old", None),
            consumer(2, 100, "TargetAssignmentMember", "old", None),
            consumer(3, 100, "MemberMetadata", "old", None),
            shall_have(7, 500, "a", [0]),
            settles(9, 600, "a", 5, [0]),
            joins(12, 700, "a"),
            joins(14, 750, "b"),
            settles(16, 800, "b", 5, []),
            shall_have(18, 850, "b", []),
            consumer(20, 900, "TargetAssignmentMetadata", None, {"assignmentEpoch": 5}),
            consumer(22, 950, "Metadata", None, {"epoch": 5, "metadataHash": 1}),
        ]
    )
    assert states(rows) == [(1, "Stable", 950, None, "history begins here: earlier states are not known")]
    assert lines(rows, "memberships", "member_id", "began", "ended") == [("a", "there", None), ("b", "there", None)]
    assert [(row["topic"], row["partition"], row["member_id"]) for row in rows["partition_ownership"]] == [
        ("T", 0, "a")
    ]
    [generation] = rows["generations"]
    assert (generation["generation"], generation["skipped"], generation["stable_at"]) == (5, None, None)
    assert [(one["member_id"], one["partitions"]) for one in generation["members"]] == [
        ("a", [{"topic": "T", "partitions": [0]}]),
        ("b", []),
    ]
    assert lines(rows, "rebalances", "cause", "certainty") == [("unknown", "ambiguous")]


# --- blobs ---------------------------------------------------------------------------------------------------


def test_fold_unreadable_assignment_is_unknown_not_empty() -> None:
    """The generation has a row; owners are unknown until an assignment can be decoded again."""
    broken = {"assignment": {"layout": "ConsumerProtocolAssignment", "version": None, "error": "truncated"}}
    both = {"a": {"orders": [0, 1]}, "b": {"orders": [2]}}
    rows = fold_both_ways(
        [
            classic(1, 1_000, 1, both),
            classic(2, 2_000, 2, {"a": {"orders": [0, 1]}, "b": broken}),
            classic(3, 3_000, 3, both),
        ]
    )
    columns = ("generation", "member_count", "partition_count", "skew", "is_assignors_own")
    assert lines(rows, "generations", *columns) == [
        (1, 2, 3, 1, True),
        (2, 2, None, None, None),
        (3, 2, 3, 1, True),
    ]
    unknown = rows["generations"][1]
    assert [one["partitions"] for one in unknown["members"]] == [[{"topic": "orders", "partitions": [0, 1]}], None]
    assert unknown["assignment_note"] == "not every assignment can be read"
    assert owned(rows) == [
        (0, "a", 1_000, None, None),
        (1, "a", 1_000, None, None),
        (2, "b", 1_000, 2_000, "unknown"),
        (2, "b", 3_000, None, None),
    ]
    assert lines(rows, "memberships", "member_id", "ended") == [("a", None), ("b", None)]
    columns = ("cause", "cause_note", "partitions_added", "partitions_removed", "partitions_moved", "partitions_kept")
    first_members = f"the first members, {Evidence.FIRST_MEMBERS_READ.value.otherwise}"
    assert lines(rows, "rebalances", *columns) == [
        ("group_started", first_members, 3, 0, 0, 0),
        ("unknown", "assignments could not be read", 0, 0, 0, 2),
        ("unknown", "assignments could not be read", 0, 0, 0, 2),
    ]


def test_fold_unreadable_first_assignment_owns_nothing() -> None:
    rows = fold_both_ways([classic(1, 1_000, 1, {"a": {"assignment": {}}})])
    assert owned(rows) == []
    columns = ("member_count", "partition_count", "skew", "is_assignors_own")
    assert lines(rows, "generations", *columns) == [(1, None, None, None)]


def test_fold_unreadable_subscription_is_unknown_not_empty() -> None:
    """It is neither a changed subscription nor an assignment of unsubscribed topics."""
    whole = {"a": ORDERS_0, "b": {"orders": [1]}}
    broken = {**whole, "a": member(ORDERS_0, subscription={"error": "trailing_bytes"})}
    rows = fold_both_ways([classic(1, 1_000, 1, whole), classic(2, 2_000, 2, broken), classic(3, 3_000, 3, whole)])
    assert lines(rows, "generations", "is_assignors_own", "assignment_note", "partition_count") == [
        (True, "range gives the same", 2),
        (None, "not every subscription can be read", 2),
        (True, "range gives the same", 2),
    ]
    assert [[one["topics"] for one in row["members"]] for row in rows["generations"]] == [
        [["orders"], ["orders"]],
        [None, ["orders"]],
        [["orders"], ["orders"]],
    ]
    unread = ("unknown", "ambiguous", "subscriptions could not be read", [])
    columns = ("cause", "certainty", "cause_note", "subscriptions_changed")
    assert lines(rows, "rebalances", *columns)[1:] == [unread, unread]
    assert owned(rows) == [(0, "a", 1_000, None, None), (1, "b", 1_000, None, None)]


def test_fold_subscription_of_kafka_go_has_topics() -> None:
    """Written without the owned partitions, so that it ends too early: causes and assignors need its topics alone."""
    both = member(ORDERS_0, subscription={"topics": ["orders", "refunds"], "error": "truncated_tail"})
    one = member(ORDERS_0, subscription={"topics": ["orders"], "error": "truncated_tail"})
    rows = fold_both_ways([classic(1, 1_000, 1, {"a": both}), classic(2, 2_000, 2, {"a": one})])
    assert [row["members"][0]["topics"] for row in rows["generations"]] == [["orders", "refunds"], ["orders"]]
    assert lines(rows, "generations", "is_assignors_own") == [(True,), (True,)]
    columns = ("cause", "certainty", "subscriptions_changed")
    assert lines(rows, "rebalances", *columns)[1:] == [("subscription_changed", "likely", ["a"])]


def test_fold_members_with_empty_assignments_own_nothing() -> None:
    """An assignment without partitions, or without any bytes: members that own nothing."""
    layout = "ConsumerProtocolAssignment"
    rows = fold_both_ways(
        [
            classic(
                1,
                1_000,
                1,
                {
                    "a": ORDERS_0,
                    "b": {},
                    "c": {"assignment": {"layout": layout}},
                    "d": {"assignment": {"layout": layout, "version": 0, "partitions": []}},
                },
            )
        ]
    )
    [generation] = rows["generations"]
    assert [(one["member_id"], one["partitions"]) for one in generation["members"]] == [
        ("a", [{"topic": "orders", "partitions": [0]}]),
        ("b", []),
        ("c", []),
        ("d", []),
    ]
    assert (generation["member_count"], generation["partition_count"], generation["skew"]) == (4, 1, 1)
    assert generation["is_assignors_own"] is True
    assert owned(rows) == [(0, "a", 1_000, None, None)]
    assert len(rows["memberships"]) == 4


# --- many ----------------------------------------------------------------------------------------------------


def names(count: int) -> list[str]:
    return [f"m{number:05}" for number in range(count)]


def test_fold_ten_thousand_members_lists_every_handed_over_partition() -> None:
    """Each member receives its neighbour's partition."""
    before = {name: {"orders": [number]} for number, name in enumerate(names(MANY))}
    after = {name: {"orders": [(number + 1) % MANY]} for number, name in enumerate(names(MANY))}
    rows = fold([classic(1, 1_000, 1, before), classic(2, 3_000, 2, after, state_at=2_000)])
    assert lines(rows, "memberships", "member_id", "joined_at", "ended") == [
        (name, 1_000, None) for name in names(MANY)
    ]
    expected = [(number, f"m{number:05}", 1_000, 2_000, "given_up") for number in range(MANY)]
    expected += [(number, f"m{(number - 1) % MANY:05}", 3_000, None, None) for number in range(MANY)]
    assert owned(rows) == expected
    rebalance = rows["rebalances"][-1]
    assert rebalance["handed_over"] == [
        {
            "topic": "orders",
            "partition": (number + 1) % MANY,
            "from_member": f"m{(number + 1) % MANY:05}",
            "to_member": name,
            "given_up_at": 2_000,
            "taken_at": 3_000,
        }
        for number, name in enumerate(names(MANY))
    ]
    columns = (
        "partitions_added",
        "partitions_removed",
        "partitions_moved",
        "partitions_kept",
        "unowned_partition_ms",
    )
    assert tuple(rebalance[column] for column in columns) == (0, 0, MANY, 0, MANY * 1_000)
    columns = ("generation", "member_count", "partition_count", "skew")
    assert lines(rows, "generations", *columns) == [(1, MANY, MANY, 0), (2, MANY, MANY, 0)]


@pytest.mark.full
def test_fold_kip_848_group_of_ten_thousand_members_ends_stable() -> None:
    """They join at once and reconcile one by one."""
    records = [joins(offset, 1_000, name) for offset, name in enumerate(names(MANY))]
    records.append(consumer(len(records), 1_000, "Metadata", None, {"epoch": 2, "metadataHash": 1}))
    records += [shall_have(len(records) + index, 1_000, name, [index]) for index, name in enumerate(names(MANY))]
    records.append(consumer(len(records), 1_000, "TargetAssignmentMetadata", None, {"assignmentEpoch": 2}))
    first = len(records)
    records += [settles(first + index, 2_000 + index, name, 2, [index]) for index, name in enumerate(names(MANY))]
    rows = fold(record._replace(read_at_once=True) for record in records)
    first = "history begins here: earlier states are not known"
    assert states(rows) == [(1, "Stable", 1_999 + MANY, None, first)]
    assert owned(rows) == [(number, name, 2_000 + number, None, None) for number, name in enumerate(names(MANY))]
    [rebalance] = rows["rebalances"]
    assert (rebalance["cause"], rebalance["partitions_added"]) == ("unknown", MANY)
    assert (rebalance["duration_of"], rebalance["duration_ms"]) == ("whole", 999 + MANY)


# --- the largest record --------------------------------------------------------------------------------------


def members_of_largest() -> dict[str, list[str]]:
    """450 members with 50 topics each, of two partitions and its own."""
    return {f"member-{one:03}": [f"topic-{one:03}-{number:02}-x" for number in range(50)] for one in range(450)}


def wire_member(name: str, topics: list[str]) -> Row:
    subscribed = {"topics": topics, "userData": None, "ownedPartitions": [], "generationId": -1, "rackId": None}
    assigned = {
        "assignedPartitions": [{"topic": topic, "partitions": [0, 1]} for topic in topics],
        "userData": None,
    }
    return {
        "memberId": name,
        "groupInstanceId": None,
        "clientId": "client",
        "clientHost": "/10.0.0.1",
        "rebalanceTimeout": 60_000,
        "sessionTimeout": 10_000,
        "subscription": encode_blob(Blob("ConsumerProtocolSubscription", 3, subscribed)),
        "assignment": encode_blob(Blob("ConsumerProtocolAssignment", 3, assigned)),
    }


@pytest.mark.full
def test_fold_largest_record_gives_every_member_and_partition() -> None:
    """A record of one megabyte, from its bytes to the rows."""
    whole = members_of_largest()
    fields = {"protocolType": "consumer", "generation": 1, "protocol": "range", "leader": "member-000"}
    fields |= {"currentStateTimestamp": 900, "members": [wire_member(*one) for one in whole.items()]}
    key = Key(2, {"group": "billing"})
    value = encode_value(key, Value(3, fields))
    assert value is not None
    assert 0.95 * LARGEST_BYTES < len(value) < LARGEST_BYTES
    rows = fold_both_ways([as_record(1, 1_000, encode_key(key), value)])
    assert lines(rows, "partition_ownership", "topic", "partition", "member_id", "owned_from", "ended") == [
        (topic, number, name, 1_000, None) for name, topics in whole.items() for topic in topics for number in (0, 1)
    ]
    [generation] = rows["generations"]
    assert [(one["member_id"], one["topics"], one["partitions"]) for one in generation["members"]] == [
        (name, topics, [{"topic": topic, "partitions": [0, 1]} for topic in topics]) for name, topics in whole.items()
    ]
    columns = ("member_count", "partition_count", "skew", "is_assignors_own")
    assert tuple(generation[column] for column in columns) == (450, 45_000, 0, True)
    columns = ("state", "started_at", "ended_at")
    assert lines(rows, "group_states", *columns) == [("Stable", 1_000, None)]
