"""Rows of the cluster page: the verdict, lag and rebalances of every group, read with delta-rs.

Every time is a count of microseconds since 1970, UTC.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from grouptrail.query import last_commits
from grouptrail.query.errors import QueryError
from grouptrail.query.freshness import RECORDED, is_stale, newest_times, stale_text
from grouptrail.query.views import expand, filled
from grouptrail.report.group_rows import SECOND_US, STORMS, Row, microseconds, moment
from grouptrail.storage.sql import Value
from grouptrail.storage.sql_snapshot import SqlSnapshot
from grouptrail.storage.warehouse import Warehouse

DAYS = 14
"""The period for which the page shows storms and causes."""

_DAY_US = 86_400 * SECOND_US
_TABLES = ("generations", "group_states", "rebalances", "consumer_lag", "ingest_progress", *last_commits.TABLES)
_WORST_SHOWN = 20
_WORST_STORMS = "rebalances DESC, began_at DESC LIMIT 50"

_GROUPS = """
WITH numbered AS (
  SELECT *, row_number() OVER (PARTITION BY group_id ORDER BY record_offset DESC) AS place
  FROM generations
  WHERE cluster = :cluster
)
SELECT group_id, group_kind, member_count, partition_count FROM numbered WHERE place = 1
"""
_STATES = """
WITH numbered AS (
  SELECT *, row_number() OVER (PARTITION BY group_id ORDER BY record_offset DESC) AS place
  FROM group_states
  WHERE cluster = :cluster AND ended_at IS NULL
)
SELECT group_id, state, CAST(started_at AS BIGINT) AS state_since FROM numbered WHERE place = 1
"""
_REBALANCES = """
SELECT
  group_id, count(*) AS rebalances, sum(CASE WHEN at >= :yesterday THEN 1 ELSE 0 END) AS rebalances_day,
  CAST(max(at) AS BIGINT) AS last_rebalance
FROM rebalances
WHERE cluster = :cluster AND at >= :since
GROUP BY group_id
"""
_COMMITS = """
SELECT group_id, count(*) AS committed_partitions
FROM committed_offsets
WHERE cluster = :cluster
GROUP BY group_id
"""
_IS_LEAST = "(lag_seconds_method = 'bounded' OR lag_seconds_method = 'dated' AND lag_seconds_error IS NULL)"
_VERDICTS = f"""
SELECT
  group_id, worst.partitions, worst.lag, counts.partitions_with_lag, worst.max_lag_seconds AS seconds,
  counts.partitions_with_seconds, counts.is_bounded, counts.lost_records, worst.status, worst.status_reason,
  worst.topic AS worst_topic, worst.partition AS worst_partition
FROM worst_groups AS worst
JOIN (
  SELECT
    group_id, count(lag) AS partitions_with_lag, count(lag_seconds) AS partitions_with_seconds,
    bool_or({_IS_LEAST}) AS is_bounded, sum(lost_records) AS lost_records
  FROM current_lag
  GROUP BY group_id
) AS counts USING (group_id)
"""
_WORST = f"""
SELECT
  group_id, topic, partition, lag, lag_seconds AS seconds,
  {_IS_LEAST} AS is_bounded, status, status_reason
FROM current_lag
WHERE lag > 0
ORDER BY lag_seconds DESC NULLS LAST, lag DESC, group_id, topic, partition
LIMIT {_WORST_SHOWN}
"""
_CAUSES = """
SELECT CAST(date_trunc('day', at) AS BIGINT) AS day, cause, count(*) AS rebalances
FROM rebalances
WHERE cluster = :cluster AND at >= :since
GROUP BY date_trunc('day', at), cause
ORDER BY day, cause
"""


@dataclass(frozen=True)
class ClusterRows:
    """The state of a cluster at `known_us`: `groups` by name, with columns from the tables that exist.

    Lag is from the newest round of samples, at `sampled_us`; None if there are no samples. `stale` and `stale_lag`
    say how old the newest data and samples are, if they do not show the present."""

    cluster: str
    known_us: int
    sampled_us: int | None
    stale: str | None
    stale_lag: str | None
    groups: dict[str, Row]
    worst: list[Row]
    storms: list[Row]
    causes: list[Row]


def read_cluster(warehouse: Warehouse, *, sample_seconds: float) -> ClusterRows:
    """Read the state of the warehouse's cluster. Raises QueryError if the tables have no rows of it."""
    tables, cluster = SqlSnapshot(warehouse, _TABLES), warehouse.cluster
    known_at, sampled_at = newest_data(tables, warehouse)
    known_us = microseconds(known_at)
    values: dict[str, Value] = {
        "cluster": cluster,
        "since": moment(known_us // _DAY_US * _DAY_US - (DAYS - 1) * _DAY_US),
        "yesterday": moment(known_us - _DAY_US),
    }

    def ask(table: str, sql: str) -> list[Row]:
        if table not in tables.versions:
            return []
        return tables.rows(expand(filled(sql, values), cluster).text)

    groups: dict[str, Row] = {}
    for table, sql in (
        *(("generations", _GROUPS), ("group_states", _STATES), ("rebalances", _REBALANCES)),
        *(("committed_offsets", _COMMITS), ("consumer_lag", _VERDICTS)),
    ):
        for row in ask(table, sql):
            groups.setdefault(row["group_id"], {}).update(row)
    for name, at in last_commits.last_commits(tables, cluster).items():
        groups.setdefault(name, {})["last_commit"] = at
    for row in groups.values():
        if row.get("state") == "Dead" and row.get("status"):  # created again by commits alone, which write no state
            row.update(state=None, state_since=None)
    return ClusterRows(
        cluster=cluster,
        known_us=known_us,
        sampled_us=None if sampled_at is None else microseconds(sampled_at),
        stale=stale_text(known_at) if is_stale(sample_seconds, known_at) else None,
        stale_lag=stale_text(sampled_at) if sampled_at and is_stale(sample_seconds, sampled_at) else None,
        groups=dict(sorted(groups.items())),
        worst=ask("consumer_lag", _WORST),
        storms=ask("rebalances", f"{STORMS} WHERE ended_at >= :since ORDER BY {_WORST_STORMS}"),
        causes=ask("rebalances", _CAUSES),
    )


def newest_data(tables: SqlSnapshot, warehouse: Warehouse) -> tuple[datetime, datetime | None]:
    """Return the time of the newest row of the cluster, and that of the newest sample of lag. Raises QueryError."""
    times = newest_times(tables, warehouse.cluster, RECORDED | {"generations": "started_at"})
    if not times:
        raise QueryError(
            f"nothing has landed of cluster {warehouse.cluster} under {warehouse.shown} yet: "
            "run `grouptrail run`, or check --cluster or --warehouse"
        )
    return max(times.values()), times.get("consumer_lag")
