"""The classic protocol's coordinator (GroupMetadataManager and ClassicGroup; of 3.9 GroupCoordinator.scala)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from proof.coordinator_model.assignors import AssignorError, assign
from proof.coordinator_model.clients import COOPERATIVE, ClassicClient, Client, View, metadata_reasons
from proof.coordinator_model.cluster import (
    HEARTBEAT_MS,
    NOTHING,
    Body,
    Cluster,
    Departure,
    Partition,
    TrueMember,
)

if TYPE_CHECKING:
    from proof.coordinator_model.consumer import ConsumerGroup

INITIAL_DELAY_MS = 3_000
NEW_MEMBER_TIMEOUT_MS = 300_000

State = Literal["Empty", "PreparingRebalance", "CompletingRebalance", "Stable"]


@dataclass
class ClassicMember:
    """A member in the coordinator's memory; `client` is the consumer that joined under this id."""

    member_id: str
    client: ClassicClient
    instance_id: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    assignors: tuple[str, ...]
    session_ms: int
    rebalance_ms: int
    claimed: frozenset[Partition]
    claimed_generation: int
    awaits_join: int | None = None
    awaits_sync: int | None = None
    has_synced: bool = True
    is_new: bool = True
    session_from: int = 0
    assignment: frozenset[Partition] | None = None
    sent_user_data: bool = False
    has_user_data: bool = False

    @property
    def metadata(self) -> tuple[Any, ...]:
        return (self.topics, self.assignors, self.claimed, self.claimed_generation)

    @property
    def is_silent(self) -> bool:
        return self.client.is_silent or self.client.member_id != self.member_id


@dataclass(frozen=True)
class Written:
    """The contents of the group's last record, which a new coordinator loads."""

    generation: int
    protocol: str | None
    leader: str | None
    state_at: int
    members: tuple[tuple[str, ClassicMember, tuple[Any, ...], frozenset[Partition] | None], ...]


