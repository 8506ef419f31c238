"""Consume with one member until the input ends: members.py BROKERS LIBRARY ASSIGNOR GROUP TOPIC...

Prints {"member", "owns"} after each assignment. Needs the library alone.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Iterable
from typing import Any

ended = threading.Event()


def main() -> None:
    brokers, library, assignor, group, *topics = sys.argv[1:]
    threading.Thread(target=_wait_for_the_end, daemon=True).start()
    consume = {"aiokafka": _aiokafka, "kafka-python": _kafka_python, "librdkafka": _librdkafka}[library]
    consume(brokers, assignor, group, topics)


def _wait_for_the_end() -> None:
    sys.stdin.read()
    ended.set()


def _show(member_id: str, partitions: Iterable[Any]) -> None:
    owns: dict[str, list[int]] = {}
    for partition in sorted(partitions, key=lambda each: (each.topic, each.partition)):
        owns.setdefault(partition.topic, []).append(partition.partition)
    sys.stdout.write(json.dumps({"member": member_id, "owns": owns}) + "\n")
    sys.stdout.flush()


def _aiokafka(brokers: str, assignor: str, group: str, topics: list[str]) -> None:
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

    assignors = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "sticky": StickyPartitionAssignor,
    }

    async def consume() -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=brokers,
            group_id=group,
            client_id="aiokafka",
            partition_assignment_strategy=[assignors[assignor]],
        )

        class Listener(ConsumerRebalanceListener):
            def on_partitions_revoked(self, revoked: Any) -> None:
                pass

            def on_partitions_assigned(self, assigned: Any) -> None:
                _show(consumer._coordinator.member_id, assigned)

        consumer.subscribe(topics, listener=Listener())
        await consumer.start()
        try:
            while not ended.is_set():
                await consumer.getmany(timeout_ms=200)
        finally:
            await consumer.stop()

    asyncio.run(consume())


def _kafka_python(brokers: str, assignor: str, group: str, topics: list[str]) -> None:
    from kafka import KafkaConsumer
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

    assignors = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "sticky": StickyPartitionAssignor,
        "cooperative-sticky": CooperativeStickyAssignor,
    }
    consumer = KafkaConsumer(
        bootstrap_servers=brokers.split(","),
        group_id=group,
        client_id="kafka-python",
        partition_assignment_strategy=[assignors[assignor]],
    )

    consumer.subscribe(topics)
    shown: Any = None
    while not ended.is_set():
        consumer.poll(timeout_ms=1_000)
        now = consumer._coordinator._generation.member_id, frozenset(consumer.assignment())
        if now != shown:
            shown = now
            _show(*now)
    consumer.close()


def _librdkafka(brokers: str, assignor: str, group: str, topics: list[str]) -> None:
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": group,
            "client.id": "librdkafka",
            "partition.assignment.strategy": assignor,
            "log_level": 2,
        }
    )
    consumer.subscribe(topics)
    shown: Any = None
    while not ended.is_set():
        consumer.poll(0.2)
        now = consumer.memberid(), frozenset((each.topic, each.partition) for each in consumer.assignment())
        if now != shown:
            shown = now
            _show(now[0] or "", consumer.assignment())
    consumer.close()


if __name__ == "__main__":
    main()
