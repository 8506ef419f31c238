"""A topic that coordinators write: its partitions, the bounds of their logs, and whether its records can be read."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from operator import methodcaller
from typing import Any

import kafka

from grouptrail.kafka.cluster import BOUND_REQUESTS, UNKNOWN_TOPIC, Cluster
from grouptrail.kafka.coordinator import OFFSETS_TOPIC, SHARE_STATE_TOPIC
from grouptrail.kafka.errors import ClusterError, KafkaDeniedError, TopicMissingError, error_name
from grouptrail.kafka.log import LogBounds
from grouptrail.kafka.settings import DEADLINE_SECONDS

_TOPIC_DENIED = 29
# Brokers create each of these topics when it is first needed.
_MISSING = {
    OFFSETS_TOPIC: "there is no topic __consumer_offsets at {}: no consumer group has ever committed on this "
    'cluster; start one, or check kafka."bootstrap.servers"',
    SHARE_STATE_TOPIC: "there is no topic __share_group_state at {}: no share group has ever read on this cluster",
}


class CoordinatorTopic(Cluster):
    """A topic that coordinators write. Each method also raises TopicMissingError."""

    def __init__(
        self, settings: Mapping[str, str], topic: str = OFFSETS_TOPIC, deadline_seconds: float = DEADLINE_SECONDS
    ) -> None:
        super().__init__(settings, deadline_seconds)
        self.topic = topic
        self._rights = f"grant the principal READ and DESCRIBE on topic {topic}"
        self._denied = f"read {topic}: {self._rights}"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._settings, self.topic)

    def partitions(self) -> list[int]:
        """Return the topic's partitions, ascending."""
        [topic] = self._ask(lambda admin: admin.describe_topics([self.topic]))
        if topic["error_code"] == UNKNOWN_TOPIC:
            raise TopicMissingError(_MISSING[self.topic].format(self._servers))
        if topic["error_code"] == _TOPIC_DENIED:
            raise KafkaDeniedError(f"{self._servers} does not let this principal see {self.topic}: {self._rights}")
        if topic["error_code"]:
            raise ClusterError(
                f"{self._servers} does not describe {self.topic} ({error_name(topic['error_code'])}): "
                "see the broker's log"
            )
        return sorted(partition["partition_index"] for partition in topic["partitions"])

    def bounds(self) -> dict[int, LogBounds]:
        """Return the bounds of every partition's log, in three requests to each broker that leads one."""
        partitions = [kafka.TopicPartition(self.topic, partition) for partition in self.partitions()]
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
            at = kafka.TopicPartition(self.topic, partition)
            consumer.assign([at])
            consumer.seek(at, offset)
            return len(consumer.poll(timeout_ms=int(seconds * 1000), max_records=100).get(at, ()))
