"""The offsets topic: its partitions, the bounds of their logs, and whether its records can be read."""

from __future__ import annotations

import time
from contextlib import closing
from operator import methodcaller
from uuid import uuid4

import kafka
from kafka.admin import ConfigResource, ConfigResourceType

from grouptrail.kafka.cluster import BOUND_REQUESTS, GROUP_PREFIX, UNKNOWN_TOPIC, Cluster
from grouptrail.kafka.coordinator import OFFSETS_TOPIC
from grouptrail.kafka.errors import (
    ClusterError,
    KafkaDeniedError,
    KafkaUnreachableError,
    TopicMissingError,
    error_name,
)
from grouptrail.kafka.log import LogBounds
from grouptrail.kafka.settings import DEADLINE_SECONDS

_TOPIC_DENIED = 29
_RETENTION = "offsets.retention.minutes"
_RIGHTS = f"grant the principal READ and DESCRIBE on topic {OFFSETS_TOPIC}"
_COORDINATOR_PAUSE_SECONDS = 0.2


class OffsetsTopic(Cluster):
    """The topic `__consumer_offsets`. Each method also raises TopicMissingError."""

    _denied = f"read {OFFSETS_TOPIC}: {_RIGHTS}"

    def partitions(self) -> list[int]:
        """Return the topic's partitions, ascending."""
        [topic] = self._ask(lambda admin: admin.describe_topics([OFFSETS_TOPIC]))
        if topic["error_code"] == UNKNOWN_TOPIC:
            raise TopicMissingError(
                f"there is no topic {OFFSETS_TOPIC} at {self._servers}: no consumer group has ever committed on this "
                'cluster; start one, or check kafka."bootstrap.servers"'
            )
        if topic["error_code"] == _TOPIC_DENIED:
            raise KafkaDeniedError(f"{self._servers} does not let this principal see {OFFSETS_TOPIC}: {_RIGHTS}")
        if topic["error_code"]:
            raise ClusterError(
                f"{self._servers} does not describe {OFFSETS_TOPIC} ({error_name(topic['error_code'])}): "
                "see the broker's log"
            )
        return sorted(partition["partition_index"] for partition in topic["partitions"])

    def retention_minutes(self) -> float | None:
        """Return a broker's `offsets.retention.minutes`; None without DESCRIBE_CONFIGS on the cluster."""
        [broker, *_] = self._ask(lambda admin: admin.describe_cluster())["brokers"]
        name = str(broker["broker_id"])
        asked = ConfigResource(ConfigResourceType.BROKER, name, {_RETENTION: ""})
        try:
            answer = self._ask(lambda admin: admin.describe_configs([asked], config_filter="all"))
        except KafkaDeniedError:
            return None
        setting = answer.get("broker", {}).get(name, {}).get(_RETENTION)
        return None if setting is None else float(setting["value"])

    def answering_group(self) -> str:
        """Return an unused group name, starting with `GROUP_PREFIX`, whose coordinator answers requests.

        A broker rejects requests for groups of a partition that it has not loaded yet, or cannot load. Raises
        ClusterError if every name tried in about ten seconds is rejected.
        """
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            group = f"{GROUP_PREFIX}-{uuid4()}"
            try:
                self._ask(methodcaller("list_group_offsets", group))
            except (KafkaDeniedError, KafkaUnreachableError):
                raise
            except ClusterError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_COORDINATOR_PAUSE_SECONDS)
            else:
                return group

    def bounds(self) -> dict[int, LogBounds]:
        """Return the bounds of every partition's log, in three requests to each broker that leads one."""
        partitions = [kafka.TopicPartition(OFFSETS_TOPIC, partition) for partition in self.partitions()]
        start, stable, end = (
            self._ask(methodcaller("list_partition_offsets", dict.fromkeys(partitions, spec), isolation_level=level))
            for spec, level in BOUND_REQUESTS
        )
        return {at.partition: LogBounds(start[at].offset, stable[at].offset, end[at].offset) for at in partitions}

    def count_readable(self, partition: int, offset: int, *, seconds: float = DEADLINE_SECONDS) -> int:
        """Return how many records (at most 100) can be read from an offset; wait at most `seconds` for the first.

        Raises KafkaDeniedError if the principal may not READ.
        """
        consumer = self._consumer(auto_offset_reset="earliest", isolation_level="read_committed")
        with self._explained(), closing(consumer):
            at = kafka.TopicPartition(OFFSETS_TOPIC, partition)
            consumer.assign([at])
            consumer.seek(at, offset)
            return len(consumer.poll(timeout_ms=int(seconds * 1000), max_records=100).get(at, ()))
