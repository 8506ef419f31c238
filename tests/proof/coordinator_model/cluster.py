"""Brokers, topics and time, as far as a group depends on them; the log that the coordinator writes, and the truth."""

from __future__ import annotations

import base64
import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from grouptrail.history.operations import Record
from proof.coordinator_model.schedule import Schedule, Version

if TYPE_CHECKING:
    from proof.coordinator_model.classic import ClassicGroup
    from proof.coordinator_model.clients import Client
    from proof.coordinator_model.consumer import ConsumerGroup

Partition = tuple[str, int]
Departure = Literal["left", "removed", "session", "rebalance timeout", "sync timeout", "replaced", "group removed"]
Removal = Literal["deleted", "expired", "empty", "offsets deleted"]
Body = dict[str, Any]

START_MS = 1_795_000_000_000
HEARTBEAT_MS = 3_000
RETENTION_MS = 7 * 24 * 3_600_000

NOTHING = frozenset[Partition]()


@dataclass(frozen=True, slots=True)
class TrueMember:
    """A member as the coordinator has it: `assigned` is what it shall have, `owned` what it has not given up."""

    member_id: str
    instance_id: str | None
    client: str
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    assigned: frozenset[Partition]
    owned: frozenset[Partition]


@dataclass(frozen=True, slots=True)
class Moment:
    """The group right after an operation that the coordinator wrote at `offset`, up to `end_offset`.

    `kind` is None where the operation removed it. `reasons` are why the generation began, if one did: all that
    happened since the one before and would have caused a rebalance by itself, or did. `hidden` counts the generations
    in between that never got into the log. `departures` are the members that are gone since the moment before, and
    how they went.
    `join_ended_at` and `preparing_since` (ms) are of classic groups: when the join phase ended, and when the
    first rebalance since the generation before began.
    """

    offset: int
    end_offset: int
    at: int
    incarnation: int
    kind: Literal["classic", "consumer"] | None
    generation: int | None = None
    state: str = "Dead"
    protocol: str | None = None
    leader: str | None = None
    members: Mapping[str, TrueMember] = field(default_factory=dict)
    is_new_generation: bool = False
    is_assigned: bool = True
    reasons: frozenset[str] = frozenset()
    hidden: int = 0
    departures: Mapping[str, Departure] = field(default_factory=dict)
    join_ended_at: int | None = None
    preparing_since: int | None = None
    removal: Removal | None = None


@dataclass
class Topic:
    """A topic; `topic_id` is another one after it was deleted and created."""

    topic_id: str
    partitions: int
    created_at: int


class OwnCommit(NamedTuple):
    """A commit that a consumer made by itself, at an offset of the log."""

    record_offset: int
    at: int
    topic: str
    partition: int
    offset: int


