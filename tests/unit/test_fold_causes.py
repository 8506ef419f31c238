"""The causes, endings and beginnings that a fold finds: never more certain than the records allow."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from grouptrail.history.evidence import Evidence
from grouptrail.history.handovers import last_commits, sort_events
from grouptrail.history.operations import Record
from support.fold_records import (
    DAY,
    HOUR,
    at_once,
    classic,
    commit_tombstone,
    consumer,
    current,
    epoch,
    first_epoch,
    joins,
    leaves,
    member,
    regex,
    streams,
    subscription,
    target,
    target_epoch,
)
from support.group_records import Row, fold, gone


def test_followed_within_minute_of_rebalances_hours_apart_is_zero() -> None:
    """No rebalance follows within a minute if the next one is hours later."""
    rows = fold(
        [
            classic(1, 1_000, 1, {"a": {"orders": [0]}}),
            classic(2, 5 * HOUR, 2, {"a": {"orders": [0]}, "b": {}}),
            classic(3, 9 * HOUR, 3, {"a": {"orders": [0]}, "b": {}, "c": {}}),
        ]
    )
    assert [row["followed_within_minute"] for row in rows["rebalances"]] == [0, 0, 0]


@pytest.mark.parametrize("topics", [("orders",), ("orders", "other")])
def test_cause_of_a_follow_up_under_protocol_stream_is_not_new_partitions(topics: tuple[str, ...]) -> None:
    """Protocol `stream` is cooperative (AssignorConfiguration: COOPERATIVE; StreamsPartitionAssignor withholds a task
    "until it is safely revoked in followup rebalance")."""
    sub = {"subscription": subscription(*topics)}
    moved = {topics[-1]: [1] if len(topics) == 1 else [0]}
    kept = {"orders": [0]}
    both = {topic: sorted({*kept.get(topic, ()), *moved.get(topic, ())}) for topic in topics}
    rows = fold(
        [
            classic(1, 1_000, 1, {"a": member(both, **sub)}, protocol="stream"),
            classic(2, 60_000, 2, {"a": member(kept, **sub), "b": member({}, **sub)}, protocol="stream"),
            classic(3, 60_400, 3, {"a": member(kept, **sub), "b": member(moved, **sub)}, protocol="stream"),
        ]
    )
    last = rows["rebalances"][-1]
    assert (last["partitions_moved"], last["partitions_added"]) == (1, 0)
    assert last["cause"] not in ("partitions_added", "topic_created"), last["cause_note"]


def test_ending_after_the_rebalance_timeout_within_the_session_timeout_is_left_or_expired() -> None:
    """max.poll.interval.ms 10 s, session 45 s: a member that does not rejoin, or does not sync, is removed after 10 s
    (GMM completeClassicGroupJoin, expirePendingSync)."""
    more = {"session_timeout_ms": 45_000, "rebalance_timeout_ms": 10_000}
    rows = fold(
        [
            classic(1, 1_000, 1, {"a": member({"orders": [0]}, **more), "b": member({"orders": [1]}, **more)}),
            classic(2, 16_005, 2, {"a": member({"orders": [0, 1]}, **more)}, state_at=16_000),
        ]
    )
    assert [row["ended"] for row in rows["memberships"] if row["member_id"] == "b"] == ["left_or_expired"]
    assert rows["rebalances"][-1]["certainty"] != "recorded"
    assert rows["rebalances"][-1]["cause_note"] == (
        "gone 15000 ms after the last join phase: its time to rejoin (10000 ms) may have expired, or an "
        "administrator removed it"
    )


def test_ending_after_a_static_restart_counts_from_the_join_phase() -> None:
    """A static replacement's currentStateTimestamp is the entry into Stable, not the end of the join phase: d, gone
    silent right after its join at 0, was expired at 30 s, not 20 s after the last join phase."""
    more = {"session_timeout_ms": 30_000}
    static = {"group_instance_id": "s", **more}
    d = member({"orders": [1]}, **more)
    rows = fold(
        [
            classic(1, 20_000, 3, {"s-1": member({"orders": [0]}, **static), "d": d}, state_at=0),
            classic(2, 25_000, 3, {"s-2": member({"orders": [0]}, **static), "d": d}, state_at=20_000),
            classic(3, 40_010, 4, {"s-2": member({"orders": [0, 1]}, **static)}, state_at=40_000),
        ]
    )
    assert [row["ended"] for row in rows["memberships"] if row["member_id"] == "d"] == ["left_or_expired"]


def test_cause_of_a_join_and_a_rejoin_is_not_recorded() -> None:
    """One client returned with a new id while another joined: `rejoined` alone would have been `likely`."""
    same = {"client_id": "app", "client_host": "/10.0.0.7"}
    rows = fold(
        [
            classic(1, 1_000, 1, {"app-1": member({"orders": [0]}, **same)}),
            classic(2, 5_000, 2, {"app-2": member({"orders": [0]}, **same), "new": {"orders": [1]}}),
        ]
    )
    last = rows["rebalances"][-1]
    assert last["cause"] != "members_joined_and_left" or last["certainty"] != "recorded"


def test_cause_of_a_deleted_topics_return_is_no_recorded_follow_up() -> None:
    """A deleted topic's partitions were given up, and are assigned to their old owner again hours later."""
    more = {"subscription": subscription("orders", "other")}

    def value(offset: int, at: int, generation: int, topics: dict[str, list[int]]) -> Record:
        return classic(offset, at, generation, {"a": member(topics, **more)}, protocol="cooperative-sticky")

    whole, rest = {"orders": [0], "other": [0]}, {"orders": [0]}
    rows = fold([value(1, 1_000, 1, whole), value(2, HOUR, 2, rest), value(3, 4 * HOUR, 3, whole)])
    assert [row["cause"] for row in rows["rebalances"]][1] == "topic_deleted"
    last = rows["rebalances"][-1]
    assert (last["cause"], last["certainty"]) != ("cooperative_follow_up", "recorded")


