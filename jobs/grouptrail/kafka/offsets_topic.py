"""The offsets topic, and the groups whose coordinators are the leaders of its partitions."""

from __future__ import annotations

import time
from operator import methodcaller
from uuid import uuid4

from kafka.admin import ConfigResource, ConfigResourceType

from grouptrail.kafka.cluster import GROUP_PREFIX
from grouptrail.kafka.coordinator_topic import CoordinatorTopic
from grouptrail.kafka.errors import ClusterError, KafkaDeniedError, KafkaUnreachableError
from grouptrail.kafka.settings import DEADLINE_SECONDS

_RETENTION = "offsets.retention.minutes"
_COORDINATOR_PAUSE_SECONDS = 0.2


class OffsetsTopic(CoordinatorTopic):
    """The topic `__consumer_offsets`."""

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
