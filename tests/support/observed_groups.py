"""Real consumers that record their assignments, and the view of an admin client on their groups at rest."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from typing import Any, Literal, Self

import confluent_kafka as kafka_offsets
import kafka
from confluent_kafka import Consumer, ConsumerGroupState, KafkaError, KafkaException, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient
from kafka import ConsumerRebalanceListener, KafkaAdminClient, KafkaConsumer, OffsetAndMetadata, TopicPartition
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from support.deadlines import scaled
from support.kafka_clients import await_that, poll

Partition = tuple[str, int]
Partitions = frozenset[Partition]
Client = Literal["kafka-python", "librdkafka", "kip-848", "share"]
Tool = Callable[..., subprocess.CompletedProcess[str]]
What = Literal["assigned", "revoked", "joined", "gone"]

PATIENCE_SECONDS = scaled(60)
POLL_SECONDS = 0.1
HEARTBEAT_MS = 300
# kafka-python 3.0.12 joins again when a join ends between two polls.
KAFKA_PYTHON_POLL_MS = 1_000

COMMITTED = 42
"""The offset that those members commit who commit."""

ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
}

logging.getLogger("kafka").setLevel(logging.CRITICAL)


def now_ms() -> int:
    """The clock by which the broker, on this machine, stamps its records."""
    return time.time_ns() // 1_000_000


# --- members -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Post:
    """What a member is to be; plain values, so that another process can be it."""

    bootstrap: str
    group_id: str
    client_id: str
    topics: tuple[str, ...]
    client: Client = "kafka-python"
    assignor: str = "range"
    instance_id: str | None = None
    session_ms: int = 30_000
    metadata_age_ms: int = 300_000
    commits: bool = False
    heartbeat_ms: int = HEARTBEAT_MS


@dataclass(frozen=True)
class Note:
    """A member's knowledge after an event: `partitions` were given to it or taken from it.

    `joined`: it found itself under another id or in another generation (of a KIP-848 member: epoch). `gone`: it has
    closed or was killed.
    """

    at_ms: int
    what: What
    member_id: str
    generation: int
    partitions: Partitions
    holds: Partitions


Write = Callable[[Note], object]
Order = Literal["leave", "commit"] | tuple[str, ...]
"""An instruction for a running member; a tuple of topics: subscribe to these from now on."""
Orders = Callable[[], Order | None]


class Diary:
    """Writes a member's notes; `standing` gives its id and generation, as far as it has them."""

    def __init__(self, write: Write, standing: Callable[[], tuple[str, int]]) -> None:
        self._write = write
        self._standing = standing
        self.last = Note(0, "joined", "", -1, frozenset(), frozenset())

    def assigned(self, partitions: Iterable[Any]) -> None:
        of = _pairs(partitions)
        self._note("assigned", of, self.last.holds | of)

    def revoked(self, partitions: Iterable[Any]) -> None:
        of = _pairs(partitions)
        self._note("revoked", of, self.last.holds - of)

    def polled(self) -> None:
        member_id, generation = self._standing()
        if member_id and generation >= 0 and (member_id, generation) != (self.last.member_id, self.last.generation):
            self._note("joined", frozenset(), self.last.holds)

    def gone(self) -> None:
        self.last = replace(self.last, at_ms=now_ms(), what="gone", partitions=self.last.holds, holds=frozenset())
        self._write(self.last)

    def _note(self, what: What, partitions: Partitions, holds: Partitions) -> None:
        at_ms = now_ms()
        member_id, generation = self._standing()
        self.last = Note(at_ms, what, member_id or self.last.member_id, generation, partitions, holds)
        self._write(self.last)


def held_intervals(notes: Iterable[Note], *, with_lost: bool = True) -> Iterator[tuple[Partition, str, int, int]]:
    """Yield (partition, member id, since, until) of every partition that a member received and then gave up.

    A member learns late that it has lost partitions because it is no member any more.
    """
    since: dict[Partition, tuple[str, int]] = {}
    for note in notes:
        if note.what == "assigned":
            since |= dict.fromkeys(note.partitions, (note.member_id, note.at_ms))
        elif note.what in ("revoked", "gone"):
            is_lost = note.what == "revoked" and note.generation < 0
            for partition in note.partitions & since.keys():
                member_id, from_ms = since.pop(partition)
                if with_lost or not is_lost:
                    yield partition, member_id, from_ms, note.at_ms


