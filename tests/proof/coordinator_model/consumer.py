"""The coordinator of KIP-848 groups (GroupMetadataManager, TargetAssignmentBuilder, CurrentAssignmentBuilder)."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal, cast

from proof.coordinator_model.assignors import sticky
from proof.coordinator_model.clients import BaseClient, Client
from proof.coordinator_model.cluster import HEARTBEAT_MS, NOTHING, Body, Cluster, Departure, Partition, TrueMember
from proof.coordinator_model.schedule import Join

if TYPE_CHECKING:
    from proof.coordinator_model.classic import ClassicGroup
    from proof.coordinator_model.clients import ClassicClient

ASSIGNMENT_INTERVAL_MS = 1_000
STABLE, UNREVOKED, UNRELEASED = 0, 1, 2
AWAY = -2

Written = tuple[str, str | None, Body | None]
TopicMetadata = dict[str, tuple[str, int]]


class ConsumerClient(BaseClient):
    """A consumer of the consumer protocol; its id is its own and lasts as long as its process."""

    def __init__(self, cluster: Cluster, spec: Join, *, was_member: bool) -> None:
        super().__init__(cluster, spec, was_member=was_member)
        self.member_id = cluster.new_id("uuid")
        self.epoch = 0
        self.received: frozenset[Partition] = NOTHING
        self.revoking = False
        self.is_due = False
        self.poke(30)

    def poke(self, within_ms: int = HEARTBEAT_MS) -> None:
        """The next heartbeat comes within so long."""
        if not self.is_due and not self.is_silent:
            self.is_due = True
            self.cluster.later(self.cluster.random.choice((0, 1, within_ms // 3, within_ms)), self._heartbeat)

    def _heartbeat(self) -> None:
        self.is_due = False
        if self.is_silent:
            return
        if not self.cluster.is_available:
            self.poke()
            return
        if self.epoch == 0 and not self.can_act:
            return
        found = group_to_join(self.cluster, self)
        if isinstance(found, str):
            self.cluster.refused.append(f"{self.name}: {found}")
            self.crash()
            return
        group, before = found
        answer = group.heartbeat(self, None if self.revoking or not self.can_act else self.owned, before)
        if answer == "UNKNOWN_MEMBER_ID":
            self.epoch, self.received, self.owned, self.revoking = 0, NOTHING, NOTHING, False
            self.was_member = True
            self.poke(10)
        elif answer != "NONE":
            self.cluster.refused.append(f"{self.name}: {answer}")
            self.crash()
        elif group.is_busy:
            self.poke()

    def answered(self, epoch: int, assigned: frozenset[Partition]) -> None:
        """The answer to a heartbeat."""
        self.epoch = epoch
        if assigned == self.received and not (self.owned - assigned):
            return
        self.received = assigned
        if self.owned - assigned:
            if not self.revoking:
                self.revoking = True
                self.cluster.later(self.cluster.random.choice((1, 20, 2_000)), self._revoked)
        else:
            self.owned = assigned

    def _revoked(self) -> None:
        if self.is_over or not self.revoking:
            return
        if not self.can_act:
            self.cluster.later(1_000, self._revoked)
            return
        self.revoking = False
        self.owned = self.received
        self.poke(5)

    def commit(self) -> None:
        if self.cluster.is_available:
            self.cluster.commit(self.places)

    @property
    def places(self) -> Iterable[Partition]:
        """What it may commit."""
        names = self.cluster.names
        held = ((names[topic_id], number) for topic_id, number in self.owned if topic_id in names)
        return [place for place in held if self.can_act and place[0] in self.cluster.topics]

    @property
    def consumer_group(self) -> ConsumerGroup | None:
        group = self.cluster.group
        return group if isinstance(group, ConsumerGroup) else None

    def leave(self, *, for_good: bool) -> None:
        group = self.consumer_group
        self.cluster.commit_by(self)
        if group is not None and self.epoch > 0:
            group.leave(self.member_id, for_good=for_good)
        super().crash()

    def crash(self) -> None:
        super().crash()
        self._fell_silent()

    def stall(self, how: str) -> None:
        super().stall(how)
        if how == "frozen":
            self._fell_silent()

    def _fell_silent(self) -> None:
        group = self.consumer_group
        if group is not None:
            group.fell_silent(self.member_id)

    def _leave_if_still_slow(self) -> None:
        if not self.cluster.is_available:
            self.cluster.later(1_000, self._leave_if_still_slow)
            return
        group = self.consumer_group
        if self.stalled == "slow" and not self.is_over and group is not None and self.epoch > 0:
            group.leave(self.member_id, for_good=False)
            self.epoch, self.received, self.owned, self.revoking = 0, NOTHING, NOTHING, False
            self.was_member = True

    def subscribe(self, topics: tuple[str, ...]) -> None:
        self.topics = topics
        self.poke(10)

    def rejoin(self) -> None:
        """The consumer protocol has no such request."""

    def metadata_changed(self) -> None:
        """The coordinator looks at topics."""

    def coordinator_moved(self) -> None:
        """The next heartbeat finds the other one."""
        self.poke()


@dataclass(frozen=True, slots=True)
class Classic:
    """What a member of the classic protocol said when it joined (ClassicMemberMetadata)."""

    session_ms: int
    assignors: tuple[str, ...]
    claimed: frozenset[Partition]
    claimed_generation: int


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """A member as its records have it; `classic` is of one that uses the classic protocol.

    `came_by` is what will be the reason for an epoch when its pattern is resolved.
    """

    member_id: str
    client: BaseClient
    instance_id: str | None
    rebalance_ms: int
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    epoch: int = 0
    previous_epoch: int = 0
    state: int = STABLE
    assigned: frozenset[Partition] = NOTHING
    revoking: frozenset[Partition] = NOTHING
    classic: Classic | None = None
    came_by: frozenset[str] = frozenset()

    @property
    def session_ms(self) -> int:
        return self.client.cluster.consumer_session_ms if self.classic is None else self.classic.session_ms

    @property
    def is_silent(self) -> bool:
        return self.client.is_silent or self.client.member_id != self.member_id or self.epoch == AWAY


class ConsumerGroup:
    """A KIP-848 group in its coordinator's memory, all of which is in the log."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.members: dict[str, ConsumerMember] = {}
        self.targets: dict[str, frozenset[Partition]] = {}
        self.patterns: dict[str, tuple[str, ...]] = {}
        self.epoch = self.assignment_epoch = 1 if cluster.version >= "4.3" else 0
        self.has_epoch = False
        self.metadata: TopicMetadata = {}
        self.has_counts = False
        self.metadata_hash = 0
        self.is_stale = False
        self._assigned_at = 0
        self._session_from: dict[str, int] = {}
        self._timers: dict[str, int] = {}
        self._timer = 0
        self._resolving: set[str] = set()
        self._resolved_at: dict[str, int] = {}
        self._joins: dict[str, int] = {}
        self._syncs: dict[str, int] = {}
        self.reasons: set[str] = set()
        self.departures: dict[str, Departure] = {}
        self.hidden = 0

    # Called by the cluster and by clients

    leader = None
    is_preparing = False
    empty_since = None

    @property
    def state(self) -> Literal["Empty", "Assigning", "Reconciling", "Stable"]:
        if not self.members:
            return "Empty"
        if self.epoch > self.assignment_epoch:
            return "Assigning"
        settled = all(
            member.state == STABLE and member.epoch == self.assignment_epoch for member in self.members.values()
        )
        return "Stable" if settled else "Reconciling"

    @property
    def is_busy(self) -> bool:
        """Whether heartbeats still change something."""
        return self.state != "Stable" or self.is_stale or bool(self._unresolved)

    @property
    def _unresolved(self) -> set[str]:
        return {
            member.pattern for member in self.members.values() if member.pattern is not None
        } - self.patterns.keys()

    def subscribes(self, topic: str) -> bool:
        return topic in self._subscribed(self.members.values())

    def metadata_changed(self, *, has_new_topics: bool) -> None:
        self.is_stale = True
        # Only new topics make it resolve patterns again (GMM.lastMetadataImageWithNewTopics): after a topic was
        # deleted, those of other groups may.
        if has_new_topics or self.cluster.random.random() < 0.3:
            for pattern in self.patterns:
                self.cluster.later(self.cluster.random.choice((100, 5_000, 12_000)), partial(self._resolve, pattern))
        for member in self.members.values():
            member.client.poke()

    def tombstones(self) -> list[Written]:
        parts = ("TargetAssignmentMetadata", "PartitionMetadata", "Metadata")
        return [(f"ConsumerGroup{part}", None, None) for part in parts]

    def to_classic(self, client: ClassicClient) -> ClassicGroup:
        """Replace the empty group by a classic one."""
        from proof.coordinator_model.classic import ClassicGroup

        group = ClassicGroup(self.cluster)
        client.member_id, client.generation = "", -1
        self.cluster.group = group
        group.create(self.tombstones())
        return group

    # Heartbeats

    def heartbeat(
        self, client: ConsumerClient, owned: frozenset[Partition] | None, before: Iterable[Written] = ()
    ) -> str:
        """ConsumerGroupHeartbeat; `before` is what the group's creation writes."""
        records = list(before)
        known = self.members.get(client.member_id)
        is_joining = client.epoch == 0
        if known is None and not is_joining:
            return "UNKNOWN_MEMBER_ID"
        if known is None and (old := self._static(client)) is not None:
            # Not modelled: a static member that comes back with the other protocol.
            if old.epoch != AWAY or old.classic is not None:
                return "UNRELEASED_INSTANCE_ID"
            known = self._replace(old, client, records)
        member = self._update(client, known, NOTHING if is_joining and known is None else owned, records)
        if member.pattern is not None and member.pattern not in self.patterns:
            self._resolve_soon(member.pattern)
        client.answered(member.epoch, member.assigned)
        return "NONE"

    def _update(
        self,
        client: BaseClient,
        known: ConsumerMember | None,
        owned: frozenset[Partition] | None,
        records: list[Written],
    ) -> ConsumerMember:
        """Take in a member's request, and what it owns; write what follows from it."""
        bumps = self._describe(known, client, records)
        member_id = client.member_id
        self._session_from[member_id] = self.cluster.now
        is_upgrade = any(kind == "ConsumerGroupMetadata" and body for kind, _, body in records)
        is_new_epoch = self._bump_if(bumps, records)
        if is_upgrade and not is_new_epoch:  # the last generation is in the log now, as an epoch
            is_new_epoch, self.hidden = True, max(0, self.hidden - 1)
        self._assign_if_due(records)
        is_resubscribed = known is not None and known.topics != self.members[member_id].topics
        self._reconcile(member_id, owned, records, is_resubscribed=is_resubscribed)
        if records:
            self._write(records, is_new_epoch=is_new_epoch)
            for other in self.members.values():
                other.client.poke()
        return self.members[member_id]

    def _describe(self, known: ConsumerMember | None, client: BaseClient, records: list[Written]) -> bool:
        """Take in what a member says of itself; return whether that calls for a new epoch."""
        pattern = client.spec.pattern if isinstance(client, ConsumerClient) else None
        member = replace(
            known or ConsumerMember(client.member_id, client, client.spec.instance_id, client.spec.rebalance_ms),
            client=client,
            client_id=client.client_id,
            client_host=client.client_host,
            topics=tuple(sorted(client.named_topics)) if pattern is None else (),
            pattern=pattern,
            classic=None if isinstance(client, ConsumerClient) else _classic(cast("ClassicClient", client)),
        )
        self.members[member.member_id] = member
        if known is None or _description(known) != _description(member):
            records.append(self._of("MemberMetadata", member.member_id, _description(member)))
        if known is None:
            reasons = {"member_joined"} | ({"member_rejoined"} if client.was_member else set())
            bumps = bool(member.topics) or pattern in self.patterns or self.epoch == 0
        else:
            is_other = (known.topics, known.pattern) != (member.topics, pattern)
            reasons = {"subscription_changed"} if is_other else set()
            bumps = known.topics != member.topics or (known.pattern != pattern and pattern in self.patterns)
        if reasons:
            self.members[member.member_id] = replace(member, came_by=frozenset(reasons))
        if known is not None and known.pattern != pattern:
            records += self._without_unused_patterns()
        self.reasons |= reasons if bumps else set()
        return bumps

    def _static(self, client: BaseClient) -> ConsumerMember | None:
        """Return the current member of a static instance id."""
        instance_id = client.spec.instance_id
        return next((one for one in self.members.values() if instance_id and one.instance_id == instance_id), None)

    def _replace(self, old: ConsumerMember, client: ConsumerClient, records: list[Written]) -> ConsumerMember:
        """A static member comes back (GMM.replaceMember)."""
        new = replace(old, member_id=client.member_id, epoch=0, previous_epoch=0)
        target = self.targets.get(old.member_id, NOTHING)
        records += self._without(old.member_id, "replaced")
        self.members[new.member_id] = new
        self.targets[new.member_id] = target
        records.append(self._of("MemberMetadata", new.member_id, _description(new)))
        records.append(self._of("TargetAssignmentMember", new.member_id, _target(target)))
        records.append(self._of("CurrentMemberAssignment", new.member_id, _current(new)))
        return new

    def _of(self, part: str, name: str | None, body: Body | None) -> Written:
        return (f"ConsumerGroup{part}", name, body)

    # Members of the classic protocol

    @classmethod
    def upgraded(cls, group: ClassicGroup) -> tuple[ConsumerGroup, list[Written]]:
        """What becomes of a classic group that a consumer of this protocol joins, and what is written of it before
        (ConsumerGroup.fromClassicGroup)."""
        made = cls(group.cluster)
        made.epoch = made.assignment_epoch = group.generation
        made.has_epoch = True
        made.reasons, made.departures, made.hidden = group.reasons, group.departures, group.hidden
        for name, one in group.members.items():
            made.members[name] = ConsumerMember(
                name,
                one.client,
                one.instance_id,
                one.rebalance_ms,
                one.client_id,
                one.client_host,
                tuple(sorted(one.topics)),
                epoch=group.generation,
                previous_epoch=group.generation,
                assigned=made._ids_of(one.assignment or NOTHING),
                classic=Classic(one.session_ms, one.assignors, one.claimed, one.claimed_generation),
            )
            made.targets[name] = made.members[name].assigned
            made._session_from[name] = group.cluster.now
        group.upgrade()
        for name, member in made.members.items():
            if member.is_silent:
                made._watch(name)
            else:
                member.client.poke()
        return made, [*group.tombstones(), *made._creation()]

    def _creation(self) -> list[Written]:
        """The records of an upgraded group (ConsumerGroup.createConsumerGroupRecords)."""
        epoch: Body = {"epoch": self.epoch}
        if self.cluster.version not in ("3.9", "4.0"):
            self.metadata = self._present()
            self.metadata_hash = _hash_of(self.metadata)
            epoch |= {"metadataHash": self.metadata_hash} if self.metadata_hash else {}
        members = self.members.items()
        return [
            *(self._of("MemberMetadata", name, _description(member)) for name, member in members),
            self._of("Metadata", None, epoch),
            *(self._of("TargetAssignmentMember", name, _target(self.targets[name])) for name, _ in members),
            self._of("TargetAssignmentMetadata", None, {"assignmentEpoch": self.epoch}),
            *(self._of("CurrentMemberAssignment", name, _current(member)) for name, member in members),
        ]

    def _ids_of(self, partitions: Iterable[Partition]) -> frozenset[Partition]:
        """The partitions of topics that are there, by topic id."""
        topics = self.cluster.coordinator_topics
        return frozenset((topics[name].topic_id, number) for name, number in partitions if name in topics)

    def has(self, member_id: str) -> bool:
        return member_id in self.members

    def takes_commit(self, client: Client) -> bool:
        """Take a member's commit."""
        return client.member_id in self.members

    def protocol_of(self, client: ClassicClient) -> str | None:
        """The assignor by whose protocol a client is a member."""
        return client.spec.assignors[0]

    def accepts(self, client: ClassicClient) -> bool:
        others = [member for member in self.members.values() if member.member_id != client.member_id]
        instance_id = client.spec.instance_id
        if instance_id is not None and any(member.instance_id == instance_id for member in others):
            return False  # not modelled
        common = set(client.spec.assignors).intersection(*(one.classic.assignors for one in others if one.classic))
        return bool(common)

    def join(self, client: ClassicClient) -> None:
        """JoinGroup (GMM.classicGroupJoinToConsumerGroup)."""
        known = self.members.get(client.member_id)
        if known is None and client.member_id:
            client.lost()
            return
        if known is None:
            client.member_id = self.cluster.new_id("uuid")
        member = self._update(client, known, self._ids_of(client.claim[0]), [])
        self._joins.pop(member.member_id, None)
        self._fence_unless_done(self._syncs, member, "sync timeout")
        epoch, session = member.epoch, client.session
        self.cluster.later(
            self.cluster.latency(), lambda: client.joined(member.member_id, epoch, leader=False, session=session)
        )

    def sync(self, client: ClassicClient, generation: int) -> None:
        """SyncGroup (GMM.classicGroupSyncToConsumerGroup)."""
        member = self.members.get(client.member_id)
        wanted = self.assignment_epoch if self.cluster.version >= "4.3" else self.epoch
        if member is None:
            client.lost()
        elif member.epoch != generation or (member.epoch < wanted and member.state != UNREVOKED):
            self._fence_unless_done(self._joins, member, "rebalance timeout")
            client.join_again()
        else:
            self._syncs.pop(member.member_id, None)
            names = self.cluster.names
            assigned = frozenset((names[topic_id], number) for topic_id, number in member.assigned)
            session = client.session
            self.cluster.later(self.cluster.latency(), lambda: client.synced(generation, assigned, session))

    def classic_heartbeat(self, client: ClassicClient) -> str:
        """Heartbeat (GMM.classicGroupHeartbeatToConsumerGroup)."""
        member = self.members.get(client.member_id)
        if member is None:
            return "UNKNOWN_MEMBER_ID"
        self._session_from[member.member_id] = self.cluster.now
        waits = self.targets.get(member.member_id, NOTHING) - member.assigned
        is_free = not waits & self._held_by_others(member)
        if (
            member.epoch < self.epoch
            or member.state == UNREVOKED
            or (member.state == UNRELEASED and is_free)
            or client.generation != member.epoch
        ):
            self._fence_unless_done(self._joins, member, "rebalance timeout")
            return "REBALANCE_IN_PROGRESS"
        return "NONE"

    def classic_leave(self, member_id: str, how: Departure) -> None:
        """LeaveGroup, of a member or in its place by an administrator."""
        if member_id in self.members:
            self._fence(member_id, how, "member_left" if how == "left" else "member_removed")

    def _fence_unless_done(self, waiting: dict[str, int], member: ConsumerMember, how: Departure) -> None:
        """A member has to join, or to sync, within its rebalance timeout."""
        if member.member_id in waiting:
            return
        self._timer += 1
        timer = waiting[member.member_id] = self._timer

        def fence() -> None:
            is_due = waiting.get(member.member_id) == timer and self.cluster.group is self
            if is_due and member.member_id in self.members and self.cluster.is_available:
                self._fence(member.member_id, how, "member_expired")

        self.cluster.later(member.rebalance_ms, fence)

    def _downgrade(self, member_id: str) -> None:
        """Remove the last member of this protocol; the others form a classic group (GMM.convertToClassicGroup)."""
        from proof.coordinator_model.classic import ClassicGroup

        names = self.cluster.names
        each = list(self.members)
        records = [self._of("CurrentMemberAssignment", name, None) for name in each]
        records += [self._of("TargetAssignmentMember", name, None) for name in each]
        records.append(self._of("TargetAssignmentMetadata", None, None))
        records += [self._of("MemberMetadata", name, None) for name in each]
        records += [self._of("RegularExpression", pattern, None) for pattern in self.patterns]
        records += [self._of("PartitionMetadata", None, None), self._of("Metadata", None, None)]
        del self.members[member_id]
        assigned = {
            name: frozenset((names[topic_id], number) for topic_id, number in self.targets.get(name, NOTHING))
            for name in self.members
        }
        present = {
            name: frozenset(place for place in places if place[0] in self.cluster.coordinator_topics)
            for name, places in assigned.items()
        }
        group = self.cluster.group = ClassicGroup.downgraded(self, present)
        group.begin(records)

    # Members that leave or expire

    def leave(self, member_id: str, *, for_good: bool) -> None:
        """A heartbeat with epoch -1, or -2 of a static member."""
        member = self.members.get(member_id)
        if member is None:
            return
        if member.instance_id is not None and not for_good:
            self.members[member_id] = away = replace(member, epoch=AWAY, revoking=NOTHING)
            self._write([self._of("CurrentMemberAssignment", member_id, _current(away))], is_new_epoch=False)
            self._watch(member_id)
        else:
            self._fence(member_id, "left", "member_left")

    def fell_silent(self, member_id: str) -> None:
        """Start the session timer: the member sends no more heartbeats."""
        if member_id in self.members:
            last = self.cluster.now - self.cluster.random.randrange(HEARTBEAT_MS)
            self._session_from[member_id] = max(self._session_from.get(member_id, 0), last)
            self._watch(member_id)

    def _watch(self, member_id: str) -> None:
        due = max(1, self._session_from[member_id] + self.members[member_id].session_ms - self.cluster.now)
        self.cluster.later(due, lambda: self._expire(member_id))

    def _expire(self, member_id: str) -> None:
        member = self.members.get(member_id)
        if self.cluster.group is not self or not self.cluster.is_available or member is None or not member.is_silent:
            return
        if self._session_from[member_id] + member.session_ms > self.cluster.now:
            self._watch(member_id)
        else:
            self._fence(member_id, "session", "member_expired")

    def _fence(self, member_id: str, how: Departure, reason: str) -> None:
        """Remove a member (GMM.consumerGroupFenceMember)."""
        client = self.members[member_id].client
        others = [member for name, member in self.members.items() if name != member_id]
        if others and all(member.classic is not None for member in others):
            self.departures[member_id] = how
            self.reasons.add(reason)
            self._downgrade(member_id)
            if not client.is_silent:
                client.poke()
            return
        records = self._without(member_id, how)
        records += self._without_unused_patterns()
        self.reasons.add(reason)
        self._bump_if(True, records)
        self._write(records, is_new_epoch=True)
        if not client.is_silent:
            client.poke()
        for member in self.members.values():
            member.client.poke()

    def _without(self, member_id: str, how: Departure) -> list[Written]:
        self.departures[member_id] = how
        del self.members[member_id]
        self.targets.pop(member_id, None)
        for timers in (self._timers, self._joins, self._syncs):
            timers.pop(member_id, None)
        parts = ("CurrentMemberAssignment", "TargetAssignmentMember", "MemberMetadata")
        return [self._of(part, member_id, None) for part in parts]

    # Epochs

    def _subscribed(self, members: Iterable[ConsumerMember]) -> set[str]:
        topics: set[str] = set()
        for member in members:
            topics.update(member.topics if member.pattern is None else self.patterns.get(member.pattern, ()))
        return topics

    def _present(self) -> TopicMetadata:
        topics = self.cluster.coordinator_topics
        wanted = sorted(self._subscribed(self.members.values()) & topics.keys())
        return {topics[topic].topic_id: (topic, topics[topic].partitions) for topic in wanted}

    def _bump_if(self, bumps: bool, records: list[Written]) -> bool:
        """The metadata of subscribed topics, and a new epoch where it differs or another reason is given."""
        if not (bumps or self.is_stale):
            return False
        present = self._present()
        self.is_stale = False
        counts = self.cluster.version in ("3.9", "4.0")
        new_hash = 0 if counts else _hash_of(present)
        differs = present != self.metadata if counts else new_hash != self.metadata_hash
        if differs:
            if not bumps:
                self.reasons |= _topic_reasons(
                    self.metadata, present, self.cluster.version, had_counts=self.has_counts
                )
            if counts:
                topics = [
                    {"topicId": topic_id, "topicName": name, "numPartitions": count, "partitionMetadata": []}
                    for topic_id, (name, count) in present.items()
                ]
                records.append(self._of("PartitionMetadata", None, {"topics": topics}))
        if not (bumps or differs):
            return False
        if self.has_counts and not counts:
            records.append(self._of("PartitionMetadata", None, None))
        self.has_counts = counts
        self.metadata, self.metadata_hash = present, new_hash
        self.epoch += 1
        self.has_epoch = True
        body: Body = {"epoch": self.epoch}
        if new_hash:
            body["metadataHash"] = new_hash
        records.append(self._of("Metadata", None, body))
        if not self.members and self.cluster.version >= "4.4":
            self.assignment_epoch, self._assigned_at = self.epoch, 0
            records.append(self._of("TargetAssignmentMetadata", None, {"assignmentEpoch": self.epoch}))
        return True

    def _assign_if_due(self, records: list[Written]) -> None:
        if self.epoch <= self.assignment_epoch:
            return
        if self.cluster.version >= "4.3" and self.cluster.now - self._assigned_at < ASSIGNMENT_INTERVAL_MS:
            return
        topics = {
            name: [
                topic_id
                for topic_id, (topic, _) in self.metadata.items()
                if topic in (member.topics if member.pattern is None else self.patterns.get(member.pattern, ()))
            ]
            for name, member in self.members.items()
        }
        targets = sticky(topics, self.targets, {topic_id: count for topic_id, (_, count) in self.metadata.items()})
        changed = [name for name in targets if targets[name] != self.targets.get(name)]
        self.cluster.random.shuffle(changed)
        records += [self._of("TargetAssignmentMember", name, _target(targets[name])) for name in changed]
        self.targets = targets
        self.assignment_epoch, self._assigned_at = self.epoch, self.cluster.now
        body: Body = {"assignmentEpoch": self.epoch}
        if self.cluster.version >= "4.3":
            body["assignmentTimestamp"] = self.cluster.now
        records.append(self._of("TargetAssignmentMetadata", None, body))

    # Reconciliation

    def _reconcile(
        self,
        member_id: str,
        owned: frozenset[Partition] | None,
        records: list[Written],
        *,
        is_resubscribed: bool,
    ) -> None:
        member = self.members[member_id]
        keeps_to_topics = is_resubscribed and self.cluster.version >= "4.3"
        if member.state == STABLE and member.epoch == self.assignment_epoch and not keeps_to_topics:
            return
        updated = self._next(member, owned, keeps_to_topics=keeps_to_topics)
        if updated == member:
            return
        self.members[member_id] = updated
        records.append(self._of("CurrentMemberAssignment", member_id, _current(updated)))
        self._timers.pop(member_id, None)
        if updated.state == UNREVOKED and updated.classic is None:
            self._schedule_rebalance_timeout(updated)

    def _next(
        self, member: ConsumerMember, owned: frozenset[Partition] | None, *, keeps_to_topics: bool
    ) -> ConsumerMember:
        """CurrentAssignmentBuilder.build."""
        if member.state == UNREVOKED:
            if owned is None or owned & member.revoking:
                return self._without_other_topics(member, owned) if keeps_to_topics else member
            return self._compute(member, member.epoch + (self.cluster.version < "4.3"), owned)
        if member.state == STABLE and member.epoch == self.assignment_epoch:
            return self._without_other_topics(member, owned)
        return self._compute(member, member.epoch, owned)

    def _without_other_topics(self, member: ConsumerMember, owned: frozenset[Partition] | None) -> ConsumerMember:
        """What it does not subscribe to any more it gives up at once, before there is another target (4.3)."""
        wanted = self._topic_ids_of(member)
        others = frozenset(place for place in member.assigned if place[0] not in wanted)
        if not others:
            return member
        revoking = member.revoking | others
        if owned is not None and not owned & revoking:
            return replace(member, previous_epoch=member.epoch, assigned=member.assigned - others)
        return replace(
            member,
            state=UNREVOKED,
            previous_epoch=member.epoch,
            assigned=member.assigned - others,
            revoking=revoking,
        )

    def _topic_ids_of(self, member: ConsumerMember) -> set[str]:
        """The topics that it subscribes to, as far as they are there."""
        wanted = member.topics if member.pattern is None else self.patterns.get(member.pattern, ())
        return {
            self.cluster.coordinator_topics[topic].topic_id
            for topic in wanted
            if topic in self.cluster.coordinator_topics
        }

    def _held_by_others(self, member: ConsumerMember) -> frozenset[Partition]:
        others = (one for one in self.members.values() if one.member_id != member.member_id)
        return frozenset[Partition]().union(*(one.assigned | one.revoking for one in others))

    def _compute(self, member: ConsumerMember, epoch: int, owned: frozenset[Partition] | None) -> ConsumerMember:
        target = self.targets.get(member.member_id, NOTHING)
        if self.cluster.version >= "4.3":
            wanted = self._topic_ids_of(member)
            target = frozenset(place for place in target if place[0] in wanted)
        kept = member.assigned & target
        revoking = member.assigned - kept
        held = self._held_by_others(member) | (member.revoking if member.state != UNREVOKED else NOTHING)
        pending = target - kept
        free = pending - held
        previous = member.epoch
        if revoking and (owned is None or owned & revoking):
            return replace(
                member, state=UNREVOKED, epoch=epoch, previous_epoch=previous, assigned=kept, revoking=revoking
            )
        state = UNRELEASED if pending - free else STABLE
        return replace(
            member,
            state=state,
            epoch=self.assignment_epoch,
            previous_epoch=previous,
            assigned=kept | free,
            revoking=NOTHING,
        )

    def _schedule_rebalance_timeout(self, member: ConsumerMember) -> None:
        self._timer += 1
        timer = self._timers[member.member_id] = self._timer

        def fence() -> None:
            now = self.members.get(member.member_id)
            is_due = self._timers.get(member.member_id) == timer and self.cluster.group is self
            if is_due and now is not None and now.epoch == member.epoch:
                self._fence(member.member_id, "rebalance timeout", "member_expired")

        self.cluster.later(member.rebalance_ms, fence)

    # Patterns

    def _resolve_soon(self, pattern: str) -> None:
        # GMM.REGEX_BATCH_REFRESH_MIN_INTERVAL_MS; a later heartbeat tries again.
        is_too_soon = any(self.cluster.now <= at + 10_000 for at in self._resolved_at.values())
        if pattern not in self._resolving and not is_too_soon:
            self._resolving.add(pattern)
            self.cluster.later(self.cluster.random.choice((5, 100)), lambda: self._resolve(pattern))

    def _without_unused_patterns(self) -> list[Written]:
        unused = self.patterns.keys() - {member.pattern for member in self.members.values()}
        for pattern in sorted(unused):
            del self.patterns[pattern], self._resolved_at[pattern]
        return [self._of("RegularExpression", pattern, None) for pattern in sorted(unused)]

    def _resolve(self, pattern: str) -> None:
        """A pattern's topics, found by another thread."""
        self._resolving.discard(pattern)
        if self.cluster.group is not self or not self.cluster.is_available:
            return
        if pattern not in {member.pattern for member in self.members.values()}:
            return
        topics = tuple(sorted(topic for topic in self.cluster.coordinator_topics if re.match(pattern, topic)))
        had = self.patterns.get(pattern)
        self.patterns[pattern], self._resolved_at[pattern] = topics, self.cluster.now
        body = {"topics": list(topics), "version": 1, "timestamp": self.cluster.now}
        records = [self._of("RegularExpression", pattern, body)]
        is_new_epoch = False
        # Compared is how many patterns match each topic (GMM.handleRegularExpressionsResult), even if others name it.
        if set(topics) != set(had or ()):
            if had is None:
                self.reasons.update(*(one.came_by for one in self.members.values() if one.pattern == pattern))
            self.reasons |= {"topic_created"} if had is not None and set(topics) - set(had) else set()
            self.reasons |= {"topic_deleted"} if had is not None and set(had) - set(topics) else set()
            is_new_epoch = self._bump_if(True, records)
        self._write(records, is_new_epoch=is_new_epoch)
        if not is_new_epoch:
            # Not modelled: a heartbeat's epoch right behind it in the same millisecond, which reads like its own.
            self.cluster.commit_elsewhere()
        for member in self.members.values():
            member.client.poke()

    # The log

    def _write(self, records: Iterable[Written], *, is_new_epoch: bool) -> None:
        names = self.cluster.names

        def named(partitions: frozenset[Partition]) -> frozenset[Partition]:
            return frozenset((names[topic_id], number) for topic_id, number in partitions)

        members = {
            name: TrueMember(
                name,
                member.instance_id,
                member.client.name,
                member.client_id,
                member.client_host,
                member.topics,
                named(self.targets.get(name, NOTHING)),
                named(member.assigned | member.revoking),
            )
            for name, member in self.members.items()
        }
        self.cluster.write(
            records,
            kind="consumer",
            generation=self.epoch if self.has_epoch else None,
            state=self.state,
            members=members,
            is_new_generation=is_new_epoch,
            is_assigned=self.assignment_epoch >= self.epoch or not members,
            reasons=frozenset(self.reasons) if is_new_epoch else frozenset(),
            hidden=self.hidden,
            departures=dict(self.departures),
        )
        self.departures, self.hidden = {}, 0
        if is_new_epoch:
            self.reasons = set()

    def reload(self) -> ConsumerGroup:
        """Another coordinator loads the same state from the log; its timers restart."""
        loaded = ConsumerGroup(self.cluster)
        for name in ("members", "targets", "patterns", "metadata", "_resolved_at"):
            setattr(loaded, name, dict(getattr(self, name)))
        if self.has_epoch:
            loaded.epoch, loaded.assignment_epoch = self.epoch, self.assignment_epoch
        loaded.has_epoch, loaded.has_counts, loaded.metadata_hash = (
            self.has_epoch,
            self.has_counts,
            self.metadata_hash,
        )
        loaded.is_stale = True
        loaded._assigned_at = self._assigned_at
        loaded.reasons, loaded.departures = self.reasons, self.departures
        return loaded

    def take_over(self) -> None:
        """Start the timers of a loaded group."""
        for name, member in list(self.members.items()):
            self._session_from[name] = self.cluster.now
            if member.is_silent:
                self._watch(name)
            else:
                member.client.poke()
            if member.state == UNREVOKED:
                self._schedule_rebalance_timeout(member)
        # To a new coordinator all topics are new.
        for pattern in self._unresolved | self.patterns.keys():
            self._resolve_soon(pattern)


