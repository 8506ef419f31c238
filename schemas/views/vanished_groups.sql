-- about: One group that was deleted or has expired, and has not been re-created.
-- columns:
--   - {name: group_id, type: string, about: the group}
--   - {name: vanished_at, type: timestamp, about: when its tombstone was written}
--   - {name: note, type: string, null_means: nothing to add, about: "deleted or expired, as far as known"}
--   - {name: last_member_at, type: timestamp, null_means: none is known, about: when its last member left}
--   - {name: last_generation, type: int, null_means: none is known, about: its last generation or epoch}
-- example: SELECT * FROM vanished_groups ORDER BY vanished_at DESC
WITH newest AS (
  SELECT
    group_id,
    incarnation,
    state,
    started_at,
    note,
    row_number() OVER (PARTITION BY group_id ORDER BY incarnation DESC, record_offset DESC, started_at DESC) AS place
  FROM group_states
  WHERE cluster = :cluster
),
gone AS (
  SELECT group_id, incarnation, started_at AS vanished_at, note
  FROM newest
  WHERE place = 1 AND state = 'Dead'
),
last_generations AS (
  SELECT group_id, incarnation, max(generation) AS generation
  FROM generations
  WHERE cluster = :cluster
  GROUP BY group_id, incarnation
),
last_members AS (
  SELECT group_id, incarnation, max(left_at) AS left_at
  FROM memberships
  WHERE cluster = :cluster
  GROUP BY group_id, incarnation
)
SELECT
  gone.group_id,
  gone.vanished_at,
  gone.note,
  last_members.left_at AS last_member_at,
  last_generations.generation AS last_generation
FROM gone
LEFT JOIN last_members
  ON last_members.group_id = gone.group_id AND last_members.incarnation = gone.incarnation
LEFT JOIN last_generations
  ON last_generations.group_id = gone.group_id AND last_generations.incarnation = gone.incarnation
