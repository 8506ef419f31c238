"""Real consumers that record their assignments, and how an admin client describes their groups once stable."""

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
EventKind = Literal["assigned", "revoked", "joined", "gone"]

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
class MemberSpec:
    """Configuration of a member; plain values, so that they can be passed to another process."""

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
class MemberEvent:
    """An event of a member: `partitions` were assigned to it or revoked, and it then `holds` these.

    `joined`: its member id or generation (of a KIP-848 member: epoch) has changed. `gone`: it has closed or was
    killed.
    """

    at_ms: int
    kind: EventKind
    member_id: str
    generation: int
    partitions: Partitions
    holds: Partitions


Write = Callable[[MemberEvent], object]
Command = Literal["leave", "commit"] | tuple[str, ...]
"""A command to a running member; a tuple of topics: subscribe to these from now on."""
NextCommand = Callable[[], Command | None]


class EventLog:
    """Writes a member's events; `identity` returns its member id and generation, as far as it has them."""

    def __init__(self, write: Write, identity: Callable[[], tuple[str, int]]) -> None:
        self._write = write
        self._identity = identity
        self.last = MemberEvent(0, "joined", "", -1, frozenset(), frozenset())

    def assigned(self, partitions: Iterable[Any]) -> None:
        of = _pairs(partitions)
        self._write_event("assigned", of, self.last.holds | of)

    def revoked(self, partitions: Iterable[Any]) -> None:
        of = _pairs(partitions)
        self._write_event("revoked", of, self.last.holds - of)

    def polled(self) -> None:
        member_id, generation = self._identity()
        if member_id and generation >= 0 and (member_id, generation) != (self.last.member_id, self.last.generation):
            self._write_event("joined", frozenset(), self.last.holds)

    def gone(self) -> None:
        self.last = replace(self.last, at_ms=now_ms(), kind="gone", partitions=self.last.holds, holds=frozenset())
        self._write(self.last)

    def _write_event(self, kind: EventKind, partitions: Partitions, holds: Partitions) -> None:
        at_ms = now_ms()
        member_id, generation = self._identity()
        self.last = MemberEvent(at_ms, kind, member_id or self.last.member_id, generation, partitions, holds)
        self._write(self.last)


def held_intervals(events: Iterable[MemberEvent]) -> Iterator[tuple[Partition, str, int, int]]:
    """Yield (partition, member id, since, until) of every partition that a member received and then gave up.

    Not of those that it lost because it is no member any more: it learns that late.
    """
    since: dict[Partition, tuple[str, int]] = {}
    for event in events:
        if event.kind == "assigned":
            since |= dict.fromkeys(event.partitions, (event.member_id, event.at_ms))
        elif event.kind in ("revoked", "gone"):
            is_lost = event.kind == "revoked" and event.generation < 0
            for partition in event.partitions & since.keys():
                member_id, from_ms = since.pop(partition)
                if not is_lost:
                    yield partition, member_id, from_ms, event.at_ms


def _pairs(partitions: Iterable[Any]) -> Partitions:
    return frozenset((one.topic, one.partition) for one in partitions)


def run_member(spec: MemberSpec, write: Write, next_command: NextCommand) -> None:
    """Run a member: poll and execute commands until the command to leave, then close. Its events are recorded."""
    runners = {"kafka-python": _run_kafka_python, "share": _run_share_consumer}
    runners.get(spec.client, _run_librdkafka)(spec, write, next_command)


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, event_log: EventLog) -> None:
        self.on_partitions_assigned = event_log.assigned
        self.on_partitions_revoked = event_log.revoked
        self.on_partitions_lost = event_log.revoked

    def on_partitions_assigned(self, assigned: Any) -> None: ...

    def on_partitions_revoked(self, revoked: Any) -> None: ...


