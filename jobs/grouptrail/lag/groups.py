"""The state, subscriptions and owned partitions of groups, read from the history tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.lag.group_status import (
    LAST_OWNERS,
    NO_LAST_OWNERS,
    NONE_OWNED,
    OWNED,
    OWNED_SINCE,
    GroupStatus,
    statuses,
)
from grouptrail.lag.shard import ALL, Shard
from grouptrail.query import owned
from grouptrail.storage.sql import datafusion_literal
from grouptrail.storage.sql_snapshot import SqlSnapshot
from grouptrail.storage.warehouse import Warehouse

TABLES = ("group_states", "generations", "memberships", "partition_ownership")
# Each is created by the job that writes it: if it exists, that job has run.
_DECODED = ("group_metadata", "group_records", "history_positions")

_STATES = """
SELECT group_id, state, started_at, record_partition, record_offset FROM group_states
WHERE is_open AND ended_at IS NULL AND cluster = {cluster} AND {shard}
"""
_SUBSCRIPTIONS = """
SELECT group_id, member['topics'] AS topics, member['topic_regex'] AS topic_regex
FROM (
  SELECT group_id, unnest(members) AS member FROM generations
  WHERE is_open AND ended_at IS NULL AND cluster = {cluster} AND {shard}
)
"""
# The broker resolves the pattern of KIP-848 members, and writes to which topics.
_RESOLVED = """
SELECT group_id, key_json, value_json FROM (
  SELECT group_id, key_json, value_json,
    ROW_NUMBER() OVER (PARTITION BY group_id, key_json ORDER BY record_offset DESC) AS age
  FROM group_records
  WHERE record_type = 'ConsumerGroupRegularExpression' AND cluster = {cluster} AND {shard}
)
WHERE age = 1 AND value_json IS NOT NULL
"""
# What follows concerns groups without members: those that a query has to name, by `among`. By `since`, when the first
# of them became Empty, files are left out.
_EMPTIED = """
WITH emptied AS (
  SELECT cluster, group_id, incarnation, started_at, record_offset FROM group_states
  WHERE is_open AND ended_at IS NULL AND state = 'Empty' AND cluster = {cluster} AND {shard} AND {among}
)
"""
# No alert fires for groups whose members have left, and clients may write lines of the brokers' log: so here it is no
# evidence for a leave, but evidence against one.
_WITHOUT_LOG = "COALESCE(gone.ended_without_log, gone.ended)"
_HAS_LEFT = f"(gone.ended IN ('left', 'removed') AND {_WITHOUT_LOG} = 'left')"
_BY_LEAVING = "gone.ended IN ('left', 'removed', 'left_or_poll_timeout')"
_MAY_HAVE_LEFT = (
    f"({_HAS_LEFT} OR ({_BY_LEAVING} OR gone.ended = 'left_or_expired') AND {_WITHOUT_LOG} = 'left_or_expired')"
)
_LEAVERS = f"""{_EMPTIED}
SELECT gone.group_id, CASE WHEN {_BY_LEAVING} THEN {_WITHOUT_LOG} ELSE gone.ended END AS ended
FROM memberships AS gone
JOIN emptied ON emptied.group_id = gone.group_id AND emptied.cluster = gone.cluster
  AND gone.left_at >= emptied.started_at - INTERVAL '1 second'
WHERE gone.left_at >= {{since}}
"""
_LAST_OWNERS = f"""{_EMPTIED}
SELECT owned.group_id, owned.topic, owned.partition, owned.member_id, {_HAS_LEFT} AS has_left,
  gone.joined_at, {{classic}}
FROM emptied
JOIN memberships AS gone ON gone.group_id = emptied.group_id AND gone.cluster = emptied.cluster
  AND gone.left_at >= emptied.started_at - INTERVAL '1 second'
