"""Rows of the timeline of a group: its history and lag between two times, read with delta-rs.

Every time is a count of microseconds since 1970, UTC.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from grouptrail.query.errors import QueryError
from grouptrail.query.rollouts import rollouts_of
from grouptrail.query.show_group import COMMITS
from grouptrail.query.views import expand, filled
from grouptrail.storage.sql import Value
from grouptrail.storage.sql_snapshot import SqlSnapshot

Row = dict[str, Any]

SECOND_US = 1_000_000
STORMS = """
SELECT
  group_id, CAST(began_at AS BIGINT) AS began_us, CAST(ended_at AS BIGINT) AS ended_us, rebalances, main_cause,
  main_cause_rebalances
FROM rebalance_storms('10 minutes')
"""
"""Rebalance storms: more than three rebalances within ten minutes. A WHERE clause may follow."""

MOST_SPANS = 500_000
"""A browser needs minutes to open a timeline with more intervals of ownership."""

_DAY_US, _HOUR_US = 86_400 * SECOND_US, 3_600 * SECOND_US
_LAG_POINTS = 720
TABLES = (
    *("generations", "group_states", "memberships", "partition_ownership", "rebalances"),
    *("ingest_progress", "consumer_lag", COMMITS),
)

_OF_GROUP = "cluster = :cluster AND group_id = :group"
_BOUNDS = f"""
WITH states AS (SELECT * FROM group_states WHERE {_OF_GROUP}),
events AS (
  SELECT started_at AS at FROM generations WHERE {_OF_GROUP}
  UNION ALL SELECT started_at AS at FROM states
  UNION ALL SELECT at FROM rebalances WHERE {_OF_GROUP}
)
SELECT
  CAST(min(at) AS BIGINT) AS first, CAST(max(at) AS BIGINT) AS last,
  (SELECT state FROM states WHERE ended_at IS NULL ORDER BY record_offset DESC LIMIT 1) AS state
FROM events
"""
_COMMIT_BOUNDS = f"""
SELECT CAST(min(record_at) AS BIGINT) AS first, CAST(max(record_at) AS BIGINT) AS last, 'Empty' AS state
FROM {COMMITS}
WHERE {_OF_GROUP}
"""
_COMMITS = f"""
SELECT topic, partition, CAST(record_at AS BIGINT) / :step AS slot, count(*) AS commits
FROM {COMMITS}
WHERE {_OF_GROUP} AND record_at >= :since AND record_at <= :until AND NOT is_tombstone
GROUP BY topic, partition, CAST(record_at AS BIGINT) / :step
ORDER BY topic, partition, slot
"""
_DECODED = "SELECT CAST(max(landed_at) AS BIGINT) AS at FROM ingest_progress WHERE cluster = :cluster"
_SAMPLED = f"SELECT CAST(max(sampled_at) AS BIGINT) AS at FROM consumer_lag WHERE {_OF_GROUP}"
_GENERATIONS = f"""
SELECT
  generation, group_kind, protocol_type, protocol, CAST(started_at AS BIGINT) AS started_at,
  CAST(ended_at AS BIGINT) AS ended_at, skipped, member_count, partition_count, skew, is_assignors_own,
  assignment_note
FROM generations
WHERE {_OF_GROUP} AND started_at <= :until AND (ended_at IS NULL OR ended_at >= :since)
ORDER BY record_offset
"""
_STATES = f"""
SELECT
  state, evidence, note, CAST(not_before AS BIGINT) AS not_before, CAST(started_at AS BIGINT) AS started_at,
  CAST(ended_at AS BIGINT) AS ended_at
FROM group_states
WHERE {_OF_GROUP} AND started_at <= :until AND (ended_at IS NULL OR ended_at >= :since)
ORDER BY record_offset, started_at
"""
_LIVES = f"""
SELECT
  member_id, instance_id, client_id, client_host, CAST(joined_at AS BIGINT) AS joined_at, joined_generation, began,
  CAST(left_at AS BIGINT) AS left_at, left_generation, ended, ended_because, rule, ruled_out, evidence
FROM memberships
WHERE {_OF_GROUP} AND joined_at <= :until AND (left_at IS NULL OR left_at >= :since)
ORDER BY joined_at, record_offset, member_id
"""
_SPANS = f"""
SELECT
  topic, partition, member_id, instance_id, client_id, CAST(owned_from AS BIGINT) AS owned_from, from_generation,
  CAST(owned_until AS BIGINT) AS owned_until, ended
