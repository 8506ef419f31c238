"""The state, subscriptions and owned partitions of groups, read from the history tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from grouptrail.lag.group_status import NONE_OWNED, OWNED, GroupStatus, statuses
from grouptrail.lag.shard import ALL, Shard
from grouptrail.query.warehouse import Warehouse
from grouptrail.storage.sql import datafusion_literal

if TYPE_CHECKING:
    from grouptrail.config import Config

TABLES = ("group_states", "generations", "memberships", "partition_ownership")
# Each is created by the job that writes it: if it exists, that job has run.
_DECODED = ("group_metadata", "group_records", "history_positions")

_STATES = """
SELECT group_id, state, started_at, record_partition FROM group_states
WHERE is_open AND ended_at IS NULL AND cluster = {cluster} AND {shard}
"""
_SUBSCRIPTIONS = """
SELECT group_id, member['topics'] AS topics, member['topic_regex'] AS topic_regex
FROM (
  SELECT group_id, unnest(members) AS member FROM generations
  WHERE is_open AND ended_at IS NULL AND cluster = {cluster} AND {shard}
)
"""
_LEAVERS = """
SELECT gone.group_id, gone.ended
FROM memberships AS gone
JOIN group_states AS emptied
  ON emptied.group_id = gone.group_id AND emptied.cluster = gone.cluster
  AND gone.left_at >= emptied.started_at - INTERVAL '1 second'
WHERE gone.cluster = {cluster} AND gone.{shard}
  AND emptied.is_open AND emptied.ended_at IS NULL AND emptied.state = 'Empty'
"""
_FILLED = """
SELECT group_id, MAX(ended_at) AS filled_at FROM group_states
WHERE state = 'Empty' AND ended_at IS NOT NULL AND cluster = {cluster} AND {shard} GROUP BY group_id
"""
_RETURNING = """
SELECT DISTINCT decoded.group_id
FROM (
  SELECT cluster, group_id, record_offset FROM group_metadata WHERE leader IS NOT NULL
  UNION ALL
  SELECT cluster, group_id, record_offset FROM group_records WHERE member_id IS NOT NULL AND value_json IS NOT NULL
) AS decoded
JOIN history_positions AS history ON history.group_id = decoded.group_id AND history.cluster = decoded.cluster
WHERE decoded.record_offset >= history.told_to AND history.cluster = {cluster} AND history.{shard}
"""
_OWNED = """
SELECT DISTINCT owned.group_id, owned.topic, owned.partition
FROM partition_ownership AS owned
JOIN generations AS now ON now.group_id = owned.group_id AND now.cluster = owned.cluster
WHERE owned.is_open AND owned.owned_until IS NULL AND owned.cluster = {cluster} AND owned.{shard}
  AND owned.partition >= 0
  AND COALESCE(now.protocol_type, '') IN ('', 'consumer')
  AND now.is_open AND now.ended_at IS NULL AND now.group_kind IN ('classic', 'consumer')
"""


class GroupStatuses:
    """The states of a shard's groups, read again when a table has changed."""

    def __init__(self, config: Config, shard: Shard = ALL) -> None:
        self._config = config
        self._shard = shard
        self.by_id: Mapping[str, GroupStatus] = {}
        self.owned = NONE_OWNED
        self._versions: dict[str, int] = {}

    def refresh(self) -> None:
        """Read the tables if they have changed; without them there are no groups."""
        warehouse = Warehouse(self._config, (*TABLES, *_DECODED))
        if warehouse.versions == self._versions or not warehouse.versions.keys() >= set(TABLES):
            return
        known = {"cluster": datafusion_literal(self._config.cluster), "shard": self._shard.condition_in_sql()}

        def query(text: str) -> list[dict[str, Any]]:
            return warehouse.rows(text.format(**known))

        returning = query(_RETURNING) if warehouse.versions.keys() >= set(_DECODED) else []
        self.by_id = statuses(query(_STATES), query(_SUBSCRIPTIONS), query(_LEAVERS), query(_FILLED), returning)
        _, owned = warehouse.answer(_OWNED.format(**known))
        self.owned = pa.Table.from_batches([pa.record_batch(batch).cast(OWNED) for batch in owned], OWNED)
        self._versions = warehouse.versions
