"""What is read from `topic_configs`: the settings of topics now, for jobs and commands that compute with them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from grouptrail.storage.buckets import OPEN_BUCKETS, bucket_of, in_buckets

if TYPE_CHECKING:
    from grouptrail.storage.warehouse import Warehouse

_CONFIGS = "topic_configs"


@dataclass(frozen=True)
class TopicSettings:
    """The settings of a topic in force at the last sample, as the columns of `topic_configs` have them.

    A setting is None where it is not known, or where the brokers lack it; `problem` says why it is not known.
    """

    cleanup_policy: str | None
    retention_ms: int | None
    retention_bytes: int | None
    segment_ms: int | None
    segment_bytes: int | None
    message_timestamp_type: str | None
    min_insync_replicas: int | None
    remote_storage_enable: bool | None
    local_retention_ms: int | None
    local_retention_bytes: int | None
    problem: str | None


def read_topic_settings(warehouse: Warehouse, topics: Collection[str] | None = None) -> dict[str, TopicSettings]:
    """Return the settings of topics (None: all) by name.

    Topics that no sample has shown are missing: all of them before the job `cluster` has run.
    """
    table = warehouse.table(_CONFIGS)
    if not table.exists():
        return {}
    buckets = range(OPEN_BUCKETS) if topics is None else {bucket_of(topic) for topic in topics}
    columns = ", ".join(("topic", *(field.name for field in fields(TopicSettings))))
    by_topic = {row.pop("topic"): TopicSettings(**row) for row in table.select(columns, f"AND {in_buckets(buckets)}")}
    return by_topic if topics is None else {topic: by_topic[topic] for topic in topics if topic in by_topic}