def group_to_join(cluster: Cluster, client: ConsumerClient) -> tuple[ConsumerGroup, list[Written]] | str:
    """The KIP-848 group that a consumer joins or is in, and what goes for it: an empty classic one; or an error."""
    from proof.coordinator_model.classic import ClassicGroup

    group = cluster.group
    if isinstance(group, ConsumerGroup):
        return group, []
    if cluster.version == "3.9":
        return "UNSUPPORTED_VERSION"
    if client.epoch != 0:
        return "GROUP_ID_NOT_FOUND"
    if isinstance(group, ClassicGroup) and group.is_preparing:
        instance_id = client.spec.instance_id
        is_there = instance_id is not None and any(one.instance_id == instance_id for one in group.members.values())
        # Kafka upgrades no group if user data would be lost (ConsumerGroup.fromClassicGroup).
        loses_user_data = any(one.has_user_data for one in group.members.values())
        # Not modelled: a static member comes back with the other protocol.
        if loses_user_data or group.protocol is None or is_there:
            return "GROUP_ID_NOT_FOUND"
        mixed, records = ConsumerGroup.upgraded(group)
        cluster.group = mixed
        return mixed, records
    before = [] if group is None else group.tombstones()
    made = cluster.group = ConsumerGroup(cluster)
    return made, before


