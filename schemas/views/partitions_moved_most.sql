-- about: One partition of a group whose owner changed recently, and how often.
-- parameters:
--   - {name: window, type: interval, about: how far back from now, default: 1 day}
-- columns:
--   - {name: group_id, type: string, about: the group}
--   - {name: topic, type: string, about: the topic}
--   - {name: partition, type: int, about: its partition}
--   - {name: moves, type: bigint, about: how often a different member became its owner}
--   - {name: owners, type: bigint, about: how many members had it}
--   - {name: last_moved_at, type: timestamp, about: when it moved last}
-- example: SELECT * FROM partitions_moved_most('1 day') ORDER BY moves DESC LIMIT 20
WITH owned AS (
  SELECT
    group_id,
    topic,
    partition,
    member_id,
    owned_from,
    lag(member_id) OVER (PARTITION BY group_id, topic, partition ORDER BY owned_from, record_offset) AS member_before
  FROM partition_ownership
  WHERE cluster = :cluster AND (owned_until IS NULL OR owned_until >= :now - :window)
)
SELECT
  group_id,
  topic,
  partition,
  count(CASE WHEN member_before <> member_id THEN 1 END) AS moves,
  count(DISTINCT member_id) AS owners,
  max(CASE WHEN member_before <> member_id THEN owned_from END) AS last_moved_at
FROM owned
GROUP BY group_id, topic, partition
HAVING count(CASE WHEN member_before <> member_id THEN 1 END) > 0
