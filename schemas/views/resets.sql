-- about: >-
--   One recent commit that moved a group's committed offset back (rewind), or changed it while the group had no members
--   (jump): only an administrator, or a client that assigns itself partitions, commits then.
-- parameters:
--   - {name: window, type: interval, about: how far back from now, default: 1 day}
-- columns:
--   - {name: group_id, type: string, about: the group}
--   - {name: topic, type: string, about: the topic}
--   - {name: partition, type: int, about: its partition}
--   - {name: at, type: timestamp, about: the timestamp of the commit's record}
--   - {name: kind, type: string, about: rewind or jump}
--   - {name: before_offset, type: bigint, null_means: "no commit before it in the window", about: the previous offset}
--   - {name: after_offset, type: bigint, about: the new offset}
--   - {name: moved_by, type: bigint, null_means: "no commit before it in the window", about: "the difference in offsets; if negative, records are read again"}
--   - {name: owner_member_id, type: string, null_means: "no member: an administrator, or a client that assigns itself partitions", about: the member that owned the partition at that time}
--   - {name: owner_client_id, type: string, null_means: as owner_member_id, about: its client.id}
--   - {name: group_state, type: string, null_means: not in the history, about: "the group's state at that time"}
--   - {name: metadata, type: string, about: the commit metadata of the client}
-- example: SELECT * FROM resets('7 days') ORDER BY at DESC
WITH moves AS (
  SELECT
    group_id,
    topic,
    partition,
    record_at AS at,
    record_offset,
    committed_offset,
    metadata,
    lag(committed_offset) OVER (PARTITION BY group_id, topic, partition ORDER BY record_offset) AS before_offset
  FROM offset_commits
  WHERE cluster = :cluster AND record_at >= :now - :window
),
states AS (
  SELECT group_id, state, started_at, ended_at
  FROM group_states
  WHERE cluster = :cluster AND (ended_at IS NULL OR ended_at >= :now - :window)
),
suspects AS (
  SELECT
    moves.*,
    empty.state AS empty_state,
    empty.started_at AS empty_from
  FROM moves
  LEFT JOIN states AS empty
    ON empty.state IN ('Empty', 'Dead') AND empty.group_id = moves.group_id AND moves.at >= empty.started_at
    AND (empty.ended_at IS NULL OR moves.at < empty.ended_at)
  WHERE moves.committed_offset IS NOT NULL
    AND (
      moves.committed_offset < moves.before_offset
      OR (empty.state IS NOT NULL
        AND (moves.before_offset IS NULL OR moves.committed_offset > moves.before_offset))
    )
),
labelled AS (
  SELECT
    suspects.*,
    owned.member_id,
    owned.client_id,
    coalesce(suspects.empty_state, state_then.state) AS group_state,
    row_number() OVER (
      PARTITION BY suspects.group_id, suspects.record_offset
      ORDER BY suspects.empty_from DESC, owned.owned_from DESC, owned.member_id, state_then.started_at DESC
    ) AS place
  FROM suspects
  LEFT JOIN partition_ownership AS owned
    ON owned.cluster = :cluster AND owned.group_id = suspects.group_id AND owned.topic = suspects.topic
    AND owned.partition = suspects.partition AND owned.owned_from <= suspects.at
    AND (owned.owned_until IS NULL OR (owned.owned_until >= :now - :window AND suspects.at < owned.owned_until))
  LEFT JOIN states AS state_then
    ON state_then.group_id = suspects.group_id AND state_then.started_at <= suspects.at
    AND (state_then.ended_at IS NULL OR suspects.at < state_then.ended_at)
)
SELECT
  group_id,
  topic,
  partition,
  at,
  CASE WHEN committed_offset < before_offset THEN 'rewind' ELSE 'jump' END AS kind,
  before_offset,
  committed_offset AS after_offset,
  committed_offset - before_offset AS moved_by,
  member_id AS owner_member_id,
  client_id AS owner_client_id,
  group_state,
  metadata
FROM labelled
WHERE place = 1