def _pairs(partitions: Iterable[Any]) -> Partitions:
    return frozenset((one.topic, one.partition) for one in partitions)


def attend(post: Post, write: Write, orders: Orders) -> None:
    """Run a member: poll and follow its orders until the order to leave, then close. Its events are recorded."""
    lives = {"kafka-python": _live_with_kafka_python, "share": _live_in_a_share_group}
    lives.get(post.client, _live_with_librdkafka)(post, write, orders)


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, diary: Diary) -> None:
        self.on_partitions_assigned = diary.assigned
        self.on_partitions_revoked = diary.revoked
        self.on_partitions_lost = diary.revoked

    def on_partitions_assigned(self, assigned: Any) -> None: ...

    def on_partitions_revoked(self, revoked: Any) -> None: ...


def _live_with_kafka_python(post: Post, write: Write, orders: Orders) -> None:
    consumer = KafkaConsumer(
        bootstrap_servers=post.bootstrap,
        group_id=post.group_id,
        client_id=post.client_id,
        group_instance_id=post.instance_id,
        partition_assignment_strategy=(ASSIGNORS[post.assignor],),
        session_timeout_ms=post.session_ms,
        heartbeat_interval_ms=post.heartbeat_ms,
        metadata_max_age_ms=post.metadata_age_ms,
        enable_auto_commit=False,
        metrics_enabled=False,
    )

    def standing() -> tuple[str, int]:
        metadata = consumer.group_metadata()
        return metadata.member_id, metadata.generation_id

    diary = Diary(write, standing)
    listener = _Listener(diary)
    consumer.subscribe(post.topics, listener=listener)
    committed: Partitions = frozenset()
    try:
        while (order := orders()) != "leave":
            if isinstance(order, tuple):
                consumer.subscribe(order, listener=listener)
            try:
                poll(consumer, KAFKA_PYTHON_POLL_MS)
            except kafka.errors.FencedInstanceIdError:
                return
            except kafka.errors.RetriableError:
                time.sleep(POLL_SECONDS)  # the broker is away
            diary.polled()
            if order == "commit" or (post.commits and committed != diary.last.holds):
                with contextlib.suppress(kafka.errors.CommitFailedError, kafka.errors.RebalanceInProgressError):
                    commit = OffsetAndMetadata(COMMITTED, "", -1)
                    consumer.commit({TopicPartition(*one): commit for one in diary.last.holds})
                    committed = diary.last.holds
    finally:
        consumer.close(timeout_ms=5_000)
        diary.gone()


def _live_with_librdkafka(post: Post, write: Write, orders: Orders) -> None:
    settings: dict[str, Any] = {
        "bootstrap.servers": post.bootstrap,
        "group.id": post.group_id,
        "client.id": post.client_id,
        "enable.auto.commit": False,
        "topic.metadata.refresh.interval.ms": post.metadata_age_ms,
        "log_level": 2,
    }
    if post.instance_id:
        settings["group.instance.id"] = post.instance_id
    if post.client == "kip-848":
        settings |= {"group.protocol": "consumer", "group.remote.assignor": post.assignor}
    else:
        settings |= {
            "partition.assignment.strategy": post.assignor,
            "session.timeout.ms": post.session_ms,
            "heartbeat.interval.ms": post.heartbeat_ms,
        }
    consumer = Consumer(settings)

    def standing() -> tuple[str, int]:
        # librdkafka exposes the generation only here: a mark of seven bytes, the generation, then names.
        metadata = consumer.consumer_group_metadata()
        return consumer.memberid() or "", int.from_bytes(metadata[7:11], "little", signed=True)

    diary = Diary(write, standing)

    def subscribe(topics: tuple[str, ...]) -> None:
        consumer.subscribe(
            list(topics),
            on_assign=lambda _, partitions: diary.assigned(partitions),
            on_revoke=lambda _, partitions: diary.revoked(partitions),
            on_lost=lambda _, partitions: diary.revoked(partitions),
        )

    subscribe(post.topics)
    commit_is_due = False
    try:
        while (order := orders()) != "leave":
            if isinstance(order, tuple):
                subscribe(order)
            commit_is_due |= order == "commit"
            if commit_is_due:
                with contextlib.suppress(KafkaException):  # of an illegal generation: the group is still rebalancing
                    _commit_in_a_transaction(post, consumer, diary.last.holds)
                    commit_is_due = False
            message = consumer.poll(POLL_SECONDS)
            if message is not None and message.error() is not None and message.error().code() in _FATAL:
                return
            diary.polled()
    finally:
        consumer.close()
        diary.gone()


