"""A workload of real Kafka clients: groups of every kind whose members join, leave, crash and return.

Every client is a real one (kafka-python, confluent-kafka), and the ledger keeps what the brokers acknowledged
to them, so that the topic `__consumer_offsets` can be compared with it.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import logging
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.admin import MemberToRemove
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import (
    StickyPartitionAssignor,
)
from kafka.errors import (
    CommitFailedError,
    KafkaTimeoutError,
    RebalanceInProgressError,
)
from kafka.errors import KafkaError as ClientError
from kafka.structs import OffsetAndMetadata

if TYPE_CHECKING:
    from collections.abc import Iterator

    from confluent_kafka import Message

Kind = Literal[
    "range",
    "roundrobin",
    "sticky",
    "static",
    "consumer",
    "transactional",
    "simple",
    "deleted",
    "reset",
    "share",
]
Key = tuple[str, str, int]
Partition = tuple[str, int]
Offsets = dict[Partition, int]
Report = Callable[[str, str], None]

TOPICS = {"orders": 12, "payments": 6, "clicks": 8, "audit": 4, "invoices": 6}
COMPACTED = frozenset({"audit"})
LATE_TOPIC, LATE_PARTITIONS = "clicks-mobile", 4
SHARES = {"orders": 40, "clicks": 35, "payments": 20, "audit": 5}

POLL_SECONDS = 0.5
CLOSE_MS = 5_000
SESSION_MS = 6_000
COMMIT_MS = 10_000
TRANSACTION_SECONDS, TRANSACTION_PATIENCE = 3, 30
BOOTSTRAP_MS = 10_000
# One fetch per second regardless of arrivals: a fetch for each record would cost several times the processor time.
FETCH_BYTES, FETCH_WAIT_MS = 1 << 16, 1_000

ASSIGNORS: dict[str, Any] = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
}
# Certainly refused: the group has rebalanced, and the new owner reads the records again.
REFUSALS = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError.FENCED_MEMBER_EPOCH,
    }
)
UNCERTAIN = frozenset({KafkaError._TIMED_OUT, KafkaError.REQUEST_TIMED_OUT, KafkaError._TRANSPORT})


class WorkloadError(RuntimeError):
    """An actor of the workload ended in a way it should not have."""


class Order(Enum):
    """The instruction that a member gets in response to each request."""

    WORK = "work"
    LEAVE = "leave"
    RESTART = "restart"
    CRASH = "crash"


class Ledger:
    """What the clients did and what was acknowledged to them. Safe to read and write from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kinds: dict[str, Kind] = {}
        self._offsets: dict[Key, int] = {}
        self._commits: Counter[Key] = Counter()
        self._unsure: set[Key] = set()
        self._gone: set[str] = set()
        self._transactions: Counter[str] = Counter()
        self._actions: Counter[str] = Counter()

    def opened(self, group: str, kind: Kind) -> None:
        """A client of this group is about to start."""
        with self._lock:
            self._kinds[group] = kind
            self._gone.discard(group)

    def acknowledge(self, group: str, offsets: Mapping[Partition, int]) -> None:
        """The coordinator accepted these offsets."""
        with self._lock:
            for (topic, partition), offset in offsets.items():
                key = (group, topic, partition)
                self._offsets[key] = offset
                self._commits[key] += 1
                self._unsure.discard(key)

    def doubt(self, group: str, partitions: Iterable[Partition]) -> None:
        """A commit went out and no answer came: it may or may not be in the topic."""
        with self._lock:
            self._unsure.update((group, topic, partition) for topic, partition in partitions)

    def forget(self, group: str) -> None:
        """The group was deleted, with its offsets."""
        with self._lock:
            self._gone.add(group)
            for key in [key for key in self._commits if key[0] == group]:
                del self._commits[key]
                self._offsets.pop(key, None)

    def transaction(self, outcome: Literal["committed", "aborted"]) -> None:
        with self._lock:
            self._transactions[outcome] += 1

    def did(self, action: str) -> None:
        """A client or an administrator did this to a group."""
        with self._lock:
            self._actions[action] += 1

    def groups(self) -> dict[str, Kind]:
        """The kind of every group that had a client, the deleted ones as well."""
        with self._lock:
            return dict(self._kinds)

    def committed(self) -> dict[Key, int]:
        """The last acknowledged offset of each (group, topic, partition) of the groups that exist."""
        with self._lock:
            return dict(self._offsets)

    def commit_counts(self) -> dict[Key, int]:
        """How many commits of each (group, topic, partition) were acknowledged since the group began."""
        with self._lock:
            return dict(self._commits)

    def unsure(self) -> frozenset[Key]:
        """The keys whose last commit got no answer: leave them out of a comparison."""
        with self._lock:
            return frozenset(self._unsure)

    def deleted(self) -> frozenset[str]:
        """The groups that were deleted and not used again."""
        with self._lock:
            return frozenset(self._gone)

    @property
    def transactions_committed(self) -> int:
        with self._lock:
            return self._transactions["committed"]

    @property
    def transactions_aborted(self) -> int:
        with self._lock:
            return self._transactions["aborted"]

    def actions(self) -> Counter[str]:
        """How often something was started, left, crashed, restarted, deleted, reset or removed."""
        with self._lock:
            return self._actions.copy()


