"""A warehouse with the facts of a cluster of three brokers and its groups, for `what-if broker` and its page."""

from __future__ import annotations

from collections import Counter
from typing import Any

from grouptrail.config import Config
from grouptrail.kafka.coordinator import coordinator_partition
from support.exporter_tables import OPEN, lag_row, now, progress
from support.small_tables import lay

OFFSETS_PARTITIONS = 3
DENIED = "DESCRIBE_CONFIGS is denied"

Row = dict[str, Any]


def group_in(partition: int, name: str) -> str:
    """Return the first name like this one whose group is in a partition of __consumer_offsets."""
    names = (f"{name}{number or ''}" for number in range(1000))
    return next(name for name in names if coordinator_partition(name, OFFSETS_PARTITIONS) == partition)


def lay_facts(config: Config, *partitions: Row, brokers: tuple[int, ...] = (1, 2, 3), least: Any = 2) -> None:
    """Write brokers and partitions, of which `led` returns rows; `least` is min.insync.replicas of all topics.

    It may be by topic; None: the settings are denied."""
    since = {"valid_from": now(), **OPEN}
    hosts = ({"broker_id": number, "host": f"kafka-{number}", "rack": f"r{number % 2}"} for number in brokers)
    lay(config, "brokers", *({**row, "port": 9092, "release_from": "4.1", **since} for row in hosts))
    lay(config, "topic_partitions", *({**row, **since} for row in partitions))
    topics = Counter(row["topic"] for row in partitions)
    shown = {"replication_factor": 3, "is_internal": False, **since}
    lay(config, "topics", *({"topic": name, "partition_count": count, **shown} for name, count in topics.items()))
    values = {name: least.get(name) if isinstance(least, dict) else least for name in topics}
    lay(config, "topic_configs", *(_settings(name, value) | since for name, value in values.items()))


def _settings(topic: str, least: int | None) -> Row:
    return {"topic": topic, "min_insync_replicas": least, "problem": DENIED if least is None else None}


def led(topic: str, partition: int, leader: int | None, isr: list[int], replicas: tuple[int, ...] = (1, 2, 3)) -> Row:
    """Return a partition of a topic."""
    shown = {"topic": topic, "partition": partition, "leader": leader, "leader_epoch": 1}
    return {**shown, "replicas": list(replicas), "isr": isr, "offline": [one for one in replicas if one not in isr]}


def lay_cluster(config: Config, strange: str | None = None) -> dict[str, str]:
    """Write a cluster in which a stop of broker 3 does everything; return its groups by what happens to them.

    `strange` is the name of a further group and topic."""
    lay_facts(
        config,
        *(led("__consumer_offsets", number, leader, isr) for number, leader, isr in _OFFSETS),
        led("orders", 0, 3, [1, 2, 3]),
        led("orders", 1, 3, [2, 3]),
        led("orders", 2, 1, [1, 2, 3]),
        led("single", 0, 3, [3], (3,)),
        led("audit", 0, 1, [1, 3]),
        led("lost", 0, None, [3]),
        *([led(strange, 0, 3, [3])] if strange else []),
        least={"__consumer_offsets": 2, "orders": 2, "single": 1, "lost": 2, **({strange: 2} if strange else {})},
    )
    groups = {
        "cannot_commit": group_in(1, "billing"),
        "cannot_read": group_in(0, "shipping"),
        "coordinator_moves": group_in(2, "mailer"),
        "nothing": group_in(0, "quiet"),
    }
    reads = {"cannot_commit": ("orders", 1), "cannot_read": ("single", 0), "nothing": ("orders", 2)}
    samples = [lag_row(part, group_id=groups[what], topic=topic) for what, (topic, part) in reads.items()]
    states = [{**OPEN, "group_id": name, "state": "Stable", "group_kind": "classic"} for name in groups.values()]
    if strange:
        samples.append(lag_row(0, group_id=strange, topic=strange))
        states.append({**OPEN, "group_id": strange, "state": "Stable", "group_kind": "classic"})
    lay(config, "consumer_lag", *samples)
    lay(config, "group_states", *states)
    lay(config, "generations", {**OPEN, "group_id": groups["cannot_commit"], "generation": 4, "member_count": 2})
    lay(config, "ingest_progress", progress(0, 10))
    return groups


_OFFSETS = ((0, 1, [1, 2, 3]), (1, 2, [2, 3]), (2, 3, [1, 2, 3]))
