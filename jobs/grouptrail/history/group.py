"""A group at one moment, as its records describe it: the same model for every kind of group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Partition = tuple[str, int]
"""A topic and a partition; for Connect a connector and a task, for streams groups a subtopology and a task."""
Kind = Literal["classic", "consumer", "share", "streams"]
Role = Literal["active", "standby", "warmup"]

# Kafka Streams: `stream` is cooperative unless `upgrade.from` names a version before 2.4 (AssignorConfiguration).
_COOPERATIVE = ("cooperative-sticky", "compatible", "sessioned", "stream")

AWAY_EPOCH = -2
"""The member epoch of a static member that has left temporarily (KIP-848)."""


class Task(NamedTuple):
    """A task of Kafka Streams in a member's role; for Connect `subtopology` is the connector, the role active."""

    role: Role
    subtopology: str
    number: int


@dataclass(frozen=True, slots=True)
class Member:
    """A member; `owned` is None where its assignment could not be read, `topics` where its subscription could not.

    `claimed` and `claimed_generation` are the partitions that it claimed when it joined (sticky assignors). The
    fields after them are for broker-assigned groups: `target` is its target assignment, `previous_epoch` the one
    before its `epoch` (0: it has just joined), `is_settled` whether it has nothing to revoke or to wait for,
    `unrevoked_since` (ms) when it was last asked to revoke partitions: its rebalance timeout starts then;
    `away_since` (ms) when it left for now, as a static member.
    `tasks` are those that it has in any role, None where they are not known, or its client has none; `process_id` is
    that of its Kafka Streams instance, `endpoint` (host:port, or a URL) where other instances can query it, and
    `topology_epoch` that of the topology that it runs. `rejoins_at` (ms): its leader asked it to join again then, to
    see whether standbys have caught up (a probing rebalance of Kafka Streams).
    """

    member_id: str
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rack: str | None = None
    topics: tuple[str, ...] | None = ()
    topic_regex: str | None = None
    session_timeout_ms: int | None = None
    rebalance_timeout_ms: int | None = None
    owned: frozenset[Partition] | None = frozenset()
    claimed: frozenset[Partition] = frozenset()
    claimed_generation: int = -1
    assignor: str | None = None
    target: frozenset[Partition] | None = None
    epoch: int | None = None
    previous_epoch: int | None = None
    is_settled: bool = False
    unrevoked_since: int | None = None
    away_since: int | None = None
    tasks: frozenset[Task] | None = None
    process_id: str | None = None
    endpoint: str | None = None
    topology_epoch: int | None = None
    rejoins_at: int | None = None

    @property
    def client(self) -> dict[str, Any]:
        """What is known of its client, by column; it may change while the member stays."""
        names = ("client_id", "client_host", "process_id", "endpoint")
        return {name: getattr(self, name) for name in names}

    @property
    def identity(self) -> str:
        """The id that a static member keeps when it rejoins under a new member id."""
        return self.instance_id or self.member_id

    @property
    def time_to_rejoin_ms(self) -> int | None:
        """The rebalance timeout; records of version 0 have -1 there, and their session timeout is both."""
        timeout = self.rebalance_timeout_ms
        return self.session_timeout_ms if timeout is None or timeout < 0 else timeout

    @property
    def subscription(self) -> tuple[tuple[str, ...] | None, str | None]:
        """What it subscribes to: topics, and a pattern that the broker resolves."""
        return self.topics, self.topic_regex


class PartitionCount(NamedTuple):
    """A subscribed topic as brokers before 4.1 write it, with a checksum of its partitions' racks."""

    topic: str
    partitions: int
    racks: int | None


