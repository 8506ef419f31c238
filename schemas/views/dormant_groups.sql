-- about: >-
--   One group that still has offsets but has not committed for a while: it was stopped or forgotten, or has nothing to
--   read. Deleted groups are omitted.
-- parameters:
--   - {name: window, type: interval, about: the time without a commit, default: 1 day}
-- columns:
--   - {name: group_id, type: string, about: the group}
--   - {name: last_commit_at, type: timestamp, about: its newest commit}
--   - {name: partitions, type: bigint, about: the number of partitions with a committed offset}
--   - {name: state, type: string, null_means: not in the history, about: "its state now, as in group_states"}
--   - {name: in_state_since, type: timestamp, null_means: not in the history, about: when that state began}
-- example: SELECT * FROM dormant_groups('7 days') ORDER BY last_commit_at
WITH quiet AS (
  SELECT group_id, max(coalesce(commit_at, record_at)) AS last_commit_at, count(*) AS partitions
  FROM committed_offsets
  WHERE cluster = :cluster
  GROUP BY group_id
  HAVING max(coalesce(commit_at, record_at)) < :now - :window
),
states AS (
  SELECT
    group_id,
    state,
    started_at,
    row_number() OVER (PARTITION BY group_id ORDER BY record_offset DESC, started_at DESC) AS place
  FROM group_states
  WHERE cluster = :cluster AND ended_at IS NULL
)
SELECT
  quiet.group_id,
  quiet.last_commit_at,
  quiet.partitions,
  -- A group that committed after it was deleted exists again, although commits alone write no state.
  nullif(states.state, 'Dead') AS state,
  CASE WHEN states.state <> 'Dead' THEN states.started_at END AS in_state_since
FROM quiet
LEFT JOIN states ON states.group_id = quiet.group_id AND states.place = 1
WHERE states.state IS NULL OR states.state <> 'Dead' OR states.started_at < quiet.last_commit_at
