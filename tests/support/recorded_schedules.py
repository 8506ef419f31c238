"""The runs that are recorded with real clients: every way in which a group is known to change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from support.coordinator_model.schedule import (
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
class Recorded:
    """A schedule for one group, the topics that are there at its start, and who plays its classic clients."""

    actions: tuple[Action, ...]
    topics: tuple[tuple[str, int], ...] = (("orders", 4),)
    library: Client = "librdkafka"


def joins(assignors: tuple[str, ...], *clients: str, **more: Any) -> tuple[Join, ...]:
    return tuple(Join(client, assignors=assignors, **more) for client in clients)


def moderns(*clients: str, **more: Any) -> tuple[Join, ...]:
    return tuple(Join(client, protocol="consumer", **more) for client in clients)


def static(assignors: tuple[str, ...], client: str, **more: Any) -> Join:
    return Join(client, assignors=assignors, instance_id=f"{client}-instance", **more)


def comings_and_goings(assignors: tuple[str, ...]) -> tuple[Action, ...]:
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
    "range-python": Recorded(comings_and_goings(RANGE), COUNTS, "kafka-python"),
    "range": Recorded(comings_and_goings(RANGE)),
    "roundrobin": Recorded(comings_and_goings(ROUND_ROBIN), COUNTS),
    "sticky": Recorded(comings_and_goings(STICKY), COUNTS, "kafka-python"),
    "cooperative": Recorded(comings_and_goings(COOPERATIVE)),
    "static-range": Recorded(static_members(RANGE)),
    "static-python": Recorded(static_members(RANGE), COUNTS, "kafka-python"),
    "static-cooperative": Recorded(static_members(COOPERATIVE)),
    "topics-range": Recorded(topics_that_change(RANGE), TWO_TOPICS),
    "topics-roundrobin": Recorded(topics_that_change(ROUND_ROBIN), TWO_TOPICS),
    "topics-cooperative": Recorded(topics_that_change(COOPERATIVE), TWO_TOPICS),
    "subscriptions-range": Recorded(subscriptions_that_change(RANGE), TWO_TOPICS),
    "subscriptions-cooperative": Recorded(subscriptions_that_change(COOPERATIVE), TWO_TOPICS),
}

CONSUMER = {
    "kip-848": Recorded(
        (
            *moderns("a", "b", "c"),
            Leave("b"),
            Crash("a"),
            *moderns("d"),
            Leave("c"),
            Leave("d"),
            *moderns("e"),
            Leave("e"),
            ResetOffsets("orders"),
            DeleteGroup(),
            *moderns("f", "g"),
        ),
        COUNTS,
    ),
    "kip-848-static": Recorded(
        (
            *(one for name in "ab" for one in moderns(name, instance_id=name)),
            Leave("b"),
            *moderns("b", instance_id="b"),
            Crash("a"),
            EXPIRY,  # librdkafka gives up where its instance id is not released yet
            *moderns("a", instance_id="a"),
            Leave("b"),
            EXPIRY,
            *moderns("b", instance_id="b"),
        )
    ),
    "kip-848-topics": Recorded(
        (
            *moderns("a", "b", topics=("orders", "payments")),
            AddPartitions("orders", 3),
            DeleteTopic("payments"),
            CreateTopic("payments", 3),
            AddPartitions("payments"),
        ),
        TWO_TOPICS,
    ),
    "kip-848-subscriptions": Recorded(
        (
            *moderns("a", "b", topics=("orders", "payments")),
            Subscribe("a", ("orders",)),
            Subscribe("b", ("payments",)),
            Subscribe("a", ("orders", "payments")),
            Commit("a"),
            Leave("b"),
        ),
        TWO_TOPICS,
    ),
    "kip-848-pattern": Recorded(
        (
            *moderns("a", pattern="^.*"),
            *moderns("b", pattern="^.*"),
            CreateTopic("refunds", 2),
            DeleteTopic("payments"),
            Leave("a"),
        ),
        TWO_TOPICS,
    ),
    "upgrade": Recorded(
        (
            *joins(RANGE, "a", "b"),
            Leave("a"),
            *moderns("a"),
            Leave("b"),
            *moderns("b"),
            Leave("b"),
            *joins(RANGE, "b"),
            Leave("a"),
            *joins(RANGE, "a"),
        ),
        COUNTS,
    ),
    "upgrade-of-three": Recorded(
        (
            *joins(RANGE, "a", "b", "c"),
            *moderns("d"),
            Leave("a"),
            Leave("b"),
            Leave("c"),
            *moderns("e"),
        ),
        COUNTS,
    ),
}


def through_a_crash(*members: Join) -> tuple[Action, ...]:
    """The broker is killed under the group, and the coordinator loads the group again."""
    return (*members[:2], MoveCoordinator("killed"), members[2], Leave(members[0].client), MoveCoordinator("killed"))


CRASHES_CLASSIC = {
    "killed-range": Recorded(through_a_crash(*joins(RANGE, "a", "b", "c"))),
    "killed-python": Recorded(through_a_crash(*joins(STICKY, "a", "b", "c")), COUNTS, "kafka-python"),
    "killed-cooperative": Recorded(through_a_crash(*joins(COOPERATIVE, "a", "b", "c"))),
    "killed-static": Recorded(through_a_crash(*(static(RANGE, name) for name in "abc"))),
}
CRASHES_CONSUMER = {"killed-kip-848": Recorded(through_a_crash(*moderns("a", "b", "c")), COUNTS)}

ALL = CLASSIC | CONSUMER | CRASHES_CLASSIC | CRASHES_CONSUMER
