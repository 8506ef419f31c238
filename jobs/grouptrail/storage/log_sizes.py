"""What is read from `log_sizes`: how large partitions' logs are, for jobs and commands that compute with them."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from grouptrail.storage.buckets import OPEN_BUCKETS, bucket_of, in_buckets
from grouptrail.storage.sql import datafusion_literal

if TYPE_CHECKING:
    from grouptrail.storage.warehouse import Warehouse

_SIZES, _LEADERS = "log_sizes", "topic_partitions"


class LogSize(NamedTuple):
    """Bytes of a log on its leader's disk, without segments in remote storage, at a time that may be long ago."""

    size_bytes: int
    sampled_at: datetime


def read_log_sizes(warehouse: Warehouse, topics: Collection[str] | None = None) -> dict[tuple[str, int], LogSize]:
    """Return the sizes of the partitions of topics (None: all) by topic and partition.

    A partition is missing if its size is not known: DESCRIBE on the cluster is denied, its leader did not answer, it
    had none at the last sample of the cluster, or the job `cluster` does not read sizes.
    """
    sizes, leaders = warehouse.table(_SIZES), warehouse.table(_LEADERS)
    if (topics is not None and not topics) or not (sizes.exists() and leaders.exists()):
        return {}
    if topics is None:
        buckets, of_topics = set(range(OPEN_BUCKETS)), ""
    else:
        buckets = {bucket_of(topic) for topic in topics}
        of_topics = f" AND topic IN ({', '.join(map(datafusion_literal, sorted(topics)))})"
    led = leaders.select("topic, partition, leader", f"AND {in_buckets(buckets)}{of_topics}")
    leader_of = {(row["topic"], row["partition"]): row["leader"] for row in led}
    columns = "topic, partition, broker_id, size_bytes, sampled_at"
    return {
        (row["topic"], row["partition"]): LogSize(row["size_bytes"], row["sampled_at"])
        for row in sizes.select(columns, f"AND NOT is_future{of_topics}")
        if leader_of.get((row["topic"], row["partition"])) == row["broker_id"]
    }
