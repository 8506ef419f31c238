"""Members of the demo's groups: real clients that take orders and report what they did.

A member runs in a thread of the demo or, to be killed, in a process of its own: `python -m demo.members SPEC`.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import confluent_kafka
from confluent_kafka import AcknowledgeType, Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ConfluentPartition
from kafka import KafkaConsumer
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka.errors import CommitFailedError, KafkaTimeoutError, RebalanceInProgressError
from kafka.structs import OffsetAndMetadata

from demo.ledger import Offsets, Partition

if TYPE_CHECKING:
    from confluent_kafka import Message

POLL_SECONDS = 0.5

# One of so many records is one that a share group cannot process.
POISON_EVERY = 25
CLOSE_MS = 5_000
SESSION_MS = 6_000
COMMIT_MS = 10_000
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


class Order(Enum):
    """The instruction that a member gets in response to each request."""

    WORK = "work"
    LEAVE = "leave"
    RESTART = "restart"
    CRASH = "crash"


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


def report_to(channel: Channel, messages: Iterable[dict[str, Any]]) -> None:
    for message in messages:
        for what, value in message.items():
            if what == "holds":
                generation, partitions = value
                channel.holds(generation, [(topic, partition) for topic, partition in partitions])
            else:
                offsets = {(topic, partition): offset for topic, partition, offset in value}
                (channel.committed if what == "committed" else channel.unsure)(offsets)


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
                channel.holds(generation, pairs(consumer.assignment()))
            commit_classic(consumer, records, spec, channel)
        if order is Order.CRASH:
            os.kill(os.getpid(), signal.SIGKILL)
        return order
    finally:
        consumer.close(timeout_ms=CLOSE_MS)


def pairs(partitions: Iterable[Any]) -> list[Partition]:
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
            messages = received(consumer, spec.batch)
            if (holding := pairs(consumer.assignment())) != held:
                held = holding
                channel.holds(None, held)
            commit_confluent(consumer, messages, spec, channel)
        return order
    finally:
        consumer.close()


def received(consumer: Consumer, batch: int) -> list[Message[Any, Any]]:
    messages = consumer.consume(batch, POLL_SECONDS)
    for message in messages:
        error = message.error()
        if error is not None and error.fatal():
            raise KafkaException(error)
    return [message for message in messages if message.error() is None]


def position(message: Message[Any, Any]) -> tuple[str, int, int]:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    return topic, partition, offset


def ends_of(messages: Iterable[Message[Any, Any]]) -> Offsets:
    return {(topic, partition): offset + 1 for topic, partition, offset in map(position, messages)}


def as_confluent(offsets: Offsets, metadata: str = "") -> list[ConfluentPartition]:
    return [ConfluentPartition(topic, partition, offset, metadata) for (topic, partition), offset in offsets.items()]


def commit_confluent(
    consumer: Consumer, messages: Sequence[Message[Any, Any]], spec: MemberSpec, channel: Channel
) -> None:
    offsets = ends_of(messages)
    if not offsets:
        return
    try:
        answers = consumer.commit(offsets=as_confluent(offsets, spec.client), asynchronous=False) or []
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
    """A member of a share group, which cannot process some records and gives them back each time."""
    settings = {**confluent_settings(spec), "share.acknowledgement.mode": "explicit"}
    consumer = confluent_kafka.ShareConsumer(settings)
    try:
        consumer.subscribe(list(spec.topics))
        while (order := channel.order()) is Order.WORK:
            for message in consumer.poll(timeout=POLL_SECONDS):
                is_poison = message.error() is None and position(message)[2] % POISON_EVERY == 0
                consumer.acknowledge(message, AcknowledgeType.RELEASE if is_poison else AcknowledgeType.ACCEPT)
        return order
    finally:
        consumer.close()


def start_member(spec: MemberSpec) -> subprocess.Popen[str]:
    """Start a member in a process of its own, which can be killed."""
    home = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(
        # -P: without the working folder on the path, in which a file kafka.py would hide kafka-python.
        [sys.executable, "-P", "-m", "demo.members", json.dumps(asdict(spec))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
        # Out of reach of the terminal's Ctrl-C: an order of the parent or the end of the pipe ends it.
        process_group=0,
    )


def follow_member(process: subprocess.Popen[str], channel: Channel) -> Order:
    """Record what the member reports and answer with its orders until it exits; return the last order."""
    assert process.stdin is not None
    assert process.stdout is not None
    last = Order.WORK
    with process.stdin as answers, process.stdout as lines:
        for line in lines:
            report_to(channel, json.loads(line))
            last = channel.order()
            try:
                print(last.value, file=answers, flush=True)
            except BrokenPipeError:
                break
    return last


def main(spec: str) -> int:
    """Run the member with these values of `MemberSpec`, as JSON."""
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    values = json.loads(spec)
    serve_classic(MemberSpec(**values | {"topics": tuple(values["topics"])}), PipeChannel())
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
