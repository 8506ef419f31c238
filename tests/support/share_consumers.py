"""Consumers of share groups that accept, release and reject records of orders-0."""

from __future__ import annotations

from confluent_kafka import AcknowledgeType, ShareConsumer

from servers.kafka import Broker
from support.kafka_clients import await_that, producer


def acknowledge_in_every_way(broker: Broker, group: str) -> None:
    """Acknowledge records in every way; every third one is released until the broker gives it up."""
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": group, "share.acknowledgement.mode": "explicit"}
    consumer = ShareConsumer({**settings, "log_level": 2})
    consumer.subscribe(["orders"])
    ways = (AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT)
    acknowledged = 0

    def has_acknowledged_enough() -> bool:
        nonlocal acknowledged
        for _ in range(10):
            producing.produce("orders", b"x", partition=0)  # it starts at the end of the log
            for message in consumer.poll(0.2):
                assert message.error() is None
                consumer.acknowledge(message, ways[message.offset() % 3])
                acknowledged += 1
            consumer.commit_sync()
        return acknowledged >= 60

    with producer(broker) as producing:
        await_that(has_acknowledged_enough)
    consumer.close()


def leave_some(broker: Broker, group: str) -> None:
    """Release the first of some records and accept the others; then write more that are not read."""
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": group, "share.acknowledgement.mode": "explicit"}
    consumer = ShareConsumer({**settings, "log_level": 2})
    consumer.subscribe(["orders"])

    def has_left_one() -> bool:
        for _ in range(7):
            producing.produce("orders", b"x", partition=0)
        producing.flush()
        messages = consumer.poll(0.2)
        for number, message in enumerate(messages):
            is_left = number == 0 and len(messages) > 1
            consumer.acknowledge(message, AcknowledgeType.RELEASE if is_left else AcknowledgeType.ACCEPT)
        consumer.commit_sync()
        return len(messages) > 1

    with producer(broker) as producing:
        await_that(has_left_one)
        consumer.close()
        for _ in range(7):
            producing.produce("orders", b"x", partition=0)
