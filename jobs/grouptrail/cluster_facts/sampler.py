"""Ask the brokers for a sample of their cluster, and decide of what it says nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.cluster_facts.sample import (
    BROKERS,
    CLUSTER_INFO,
    CONFIGS,
    COORDINATORS,
    GROUP_CONFIGS,
    LOG_SIZES,
    OBSERVED_SCHEMAS,
    PARTITIONS,
    TOPICS,
    Observation,
    Sample,
)
from grouptrail.kafka.cluster import DESCRIBE_DENIED
from grouptrail.kafka.cluster_metadata import CONFIGS_DENIED, ClusterMetadata, Setting
from grouptrail.kafka.coordinator import OFFSETS_TOPIC
from grouptrail.kafka.errors import ClusterError
from grouptrail.kafka.leader_epochs import LeaderEpoch, Place
from grouptrail.kafka.log_dirs import CLUSTER_DENIED
from grouptrail.storage.schema import table_schema

CONFIG_SECONDS = 600.0
"""How often the settings of all topics are read; those of new topics are read at once."""

CONTROLLER_UNANSWERED = "brokers do not answer which node it is: check that most of the controllers run"

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
_SINCE_REMOTE_STORAGE = ("remote.storage.enable", "local.retention.ms", "local.retention.bytes")
_NO_SIZES = table_schema(LOG_SIZES, without=("cluster",)).empty_table()
_SETTINGS_OF_KIND = {"share": ("share.", "errors.deadletterqueue."), "streams": ("streams.",)}
_SOURCES = {5: "default", 8: "group"}
_SILENT = "it did not answer"
_DENIED = (DESCRIBE_DENIED, CONFIGS_DENIED)
_RELEASE = ("release_from", "release_before")


class Described(Protocol):
    """The requests that a sample takes: `kafka.cluster_metadata.ClusterDescription`."""

    def metadata(self) -> ClusterMetadata: ...
    def unlisted(self, topics: Collection[str], brokers: Collection[int]) -> Mapping[str, str | None]: ...
    def controller(self) -> int | str: ...
    def releases(self, brokers: Collection[int]) -> Mapping[int, tuple[str, str | None]]: ...
    def features(self) -> list[dict[str, Any]] | None: ...
    def leader_epochs(
        self, leader: int, newest: Mapping[Place, int], known: Mapping[Place, int]
    ) -> Mapping[Place, list[LeaderEpoch] | str]: ...
    def topic_configs(self, topics: Collection[str], keys: Sequence[str]) -> Iterable[tuple[str, Any]]: ...
    def group_configs(self, groups: Collection[str]) -> Iterable[tuple[str, Sequence[Setting] | str]]: ...
    def log_sizes(self, broker: int) -> tuple[pa.Table, Mapping[str, str]] | str: ...
    def close(self) -> None: ...


class Sampler:
    """Takes samples of a cluster; remembers when it last read all settings of topics and sizes of logs.

    `missing` are topics that the last sample missed. Only the second sample that misses a topic takes it for deleted:
    brokers that have just started, all at once, may list each other and not know the topics yet.
    """

    def __init__(
        self,
        cluster: Described,
        *,
        missing: Collection[str] = (),
        groups_of: Callable[[Collection[str]], Mapping[str, str]] = lambda _: {},
        log_sizes_seconds: float = 0,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`groups_of` returns the groups of some kinds that are there, with their kind: whose settings are read.

        `log_sizes_seconds`: how often the sizes of logs are read; 0: never.
        """
        self._cluster = cluster
        self._groups_of = groups_of
        self._group_configs_at: float | None = None
        self._groups_read: Collection[str] = ()
        self._log_sizes_seconds = log_sizes_seconds
        self._monotonic = monotonic
        self._now = now
        self._configs_at: float | None = None
        self._missing = set(missing)
        self._log_sizes_at: float | None = None
        self._log_sizes_problems: tuple[str, ...] = ()
        self._brokers_to_ask: Mapping[int, bool] = {}

    def sample(self, known: Mapping[str, pa.Table]) -> Sample:
        """Return a sample; `known` are the open rows by table. Raises ClusterError if no broker answers.

        What one request does not answer is missing in the sample, and the others are in it all the same.
        """
        asked_at = self._now()
        metadata = self._cluster.metadata()
        names = set(metadata.topics["topic"].to_pylist())
        unanswered = dict(metadata.undescribed)
        missing = set[str]()
        if unlisted := set(known[TOPICS]["topic"].to_pylist()) - names - unanswered.keys():
            try:
                answers = self._cluster.unlisted(unlisted, metadata.brokers["broker_id"].to_pylist())
            except ClusterError as error:
                answers = dict.fromkeys(unlisted, str(error))
            missing = {topic for topic, reason in answers.items() if reason is None}
            unanswered |= {topic: reason for topic, reason in answers.items() if reason is not None}
        problems = _by_reason("topics keep their last rows", unanswered)
        unanswered |= dict.fromkeys(missing - self._missing, "not listed")
        self._missing = missing
        of_metadata = partial(Observation, asked_at=asked_at, at=self._now(), unanswered=unanswered)
        described = {
            TOPICS: of_metadata(metadata.topics.cast(OBSERVED_SCHEMAS[TOPICS])),
            PARTITIONS: of_metadata(metadata.partitions),
        }
        info = self._info(metadata, known[CLUSTER_INFO], problems)
        listed = metadata.brokers["broker_id"].to_pylist()
        releases = self._releases(listed, problems)
        brokers = self._brokers(metadata.brokers, known, info, releases)
        described[BROKERS] = Observation(brokers, asked_at, self._now())
        described[CONFIGS] = self._configs(known, metadata.topics, unanswered, problems)
        if (settings := self._group_configs(known[GROUP_CONFIGS], problems)) is not None:
            described[GROUP_CONFIGS] = settings
        described[COORDINATORS] = self._coordinators(metadata.partitions, known[COORDINATORS], problems)
        if info is not None:
            rows = pa.Table.from_pylist([info], OBSERVED_SCHEMAS[CLUSTER_INFO])
            described[CLUSTER_INFO] = Observation(rows, asked_at, self._now())
        self._brokers_to_ask = {broker: broker in releases for broker in sorted(listed)}
        return Sample(described, tuple(problems), missing)

    def log_sizes(self) -> tuple[pa.Table | None, tuple[str, ...]]:
        """Return the sizes of all replicas of the brokers of the last sample, and log lines about what is missing.

        The rows are those that `log_sizes` shall have, names as dictionary codes: None leaves it as it is, because
        they are not due or no broker answered, and there are none if they are denied. The log lines are those of the
        last time that they were due.
        """
        now = self._monotonic()
        is_off = not self._log_sizes_seconds
        if is_off or (self._log_sizes_at is not None and now - self._log_sizes_at < self._log_sizes_seconds):
            return None, self._log_sizes_problems
        self._log_sizes_at = now
        parts, failed = list[pa.Table](), dict[str, str]()
        for broker, answers in self._brokers_to_ask.items():  # one after the other: each response takes its memory
            try:
                answer = self._cluster.log_sizes(broker) if answers else _SILENT
            except ClusterError as error:
                answer = str(error)
            if isinstance(answer, str):
                failed[f"broker {broker}"] = answer
                continue
            rows, failed_dirs = answer
            failed |= {f"{folder} of broker {broker}": reason for folder, reason in failed_dirs.items()}
            rows = rows.append_column("broker_id", pa.repeat(pa.scalar(broker, pa.int32()), len(rows)))
            sampled_at = pa.repeat(pa.scalar(self._now(), pa.timestamp("us", "UTC")), len(rows))
            parts.append(rows.append_column("sampled_at", sampled_at))
        self._log_sizes_problems = tuple(_by_reason("sizes of logs are unknown", failed))
        if parts:
            return pa.concat_tables(parts), self._log_sizes_problems
        return _NO_SIZES if CLUSTER_DENIED in failed.values() else None, self._log_sizes_problems

    def _info(self, metadata: ClusterMetadata, known: pa.Table, problems: list[str]) -> dict[str, Any] | None:
        """Return the row of `cluster_info`; None if features were never answered."""
        try:
            controller = self._cluster.controller()
        except ClusterError:
            controller = CONTROLLER_UNANSWERED
        problem = controller if isinstance(controller, str) else None
        problems += [f"the controller is unknown: {problem}"] if problem else []
        try:
            features = self._cluster.features()
        except ClusterError as error:
            problems.append(f"feature levels: {error}")
            if not len(known):
                return None
            features = known["features"][0].as_py()
        return {
            "cluster_id": metadata.cluster_id,
            "controller": None if problem else controller,
            "features": features,
            "problem": problem,
        }

    def _brokers(
        self,
        listed: pa.Table,
        known: Mapping[str, pa.Table],
        info: Mapping[str, Any] | None,
        releases: Mapping[int, tuple[str, str | None]],
    ) -> pa.Table:
        """Return brokers with their releases; those that do not answer keep what they answered last."""
        controller = None if info is None else info["controller"]
        before = {_address(row): tuple(row[name] for name in _RELEASE) for row in known[BROKERS].to_pylist()}
        rows = listed.to_pylist()
        for row in rows:
            release = releases.get(row["broker_id"]) or before.get(_address(row)) or (None, None)
            row |= dict(zip(_RELEASE, release, strict=True))
            row["is_controller"] = None if controller is None else row["broker_id"] == controller
        return pa.Table.from_pylist(rows, OBSERVED_SCHEMAS[BROKERS])

    def _releases(self, brokers: Collection[int], problems: list[str]) -> Mapping[int, tuple[str, str | None]]:
        try:
            releases = self._cluster.releases(brokers)
        except ClusterError as error:
            problems.append(f"releases of brokers: {error}")
            return {}
        if silent := sorted(set(brokers) - releases.keys()):
            problems.append(f"brokers are listed and do not answer: {', '.join(map(str, silent))}")
        return releases

    def _coordinators(self, partitions: pa.Table, known: pa.Table, problems: list[str]) -> Observation:
        """Return the newest epoch of each partition of __consumer_offsets."""
        asked_at = self._now()
        before = {row["record_partition"]: row for row in known.to_pylist()}
        newest: dict[int, dict[Place, int]] = {}
        rows, past, failed = list[dict[str, Any]](), list[dict[str, Any]](), dict[str, str]()
        for one in partitions.filter(pc.equal(partitions["topic"], OFFSETS_TOPIC)).to_pylist():
            number, leader, epoch = one["partition"], one["leader"], one["leader_epoch"]
            if None in (leader, epoch):
                continue
            if number in before and before[number]["leader_epoch"] == epoch:
                rows.append(before[number])
            else:
                newest.setdefault(leader, {})[OFFSETS_TOPIC, number] = epoch
        for leader, epochs in sorted(newest.items()):
            # Lower than the known one is the epoch of a topic that was created again.
            earlier = {
                place: min(before[place[1]]["leader_epoch"], epoch - 1)
                for place, epoch in epochs.items()
                if place[1] in before
            }
            try:
                answers = self._cluster.leader_epochs(leader, epochs, earlier)
            except ClusterError as error:
                answers = dict.fromkeys(epochs, str(error))
            for place, answer in answers.items():
                if isinstance(answer, str) or not answer or answer[-1].epoch != epochs[place]:
                    failed[f"{place[0]}-{place[1]}"] = answer if isinstance(answer, str) else "its epochs are unknown"
                    continue
                *over, last = ({"record_partition": place[1], **_of_epoch(one)} for one in answer)
                past += over
                rows.append({**last, "broker_id": leader})
        problems += _by_reason("epochs of coordinators are unknown", failed)
        schema = OBSERVED_SCHEMAS[COORDINATORS]
        unanswered = before.keys() - {row["record_partition"] for row in rows}
        answered, over_before = (pa.Table.from_pylist(some, schema) for some in (rows, past))
        return Observation(answered, asked_at, self._now(), unanswered, past=over_before)

    def _configs(
        self, known: Mapping[str, pa.Table], topics: pa.Table, unanswered: Mapping[str, str], problems: list[str]
    ) -> Observation:
        """Return the settings of all topics if they are due, otherwise of new topics only."""
        asked_at = self._now()
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
                elif isinstance(settings, dict):
                    rows.append({"topic": topic, **_parsed(settings)})
            if is_due:
                self._configs_at = now
        except ClusterError as error:
            is_due = False
            problems.append(f"settings of topics: {error}")
        problems += _by_reason("settings of topics are unknown", failed)
        # Without a row: deleted in between, an answer that is not final, or requests that failed.
        not_read |= wanted - {row["topic"] for row in rows}
        read = pa.Table.from_pylist(rows, OBSERVED_SCHEMAS[CONFIGS])
        return Observation(read, asked_at, self._now(), not_read, is_whole=is_due)

    def _group_configs(self, known: pa.Table, problems: list[str]) -> Observation | None:
        """Return the settings of share groups and streams groups if they are due, or one of these is new."""
        kinds = self._groups_of(_SETTINGS_OF_KIND.keys())
        now = self._monotonic()
        is_due = self._group_configs_at is None or now - self._group_configs_at >= CONFIG_SECONDS
        if not is_due and kinds.keys() == self._groups_read:
            return None
        asked_at = self._now()
        rows, failed = list[dict[str, Any]](), dict[str, str]()
        try:
            for group, settings in self._cluster.group_configs(kinds.keys()) if kinds else ():
                if isinstance(settings, str):
                    failed[group] = settings
                    continue
                rows += [
                    _of_group(group, it) for it in settings if it.name.startswith(_SETTINGS_OF_KIND[kinds[group]])
                ]
        except ClusterError as error:
            problems.append(f"settings of groups: {error}")
            return None
        self._group_configs_at, self._groups_read = now, kinds.keys()
        problems += _by_reason("settings of groups are unknown", failed)
        read = pa.Table.from_pylist(rows, OBSERVED_SCHEMAS[GROUP_CONFIGS])
        return Observation(read, asked_at, self._now(), failed.keys() & set(known["group_id"].to_pylist()))


