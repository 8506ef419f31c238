"""Random schedules: a few clients, and anything that may happen to their group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from hypothesis import strategies as st

from proof.coordinator_model.schedule import (
    Action,
    AddPartitions,
    Commit,
    Crash,
    CreateTopic,
    DeleteGroup,
    DeleteOffsets,
    DeleteTopic,
    Join,
    Leave,
    Library,
    MoveCoordinator,
    Protocol,
    Rejoin,
    RemoveAllMembers,
    RemoveMember,
    ResetOffsets,
    Resume,
    Schedule,
    Stall,
    Subscribe,
    UpgradeBroker,
    Version,
    Wait,
)

_TOPICS = ("orders", "other", "extra")
_SUBSCRIPTIONS = (("orders",), ("orders",), ("orders",), ("other",), ("orders", "other"), ("extra", "orders"))
_WAITS_MS = (0, 0, 1, 50, 3_000, 3_500, 8_000, 10_000, 20_000, 60_000, 400_000)
_DAYS_MS = 8 * 24 * 3_600_000
_EITHER = ("cooperative-sticky", "range")
_ASSIGNORS = (
    ("range",),
    ("roundrobin",),
    ("sticky",),
    ("cooperative-sticky",),
    _EITHER,
    ("range", "cooperative-sticky"),
)
_TIMEOUTS_MS = ((45_000, 300_000), (10_000, 60_000), (45_000, 10_000), (45_000, 3_000))
_VERSIONS: tuple[Version, ...] = ("3.9", "4.0", "4.1", "4.3", "4.4")
_PROTOCOLS: tuple[Protocol, ...] = ("classic", "consumer")
_LIBRARIES: tuple[Library, ...] = ("java", "java", "librdkafka", "kafka-python")

_Maker = Callable[[Random, str, str], Action]
# What may happen to a client and a topic, and how often.
_HAPPENINGS: tuple[tuple[int, _Maker], ...] = (
    (6, lambda random, client, _: Leave(client, random.random() < 0.2)),
    (6, lambda _, client, __: Crash(client)),
    (5, lambda random, client, _: Stall(client, random.choice(("slow", "stuck", "frozen")))),
    (4, lambda _, client, __: Resume(client)),
    (4, lambda random, client, _: Subscribe(client, random.choice(_SUBSCRIPTIONS))),
    (3, lambda _, client, __: Rejoin(client)),
    (3, lambda _, client, __: RemoveMember(client)),
    (1, lambda *_: RemoveAllMembers()),
    (3, lambda random, _, topic: CreateTopic(topic, random.randint(1, 3))),
    (5, lambda random, _, topic: AddPartitions(topic, random.randint(1, 2))),
    (3, lambda _, __, topic: DeleteTopic(topic)),
    (3, lambda _, client, __: Commit(client)),
    (2, lambda _, __, topic: ResetOffsets(topic)),
    (1, lambda _, __, topic: DeleteOffsets(topic)),
    (2, lambda *_: DeleteGroup()),
    (6, lambda random, _, __: MoveCoordinator(random.choice(("moved", "killed")))),
    (1, lambda random, _, __: UpgradeBroker(random.choice(_VERSIONS[1:]))),
    (2, lambda *_: Wait(_DAYS_MS)),
)
_OFTEN = [often for often, _ in _HAPPENINGS]
_JOINS = 0.4


def random_schedule(random: Random) -> Schedule:
    """Return a schedule of joins and other actions, most of them with a wait in between."""
    version = random.choice(_VERSIONS)
    usual: Protocol = "classic" if version == "3.9" else random.choice(("classic", "classic", "consumer"))
    assignors, timeouts = random.choice(_ASSIGNORS), random.choice(_TIMEOUTS_MS)
    mixed = random.choice((0.03, 0.03, 0.3))
    library, metadata_age_ms = random.choice(_LIBRARIES), random.choice((300_000, 5_000))
    client_id, static = random.choice((None, None, "app")), random.choice(("", "", "a", "ab", "abcd"))

    def join(client: str) -> Join:
        protocol = usual if random.random() >= mixed else random.choice(_PROTOCOLS)
        instance = "a" if random.random() < 0.05 else client
        return Join(
            client,
            random.choice(_SUBSCRIPTIONS),
            protocol,
            assignors if random.random() < 0.9 else _EITHER,
            f"static-{instance}" if client in static else None,
            random.choice((None, None, None, "^o.*")) if protocol == "consumer" else None,
            client_id,
            *timeouts,
            library,
            metadata_age_ms,
        )

    actions: list[Action] = []
    for step in range(random.randint(4, 28)):
        client = random.choice("abcd")
        if step < 2 or random.random() < _JOINS:
            actions.append(join(client))
        else:
            [(_, make)] = random.choices(_HAPPENINGS, _OFTEN)
            actions.append(make(random, client, random.choice(_TOPICS)))
        if wait_ms := random.choice(_WAITS_MS):
            actions.append(Wait(wait_ms))
    topics = (("orders", random.randint(1, 4)), ("other", 2))
    return Schedule(tuple(actions), version, topics, random.randrange(2**32))


def varied_schedule(random: Random) -> Schedule:
    """Return a random schedule in which some members subscribe to no topic, or to a pattern that may match none.

    At times the coordinator stays, and only the epoch of its partition's leader rises; at times no subscription names
    its generation. Recorded runs play `random_schedule` as it is.
    """
    schedule = random_schedule(random)
    library: Library | None = random.choice((None, None, None, None, "sarama", "java-2.3"))
    assignor = random.choice(("range", "roundrobin"))

    def varied(action: Action) -> Action:
        if isinstance(action, MoveCoordinator):
            return MoveCoordinator("epoch") if random.random() < 0.15 else action
        if isinstance(action, Join) and action.protocol == "classic" and library is not None:
            return replace(action, library=library, assignors=(assignor,))
        if not isinstance(action, Join) or random.random() < 0.75:
            return action
        if action.protocol == "consumer":
            return replace(action, pattern=random.choice(("^o.*", "^ot.*", "^e.*", "^none.*")))
        return replace(action, topics=()) if action.library == "java" else action

    return replace(schedule, actions=tuple(map(varied, schedule.actions)))


SCHEDULES = st.randoms(use_true_random=False).map(varied_schedule)
"""The same for Hypothesis, which finds the simplest that fails."""
