-- about: >-
--   One group that is not as it was at a time: its verdict or its number of members differs, it has rebalanced since, or
--   it is new or was deleted.
-- parameters:
--   - {name: time, type: timestamp, about: the moment that now is compared with}
-- columns:
--   - {name: group_id, type: string, about: the group}
--   - {name: status_then, type: string, null_means: "it was not in the newest round of samples before that time, or this one was over ten minutes older", about: the worst verdict of its partitions then}
--   - {name: status, type: string, null_means: "it is not in the newest round of samples", about: "that of the newest round of samples, as in worst_groups"}
--   - {name: severity_then, type: int, null_means: status_then is null, about: "the verdict's rank, as in worst_groups: 7 is the worst"}
--   - {name: severity, type: int, null_means: status is null, about: that of status}
--   - {name: lag_then, type: bigint, null_means: unknown for every partition, about: "the sum of its partitions' lag then, as far as known"}
--   - {name: lag, type: bigint, null_means: unknown for every partition, about: "the sum of its partitions' lag now, as far as known"}
--   - {name: members_then, type: bigint, null_means: "its history begins later, or has no members", about: how many members it had}
--   - {name: members, type: bigint, null_means: its history has no members, about: how many it has}
--   - {name: rebalances, type: bigint, about: how often it has rebalanced since}
--   - {name: new_at, type: timestamp, null_means: "it was there before, or the topic was read only since then", about: when the first record of it was written}
--   - {name: vanished_at, type: timestamp, null_means: it has not been deleted since, about: when it was deleted or expired}
-- example: SELECT * FROM group_changes('2026-11-21T14:55:00Z') ORDER BY severity DESC, rebalances DESC
WITH samples_then AS (
  SELECT
    group_id, topic, partition, sampled_at, lag, status,
    row_number() OVER (PARTITION BY group_id, topic, partition ORDER BY sampled_at DESC) AS place,
    max(sampled_at) OVER () AS newest_at
  FROM consumer_lag
  WHERE cluster = :cluster AND sampled_at <= :time AND sampled_at > :time - INTERVAL '10 minutes'
),
judged_then AS (
  SELECT
    group_id, status, lag,
    CASE status
      WHEN 'REWIND' THEN 7
      WHEN 'STALL' THEN 6
      WHEN 'STOP' THEN 5
      WHEN 'WARN' THEN 4
      WHEN 'UNKNOWN' THEN 3
      WHEN 'EMPTY' THEN 2
      WHEN 'OK' THEN 1
      ELSE 0
    END AS severity
  FROM samples_then
  WHERE place = 1 AND sampled_at > newest_at - INTERVAL '30 seconds'
),
worst_then AS (
  SELECT
    group_id, status, severity,
    row_number() OVER (PARTITION BY group_id ORDER BY severity DESC, status) AS place,
    sum(lag) OVER (PARTITION BY group_id) AS lag
  FROM judged_then
),
lives AS (
  SELECT
    group_id,
    CASE WHEN joined_at <= :time AND (left_at IS NULL OR left_at > :time) THEN 1 ELSE 0 END AS was_there,
    CASE WHEN left_at IS NULL THEN 1 ELSE 0 END AS is_there,
    -- Who was there when the history began may have been there before.
    CASE WHEN began = 'there' AND joined_at > :time THEN 1 ELSE 0 END AS may_have_been_there
  FROM memberships
  WHERE cluster = :cluster
),
membership AS (
  SELECT
    group_id,
    CASE WHEN max(may_have_been_there) = 0 THEN sum(was_there) END AS members_then,
    sum(is_there) AS members
  FROM lives
  GROUP BY group_id
),
rebalanced AS (
  SELECT group_id, count(*) AS rebalances
  FROM rebalances
  WHERE cluster = :cluster AND at > :time
  GROUP BY group_id
),
records AS (
  SELECT group_id, started_at AS at, FALSE AS is_end FROM generations WHERE cluster = :cluster
  UNION ALL SELECT group_id, coalesce(not_before, started_at), state = 'Dead' FROM group_states WHERE cluster = :cluster
  -- A rebalance also says when the one before it was, of which retention may have removed the row.
  UNION ALL SELECT group_id, coalesce(previous_at, at), FALSE FROM rebalances WHERE cluster = :cluster
  UNION ALL SELECT group_id, record_at, is_tombstone FROM offset_commits WHERE cluster = :cluster
),
first_records AS (
  SELECT group_id, min(at) AS at, min(CASE WHEN is_end THEN at END) AS ended_at
  FROM records
  GROUP BY group_id
),
-- Compaction leaves the newest records of a group: what is new is known only of the time since the topic has been read.
reading AS (
  SELECT min(landed_at) AS began_at
  FROM ingest_progress
  WHERE cluster = :cluster
),
new AS (
  SELECT first_records.group_id, first_records.at
  FROM first_records
  CROSS JOIN reading
  WHERE first_records.at > :time
    AND reading.began_at <= :time
    -- What is deleted first was there before.
    AND (first_records.ended_at IS NULL OR first_records.ended_at > first_records.at)
),
vanished AS (
  SELECT group_id, vanished_at
  FROM vanished_groups()
  WHERE vanished_at > :time
),
-- Each part is computed once: joined to a list of all groups, it would be read for the list, too.
parts AS (
  SELECT
    group_id, status AS status_then, CAST(severity AS INT) AS severity_then, lag AS lag_then,
    NULL AS status, NULL AS severity, NULL AS lag, NULL AS members_then, NULL AS members,
    NULL AS rebalances, NULL AS new_at, NULL AS vanished_at
  FROM worst_then
  WHERE place = 1
  UNION ALL SELECT group_id, NULL, NULL, NULL, status, severity, lag, NULL, NULL, NULL, NULL, NULL FROM worst_groups()
  UNION ALL SELECT group_id, NULL, NULL, NULL, NULL, NULL, NULL, members_then, members, NULL, NULL, NULL FROM membership
  UNION ALL SELECT group_id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, rebalances, NULL, NULL FROM rebalanced
  UNION ALL SELECT group_id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, at, NULL FROM new
  UNION ALL SELECT group_id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, vanished_at FROM vanished
),
compared AS (
  SELECT
    group_id,
    max(status_then) AS status_then,
    max(status) AS status,
    max(severity_then) AS severity_then,
    max(severity) AS severity,
    max(lag_then) AS lag_then,
    max(lag) AS lag,
    CASE WHEN max(new_at) IS NULL THEN max(members_then) ELSE 0 END AS members_then,
    max(members) AS members,
    coalesce(max(rebalances), 0) AS rebalances,
    max(new_at) AS new_at,
    max(vanished_at) AS vanished_at
  FROM parts
  GROUP BY group_id
)
SELECT *
FROM compared
WHERE new_at IS NOT NULL
  OR vanished_at IS NOT NULL
  OR rebalances > 0
  OR coalesce(members_then <> members, FALSE)
  OR coalesce(status_then <> status, FALSE)
