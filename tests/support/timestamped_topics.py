"""Topics whose records have timestamps of all kinds, and what a consumer reads of them."""

from __future__ import annotations

import random
import time
import uuid
from contextlib import closing

from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, TopicPartition

from grouptrail.kafka.cluster import Cluster
from servers.kafka import Broker
from support.kafka_clients import PATIENCE_SECONDS, await_that, configure_topic, producer

NOW_MS = time.time_ns() // 1_000_000
HOUR_MS = 3_600_000
RECORDS = 60
FAR_MS = NOW_MS + 1000 * HOUR_MS
_ANY_FUTURE = {"message.timestamp.after.max.ms": str((1 << 63) - 1)}
_COMPACTED = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
CONFIGS = {
    "ordered": {},
    "batches": {"message.timestamp.type": "LogAppendTime"},
    "disordered": {},
    "deleted": {"segment.bytes": "1048576"},
    "compacted": _COMPACTED,
    "future": _ANY_FUTURE,
    "absurd": _ANY_FUTURE,
}
TRANSACTIONAL_CONFIGS = {
    "ordered": {},
    "single": {},
    "aborted": {},
    "open": {},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
    "transacted-disordered": {},
    "transacted-compacted": _COMPACTED,
}
"""All topics but the first have transactions: of one record or of four, all of them aborted or every third."""
IN_ORDER = ("ordered", "batches", "deleted", "compacted")
Records = dict[int, int]
"""Timestamps (milliseconds) by offset, markers of transactions left out."""


def times_of(kind: str) -> list[int]:
    """Return the timestamps of a topic's records, from some days to milliseconds ago."""
    chance = random.Random(7)
    gaps = [chance.choice([1, 1000, HOUR_MS]) for _ in range(RECORDS)]
    times = [NOW_MS - sum(gaps[number:]) for number in range(RECORDS)]
    if "disordered" in kind:
        chance.shuffle(times)
    if kind in ("future", "absurd"):
        times[20] = FAR_MS if kind == "future" else (1 << 63) - 1
    return times


def produce(broker: Broker, kind: str, topic: str) -> None:
    """Write the records of a topic."""
    times = times_of(kind)
    with producer(broker, **{"linger.ms": "20" if kind == "batches" else "0"}) as producing:
        for number, timestamp in enumerate(times):
            producing.produce(topic, b"x", key=str(number % 7), timestamp=timestamp)
            if number % 5 == 0:
                assert producing.flush(PATIENCE_SECONDS) == 0
    if "compacted" in kind:
        _compact(broker, topic)


def produce_in_transactions(broker: Broker, kind: str, topic: str) -> None:
    """Write the records of a topic in transactions, and abort every third; the last one of "open" stays open."""
    times = times_of(kind)
    size = 1 if kind == "single" else 4
    settings = {"transactional.id": topic, "transaction.timeout.ms": "600000"}
    with producer(broker, **settings) as producing:
        producing.init_transactions(PATIENCE_SECONDS)
        for first in range(0, RECORDS, size):
            producing.begin_transaction()
            for number in range(first, first + size):
                producing.produce(topic, b"x", key=str(number % 7), timestamp=times[number])
            assert producing.flush(PATIENCE_SECONDS) == 0
            if kind == "open" and first + size >= RECORDS:
                return
            is_aborted = kind == "aborted" or first // size % 3 == 2
            (producing.abort_transaction if is_aborted else producing.commit_transaction)(PATIENCE_SECONDS)
    if "compacted" in kind:
        _compact(broker, topic)


def _compact(broker: Broker, topic: str) -> None:
    """Wait until a topic is compacted, and keep it as it is: the active segment is not compacted."""
    await_that(lambda: _is_compacted(broker, topic))
    configure_topic(broker.bootstrap, topic, min_cleanable_dirty_ratio="1", min_compaction_lag_ms=str(HOUR_MS))


def _is_compacted(broker: Broker, topic: str) -> bool:
    with producer(broker) as producing:
        producing.produce(topic, b"x", key="last")
    return len(records_of(broker, topic)) < RECORDS / 2


def records_of(broker: Broker, topic: str, isolation: str = "read_uncommitted") -> Records:
    """Return all records that a consumer reads."""
    partition = TopicPartition(topic, 0)
    with closing(
        KafkaConsumer(bootstrap_servers=broker.bootstrap, group_id=None, isolation_level=isolation)
    ) as consumer:
        consumer.assign([partition])
        end = consumer.end_offsets([partition])[partition]
        consumer.seek_to_beginning(partition)
        records: Records = {}
        deadline = time.monotonic() + PATIENCE_SECONDS
        while consumer.position(partition) < end and time.monotonic() < deadline:
            for one in consumer.poll(timeout_ms=100).get(partition, ()):
                records[one.offset] = one.timestamp
        return records


def bounds(broker: Broker, topic: str) -> tuple[int, int]:
    """Return the log start and log end offset of a topic with one partition."""
    with Cluster({"bootstrap.servers": broker.bootstrap}) as cluster:
        [place] = cluster.partition_metadata({topic: [0]})
        assert place.leader is not None
        known = cluster.log_bounds(place.leader, [(topic, 0)])[topic, 0]
    assert not isinstance(known, str)
    return known.log_start_offset, known.log_end_offset


def make_topics(broker: Broker, configs: dict[str, dict[str, str]]) -> dict[str, str]:
    """Make a topic with one partition of each kind; return their names by kind."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    names = {kind: f"{kind}-{uuid.uuid4().hex[:8]}" for kind in configs}
    new = [NewTopic(names[kind], 1, 1, config=config) for kind, config in configs.items()]
    for created in admin.create_topics(new).values():
        created.result(PATIENCE_SECONDS)
    return names


def delete_records(broker: Broker, topic: str, before: int) -> None:
    """Delete the records before an offset."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    deleted = admin.delete_records([ConfluentPartition(topic, 0, before)])
    assert all(one.result(PATIENCE_SECONDS) for one in deleted.values())