def _run_kafka_python(spec: MemberSpec, write: Write, next_command: NextCommand) -> None:
    consumer = KafkaConsumer(
        bootstrap_servers=spec.bootstrap,
        group_id=spec.group_id,
        client_id=spec.client_id,
        group_instance_id=spec.instance_id,
        partition_assignment_strategy=(ASSIGNORS[spec.assignor],),
        session_timeout_ms=spec.session_ms,
        heartbeat_interval_ms=spec.heartbeat_ms,
        metadata_max_age_ms=spec.metadata_age_ms,
        enable_auto_commit=False,
        metrics_enabled=False,
    )

    def identity() -> tuple[str, int]:
        metadata = consumer.group_metadata()
        return metadata.member_id, metadata.generation_id

    event_log = EventLog(write, identity)
    listener = _Listener(event_log)
    consumer.subscribe(spec.topics, listener=listener)
    committed: Partitions = frozenset()
    try:
        while (command := next_command()) != "leave":
            if isinstance(command, tuple):
                consumer.subscribe(command, listener=listener)
            try:
                poll(consumer, KAFKA_PYTHON_POLL_MS)
            except kafka.errors.FencedInstanceIdError:
                return
            except kafka.errors.RetriableError:
                time.sleep(POLL_SECONDS)  # the broker is away
            event_log.polled()
            if command == "commit" or (spec.commits and committed != event_log.last.holds):
                with contextlib.suppress(kafka.errors.CommitFailedError, kafka.errors.RebalanceInProgressError):
                    commit = OffsetAndMetadata(COMMITTED, "", -1)
                    consumer.commit({TopicPartition(*one): commit for one in event_log.last.holds})
                    committed = event_log.last.holds
    finally:
        consumer.close(timeout_ms=5_000)
        event_log.gone()


def _run_librdkafka(spec: MemberSpec, write: Write, next_command: NextCommand) -> None:
    settings: dict[str, Any] = {
        "bootstrap.servers": spec.bootstrap,
        "group.id": spec.group_id,
        "client.id": spec.client_id,
        "enable.auto.commit": False,
        "topic.metadata.refresh.interval.ms": spec.metadata_age_ms,
        "log_level": 2,
    }
    if spec.instance_id:
        settings["group.instance.id"] = spec.instance_id
    if spec.client == "kip-848":
        settings |= {"group.protocol": "consumer", "group.remote.assignor": spec.assignor}
    else:
        settings |= {
            "partition.assignment.strategy": spec.assignor,
            "session.timeout.ms": spec.session_ms,
            "heartbeat.interval.ms": spec.heartbeat_ms,
        }
    consumer = Consumer(settings)

    def identity() -> tuple[str, int]:
        # librdkafka exposes the generation only here: a mark of seven bytes, the generation, then names.
        metadata = consumer.consumer_group_metadata()
        return consumer.memberid() or "", int.from_bytes(metadata[7:11], "little", signed=True)

    event_log = EventLog(write, identity)

    def subscribe(topics: tuple[str, ...]) -> None:
        consumer.subscribe(
            list(topics),
            on_assign=lambda _, partitions: event_log.assigned(partitions),
            on_revoke=lambda _, partitions: event_log.revoked(partitions),
            on_lost=lambda _, partitions: event_log.revoked(partitions),
        )

    subscribe(spec.topics)
    commit_is_due = False
    try:
        while (command := next_command()) != "leave":
            if isinstance(command, tuple):
                subscribe(command)
            commit_is_due |= command == "commit"
            if commit_is_due:
                with contextlib.suppress(KafkaException):  # of an illegal generation: the group is still rebalancing
                    _commit_in_a_transaction(spec, consumer, event_log.last.holds)
                    commit_is_due = False
            message = consumer.poll(POLL_SECONDS)
            if message is not None and message.error() is not None and message.error().code() in _FATAL:
                return
            event_log.polled()
    finally:
        consumer.close()
        event_log.gone()


# After these a consumer of librdkafka does nothing any more.
_FATAL = (KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID, KafkaError.UNRELEASED_INSTANCE_ID)