@dataclass(frozen=True)
class MemberSpec:
    """What one member of a group is to do; plain values only, so that it can be handed to another process."""

    bootstrap: str
    group: str
    client: str
    topics: tuple[str, ...]
    assignor: str = "range"
    instance: str | None = None
    session_ms: int = SESSION_MS
    batch: int = 500


class Channel(Protocol):
    """How a member receives its orders and reports what it did."""

    def order(self) -> Order: ...

    def committed(self, offsets: Offsets) -> None: ...

    def unsure(self, offsets: Offsets) -> None: ...

    def holds(self, generation: int | None, partitions: Sequence[Partition]) -> None: ...


Serve = Callable[[MemberSpec, Channel], Order]


class Context:
    """What all actors share: the cluster, the ledger, the stop signal and the threads."""

    def __init__(self, bootstrap: str, prefix: str, seed: int, rate: int, report: Report) -> None:
        self.bootstrap = bootstrap
        self.prefix = prefix
        self.rate = rate
        self.ledger = Ledger()
        self.stopping = threading.Event()
        self.failed = threading.Event()
        self.failures: list[tuple[str, BaseException]] = []
        self.late_topic = threading.Event()
        self.statics: set[tuple[str, str]] = set()
        self.processes: set[subprocess.Popen[str]] = set()
        self._seed = seed
        self._report = report
        self._report_lock = threading.Lock()
        self._threads: set[threading.Thread] = set()
        self._threads_lock = threading.Lock()

    def name(self, base: str) -> str:
        return self.prefix + base

    def plain(self, name: str) -> str:
        return name.removeprefix(self.prefix)

    def random(self, actor: str) -> random.Random:
        return random.Random(f"{self._seed}-{actor}")

    def say(self, actor: str, line: str) -> None:
        with self._report_lock:
            self._report(actor, line)

    def pause(self, seconds: float) -> None:
        self.stopping.wait(max(seconds, 0.0))

    def fail(self, actor: str, error: BaseException) -> None:
        self.failures.append((actor, error))
        self.failed.set()

    def spawn(self, actor: str, act: Callable[[], object]) -> None:
        """Run `act` in a thread; what it raises is kept for `check`."""

        def run() -> None:
            try:
                act()
            except BaseException as error:
                self.fail(actor, error)
            finally:
                with self._threads_lock:
                    self._threads.discard(threading.current_thread())

        thread = threading.Thread(target=run, name=f"workload-{actor}", daemon=True)
        with self._threads_lock:
            if self.stopping.is_set():
                return
            self._threads.add(thread)
            thread.start()

    def join(self, deadline: float) -> list[str]:
        """Wait for the threads; the names of those still running at the deadline."""
        with self._threads_lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0.0))
        return [thread.name for thread in threads if thread.is_alive()]

    @contextmanager
    def admin(self, patience_ms: int = BOOTSTRAP_MS) -> Iterator[Any]:
        client = KafkaAdminClient(
            bootstrap_servers=self.bootstrap,
            client_id=self.name("administrator"),
            bootstrap_timeout_ms=patience_ms,
            request_timeout_ms=patience_ms,
        )
        try:
            yield client
        finally:
            client.close()

    def create_topics(self, partitions: Mapping[str, int]) -> None:
        with self.admin() as admin:
            present = set(admin.list_topics())
            missing = {self.name(topic): _topic(topic, n) for topic, n in partitions.items()}
            missing = {name: spec for name, spec in missing.items() if name not in present}
            if missing:
                admin.create_topics(missing, wait_for_metadata=True)


class LocalChannel:
    """The channel of a member in this process."""

    def __init__(self, context: Context, spec: MemberSpec, label: str) -> None:
        self._context, self._spec, self._label = context, spec, label
        self._order = Order.WORK
        self.commits = 0

    def give(self, order: Order) -> None:
        self._order = order

    def order(self) -> Order:
        return Order.LEAVE if self._context.stopping.is_set() else self._order

    def committed(self, offsets: Offsets) -> None:
        self.commits += 1
        self._context.ledger.acknowledge(self._spec.group, offsets)

    def unsure(self, offsets: Offsets) -> None:
        self._context.ledger.doubt(self._spec.group, offsets)
        self.say("got no answer to a commit")

    def holds(self, generation: int | None, partitions: Sequence[Partition]) -> None:
        counts = Counter(self._context.plain(topic) for topic, _ in partitions)
        what = ", ".join(f"{count} of {topic}" for topic, count in sorted(counts.items())) or "nothing"
        self.say(f"holds {what}" + (f" (generation {generation})" if generation is not None else ""))

    def say(self, line: str) -> None:
        self._context.say(self._context.plain(self._spec.group), f"{self._label} {line}")

    def did(self, what: str, line: str) -> None:
        self._context.ledger.did(what)
        self.say(line)


