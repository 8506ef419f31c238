-- about: >-
--   One event of a group (rebalance, generation, member joined or left, state); `step` numbers them in
--   time order.
-- parameters:
--   - {name: group, type: string, about: the group}
-- columns:
--   - {name: step, type: bigint, about: "the event's number in the group's history"}
--   - {name: at, type: timestamp, about: when it happened}
--   - {name: event, type: string, about: "rebalance, generation, member joined, member left or state"}
--   - {name: generation, type: int, null_means: the group has none, about: the generation or epoch at that time}
--   - {name: what, type: string, about: "what happened, in words"}
-- example: SELECT * FROM group_timeline('billing') WHERE at >= '2026-11-21T14:55:00Z' ORDER BY step
WITH events AS (
  SELECT
    at,
    1 AS place,
    'rebalance' AS event,
    to_generation AS generation,
    ended_at,
    cause || ' (' || certainty || ')' || coalesce(': ' || cause_note, '')
      || '; ' || CAST(partitions_moved AS STRING) || ' partitions moved, '
      || CAST(partitions_kept AS STRING) || ' kept' AS what
  FROM rebalances
  WHERE cluster = :cluster AND group_id = :group
  UNION ALL
  SELECT
    started_at,
    2,
    'generation',
    generation,
    ended_at,
    group_kind || coalesce(', ' || protocol, '') || ', ' || coalesce(CAST(member_count AS STRING), 'unknown') || ' members, '
      || coalesce(CAST(partition_count AS STRING), 'unknown') || ' partitions'
      || coalesce('; ' || assignment_note, '')
  FROM generations
  WHERE cluster = :cluster AND group_id = :group
  UNION ALL
  SELECT
    joined_at,
    3,
    'member joined',
    joined_generation,
    left_at,
    member_id || coalesce(' (instance ' || instance_id || ')', '') || ' from ' || client_host || ': ' || began
  FROM memberships
  WHERE cluster = :cluster AND group_id = :group
  UNION ALL
  SELECT
    left_at AS at,
    4,
    'member left',
    left_generation,
    left_at AS ended_at,
    member_id || coalesce(' (instance ' || instance_id || ')', '') || ': ' || coalesce(ended, 'unknown')
      || coalesce(', ' || ended_because, '')
  FROM memberships
  WHERE cluster = :cluster AND group_id = :group AND left_at IS NOT NULL
  UNION ALL
  SELECT
    started_at,
    5,
    'state',
    generation,
    ended_at,
    state || ' (' || evidence || ')' || coalesce('; ' || note, '')
  FROM group_states
  WHERE cluster = :cluster AND group_id = :group
)
SELECT
  CAST(row_number() OVER (ORDER BY at, generation NULLS LAST, place, ended_at NULLS LAST, what) AS BIGINT) AS step,
  at,
  event,
  generation,
  what
FROM events
