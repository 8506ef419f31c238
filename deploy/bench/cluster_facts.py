"""A part of `make bench`: samples of a large cluster, from the bytes of a metadata response to rows in the tables.

There is no Kafka: the responses are made up by another process, so that its memory does not count.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from kafka.protocol.admin import DescribeConfigsResponse, DescribeLogDirsResponse
from kafka.protocol.metadata import MetadataResponse

from grouptrail.cluster_facts.sample import LOG_SIZES, TABLES, Sample
from grouptrail.cluster_facts.sampler import COLUMN_OF, Sampler
from grouptrail.cluster_facts.state import OpenRows
from grouptrail.kafka.cluster_metadata import TOPICS_A_REQUEST, ClusterMetadata, metadata_of, settings_of
from grouptrail.kafka.leader_epochs import LeaderEpoch, Place
from grouptrail.kafka.log_dirs import log_sizes_of
from grouptrail.memory import KEPT_WITHIN_BATCHES, keep_memory_within_batches, release_memory
from grouptrail.storage.warehouse import Warehouse

PARTITIONS = 10
"""Of each topic."""
_BROKERS = 12
_REPLICAS = 3
_VERSION = 12
_CONFIGS_VERSION = 4
_CONFIGS = "settings"
_LOG_DIRS_VERSION = 4
_LOG_DIRS = "log-dirs"
# What differs from the first response: partitions (one in so many) that have lost a replica.
_SAMPLES = {"first": 0, "unchanged": 0, "1 % changed": 100, "a broker lost": 4, "the broker is back": 0}


def measure(folder: Path, *, topics: int) -> dict[str, Any]:
    """Return the processor time of each step of some samples, and the most memory beyond that before the sample."""
    spawning = multiprocessing.get_context("spawn")
    write_responses(folder, topics)
    figures = folder / "figures.json"
    os.environ.update(KEPT_WITHIN_BATCHES)
    _run(spawning.Process(target=_measure, args=(folder, figures)))
    measured: dict[str, Any] = json.loads(figures.read_text())
    return {"partitions": topics * PARTITIONS, **measured}


def write_responses(folder: Path, topics: int) -> None:
    """Write all responses of a cluster with this number of topics, each in a process of its own."""
    spawning = multiprocessing.get_context("spawn")
    for changed in set(_SAMPLES.values()):
        _run(spawning.Process(target=_write_response, args=(folder / str(changed), topics, changed)))
    _run(spawning.Process(target=_write_settings, args=(folder, topics)))
    _run(spawning.Process(target=_write_log_dirs, args=(folder, topics)))


def responses(folder: Path) -> _FromFiles:
    """Return the cluster of `write_responses`, in which nothing is amiss."""
    cluster = _FromFiles(folder)
    cluster.file = folder / "0"
    return cluster


def _run(process: Any) -> None:
    process.start()
    process.join()
    assert process.exitcode == 0


def _measure(folder: Path, file: Path) -> None:
    """Take the samples, in a process with the memory settings of `grouptrail run`."""
    keep_memory_within_batches()
    warehouse = Warehouse(str(folder / "warehouse"), "bench")
    warehouse.ensure((*TABLES, LOG_SIZES))
    cluster = _FromFiles(folder)
    sampler, rows = Sampler(cluster, log_sizes_seconds=1e-9), OpenRows(warehouse, lambda: "bench")
    figures: dict[str, Any] = {}
    for name, changed in _SAMPLES.items():
        cluster.file = folder / str(changed)
        before = _memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the most memory is counted from here on
        started = time.process_time()
        sample: Sample | None = sampler.sample(rows.tables)
        assert sample is not None
        sampled = time.process_time()
        changes = rows.update(sample)
        written = time.process_time()
        sample = None
        sizes, _ = sampler.log_sizes()
        assert sizes is not None
        rows.replace_log_sizes(sizes)
        sizes = None
        sized = time.process_time()
        figures[name] = {
            "sampled, s": round(sampled - started, 2),
            "written, s": round(written - sampled, 2),
            "sizes of logs, s": round(sized - written, 2),
            "memory, MB": round((_memory("VmHWM") - before) / 1e3),
        }
        print(f"{name}: {figures[name]}", changes, flush=True)
        changes = {}
        release_memory()
        time.sleep(2)  # until delta-rs has returned its own
    figures["kept, MB"] = round(sum(table.nbytes for table in rows.tables.values()) / 1e6, 1)
    file.write_text(json.dumps(figures))


def _memory(kind: str) -> int:
    """Return the kilobytes of a line of /proc/self/status."""
    return int(Path("/proc/self/status").read_text().split(f"{kind}:")[1].split()[0])


class _FromFiles:
    """A cluster whose responses are files: that to the next request for metadata is `file`."""

    def __init__(self, folder: Path) -> None:
        self.file = folder
        self._folder = folder

    def metadata(self) -> ClusterMetadata:
        return metadata_of(MetadataResponse.decode(self.file.read_bytes(), version=_VERSION))

    def unlisted(self, topics: Collection[str], _brokers: Collection[int]) -> dict[str, str | None]:
        return dict.fromkeys(topics)

    def controller(self) -> int:
        return 1

    def releases(self, brokers: Collection[int]) -> dict[int, tuple[str, None]]:
        return dict.fromkeys(brokers, ("4.3", None))

    def features(self) -> None:
        return None

    def leader_epochs(
        self, _leader: int, newest: Mapping[Place, int], _known: Mapping[Place, int]
    ) -> dict[Place, list[LeaderEpoch] | str]:
        return {place: [LeaderEpoch(epoch, 0)] for place, epoch in newest.items()}

    def topic_configs(self, _topics: Collection[str], _keys: Sequence[str]) -> Iterator[tuple[str, Any]]:
        for file in self._folder.glob(f"{_CONFIGS}-*"):
            yield from settings_of(DescribeConfigsResponse.decode(file.read_bytes(), version=_CONFIGS_VERSION))

    def group_configs(self, _groups: Collection[str]) -> Iterator[tuple[str, Any]]:
        yield from ()

    def log_sizes(self, broker: int) -> Any:
        content = (self._folder / f"{_LOG_DIRS}-{broker}").read_bytes()
        return log_sizes_of(DescribeLogDirsResponse.decode(content, version=_LOG_DIRS_VERSION))

    def close(self) -> None:
        pass


def _write_response(file: Path, topics: int, changed: int) -> None:
    kind = MetadataResponse.MetadataResponseTopic
    brokers = [
        MetadataResponse.MetadataResponseBroker(node_id=node, host=f"kafka-{node}.example.com", port=9092, rack="a")
        for node in range(_BROKERS)
    ]

    def partition(topic: int, number: int) -> Any:
        at = topic * PARTITIONS + number
        replicas = [(at + step) % _BROKERS for step in range(_REPLICAS)]
        is_changed = bool(changed) and at % changed == 0
        return kind.MetadataResponsePartition(
            error_code=0,
            partition_index=number,
            leader_id=replicas[int(is_changed)],
            leader_epoch=3 + is_changed,
            replica_nodes=replicas,
            isr_nodes=replicas[1:] if is_changed else replicas,
            offline_replicas=replicas[:1] if is_changed else [],
        )

    described = [
        kind(
            error_code=0,
            name=name_of(topic),
            topic_id=UUID(int=topic + 1),
            is_internal=False,
            partitions=[partition(topic, number) for number in range(PARTITIONS)],
        )
        for topic in range(topics)
    ]
    response = MetadataResponse(brokers=brokers, cluster_id="bench", controller_id=1, topics=described)
    file.write_bytes(response.encode(version=_VERSION))


def _write_settings(folder: Path, topics: int) -> None:
    kind = DescribeConfigsResponse.DescribeConfigsResult
    settings = [
        kind.DescribeConfigsResourceResult(name=key, value="1", read_only=False, config_source=5, is_sensitive=False)
        for key in COLUMN_OF
    ]
    for first in range(0, topics, TOPICS_A_REQUEST):
        described = [
            kind(error_code=0, resource_type=2, resource_name=name_of(topic), configs=settings)
            for topic in range(first, min(first + TOPICS_A_REQUEST, topics))
        ]
        response = DescribeConfigsResponse(results=described)
        (folder / f"{_CONFIGS}-{first}").write_bytes(response.encode(version=_CONFIGS_VERSION))


def _write_log_dirs(folder: Path, topics: int) -> None:
    """Write the response of each broker, which has every partition of which it is one of three replicas."""
    kind = DescribeLogDirsResponse.DescribeLogDirsResult
    of_topic = kind.DescribeLogDirsTopic
    for broker in range(_BROKERS):
        described = []
        for topic in range(topics):
            first = topic * PARTITIONS
            replicas = [
                of_topic.DescribeLogDirsPartition(
                    partition_index=number,
                    partition_size=first * 1_000_003 + number,
                    offset_lag=0,
                    is_future_key=False,
                )
                for number in range(PARTITIONS)
                if (broker - first - number) % _BROKERS < _REPLICAS
            ]
            described.append(of_topic(name=name_of(topic), partitions=replicas))
        one = kind(error_code=0, log_dir="/var/lib/kafka/data", topics=described)
        response = DescribeLogDirsResponse(error_code=0, results=[one])
        (folder / f"{_LOG_DIRS}-{broker}").write_bytes(response.encode(version=_LOG_DIRS_VERSION))


def name_of(topic: int) -> str:
    """Return the name of a topic by its number."""
    return f"team-{topic % 100}.some-service.events-{topic}"