class TimedChannel(LocalChannel):
    """Orders its member to leave after some seconds, once it has committed."""

    def __init__(self, context: Context, spec: MemberSpec, label: str, seconds: float) -> None:
        super().__init__(context, spec, label)
        self._enough = time.monotonic() + seconds
        self._at_last = self._enough + 30

    def order(self) -> Order:
        now = time.monotonic()
        if (now >= self._enough and self.commits) or now >= self._at_last:
            return Order.LEAVE
        return super().order()


class PipeChannel:
    """The channel of a member in a separate process: each exchange reports what was done and reads an order.

    The member continues only after the answer, so a crash never loses a commit the ledger should know. A dead
    parent (end of file) ends it.
    """

    def __init__(self) -> None:
        self._done: list[dict[str, Any]] = []

    def order(self) -> Order:
        print(json.dumps(self._done), flush=True)
        self._done.clear()
        answer = sys.stdin.readline().strip()
        return Order(answer) if answer else Order.LEAVE

    def committed(self, offsets: Offsets) -> None:
        self._done.append({"committed": _listed(offsets)})

    def unsure(self, offsets: Offsets) -> None:
        self._done.append({"unsure": _listed(offsets)})

    def holds(self, generation: int | None, partitions: Sequence[Partition]) -> None:
        self._done.append({"holds": [generation, list(partitions)]})


def _listed(offsets: Offsets) -> list[tuple[str, int, int]]:
    return [(topic, partition, offset) for (topic, partition), offset in offsets.items()]


def _record(channel: Channel, messages: Iterable[dict[str, Any]]) -> None:
    for message in messages:
        for what, value in message.items():
            if what == "holds":
                generation, partitions = value
                channel.holds(generation, [(topic, partition) for topic, partition in partitions])
            else:
                offsets = {(topic, partition): offset for topic, partition, offset in value}
                (channel.committed if what == "committed" else channel.unsure)(offsets)


def _topic(base: str, partitions: int) -> dict[str, Any]:
    configs = {"cleanup.policy": "compact"} if base in COMPACTED else {}
    return {"num_partitions": partitions, "replication_factor": 1, "configs": configs}


def classic_consumer(spec: MemberSpec) -> Any:
    return KafkaConsumer(
        bootstrap_servers=spec.bootstrap,
        group_id=spec.group,
        client_id=spec.client,
        group_instance_id=spec.instance,
        partition_assignment_strategy=(ASSIGNORS[spec.assignor],),
        session_timeout_ms=spec.session_ms,
        heartbeat_interval_ms=spec.session_ms // 6,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_poll_records=spec.batch,
        fetch_min_bytes=FETCH_BYTES,
        fetch_max_wait_ms=FETCH_WAIT_MS,
        bootstrap_timeout_ms=BOOTSTRAP_MS,
        metrics_enabled=False,
    )


def serve_classic(spec: MemberSpec, channel: Channel) -> Order:
    """A member of a classic group: reads and commits until it is stopped."""
    consumer = classic_consumer(spec)
    try:
        consumer.subscribe(spec.topics)
        generation = -1
        while (order := channel.order()) is Order.WORK:
            records = consumer.poll(timeout_ms=int(POLL_SECONDS * 1000))
            membership = consumer.group_metadata()
            if membership.generation_id not in (-1, generation) and consumer.assignment():
                generation = membership.generation_id
                channel.holds(generation, _pairs(consumer.assignment()))
            commit_classic(consumer, records, spec, channel)
        if order is Order.CRASH:
            os.kill(os.getpid(), signal.SIGKILL)
        return order
    finally:
        consumer.close(timeout_ms=CLOSE_MS)


def _pairs(partitions: Iterable[Any]) -> list[Partition]:
    return sorted((partition.topic, partition.partition) for partition in partitions)


def commit_classic(consumer: Any, records: Mapping[Any, Sequence[Any]], spec: MemberSpec, channel: Channel) -> None:
    if not records:
        return
    ends = {
        partition: OffsetAndMetadata(batch[-1].offset + 1, spec.client, batch[-1].leader_epoch)
        for partition, batch in records.items()
    }
    offsets = {(partition.topic, partition.partition): end.offset for partition, end in ends.items()}
    try:
        consumer.commit(ends, timeout_ms=COMMIT_MS)
    except (CommitFailedError, RebalanceInProgressError):
        return
    except KafkaTimeoutError:
        channel.unsure(offsets)
    else:
        channel.committed(offsets)


