"""Groups with members and commits on a real Kafka, and their lag: as Kafka's own tool says, and as the table says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from kafka import KafkaConsumer, OffsetAndMetadata
from kafka import TopicPartition as Partition

from grouptrail.config import Config
from grouptrail.kafka.coordinator import coordinator_partition
from grouptrail.kafka.offsets_topic import OffsetsTopic
from servers.kafka import Broker
from support import landed
from support.kafka_clients import await_that, poll

PARTITIONS = 3

Figures = tuple[int | None, int | None, int | None]
Position = tuple[str, str, int]


@contextmanager
def classic_member(broker: Broker, group: str, names: list[str]) -> Iterator[KafkaConsumer]:
    """Run a member that owns its partitions and has committed part of those with records."""
    settings = {"bootstrap_servers": broker.bootstrap, "group_id": group, "enable_auto_commit": False}
    # It joins before it has the topics' metadata, and again once it has.
    consumer = KafkaConsumer(*names, **settings, metadata_max_age_ms=500)
    with closing(consumer):

        def has_all() -> bool:
            poll(consumer)
            return len(consumer.assignment()) == PARTITIONS * len(names)

        await_that(has_all)
        consumer.commit({Partition(name, at): OffsetAndMetadata(3 + at, "", -1) for name in names for at in (0, 1)})
        yield consumer


@contextmanager
def kip848_member(broker: Broker, group: str, names: list[str]) -> Iterator[Consumer]:
    """Run a KIP-848 member that owns its partitions and has committed part of those with records."""
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": group, "group.protocol": "consumer"}
    consumer = Consumer(settings | {"enable.auto.commit": False})
    with closing(consumer):
        consumer.subscribe(names)

        def has_all() -> bool:
            consumer.poll(0.1)
            return len(consumer.assignment()) == PARTITIONS * len(names)

        await_that(has_all)
        commits = [TopicPartition(name, at, 3 + at) for name in names for at in (0, 1)]
        consumer.commit(offsets=commits, asynchronous=False)
        yield consumer


def groups_around_a_transaction(config: Config, prefix: str) -> tuple[str, str, str, int]:
    """Return names of groups: one that a transaction of the second holds back, and one in another partition of the
    offsets topic; and the partition of the first two."""
    with OffsetsTopic(config.kafka_settings()) as offsets_topic:
        partitions = len(offsets_topic.partitions())
    names = [f"{prefix}-{number}" for number in range(40)]
    held, *others = ((name, coordinator_partition(name, partitions)) for name in names)
    transactional = next(name for name, partition in others if partition == held[1])
    elsewhere = next(name for name, partition in others if partition != held[1])
    return held[0], transactional, elsewhere, held[1]


def described(broker: Broker, *groups: str) -> dict[Position, Figures]:
    """Return committed offset, log end and lag from `kafka-consumer-groups --describe`."""
    printed = broker.tool(
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        *("--bootstrap-server", broker.bootstrap, "--describe"),
        *(part for group in groups for part in ("--group", group)),
    )
    figures: dict[Position, Figures] = {}
    for line in printed.stdout.splitlines():
        words = line.split()
        if len(words) >= 6 and words[0] in groups:
            committed, end, lag = (int(word) if re.fullmatch(r"-?\d+", word) else None for word in words[3:6])
            figures[words[0], words[1], int(words[2])] = (committed, end, lag)
    return figures


def newest(config: Config, *groups: str) -> dict[Position, dict[str, Any]]:
    """Return the rows of the newest sample."""
    rows = sorted(landed.rows(config, "consumer_lag"), key=lambda row: row["sampled_at"])
    return {
        (row["group_id"], row["topic"], row["partition"]): row
        for row in rows
        if row["group_id"] in groups and row["sampled_at"] >= rows[-1]["sampled_at"]
    }


def figures(rows: dict[Position, dict[str, Any]]) -> dict[Position, Figures]:
    return {position: (row["committed_offset"], row["log_end_offset"], row["lag"]) for position, row in rows.items()}