def test_cause_note_where_partitions_are_gone_says_so() -> None:
    """A topic recreated with fewer partitions: two of four are no longer assigned."""
    rows = fold(
        [classic(1, 1_000, 1, {"a": {"orders": [0, 1, 2, 3]}}), classic(2, HOUR, 2, {"a": {"orders": [0, 1]}})]
    )
    last = rows["rebalances"][-1]
    assert last["partitions_removed"] == 2
    assert "nothing visible changed" not in (last["cause_note"] or "")


def test_cause_of_a_lower_generation_that_is_not_the_first_is_not_group_started() -> None:
    """Compaction removed a tombstone and generations 0 to 6 before they were read: 50, then 7."""
    rows = fold([classic(1, 1_000, 50, {"a": {"orders": [0]}}), classic(500, 9 * DAY, 7, {"b": {"orders": [0]}})])
    last = rows["rebalances"][-1]
    assert (last["cause"], last["certainty"]) != ("group_started", "recorded")
    assert last["skipped"] is None
    assert [row["began"] for row in rows["memberships"] if row["member_id"] == "b"] == ["there"]


def test_cause_of_members_after_a_generation_without_any_is_recorded() -> None:
    """A new coordinator writes generation 0 of a classic group."""
    rows = fold([classic(1, 1_000, 0, {}), classic(2, 4_000, 1, {"a": {"orders": [0]}})])
    assert [(row["cause"], row["certainty"]) for row in rows["rebalances"]] == [("group_started", "recorded")]


@pytest.mark.parametrize(
    "records",
    [
        [joins(1, 1_000, "b"), epoch(2, 1_000, 2), target(3, 1_000, "b", [0]), target_epoch(4, 1_000, 2)],
        [classic(1, 1_000, 1, {"a": {"orders": [0]}})],
        [classic(1, 1_000, 4, {}), classic(2, 9_000, 6, {"a": {"orders": [0]}})],
    ],
    ids=["an epoch that an upgrade of generation 1 has", "a generation that a downgrade has", "one is missing"],
)
def test_cause_of_members_after_records_that_compaction_may_have_taken_is_likely(records: list[Record]) -> None:
    if records[0].type != "GroupMetadata":
        records = [*records, current(5, 1_000, "b", 2, [0], previous=0)]
    last = fold(records)["rebalances"][-1]
    assert (last["cause"], last["certainty"]) == ("group_started", "likely")
    assert "compaction" in last["cause_note"]


def test_cause_of_a_pattern_resolved_after_an_upgrade_is_no_recorded_join() -> None:
    """The subscriber upgraded a classic group, in whose epoch it joined; compaction took the tombstone."""
    upgrade = [
        *(joins(6, 1_000, "c"), epoch(7, 1_000, 2), target(8, 1_000, "c", [0]), target_epoch(9, 1_000, 2)),
        *(current(10, 1_000, "c", 2, [0]), joins(11, 1_000, "b", subscribedTopicRegex="o.*")),
        current(12, 1_000, "b", 2, [], previous=0),
    ]
    last = fold([*upgrade, regex(14, 1_100, "o.*", "orders"), epoch(15, 1_100, 3)])["rebalances"][-1]
    assert (last["to_generation"], last["certainty"]) == (3, "likely")


def test_cause_of_a_pattern_resolved_after_an_upgrade_without_the_replaced_member_is_likely() -> None:
    """The static member had left the classic group, which was not written yet: it joins with the pattern."""
    static = {name: member({"orders": [0]}, group_instance_id=f"s-{name}") for name in ("a", "b")}
    upgrade = [
        *(classic(0, 1_000, 5, static), gone(1, 9_000)),
        joins(2, 9_000, "a", instanceId="s-a", classicMemberMetadata={"supportedProtocols": [{"name": "range"}]}),
        *(epoch(3, 9_000, 5), target(4, 9_000, "a", [0])),
        *(target_epoch(5, 9_000, 5), current(6, 9_000, "a", 5, [0])),
        joins(7, 9_000, "c", instanceId="s-b", subscribedTopicNames=[], subscribedTopicRegex="o.*"),
        *(current(8, 9_000, "c", 5, [], previous=0), regex(9, 9_100, "o.*", "orders"), epoch(10, 9_100, 6)),
    ]
    last = fold(at_once(upgrade))["rebalances"][-1]
    assert (last["to_generation"], last["cause"], last["certainty"]) == (6, "subscription_changed", "likely")
    assert "or a member joined with it" in last["cause_note"]


def test_history_that_begins_after_a_downgrade_claims_no_beginning() -> None:
    """KIP-848 to classic, then compaction: tombstones and the newest GroupMetadata are left.

    Offsets, members and generations continued (GMM convertToClassicGroup).
    """
    rows = fold(
        [
            *leaves(100, 1_000, "a"),
            consumer(103, 1_000, "TargetAssignmentMetadata", None, None),
            consumer(104, 1_000, "Metadata", None, None),
            classic(200, 50_000, 9, {"a": {"orders": [0]}}),
        ]
    )
    [rebalance], [membership] = rows["rebalances"], rows["memberships"]
    assert (rebalance["cause"], rebalance["certainty"]) == ("unknown", "ambiguous")
    assert (rebalance["skipped"], membership["began"]) == (None, "there")