JOIN partition_ownership AS owned ON owned.group_id = gone.group_id AND owned.cluster = gone.cluster
  AND owned.member_id = gone.member_id AND owned.owned_until >= emptied.started_at - INTERVAL '1 second'
{{of_members}}
WHERE owned.partition >= 0 AND gone.left_at >= {{since}} AND owned.owned_until >= {{since}}
"""
_CLASSIC = f"""
  CASE WHEN {_MAY_HAVE_LEFT} THEN joined.member['session_timeout_ms'] END AS session_ms,
  CASE WHEN {_MAY_HAVE_LEFT} THEN joined.member['rebalance_timeout_ms'] END AS poll_ms"""
_NOT_CLASSIC = "NULL AS session_ms, NULL AS poll_ms"
# The members of the generation before the group was Empty.
_OF_MEMBERS = """
LEFT JOIN (
  SELECT decoded.group_id, decoded.cluster, unnest(decoded.members) AS member
  FROM group_metadata AS decoded
  JOIN (
    SELECT before.cluster, before.group_id, MAX(before.record_offset) AS newest
    FROM group_metadata AS before
    JOIN emptied ON emptied.group_id = before.group_id AND emptied.cluster = before.cluster
    WHERE before.leader IS NOT NULL AND before.record_offset < emptied.record_offset
    GROUP BY before.cluster, before.group_id
  ) AS last
  ON last.group_id = decoded.group_id AND last.cluster = decoded.cluster AND last.newest = decoded.record_offset
) AS joined
ON joined.group_id = owned.group_id AND joined.cluster = owned.cluster
  AND joined.member['member_id'] = owned.member_id
"""
_PAUSES_COUNTED = 10
_PAUSES = f"""{_EMPTIED}
SELECT group_id, MIN(started_at) AS known_since,
  ARRAY_AGG(seconds) FILTER (WHERE is_pause AND number <= {_PAUSES_COUNTED}) AS seconds