def _commit_in_a_transaction(spec: MemberSpec, consumer: Consumer, partitions: Partitions) -> None:
    producer = Producer({"bootstrap.servers": spec.bootstrap, "transactional.id": spec.client_id, "log_level": 2})
    producer.init_transactions(PATIENCE_SECONDS)
    producer.begin_transaction()
    offsets = [kafka_offsets.TopicPartition(*one, COMMITTED) for one in sorted(partitions)]
    producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), PATIENCE_SECONDS)
    producer.commit_transaction(PATIENCE_SECONDS)


def _run_share_consumer(spec: MemberSpec, write: Write, next_command: NextCommand) -> None:
    """It receives no assignment and records only its end."""
    settings = {"bootstrap.servers": spec.bootstrap, "group.id": spec.group_id, "client.id": spec.client_id}
    consumer = ShareConsumer({**settings, "log_level": 2})
    consumer.subscribe(list(spec.topics))
    try:
        while next_command() != "leave":
            consumer.poll(POLL_SECONDS)
    finally:
        consumer.close()
        EventLog(write, lambda: ("", -1)).gone()


class Member:
    """A member in its own thread; `events` grows while it runs."""

    def __init__(self, spec: MemberSpec) -> None:
        self.spec = spec
        self.events: list[MemberEvent] = []
        self.failure: BaseException | None = None
        self._commands: SimpleQueue[Command] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=spec.client_id, daemon=True)
        self._thread.start()

    @property
    def last_event(self) -> MemberEvent | None:
        """Return the last event; raise the error if the member has failed."""
        if self.failure is not None:
            raise self.failure
        return self.events[-1] if self.events else None

    def command(self, command: Command) -> None:
        """Queue a command for the member."""
        self._commands.put(command)

    def mark_gone(self) -> None:
        """Record that it does not have its partitions any more, even if it has not noticed yet."""
        if self.events:
            last = self.events[-1]
            self.events.append(replace(last, at_ms=now_ms(), kind="gone", partitions=last.holds, holds=frozenset()))

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, by itself or by a command."""
        return not self._thread.is_alive()

    def request_leave(self) -> None:
        self.command("leave")

    def leave(self) -> None:
        """Close it; the group of a static member is not notified."""
        self.request_leave()
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive(), f"{self.spec.client_id} did not close in time"

    def _run(self) -> None:
        try:
            run_member(self.spec, self.events.append, self._next_command)
        except BaseException as error:
            self.failure = error
            raise

    def _next_command(self) -> Command | None:
        with contextlib.suppress(Empty):
            return self._commands.get_nowait()
        return None


class MemberProcess(Member):
    """A member in its own process, which can be killed."""

    @property
    def pid(self) -> int:
        """The id of its process; waits until it is started."""
        await_that(lambda: hasattr(self, "_process") and self._process.pid is not None)
        assert self._process.pid is not None
        return self._process.pid

    def freeze(self) -> None:
        """SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)
        self.mark_gone()

    def thaw(self) -> None:
        """SIGCONT; it still has what it had, as far as it knows."""
        if self.events:
            gone = self.events[-1]
            self.events.append(replace(gone, kind="joined", partitions=frozenset(), holds=gone.partitions))
        os.kill(self.pid, signal.SIGCONT)

    def _run(self) -> None:
        # Forked from a server that has imported everything: a static member has to be back within its session.
        server = multiprocessing.get_context("forkserver")
        server.set_forkserver_preload([__name__])
        ours, theirs = server.Pipe()
        self._process = server.Process(target=_run_in_process, args=(self.spec, theirs), daemon=True)
        self._process.start()
        theirs.close()
        with contextlib.suppress(EOFError, BrokenPipeError):
            while True:
                if command := self._next_command():
                    ours.send(command)
                if ours.poll(POLL_SECONDS):
                    self.events.append(ours.recv())
        ours.close()
        self._process.join()

    def crash(self) -> None:
        """SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)
        self._thread.join(PATIENCE_SECONDS)
        self.mark_gone()


def _run_in_process(spec: MemberSpec, parent: Connection) -> None:
    run_member(spec, parent.send, lambda: parent.recv() if parent.poll() else None)


# --- groups ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DescribedMember:
    """A member as an admin client describes it."""

    instance_id: str | None
    client_id: str
    host: str
    partitions: Partitions


@dataclass(frozen=True)
class GroupDescription:
    """A group as an admin client describes it; `generation` is the epoch of a KIP-848 group, None if unknown."""

    state: str
    protocol: str | None
    generation: int | None
    members: Mapping[str, DescribedMember]


@dataclass(frozen=True)
class StableState:
    """A group that was described twice in a row with the same result, around `at_ms`."""

    at_ms: int
    group: GroupDescription


class NotStableError(AssertionError):
    """A group did not become stable in time."""


def await_stable(
    describe: Callable[[], GroupDescription | None],
    status: Callable[[], object],
    *,
    pause_seconds: float = POLL_SECONDS,
) -> StableState:
    """Wait until `describe` returns the same twice in a row; NotStableError contains `status()` if it never does."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    pause = threading.Event()
    while True:
        fault: Exception | None = None
        try:
            seen, at_ms = describe(), now_ms()
            if seen is not None and describe() == seen:
                while now_ms() <= at_ms:  # what is done next is written in a later millisecond
                    pass
                return StableState(at_ms, seen)
        except (kafka.errors.KafkaError, KafkaException) as error:
            fault = error
        if time.monotonic() > deadline:
            raise NotStableError(f"group did not become stable: {status()}; {fault!r}")
        pause.wait(pause_seconds)