# After these a consumer of librdkafka does nothing any more.
_FATAL = (KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID, KafkaError.UNRELEASED_INSTANCE_ID)


def _commit_in_a_transaction(post: Post, consumer: Consumer, partitions: Partitions) -> None:
    producer = Producer({"bootstrap.servers": post.bootstrap, "transactional.id": post.client_id, "log_level": 2})
    producer.init_transactions(PATIENCE_SECONDS)
    producer.begin_transaction()
    offsets = [kafka_offsets.TopicPartition(*one, COMMITTED) for one in sorted(partitions)]
    producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), PATIENCE_SECONDS)
    producer.commit_transaction(PATIENCE_SECONDS)


def _live_in_a_share_group(post: Post, write: Write, orders: Orders) -> None:
    """It receives no assignment and records only its end."""
    settings = {"bootstrap.servers": post.bootstrap, "group.id": post.group_id, "client.id": post.client_id}
    consumer = ShareConsumer({**settings, "log_level": 2})
    consumer.subscribe(list(post.topics))
    try:
        while orders() != "leave":
            consumer.poll(POLL_SECONDS)
    finally:
        consumer.close()
        Diary(write, lambda: ("", -1)).gone()


class Member:
    """A member in a thread of its own; `notes` grow while it lives."""

    def __init__(self, post: Post) -> None:
        self.post = post
        self.notes: list[Note] = []
        self.failure: BaseException | None = None
        self._orders: SimpleQueue[Order] = SimpleQueue()
        self._thread = threading.Thread(target=self._live, name=post.client_id, daemon=True)
        self._thread.start()

    @property
    def now(self) -> Note | None:
        """The last note."""
        if self.failure is not None:
            raise self.failure
        return self.notes[-1] if self.notes else None

    def order(self, order: Order) -> None:
        """Queue an instruction for the member."""
        self._orders.put(order)

    def retire(self) -> None:
        """Note that it does not have its partitions any more, whatever it may believe."""
        if self.notes:
            last = self.notes[-1]
            self.notes.append(replace(last, at_ms=now_ms(), what="gone", partitions=last.holds, holds=frozenset()))

    @property
    def is_over(self) -> bool:
        """Whether it has ended, by itself or by an order."""
        return not self._thread.is_alive()

    def send_home(self) -> None:
        self.order("leave")

    def leave(self) -> None:
        """Close it; the group of a static member is not notified."""
        self.send_home()
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive(), f"{self.post.client_id} did not close in time"

    def _live(self) -> None:
        try:
            attend(self.post, self.notes.append, self._next_order)
        except BaseException as error:
            self.failure = error
            raise

    def _next_order(self) -> Order | None:
        with contextlib.suppress(Empty):
            return self._orders.get_nowait()
        return None


class MemberApart(Member):
    """A member in a process of its own, which can be killed."""

    @property
    def pid(self) -> int:
        """Of its process, once it has one."""
        await_that(lambda: hasattr(self, "_process") and self._process.pid is not None)
        assert self._process.pid is not None
        return self._process.pid

    def freeze(self) -> None:
        """SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)
        self.retire()

    def thaw(self) -> None:
        """SIGCONT; it still has what it had, as far as it knows."""
        if self.notes:
            gone = self.notes[-1]
            self.notes.append(replace(gone, what="joined", partitions=frozenset(), holds=gone.partitions))
        os.kill(self.pid, signal.SIGCONT)

    def _live(self) -> None:
        # Forked from a server that has imported everything: a static member has to be back within its session.
        server = multiprocessing.get_context("forkserver")
        server.set_forkserver_preload([__name__])
        ours, theirs = server.Pipe()
        self._process = server.Process(target=_attend_apart, args=(self.post, theirs), daemon=True)
        self._process.start()
        theirs.close()
        with contextlib.suppress(EOFError, BrokenPipeError):
            while True:
                if order := self._next_order():
                    ours.send(order)
                if ours.poll(POLL_SECONDS):
                    self.notes.append(ours.recv())
        ours.close()
        self._process.join()

    def crash(self) -> None:
        """SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)
        self._thread.join(PATIENCE_SECONDS)
        self.retire()