FROM partition_ownership
WHERE {_OF_GROUP} AND owned_from <= :until AND (owned_until IS NULL OR owned_until >= :since)
ORDER BY topic, partition, owned_from, owned_until NULLS LAST, member_id
LIMIT :count
"""
_REBALANCES = f"""
WITH shown AS (SELECT * FROM rebalances WHERE {_OF_GROUP} AND at >= :since AND at <= :until),
handed AS (
  SELECT record_offset, sum(handover['may_be_read_twice']) AS may_be_read_twice
  FROM (SELECT record_offset, unnest(handed_over) AS handover FROM shown)
  GROUP BY record_offset
)
SELECT
  from_generation, to_generation, CAST(at AS BIGINT) AS at_us, cause, certainty, cause_note, members_joined,
  members_left, subscriptions_changed, partitions_added, partitions_removed, partitions_moved, partitions_kept,
  skipped, duration_ms, duration_of, CAST(ended_at AS BIGINT) AS ended_at, unowned_partition_ms,
  may_be_read_twice, rule, ruled_out, evidence
FROM shown
LEFT JOIN handed USING (record_offset)
ORDER BY shown.at, record_offset
"""
_IS_LEAST = "(lag_seconds_method = 'bounded' OR lag_seconds_method = 'dated' AND lag_seconds_error IS NULL)"
_SAMPLES = f"""
  SELECT
    CAST(sampled_at AS BIGINT) / :step AS slot, topic, partition, lag, lag_seconds, lag_seconds_method,
    lag_seconds_error, status,
    status_reason, ruled_out, sampled_at
  FROM consumer_lag
  WHERE {_OF_GROUP} AND sampled_at >= :since AND sampled_at <= :until
"""
_PACE = f"""
SELECT (max(latest) - min(earliest)) / greatest(max(samples) - 1, 1) AS us
FROM (
  SELECT
    count(*) AS samples, CAST(min(sampled_at) AS BIGINT) AS earliest, CAST(max(sampled_at) AS BIGINT) AS latest
  FROM consumer_lag
  WHERE {_OF_GROUP} AND sampled_at >= :since AND sampled_at <= :until
  GROUP BY topic, partition
)
"""
_LAG = f"""
WITH slots AS (
  SELECT
    slot, topic, partition, max(lag) AS lag, max(lag_seconds) AS seconds,
    bool_or({_IS_LEAST}) AS is_bounded
  FROM ({_SAMPLES})
  GROUP BY slot, topic, partition
)
SELECT
  slot, sum(lag) AS lag, max(seconds) AS seconds, bool_or(is_bounded) AS is_bounded,
  count(*) AS partitions, count(lag) AS partitions_with_lag, count(seconds) AS partitions_with_seconds,
  first_value(topic ORDER BY seconds DESC NULLS LAST, topic, partition) AS worst_topic,
  first_value(partition ORDER BY seconds DESC NULLS LAST, topic, partition) AS worst_partition
FROM slots
GROUP BY slot
ORDER BY slot
"""
_VERDICTS = f"""
SELECT
  topic, partition, slot, first_value(status ORDER BY sampled_at DESC) AS status,
  first_value(status_reason ORDER BY sampled_at DESC) AS reason,
  first_value(ruled_out ORDER BY sampled_at DESC) AS ruled_out
