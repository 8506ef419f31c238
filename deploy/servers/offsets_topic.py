"""The records of `__consumer_offsets`: read them as they are, write them as a coordinator would, hold them back.

For demos, tests and benches only: `load_raw` writes into the broker's own topic.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Position
from kafka import KafkaConsumer, TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError

from servers.errors import BrokerError

OFFSETS_TOPIC = "__consumer_offsets"

Isolation = Literal["read_committed", "read_uncommitted"]
TransactionEnd = Literal["abort", "commit", "timeout"]

_POLL_SECONDS = 0.05
_PATIENCE_SECONDS = 240.0


@dataclass(frozen=True)
class Record:
    """One record of a coordinator's topic, undecoded; `leader_epoch` is that of its writing leader, if known."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    leader_epoch: int | None = None

    @property
    def type(self) -> int | None:
        """The record type, which Kafka keeps in the key's first two bytes."""
        return int.from_bytes(self.key[:2], signed=True) if self.key and len(self.key) > 1 else None


def ensure_offsets_topic(bootstrap: str, deadline_seconds: float = 120) -> int:
    """Make the broker create `__consumer_offsets`, as any request about a group does; return its partitions."""
    deadline = time.monotonic() + deadline_seconds
    with contextlib.closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as admin:
        while time.monotonic() < deadline:
            with contextlib.suppress(KafkaError):
                admin.describe_groups(["nobody"])
                admin.wait_for_topics([OFFSETS_TOPIC], timeout_ms=1000)
                return len(admin.describe_topics([OFFSETS_TOPIC])[0]["partitions"])
            time.sleep(_POLL_SECONDS)
    raise BrokerError(
        f"{bootstrap} did not create {OFFSETS_TOPIC} within {deadline_seconds:g} s: see the broker's log"
    )


_LOAD_QUEUE_RECORDS = 50_000


def load_raw(
    bootstrap: str, records: Iterable[tuple[int | None, bytes, bytes | None]], *, timestamp_ms: int | None = None
) -> int:
    """Writes (partition, key, value) into `__consumer_offsets` as they are; how many were written.

    With `timestamp_ms` all have that time, as if the coordinator's clock was wrong: at most an hour ahead.
    Without a partition the key's hash chooses one. The broker takes such records only from its own admin
    client, whose name is used here, and none without a key. It does not check them, and when it starts again
    it cannot load a partition that holds an unreadable one: for throw-away brokers.
    """
    # Not kafka-python's admin client, which does not see internal topics.
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": "__admin_client", "linger.ms": 20})
    failures: list[str] = []

    def delivered(error: object, _message: object) -> None:
        if error is not None:
            failures.append(str(error))

    count = 0
    for partition, key, value in records:
        while len(producer) >= _LOAD_QUEUE_RECORDS:
            producer.poll(0.1)
        producer.produce(
            OFFSETS_TOPIC,
            key=key,
            value=value,
            partition=-1 if partition is None else partition,
            timestamp=timestamp_ms or 0,  # 0: now
            on_delivery=delivered,
        )
        count += 1
    left = producer.flush(_PATIENCE_SECONDS)
    if left or failures:
        reason = failures[0] if failures else f"no answer within {_PATIENCE_SECONDS:g} s"
        raise BrokerError(
            f"{left + len(failures)} of {count} records were not taken ({reason}): see the broker's log"
        )
    return count


@contextlib.contextmanager
def hanging_transaction(
    bootstrap: str,
    group: str,
    topic: str,
    partition: int,
    *,
    seconds: float = 600,
    end: TransactionEnd = "abort",
    patience_seconds: float = 60,
) -> Iterator[None]:
    """Commit an offset of the group in a transaction that stays open, and end it afterwards.

    At the end it is aborted or committed, or left to the broker, which aborts it `seconds` after it began.
    """
    settings = {"bootstrap.servers": bootstrap, "transactional.id": "hanging"}
    producing = Producer(settings | {"transaction.timeout.ms": round(seconds * 1000)})
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        producing.init_transactions(patience_seconds)
        producing.begin_transaction()
        member = consumer.consumer_group_metadata()
        producing.send_offsets_to_transaction([Position(topic, partition, 99)], member, patience_seconds)
        try:
            yield
        finally:
            if end == "abort":
                producing.abort_transaction(patience_seconds)
            elif end == "commit":
                producing.commit_transaction(patience_seconds)
    finally:
        consumer.close()


def read_records(
    bootstrap: str,
    *,
    topic: str = OFFSETS_TOPIC,
    isolation: Isolation = "read_committed",
    deadline_seconds: float = 240,
) -> list[Record]:
    """Return every record of a topic in order of partition and offset, without joining a group."""
    deadline = time.monotonic() + deadline_seconds

    def check_deadline() -> None:
        if time.monotonic() > deadline:
            raise BrokerError(f"{topic} was not read within {deadline_seconds:g} s: see the broker's log")

    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level=isolation, enable_auto_commit=False, group_id=None
    )
    records: list[Record] = []
    with contextlib.closing(consumer):
        # kafka-python has none of an existing topic if a request for no topics was already on its way.
        while not (numbers := consumer.partitions_for_topic(topic)):
            check_deadline()
            time.sleep(_POLL_SECONDS)
        partitions = [TopicPartition(topic, number) for number in numbers]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            check_deadline()
            for batch in consumer.poll(timeout_ms=200).values():
                records += (Record(r.partition, r.offset, r.timestamp, r.key, r.value, r.leader_epoch) for r in batch)
    return sorted(records, key=lambda record: (record.partition, record.offset))
