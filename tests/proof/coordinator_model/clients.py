"""Clients of the model: what both protocols have in common, and consumers of the classic protocol."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from proof.coordinator_model.cluster import HEARTBEAT_MS, NOTHING, Cluster, Partition
from proof.coordinator_model.schedule import Join

if TYPE_CHECKING:
    from proof.coordinator_model.classic import ClassicGroup
    from proof.coordinator_model.consumer import ConsumerGroup

COOPERATIVE = "cooperative-sticky"


@dataclass(frozen=True, slots=True)
class View:
    """What a leader knew at a time of the topics that its group subscribes to: ids and numbers of partitions."""

    at: int
    topics: Mapping[str, tuple[str, int] | None]


class Client(Protocol):
    """A consumer's process; `is_silent`: the coordinator does not hear from it."""

    cluster: Cluster
    name: str
    spec: Join
    member_id: str

    @property
    def is_silent(self) -> bool: ...

    @property
    def is_over(self) -> bool: ...

    def leave(self, *, for_good: bool) -> None: ...

    def crash(self) -> None: ...

    def stall(self, how: str) -> None: ...

    def resume(self) -> None: ...

    def subscribe(self, topics: tuple[str, ...]) -> None: ...

    def rejoin(self) -> None: ...

    def commit(self) -> None: ...

    @property
    def places(self) -> Iterable[Partition]:
        """What it may commit."""

    def metadata_changed(self) -> None: ...

    def poke(self, within_ms: int = HEARTBEAT_MS) -> None: ...

    def coordinator_away(self, ms: int) -> None: ...

    def coordinator_moved(self) -> None: ...


class BaseClient:
    """What both protocols have in common."""

    def __init__(self, cluster: Cluster, spec: Join, *, was_member: bool) -> None:
        self.cluster = cluster
        self.spec = spec
        self.name = spec.client
        self.topics = spec.topics
        self.member_id = ""
        self.owned: frozenset[Partition] = NOTHING
        self.is_over = False
        self.stalled: str | None = None
        self.was_member = was_member

    @property
    def client_id(self) -> str:
        return self.spec.client_id or self.name

    @property
    def client_host(self) -> str:
        return "/10.0.0.1" if self.spec.client_id else f"/10.0.0.{1 + sum(self.name.encode()) % 200}"

    @property
    def named_topics(self) -> tuple[str, ...]:
        """The topics in the subscription that it sends to the coordinator."""
        return self.topics

    @property
    def is_silent(self) -> bool:
        return self.is_over or self.stalled == "frozen"

    @property
    def can_act(self) -> bool:
        """Whether it polls."""
        return not self.is_over and self.stalled is None

    def commit(self) -> None:
        if self.can_act and self.owned:
            self.cluster.commit(self.owned)

    @property
    def places(self) -> Iterable[Partition]:
        """What it may commit."""
        return self.owned if self.can_act else ()

    def crash(self) -> None:
        self.is_over = True
        self.owned = NOTHING

    def stall(self, how: str) -> None:
        self.stalled = how
        if how == "slow":
            self.cluster.later(self.spec.rebalance_ms, self._leave_if_still_slow)

    def resume(self) -> None:
        self.stalled = None
        self.poke(10)

    def coordinator_away(self, ms: int) -> None:
        """No coordinator answers for so long."""

    def poke(self, within_ms: int = HEARTBEAT_MS) -> None:
        raise NotImplementedError

    def _leave_if_still_slow(self) -> None:
        raise NotImplementedError


