"""Three small Kafka nodes on loopback, each both broker and controller, for tests that need several brokers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient

from grouptrail.console.progress import Log
from grouptrail.spark.jars import silent
from servers.errors import BrokerError
from servers.kafka import VERSIONS, Broker, new_cluster_id

_REPLICATED = {
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "controlled.shutdown.enable": "true",
    "auto.leader.rebalance.enable": "false",
}
_POLL_SECONDS = 0.2


class KafkaCluster:
    """Nodes 1 to 3, with their data in `directory`; `properties` as for `Broker`."""

    def __init__(
        self,
        directory: Path,
        *,
        version: str = VERSIONS[0],
        properties: Mapping[str, str] | None = None,
        heap: str = "256m",
        java_options: str = "",
        log: Log = silent,
    ) -> None:
        identity = new_cluster_id()
        shared = {**_REPLICATED, **(properties or {})}
        self.brokers = [
            Broker(
                directory / f"node-{node}",
                version=version,
                properties={**shared, "node.id": str(node)},
                heap=heap,
                cluster_id=identity,
                java_options=java_options,
                log=log,
            )
            for node in (1, 2, 3)
        ]
        voters = ",".join(f"{node}@127.0.0.1:{one.controller_port}" for node, one in enumerate(self.brokers, 1))
        for broker in self.brokers:
            broker.set("controller.quorum.voters", voters)

    @property
    def bootstrap(self) -> str:
        """The addresses of all nodes."""
        return ",".join(broker.bootstrap for broker in self.brokers)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with ThreadPoolExecutor(len(self.brokers)) as pool:
            list(pool.map(Broker.kill, self.brokers))

    def start(self, deadline_seconds: float = 300) -> Self:
        """Start all nodes and return once they answer: a single one has no quorum."""
        with ThreadPoolExecutor(len(self.brokers)) as pool:
            list(pool.map(lambda broker: broker.start(deadline_seconds), self.brokers))
        return self

    def leader(self, topic: str, partition: int, deadline_seconds: float = 240) -> Broker:
        """Return the current leader of a partition, waiting for an election in progress."""
        deadline = time.monotonic() + deadline_seconds
        while time.monotonic() < deadline:
            admin = self._admin()
            metadata = admin.list_topics(topic, timeout=10).topics[topic].partitions.get(partition)
            if metadata is not None and metadata.leader > 0 and self.brokers[metadata.leader - 1].running:
                return self.brokers[metadata.leader - 1]
            time.sleep(_POLL_SECONDS)
        raise BrokerError(f"{topic}-{partition} has no leader: see {self.brokers[0].log_file}")

    def elect_preferred(self, topic: str, partitions: int, deadline_seconds: float = 240) -> None:
        """Elect the first replica of each partition as leader, once the replicas are in sync."""
        wanted = [TopicPartition(topic, partition) for partition in range(partitions)]
        deadline = time.monotonic() + deadline_seconds
        admin = self._admin()  # kept: what it has been asked fails when it is gone
        while True:
            with contextlib.suppress(Exception):
                results = admin.elect_leaders(ElectionType.PREFERRED, wanted).result(timeout=10)
                if all(error is None or "ELECTION_NOT_NEEDED" in error.name() for error in results.values()):
                    return
            if time.monotonic() > deadline:
                raise BrokerError(f"no election for {topic}: see {self.brokers[0].log_file}")
            time.sleep(_POLL_SECONDS)

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap})