def test_history_that_begins_after_an_upgrade_claims_no_beginning() -> None:
    """Classic to KIP-848, then compaction: the tombstone of the classic group is left. Epoch 12 is no beginning."""
    rows = fold(
        [
            gone(100, 1_000),
            joins(150, 3_000, "n"),
            current(160, 4_000, "n", 12, [0]),
            target(170, 4_500, "n", [0]),
            target_epoch(180, 5_000, 12),
            epoch(190, 5_000, 12),
        ]
    )
    [generation], [membership], [rebalance] = rows["generations"], rows["memberships"], rows["rebalances"]
    assert (generation["skipped"], membership["began"]) == (None, "there")
    assert (rebalance["cause"], rebalance["certainty"]) == ("unknown", "ambiguous")


def test_cause_of_more_partitions_on_brokers_before_4_1_is_partitions_added() -> None:
    """These brokers write topic metadata into ConsumerGroupPartitionMetadata, in the epoch's batch, and no hash."""

    def partitions(offset: int, at: int, count: int) -> Record:
        topic = {"topicId": "T", "topicName": "orders", "numPartitions": count, "partitionMetadata": []}
        return consumer(offset, at, "PartitionMetadata", None, {"topics": [topic]})

    def bare_epoch(offset: int, at: int, number: int) -> Record:
        return consumer(offset, at, "Metadata", None, {"epoch": number})

    records = [joins(0, 1_000, "a"), partitions(1, 1_000, 2), bare_epoch(2, 1_000, 1), target(3, 1_000, "a", [0, 1])]
    records += [target_epoch(4, 1_000, 1), current(5, 1_000, "a", 1, [0, 1])]
    records += [partitions(10, 9_000, 3), bare_epoch(11, 9_000, 2), target(12, 9_000, "a", [0, 1, 2])]
    records += [target_epoch(13, 9_000, 2), current(14, 9_000, "a", 2, [0, 1, 2])]
    assert fold(records, names={"T": "orders"})["rebalances"][-1]["cause"] == "partitions_added"


def test_cause_note_of_a_remade_topic_does_not_say_the_same_partitions() -> None:
    """The topic has another id under the same name."""
    records = [
        joins(0, 1_000, "a"),
        epoch(1, 1_000, 2),
        target(2, 1_000, "a", [0, 1], "OLD"),
        target_epoch(3, 1_000, 2),
    ]
    records += [current(4, 1_000, "a", 2, [0, 1], topic_id="OLD")]
    records += [
        epoch(10, 9_000, 3, metadataHash=2),
        target(11, 9_000, "a", [0, 1], "NEW"),
        target_epoch(12, 9_000, 3),
    ]
    records += [current(13, 9_000, "a", 2, [], state=1, pending=([0, 1], "OLD"))]
    records += [current(20, 9_500, "a", 3, [0, 1], topic_id="NEW")]
    last = fold(records, names={"OLD": "orders", "NEW": "orders"})["rebalances"][-1]
    assert "the same partitions are assigned" not in (last["cause_note"] or "")


def streams_log(**of_epoch: Any) -> list[Record]:
    """Return the log of a streams group (KIP-1071) with one member, whose changed endpoint then bumps the epoch."""

    def joined(offset: int, at: int, endpoint: Row | None) -> Record:
        body = {
            "clientId": "c",
            "clientHost": "/1",
            "processId": "p",
            "topologyEpoch": 0,
            "rebalanceTimeoutMs": 1_000,
        }
        return streams(offset, at, "MemberMetadata", "m", body | {"userEndpoint": endpoint})

    def at_epoch(offset: int, at: int, number: int) -> Record:
        return streams(offset, at, "Metadata", None, {"epoch": number, "metadataHash": 5, **of_epoch})

    tasks = [{"subtopologyId": "0", "partitions": [0]}]

    def has(offset: int, at: int, number: int) -> Record:
        body = {"memberEpoch": number, "state": 1, "activeTasks": tasks, "activeTasksPendingRevocation": []}
        return streams(offset, at, "CurrentMemberAssignment", "m", body)

    return [
        joined(0, 1_000, None),
        streams(1, 1_000, "Topology", None, {"epoch": 0, "subtopologies": []}),
        at_epoch(2, 1_000, 2),
        streams(3, 1_000, "TargetAssignmentMember", "m", {"activeTasks": tasks}),
        streams(4, 1_000, "TargetAssignmentMetadata", None, {"assignmentEpoch": 2}),
        has(5, 1_000, 2),
        joined(10, 9_000, {"host": "h", "port": 1}),
        at_epoch(11, 9_000, 3),
        streams(12, 9_000, "TargetAssignmentMetadata", None, {"assignmentEpoch": 3}),
        has(13, 9_000, 3),
    ]


def test_cause_of_a_streams_members_own_change_is_not_topology_or_settings() -> None:
    last = fold(streams_log(validatedTopologyEpoch=0))["rebalances"][-1]
    assert last["cause"] != "topology_or_settings_changed"


def test_cause_of_a_streams_members_change_in_the_first_epoch_on_4_2_is_its_own() -> None:
    """Which topology is valid and the settings are written from 4.2 on: they are new in the log, not in the group."""
    records = streams_log()
    at = next(index for index, one in enumerate(records) if one.offset == 11)
    new = {"validatedTopologyEpoch": 0, "lastAssignmentConfigs": [{"key": "num.standby.replicas", "value": "0"}]}
    records[at] = records[at]._replace(body={**(records[at].body or {}), **new})
    last = fold(records)["rebalances"][-1]
    assert (last["cause"], last["certainty"]) == ("member_metadata_changed", "recorded")


def test_state_of_a_streams_group_on_4_1_with_tasks_is_not_not_ready() -> None:
    """4.1 writes no validatedTopologyEpoch."""
    rows = fold(streams_log())
    assert rows["group_states"][-1]["state"] != "NotReady"