def _classic(client: ClassicClient) -> Classic:
    return Classic(client.spec.session_ms, client.spec.assignors, *client.claim)


def _hash_of(topics: TopicMetadata) -> int:
    return zlib.crc32(repr(sorted(topics.items())).encode()) or 1 if topics else 0


def _protocols(classic: Classic) -> Body:
    """As far as it is read: the metadata are a ConsumerProtocolSubscription in Kafka."""
    said = zlib.crc32(repr((sorted(classic.claimed), classic.claimed_generation)).encode())
    protocols = [{"name": name, "metadata": f"{said:08x}"} for name in classic.assignors]
    return {"sessionTimeoutMs": classic.session_ms, "supportedProtocols": protocols}


def _description(member: ConsumerMember) -> Body:
    return {
        "instanceId": member.instance_id,
        "rackId": None,
        "clientId": member.client_id,
        "clientHost": member.client_host,
        "subscribedTopicNames": list(member.topics),
        "subscribedTopicRegex": member.pattern or "",
        "rebalanceTimeoutMs": member.rebalance_ms,
        "serverAssignor": None,
        "classicMemberMetadata": None if member.classic is None else _protocols(member.classic),
    }


def _target(partitions: frozenset[Partition]) -> Body:
    return {"topicPartitions": _listed(partitions)}


