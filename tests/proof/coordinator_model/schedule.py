"""What is done to a group, as plain data: actions in order, which print and which JSON holds."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

Protocol = Literal["classic", "consumer"]
Version = Literal["3.9", "4.0", "4.1", "4.3", "4.4"]
Library = Literal["java", "librdkafka", "kafka-python", "sarama", "java-2.3"]


@dataclass(frozen=True, slots=True)
class Join:
    """A consumer starts and subscribes; a client that has stopped before starts again, as a new process.

    `assignors` (classic) are its `partition.assignment.strategy`, best first. `pattern` (consumer) is what it
    subscribes to on the broker instead of `topics`. Several clients may share a `client_id`; by default it is the
    client's name. `session_ms` is of the classic protocol (the broker's setting holds for the other), `rebalance_ms`
    is `max.poll.interval.ms`. `library` is the client's, as far as libraries differ in the classic protocol,
    `metadata_age_ms` its `metadata.max.age.ms`.
    """

    client: str
    topics: tuple[str, ...] = ("orders",)
    protocol: Protocol = "classic"
    assignors: tuple[str, ...] = ("range",)
    instance_id: str | None = None
    pattern: str | None = None
    client_id: str | None = None
    session_ms: int = 45_000
    rebalance_ms: int = 300_000
    library: Library = "java"
    metadata_age_ms: int = 300_000


@dataclass(frozen=True, slots=True)
class Leave:
    """A consumer closes. A static one keeps its place unless it leaves `for_good` (CloseOptions.LEAVE_GROUP)."""

    client: str
    for_good: bool = False


@dataclass(frozen=True, slots=True)
class Crash:
    """A consumer's process is killed."""

    client: str


@dataclass(frozen=True, slots=True)
class Stall:
    """A consumer stops polling until `Resume`.

    slow: it heartbeats, and leaves when `max.poll.interval.ms` has passed; stuck: it heartbeats and never leaves (a
    client without that check); frozen: its process is stopped (SIGSTOP).
    """

    client: str
    how: Literal["slow", "stuck", "frozen"] = "slow"


@dataclass(frozen=True, slots=True)
class Resume:
    """A stalled consumer polls again."""

    client: str


@dataclass(frozen=True, slots=True)
class Subscribe:
    """A consumer subscribes to other topics."""

    client: str
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rejoin:
    """A consumer of the classic protocol calls enforceRebalance."""

    client: str


@dataclass(frozen=True, slots=True)
class RemoveMember:
    """An administrator removes a static member (removeMembersFromConsumerGroup)."""

    client: str


@dataclass(frozen=True, slots=True)
class RemoveAllMembers:
    """An administrator removes all members of a classic group (removeMembersFromConsumerGroup without any named)."""


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """A topic is created; where it was deleted before, it has a new id."""

    topic: str
    partitions: int


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """A topic gets so many more partitions."""

    topic: str
    more: int = 1


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """A topic is deleted."""

    topic: str


@dataclass(frozen=True, slots=True)
class Commit:
    """A consumer commits what it has."""

    client: str


@dataclass(frozen=True, slots=True)
class ResetOffsets:
    """An administrator sets the group's offsets of a topic; refused while the group has members."""

    topic: str


@dataclass(frozen=True, slots=True)
class DeleteOffsets:
    """An administrator deletes the group's offsets of a topic (OffsetDelete); refused while it is subscribed to."""

    topic: str


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    """An administrator deletes the group; refused while it has members."""


@dataclass(frozen=True, slots=True)
class MoveCoordinator:
    """Another broker becomes the coordinator: the group is loaded from the log.

    moved: the leader of the offsets partition is changed; killed: its broker is killed (kill -9), and clients are
    without a coordinator for some seconds; epoch: replicas of the offsets partition change, and its leader stays.
    """

    how: Literal["moved", "killed", "epoch"] = "moved"


@dataclass(frozen=True, slots=True)
class UpgradeBroker:
    """The brokers are restarted in a later version."""

    version: Version


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing is done for so long."""

    ms: int


Action = (
    Join
    | Leave
    | Crash
    | Stall
    | Resume
    | Subscribe
    | Rejoin
    | RemoveMember
    | RemoveAllMembers
    | CreateTopic
    | AddPartitions
    | DeleteTopic
    | Commit
    | ResetOffsets
    | DeleteOffsets
    | DeleteGroup
    | MoveCoordinator
    | UpgradeBroker
    | Wait
)

_ACTIONS: dict[str, type[Any]] = {
    one.__name__: one
    for one in (
        *(Join, Leave, Crash, Stall, Resume, Subscribe, Rejoin, RemoveMember, RemoveAllMembers),
        *(CreateTopic, AddPartitions, DeleteTopic, Commit, ResetOffsets, DeleteOffsets, DeleteGroup),
        *(MoveCoordinator, UpgradeBroker, Wait),
    )
}


_SETTINGS = ("seed", "consumer_session_ms", "retention_check_ms", "commit_ms", "is_busy")


@dataclass(frozen=True, slots=True)
class Schedule:
    """Actions on one group, on brokers of a version, from topics that are there at the start.

    `seed` decides what no action says: how long requests, heartbeats and metadata take. 3.9 has the old coordinator,
    and classic groups alone. `consumer_session_ms` is `group.consumer.session.timeout.ms`, `retention_check_ms`
    is `offsets.retention.check.interval.ms`. Consumers commit every `commit_ms`, and when they close (0: only by the
    action); `is_busy`: there are always new records to commit.
    """

    actions: tuple[Action, ...]
    version: Version = "4.4"
    topics: tuple[tuple[str, int], ...] = (("orders", 4),)
    seed: int = 0
    consumer_session_ms: int = 45_000
    retention_check_ms: int = 600_000
    commit_ms: int = 0
    is_busy: bool = True

    def to_json(self) -> str:
        """Return the schedule as JSON."""
        actions = [{"action": type(one).__name__, **asdict(one)} for one in self.actions]
        settings = {name: getattr(self, name) for name in _SETTINGS}
        values = {"version": self.version, "topics": dict(self.topics), **settings, "actions": actions}
        return json.dumps(values, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Schedule:
        """Return the schedule that `to_json` wrote."""
        values = json.loads(text)
        actions = tuple(map(action_from_values, values["actions"]))
        settings = {name: values[name] for name in _SETTINGS if name in values}
        return cls(actions, values["version"], tuple(values["topics"].items()), **settings)


def action_from_values(values: dict[str, Any]) -> Action:
    """Return the action of JSON values: its name under `action`, and its fields."""
    others = {name: value for name, value in values.items() if name != "action"}
    made: Action = _ACTIONS[values["action"]](
        **{name: tuple(value) if isinstance(value, list) else value for name, value in others.items()}
    )
    return made
