"""Series that only other exporters have: grouptrail serves them under their names, and not under any of its own.

A source is named for the table and column that its values come from, or its series are about.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.exporter.text import Family
from grouptrail.kafka.coordinator import coordinator_partition
from grouptrail.snapshot.cluster_facts import ClusterFacts
from grouptrail.snapshot.reader import Snapshot

_GROUP = ("group", "protocol", "protocol_type", "state", "coordinator")
_BROKER = ("broker", "host", "port", "rack")
_PLACE = ("topic", "partition")

GROUP_SOURCES: Mapping[str, tuple[str, ...]] = {
    "coordinators.broker_id": _GROUP,
    "partition_ownership.member_id": ("group", "topic"),
    "partition_ownership.partition": ("group", "topic"),
    "memberships.member_id": ("group",),
}
"""The labels of the series about groups."""

CLUSTER_SOURCES: Mapping[str, tuple[str, ...]] = {
    "cluster_info.cluster_id": ("version", "brokers", "controller", "cluster_id"),
    "brokers.host": (*_BROKER, "address", "controller"),
    "brokers.log_sizes": _BROKER,
    "topics.partition_count": ("topic",),
    "topics.topic": ("topic", "partition_count", "replication_factor", "cleanup_policy"),
    "topics.log_sizes": ("topic",),
    "topics.log_end_offset": ("topic",),
    "topics.log_start_offset": ("topic",),
    "log_offsets.log_end_offset": _PLACE,
    "log_offsets.log_start_offset": _PLACE,
    "topic_partitions.leader": _PLACE,
    "topic_partitions.leader_is_preferred": _PLACE,
    "topic_partitions.replicas": _PLACE,
    "topic_partitions.isr": _PLACE,
    "topic_partitions.under_replicated": _PLACE,
}
"""The labels of the series about the cluster and its topics, coarsest first."""

SOURCES: Mapping[str, tuple[str, ...]] = {**GROUP_SOURCES, **CLUSTER_SOURCES}


def group_sources(snapshot: Snapshot) -> Iterator[Family]:
    """Yield the sources about groups."""
    groups = snapshot.groups
    facts = snapshot.facts
    count = facts.offsets_partitions
    led = [facts.coordinators.get(_partition(group, count)) if count else None for group in _names(groups)]
    columns = {name: groups["group_id" if name == "group" else name] for name in _GROUP[:-1]}
    columns["coordinator"] = _text(pa.array(led, pa.int32()))
    is_stable = pc.cast(pc.equal(groups["state"], "Stable"), pa.int64())
    yield _family("coordinators.broker_id", {**columns, "value": is_stable})
    owned = snapshot.ownership
    of_topic = {"group": owned["group_id"], "topic": owned["topic"]}
    yield _family("partition_ownership.member_id", {**of_topic, "value": owned["members"]})
    yield _family("partition_ownership.partition", {**of_topic, "value": owned["partitions"]})
    idle = snapshot.unassigned
    yield _family("memberships.member_id", {"group": idle["group_id"], "value": idle["members"]})


def cluster_sources(snapshot: Snapshot) -> Iterator[Family]:
    """Yield the sources about the cluster, its brokers and topics."""
    yield from _of_cluster(snapshot.facts)
    yield from _of_topics(snapshot.facts, snapshot.logs)
    yield from _of_partitions(snapshot.facts.partitions)


def _of_cluster(facts: ClusterFacts) -> Iterator[Family]:
    brokers = facts.brokers
    if len(brokers):
        known = [release for release in brokers["release_from"].to_pylist() if release]
        oldest = min(known, key=lambda release: [int(part) for part in release.split(".")], default=None)
        info = {
            "version": [f"v{oldest}" if oldest else ""],
            "brokers": [str(len(brokers))],
            "controller": ["" if facts.controller is None else str(facts.controller)],
            "cluster_id": [facts.cluster_id or ""],
        }
        yield _family("cluster_info.cluster_id", {**info, "value": [1]})
    controller = pc.if_else(brokers["is_controller"], "true", "false")
    rows = {
        "broker": _text(brokers["broker_id"]),
        "host": brokers["host"],
        "port": _text(brokers["port"]),
        "rack": pc.fill_null(brokers["rack"], ""),
    }
    is_v6 = pc.match_substring(brokers["host"], ":")
    host = pc.if_else(is_v6, pc.binary_join_element_wise("[", brokers["host"], "]", ""), brokers["host"])
    address = pc.binary_join_element_wise(host, _text(brokers["port"]), ":")
    more = {"address": address, "controller": pc.fill_null(controller, ""), "value": _ones(len(brokers))}
    yield _family("brokers.host", {**rows, **more})
    sized = facts.broker_bytes
    place = pc.index_in(brokers["broker_id"], sized["broker_id"].combine_chunks())
    yield _family("brokers.log_sizes", {**rows, "value": sized["bytes"].take(place)})


def _of_topics(facts: ClusterFacts, logs: pa.Table) -> Iterator[Family]:
    topics, sized = facts.topics, facts.topic_bytes
    yield _family("topics.partition_count", {"topic": topics["topic"], "value": topics["partition_count"]})
    info = {name: _text(topics[name]) for name in ("partition_count", "replication_factor")}
    info["cleanup_policy"] = pc.fill_null(topics["cleanup_policy"], "N/A")
    yield _family("topics.topic", {"topic": topics["topic"], **info, "value": _ones(len(topics))})
    yield _family("topics.log_sizes", {"topic": sized["topic"], "value": sized["bytes"]})
    place = {"topic": logs["topic"], "partition": logs["partition"]}
    # A sum over a part of the partitions would mislead.
    sums = logs.group_by("topic").aggregate(
        [([], "count_all"), ("log_end_offset", "sum"), ("log_start_offset", "sum")]
    )
    found = pc.index_in(sums["topic"], topics["topic"].combine_chunks())
    whole = sums.filter(pc.fill_null(pc.equal(sums["count_all"], topics["partition_count"].take(found)), False))
    for name in ("log_end_offset", "log_start_offset"):
        yield _family(f"topics.{name}", {"topic": whole["topic"], "value": whole[f"{name}_sum"]})
        yield _family(f"log_offsets.{name}", {**place, "value": logs[name]})


def _of_partitions(partitions: pa.Table) -> Iterator[Family]:
    values = {
        "leader": partitions["leader"],
        "leader_is_preferred": _flag(pc.equal(partitions["leader"], partitions["preferred"])),
        "replicas": partitions["replicas"],
        "isr": partitions["isr"],
        "under_replicated": _flag(pc.less(partitions["isr"], partitions["replicas"])),
    }
    place = {"topic": partitions["topic"], "partition": partitions["partition"]}
    for name, value in values.items():
        yield _family(f"topic_partitions.{name}", {**place, "value": value})


def _names(groups: pa.Table) -> list[str]:
    names: list[str] = groups["group_id"].to_pylist()
    return names


@lru_cache(maxsize=100_000)
def _partition(group: str, count: int) -> int:
    return coordinator_partition(group, count)


def _family(name: str, columns: Mapping[str, object]) -> Family:
    labels = {label: label for label in SOURCES[name]}
    rows = pa.table({column: columns[column] for column in (*labels, "value")}).drop_null()
    return Family(name, "gauge", name, labels, rows)


def _text(numbers: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    return pc.fill_null(pc.cast(numbers, pa.string()), "")


def _flag(mask: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.cast(pc.fill_null(mask, False), pa.int64())


def _ones(count: int) -> pa.Array:
    return pa.array(np.ones(count, np.int64))