def _current(member: ConsumerMember) -> Body:
    return {
        "memberEpoch": member.epoch,
        "previousMemberEpoch": member.previous_epoch,
        "state": member.state,
        "assignedPartitions": _listed(member.assigned),
        "partitionsPendingRevocation": _listed(member.revoking),
    }


def _listed(partitions: frozenset[Partition]) -> list[Body]:
    found: dict[str, list[int]] = {}
    for topic_id, number in sorted(partitions):
        found.setdefault(topic_id, []).append(number)
    return [{"topicId": topic_id, "partitions": numbers} for topic_id, numbers in found.items()]


def _topic_reasons(
    had: Mapping[str, tuple[str, int]], has: Mapping[str, tuple[str, int]], version: str, *, had_counts: bool
) -> set[str]:
    found = {"broker_upgraded"} if had_counts and version not in ("3.9", "4.0") else set()
    old = {name: (topic_id, count) for topic_id, (name, count) in had.items()}
    new = {name: (topic_id, count) for topic_id, (name, count) in has.items()}
    for name in old.keys() | new.keys():
        if name not in old:
            found.add("topic_created")
        elif name not in new:
            found.add("topic_deleted")
        elif old[name][0] != new[name][0]:
            found.add("topic_remade")
        elif old[name][1] != new[name][1]:
            found.add("partitions_added")
    return found
