"""Consumers of share groups that accept, release and reject records of orders-0, and one that is killed with some.

`python -m support.share_consumers SERVERS GROUP` prints the offsets of the first records that it gets.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from confluent_kafka import AcknowledgeType, Message, Producer, ShareConsumer

from servers.kafka import Broker
from support.kafka_clients import await_that, producer

HEARTBEATS = {"group.share.heartbeat.interval.ms": "500", "group.share.min.heartbeat.interval.ms": "500"}
"""Settings of a broker with which members get their partitions soon."""


def share_consumer(servers: str, group: str) -> ShareConsumer:
    """Return a member that acknowledges each record by itself."""
    settings = {"bootstrap.servers": servers, "group.id": group, "share.acknowledgement.mode": "explicit"}
    consumer = ShareConsumer({**settings, "log_level": 2})
    consumer.subscribe(["orders"])
    return consumer


def killed_with_records(broker: Broker, group: str) -> list[int]:
    """Kill a member that has records; return their offsets."""
    command = [sys.executable, "-m", "support.share_consumers", broker.bootstrap, group]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as member:
        assert member.stdout is not None
        offsets = [int(one) for one in member.stdout.readline().split()]
        member.kill()
    return offsets


def accept_as_two(broker: Broker, group: str, wanted: set[int]) -> list[set[tuple[int, int]]]:
    """Accept records as two members, until they had those of orders-0 that are wanted, and each had some.

    Returns the partition and offset of each that they had.
    """
    members = [share_consumer(broker.bootstrap, group) for _ in range(2)]
    accepted: list[set[tuple[int, int]]] = [set(), set()]

    def has_accepted_enough() -> bool:
        for partition in range(2):
            producing.produce("orders", b"x", partition=partition)
        for member, records in zip(members, accepted, strict=True):
            for message in member.poll(0.2):
                member.acknowledge(message, AcknowledgeType.ACCEPT)
                records.add((message.partition() or 0, offset_of(message)))
            member.commit_sync()
        return all(accepted) and {(0, offset) for offset in wanted} <= set.union(*accepted)

    with producer(broker) as producing:
        await_that(has_accepted_enough)
    for member in members:
        member.close()
    return accepted


def offset_of(message: Message) -> int:
    """Return the offset of a record; it is none of an error."""
    offset = message.offset()
    assert offset is not None
    return offset


def acknowledge_in_every_way(broker: Broker, group: str) -> None:
    """Acknowledge records in every way; every third one is released until the broker gives it up."""
    consumer = share_consumer(broker.bootstrap, group)
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
    consumer = share_consumer(broker.bootstrap, group)

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


def main() -> None:
    """Get records and keep them until the process is killed."""
    servers, group = sys.argv[1:]
    consumer = share_consumer(servers, group)
    messages: list[Message] = []
    with Producer({"bootstrap.servers": servers, "log_level": 2}) as producing:
        while not messages:  # a new group starts at the end of the log
            producing.produce("orders", b"x", partition=0)
            producing.flush()
            messages = consumer.poll(0.2)
    sys.stdout.write(" ".join(str(offset_of(message)) for message in messages) + "\n")
    sys.stdout.flush()
    signal.pause()


if __name__ == "__main__":
    main()