class ClientGroup:
    """One group, all its members ever, and its stable states; a context manager, at whose end all members leave."""

    def __init__(self, bootstrap: str, group_id: str, topics: Mapping[str, int], **spec: Any) -> None:
        self.group_id = group_id
        self.members: list[Member] = []
        self.stable_states: list[StableState] = []
        self.topics = dict(topics)
        self._spec = MemberSpec(bootstrap, group_id, "", tuple(topics), **spec)
        self._admin = KafkaAdminClient(bootstrap_servers=bootstrap)
        self._consumer_admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        self.leave_all()
        if error is None:
            self._end()
        self._admin.close()

    def join(self, *, own_process: bool = False, **spec: Any) -> Member:
        """Start another member."""
        name = f"{self.group_id}-{len(self.members) + 1}"
        member = (MemberProcess if own_process else Member)(replace(self._spec, **{"client_id": name, **spec}))
        self.members.append(member)
        return member

    def running(self) -> list[Member]:
        return [member for member in self.members if (last := member.last_event) is None or last.kind != "gone"]

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Increase the number of partitions of a topic."""
        self._admin.create_partitions({topic: partitions})
        self.topics[topic] = partitions

    def delete(self) -> None:
        """Delete the empty group."""
        assert self._admin.delete_groups([self.group_id])[self.group_id] == "OK"

    def await_stable(self, *, away: int = 0) -> StableState:
        """Wait until the admin client describes the group as stable, with every partition of its topics assigned, and
        each running member agrees; the broker still has `away` more members."""
        self.stable_states.append(self._find(lambda group: self._agreed(group, away)))
        return self.stable_states[-1]

    def await_empty(self) -> StableState:
        """Wait until the group has no members."""
        self.stable_states.append(self._find(lambda group: group if group.state == "Empty" else None))
        return self.stable_states[-1]

    def _end(self) -> None:
        """Wait until the coordinator will write nothing more about the group by itself."""
        self._find(lambda group: group if group.state in ("Empty", "Dead") else None)

    def leave_all(self) -> None:
        """Close all members."""
        for member in self.members:
            member.request_leave()
        for member in self.members:
            member.leave()

    def _find(self, agreed: Callable[[GroupDescription], GroupDescription | None]) -> StableState:
        return await_stable(
            lambda: agreed(self._described()),
            lambda: (self.group_id, self._described(), [member.last_event for member in self.running()]),
        )

    def _agreed(self, group: GroupDescription, away: int) -> GroupDescription | None:
        events = [member.last_event for member in self.running()]
        known = [event for event in events if event is not None]
        wanted = {topic for member in self.running() for topic in member.spec.topics}
        every = {(topic, number) for topic in wanted for number in range(self.topics[topic])}
        is_settled = (
            group.state == "Stable"
            and len(known) == len(events)
            and len(group.members) == len(known) + away
            and len({event.generation for event in known}) == 1
            and frozenset().union(*(described.partitions for described in group.members.values())) == every
            and all(
                event.member_id in group.members and group.members[event.member_id].partitions == event.holds
                for event in known
            )
        )
        return replace(group, generation=known[0].generation) if is_settled else None

    def _described(self) -> GroupDescription:
        return self._described_consumer() if self._spec.client == "kip-848" else self._described_classic()

    def _described_classic(self) -> GroupDescription:
        group = self._admin.describe_groups([self.group_id])[self.group_id]
        return GroupDescription(
            state=group["group_state"],
            protocol=group["protocol_data"] or None,
            generation=None,
            members={
                member["member_id"]: DescribedMember(
                    instance_id=member["group_instance_id"],
                    client_id=member["client_id"],
                    host=member["client_host"],
                    partitions=_classic_partitions(member["member_assignment"]),
                )
                for member in group["members"]
            },
        )

    def _described_consumer(self) -> GroupDescription:
        described = self._consumer_admin.describe_consumer_groups([self.group_id], request_timeout=5)
        group = described[self.group_id].result()
        return GroupDescription(
            state=_STATES.get(group.state, group.state.name.title()),
            protocol=group.partition_assignor,
            generation=None,
            members={
                member.member_id: DescribedMember(
                    instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    host=member.host,
                    partitions=_pairs(member.assignment.topic_partitions),
                )
                for member in group.members
            },
        )


class ShareClientGroup(ClientGroup):
    """A share group, described by Kafka's own tool because no Python client can."""

    def __init__(self, tool: Tool, bootstrap: str, group_id: str, topics: Mapping[str, int]) -> None:
        super().__init__(bootstrap, group_id, topics, client="share")
        self._tool = tool
        self._bootstrap = bootstrap

    def _agreed(self, group: GroupDescription, away: int) -> GroupDescription | None:
        members = self.running()
        wanted = {topic for member in members for topic in member.spec.topics}
        every = {(topic, number) for topic in wanted for number in range(self.topics[topic])}
        is_settled = (
            (group.state, len(group.members)) == ("Stable", len(members) + away)
            and group.generation is not None
            and frozenset().union(*(described.partitions for described in group.members.values())) == every
        )
        return group if is_settled else None

    def _described(self) -> GroupDescription:
        """Without a generation while the assignment or a member is not of the group's epoch."""
        [state] = self._table("--state") or [[]]
        described_members, epochs = {}, set()
        *_, name, epoch, assignment_epoch, count = state or ("Dead", "-1", "-1", "0")
        # Each table takes a JVM: that of the members is of no use while some of them are missing.
        is_complete = 0 < int(count) == len(self.running())
        members = self._table("--members") if is_complete else []
        for _, member_id, host, client_id, _, member_epoch, *assigned in members:
            described_members[member_id] = DescribedMember(
                None, client_id, host, _shared_partitions("".join(assigned))
            )
            epochs.add(member_epoch)
        is_settled = epochs | {assignment_epoch} == {epoch}
        return GroupDescription(
            state=name, protocol=None, generation=int(epoch) if is_settled else None, members=described_members
        )

    def _table(self, kind: str) -> list[list[str]]:
        """The words of each line of the tool's table."""
        described = self._tool(
            "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
            *("--bootstrap-server", self._bootstrap, "--describe", "--group", self.group_id, kind, "--verbose"),
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
