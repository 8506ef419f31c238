"""Rows of the digest: what happened to the groups of a cluster since a time, read with delta-rs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from grouptrail.query.errors import QueryError
from grouptrail.query.freshness import as_of, is_stale
from grouptrail.query.views import expand, filled, window_from
from grouptrail.report.cluster_rows import newest_data
from grouptrail.report.group_rows import STORMS, Row, moment
from grouptrail.storage.sql import Value
from grouptrail.storage.sql_snapshot import SqlSnapshot
from grouptrail.storage.warehouse import Warehouse

LISTED = 10
"""Maximum number of rows in a section of the digest."""

_TABLES = (
    *("generations", "group_states", "memberships", "partition_ownership", "rebalances"),
    *("offset_commits", "consumer_lag", "ingest_progress"),
)
_WORST = """
SELECT group_id, status, status_reason, topic, partition, lag, max_lag_seconds
FROM worst_groups
WHERE status IN ('REWIND', 'STALL', 'STOP', 'WARN', 'UNKNOWN')
ORDER BY severity DESC, lag DESC NULLS LAST, group_id
"""
_RESETS = """
SELECT *
FROM (
  SELECT
    group_id, topic, kind, count(DISTINCT partition) AS partitions, sum(moved_by) AS moved, max(at) AS last_at,
    bool_or(owner_member_id IS NOT NULL) AS by_member
  FROM resets(:window)
  WHERE at >= :since
  GROUP BY group_id, topic, kind
)
ORDER BY abs(moved) DESC NULLS LAST, group_id, topic
"""
_VANISHED = "SELECT * FROM vanished_groups WHERE vanished_at >= :since ORDER BY vanished_at DESC, group_id"
# A rebalance also says when the one before it was, of which retention may have removed the row. What is deleted first
# was there before.
_NEW = """
SELECT group_id, min(at) AS first_at
FROM (
  SELECT group_id, started_at AS at, FALSE AS is_end FROM generations WHERE cluster = :cluster
  UNION ALL
  SELECT group_id, coalesce(not_before, started_at), state = 'Dead' FROM group_states WHERE cluster = :cluster
  UNION ALL SELECT group_id, coalesce(previous_at, at), FALSE FROM rebalances WHERE cluster = :cluster
  UNION ALL SELECT group_id, record_at, is_tombstone FROM offset_commits WHERE cluster = :cluster
)
GROUP BY group_id
HAVING min(at) >= :since AND coalesce(min(CASE WHEN is_end THEN at END) > min(at), TRUE)
ORDER BY first_at DESC, group_id
"""
_READ_SINCE = "SELECT CAST(min(landed_at) AS BIGINT) AS at FROM ingest_progress WHERE cluster = :cluster"


@dataclass(frozen=True)
class DigestRows:
    """Events in a cluster since a time; lists are None where their tables do not exist yet.

    `new` is also None if the topic has been read only since then: compaction leaves the newest records of a group.
    `worst` is of the newest samples, at `sampled_at`. `stale` and `stale_lag`: whether nothing newer was recorded or
    sampled for so long that this does not show the present.
    """

    cluster: str
    since: datetime
    known_at: datetime
    worst: list[Row] | None
    storms: list[Row] | None
    resets: list[Row] | None
    vanished: list[Row] | None
    new: list[Row] | None
    sampled_at: datetime | None
    stale: bool = False
    stale_lag: bool = False


class NothingRecordedError(QueryError):
    """All data are older than the period of the digest."""


def read_digest(warehouse: Warehouse, since: datetime, *, sample_seconds: float) -> DigestRows:
    """Read what happened in the warehouse's cluster.

    Raises QueryError if the tables have no rows of it, and NothingRecordedError if they have none since then."""
    tables, cluster = SqlSnapshot(warehouse, _TABLES), warehouse.cluster
    known_at, sampled_at = newest_data(tables, warehouse)
    if known_at < since:
        raise NothingRecordedError(
            f"nothing has been recorded since {since:%Y-%m-%d %H:%M:%S} UTC: the newest data are {as_of(known_at)}; "
            "see whether `grouptrail run` runs, or give an earlier --since"
        )
    values: dict[str, Value] = {"cluster": cluster, "since": since, "window": window_from(since)}

    def ask(sql: str, *names: str) -> list[Row] | None:
        if not tables.versions.keys() >= set(names):
            return None
        return tables.rows(expand(filled(sql, values), cluster).text)

    read_since = (ask(_READ_SINCE, "ingest_progress") or [{"at": None}])[0]["at"]
    is_read_before = read_since is not None and moment(read_since) < since
    return DigestRows(
        cluster=cluster,
        since=since,
        known_at=known_at,
        worst=ask(_WORST, "consumer_lag", "group_states"),
        storms=ask(
            f"{STORMS} WHERE ended_at >= :since ORDER BY rebalances DESC, began_at DESC, group_id", "rebalances"
        ),
        resets=ask(_RESETS, "offset_commits", "group_states", "partition_ownership"),
        vanished=ask(_VANISHED, "group_states", "generations", "memberships"),
        new=ask(_NEW, "generations", "group_states", "rebalances", "offset_commits") if is_read_before else None,
        sampled_at=sampled_at,
        stale=is_stale(sample_seconds, known_at),
        stale_lag=sampled_at is not None and is_stale(sample_seconds, sampled_at),
    )
