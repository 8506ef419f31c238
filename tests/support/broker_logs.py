"""Members whose restarts brokers log."""

from __future__ import annotations

from confluent_kafka import Consumer

from support.kafka_clients import await_that


def poll_until(consumers: list[Consumer], partitions: int) -> None:
    """Poll until each has its share."""
    each = partitions // len(consumers)

    def is_shared() -> bool:
        for consumer in consumers:
            consumer.poll(0.05)
        return all(len(consumer.assignment()) == each for consumer in consumers)

    await_that(is_shared)