FROM ({_SAMPLES})
WHERE status IN ('WARN', 'STALL', 'STOP', 'REWIND', 'UNKNOWN')
GROUP BY topic, partition, slot
ORDER BY topic, partition, slot
"""


@dataclass(frozen=True)
class GroupRows:
    """Rows of a group between `since_us` and `until_us`.

    Its history begins at `first_us` and is complete up to `known_us`. `lag`, `verdicts` and `commits` are in slots of
    `lag_step_us`; `commits` are read only for a group that had no members in this time."""

    group_id: str
    cluster: str
    since_us: int
    until_us: int
    first_us: int
    known_us: int
    generations: list[Row]
    states: list[Row]
    lives: list[Row]
    spans: list[Row]
    rebalances: list[Row]
    storms: list[Row]
    lag_step_us: int
    lag: list[Row]
    verdicts: list[Row]
    commits: list[Row]
    rollouts: list[Row]


def read_group(
    tables: SqlSnapshot, group_id: str, *, since: datetime | None, until: datetime | None, has_rollouts: bool = False
) -> GroupRows:
    """Read a group between two times from `TABLES`: by default its last day, and the last event of an empty group.

    The history of a group that never had members is that of its commits. Rollouts are read only with `has_rollouts`:
    they take about 0.1 s. Raises QueryError for a group without a history, and for an interval outside of it."""
    tables.require_group(group_id, "generations", COMMITS)
    cluster = tables.warehouse.cluster
    of_group: dict[str, Value] = {"cluster": cluster, "group": group_id}
    [bounds] = tables.rows(filled(_BOUNDS, of_group))
    if bounds["first"] is None:
        [bounds] = tables.rows(filled(_COMMIT_BOUNDS, of_group))
    known_us = _known(tables, of_group, bounds)
    since_us, until_us = _interval(bounds, known_us, since, until)
    if since_us > known_us or until_us < bounds["first"]:
        raise QueryError(
            f"nothing is known of {group_id!r} between {utc_text(since_us)} and {utc_text(until_us)}: "
            f"its history goes from {utc_text(bounds['first'])} to {utc_text(known_us)}"
        )
    interval: dict[str, Value] = {"since": moment(since_us), "until": moment(until_us)}
    step = _lag_step(tables, of_group | interval, until_us - since_us)
    values = {**of_group, **interval, "step": step, "count": MOST_SPANS + 1}

    def ask(sql: str) -> list[Row]:
        return tables.rows(expand(filled(sql, values), cluster).text)

    has_lag = "consumer_lag" in tables.versions
    lives = ask(_LIVES)
    return GroupRows(
        group_id=group_id,
        cluster=cluster,
        since_us=since_us,
        until_us=until_us,
        first_us=bounds["first"],
        known_us=known_us,
        generations=ask(_GENERATIONS),
        states=ask(_STATES),
        lives=lives,
        spans=_few_enough(ask(_SPANS), group_id),
        rebalances=ask(_REBALANCES),
        storms=ask(f"{STORMS} WHERE group_id = :group AND ended_at >= :since AND began_at <= :until"),
        lag_step_us=step,
        lag=ask(_LAG) if has_lag else [],
        verdicts=ask(_VERDICTS) if has_lag else [],
        commits=ask(_COMMITS) if not lives and COMMITS in tables.versions else [],
        rollouts=rollouts_of(tables, group_id, since=moment(since_us), until=moment(until_us))
        if has_rollouts
        else [],
    )


def _few_enough(spans: list[Row], group_id: str) -> list[Row]:
    if len(spans) > MOST_SPANS:
        raise QueryError(
            f"{group_id!r} has more than {MOST_SPANS:,} intervals of ownership in this time: "
            "give a shorter one with --from and --to"
        )
    return spans


def _known(tables: SqlSnapshot, of_group: dict[str, Value], bounds: Row) -> int:
    """Return the time up to which the history is complete; a dead group has no later events."""
    if bounds["state"] == "Dead":
        return int(bounds["last"])
    asked = [
        sql for table, sql in (("ingest_progress", _DECODED), ("consumer_lag", _SAMPLED)) if table in tables.versions
    ]
    answers = [tables.rows(filled(sql, of_group))[0]["at"] for sql in asked]
    return int(max([bounds["last"], *(at for at in answers if at is not None)]))


def _interval(bounds: Row, known_us: int, since: datetime | None, until: datetime | None) -> tuple[int, int]:
    """Return both times; a default leaves a margin beside the first or last event."""
    until_us = microseconds(until) if until else known_us
    since_us = microseconds(since) if since else min(max(bounds["first"], _start_of(bounds, until_us)), until_us)
    if since and until is None and since_us >= until_us:
        return since_us, since_us
    room = max((until_us - since_us) // 50, SECOND_US)
    return since_us - (0 if since else room), until_us + (0 if until else room)


def _start_of(bounds: Row, until_us: int) -> int:
    """Return a day before the end; for an empty group a time before its last members left."""
    last_day = until_us - _DAY_US
    return min(last_day, bounds["last"] - _HOUR_US) if bounds["state"] in ("Empty", "Dead") else last_day


def _lag_step(tables: SqlSnapshot, values: dict[str, Value], length_us: int) -> int:
    """Return twice the sampling interval, so that a slot has a sample of every partition, or more."""
    pace_us = 0
    if "consumer_lag" in tables.versions:
        pace_us = tables.rows(filled(_PACE, values))[0]["us"] or 0
    return max(2 * pace_us, length_us // _LAG_POINTS, SECOND_US)


def microseconds(moment: datetime) -> int:
    """Return a time as a count of microseconds since 1970."""
    return (moment - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)


def moment(time_us: int) -> datetime:
    """Return the time of a count of microseconds since 1970."""
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=time_us)


def utc_text(time_us: int) -> str:
    """Return a time in ISO 8601, UTC, to the second."""
    return f"{moment(time_us):%Y-%m-%dT%H:%M:%SZ}"