def _of_group(group: str, setting: Setting) -> dict[str, Any]:
    source = _SOURCES.get(setting.source, "broker")
    return {"group_id": group, "name": setting.name, "value": setting.value, "source": source}


def _of_epoch(one: LeaderEpoch) -> dict[str, int]:
    return {"leader_epoch": one.epoch, "first_offset": one.first_offset}


def _ids(topics: pa.Table) -> dict[str, str | None]:
    return dict(zip(topics["topic"].to_pylist(), topics["topic_id"].to_pylist(), strict=True))


def _address(broker: Mapping[str, Any]) -> tuple[Any, ...]:
    return broker["broker_id"], broker["host"], broker["port"]


def _parsed(settings: Mapping[str, str | None]) -> dict[str, Any]:
    """Return settings by column, each with the column's type; None where the brokers have no such setting.

    Brokers of any release have all but those of remote storage; other makers' may not.
    """
    schema = OBSERVED_SCHEMAS[CONFIGS]
    row: dict[str, Any] = {
        column: _value(settings.get(key), schema.field(column)) for key, column in COLUMN_OF.items()
    }
    missing = [key for key, column in COLUMN_OF.items() if row[column] is None and key not in _SINCE_REMOTE_STORAGE]
    row["problem"] = f"brokers do not name {', '.join(missing)}" if missing else None
    return row


def _value(text: str | None, field: pa.Field) -> Any:
    if text is None or pa.types.is_string(field.type):
        return text
    if pa.types.is_boolean(field.type):
        return {"true": True, "false": False}.get(text)
    try:
        return int(text)
    except ValueError:
        return None


def _by_reason(what: str, topics: Mapping[str, str]) -> list[str]:
    """Return a line for each reason, with one topic and the number of others."""
    of_reason: dict[str, list[str]] = {}
    for topic, reason in topics.items():
        of_reason.setdefault(reason, []).append(topic)
    return [
        f"{what}: {reason}: {min(listed)!r}" + (f" and {len(listed) - 1:,} more" if len(listed) > 1 else "")
        for reason, listed in sorted(of_reason.items())
    ]