FROM (
  SELECT group_id, started_at, seconds, is_pause,
    ROW_NUMBER() OVER (PARTITION BY group_id, is_pause ORDER BY started_at DESC) AS number
  FROM (
    SELECT past.group_id, past.started_at,
      date_part('epoch', past.ended_at) - date_part('epoch', past.started_at) AS seconds,
      -- A state before a stop ends where it was last seen: how long it lasted is not known.
      past.state = 'Empty' AND past.ended_at > past.started_at AS is_pause
    FROM group_states AS past
    JOIN emptied ON emptied.group_id = past.group_id AND emptied.cluster = past.cluster
      AND emptied.incarnation = past.incarnation
  )
)
GROUP BY group_id
"""
_COMPLETE = f"""{_EMPTIED}
SELECT history.group_id
FROM history_positions AS history
JOIN emptied ON emptied.group_id = history.group_id AND emptied.cluster = history.cluster
WHERE history.processed_to > emptied.record_offset
"""
_FILLED = """
SELECT group_id, MAX(ended_at) AS filled_at FROM group_states
WHERE state = 'Empty' AND ended_at IS NOT NULL AND cluster = {cluster} AND {shard} GROUP BY group_id
"""
_RETURNING = """
SELECT decoded.group_id, MAX(decoded.record_at) AS returning_at
FROM (
  SELECT cluster, group_id, record_offset, record_at FROM group_metadata WHERE leader IS NOT NULL
  UNION ALL
  SELECT cluster, group_id, record_offset, record_at FROM group_records
  WHERE member_id IS NOT NULL AND value_json IS NOT NULL
) AS decoded
JOIN history_positions AS history ON history.group_id = decoded.group_id AND history.cluster = decoded.cluster
WHERE decoded.record_offset >= history.processed_to AND history.cluster = {cluster} AND history.{shard}
GROUP BY decoded.group_id
"""
# More groups are all asked for.
_MOST_NAMED = 500


class GroupStatuses:
    """The states of a shard's groups, read again when a table has changed."""

    def __init__(self, warehouse: Warehouse, shard: Shard = ALL) -> None:
        self._warehouse = warehouse
        self._shard = shard
        self.by_id: Mapping[str, GroupStatus] = {}
        self.owned = NONE_OWNED
        self.last_owners = NO_LAST_OWNERS
        self._versions: dict[str, int] = {}
        self._leavers: list[dict[str, Any]] = []
        self._pauses: list[dict[str, Any]] = []
        self._complete: dict[str, int] = {}

    def refresh(self) -> None:
        """Read the tables if they have changed; without them there are no groups."""
        tables = SqlSnapshot(self._warehouse, (*TABLES, *_DECODED), skips_damaged=False)
        if tables.versions == self._versions or not tables.versions.keys() >= set(TABLES):
            return
        known = {"cluster": datafusion_literal(self._warehouse.cluster), "shard": self._shard.condition_in_sql()}

        def query(text: str, **more: str) -> list[dict[str, Any]]:
            return tables.rows(text.format(**known, **more))

        def arrow(text: str, schema: pa.Schema, **more: str) -> pa.Table:
            _, batches = tables.answer(text.format(**known, **more))
            return pa.Table.from_batches([pa.record_batch(batch).cast(schema) for batch in batches], schema)

        has_decoded = tables.versions.keys() >= set(_DECODED)
        returning = query(_RETURNING) if has_decoded else []
        states = query(_STATES)
        self._read_emptied(states, query, arrow, has_decoded=has_decoded)
        subscriptions, filled = query(_SUBSCRIPTIONS), query(_FILLED)
        now_owned = arrow(owned.OWNED, OWNED_SINCE)
        last = now_owned.group_by("group_id").aggregate([("owned_since", "max")])
        assigned_at = dict(zip(last["group_id"].to_pylist(), last["owned_since_max"].to_pylist(), strict=True))
        has_patterns = has_decoded and any(row["topic_regex"] for row in subscriptions)
        self.by_id = statuses(
            states,
            subscriptions,
            self._leavers,
            filled=filled,
            pauses=self._pauses,
            returning=returning,
            assigned_at=assigned_at,
            resolved=query(_RESOLVED) if has_patterns else (),
        )
        self.owned = now_owned.select(OWNED.names)
        self._versions = tables.versions

    def _read_emptied(
        self,
        states: list[dict[str, Any]],
        query: Callable[..., list[dict[str, Any]]],
        arrow: Callable[..., pa.Table],
        *,
        has_decoded: bool,
    ) -> None:
        """Read how the members of Empty groups left, unless it is known from an earlier call."""
        emptied = {row["group_id"]: row["record_offset"] for row in states if row["state"] == "Empty"}
        kept = {group for group, offset in self._complete.items() if emptied.get(group) == offset}
        new = emptied.keys() - kept
        if not new and len(kept) == len(self._complete):
            return
        self._leavers = [row for row in self._leavers if row["group_id"] in kept]
        self._pauses = [row for row in self._pauses if row["group_id"] in kept]
        is_kept = pc.is_in(self.last_owners["group_id"], pa.array(sorted(kept), pa.string()))
        self.last_owners = self.last_owners.filter(is_kept)
        complete = set()
        if new:
            among = _among(new) if len(new) <= _MOST_NAMED else f"NOT ({_among(kept)})"
            classic, of_members = (_CLASSIC, _OF_MEMBERS) if has_decoded else (_NOT_CLASSIC, "")
            started = (row["started_at"] for row in states if row["group_id"] in new)
            since = datafusion_literal(datetime.fromisoformat(min(started)) - timedelta(seconds=1))
            owners = arrow(
                _LAST_OWNERS, LAST_OWNERS, among=among, since=since, classic=classic, of_members=of_members
            )
            self.last_owners = pa.concat_tables([self.last_owners, owners])
            self._leavers += query(_LEAVERS, among=among, since=since)
            self._pauses += query(_PAUSES, among=among)
            # The history writes its positions after all other tables.
            complete = {row["group_id"] for row in query(_COMPLETE, among=among)} if has_decoded else set()
        self._complete = {group: emptied[group] for group in kept | complete}


def _among(groups: Iterable[str]) -> str:
    """Return the condition (SQL) that a row is of one of these groups."""
    names = ", ".join(map(datafusion_literal, sorted(groups)))
    return f"group_id IN ({names})" if names else "FALSE"
