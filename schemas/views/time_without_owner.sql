-- about: >-
--   One partition of a group that recently had no owner for some time: between two owners, or since the last one. In a
--   classic group the end of an ownership is the latest possible time, so the durations are lower bounds.
-- parameters:
--   - {name: window, type: interval, about: "how far back from now: gaps that ended in the window or are still open", default: 1 day}
-- columns:
--   - {name: group_id, type: string, about: the group}
--   - {name: topic, type: string, about: the topic}
--   - {name: partition, type: int, about: its partition}
--   - {name: gaps, type: bigint, about: "how often it had no owner, including now"}
--   - {name: seconds_without_owner, type: double, about: "the total duration of these gaps, up to now"}
--   - {name: longest_seconds, type: double, about: the longest gap}
--   - {name: without_owner_since, type: timestamp, null_means: it has an owner, about: when its last ownership ended}
-- example: SELECT * FROM time_without_owner('1 day') ORDER BY seconds_without_owner DESC
WITH owned AS (
  SELECT
    group_id,
    topic,
    partition,
    owned_from,
    max(coalesce(owned_until, :now)) OVER (
      PARTITION BY group_id, topic, partition ORDER BY owned_from, record_offset
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS free_from
  FROM partition_ownership
  WHERE cluster = :cluster
),
given_up AS (
  SELECT group_id, topic, partition, max(owned_until) AS free_from
  FROM partition_ownership
  WHERE cluster = :cluster
  GROUP BY group_id, topic, partition
  HAVING count(owned_until) = count(*)
),
gaps AS (
  SELECT group_id, topic, partition, free_from, owned_from AS free_until, FALSE AS is_open
  FROM owned
  WHERE owned_from > free_from AND owned_from >= :now - :window
  UNION ALL
  SELECT group_id, topic, partition, free_from, :now AS free_until, TRUE AS is_open
  FROM given_up
)
SELECT
  group_id,
  topic,
  partition,
  count(*) AS gaps,
  sum(:seconds(free_until, free_from)) AS seconds_without_owner,
  max(:seconds(free_until, free_from)) AS longest_seconds,
  max(CASE WHEN is_open THEN free_from END) AS without_owner_since
FROM gaps
GROUP BY group_id, topic, partition