class ClassicClient(BaseClient):
    """A consumer of the classic protocol."""

    def __init__(self, cluster: Cluster, spec: Join, *, was_member: bool) -> None:
        super().__init__(cluster, spec, was_member=was_member)
        self.generation = -1
        self.joining = False
        self.session = 0  # requests of before are answered in vain
        # What a leader of kafka-python fetches metadata of: its own topics and, later, those of its group.
        self.tracked = set(spec.topics)
        # A new consumer may become leader before it has fetched all metadata.
        knows_all = spec.library == "librdkafka"
        present = self._fetched().items()
        self.view = {topic: one for topic, one in present if knows_all or cluster.random.random() < 0.85}
        self.assigned_from: View | None = None
        self.joined_from = View(cluster.now, {})
        self.joined_topics = self.topics
        self.join_reasons = frozenset[str]()
        self.awaits_topics = False
        self.has_assignor_state = False
        self.is_resubscribed = False
        self.is_closing = False
        self.join_soon()

    # Joining

    def join_soon(self, *reasons: str, after_ms: int | None = None) -> None:
        """Send JoinGroup after what has to be done first."""
        if self.joining or self.is_over:
            return
        self.joining = True
        self.join_reasons = frozenset(reasons)
        self.session += 1
        session = self.session
        self.cluster.later(self.cluster.latency() if after_ms is None else after_ms, lambda: self._join(session))

    def _join(self, session: int) -> None:
        if session != self.session or self.is_over:
            return
        if self.stalled is not None or not self.cluster.is_available:
            self.joining = False
            self.poke()
            return
        if self._has_no_topics:
            self._await_topics()
            return
        from proof.coordinator_model.classic import group_to_join

        group = group_to_join(self.cluster, self)
        if not group.accepts(self):
            self.cluster.refused.append(f"{self.name}: INCONSISTENT_GROUP_PROTOCOL")
            self.is_over = True
            return
        if group.protocol_of(self) != COOPERATIVE or not self.member_id:
            self.owned = NOTHING
        # What it no longer subscribes to it gives up before (ConsumerCoordinator.onJoinPrepare); librdkafka when it
        # subscribes to other topics, but not where a static member has come back with others.
        if self.spec.library != "librdkafka":
            self.owned = frozenset(place for place in self.owned if place[0] in self.named_topics)
        self.joined_topics = self.topics
        self.is_resubscribed = False
        self.joined_from = self._subscribed_view()
        group.join(self)

    def joined(self, member_id: str, generation: int, leader: bool, session: int) -> None:
        """The answer to JoinGroup."""
        if session != self.session or self.is_over:
            return
        self.member_id = member_id
        if self.is_closing:
            self._leave(for_good=False)
            return
        group = self.cluster.group
        after = self.cluster.latency()
        if leader:
            after += self.cluster.random.choice((1, 2, 10, 1_500))
        if group is not None:
            self.cluster.later(after, lambda: self._sync(generation, session))

    def _sync(self, generation: int, session: int) -> None:
        if session != self.session or not self.can_act or not self.cluster.is_available:
            if session == self.session and not self.is_over:
                self.joining = False
                self.poke()
            return
        group = self.cluster.group
        if group is None:
            self.lost()
            return
        group.sync(self, generation)

    def synced(self, generation: int, assigned: frozenset[Partition], session: int) -> None:
        """The answer to SyncGroup."""
        if session != self.session or self.is_over:
            return
        if self.is_closing:
            self._leave(for_good=False)
            return
        self.joining = False
        self.generation = generation
        # From its first assignment on, librdkafka's sticky assignor sends user data
        # (rd_kafka_sticky_assignor_get_metadata).
        self.has_assignor_state = self.spec.library == "librdkafka"
        group = self.cluster.group
        if group is None or group.leader != self.member_id:
            self.assigned_from = None
        lost = self.owned - assigned
        self.owned = assigned
        if lost and group is not None and group.protocol_of(self) == COOPERATIVE:
            self.join_soon("cooperative_follow_up")
        elif self.spec.library == "kafka-python" and self.cluster.random.random() < 0.1:
            # A heartbeat of before is answered now, and asks to join (kafka-python's coordinator/base.py).
            self.join_soon("forced")
        elif self.topics != self.joined_topics:
            self.join_soon("subscription_changed")
        elif self.is_resubscribed:
            self.join_soon("forced")
        else:
            self._look_at_metadata()
            self.poke()

    def join_again(self, *reasons: str) -> None:
        """REBALANCE_IN_PROGRESS, NOT_COORDINATOR: join again under the same id."""
        if not self.is_over:
            self.joining = False
            self.join_soon(*reasons)

    def lost(self) -> None:
        """UNKNOWN_MEMBER_ID: join as a new member."""
        if self.is_over:
            return
        if self.is_closing:
            super().crash()
            return
        self.member_id = ""
        self.generation = -1
        self.owned = NOTHING
        self.joining = False
        self.was_member = True
        self.join_soon()

    def fenced(self) -> None:
        """FENCED_INSTANCE_ID is fatal."""
        self.crash()

    @property
    def claim(self) -> tuple[frozenset[Partition], int]:
        """What it says in its subscription that it owns, and since which generation.

        Sarama, unless it is told the brokers' version, and the Java client before 2.4 write version 0, which has
        neither.
        """
        return (NOTHING, -1) if self.spec.library in ("sarama", "java-2.3") else (self.owned, self.generation)

    # Heartbeats

    @property
    def group(self) -> ClassicGroup | ConsumerGroup | None:
        """The group that it is in, or was."""
        return self.cluster.group

    @property
    def named_topics(self) -> tuple[str, ...]:
        """Librdkafka names only topics that it knows (rd_kafka_cgrp_update_subscribed_topics)."""
        if self.spec.library == "librdkafka":
            return tuple(topic for topic in self.topics if topic in self.view)
        return self.topics

    def poke(self, within_ms: int = HEARTBEAT_MS) -> None:
        """Schedule a heartbeat, whose response informs the consumer that something changed."""
        if not self.is_silent:
            session = self.session
            self.cluster.later(self.cluster.random.randrange(1, within_ms), lambda: self._heartbeat(session))

    def _heartbeat(self, session: int) -> None:
        if self.is_silent or self.joining or session != self.session:
            return
        if not self.cluster.is_available:
            self.poke()
            return
        group = self.group
        answer = "UNKNOWN_MEMBER_ID" if group is None else group.classic_heartbeat(self)
        if self.stalled is not None:
            return
        if answer == "REBALANCE_IN_PROGRESS":
            self.join_soon()
        elif answer == "UNKNOWN_MEMBER_ID":
            self.lost()
        elif answer == "FENCED_INSTANCE_ID":
            self.fenced()

    def coordinator_away(self, ms: int) -> None:
        """Librdkafka gives up its member id when its session is over (rd_kafka_cgrp_session_timeout_check)."""
        left = self.spec.session_ms - self.cluster.random.randrange(HEARTBEAT_MS)
        if self.spec.library == "librdkafka" and self.can_act and self.member_id and ms > left:
            self.cluster.later(left, self._end_session)

    def _end_session(self) -> None:
        if self.can_act and not self.cluster.is_available:
            self.lost()

    def coordinator_moved(self) -> None:
        """A request that waits gets NOT_COORDINATOR.

        Sarama joins again after such an answer to a heartbeat, too (consumerGroupSession.heartbeatLoop).
        """
        if self.joining:
            self.join_again("coordinator_moved")
        elif self.spec.library == "sarama" and self.member_id and self.can_act:
            self.join_soon("coordinator_moved", after_ms=self.cluster.random.randrange(1, HEARTBEAT_MS))
        else:
            self.poke()

    # Actions of the application

    def leave(self, *, for_good: bool) -> None:
        # librdkafka may close only after the answer to a JoinGroup request under way.
        if self.spec.library == "librdkafka" and self.joining and not self.awaits_topics and not self.is_closing:
            self.is_closing = self.cluster.is_available and self.cluster.random.random() < 0.5
        if not self.is_closing:
            self._leave(for_good=for_good)

    def _leave(self, *, for_good: bool) -> None:
        group = self.group
        self.cluster.commit_by(self)
        if group is not None and self.member_id and (self.spec.instance_id is None or for_good):
            group.classic_leave(self.member_id, "left")
        self.crash()
        self.session += 1

    def crash(self) -> None:
        super().crash()
        group = self.group
        if group is not None:
            group.fell_silent(self.member_id)

    def stall(self, how: str) -> None:
        super().stall(how)
        group = self.group
        if how == "frozen" and group is not None:
            group.fell_silent(self.member_id)

    def resume(self) -> None:
        super().resume()
        self._look_at_metadata()

    def _leave_if_still_slow(self) -> None:
        if not self.cluster.is_available:
            self.cluster.later(1_000, self._leave_if_still_slow)
            return
        group = self.group
        if self.stalled == "slow" and not self.is_over and group is not None and group.has(self.member_id):
            # A static member's heartbeat thread stops; it sends no leave (ConsumerCoordinator.maybeLeaveGroup).
            if self.spec.instance_id is None:
                group.classic_leave(self.member_id, "left")
                self.session += 1
                self.joining = False
                self.member_id = ""
            else:
                self.stalled = "frozen"
                group.fell_silent(self.member_id)

    def subscribe(self, topics: tuple[str, ...]) -> None:
        self.topics = topics
        if self.spec.library == "librdkafka":
            self.owned = frozenset(place for place in self.owned if place[0] in topics)
        self.tracked = set(topics)
        if self.spec.library == "kafka-python":
            self.cluster.later(self.cluster.random.choice((1, 100, 500)), self.fetch_metadata)
        if self.awaits_topics and not self._has_no_topics:
            self.awaits_topics = False
            self.join_again("subscription_changed")
        elif self.topics != self.joined_topics:
            self.rejoin("subscription_changed")
        elif self.spec.library == "librdkafka" and (self.group is None or not self._is_cooperative):
            # It unsubscribes first and joins again, even if the topics are the same, unless it knows that its
            # protocol is cooperative, and it learns that from its first assignment (rd_kafka_cgrp_subscribe).
            self.is_resubscribed = self.joining
            self.rejoin("forced")

    @property
    def _is_cooperative(self) -> bool:
        return self.generation >= 0 and self.spec.assignors[0] == COOPERATIVE

    def rejoin(self, reason: str = "forced") -> None:
        if self.member_id and not self.joining:
            self.join_soon(reason)

    # Metadata

    def view_to_assign(self) -> Mapping[str, tuple[str, int]]:
        """What it knows of topics as the leader; librdkafka asks for it each time."""
        return self._present() if self.spec.library == "librdkafka" else self.view

    def _subscribed_view(self) -> View:
        return View(self.cluster.now, {topic: self.view.get(topic) for topic in self.topics})

    def _present(self) -> dict[str, tuple[str, int]]:
        return {topic: (known.topic_id, known.partitions) for topic, known in self.cluster.topics.items()}

    def _fetched(self) -> dict[str, tuple[str, int]]:
        """What a request for metadata returns."""
        present = self._present()
        if self.spec.library != "kafka-python":
            return present
        return {topic: one for topic, one in present.items() if topic in self.tracked}

    def learn(self, topics: Iterable[str]) -> None:
        """Fetch metadata of topics that are new to it."""
        present = self._present()
        self.view |= {topic: present[topic] for topic in topics if topic in present and topic not in self.view}

    def metadata_changed(self) -> None:
        """It is fetched within `metadata.max.age.ms`, or at once with an error."""
        if not self.is_over:
            delays = [ms for ms in (50, 500, 900, 5_000, 100_000, 300_000) if ms <= self.spec.metadata_age_ms]
            self.cluster.later(self.cluster.random.choice(delays), self.fetch_metadata)

    def fetch_metadata(self) -> None:
        if self.is_over or self.stalled == "frozen":
            return
        self.view = self._fetched()
        if self._has_no_topics:
            self._await_topics()
        elif self.awaits_topics:
            self.awaits_topics = False
            self.join_again()
        else:
            self._look_at_metadata()

    @property
    def _has_no_topics(self) -> bool:
        return self.spec.library == "librdkafka" and not self.named_topics

    def _await_topics(self) -> None:
        """Librdkafka neither joins nor heartbeats while there is none of its topics."""
        self.awaits_topics = self.joining = True
        self.owned = NOTHING
        self.session += 1
        if self.group is not None:
            self.group.fell_silent(self.member_id)

    @property
    def is_silent(self) -> bool:
        return super().is_silent or self.awaits_topics

    def _look_at_metadata(self) -> None:
        """A leader joins again where partitions differ from those that it assigned."""
        group = self.group
        if self.spec.library == "librdkafka":
            self._compare_topics()
            return
        if group is None or self.assigned_from is None or not self.can_act or self.joining:
            return
        if group.leader != self.member_id or group.state != "Stable":
            return
        if reasons := metadata_reasons(self.assigned_from, self.view, self.cluster):
            self.join_soon(*reasons)

    def _compare_topics(self) -> None:
        """Librdkafka joins again where its topics changed, leader or not (rd_kafka_cgrp_metadata_update_check)."""
        group = self.group
        if group is None or not self.can_act or self.joining or not self.member_id:
            return
        now, before = self._subscribed_view(), self.joined_from
        counts = [{topic: one and one[1] for topic, one in view.topics.items()} for view in (before, now)]
        if counts[0] == counts[1]:
            return
        reasons = metadata_reasons(before, self.view, self.cluster)
        self.joined_from = now
        gone = {place for place in self.owned if place[0] not in self.view}
        if group.protocol_of(self) == COOPERATIVE and gone:
            self.owned -= gone
            if group.leader != self.member_id:
                return
        self.join_soon(*reasons)


def metadata_reasons(had: View, has: Mapping[str, tuple[str, int]], cluster: Cluster) -> set[str]:
    """What changed of topics since a view of them."""
    found = set()
    for topic, before in had.topics.items():
        now = has.get(topic)
        if now == before:
            continue
        known = cluster.topics.get(topic)
        is_there = known is not None and before is not None and known.topic_id == before[0]
        is_past = now is not None and (known is None or known.topic_id != now[0])
        if is_past or (now is None and is_there) or (before and now and before[0] == now[0] and before[1] > now[1]):
            found.add("leader_knew_other_metadata")
        elif now is None:
            found.add("topic_deleted")
        elif before is None:
            is_older = known is not None and known.created_at <= had.at
            found.add("metadata_learned" if is_older else "topic_created")
        elif before[0] == now[0]:
            found.add("partitions_added")
        elif before[1] != now[1]:  # the client looks at the numbers of partitions alone
            found.add("topic_remade")
    return found
