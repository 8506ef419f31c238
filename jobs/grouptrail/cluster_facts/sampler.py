"""Ask the brokers for a sample of their cluster, and decide of what it says nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

import pyarrow as pa

from grouptrail.cluster_facts.sample import (
    BROKERS,
    CLUSTER_INFO,
    CONFIGS,
    OBSERVED_SCHEMAS,
    PARTITIONS,
    TOPICS,
    Observation,
    Sample,
)
from grouptrail.kafka.cluster import DESCRIBE_DENIED
from grouptrail.kafka.cluster_metadata import CONFIGS_DENIED, ClusterMetadata
from grouptrail.kafka.errors import ClusterError

CONFIG_SECONDS = 600.0
"""How often the settings of all topics are read; those of new topics are read at once."""

COLUMN_OF = {
    "cleanup.policy": "cleanup_policy",
    "retention.ms": "retention_ms",
    "retention.bytes": "retention_bytes",
    "segment.ms": "segment_ms",
    "segment.bytes": "segment_bytes",
    "message.timestamp.type": "message_timestamp_type",
    "min.insync.replicas": "min_insync_replicas",
    "remote.storage.enable": "remote_storage_enable",
    "local.retention.ms": "local_retention_ms",
    "local.retention.bytes": "local_retention_bytes",
}
"""The column of `topic_configs` for each setting that is read."""
_DENIED = (DESCRIBE_DENIED, CONFIGS_DENIED)


class Described(Protocol):
    """The requests that a sample takes: `kafka.cluster_metadata.ClusterDescription`."""

    def metadata(self) -> ClusterMetadata: ...
    def unlisted(self, topics: Collection[str], brokers: Collection[int]) -> Mapping[str, str | None]: ...
    def quorum_leader(self) -> int | str | None: ...
    def features(self) -> list[dict[str, Any]] | None: ...
    def topic_configs(self, topics: Collection[str], keys: Sequence[str]) -> Iterable[tuple[str, Any]]: ...
    def close(self) -> None: ...


class Sampler:
    """Takes samples of a cluster; remembers when it last read the settings of all topics."""

    def __init__(self, cluster: Described, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._monotonic = monotonic
        self._configs_at: float | None = None

    def sample(self, known: Mapping[str, pa.Table]) -> Sample:
        """Return a sample; `known` are the open rows by table. Raises ClusterError if no broker answers.

        What one request does not answer is missing in the sample, and the others are in it all the same.
        """
        metadata = self._cluster.metadata()
        names = set(metadata.topics["topic"].to_pylist())
        unanswered = dict(metadata.undescribed)
        problems = []
        if missing := set(known[TOPICS]["topic"].to_pylist()) - names - unanswered.keys():
            try:
                answers = self._cluster.unlisted(missing, metadata.brokers["broker_id"].to_pylist())
            except ClusterError as error:
                answers = dict.fromkeys(missing, str(error))
            unanswered |= {topic: reason for topic, reason in answers.items() if reason is not None}
        problems += _by_reason("topics keep their last rows", unanswered)
        info, problem = self._info(metadata)
        problems += [problem] if problem else []
        described = {
            BROKERS: _brokers(metadata, known[CLUSTER_INFO].to_pylist()[:1] if info is None else [info]),
            TOPICS: Observation(metadata.topics.cast(OBSERVED_SCHEMAS[TOPICS]), unanswered),
            PARTITIONS: Observation(metadata.partitions, unanswered),
            CONFIGS: self._configs(known, metadata.topics, unanswered, problems),
        }
        if info is not None:
            described[CLUSTER_INFO] = Observation(pa.Table.from_pylist([info], OBSERVED_SCHEMAS[CLUSTER_INFO]))
        return Sample(datetime.now(UTC), described, tuple(problems))

    def _info(self, metadata: ClusterMetadata) -> tuple[dict[str, Any] | None, str | None]:
        """Return the row of `cluster_info`, None if a request was not answered, and a problem."""
        try:
            leader, features = self._cluster.quorum_leader(), self._cluster.features()
        except ClusterError as error:
            return None, f"controller and features: {error}"
        controller = metadata.controller if leader is None else leader
        problem = controller if isinstance(controller, str) else None if controller is not None else "no controller"
        row: dict[str, Any] = {"cluster_id": metadata.cluster_id, "features": features, "problem": problem}
        row["controller"] = None if problem else controller
        return row, f"the controller is unknown: {problem}" if problem else None

    def _configs(
        self, known: Mapping[str, pa.Table], topics: pa.Table, unanswered: Mapping[str, str], problems: list[str]
    ) -> Observation:
        """Return the settings of all topics if they are due, otherwise of new topics only."""
        ids, before = _ids(topics), _ids(known[TOPICS])
        configured = set(known[CONFIGS]["topic"].to_pylist())
        now = self._monotonic()
        is_due = self._configs_at is None or now - self._configs_at >= CONFIG_SECONDS
        new = {topic for topic in ids if topic not in configured or before.get(topic) != ids[topic]}
        wanted = set(ids) if is_due else new
        rows: list[dict[str, Any]] = []
        failed: dict[str, str] = {}
        not_read = (ids.keys() - wanted) | unanswered.keys()
        try:
            for topic, settings in self._cluster.topic_configs(wanted, tuple(COLUMN_OF)) if wanted else ():
                if isinstance(settings, str):
                    failed[topic] = settings
                if isinstance(settings, str) and settings in _DENIED:
                    rows.append({"topic": topic, "problem": settings})
                elif isinstance(settings, dict) and settings.get("retention.ms") is not None:
                    rows.append({"topic": topic, **_parsed(settings)})
            if is_due:
                self._configs_at = now
        except ClusterError as error:
            is_due = False
            problems.append(f"settings of topics: {error}")
        problems += _by_reason("settings of topics are unknown", failed)
        # Without a row: deleted in between, an answer that is not final, or requests that failed.
        not_read |= wanted - {row["topic"] for row in rows}
        return Observation(pa.Table.from_pylist(rows, OBSERVED_SCHEMAS[CONFIGS]), not_read, is_whole=is_due)


def _ids(topics: pa.Table) -> dict[str, str | None]:
    return dict(zip(topics["topic"].to_pylist(), topics["topic_id"].to_pylist(), strict=True))


def _brokers(metadata: ClusterMetadata, info: Sequence[Mapping[str, Any]]) -> Observation:
    controller = info[0]["controller"] if info else None
    rows = [
        {**row, "is_controller": None if controller is None else row["broker_id"] == controller}
        for row in metadata.brokers.to_pylist()
    ]
    return Observation(pa.Table.from_pylist(rows, OBSERVED_SCHEMAS[BROKERS]))


def _parsed(settings: Mapping[str, str | None]) -> dict[str, Any]:
    """Return settings by column, each with the column's type; None where the brokers have no such setting."""
    schema = OBSERVED_SCHEMAS[CONFIGS]
    row: dict[str, Any] = {}
    for key, column in COLUMN_OF.items():
        value, type_ = settings.get(key), schema.field(column).type
        if value is None:
            row[column] = None
        elif pa.types.is_integer(type_):
            row[column] = int(value)
        else:
            row[column] = value == "true" if pa.types.is_boolean(type_) else value
    return row


def _by_reason(what: str, topics: Mapping[str, str]) -> list[str]:
    """Return a line for each reason, with one topic and the number of others."""
    of_reason: dict[str, list[str]] = {}
    for topic, reason in topics.items():
        of_reason.setdefault(reason, []).append(topic)
    return [
        f"{what}: {reason}: {min(listed)!r}" + (f" and {len(listed) - 1:,} more" if len(listed) > 1 else "")
        for reason, listed in sorted(of_reason.items())
    ]