def test_membership_of_the_first_member_with_a_pattern_begins_as_joined() -> None:
    """On 4.3 its member record precedes any epoch (GMM consumerGroupHeartbeat); the log is complete."""
    records = [
        joins(0, 1_000, "a", subscribedTopicNames=[], subscribedTopicRegex="^o.*"),
        current(1, 1_000, "a", 1, []),
    ]
    resolved = {"topics": ["orders"], "version": 1, "timestamp": 1_500}
    records += [consumer(2, 1_500, "RegularExpression", "^o.*", resolved), epoch(3, 1_500, 2)]
    assert fold(records)["memberships"][0]["began"] == "joined"


def test_times_after_a_clock_stepped_back_are_in_order() -> None:
    """The clock of the new coordinator is 10 s behind that of the old one."""
    rows = fold(
        [
            classic(1, 100_000, 1, {"a": {"orders": [0, 1]}}),
            classic(2, 90_000, 2, {"a": {"orders": [0]}, "b": {"orders": [1]}}, state_at=89_000),
        ]
    )
    last = rows["rebalances"][-1]
    assert (last["seconds_since_previous"] or 0) >= 0
    assert all(row["not_before"] is None or row["not_before"] <= row["started_at"] for row in rows["group_states"])
    assert all(one["given_up_at"] <= one["taken_at"] for one in last["handed_over"])


def test_dead_note_of_a_group_removed_with_its_offsets_names_a_deleted_topic() -> None:
    """3.x handleDeletedPartitions -> cleanupGroupMetadata: an Empty group whose last offsets go with a deleted topic,
    or by OffsetDelete, is tombstoned in the same batch. So are v1 commits with an expiry of their own."""
    records = [classic(1, 1_000, 1, {"a": {"orders": [0]}}), classic(2, 2_000, 2, {})]
    records += [commit_tombstone(3, HOUR), gone(4, HOUR)]
    dead = next(row for row in fold(records)["group_states"] if row["state"] == "Dead")
    assert "topic" in dead["note"] or not dead["note"].startswith("deleted:"), dead["note"]


def test_protocol_of_a_consumer_group_is_the_one_most_members_ask_for() -> None:
    """ConsumerGroup.preferredServerAssignor: the one most members prefer; those without a preference do not count."""
    records = [joins(0, 1_000, "a", serverAssignor="range"), epoch(1, 1_000, 2), current(2, 1_000, "a", 2, [0])]
    records += [joins(10, 5_000, "b"), epoch(11, 5_000, 3)]
    assert fold(records)["generations"][-1]["protocol"] == "range"


def test_protocol_of_an_empty_consumer_group_is_null() -> None:
    """No member requests an assignor."""
    records = [joins(0, 1_000, "a", serverAssignor="range"), epoch(1, 1_000, 2), *leaves(10, 5_000, "a")]
    last = fold([*records, epoch(13, 5_000, 3)])["generations"][-1]
    assert (last["member_count"], last["protocol"]) == (0, None)


def test_handover_of_a_cooperative_member_finds_the_commit_of_its_revocation() -> None:
    """A cooperative member learns of the revocation from the SyncGroup answer, after the record, and commits then
    (ConsumerCoordinator.onJoinComplete). If `given_up_at` were the record's time, the handover would show the earlier
    commit, 500 instead of 900, and 400 records read twice."""
    begin, end = 60_000, 60_400
    cooperative = {"protocol": "cooperative-sticky"}
    records = [
        classic(1, 1_000, 1, {"a": {"orders": [0, 1]}}, **cooperative),
        classic(2, begin, 2, {"a": {"orders": [0]}, "b": {}}, state_at=begin - 5, **cooperative),
        classic(3, end, 3, {"a": {"orders": [0]}, "b": {"orders": [1]}}, state_at=end - 5, **cooperative),
    ]
    [handed] = fold(records)["rebalances"][-1]["handed_over"]
    us = pa.timestamp("us", tz="UTC")
    commits = [(begin - 9_000, 0), (begin - 4_000, 500), (begin + 10, 900)]
    events = [
        {"record_offset": 10 + index, "at": at * 1_000, "committed_offset": offset, "position": None}
        for index, (at, offset) in enumerate(commits)
    ]
    events += [{"record_offset": 3, "at": handed["given_up_at"] * 1_000, "committed_offset": None, "position": 0}]
    place = {"record_partition": 0, "group_id": "billing", "topic": "orders", "partition": 1}
    schema = pa.schema({"record_partition": pa.int32(), "group_id": pa.string(), "topic": pa.string()})
    schema = schema.append(pa.field("partition", pa.int32())).append(pa.field("record_offset", pa.int64()))
    schema = schema.append(pa.field("at", us)).append(pa.field("committed_offset", pa.int64()))
    schema = schema.append(pa.field("position", pa.int32()))
    events = pa.Table.from_pylist([place | one for one in events], schema)
    [row] = pa.Table.from_batches(last_commits(timedelta(minutes=5))(sort_events(events).to_batches())).to_pylist()
    assert row["committed_offset"] == 900, row


# --- found by replaying recorded runs -------------------------------------------------------------------------------


def test_members_joined_of_a_pattern_subscriber_are_in_the_epoch_that_follows() -> None:
    """Its metadata record is written one operation before the epoch, because the pattern was not resolved yet (GMM
    asyncResolveRegex)."""
    records = [joins(0, 1_000, "a"), epoch(1, 1_000, 2), target(2, 1_000, "a", [0]), target_epoch(3, 1_000, 2)]
    records += [current(4, 1_000, "a", 2, [0])]
    records += [joins(10, 5_000, "b", subscribedTopicNames=[], subscribedTopicRegex="^o.*")]
    records += [current(11, 5_000, "b", 2, [], previous=0), regex(20, 5_100, "^o.*", "orders"), epoch(21, 5_100, 3)]
    rows = fold(records)
    last = rows["rebalances"][-1]
    assert (last["cause"], last["members_joined"]) == ("member_joined", ["b"])
    assert [row["began"] for row in rows["memberships"]] == ["joined", "joined"]