def confluent_settings(spec: MemberSpec, **more: str | int | bool) -> dict[str, Any]:
    return {
        "bootstrap.servers": spec.bootstrap,
        "group.id": spec.group,
        "client.id": spec.client,
        "log_level": 2,
        **more,
    }


def confluent_consumer(spec: MemberSpec, **more: str | int | bool) -> Consumer:
    settings: dict[str, str | int | bool] = {
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "fetch.min.bytes": FETCH_BYTES,
        "fetch.wait.max.ms": FETCH_WAIT_MS,
    }
    return Consumer(confluent_settings(spec, **(settings | more)))


def serve_consumer_protocol(spec: MemberSpec, channel: Channel) -> Order:
    """A member of a group of the new protocol (KIP-848)."""
    consumer = confluent_consumer(spec, **{"group.protocol": "consumer"})
    try:
        consumer.subscribe(list(spec.topics))
        held: list[Partition] = []
        while (order := channel.order()) is Order.WORK:
            messages = _messages(consumer, spec.batch)
            if (holding := _pairs(consumer.assignment())) != held:
                held = holding
                channel.holds(None, held)
            commit_confluent(consumer, messages, spec, channel)
        return order
    finally:
        consumer.close()


def _messages(consumer: Consumer, batch: int) -> list[Message[Any, Any]]:
    messages = consumer.consume(batch, POLL_SECONDS)
    for message in messages:
        error = message.error()
        if error is not None and error.fatal():
            raise KafkaException(error)
    return [message for message in messages if message.error() is None]


def _place(message: Message[Any, Any]) -> tuple[str, int, int]:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    return topic, partition, offset


def _ends(messages: Iterable[Message[Any, Any]]) -> Offsets:
    return {(topic, partition): offset + 1 for topic, partition, offset in map(_place, messages)}


def _confluent(offsets: Offsets, metadata: str = "") -> list[ConfluentPartition]:
    return [ConfluentPartition(topic, partition, offset, metadata) for (topic, partition), offset in offsets.items()]


def commit_confluent(
    consumer: Consumer, messages: Sequence[Message[Any, Any]], spec: MemberSpec, channel: Channel
) -> None:
    offsets = _ends(messages)
    if not offsets:
        return
    try:
        answers = consumer.commit(offsets=_confluent(offsets, spec.client), asynchronous=False) or []
    except KafkaException as error:
        code = error.args[0].code()
        if code in UNCERTAIN:
            channel.unsure(offsets)
        elif code not in REFUSALS:
            raise
        return
    refused = {(answer.topic, answer.partition) for answer in answers if answer.error is not None}
    channel.committed({place: offset for place, offset in offsets.items() if place not in refused})


def serve_share(spec: MemberSpec, channel: Channel) -> Order:
    """A member of a share group: polling again acknowledges what the last poll returned."""
    consumer = confluent_kafka.ShareConsumer(confluent_settings(spec))
    try:
        consumer.subscribe(list(spec.topics))
        while (order := channel.order()) is Order.WORK:
            consumer.poll(timeout=POLL_SECONDS)
        return order
    finally:
        consumer.close()


class Slot:
    """A member of a group whose client can be started, stopped and restarted."""

    def __init__(self, context: Context, spec: MemberSpec, number: int, serve: Serve, *, apart: bool = False) -> None:
        self._context, self._spec, self._number, self._serve, self._apart = context, spec, number, serve, apart
        self._channel: LocalChannel | None = None

    def take(self) -> None:
        channel = self._channel = LocalChannel(self._context, self._spec, f"member {self._number}")
        channel.did("started", "starts")
        run = self._work_apart if self._apart else self._work
        self._context.spawn(self._spec.client, lambda: run(channel))

    def leave(self) -> None:
        self._order(Order.LEAVE)

    def restart(self) -> None:
        self._order(Order.RESTART)

    def crash(self) -> None:
        if not self._apart:
            raise ValueError(f"{self._spec.client} shares this process, which would die with it")
        self._order(Order.CRASH)

    def _order(self, order: Order) -> None:
        if self._channel is not None:
            self._channel.give(order)

    def _work(self, channel: LocalChannel) -> None:
        while self._serve(self._spec, channel) is Order.RESTART:
            channel.give(Order.WORK)
            channel.did("restarted", "restarts under the same instance id")
        channel.did("left", "stopped; its instance id keeps the place" if self._spec.instance else "left")

    def _work_apart(self, channel: LocalChannel) -> None:
        process = _member_process(self._spec)
        self._context.processes.add(process)
        try:
            last = _serve_member(process, channel)
            code = process.wait()
        finally:
            process.kill()
            process.wait()
            self._context.processes.discard(process)
        crashed = last is Order.CRASH
        if code != (-signal.SIGKILL if crashed else 0):
            raise WorkloadError(f"the process of {self._spec.client} ended with {code}")
        channel.did(*(("crashed", "crashed without a word") if crashed else ("left", "left")))


