"""The runs that are recorded with real clients: every way in which a group is known to change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from proof.coordinator_model.schedule import (
    Action,
    AddPartitions,
    Commit,
    Crash,
    CreateTopic,
    DeleteGroup,
    DeleteTopic,
    Join,
    Leave,
    MoveCoordinator,
    ResetOffsets,
    Subscribe,
    Wait,
)
from support.observed_groups import Client

RANGE, ROUND_ROBIN, STICKY, COOPERATIVE = ("range",), ("roundrobin",), ("sticky",), ("cooperative-sticky",)

SESSION_MS = 6_000
METADATA_AGE_MS = 1_000
STATIC_SESSION_MS = 15_000  # a process that was killed has to be back within it

# Longer than any session of a run.
EXPIRY = Wait(ms=18_000)


@dataclass(frozen=True)
class RecordedSchedule:
    """A schedule for one group, the topics that exist at its start, and the library of its classic clients."""

    actions: tuple[Action, ...]
    topics: tuple[tuple[str, int], ...] = (("orders", 4),)
    library: Client = "librdkafka"


def joins(assignors: tuple[str, ...], *clients: str, **more: Any) -> tuple[Join, ...]:
    return tuple(Join(client, assignors=assignors, **more) for client in clients)


def kip_848_joins(*clients: str, **more: Any) -> tuple[Join, ...]:
    return tuple(Join(client, protocol="consumer", **more) for client in clients)


def static(assignors: tuple[str, ...], client: str, **more: Any) -> Join:
    return Join(client, assignors=assignors, instance_id=f"{client}-instance", **more)


def joins_and_leaves(assignors: tuple[str, ...]) -> tuple[Action, ...]:
    return (
        *joins(assignors, "a", "b", "c"),
        Leave("b"),
        Crash("a"),
        *joins(assignors, "d"),
        Leave("c"),
        Leave("d"),
        *joins(assignors, "e"),
        Leave("e"),
        ResetOffsets("orders"),
        DeleteGroup(),
        *joins(assignors, "f"),
    )


def static_members(assignors: tuple[str, ...]) -> tuple[Action, ...]:
    return (
        static(assignors, "a"),
        static(assignors, "b"),
        Leave("b"),
        static(assignors, "b"),
        Crash("a"),
        static(assignors, "a"),
        Leave("b"),
        EXPIRY,
        static(assignors, "b"),
    )


def topics_that_change(assignors: tuple[str, ...]) -> tuple[Action, ...]:
    both = ("orders", "payments")
    return (
        *joins(assignors, "a", "b", topics=both),
        AddPartitions("orders", 3),
        DeleteTopic("payments"),
        CreateTopic("payments", 3),
        AddPartitions("payments"),
    )


def subscriptions_that_change(assignors: tuple[str, ...]) -> tuple[Action, ...]:
    both = ("orders", "payments")
    return (
        *joins(assignors, "a", "b", topics=both),
        Subscribe("a", ("orders",)),
        Subscribe("b", ("payments",)),
        Subscribe("a", both),
        Commit("a"),
        Leave("b"),
    )


TWO_TOPICS = (("orders", 4), ("payments", 2))
COUNTS = (("orders", 7),)

CLASSIC = {
    "range-python": RecordedSchedule(joins_and_leaves(RANGE), COUNTS, "kafka-python"),
    "range": RecordedSchedule(joins_and_leaves(RANGE)),
    "roundrobin": RecordedSchedule(joins_and_leaves(ROUND_ROBIN), COUNTS),
    "sticky": RecordedSchedule(joins_and_leaves(STICKY), COUNTS, "kafka-python"),
    "cooperative": RecordedSchedule(joins_and_leaves(COOPERATIVE)),
    "static-range": RecordedSchedule(static_members(RANGE)),
    "static-python": RecordedSchedule(static_members(RANGE), COUNTS, "kafka-python"),
    "static-cooperative": RecordedSchedule(static_members(COOPERATIVE)),
    "topics-range": RecordedSchedule(topics_that_change(RANGE), TWO_TOPICS),
    "topics-roundrobin": RecordedSchedule(topics_that_change(ROUND_ROBIN), TWO_TOPICS),
    "topics-cooperative": RecordedSchedule(topics_that_change(COOPERATIVE), TWO_TOPICS),
    "subscriptions-range": RecordedSchedule(subscriptions_that_change(RANGE), TWO_TOPICS),
    "subscriptions-cooperative": RecordedSchedule(subscriptions_that_change(COOPERATIVE), TWO_TOPICS),
}

CONSUMER = {
    "kip-848": RecordedSchedule(
        (
            *kip_848_joins("a", "b", "c"),
            Leave("b"),
            Crash("a"),
            *kip_848_joins("d"),
            Leave("c"),
            Leave("d"),
            *kip_848_joins("e"),
            Leave("e"),
            ResetOffsets("orders"),
            DeleteGroup(),
            *kip_848_joins("f", "g"),
        ),
        COUNTS,
    ),
    "kip-848-static": RecordedSchedule(
        (
            *(one for name in "ab" for one in kip_848_joins(name, instance_id=name)),
            Leave("b"),
            *kip_848_joins("b", instance_id="b"),
            Crash("a"),
            EXPIRY,  # librdkafka gives up where its instance id is not released yet
            *kip_848_joins("a", instance_id="a"),
            Leave("b"),
            EXPIRY,
            *kip_848_joins("b", instance_id="b"),
        )
    ),
    "kip-848-topics": RecordedSchedule(
        (
            *kip_848_joins("a", "b", topics=("orders", "payments")),
            AddPartitions("orders", 3),
            DeleteTopic("payments"),
            CreateTopic("payments", 3),
            AddPartitions("payments"),
        ),
        TWO_TOPICS,
    ),
    "kip-848-subscriptions": RecordedSchedule(
        (
            *kip_848_joins("a", "b", topics=("orders", "payments")),
            Subscribe("a", ("orders",)),
            Subscribe("b", ("payments",)),
            Subscribe("a", ("orders", "payments")),
            Commit("a"),
            Leave("b"),
        ),
        TWO_TOPICS,
    ),
    "kip-848-pattern": RecordedSchedule(
        (
            *kip_848_joins("a", pattern="^.*"),
            *kip_848_joins("b", pattern="^.*"),
            CreateTopic("refunds", 2),
            DeleteTopic("payments"),
            Leave("a"),
        ),
        TWO_TOPICS,
    ),
    "upgrade": RecordedSchedule(
        (
            *joins(RANGE, "a", "b"),
            Leave("a"),
            *kip_848_joins("a"),
            Leave("b"),
            *kip_848_joins("b"),
            Leave("b"),
            *joins(RANGE, "b"),
            Leave("a"),
            *joins(RANGE, "a"),
        ),
        COUNTS,
    ),
    "upgrade-of-three": RecordedSchedule(
        (
            *joins(RANGE, "a", "b", "c"),
            *kip_848_joins("d"),
            Leave("a"),
            Leave("b"),
            Leave("c"),
            *kip_848_joins("e"),
        ),
        COUNTS,
    ),
}


def with_broker_kills(*members: Join) -> tuple[Action, ...]:
    """The broker is killed under the group, and the coordinator loads the group again."""
    return (*members[:2], MoveCoordinator("killed"), members[2], Leave(members[0].client), MoveCoordinator("killed"))


CRASHES_CLASSIC = {
    "killed-range": RecordedSchedule(with_broker_kills(*joins(RANGE, "a", "b", "c"))),
    "killed-python": RecordedSchedule(with_broker_kills(*joins(STICKY, "a", "b", "c")), COUNTS, "kafka-python"),
    "killed-cooperative": RecordedSchedule(with_broker_kills(*joins(COOPERATIVE, "a", "b", "c"))),
    "killed-static": RecordedSchedule(with_broker_kills(*(static(RANGE, name) for name in "abc"))),
}
CRASHES_CONSUMER = {"killed-kip-848": RecordedSchedule(with_broker_kills(*kip_848_joins("a", "b", "c")), COUNTS)}

ALL = CLASSIC | CONSUMER | CRASHES_CLASSIC | CRASHES_CONSUMER