@pytest.mark.parametrize(("gone_at", "is_late"), [(12_500, False), (13_000, True), (90_000, False)])
def test_ending_of_a_member_that_keeps_partitions_counts_from_the_last_revocation(
    gone_at: int, is_late: bool
) -> None:
    """Each revocation restarts the rebalance timeout (GMM.maybeReconcile), and so does a new coordinator, without a
    record. A member that is still present long after it may leave voluntarily, and a member may always leave just
    at that time."""
    records = first_epoch(0, 1, 2)
    records += [current(10, 11_500, "a", 2, [0, 1], state=1, previous=2, pending=([2], "T"))]
    records += [current(20, 12_000, "a", 2, [0], state=1, previous=2, pending=([1], "T"))]
    [row] = fold([*records, *leaves(30, gone_at, "a"), epoch(33, gone_at, 4)])["memberships"]
    assert row["ended"] == "left_or_expired"
    assert row["ended_because"].startswith("had not given up partitions") == is_late


def test_first_epoch_without_an_assignment_is_no_beginning() -> None:
    """A group's first member gets its assignment in the same operation, so earlier records were compacted away."""
    records = [joins(0, 1_000, "a"), epoch(1, 1_000, 2), target(2, 1_000, "a", [0]), target_epoch(3, 1_000, 2)]
    [row] = fold([*records, current(8, 4_000, "a", 2, [0], previous=1)])["rebalances"]
    assert row["cause"] == "unknown"


def test_first_epoch_with_members_of_the_classic_protocol_is_no_beginning() -> None:
    """The group was upgraded, and its earlier records were compacted away."""
    said = {"classicMemberMetadata": {"sessionTimeoutMs": 45_000, "supportedProtocols": [{"name": "range"}]}}
    records = [
        joins(0, 1_000, "a", **said),
        epoch(1, 1_000, 1),
        target(2, 1_000, "a", [0]),
        target_epoch(3, 1_000, 1),
    ]
    [row] = fold([*records, current(4, 1_000, "a", 1, [0], previous=1)])["rebalances"]
    assert row["cause"] == "unknown"


def test_beginning_of_a_member_described_again_after_compaction_is_not_known() -> None:
    """Its metadata record follows the epoch in which it already was a member: a new member starts at epoch 0."""
    records = [joins(0, 1_000, "a"), epoch(7, 2_000, 3), joins(20, 5_000, "b", clientHost="/10.0.0.2")]
    rows = fold([*records, epoch(30, 9_000, 4)])
    assert {row["member_id"]: row["began"] for row in rows["memberships"]}["b"] == "there"
    assert rows["rebalances"][-1]["members_joined"] == []


def test_first_epoch_without_members_is_no_beginning() -> None:
    """A static member came back under another id without an epoch, so that compaction left its records after it."""
    [row] = fold([epoch(1, 1_000, 2), joins(5, 9_000, "s", instanceId="i")])["rebalances"]
    assert (row["cause"], row["certainty"], row["skipped"]) == ("unknown", "ambiguous", None)


def test_beginning_of_a_member_whose_target_is_already_known_is_not_known() -> None:
    """A static member that came back starts at epoch 0 again; compaction took its records of before."""
    records = [joins(0, 1_000, "a"), target(5, 2_000, "s-2", [0]), epoch(7, 2_000, 3)]
    records += [joins(20, 5_000, "s-2", instanceId="s"), current(21, 5_000, "s-2", 3, [0], previous=0)]
    rows = fold([*records, epoch(30, 9_000, 4)])
    assert {row["member_id"]: row["began"] for row in rows["memberships"]}["s-2"] == "there"
    assert rows["rebalances"][-1]["members_joined"] == []


def test_beginning_of_a_share_member_described_without_an_epoch_is_not_known() -> None:
    """Whoever joins a share group bumps its epoch: compaction took the metadata that came with it."""
    body = {"clientId": "c", "clientHost": "/1", "rackId": None, "subscribedTopicNames": ["orders"]}
    records = [Record(0, 1_000, "ShareGroupMemberMetadata", "a", body)]
    records += [Record(7, 2_000, "ShareGroupMetadata", None, {"epoch": 3, "metadataHash": 1})]
    records += [Record(20, 5_000, "ShareGroupMemberMetadata", "b", {**body, "clientId": "d"})]
    records += [Record(30, 9_000, "ShareGroupMetadata", None, {"epoch": 4, "metadataHash": 1})]
    rows = fold(records)
    assert {row["member_id"]: row["began"] for row in rows["memberships"]}["b"] == "there"
    assert rows["rebalances"][-1]["members_joined"] == []


@pytest.mark.parametrize(
    ("first", "previous", "skipped"),
    [(1, 0, 0), (2, 0, 0), (2, 1, None), (5, 0, None)],
    ids=["before 4.3", "4.3", "a later epoch of an older broker", "history begins late"],
)
def test_skipped_of_a_consumer_groups_first_epoch(first: int, previous: int, skipped: int | None) -> None:
    """The first epoch is 2 on 4.3 and 1 on older brokers, where a member of epoch 1 has it as its previous epoch."""
    records = [joins(0, 1_000, "a"), epoch(1, 1_000, first), target(2, 1_000, "a", [0])]
    records += [target_epoch(3, 1_000, first), current(4, 1_000, "a", first, [0], previous=previous)]
    rows = fold(records)
    assert [row["skipped"] for row in rows["generations"]] == [skipped]
    assert [row["began"] for row in rows["memberships"]] == ["joined" if skipped == 0 else "there"]