def _attend_apart(post: Post, parent: Connection) -> None:
    attend(post, parent.send, lambda: parent.recv() if parent.poll() else None)


# --- groups ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seat:
    """What a group holds of one member."""

    instance_id: str | None
    client_id: str
    host: str
    partitions: Partitions


@dataclass(frozen=True)
class Sight:
    """A group at one moment; `generation` is the epoch of a KIP-848 group, None if it is not available."""

    state: str
    protocol: str | None
    generation: int | None
    members: Mapping[str, Seat]


@dataclass(frozen=True)
class Rest:
    """How a group was at `at_ms`, and just before and just after that."""

    at_ms: int
    sight: Sight


def find_rest(
    look: Callable[[], Sight | None], standing: Callable[[], object], *, pause_seconds: float = POLL_SECONDS
) -> Rest:
    """Waits until two looks, one after the other, see the same; the error names `standing` if they never do."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    pause = threading.Event()
    while True:
        fault: Exception | None = None
        try:
            seen, at_ms = look(), now_ms()
            if seen is not None and look() == seen:
                return Rest(at_ms, seen)
        except (kafka.errors.KafkaError, KafkaException) as error:
            fault = error
        assert time.monotonic() < deadline, f"found no rest: {standing()}; {fault!r}"
        pause.wait(pause_seconds)


class Troupe:
    """One group, its members of all times, and its rests; used as a context, at whose end all leave."""

    def __init__(self, bootstrap: str, group_id: str, topics: Mapping[str, int], **post: Any) -> None:
        self.group_id = group_id
        self.members: list[Member] = []
        self.rests: list[Rest] = []
        self.topics = dict(topics)
        self._post = Post(bootstrap, group_id, "", tuple(topics), **post)
        self._admin = KafkaAdminClient(bootstrap_servers=bootstrap)
        self._consumer_admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        self.send_home()
        if error is None:
            self._end()
        self._admin.close()

    def join(self, *, apart: bool = False, **post: Any) -> Member:
        """One more member."""
        name = f"{self.group_id}-{len(self.members) + 1}"
        member = (MemberApart if apart else Member)(replace(self._post, **{"client_id": name, **post}))
        self.members.append(member)
        return member

    def living(self) -> list[Member]:
        return [member for member in self.members if (last := member.now) is None or last.what != "gone"]

    def grow(self, topic: str, partitions: int) -> None:
        """Adds partitions to a topic."""
        self._admin.create_partitions({topic: partitions})
        self.topics[topic] = partitions

    def delete(self) -> None:
        """Deletes the empty group."""
        assert self._admin.delete_groups([self.group_id])[self.group_id] == "OK"

    def rest(self, *, away: int = 0) -> Rest:
        """Waits until the admin client sees the group stable, with every partition of its topics assigned, and each
        living member knows the same; `away` others are still members for the broker."""
        self.rests.append(self._find(lambda sight: self._agreed(sight, away)))
        return self.rests[-1]

    def empty(self) -> Rest:
        """Waits until the group has no members."""
        self.rests.append(self._find(lambda sight: sight if sight.state == "Empty" else None))
        return self.rests[-1]

    def _end(self) -> None:
        """Waits until nothing is left that the group's coordinator might still write of by itself."""
        self._find(lambda sight: sight if sight.state in ("Empty", "Dead") else None)

    def send_home(self) -> None:
        """All members leave."""
        for member in self.members:
            member.send_home()
        for member in self.members:
            member.leave()

    def _find(self, agreed: Callable[[Sight], Sight | None]) -> Rest:
        return find_rest(
            lambda: agreed(self._described()),
            lambda: (self.group_id, self._described(), [member.now for member in self.living()]),
        )

    def _agreed(self, sight: Sight, away: int) -> Sight | None:
        notes = [member.now for member in self.living()]
        known = [note for note in notes if note is not None]
        wanted = {topic for member in self.living() for topic in member.post.topics}
        every = {(topic, number) for topic in wanted for number in range(self.topics[topic])}
        is_settled = (
            sight.state == "Stable"
            and len(known) == len(notes)
            and len(sight.members) == len(known) + away
            and len({note.generation for note in known}) == 1
            and frozenset().union(*(seat.partitions for seat in sight.members.values())) == every
            and all(
                note.member_id in sight.members and sight.members[note.member_id].partitions == note.holds
                for note in known
            )
        )
        return replace(sight, generation=known[0].generation) if is_settled else None

    def _described(self) -> Sight:
        return self._described_consumer() if self._post.client == "kip-848" else self._described_classic()

    def _described_classic(self) -> Sight:
        group = self._admin.describe_groups([self.group_id])[self.group_id]
        return Sight(
            state=group["group_state"],
            protocol=group["protocol_data"] or None,
            generation=None,
            members={
                member["member_id"]: Seat(
                    instance_id=member["group_instance_id"],
                    client_id=member["client_id"],
                    host=member["client_host"],
                    partitions=_classic_partitions(member["member_assignment"]),
                )
                for member in group["members"]
            },
        )

    def _described_consumer(self) -> Sight:
        described = self._consumer_admin.describe_consumer_groups([self.group_id], request_timeout=5)
        group = described[self.group_id].result()
        return Sight(
            state=_STATES.get(group.state, group.state.name.title()),
            protocol=group.partition_assignor,
            generation=None,
            members={
                member.member_id: Seat(
                    instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    host=member.host,
                    partitions=_pairs(member.assignment.topic_partitions),
                )
                for member in group.members
            },
        )


