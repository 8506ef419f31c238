"""A part of `make bench`: samples of a large cluster, from the bytes of a metadata response to rows in the tables.

There is no Kafka: the responses are made up by another process, so that its memory does not count.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from kafka.protocol.metadata import MetadataResponse

from bench.measure import PeakMemory, resident
from grouptrail.cluster_facts.sample import TABLES, Sample
from grouptrail.cluster_facts.sampler import Sampler
from grouptrail.cluster_facts.state import OpenRows
from grouptrail.kafka.cluster_metadata import ClusterMetadata, metadata_of
from grouptrail.storage.warehouse import Warehouse

_PARTITIONS = 10
_BROKERS = 12
_VERSION = 12
# What differs from the first response: partitions (one in so many) that have lost a replica.
_SAMPLES = {"first": 0, "unchanged": 0, "1 % changed": 100, "a broker lost": 4, "the broker is back": 0}


def measure(folder: Path, *, topics: int) -> dict[str, Any]:
    """Return the seconds of each step of some samples, and the memory beyond that of the process before."""
    for changed in set(_SAMPLES.values()):
        writer = multiprocessing.get_context("spawn").Process(
            target=_write_response, args=(folder / str(changed), topics, changed)
        )
        writer.start()
        writer.join()
    warehouse = Warehouse(str(folder / "warehouse"), "bench")
    warehouse.ensure(TABLES)
    cluster = _FromFiles()
    sampler, rows = Sampler(cluster), OpenRows(warehouse, lambda: "bench")
    before = resident(multiprocessing.current_process().pid or 0)
    figures: dict[str, Any] = {"partitions": topics * _PARTITIONS}
    with PeakMemory() as peak:
        for name, changed in _SAMPLES.items():
            cluster.file = folder / str(changed)
            started = time.monotonic()
            sample: Sample = sampler.sample(rows.tables)
            sampled = time.monotonic()
            changes = rows.update(sample)
            counts = {table: (change.ended, change.began) for table, change in changes.items()}
            written = time.monotonic()
            figures[name] = {"sampled, s": round(sampled - started, 2), "written, s": round(written - sampled, 2)}
            print(f"{name}: {figures[name]} {counts}", flush=True)
            del sample, changes
    figures["memory, MB"] = round((peak.bytes - before) / 1e6)
    figures["kept, MB"] = round(sum(table.nbytes for table in rows.tables.values()) / 1e6, 1)
    started = time.monotonic()
    OpenRows(warehouse, lambda: "bench")
    figures["read at a start, s"] = round(time.monotonic() - started, 2)
    print(figures, flush=True)
    return figures


class _FromFiles:
    """A cluster whose metadata responses are files."""

    file = Path()

    def metadata(self) -> ClusterMetadata:
        return metadata_of(MetadataResponse.decode(self.file.read_bytes(), version=_VERSION))

    def unlisted(self, topics: Collection[str], _brokers: Collection[int]) -> dict[str, str | None]:
        return dict.fromkeys(topics)

    def quorum_leader(self) -> int:
        return 1

    def features(self) -> None:
        return None

    def topic_configs(self, topics: Collection[str], keys: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
        return ((topic, dict.fromkeys(keys, "1")) for topic in topics)

    def close(self) -> None:
        pass


def _write_response(file: Path, topics: int, changed: int) -> None:
    kind = MetadataResponse.MetadataResponseTopic
    brokers = [
        MetadataResponse.MetadataResponseBroker(node_id=node, host=f"kafka-{node}.example.com", port=9092, rack="a")
        for node in range(_BROKERS)
    ]

    def partition(topic: int, number: int) -> Any:
        at = topic * _PARTITIONS + number
        replicas = [(at + step) % _BROKERS for step in range(3)]
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
            name=f"team-{topic % 100}.some-service.events-{topic}",
            topic_id=UUID(int=topic + 1),
            is_internal=False,
            partitions=[partition(topic, number) for number in range(_PARTITIONS)],
        )
        for topic in range(topics)
    ]
    response = MetadataResponse(brokers=brokers, cluster_id="bench", controller_id=1, topics=described)
    file.write_bytes(response.encode(version=_VERSION))