def downgrade() -> list[Record]:
    """Return the log of a KIP-848 group whose last KIP-848 member leaves; the classic member gets its partitions in
    the next generation."""
    classic_member = {"sessionTimeoutMs": 45_000, "supportedProtocols": [{"name": "range", "metadata": ""}]}
    records = [joins(0, 1_000, "a", classicMemberMetadata=classic_member), joins(1, 1_000, "b"), epoch(2, 1_000, 2)]
    records += [target(3, 1_000, "a", [0]), target(4, 1_000, "b", [1]), target_epoch(5, 1_000, 2)]
    records += [current(6, 1_000, "b", 2, [1]), current(7, 1_200, "a", 2, [0])]
    parts = ("CurrentMemberAssignment", "TargetAssignmentMember", "MemberMetadata")
    removed: list[tuple[str, str | None]] = [(part, name) for part in parts for name in "ab"]
    removed += [("TargetAssignmentMetadata", None), ("Metadata", None)]
    records += [consumer(20 + index, 9_000, part, name, None) for index, (part, name) in enumerate(removed)]
    records += [classic(28, 9_000, 3, {"a": {"orders": [0]}})]
    return [*records, classic(40, 12_000, 4, {"a": {"orders": [0, 1]}}, state_at=11_990)]


def test_is_assignors_own_of_the_generation_that_a_downgrade_writes_is_null() -> None:
    """The partitions of the member that left have no owner, though `range` would give them to the other."""
    downgraded, last = fold(downgrade(), names={"T": "orders"})["generations"][-2:]
    assert (downgraded["generation"], downgraded["is_assignors_own"]) == (3, None)
    assert "no leader computed it" in downgraded["assignment_note"]
    assert last["is_assignors_own"] is True


def test_cause_of_another_protocol_without_the_groups_tombstone_is_likely() -> None:
    """Compaction took it, and perhaps the deletion of the group as well."""
    records = [classic(0, 1_000, 4, {"a": {"orders": [0]}}), joins(90, 9_000, "b"), epoch(91, 9_000, 7)]
    last = fold([*records, target(92, 9_000, "b", [0]), target_epoch(93, 9_000, 7)])["rebalances"][-1]
    assert (last["cause"], last["certainty"]) == ("protocol_migrated", "likely")
    assert "compaction" in last["cause_note"]


@pytest.mark.parametrize(("number", "certainty"), [(2, "likely"), (5, "recorded"), (7, "likely")])
def test_cause_of_a_conversion_is_recorded_only_with_the_next_epoch(number: int, certainty: str) -> None:
    """Else the group may have been emptied before, in records that compaction took, and replaced."""
    records = [classic(0, 1_000, 4, {"a": {"orders": [0]}}), gone(10, 9_000), joins(11, 9_000, "b")]
    records += [epoch(12, 9_000, number), target(13, 9_000, "b", [0]), target_epoch(14, 9_000, number)]
    last = fold([*records, current(15, 9_000, "b", number, [0], previous=0)])["rebalances"][-1]
    assert (last["cause"], last["certainty"]) == ("protocol_migrated", certainty)


@pytest.mark.parametrize("change", ["member", "metadata"])
def test_cause_of_an_epoch_after_missing_ones_is_unknown(change: str) -> None:
    """Every epoch is written: what led to this one may have been in those that compaction took."""
    records = first_epoch(0)
    if change == "member":
        records += [joins(90, 9_000, "b", clientHost="/10.0.0.2"), epoch(91, 9_000, 7)]
    else:
        records += [epoch(91, 9_000, 7, metadataHash=2)]
    last = fold(records)["rebalances"][-1]
    assert (last["cause"], last["certainty"], last["skipped"]) == ("unknown", "ambiguous", 4)
    assert "epochs missing before it: 4" in last["cause_note"]


def test_members_joined_of_a_pattern_subscriber_that_replaces_an_empty_classic_group_are_in_its_first_epoch() -> None:
    records = [classic(0, 1_000, 4, {"a": {"orders": [0]}}), classic(1, 2_000, 5, {}), gone(10, 9_000)]
    records += [joins(11, 9_000, "b", subscribedTopicRegex="o.*"), current(12, 9_000, "b", 1, [], previous=0)]
    rows = fold([*records, regex(13, 9_100, "o.*", "orders"), epoch(14, 9_100, 2)])
    assert rows["rebalances"][-1]["members_joined"] == ["b"]


def test_cause_of_the_epoch_after_an_unread_group_had_the_same_epoch_is_no_join() -> None:
    """While nothing was read, the group was deleted and began again; its epoch is 2 again, with another member."""
    records = [joins(0, 1_000, "a"), epoch(1, 1_000, 2), current(2, 1_000, "a", 2, [0], previous=0)]
    records += [*leaves(10, 5_000, "a"), joins(90, 9_000, "b"), current(91, 9_100, "b", 1, [0], previous=0)]
    records += [joins(95, 9_500, "c", clientHost="/10.0.0.2"), epoch(96, 9_500, 2)]
    records += [current(97, 9_500, "c", 2, [], previous=0), *leaves(100, 15_000, "b"), epoch(103, 15_000, 3)]
    last = fold(records)["rebalances"][-1]
    assert (last["cause"], last["members_joined"]) == ("member_left_or_expired", [])


def test_cause_of_the_generation_after_a_downgrade_is_not_partitions_added() -> None:
    """GMM convertToClassicGroup starts a rebalance at once, which reassigns the last KIP-848 member's partitions."""
    converted, last = fold(downgrade(), names={"T": "orders"})["rebalances"][-2:]
    assert (converted["cause"], converted["certainty"]) == ("protocol_migrated", "recorded")
    assert (last["cause"], last["certainty"]) == ("protocol_migrated", "likely")
    assert (last["partitions_added"], last["partitions_moved"]) == (0, 1)


