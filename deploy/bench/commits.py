"""Commits to load into `__consumer_offsets`, for benchmarks and tests."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Iterator

from grouptrail.kafka.coordinator import coordinator_partition

PARTITIONS = 50
GROUPS, TOPICS_A_GROUP, PARTITIONS_A_TOPIC, TOPICS = 400, 2, 12, 40


def commits(count: int) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield commits of 400 groups: each commits its 24 partitions at once, advancing by up to some hundreds."""
    chance = random.Random(3)
    topics = [(f"domain.events-{number:02d}", chance.randbytes(16)) for number in range(TOPICS)]
    groups = []
    for number in range(GROUPS):
        name = f"team{number % 40:02d}-service-{number:03d}"
        keys = [
            (_key(name, topic, partition), topic_id)
            for topic, topic_id in chance.sample(topics, TOPICS_A_GROUP)
            for partition in range(PARTITIONS_A_TOPIC)
        ]
        offsets = [chance.randrange(10**7) for _ in keys]
        groups.append((coordinator_partition(name, PARTITIONS), keys, offsets, chance.randrange(2, 800)))
    now = int(time.time() * 1000) - count // 10
    for done in range(0, count, TOPICS_A_GROUP * PARTITIONS_A_TOPIC):
        partition, keys, offsets, step = chance.choice(groups)
        for index, (key, topic_id) in enumerate(keys):
            offsets[index] += chance.randrange(step)
            head = struct.pack(">hqi", 4, offsets[index], 3) + b"\x01" + struct.pack(">q", now + done // 10)
            yield partition, key, head + b"\x01\x00\x10" + topic_id


def _key(group: str, topic: str, partition: int) -> bytes:
    return b"".join(
        [
            *(struct.pack(">hh", 1, len(group)), group.encode()),
            *(struct.pack(">h", len(topic)), topic.encode(), struct.pack(">i", partition)),
        ]
    )