class ClassicGroup:
    """A classic group in its coordinator's memory."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.state: State = "Empty"
        self.members: dict[str, ClassicMember] = {}
        self.generation = 0
        self.protocol: str | None = None
        self.leader: str | None = None
        self.state_at = cluster.now
        self.written: Written | None = None
        self._phase = 0
        self._new_member_added = False
        self._is_initial = False
        # The truth since the record before.
        self.reasons: set[str] = set()
        self.departures: dict[str, Departure] = {}
        self._predecessors: dict[str, str] = {}
        self.assigned_from: View | None = None
        self.hidden = 0
        self.preparing_since: int | None = None
        self.was_reloaded = False
        self._stable_at = cluster.now

    # Called by the cluster and by clients

    @property
    def is_preparing(self) -> bool:
        return self.state != "Empty"

    @property
    def empty_since(self) -> int | None:
        return self.state_at if self.generation > 0 else None

    def has(self, member_id: str) -> bool:
        return member_id in self.members

    def takes_commit(self, client: Client) -> bool:
        """Take a commit of the current generation, which renews the session (validateOffsetCommit)."""
        member = self.members.get(client.member_id)
        is_current = isinstance(client, ClassicClient) and client.generation == self.generation
        if member is None or not is_current or self.state == "CompletingRebalance":
            return False
        member.session_from = self.cluster.now
        return True

    def protocol_of(self, _client: ClassicClient) -> str | None:
        """The assignor by whose protocol a client is a member."""
        return self.protocol

    def subscribes(self, topic: str) -> bool:
        return any(topic in member.topics for member in self.members.values())

    def accepts(self, client: ClassicClient) -> bool:
        others = [member for member in self.members.values() if member.member_id != client.member_id]
        if client.spec.instance_id is not None:
            others = [member for member in others if member.instance_id != client.spec.instance_id]
        common = set(client.spec.assignors).intersection(*(member.assignors for member in others))
        return bool(common)

    def metadata_changed(self, *, has_new_topics: bool) -> None:
        """Do nothing: the coordinator of classic groups does not watch topics."""

    def tombstones(self) -> list[tuple[str, str | None, Body | None]]:
        if self.cluster.version == "3.9" and self.generation == 0:
            return []
        return [("GroupMetadata", None, None)]

    # Requests

    def join(self, client: ClassicClient) -> None:
        """JoinGroup."""
        member = self.members.get(client.member_id)
        instance_id = client.spec.instance_id
        if member is None and client.member_id:
            is_fenced = instance_id is not None and self._static(instance_id) is not None
            client.fenced() if is_fenced else client.lost()
        elif member is None:
            old = None if instance_id is None else self._static(instance_id)
            if old is None:
                self._add(client)
            else:
                self._replace(old, client)
        else:
            self._join_again(member, client)

    def sync(self, client: ClassicClient, generation: int) -> None:
        """SyncGroup."""
        member = self.members.get(client.member_id)
        if member is None:
            client.lost()
        elif generation != self.generation or self.state == "PreparingRebalance":
            client.join_again()
        elif self.state == "Stable":
            member.has_synced = True
            self._answer_sync(member, client.session)
        else:
            member.has_synced = True
            member.awaits_sync = client.session
            if self.leader == member.member_id:
                self._assign(member)

    def classic_heartbeat(self, client: ClassicClient) -> str:
        """Heartbeat."""
        member = self.members.get(client.member_id)
        if member is None:
            instance_id = client.spec.instance_id
            is_taken = instance_id is not None and self._static(instance_id) is not None
            return "FENCED_INSTANCE_ID" if is_taken and client.member_id else "UNKNOWN_MEMBER_ID"
        if self.state == "PreparingRebalance" or client.generation != self.generation:
            return "REBALANCE_IN_PROGRESS"
        return "NONE"

    def classic_leave(self, member_id: str, how: Departure) -> None:
        """LeaveGroup, of a member or in its place by an administrator."""
        if member_id in self.members:
            self._drop(member_id, how)
            self._go_on_without({"member_left" if how == "left" else "member_removed"})

    def remove(self, members: Iterable[str]) -> None:
        """An administrator's LeaveGroup with several members."""
        gone = [member_id for member_id in members if member_id in self.members]
        for member_id in gone:
            self._drop(member_id, "removed")
        if gone:
            self._go_on_without({"member_removed"})

    def fell_silent(self, member_id: str) -> None:
        """Start the session timer: the member sends no more heartbeats."""
        member = self.members.get(member_id)
        if member is not None:
            last = self.cluster.now - self.cluster.random.randrange(HEARTBEAT_MS)
            member.session_from = max(member.session_from, last)
            self._watch(member)

    # Members

    def _static(self, instance_id: str) -> ClassicMember | None:
        return next((member for member in self.members.values() if member.instance_id == instance_id), None)

    def _member(self, client: ClassicClient, member_id: str) -> ClassicMember:
        return ClassicMember(
            member_id,
            client,
            client.spec.instance_id,
            client.client_id,
            client.client_host,
            client.named_topics,
            client.spec.assignors,
            client.spec.session_ms,
            client.spec.rebalance_ms,
            *client.claim,
            awaits_join=client.session,
            session_from=self.cluster.now,
            sent_user_data=client.has_assignor_state,
        )

    def _add(self, client: ClassicClient) -> None:
        member_id = self.cluster.new_id(client.spec.instance_id or client.client_id)
        client.member_id = member_id
        self.members[member_id] = self._member(client, member_id)
        self.leader = self.leader or member_id
        self._new_member_added = True
        reasons = {"member_joined"} | ({"member_rejoined"} if client.was_member else set())
        self._prepare_or_complete(reasons)

    def _replace(self, old: ClassicMember, client: ClassicClient) -> None:
        """A static member comes back (GMM.updateStaticMemberThenRebalanceOrCompleteJoin)."""
        member_id = self.cluster.new_id(old.instance_id or "")
        client.member_id = member_id
        new = self._member(client, member_id)
        new.client_id, new.client_host = old.client_id, old.client_host
        new.assignment, new.is_new, new.has_synced = old.assignment, old.is_new, old.has_synced
        new.has_user_data = old.has_user_data
        del self.members[old.member_id]
        self.members[member_id] = new
        self._predecessors[member_id] = old.member_id
        self.departures[old.member_id] = "replaced"
        if old.client is not client and not old.client.is_over and old.client.member_id == old.member_id:
            old.client.poke()
        if self.leader == old.member_id:
            self.leader = member_id
        if self.state == "Stable":
            if self.protocol == self._choose():
                new.awaits_join = None
                self._write(is_new_generation=False)
                client.joined(member_id, self.generation, False, client.session)
            else:
                self._prepare_or_complete({"static_member_replaced"})
        elif self.state == "CompletingRebalance":
            self._prepare_or_complete({"static_member_replaced"})
        else:
            self._maybe_complete()

    def _join_again(self, member: ClassicMember, client: ClassicClient) -> None:
        before = member.metadata
        resubscribed = {"subscription_changed"} if member.topics != client.named_topics else set()
        joined_with = (client.named_topics, client.spec.assignors, *client.claim)
        is_same = before == joined_with
        member.topics, (member.claimed, member.claimed_generation) = client.named_topics, client.claim
        member.sent_user_data = client.has_assignor_state
        if self.state == "PreparingRebalance":
            member.awaits_join = client.session
            self.reasons |= resubscribed
            self._maybe_complete()
        elif is_same and (self.state == "CompletingRebalance" or self.leader != member.member_id):
            client.joined(member.member_id, self.generation, self.leader == member.member_id, client.session)
        elif self.state == "Empty":
            client.lost()
        else:
            member.awaits_join = client.session
            reasons = client.join_reasons | resubscribed
            if not reasons:
                reasons = frozenset({"coordinator_moved" if self.was_reloaded else "forced"})
            whose = "leader_rejoined" if self.leader == member.member_id else "follower_rejoined"
            self._prepare_or_complete({*reasons, whose})

    def _drop(self, member_id: str, how: Departure) -> None:
        member = self.members.pop(member_id)
        # If no record holds a static member's new id, the end of the old one counts.
        self._set_departure(member_id, how)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        if member.is_silent:
            return
        if member.client.session in (member.awaits_join, member.awaits_sync):
            # Its request is answered with UNKNOWN_MEMBER_ID (ClassicGroup.remove).
            self.cluster.later(self.cluster.latency(), member.client.lost)
        else:
            member.client.poke()

    def _set_departure(self, member_id: str, how: Departure) -> None:
        self.departures[member_id] = how
        old = self._predecessors.get(member_id)
        if old is not None:
            self._set_departure(old, how)

    def _go_on_without(self, reasons: set[str]) -> None:
        if self.state in ("Stable", "CompletingRebalance"):
            self._prepare_or_complete(reasons)
        else:
            self.reasons |= reasons
            self._maybe_complete()

    # Session timers

    def _watch(self, member: ClassicMember) -> None:
        timeout = NEW_MEMBER_TIMEOUT_MS if member.is_new else member.session_ms
        due = max(1, member.session_from + timeout - self.cluster.now)
        self.cluster.later(due, lambda: self._expire(member))

    def _expire(self, member: ClassicMember) -> None:
        if self.cluster.group is not self or self.members.get(member.member_id) is not member:
            return
        if not member.is_silent or not self.cluster.is_available:
            return
        timeout = NEW_MEMBER_TIMEOUT_MS if member.is_new else member.session_ms
        if member.session_from + timeout > self.cluster.now:
            self._watch(member)
        elif member.is_new or (member.awaits_join is None and member.awaits_sync is None):
            self._drop(member.member_id, "session")
            self._go_on_without({"member_expired"})

    def _restart_sessions(self) -> None:
        for member in self.members.values():
            member.session_from = self.cluster.now
            if member.is_silent:
                self._watch(member)

    # The join phase

    @property
    def _rebalance_ms(self) -> int:
        return max((member.rebalance_ms for member in self.members.values()), default=0)

    def _prepare_or_complete(self, reasons: set[str]) -> None:
        self.reasons |= reasons
        if self.state in ("Stable", "CompletingRebalance", "Empty"):
            self._prepare()
        else:
            self._maybe_complete()

    def _prepare(self) -> None:
        if self.state == "CompletingRebalance":
            for member in self.members.values():
                session, member.awaits_sync, member.has_synced = member.awaits_sync, None, True
                if session is not None and session == member.client.session:
                    self.cluster.later(self.cluster.latency(), member.client.join_again)
        self._is_initial = self.state == "Empty"
        self.state = "PreparingRebalance"
        if self.preparing_since is None:
            self.preparing_since = self.cluster.now
        self._phase += 1
        phase = self._phase
        if self._is_initial:
            rest = max(self._rebalance_ms - INITIAL_DELAY_MS, 0)
            self._new_member_added = False
            self.cluster.later(INITIAL_DELAY_MS, lambda: self._complete_initial(phase, INITIAL_DELAY_MS, rest))
        elif self._all_joined:
            self._complete()
        else:
            self._schedule_completion()
        for member in self.members.values():
            if member.awaits_join is None and not member.is_silent:
                member.client.poke()

    def _schedule_completion(self) -> None:
        phase = self._phase
        self.cluster.later(self._rebalance_ms, lambda: self._complete_in(phase))

    def _complete_in(self, phase: int) -> None:
        if self._is_in(phase, "PreparingRebalance"):
            self._complete()

    def _is_in(self, phase: int, state: State) -> bool:
        return self.cluster.group is self and self._phase == phase and self.state == state

    def _complete_initial(self, phase: int, delay: int, rest: int) -> None:
        if not self._is_in(phase, "PreparingRebalance"):
            return
        if self._new_member_added and rest:
            self._new_member_added = False
            delay_now = min(INITIAL_DELAY_MS, rest)
            rest_now = max(rest - delay, 0)
            self.cluster.later(delay_now, lambda: self._complete_initial(phase, delay_now, rest_now))
        else:
            self._complete()

    @property
    def _all_joined(self) -> bool:
        return all(member.awaits_join is not None for member in self.members.values())

    def _maybe_complete(self) -> None:
        if self.state == "PreparingRebalance" and not self._is_initial and self._all_joined:
            self._complete()

    def _complete(self) -> None:
        """The join phase ends (GMM.completeClassicGroupJoin)."""
        late = [
            member for member in self.members.values() if member.awaits_join is None and member.instance_id is None
        ]
        for member in late:
            self._drop(member.member_id, "rebalance timeout")
            self.reasons.add("member_expired")
        joined = [member for member in self.members.values() if member.awaits_join is not None]
        if self.leader not in {member.member_id for member in joined}:
            self.leader = joined[0].member_id if joined else self.leader
        if self.members and not joined:
            self._phase += 1
            self._schedule_completion()
            return
        self.generation += 1
        self._phase += 1
        self.state_at = self.cluster.now
        if not self.members:
            self.state, self.protocol, self.leader = "Empty", None, None
            self._write(is_new_generation=True)
            return
        self.state = "CompletingRebalance"
        self.protocol = self._choose()
        self.hidden += 1
        for member in self.members.values():
            session, member.awaits_join = member.awaits_join, None
            member.is_new = member.has_synced = False
            member.session_from = self.cluster.now
            if session is not None:
                self._answer_join(member, session)
            if member.is_silent:
                self._watch(member)
        phase = self._phase
        self.cluster.later(self._rebalance_ms, lambda: self._expire_sync(phase))

    def _answer_join(self, member: ClassicMember, session: int) -> None:
        generation, is_leader = self.generation, self.leader == member.member_id
        client, member_id = member.client, member.member_id
        self.cluster.later(self.cluster.latency(), lambda: client.joined(member_id, generation, is_leader, session))

    def _choose(self) -> str:
        members = list(self.members.values())
        common = set(members[0].assignors).intersection(*(member.assignors for member in members))
        votes = Counter(next(name for name in member.assignors if name in common) for member in members)
        return max(sorted(votes), key=lambda name: votes[name])

    # The sync phase

    def _expire_sync(self, phase: int) -> None:
        if self.cluster.group is not self or self._phase != phase:
            return
        late = [member.member_id for member in self.members.values() if not member.has_synced]
        if late:
            for member_id in late:
                self._drop(member_id, "sync timeout")
            self._prepare_or_complete({"member_expired"})

    def _assign(self, leader: ClassicMember) -> None:
        client = leader.client
        topics = sorted({topic for member in self.members.values() for topic in member.topics})
        if client.spec.library != "librdkafka" and self.cluster.random.random() < 0.7:  # at times it comes too late
            client.learn(topics)
        view_of_leader = client.view_to_assign()
        client.tracked = set(topics)
        known = {topic: view_of_leader.get(topic) for topic in topics}
        view = View(self.cluster.now, known)
        if self.assigned_from is not None:
            self.reasons |= metadata_reasons(
                self.assigned_from, {topic: one for topic, one in known.items() if one is not None}, self.cluster
            )
        self.assigned_from = client.assigned_from = view
        counts = {topic: one[1] for topic, one in known.items() if one is not None}
        assert self.protocol is not None
        members, library = list(self.members.values()), client.spec.library
        try:
            given = assign(self.protocol, members, counts, self.cluster.random, library=library)
        except AssignorError:
            client.leave(for_good=False)
            return
        # librdkafka's leader returns the user data of each subscription with the assignment
        # (rd_kafka_SyncGroupRequest).
        echoes_user_data = library == "librdkafka" and self.protocol == COOPERATIVE
        for member in members:
            member.assignment = given.get(member.member_id)
            member.has_user_data = echoes_user_data and member.sent_user_data
        self.state = "Stable"
        self._write(is_new_generation=True)
        for member in self.members.values():
            session, member.awaits_sync = member.awaits_sync, None
            if session is not None:
                self._answer_sync(member, session)
            if not member.is_silent:
                member.client.poke()
        if any(view is None and topic in self.cluster.topics for topic, view in known.items()):
            self.cluster.later(100, client.fetch_metadata)

    def _answer_sync(self, member: ClassicMember, session: int) -> None:
        generation, assigned, client = self.generation, member.assignment or NOTHING, member.client
        self.cluster.later(self.cluster.latency(), lambda: client.synced(generation, assigned, session))

    # Records

    def create(self, before: Iterable[tuple[str, str | None, Body | None]] = ()) -> None:
        """A new group's record of generation 0 (new coordinator)."""
        if self.cluster.version != "3.9":
            self._write(is_new_generation=True, before=before)

    def _write(self, *, is_new_generation: bool, before: Iterable[tuple[str, str | None, Body | None]] = ()) -> None:
        state_at = self.state_at if is_new_generation or self.written is None else self._stable_at
        if is_new_generation:
            self._stable_at = self.cluster.now
        body = self._body(state_at)
        hidden = max(0, self.hidden - 1) if self.members else self.hidden
        self.cluster.write(
            [*before, ("GroupMetadata", None, body)],
            kind="classic",
            generation=self.generation,
            state="Stable" if self.members else "Empty",
            protocol=self.protocol,
            leader=self.leader,
            members={name: self._true(member) for name, member in self.members.items()},
            is_new_generation=is_new_generation,
            reasons=frozenset(self.reasons),
            hidden=hidden,
            departures=dict(self.departures),
            join_ended_at=state_at,
            preparing_since=self.preparing_since,
        )
        self.departures, self._predecessors = {}, {}
        if is_new_generation:
            self.reasons, self.hidden, self.preparing_since = set(), 0, None
            self.was_reloaded = False
        self.written = Written(
            self.generation,
            self.protocol,
            self.leader,
            state_at,
            tuple((name, member, member.metadata, member.assignment) for name, member in self.members.items()),
        )

    def _true(self, member: ClassicMember) -> TrueMember:
        assigned = member.assignment or NOTHING
        return TrueMember(
            member.member_id,
            member.instance_id,
            member.client.name,
            member.client_id,
            member.client_host,
            member.topics,
            assigned,
            assigned,
        )

    def _body(self, state_at: int) -> Body:
        return {
            "protocol_type": "consumer" if self.generation else "",
            "generation": self.generation,
            "protocol": self.protocol if self.members else None,
            "leader": self.leader if self.members else None,
            "state_at": state_at,
            "members": [_member_body(member) for member in self.members.values()],
        }

    # From and to a KIP-848 group

    @classmethod
    def downgraded(cls, group: ConsumerGroup, assigned: Mapping[str, frozenset[Partition]]) -> ClassicGroup:
        """What becomes of a KIP-848 group of which only members of the classic protocol are left, with the partitions
        that each shall have (ClassicGroup.fromConsumerGroup)."""
        made = cls(group.cluster)
        made.state, made.generation = "Stable", group.epoch
        for name, member in group.members.items():
            assert member.classic is not None
            made.members[name] = ClassicMember(
                name,
                cast("ClassicClient", member.client),
                member.instance_id,
                member.client_id,
                member.client_host,
                member.topics,
                member.classic.assignors,
                member.classic.session_ms,
                member.rebalance_ms,
                member.classic.claimed,
                member.classic.claimed_generation,
                is_new=False,
                assignment=assigned[name],
            )
        made.leader, made.protocol = next(iter(made.members)), made._choose()
        made.reasons, made.departures = group.reasons, group.departures
        return made

    def begin(self, before: Iterable[tuple[str, str | None, Body | None]]) -> None:
        """Write a downgraded group, and let its members join (GMM.convertToClassicGroup)."""
        self._write(is_new_generation=True, before=before)
        self._restart_sessions()
        self._prepare_or_complete({"downgraded"})

    def upgrade(self) -> None:
        """Send those that wait to the KIP-848 group that comes in its place (GMM.convertToConsumerGroup)."""
        for member in self.members.values():
            waits = member.client.session in (member.awaits_join, member.awaits_sync)
            if waits and not member.is_silent:
                self.cluster.later(self.cluster.latency(), member.client.join_again)

    # Another coordinator

    def reload(self) -> ClassicGroup | None:
        """Return the group as another coordinator loads it from the log."""
        written = self.written
        if written is None:
            return None
        group = ClassicGroup(self.cluster)
        group.generation, group.protocol, group.leader = written.generation, written.protocol, written.leader
        group.state_at, group.written = written.state_at, written
        group._stable_at = written.state_at
        group.state = "Stable" if written.members else "Empty"
        for name, member, metadata, assignment in written.members:
            member.topics, member.assignors, member.claimed, member.claimed_generation = metadata
            member.assignment, member.is_new, member.has_synced = assignment, False, True
            member.awaits_join = member.awaits_sync = None
            group.members[name] = member
        group.assigned_from = self.assigned_from
        group.was_reloaded = True
        return group

    def take_over(self) -> None:
        """Start as the coordinator of a loaded group."""
        self._restart_sessions()