def test_cause_of_a_topic_that_was_only_just_subscribed_to_is_not_topic_created() -> None:
    """The leader assigns without the topic's metadata, and rejoins once it has it."""
    both = {"subscription": subscription("orders", "other")}
    rows = fold(
        [
            classic(1, 1_000, 1, {"a": {"orders": [0]}}),
            classic(2, 500_000, 2, {"a": member({"orders": [0]}, **both)}),
            classic(3, 500_300, 3, {"a": member({"orders": [0], "other": [0]}, **both)}),
        ]
    )
    changed, last = rows["rebalances"][-2:]
    assert changed["cause"] == "subscription_changed"
    assert (last["cause"], last["certainty"]) == ("leader_rejoined_or_coordinator_moved", "ambiguous")
    assert "other: subscribed to just before" in last["cause_note"]
    assert "created" in last["cause_note"]


def test_cause_of_a_topic_deleted_under_librdkafka_is_not_certainly_a_subscription() -> None:
    """A librdkafka client rejoins without the topic, although its application is still subscribed to it."""
    both = {"subscription": subscription("orders", "other")}
    rows = fold(
        [
            classic(1, 1_000, 1, {"a": member({"orders": [0], "other": [0]}, **both)}),
            classic(2, HOUR, 2, {"a": {"orders": [0]}}),
        ]
    )
    last = rows["rebalances"][-1]
    assert (last["cause"], last["certainty"]) == ("subscription_changed", "likely")
    assert "deleted" in last["cause_note"]


def test_cause_of_a_target_of_a_topic_that_was_only_just_subscribed_to_is_not_topic_created() -> None:
    """4.3 computes target assignments at intervals: two epochs may precede one (KIP-1263)."""
    records = [joins(0, 1_000, "a"), epoch(1, 1_000, 2), target(2, 1_000, "a", [0]), target_epoch(3, 1_000, 2)]
    records += [current(4, 1_000, "a", 2, [0])]
    records += [joins(10, 500_000, "a", subscribedTopicNames=["orders", "other"]), epoch(11, 500_000, 3)]
    both = [{"topicId": "T", "partitions": [0]}, {"topicId": "O", "partitions": [0]}]
    records += [epoch(12, 500_400, 4, metadataHash=7)]
    records += [consumer(13, 500_400, "TargetAssignmentMember", "a", {"topicPartitions": both})]
    records += [target_epoch(14, 500_400, 4)]
    last = fold(records, names={"T": "orders", "O": "other"})["rebalances"][-1]
    assert (last["cause"], last["certainty"]) == ("topic_metadata_changed", "ambiguous")


def test_cause_of_a_topic_that_comes_long_after_it_was_subscribed_to_is_topic_created() -> None:
    both = {"subscription": subscription("orders", "other")}
    rows = fold(
        [
            classic(1, 1_000, 1, {"a": member({"orders": [0]}, **both)}),
            classic(2, HOUR, 2, {"a": member({"orders": [0], "other": [0]}, **both)}),
        ]
    )
    last = rows["rebalances"][-1]
    assert (last["cause"], last["certainty"]) == ("topic_created", "likely")


# --- found by the model of the coordinator --------------------------------------------------------------------------


def test_cause_of_a_generation_with_a_static_members_new_id_is_not_recorded() -> None:
    """It causes a rebalance only if it returns between join and sync; it may also return while the group rebalances
    for another reason, or after it was removed (GMM updateStaticMemberThenRebalanceOrCompleteJoin)."""

    def static(name: str) -> dict[str, Row]:
        return {name: member({"orders": [0]}, group_instance_id="s"), "d": member({"orders": [1]})}

    last = fold([classic(1, 1_000, 1, static("s-1")), classic(2, 9_000, 2, static("s-2"))])["rebalances"][-1]
    assert (last["cause"], last["certainty"]) == ("static_member_replaced", "ambiguous")
    assert "for another reason" in last["cause_note"]


def test_cause_where_a_static_member_came_back_and_another_resubscribed_is_the_subscription() -> None:
    both = {"subscription": subscription("orders", "other")}
    before = {"s-1": member({"orders": [0]}, group_instance_id="s"), "d": member({"orders": [1]})}
    after = {"s-2": member({"orders": [0]}, group_instance_id="s"), "d": member({"orders": [1]}, **both)}
    last = fold([classic(1, 1_000, 1, before), classic(2, 9_000, 2, after)])["rebalances"][-1]
    assert (last["cause"], last["certainty"]) == ("subscription_changed", "likely")


@pytest.mark.parametrize(
    ("returned", "cause"),
    [({"subscribedTopicNames": ["other"]}, "subscription_changed"), ({}, "topic_metadata_changed")],
)
def test_cause_of_an_epoch_in_which_a_static_member_returns(returned: Row, cause: str) -> None:
    """In a KIP-848 group its return bumps no epoch: a changed subscription or a changed topic does."""
    records = [joins(0, 1_000, "s1", instanceId="s"), epoch(1, 1_000, 2), target(2, 1_000, "s1", [0])]
    records += [target_epoch(3, 1_000, 2), current(4, 1_000, "s1", 2, [0], previous=0)]
    records += [current(10, 5_000, "s1", -2, [0], previous=2), *leaves(20, 6_000, "s1")]
    records += [joins(23, 6_000, "s2", instanceId="s"), target(24, 6_000, "s2", [0])]
    records += [current(25, 6_000, "s2", 0, [0], previous=0), joins(26, 6_000, "s2", instanceId="s", **returned)]
    records += [epoch(27, 6_000, 3, metadataHash=7), current(28, 6_000, "s2", 2, [0], previous=0)]
    assert fold(records)["rebalances"][-1]["cause"] == cause


