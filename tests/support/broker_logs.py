"""Brokers of tests that log what their group coordinators do, and members whose restarts they log."""

from __future__ import annotations

from confluent_kafka import Consumer

from support.kafka_clients import await_that

# The levels and times of slf4j-simple, with which brokers of tests log.
_SIMPLE = "-Dorg.slf4j.simpleLogger"
JAVA_OPTIONS = " ".join(
    [
        f"{_SIMPLE}.log.org.apache.kafka.coordinator.group=info",
        f"{_SIMPLE}.log.kafka.coordinator.group=info",
        f"{_SIMPLE}.showThreadName=false",
        f"{_SIMPLE}.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSXXX",
    ]
)


def poll_until(consumers: list[Consumer], partitions: int) -> None:
    """Poll until each has its share."""
    each = partitions // len(consumers)

    def is_shared() -> bool:
        for consumer in consumers:
            consumer.poll(0.05)
        return all(len(consumer.assignment()) == each for consumer in consumers)

    await_that(is_shared)