def _member_process(spec: MemberSpec) -> subprocess.Popen[str]:
    home = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(
        # -P: with the working folder on the path, the file kafka.py next to this one would hide kafka-python.
        [sys.executable, "-P", "-m", "demo.workload", "--member", json.dumps(asdict(spec))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
        # Out of reach of the terminal's Ctrl-C: an order of the parent or the end of the pipe ends it.
        process_group=0,
    )


def _serve_member(process: subprocess.Popen[str], channel: LocalChannel) -> Order:
    """Record what the member reports and answer with its orders until it exits; return the last order."""
    assert process.stdin is not None
    assert process.stdout is not None
    last = Order.WORK
    with process.stdin as answers, process.stdout as lines:
        for line in lines:
            _record(channel, json.loads(line))
            last = channel.order()
            try:
                print(last.value, file=answers, flush=True)
            except BrokenPipeError:
                break
    return last


def _run_member(spec: MemberSpec) -> int:
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve_classic(spec, PipeChannel())
    return 0


@dataclass(order=True)
class Step:
    """Something that happens at a second of the run, and again `every` so many seconds if that is not 0."""

    at: float
    every: float = field(compare=False)
    act: Callable[[], object] = field(compare=False)


def _slots(
    context: Context,
    group: str,
    kind: Kind,
    serve: Serve,
    topics: Sequence[Sequence[str]],
    *,
    apart: int = 0,
    **spec: Any,
) -> list[Slot]:
    """One slot for each entry of `topics`; the one numbered `apart` runs in a separate process."""
    name = context.name(group)
    context.ledger.opened(name, kind)
    members = [
        MemberSpec(context.bootstrap, name, f"{name}-{number}", tuple(wanted), **spec)
        for number, wanted in enumerate(topics, 1)
    ]
    if kind == "static":
        members = [replace(member, instance=member.client) for member in members]
        context.statics.update((name, member.client) for member in members)
    return [Slot(context, member, number, serve, apart=number == apart) for number, member in enumerate(members, 1)]


def _one_by_one(slots: Iterable[Slot], gap: float = 0.4) -> list[Step]:
    return [Step(round(number * gap, 1), 0, slot.take) for number, slot in enumerate(slots)]


def billing(context: Context) -> list[Step]:
    """Range assignment; the third member crashes, which the group notices after 6 s, and comes back."""
    topics = [context.name("orders"), context.name("payments")]
    slots = _slots(context, "billing", "range", serve_classic, [topics] * 3, apart=3, assignor="range")
    return [*_one_by_one(slots), Step(6, 30, slots[2].crash), Step(15, 30, slots[2].take)]


def shipping(context: Context) -> list[Step]:
    """Round robin assignment; a third member keeps coming and going."""
    topics = [context.name("orders")]
    slots = _slots(context, "shipping", "roundrobin", serve_classic, [topics] * 3, assignor="roundrobin")
    return [*_one_by_one(slots[:2]), Step(5, 14, slots[2].take), Step(11, 14, slots[2].leave)]


def fraud(context: Context) -> list[Step]:
    """Sticky assignment; a fourth member comes, the first leaves and returns, the fourth goes."""
    topics = [context.name("payments"), context.name("clicks")]
    first, second, third, fourth = _slots(context, "fraud", "sticky", serve_classic, [topics] * 4, assignor="sticky")
    coming = [Step(9, 40, fourth.take), Step(17, 40, first.leave)]
    return [
        *_one_by_one([first, second, third]),
        *coming,
        Step(25, 40, first.take),
        Step(33, 40, fourth.leave),
    ]


def search(context: Context) -> list[Step]:
    """Static members; the second restarts within its session timeout, which is no rebalance."""
    topics = [context.name("clicks")]
    slots = _slots(context, "search", "static", serve_classic, [topics] * 2, session_ms=15_000)
    return [*_one_by_one(slots), Step(8, 25, slots[1].restart)]


def insights(context: Context) -> list[Step]:
    """The new protocol; the second member comes and goes, the third's pattern fits a topic created later."""
    named = [context.name("orders"), context.name("invoices")]
    pattern = [f"^{re.escape(context.name('clicks'))}.*"]
    slots = _slots(context, "insights", "consumer", serve_consumer_protocol, [named, named, pattern])
    new_topic = Step(20, 0, lambda: _add_late_topic(context))
    return [*_one_by_one(slots), Step(16, 40, slots[1].leave), new_topic, Step(26, 40, slots[1].take)]


def notifications(context: Context) -> list[Step]:
    """A share group, whose offsets live elsewhere; the second member comes and goes."""
    topics = [context.name("payments")]
    slots = _slots(context, "notifications", "share", serve_share, [topics] * 2)
    return [*_one_by_one(slots), Step(14, 36, slots[1].leave), Step(22, 36, slots[1].take)]


def _add_late_topic(context: Context) -> None:
    context.create_topics({LATE_TOPIC: LATE_PARTITIONS})
    context.late_topic.set()
    context.say("administrator", f"created topic {LATE_TOPIC}")


def _alone(actor: str, act: Callable[[Context], None]) -> Callable[[Context], list[Step]]:
    def scenario(context: Context) -> list[Step]:
        return [Step(0, 0, lambda: context.spawn(actor, lambda: act(context)))]

    return scenario


def produce(context: Context) -> None:
    """Write to the topics at a steady rate, in a few small bursts a second."""
    producer = Producer({"bootstrap.servers": context.bootstrap, "linger.ms": 50, "log_level": 2})
    chance = context.random("producer")
    errors: list[KafkaError] = []
    ticks, numbers = 4, itertools.count()
    while not context.stopping.is_set():
        for _ in range(max(context.rate // ticks, 1)):
            topic = chance.choices(list(SHARES), list(SHARES.values()))[0]
            if topic == "clicks" and context.late_topic.is_set() and chance.random() < 0.3:
                topic = LATE_TOPIC
            value = json.dumps({"n": next(numbers), "amount": chance.randrange(10_000)})
            producer.produce(context.name(topic), value, f"key-{chance.randrange(500)}", on_delivery=_keep(errors))
        producer.poll(0)
        if errors:
            raise KafkaException(errors[0])
        context.pause(1 / ticks)
    producer.flush(5)


def _keep(errors: list[KafkaError]) -> Callable[[KafkaError | None, Message[Any, Any]], None]:
    return lambda error, _message: errors.append(error) if error is not None else None


class Settlement:
    """Reads payments and writes invoices, the offsets in the same transaction; one in four is aborted."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._group = context.name("settlement")
        self._chance = context.random("settlement")
        self._fates: list[bool] = []
        spec = MemberSpec(context.bootstrap, self._group, f"{self._group}-1", (context.name("payments"),))
        context.ledger.opened(self._group, "transactional")
        self._consumer = confluent_consumer(spec, **{"fetch.wait.max.ms": 500, "session.timeout.ms": 10_000})
        self._producer = Producer(
            {
                "bootstrap.servers": context.bootstrap,
                "transactional.id": f"{self._group}-writer",
                "transaction.timeout.ms": 15_000,
                "log_level": 2,
            }
        )
        self._consumer.subscribe(list(spec.topics))

    def run(self) -> None:
        try:
            self._patiently(self._producer.init_transactions)
            while not self._context.stopping.is_set():
                if messages := _messages(self._consumer, 100):
                    self._settle(messages)
        finally:
            self._consumer.close()

    def _settle(self, messages: Sequence[Message[Any, Any]]) -> None:
        ledger, offsets = self._context.ledger, _ends(messages)
        try:
            self._write(messages, offsets)
            if self._aborts():
                return self._abort(messages, "aborted a transaction on purpose")
            self._patiently(self._producer.commit_transaction)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                ledger.doubt(self._group, offsets)
                raise
            return self._abort(messages, f"had to abort a transaction: {error.args[0].str()}")
        ledger.acknowledge(self._group, offsets)
        ledger.transaction("committed")
        if ledger.transactions_committed % 10 == 0:
            self._context.say("settlement", f"committed its transaction {ledger.transactions_committed}")
        return None

    def _write(self, messages: Sequence[Message[Any, Any]], offsets: Offsets) -> None:
        self._producer.begin_transaction()
        for message in messages:
            self._producer.produce(self._context.name("invoices"), message.value(), message.key())
        # An abort with records still under way makes librdkafka abort the next transaction as well.
        self._producer.flush(TRANSACTION_SECONDS)
        membership = self._consumer.consumer_group_metadata()
        ends = _confluent(offsets)
        self._patiently(lambda wait: self._producer.send_offsets_to_transaction(ends, membership, wait))

    def _patiently(self, act: Callable[[float], object]) -> None:
        """Waits in short turns, so that a broker that is gone cannot hold up `stop`."""
        deadline = time.monotonic() + TRANSACTION_PATIENCE
        while True:
            try:
                act(TRANSACTION_SECONDS)
            except KafkaException as error:
                late = self._context.stopping.is_set() or time.monotonic() > deadline
                if late or not error.args[0].retriable():
                    raise
            else:
                return

    def _aborts(self) -> bool:
        if not self._fates:
            self._fates = [True, False, False, False]
            self._chance.shuffle(self._fates)
        return self._fates.pop()

    def _abort(self, messages: Sequence[Message[Any, Any]], line: str) -> None:
        self._patiently(self._producer.abort_transaction)
        assigned = set(_pairs(self._consumer.assignment()))
        for (topic, partition), offset in _starts(messages).items():
            if (topic, partition) in assigned:
                self._consumer.seek(ConfluentPartition(topic, partition, offset))
        self._context.ledger.transaction("aborted")
        self._context.say("settlement", line)


def _starts(messages: Iterable[Message[Any, Any]]) -> Offsets:
    starts: Offsets = {}
    for topic, partition, offset in map(_place, messages):
        starts.setdefault((topic, partition), offset)
    return starts


def export(context: Context) -> None:
    """A standalone consumer: no subscription, so no membership, only commits; it falls further behind."""
    group, topic = context.name("export"), context.name("audit")
    spec = MemberSpec(context.bootstrap, group, f"{group}-1", (topic,), batch=2)
    channel = LocalChannel(context, spec, "standalone consumer")
    context.ledger.opened(group, "simple")
    consumer = classic_consumer(spec)
    try:
        consumer.assign([TopicPartition(topic, number) for number in range(TOPICS["audit"])])
        channel.did("started", "reads audit without joining a group")
        while channel.order() is Order.WORK:
            commit_classic(consumer, consumer.poll(timeout_ms=int(POLL_SECONDS * 1000)), spec, channel)
            context.pause(1)
    finally:
        consumer.close(timeout_ms=CLOSE_MS)


def nightly_report(context: Context) -> None:
    """A job that forms a group, reads for a while and has the group deleted; its name returns next time."""
    group = context.name("nightly-report")
    spec = MemberSpec(context.bootstrap, group, f"{group}-1", (context.name("orders"),), batch=200)
    while not context.stopping.is_set():
        _run_briefly(context, spec, "deleted", 5)
        if context.stopping.is_set():
            return
        _delete(context, group)
        context.pause(10)


def _run_briefly(context: Context, spec: MemberSpec, kind: Kind, seconds: float) -> None:
    channel = TimedChannel(context, spec, "the only member", seconds)
    context.ledger.opened(spec.group, kind)
    channel.did("started", "starts")
    serve_classic(spec, channel)
    channel.did("left", "left")


def _delete(context: Context, group: str) -> None:
    deadline = time.monotonic() + 10
    with context.admin() as admin:
        while (answer := admin.delete_groups([group])[group]) != "OK":
            if answer != "NonEmptyGroupError" or time.monotonic() > deadline:
                raise WorkloadError(f"group {group} could not be deleted: {answer}")
            context.pause(0.2)
    context.ledger.forget(group)
    context.ledger.did("deleted")
    context.say(context.plain(group), "group deleted by the administrator")


def replay(context: Context) -> None:
    """A group that is emptied, rewound by an administrator and set to work again."""
    group = context.name("replay")
    spec = MemberSpec(context.bootstrap, group, f"{group}-1", (context.name("payments"),))
    while not context.stopping.is_set():
        _run_briefly(context, spec, "reset", 7)
        if context.stopping.is_set():
            return
        _rewind(context, group, 20)
        context.pause(4)


def _rewind(context: Context, group: str, records: int) -> None:
    ours = {key: offset for key, offset in context.ledger.committed().items() if key[0] == group}
    targets = {
        TopicPartition(topic, partition): max(offset - records, 0) for (_, topic, partition), offset in ours.items()
    }
    if not targets:
        return
    with context.admin() as admin:
        answers = admin.alter_group_offsets(
            group, {place: OffsetAndMetadata(offset, "rewound", -1) for place, offset in targets.items()}
        )
    errors = {answer.__name__ for answer in answers.values()} - {"NoError"}
    if errors:
        raise WorkloadError(f"the offsets of group {group} could not be reset: {', '.join(sorted(errors))}")
    context.ledger.acknowledge(group, {(place.topic, place.partition): at for place, at in targets.items()})
    context.ledger.did("reset")
    context.say(context.plain(group), f"offsets of {len(targets)} partitions set back by the administrator")


SCENARIOS: dict[str, Callable[[Context], list[Step]]] = {
    "producer": _alone("producer", produce),
    "billing": billing,
    "shipping": shipping,
    "fraud": fraud,
    "search": search,
    "insights": insights,
    "notifications": notifications,
    "settlement": _alone("settlement", lambda context: Settlement(context).run()),
    "export": _alone("export", export),
    "nightly-report": _alone("nightly-report", nightly_report),
    "replay": _alone("replay", replay),
}


class Workload:
    """All scenarios against one cluster.

    `prefix` goes before every topic, group and transactional id. `rate` is in records a second. `leave_out`
    names scenarios that a cluster cannot run (an old one: "insights", "notifications"). `report` is called
    from many threads, one call at a time, with names that lack the prefix.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        prefix: str = "",
        seed: int = 7,
        report: Report,
        rate: int = 40,
        leave_out: Collection[str] = (),
    ) -> None:
        unknown = set(leave_out) - set(SCENARIOS)
        if unknown:
            raise ValueError(f"no such scenarios: {', '.join(sorted(unknown))}")
        self._context = Context(bootstrap, prefix, seed, rate, report)
        self._names = [name for name in SCENARIOS if name not in leave_out]
        self._lock = threading.Lock()
        self._started = self._stopped = False

    @property
    def ledger(self) -> Ledger:
        return self._context.ledger

    def start(self) -> None:
        """Create the topics and set everything going; the topics exist when this returns."""
        with self._lock:
            if self._started:
                return
            self._context.create_topics(TOPICS)
            self._started = True
            steps = [step for name in self._names for step in SCENARIOS[name](self._context)]
            self._context.spawn("schedule", lambda: _conduct(self._context, steps))

    def stop(self, deadline_seconds: float = 20) -> None:
        """Stop every client and wait until the groups are empty; kill what is left at the deadline."""
        deadline = time.monotonic() + deadline_seconds
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
            self._context.stopping.set()
            if not self._started:
                return
            if self._context.join(deadline):
                self._kill_the_rest()
            self._empty_the_groups(deadline)

    def check(self) -> None:
        """Raise if an actor ended with an exception, naming it."""
        if self._context.failures:
            actor, error = self._context.failures[0]
            names = ", ".join(sorted({name for name, _ in self._context.failures}))
            raise WorkloadError(f"{actor}: {error!r} (failed: {names})") from error

    def run_for(self, seconds: float) -> None:
        """Start, run for some seconds or until an actor fails, stop and check."""
        try:
            self.start()
            self._context.failed.wait(seconds)
        finally:
            self.stop()
        self.check()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if kind is None:
            self.check()

    def _kill_the_rest(self) -> None:
        for process in list(self._context.processes):
            process.kill()
        for name in self._context.join(time.monotonic() + 2):
            self._context.fail(name, WorkloadError("still running after the deadline"))

    def _empty_the_groups(self, deadline: float) -> None:
        """Static members keep their place when they stop, crashed ones until their session ends."""
        patience_ms = max(int((deadline - time.monotonic()) * 1000), 2_000)
        try:
            with self._context.admin(min(patience_ms, BOOTSTRAP_MS)) as admin:
                for group, instance in sorted(self._context.statics):
                    admin.remove_group_members(group, [MemberToRemove(group_instance_id=instance)])
                    self.ledger.did("removed")
                self._await_empty(admin, deadline)
        except ClientError as error:
            self._context.fail("stop", error)

    def _await_empty(self, admin: Any, deadline: float) -> None:
        ours, pause = self.ledger.groups(), threading.Event()
        while busy := [
            group["group_id"]
            for group in admin.list_groups()
            if group["group_id"] in ours and group["group_state"] not in ("Empty", "Dead")
        ]:
            if time.monotonic() > deadline:
                self._context.say("stop", f"groups that still have members: {', '.join(sorted(busy))}")
                return
            pause.wait(0.25)


def _conduct(context: Context, steps: list[Step]) -> None:
    """Do each step at its time, and put the repeated ones back."""
    start = time.monotonic()
    heapq.heapify(steps)
    while steps:
        step = heapq.heappop(steps)
        context.pause(start + step.at - time.monotonic())
        if context.stopping.is_set():
            return
        step.act()
        if step.every:
            heapq.heappush(steps, replace(step, at=step.at + step.every))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m demo.workload", description="Run real Kafka clients of every kind."
    )
    parser.add_argument("--bootstrap", default="127.0.0.1:9092", metavar="HOST:PORT")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--prefix", default="", help="goes before every topic and group")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--rate", type=int, default=40, help="records written a second")
    parser.add_argument("--leave-out", nargs="*", default=[], choices=list(SCENARIOS), metavar="SCENARIO")
    parser.add_argument("--member", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _arguments(argv)
    if arguments.member:
        spec = json.loads(arguments.member)
        return _run_member(MemberSpec(**spec | {"topics": tuple(spec["topics"])}))
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    signal.signal(signal.SIGTERM, _terminate)
    start = time.monotonic()

    def report(actor: str, line: str) -> None:
        print(f"{time.monotonic() - start:6.1f} s  {actor:<15} {line}", flush=True)

    workload = Workload(
        arguments.bootstrap,
        prefix=arguments.prefix,
        seed=arguments.seed,
        rate=arguments.rate,
        report=report,
        leave_out=arguments.leave_out,
    )
    try:
        workload.run_for(arguments.seconds)
    except KeyboardInterrupt:
        return 130
    except WorkloadError as error:
        traceback.print_exception(error)
        return 1
    print(_summary(workload.ledger))
    return 0


def _summary(ledger: Ledger) -> str:
    done = ", ".join(f"{count} {action}" for action, count in sorted(ledger.actions().items()))
    transactions = f"{ledger.transactions_committed} committed, {ledger.transactions_aborted} aborted"
    commits = sum(ledger.commit_counts().values())
    return f"{len(ledger.groups())} groups, {commits} offsets acknowledged; transactions: {transactions}; {done}"


if __name__ == "__main__":
    raise SystemExit(main())
