"""The partitions that members of consumer groups own, as SQL; Connect's and Streams' tasks are no partitions."""

from __future__ import annotations

TABLES = ("partition_ownership", "generations")
"""The tables that the query reads."""
OWNED = """
SELECT owned.group_id, owned.topic, owned.partition,
  MAX(CASE WHEN now.started_at > owned.owned_from THEN now.started_at ELSE owned.owned_from END) AS owned_since
FROM partition_ownership AS owned
JOIN generations AS now ON now.group_id = owned.group_id AND now.cluster = owned.cluster
WHERE owned.is_open AND owned.owned_until IS NULL AND owned.cluster = {cluster} AND owned.{shard}
  AND owned.partition >= 0
  AND COALESCE(now.protocol_type, '') IN ('', 'consumer')
  AND now.is_open AND now.ended_at IS NULL AND now.group_kind IN ('classic', 'consumer')
GROUP BY owned.group_id, owned.topic, owned.partition
"""
"""`cluster`: a literal; `shard`: a condition that begins with the column record_partition.

`owned_since`: when the group last assigned the partition.
"""