@pytest.mark.parametrize("protocol", ["range", "cooperative-sticky"])
def test_cause_note_of_a_generation_like_the_one_before_names_what_was_undone(protocol: str) -> None:
    """A member joins and leaves before the others have joined: the rebalance continues (GMM prepareRebalance)."""
    records = [classic(1, 1_000, 1, {"a": {"orders": [0]}}, protocol=protocol)]
    records += [classic(2, 9_000, 2, {"a": {"orders": [0]}}, protocol=protocol)]
    last = fold(records)["rebalances"][-1]
    assert (last["cause"], last["certainty"]) == ("leader_rejoined_or_coordinator_moved", "ambiguous")
    assert "a member that came and went" in last["cause_note"]


def test_cause_of_a_generation_after_a_cooperative_member_gave_up_a_deleted_topic_is_follow_up() -> None:
    """It rejoins as after a revocation, although no member receives the partitions
    (ConsumerCoordinator.onJoinComplete). A member that had to give them up only in the next generation still claims
    them in its subscription."""
    cooperative = {"protocol": "cooperative-sticky"}

    def record(offset: int, owned: dict[str, list[int]], claimed: dict[str, list[int]]) -> Record:
        both = {"subscription": subscription("orders", "other", owned=claimed, generation=offset - 1)}
        return classic(offset, offset * 1_000, offset, {"a": member(owned, **both)}, **cooperative)

    whole, rest = {"orders": [0], "other": [0]}, {"orders": [0]}
    records = [record(1, whole, {}), record(2, rest, whole), record(3, rest, whole), record(4, rest, rest)]
    causes = [(row["cause"], row["certainty"]) for row in fold(records)["rebalances"]]
    assert causes[1:] == [
        ("topic_deleted", "likely"),
        ("cooperative_follow_up", "likely"),
        ("cooperative_follow_up", "likely"),
    ]


def test_cause_note_of_partitions_taken_away_cooperatively_names_the_follow_up() -> None:
    """A follow-up may revoke other partitions, if its leader has newer metadata."""
    cooperative = {"protocol": "cooperative-sticky"}
    records = [classic(1, 1_000, 1, {"a": {"orders": [0, 1]}, "b": {"orders": [2]}}, **cooperative)]
    last = fold([*records, classic(2, 2_000, 2, {"a": {"orders": [0]}, "b": {"orders": [2]}}, **cooperative)])
    assert "members that gave partitions up join again" in last["rebalances"][-1]["cause_note"]


def test_partitions_removed_excludes_partitions_owned_under_the_recreated_topic() -> None:
    """Member a leaves before it has given up the deleted topic's partition; b already owns that of the recreated
    topic."""
    names = {"OLD": "orders", "NEW": "orders"}
    records = [joins(0, 1_000, "a"), epoch(1, 1_000, 2), target(2, 1_000, "a", [0], "OLD"), target_epoch(3, 1_000, 2)]
    records += [current(4, 1_000, "a", 2, [0], previous=0, topic_id="OLD")]
    records += [joins(10, 5_000, "b"), epoch(11, 5_000, 3, metadataHash=2), target(12, 5_000, "a", [], "NEW")]
    records += [target(13, 5_000, "b", [0], "NEW"), target_epoch(14, 5_000, 3)]
    records += [
        current(15, 5_000, "b", 3, [0], previous=0, topic_id="NEW"),
        *leaves(20, 9_000, "a"),
        epoch(23, 9_000, 4),
    ]
    assert fold(records, names=names)["rebalances"][-1]["partitions_removed"] == 0


def test_cause_of_a_known_patterns_other_topics_after_compaction_is_not_its_first_use() -> None:
    """After compaction, a group's log may begin with the topics that its pattern matched."""
    records = [regex(0, 1_000, "^o.*", "orders", "other")]
    records += [joins(6, 3_000, "a", subscribedTopicNames=[], subscribedTopicRegex="^o.*"), epoch(8, 4_000, 7)]
    records += [target_epoch(9, 4_000, 7), current(10, 4_000, "a", 7, [0])]
    records += [regex(20, 90_000, "^o.*", "orders"), epoch(21, 90_000, 8)]
    last = fold(records)["rebalances"][-1]
    assert (last["cause"], last["certainty"]) == ("topic_deleted", "likely")


def test_cause_note_of_members_that_are_gone_names_an_administrator() -> None:
    """RemoveMembersFromConsumerGroup sends LeaveGroup for a member."""
    records = [classic(1, 1_000, 1, {"a": {"orders": [0]}, "b": {"orders": [1]}})]
    last = fold([*records, classic(2, HOUR, 2, {"a": {"orders": [0, 1]}})])["rebalances"][-1]
    assert (last["cause"], last["certainty"]) == ("member_left_or_expired", "ambiguous")
    assert "or an administrator removed it" in last["cause_note"]


def test_dead_note_of_a_group_that_had_members_names_a_conversion() -> None:
    """Only an empty group is deleted: compaction took records, perhaps those of an upgrade after its tombstone."""
    rows = fold([classic(1, 1_000, 1, {"a": {"orders": [0]}}), gone(90, 9_000)])
    assert "converted to another protocol" in rows["group_states"][-1]["note"]


def test_dead_note_of_a_group_removed_after_the_retention_names_an_administrator() -> None:
    """DeleteGroups may be sent between the end of the retention and the broker's next check."""
    records = [classic(1, 1_000, 1, {"a": {"orders": [0]}}), classic(2, 2_000, 2, {})]
    records += [commit_tombstone(3, 8 * DAY), gone(4, 8 * DAY)]
    [dead] = [row for row in fold(records)["group_states"] if row["state"] == "Dead"]
    assert dead["note"].startswith("expired")
    assert "administrator" in dead["note"]


def test_evidence_recorded_has_no_alternative() -> None:
    recorded = [evidence for evidence in Evidence if evidence.value.certainty == "recorded"]
    assert [evidence for evidence in recorded if evidence.value.otherwise is not None] == []
