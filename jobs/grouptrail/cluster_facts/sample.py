"""What one sample of a cluster says, by table. This module imports neither a Kafka client nor Spark."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow as pa

from grouptrail.storage.schema import table_schema

BROKERS, TOPICS, PARTITIONS, CONFIGS, GROUP_CONFIGS, COORDINATORS, CLUSTER_INFO = TABLES = (
    "brokers",
    "topics",
    "topic_partitions",
    "topic_configs",
    "group_configs",
    "coordinators",
    "cluster_info",
)
"""The tables, in the order in which they are written: with `cluster_info` a sample is written whole."""

LOG_SIZES = "log_sizes"
"""The table of the newest sizes, which is replaced as a whole."""

KEYS: Mapping[str, tuple[str, ...]] = {
    BROKERS: ("broker_id",),
    TOPICS: ("topic",),
    PARTITIONS: ("topic", "partition"),
    CONFIGS: ("topic",),
    GROUP_CONFIGS: ("group_id", "name"),
    COORDINATORS: ("record_partition",),
    CLUSTER_INFO: (),
}
"""What identifies a row among those that are valid at a time."""

_OF_INTERVAL = ("valid_from", "valid_to", "last_seen_at", "is_open", "open_bucket")
_OF_LIFE = ("created_at", "deleted_at")

OPEN_SCHEMAS: Mapping[str, pa.Schema] = {
    name: table_schema(name, without=("cluster", "valid_to", "last_seen_at", "is_open", "deleted_at"))
    for name in TABLES
}
"""The columns of open rows, which are kept in memory."""

OBSERVED_SCHEMAS: Mapping[str, pa.Schema] = {
    name: table_schema(name, without=("cluster", *_OF_INTERVAL, *_OF_LIFE)) for name in TABLES
}
"""The columns that brokers answer."""


@dataclass(frozen=True)
class Observation:
    """The rows of a table in a sample, with its columns `OBSERVED_SCHEMAS`, one for each key.

    They were so at some time between `asked_at`, before the first request, and `at`, after the last answer.
    `unanswered` are topics (of coordinators partitions, of groups' settings groups) of which the sample says nothing,
    neither what they are nor that they are gone. They are exceptions if `is_whole`; otherwise few topics were asked
    for. `past` are rows that were over before the sample.
    """

    rows: pa.Table
    asked_at: datetime
    at: datetime
    unanswered: Collection[str | int] = ()
    is_whole: bool = True
    past: pa.Table | None = None


@dataclass(frozen=True)
class LastSeen:
    """When the last sample about a whole table was asked for, of what it said nothing, and the sample before it."""

    at: datetime
    unanswered: Collection[str | int] = ()
    before: LastSeen | None = None


@dataclass(frozen=True)
class Sample:
    """What brokers answered; tables of which they said nothing are missing. `problems` are log lines.

    `missing` are topics that no broker knows any more, also those that are `unanswered` for that reason.
    """

    tables: Mapping[str, Observation] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    missing: Collection[str] = ()
