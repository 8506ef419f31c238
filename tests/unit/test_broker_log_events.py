"""What coordinators' messages mean, in the formats of each release; names that clients chose to deceive."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouptrail.broker_log.events import Event, Message, is_coordinator, parse_message

CONTEXT = "[GroupCoordinator id=3 topic=__consumer_offsets partition=7] "
A, B = "app-17e0bb30-0f94-4806-9276-0ad8e0e4ceea", "a, b-1536646c-48f4-4998-9bfb-accd8a286c4b"
C = "i-1-4208a4a2-af0f-42f7-9817-0241d7b900f1"
PREPARING = "Preparing to rebalance group g in state PreparingRebalance with old generation 4 (reason: "
MODERN = "HgI3/lDhQ4iIKvUL7wsDLQ"


def only(text: str, context: str = CONTEXT) -> Event:
    [event] = parse_message(context + text).events
    return event


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            f"{PREPARING}Adding new member {A} with group instance id null; client reason: not provided).",
            ("rebalance_started", 4, None, A, "member_joined"),
        ),
        (
            f"{PREPARING}explicit `LeaveGroup` request for ({A}) members.).",
            ("rebalance_started", 4, None, A, "member_left"),
        ),
        (
            f"{PREPARING}explicit `LeaveGroup` request for ({A}, {C}) members.).",
            ("rebalance_started", 4, None, None, "member_left"),
        ),
        pytest.param(
            f"{PREPARING}explicit `LeaveGroup` request for () members.).",
            ("rebalance_started", 4, None, None, "member_left"),
            id="removed-by-its-instance-id",
        ),
        pytest.param(
            f"{PREPARING}explicit `LeaveGroup` request for (, {A}) members.).",
            ("rebalance_started", 4, None, A, "member_left"),
            id="one-by-its-instance-id",
        ),
        (
            f"{PREPARING}removing member {A} on heartbeat expiration.).",
            ("rebalance_started", 4, None, A, "member_expired"),
        ),
        (
            f"{PREPARING}Leader {A} re-joining group during Stable; client reason: cached metadata has changed).",
            ("rebalance_started", 4, None, A, "leader_rejoined"),
        ),
        (
            f"{PREPARING}Updating metadata for member {A} during Stable; client reason: subscription has changed).",
            ("rebalance_started", 4, None, A, "member_metadata_changed"),
        ),
        (
            f"{PREPARING}Updating metadata for static member {C} with instance id i-1; client reason: not provided).",
            ("rebalance_started", 4, None, C, "static_member_replaced"),
        ),
        (
            f"{PREPARING}Group's "
            f"selectedProtocol will change because static member {C} with instance id i-1 joined with change of "
            "protocol; client reason: not provided).",
            ("rebalance_started", 4, None, C, "assignor_changed"),
        ),
        (
            f"{PREPARING}Freshly-loaded "
            "group g (size 9) is over capacity 5. Rebalancing in order to give a chance for consumers to commit "
            "offsets).",
            ("rebalance_started", 4, None, None, "unknown"),
        ),
        ("Stabilized group g generation 5 with 2 members.", ("join_completed", None, 5, None, None)),
        (
            f"Assignment received from leader {A} for group g for generation 5. The group has 2 members, 1 of which "
            "are static.",
            ("assignment_received", None, 5, A, None),
        ),
        ("Group g with generation 6 is now empty.", ("group_emptied", None, 6, None, None)),
        (f"Member {A} in group g has failed, removing it from the group.", ("member_expired", None, None, A, None)),
        (f"Group g removed dynamic members who haven't joined: [{A}]", ("member_expired", None, None, A, None)),
        ("[GroupId=g] Unloading group metadata for generation 7.", ("group_unloaded", None, 7, None, None)),
        ("[GroupId=g] Unloaded group metadata for group epoch 7.", ("group_unloaded", None, 7, None, None)),
        ("Loaded classic group g with 1 members.", ("group_loaded", None, None, None, None)),
        (f"[GroupId g] Member {MODERN} left the consumer group.", ("member_left", None, None, MODERN, None)),
        (f"[GroupId g] Member {MODERN} left the share group.", ("member_left", None, None, MODERN, None)),
        (
            f"[GroupId g][MemberId {MODERN}] Member {MODERN} left the streams group.",
            ("member_left", None, None, MODERN, None),
        ),
        (
            f"[GroupId g][MemberId {MODERN}] Static member {MODERN} with instance id i-1 joins the streams group.",
            ("member_joined", None, None, MODERN, None),
        ),
        (
            f"[GroupId g][MemberId {MODERN}] Static member with instance id i-1 re-joins the streams group using the "
            f"streams protocol. Created a new member {MODERN} to replace the existing member {A}.",
            ("member_replaced", None, None, MODERN, None),
        ),
        (
            f"[GroupId g][MemberId {MODERN}] Static member {MODERN} with instance id i-1 left the streams group.",
            ("member_left", None, None, MODERN, None),
        ),
        (
            f"[GroupId g] Streams member {MODERN} fenced from the group because the member session expired..",
            ("member_expired", None, None, MODERN, None),
        ),
        (
            f"[GroupId g] Member {MODERN} fenced from the group because the member session expired.",
            ("member_expired", None, None, MODERN, None),
        ),
        (
            f"[GroupId g] Member {MODERN} fenced from the group because it failed to transition from epoch 3 "
            "within 45ms.",
            ("member_expired", None, None, MODERN, None),
        ),
        (f"[GroupId g] Member {MODERN} joins the consumer group using the consumer protocol.", ("member_joined",)),
        ("[GroupId g] Bumped group epoch to 8.", ("epoch_bumped", None, 8, None, None)),
        ("[GroupId g] Bumped group epoch to 8 with metadata hash -19.", ("epoch_bumped", None, 8, None, None)),
        (
            f"[GroupId g][MemberId {MODERN}] Bumped streams group epoch to 8 with metadata hash 1 and validated "
            "topic epoch 2.",
            ("epoch_bumped", None, 8, MODERN, None),
        ),
        ("[GroupId g] Computed new metadata hash: 2339924016782142603.", ("metadata_changed",)),
        (f"[GroupId g] Member {MODERN} updated its subscribed topics to: [t1].", ("subscription_changed",)),
    ],
)
def test_message_of_a_coordinator_gives_its_event(text: str, expected: tuple[object, ...]) -> None:
    event = only(text)
    found = (event.event, event.generation_before, event.generation, event.member_id, event.trigger)
    assert found[: len(expected)] == expected
    assert (event.group_id, event.broker_id, event.record_partition) == ("g", 3, 7)


@pytest.mark.parametrize(
    ("text", "event"),
    [
        (
            "Preparing to rebalance group g in state PreparingRebalance with old generation 4 (__consumer_offsets-7) "
            f"(reason: Removing member {A} on LeaveGroup; client reason: the consumer is being closed)",
            "rebalance_started",
        ),
        ("Stabilized group g generation 5 (__consumer_offsets-7) with 2 members", "join_completed"),
        ("Group g with generation 6 is now empty (__consumer_offsets-7)", "group_emptied"),
        (f"Member {A} in group g has failed, removing it from the group", "member_expired"),
        ("Loading group metadata for g with generation 5", "group_loaded"),
    ],
)
def test_message_of_the_old_coordinator_gives_its_event(text: str, event: str) -> None:
    found = only(text, "[GroupCoordinator 3]: ")
    assert (found.event, found.broker_id, found.group_id) == (event, 3, "g")


def test_message_about_several_members_gives_an_event_for_each() -> None:
    message = parse_message(f"{CONTEXT}Group g removed dynamic members who haven't joined: [{A}, {C}]")
    assert [event.member_id for event in message.events] == [A, C]


def test_rebalance_without_sync_gives_the_members_that_are_gone() -> None:
    reason = f"Removing [{A}] on pending sync request expiration"
    text = f"{PREPARING}{reason})."
    started, gone = parse_message(CONTEXT + text).events
    assert (started.trigger, gone.event, gone.member_id) == ("sync_expired", "member_expired", A)


@pytest.mark.parametrize(
    "text",
    [
        f"[GroupId g] Static Member {MODERN} with instance id i-1 temporarily left the consumer group.",
        f"[GroupId g][MemberId {MODERN}] Static member {MODERN} with instance id i-1 temporarily left the streams "
        "group.",
        f"[GroupId g][MemberId {MODERN}] Computed new metadata hash: -6410590259395368677.",
        f"[GroupId g][MemberId {MODERN}] Valid topic configuration found in 19ms, topology epoch 0 is now "
        "initialized.",
    ],
)
def test_message_that_proves_nothing_is_known_and_gives_no_event(text: str) -> None:
    assert parse_message(CONTEXT + text) == Message()


@pytest.mark.parametrize(
    "text",
    [
        # Names that could end in two places.
        "Preparing to rebalance group g in state Stable with old generation 1 (reason: x in state Stable with old "
        "generation 2 (reason: y)).",
        "[GroupId g] Member a left the consumer group. [GroupId h] Member b left the consumer group.",
        f"Member {A} in group h in group g has failed, removing it from the group.",
        f"Group g removed dynamic members who haven't joined: [{B}]",
        "Something new.",
        "",
    ],
)
def test_message_that_can_be_taken_apart_in_two_ways_is_unknown(text: str) -> None:
    assert parse_message(CONTEXT + text) == Message(is_known=False)


def test_message_of_another_component_is_unknown() -> None:
    assert parse_message("[TransactionCoordinator id=3] Stabilized group g generation 5 with 2 members.").events == ()


@pytest.mark.parametrize(
    ("logger", "expected"),
    [
        ("org.apache.kafka.coordinator.group.GroupMetadataManager", True),
        ("kafka.coordinator.group.GroupCoordinator", True),
        ("GroupMetadataManager", True),
        ("evil.GroupMetadataManager", False),
        ("kafka.server.KafkaApis", False),
    ],
)
def test_logger_is_a_coordinators_by_its_full_or_last_name(logger: str, expected: bool) -> None:
    assert is_coordinator(logger) is expected


names = st.text(st.characters(codec="utf-8"), min_size=1)


@given(group=names, member=names, reason=names)
def test_leave_of_any_names_gives_these_names_or_nothing(group: str, member: str, reason: str) -> None:
    """Whatever clients choose as names: what is read is what was logged, or nothing."""
    asked = "has left group through explicit `LeaveGroup` request"
    text = f"[Group {group}] Member {member} {asked}; client reason: {reason}"
    for event in parse_message(CONTEXT + text).events:
        assert (event.group_id, event.member_id, event.reason) == (group, member, reason)


@given(
    group=names,
    member=names,
    reason=st.sampled_from(["the member session expired", "the member failed to sync within timeout"]),
)
def test_fenced_member_of_any_names_gives_these_names_or_nothing(group: str, member: str, reason: str) -> None:
    for event in parse_message(
        f"{CONTEXT}[GroupId {group}] Member {member} fenced from the group because {reason}."
    ).events:
        assert (event.event, event.group_id, event.member_id) == ("member_expired", group, member)