@dataclass(frozen=True, slots=True)
class Group:
    """A group; `kind` is None while there is none.

    `generation` is the group epoch if the broker assigns the group. For a classic group `state_at` (ms) is the last
    change of state, and `join_ended_at` (ms) the end of its generation's join phase, where known.
    `fragments` are members of which some records have been read, but not the one that adds them. `settled` counts the
    settled members by epoch, and under None those whose current assignment has not been read, so that a record need
    not look at every member.
    `partition_counts` are the subscribed topics' names, partition counts and checksums of their racks by id, which
    brokers before 4.1 write;
    `topic_ids` are the ids of assigned topics by name. `has_tasks`: a streams group had tasks assigned at some time,
    so that its topology was valid; 4.1 does not write which topology is.
    `keeps_back`: the leader of Connect workers withholds the tasks of a lost worker in case it returns.
    `lacks_records`: records of it could not be decoded, so that it may have members that are not known;
    `may_miss_records`: compaction may have taken some, where history begins or after a stop.
    `is_polled`: the group is known from polls, which miss changes in between; for a classic group the generation is
    then the number of changes that polls showed. `read_late_at`, `leader_epoch`, `record_offset`: those of its newest
    generation's record.
    `may_be_restart`: the record of a classic group's generation may be the one that a static member's return wrote in
    its place, with the time of the state Stable (GMM.updateStaticMemberThenRebalanceOrCompleteJoin).
    """

    kind: Kind | None = None
    protocol_type: str = ""
    protocol: str | None = None
    leader: str | None = None
    generation: int | None = None
    state_at: int | None = None
    join_ended_at: int | None = None
    assignment_epoch: int | None = None
    metadata_hash: int | None = None
    partition_counts: Mapping[str, PartitionCount] | None = None
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    topology_epoch: int | None = None
    validated_topology_epoch: int | None = None
    settings: tuple[tuple[str, str], ...] = ()
    has_tasks: bool = False
    members: Mapping[str, Member] = field(default_factory=dict)
    fragments: Mapping[str, Member] = field(default_factory=dict)
    regexes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    settled: Mapping[int | None, int] = field(default_factory=dict)
    keeps_back: bool = False
    lacks_records: bool = False
    may_miss_records: bool = False
    is_polled: bool = False
    read_late_at: int | None = None
    leader_epoch: int | None = None
    record_offset: int | None = None
    may_be_restart: bool = False

    @property
    def is_cooperative(self) -> bool:
        """Whether members keep what they own through a rebalance."""
        return self.kind != "classic" or self.protocol in _COOPERATIVE

    @property
    def state(self) -> str | None:
        """The state as Kafka derives it; None while too little is known."""
        if self.kind is None or self.generation is None:
            return None
        if self.lacks_members:
            return None
        if not self.members:
            return "Empty"
        if self.kind in ("classic", "share"):
            return "Stable"
        return self._reconciliation()

    @property
    def lacks_members(self) -> bool:
        """Whether it has members, as far as is known, and none of them is known.

        Before 4.4 no target is computed for an epoch without members.
        """
        is_assigned = self.kind not in (None, "classic") and 0 < (self.generation or 0) <= (
            self.assignment_epoch or 0
        )
        return not self.members and (self.lacks_records or (self.may_miss_records and is_assigned))

    @property
    def assignor(self) -> str | None:
        """The protocol of a classic group; of a consumer group the assignor that most of its members prefer.

        None for the broker's default, and for a tie (ConsumerGroup.preferredServerAssignor).
        """
        if self.kind != "consumer":
            return self.protocol
        wanted = Counter(member.assignor for member in self.members.values() if member.assignor).most_common(2)
        is_tie = len(wanted) == 2 and wanted[0][1] == wanted[1][1]
        return wanted[0][0] if wanted and not is_tie else None

    def _reconciliation(self) -> str | None:
        """Return the state; None if only members whose current assignment was not read are not settled.

        A member that joins gets one at once (GMM.consumerGroupHeartbeat): its record is gone, or cannot be decoded.
        """
        if self.kind == "streams" and not self._is_ready:
            return "NotReady"
        if (self.generation or 0) > (self.assignment_epoch or 0):
            return "Assigning"
        settled = self.settled.get(self.assignment_epoch or 0, 0)
        if settled == len(self.members):
            return "Stable"
        return "Reconciling" if settled + self.settled.get(None, 0) < len(self.members) else None

    @property
    def _is_ready(self) -> bool:
        """Whether a streams group's topology is valid; 4.1 writes neither `validatedTopologyEpoch` nor settings."""
        if not self.settings and (self.validated_topology_epoch or 0) < 0 and self.has_tasks:
            return True
        return self.topology_epoch is not None and self.topology_epoch == self.validated_topology_epoch


def partitions(topics: Iterable[tuple[str, Iterable[int]]]) -> frozenset[Partition]:
    """Return the set of partitions in (topic, partitions) pairs; a topic may occur more than once."""
    return frozenset((topic, number) for topic, numbers in topics for number in numbers)


def by_topic(owned: Iterable[Partition]) -> list[dict[str, Any]]:
    """Return partitions as sorted (topic, partitions) elements of a row: the inverse of `partitions`."""
    numbers_of: dict[str, list[int]] = {}
    for topic, number in sorted(owned):
        numbers_of.setdefault(topic, []).append(number)
    return [{"topic": topic, "partitions": numbers} for topic, numbers in numbers_of.items()]


def settled_by_epoch(members: Iterable[Member]) -> Counter[int | None]:
    """Return the number of settled members by epoch, for `Group.settled`."""
    return Counter(member.epoch for member in members if member.is_settled or member.epoch is None)


def owned_by_anyone(group: Group) -> frozenset[Partition] | None:
    """Return all partitions that a group's members own; None where those of a member are not known."""
    owned = [member.owned for member in group.members.values()]
    return None if None in owned else frozenset().union(*(one for one in owned if one is not None))


def targeted(group: Group) -> frozenset[Partition]:
    """Return all partitions in the members' target assignments."""
    return frozenset().union(*(member.target or frozenset() for member in group.members.values()))


def assigned_to(group: Group, member: Member) -> frozenset[Partition] | None:
    """Return what the group's assignment gives a member, including what it does not own yet; None if not known."""
    return member.owned if group.kind == "classic" or member.target is None else member.target