class ShareTroupe(Troupe):
    """A share group, described by Kafka's own tool because no Python client can."""

    def __init__(self, tool: Tool, bootstrap: str, group_id: str, topics: Mapping[str, int]) -> None:
        super().__init__(bootstrap, group_id, topics, client="share")
        self._tool = tool
        self._bootstrap = bootstrap

    def _agreed(self, sight: Sight, away: int) -> Sight | None:
        members = self.living()
        wanted = {topic for member in members for topic in member.post.topics}
        every = {(topic, number) for topic in wanted for number in range(self.topics[topic])}
        is_settled = (
            (sight.state, len(sight.members)) == ("Stable", len(members) + away)
            and sight.generation is not None
            and frozenset().union(*(seat.partitions for seat in sight.members.values())) == every
        )
        return sight if is_settled else None

    def _described(self) -> Sight:
        """Without a generation while the assignment or a member is not of the group's epoch."""
        [state] = self._table("--state") or [[]]
        seats, epochs = {}, set()
        *_, name, epoch, assignment_epoch, _ = state or ("Dead", "-1", "-1", "0")
        for _, member_id, host, client_id, _, member_epoch, *assigned in self._table("--members"):
            seats[member_id] = Seat(None, client_id, host, _shared_partitions("".join(assigned)))
            epochs.add(member_epoch)
        is_settled = epochs | {assignment_epoch} == {epoch}
        return Sight(state=name, protocol=None, generation=int(epoch) if is_settled else None, members=seats)

    def _table(self, what: str) -> list[list[str]]:
        """The words of each line of the tool's table."""
        described = self._tool(
            "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
            *("--bootstrap-server", self._bootstrap, "--describe", "--group", self.group_id, what, "--verbose"),
        )
        lines = [line.split() for line in described.stdout.splitlines()]
        return [words for words in lines if words[:1] == [self.group_id]]


def _shared_partitions(text: str) -> Partitions:
    """As in `seven:0,2;two:1`."""
    topics = [topic.split(":") for topic in text.split(";") if topic]
    return frozenset((name, int(number)) for name, numbers in topics for number in numbers.split(","))


_STATES = {ConsumerGroupState.STABLE: "Stable", ConsumerGroupState.EMPTY: "Empty"}


def _classic_partitions(assignment: Any) -> Partitions:
    if not assignment:
        return frozenset()
    return frozenset(
        (part["topic"], number) for part in assignment["assigned_partitions"] for number in part["partitions"]
    )