def group_to_join(cluster: Cluster, client: ClassicClient) -> ClassicGroup | ConsumerGroup:
    """The group that a consumer of the classic protocol joins: created for one without a member id."""
    group = cluster.group
    if isinstance(group, ClassicGroup):
        return group
    if group is None:
        if client.member_id:
            client.member_id, client.generation = "", -1
        made = cluster.group = ClassicGroup(cluster)
        made.create()
        return made
    return group if group.members else group.to_classic(client)


def _member_body(member: ClassicMember) -> Body:
    subscription: Body = {
        "topics": sorted(member.topics),
        "owned_partitions": _listed(member.claimed),
        "generation_id": member.claimed_generation,
        "rack_id": None,
    }
    if member.assignment is None:
        assignment: Body = {"layout": "ConsumerProtocolAssignment", "version": 0, "partitions": []}
    else:
        assignment = {
            "layout": "ConsumerProtocolAssignment",
            "version": 3,
            "partitions": _listed(member.assignment),
        }
    return {
        "member_id": member.member_id,
        "group_instance_id": member.instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "rebalance_timeout_ms": member.rebalance_ms,
        "session_timeout_ms": member.session_ms,
        "subscription": subscription,
        "assignment": assignment,
    }


def _listed(partitions: Iterable[Partition]) -> list[Body]:
    found: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        found.setdefault(topic, []).append(number)
    return [{"topic": topic, "partitions": numbers} for topic, numbers in found.items()]