class Cluster:
    """Runs events in the order of time; `client` requests and timers are such events."""

    def __init__(self, schedule: Schedule) -> None:
        self.version: Version = schedule.version
        self.random = Random(schedule.seed)
        self.now = START_MS
        self.consumer_session_ms = schedule.consumer_session_ms
        self._retention_check_ms = schedule.retention_check_ms
        self.topics: dict[str, Topic] = {}
        self.coordinator_topics: dict[str, Topic] = {}
        self.names: dict[str, str] = {}
        self.clients: dict[str, Client] = {}
        self.group: ClassicGroup | ConsumerGroup | None = None
        self.is_available = True
        self.leader_epoch = 0
        self.committed: dict[Partition, int] = {}
        self.records: list[Record] = []
        self.moments: list[Moment] = []
        self.incarnation = 1
        self.refused: list[str] = []
        self._offset = 0
        self._ids = 0
        self._events: list[tuple[int, int, Callable[[], object]]] = []
        self._order = 0
        for topic, partitions in schedule.topics:
            self.create_topic(topic, partitions)
        self.later(self._retention_check_ms, self._clean_up)
        self.commits: list[OwnCommit] = []
        self._newest: dict[Partition, int] = {}
        self._commit_ms, self._is_busy = schedule.commit_ms, schedule.is_busy
        if self._commit_ms:
            self.later(self._commit_ms, self._commit_all)

    # Time

    def later(self, ms: int, event: Callable[[], object]) -> None:
        """Let an event happen so much later."""
        self._order += 1
        heapq.heappush(self._events, (self.now + ms, self._order, event))

    def run_for(self, ms: int) -> None:
        """Let time pass."""
        until = self.now + ms
        while self._events and self._events[0][0] <= until:
            self.now, _, event = heapq.heappop(self._events)
            event()
        self.now = until

    def latency(self) -> int:
        """A request's way to the coordinator (ms); several may come in one millisecond."""
        return self.random.choice((0, 0, 1, 1, 2, 5, 20))

    def new_id(self, prefix: str) -> str:
        """An id that is used once."""
        self._ids += 1
        return f"{prefix}-{self._ids:04d}{self.random.randrange(16**4):04x}"

    # The log

    def write(self, records: Iterable[tuple[str, str | None, Body | None]], **moment: Any) -> None:
        """Append one operation's records, at once, and note the truth after it."""
        if self.random.random() < 0.5:
            self._offset += self.random.randrange(4)  # other groups' records, and commits
        first = self._offset
        for kind, name, body in records:
            record = Record(self._offset, self.now, kind, name, body, leader_epoch=self.leader_epoch)
            self.records.append(record)
            self._offset += 1
        if moment:
            self.moments.append(Moment(first, self._offset, self.now, self.incarnation, **moment))

    # Topics

    def create_topic(self, topic: str, partitions: int) -> None:
        """Make a topic, unless it is there."""
        if topic in self.topics:
            self.refused.append(f"{topic} exists")
            return
        topic_id = base64.urlsafe_b64encode(self.random.randbytes(16)).decode("ascii")[:22]
        made = Topic(topic_id, partitions, self.now)
        self.topics[topic] = made
        self.names[made.topic_id] = topic
        self.metadata_changed(has_new_topics=True)

    def add_partitions(self, topic: str, more: int) -> None:
        """Give a topic more partitions."""
        if topic not in self.topics:
            self.refused.append(f"no {topic}")
            return
        self.topics[topic].partitions += more
        self.metadata_changed()

    def delete_topic(self, topic: str) -> None:
        """Delete a topic, and with it what was committed."""
        if self.topics.pop(topic, None) is None:
            self.refused.append(f"no {topic}")
            return
        self._drop_commits([partition for partition in self.committed if partition[0] == topic])
        if self.random.random() < 0.3:
            # A client may hear of it before the coordinator, which gets each new image of the metadata as an event
            # of its queue (CoordinatorRuntime).
            for client in self.clients.values():
                client.metadata_changed()
            self.later(100, self._coordinator_learns)
        else:
            self.metadata_changed()

    def _coordinator_learns(self) -> None:
        self.coordinator_topics = dict(self.topics)
        if self.group is not None:
            self.group.metadata_changed(has_new_topics=False)

    def metadata_changed(self, *, has_new_topics: bool = False) -> None:
        """Let clients and the coordinator learn of it, each in its time."""
        for client in self.clients.values():
            client.metadata_changed()
        self.coordinator_topics = dict(self.topics)
        if self.group is not None:
            self.group.metadata_changed(has_new_topics=has_new_topics)

    # Offsets

    def commit(self, partitions: Iterable[Partition]) -> None:
        """Store offsets; the fold reads no commits, only their tombstones."""
        for partition in sorted(partitions):
            self.committed[partition] = self.now
            self._offset += 1

    def _commit_all(self) -> None:
        for client in self.clients.values():
            self.commit_by(client)
        self.later(self._commit_ms, self._commit_all)

    def commit_by(self, client: Client) -> None:
        """A consumer commits by itself, if the coordinator takes it."""
        group, places = self.group, sorted(client.places)
        if not self._commit_ms or not places or not self.is_available:
            return
        if group is None or not group.takes_commit(client):
            return
        for topic, number in places:
            offset = self.now if self._is_busy else 0
            if client.spec.library == "librdkafka" and self._newest.get((topic, number)) == offset:
                continue  # it commits only what it has read since
            self._newest[topic, number] = offset
            self.commits.append(OwnCommit(self._offset, self.now, topic, number, offset))
            self._offset += 1

    def commit_elsewhere(self) -> None:
        """Another group's record comes in between."""
        self._offset += 1

    def reset_offsets(self, topic: str) -> None:
        """An administrator's commit."""
        if (self.group is not None and self.group.members) or topic not in self.topics:
            self.refused.append("the group has members")
            return
        self.commit((topic, number) for number in range(self.topics[topic].partitions))

    def delete_offsets(self, topic: str) -> None:
        """An administrator's OffsetDelete."""
        if self.group is not None and self.group.subscribes(topic):
            self.refused.append(f"the group subscribes to {topic}")
            return
        self._drop_commits([partition for partition in self.committed if partition[0] == topic])

    def _drop_commits(self, partitions: list[Partition]) -> None:
        for partition in partitions:
            del self.committed[partition]
        tombstones: list[tuple[str, str | None, Body | None]] = [("OffsetCommit", None, None)] * len(partitions)
        group = self.group
        # GroupMetadataManager.scala cleanupGroupMetadata: the group goes with its last offset.
        if partitions and self.version == "3.9" and not self.committed and group is not None and not group.members:
            self._remove(tombstones, "offsets deleted")
        elif partitions:
            self.write(tombstones)

    # The group's end

    def delete_group(self) -> None:
        """An administrator's DeleteGroups."""
        if self.group is not None and self.group.members:
            self.refused.append("the group has members")
        elif self.group is None and not self.committed:
            self.refused.append("no group")
        else:
            self._remove([("OffsetCommit", None, None)] * len(self.committed), "deleted")

    def _clean_up(self) -> None:
        self.later(self._retention_check_ms, self._clean_up)
        group = self.group
        if (group is not None and group.members) or (group is None and not self.committed):
            return
        if group is not None and group.is_preparing:
            return
        since = group.empty_since if group is not None else None
        old = [
            partition
            for partition, at in self.committed.items()
            if self.now - (at if since is None else since) >= RETENTION_MS
        ]
        if len(old) == len(self.committed):
            self._remove([("OffsetCommit", None, None)] * len(old), "expired" if old else "empty")
        elif old:
            self._drop_commits(old)

    def _remove(self, tombstones: list[tuple[str, str | None, Body | None]], removal: Removal) -> None:
        group = self.group
        own: list[tuple[str, str | None, Body | None]] = [("GroupMetadata", None, None)]
        if group is not None:
            own = group.tombstones()
        elif self.version == "3.9":
            own = []
        self.committed.clear()
        self.group = None
        if not own:
            self.write(tombstones)
            return
        self.write([*tombstones, *own], kind=None, removal=removal)
        self.incarnation += 1
