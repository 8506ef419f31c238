"""A cluster in memory that answers what the job `cluster` asks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pyarrow as pa

from grouptrail.kafka.cluster import DESCRIBE_DENIED
from grouptrail.kafka.cluster_metadata import ClusterMetadata, Setting, metadata_of
from grouptrail.kafka.leader_epochs import LeaderEpoch, Place
from grouptrail.kafka.log_dirs import log_sizes_of

DEFAULTS = {
    "cleanup.policy": "delete",
    "retention.ms": "604800000",
    "retention.bytes": "-1",
    "segment.ms": "604800000",
    "segment.bytes": "1073741824",
    "message.timestamp.type": "CreateTime",
    "min.insync.replicas": "1",
    "remote.storage.enable": "false",
    "local.retention.ms": "-2",
    "local.retention.bytes": "-2",
}


def partition(number: int, **more: Any) -> SimpleNamespace:
    """Return a partition as a metadata response has it."""
    replicas = {"replica_nodes": [1, 2], "isr_nodes": [1, 2], "offline_replicas": []}
    led = {"error_code": 0, "partition_index": number, "leader_id": 1, "leader_epoch": 0}
    return SimpleNamespace(**(led | replicas | more))


def log_dir(
    sizes: Mapping[str, Mapping[int, int]], name: str = "/data", *, error_code: int = 0, is_future: bool = False
) -> SimpleNamespace:
    """Return a log directory as a response has it, with the sizes of its replicas by topic and partition."""
    topics = [
        SimpleNamespace(
            name=topic,
            partitions=[
                SimpleNamespace(partition_index=number, partition_size=size, offset_lag=0, is_future_key=is_future)
                for number, size in of_topic.items()
            ],
        )
        for topic, of_topic in sizes.items()
    ]
    return SimpleNamespace(log_dir=name, error_code=error_code, topics=topics)


@dataclass(frozen=True)
class FakeTopic:
    """A topic; `error_code` is that of its metadata."""

    topic_id: Any
    partitions: tuple[Any, ...]
    error_code: int = 0
    is_internal: bool = False


@dataclass
class FakeCluster:
    """Its public attributes are what it answers. `down` raises from every request, `failing` by a request's name.

    `hidden` topics are there, but the principal may not DESCRIBE them; `asked` are the topics of each request for
    settings, `asked_epochs` the arguments of each request for leaders' epochs, whose answers `epochs` has.
    `dirs` are the log directories of a broker (`log_dir`); by default one, with 100 bytes a replica.
    """

    topics: dict[str, FakeTopic] = field(default_factory=dict)
    configs: dict[str, dict[str, str | None] | str | None] = field(default_factory=dict)
    hidden: set[str] = field(default_factory=set)
    brokers: list[Any] = field(
        default_factory=lambda: [
            SimpleNamespace(node_id=node, host=f"kafka-{node}", port=9092, rack=None) for node in (1, 2)
        ]
    )
    leader: int | str = 1
    announced: dict[int, tuple[str, str | None]] = field(
        default_factory=lambda: {1: ("4.1", "4.2"), 2: ("4.3", None)}
    )
    epochs: dict[Place, list[LeaderEpoch] | str] = field(default_factory=dict)
    levels: list[dict[str, Any]] | None = field(default_factory=lambda: [{"name": "group.version", "level": 1}])
    group_settings: dict[str, list[Setting] | str] = field(default_factory=dict)
    asked_groups: list[list[str]] = field(default_factory=list)
    down: Exception | None = None
    failing: dict[str, Exception] = field(default_factory=dict)
    asked: list[list[str]] = field(default_factory=list)
    dirs: dict[int, list[Any]] = field(default_factory=dict)
    denied_sizes: bool = False
    asked_epochs: list[tuple[int, dict[Place, int], dict[Place, int]]] = field(default_factory=list)

    def create(self, name: str, partitions: int = 1, **more: Any) -> None:
        """Create a topic, whose partitions are all led by broker 1."""
        self.topics[name] = FakeTopic(uuid4(), tuple(partition(number) for number in range(partitions)), **more)

    def lead(self, name: str, **led: Any) -> None:
        """Change partition 0 of a topic."""
        topic = self.topics[name]
        self.topics[name] = replace(topic, partitions=(partition(0, **led), *topic.partitions[1:]))

    def metadata(self) -> ClusterMetadata:
        self._raise("metadata")
        topics = [
            SimpleNamespace(name=name, **vars(topic))
            for name, topic in self.topics.items()
            if name not in self.hidden
        ]
        return metadata_of(SimpleNamespace(cluster_id="x", brokers=self.brokers, topics=topics))

    def unlisted(self, topics: Collection[str], brokers: Collection[int]) -> dict[str, str | None]:
        self._raise("unlisted")
        assert set(brokers) == {one.node_id for one in self.brokers}
        return {name: DESCRIBE_DENIED if name in self.hidden else None for name in topics}

    def controller(self) -> int | str:
        self._raise("controller")
        return self.leader

    def releases(self, brokers: Collection[int]) -> dict[int, tuple[str, str | None]]:
        self._raise("releases")
        return {node: self.announced[node] for node in brokers if node in self.announced}

    def features(self) -> list[dict[str, Any]] | None:
        self._raise("features")
        return self.levels

    def leader_epochs(
        self, leader: int, newest: Mapping[Place, int], known: Mapping[Place, int]
    ) -> dict[Place, list[LeaderEpoch] | str]:
        self._raise("leader_epochs")
        self.asked_epochs.append((leader, dict(newest), dict(known)))
        answers: dict[Place, list[LeaderEpoch] | str] = {}
        for place, epoch in newest.items():
            found = self.epochs.get(place, [LeaderEpoch(epoch, 0)])
            answers[place] = (
                found
                if isinstance(found, str)
                else [one for one in found if known.get(place, -1) < one.epoch <= epoch]
            )
        return answers

    def topic_configs(self, topics: Collection[str], keys: Sequence[str]) -> Iterator[tuple[str, Any]]:
        self._raise("topic_configs")
        self.asked.append(sorted(topics))
        for name in sorted(topics):
            settings = self.configs.get(name, DEFAULTS)
            yield name, {key: settings.get(key) for key in keys} if isinstance(settings, dict) else settings

    def group_configs(self, groups: Collection[str]) -> Iterator[tuple[str, list[Setting] | str]]:
        self._raise("group_configs")
        self.asked_groups.append(sorted(groups))
        for name in sorted(groups):
            yield name, self.group_settings.get(name, [])

    def log_sizes(self, broker: int) -> tuple[pa.Table, dict[str, str]] | str:
        self._raise("log_sizes")
        self._raise(f"log_sizes of {broker}")
        if self.denied_sizes:
            return log_sizes_of(SimpleNamespace(error_code=31, results=[]))
        replicas = {
            name: {one.partition_index: 100 for one in topic.partitions if broker in one.replica_nodes}
            for name, topic in self.topics.items()
        }
        return log_sizes_of(SimpleNamespace(error_code=0, results=self.dirs.get(broker, [log_dir(replicas)])))

    def close(self) -> None:
        pass

    def _raise(self, request: str) -> None:
        if error := self.down or self.failing.get(request):
            raise error
