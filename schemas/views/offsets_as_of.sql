-- about: >-
--   One partition in which a group had an offset at a time, and that offset. `grouptrail sql --format reset-offsets`
--   writes them as kafka-consumer-groups --reset-offsets --from-file takes them.
-- parameters:
--   - {name: group, type: string, about: the group}
--   - {name: time, type: timestamp, about: the moment}
-- columns:
--   - {name: topic, type: string, about: the topic}
--   - {name: partition, type: int, about: its partition}
--   - {name: committed_offset, type: bigint, about: the next offset to consume}
--   - {name: committed_at, type: timestamp, about: when that was committed}
--   - {name: leader_epoch, type: int, null_means: unknown, about: leader epoch of the last consumed record}
--   - {name: metadata, type: string, about: the commit metadata of the client}
-- example: SELECT * FROM offsets_as_of('billing', '2026-11-21T14:55:00Z') ORDER BY topic, partition
WITH numbered AS (
  SELECT
    topic,
    partition,
    committed_offset,
    record_at,
    leader_epoch,
    metadata,
    is_tombstone,
    row_number() OVER (PARTITION BY topic, partition ORDER BY record_offset DESC) AS place
  FROM offset_commits
  WHERE cluster = :cluster AND group_id = :group AND record_at <= :time
)
SELECT topic, partition, committed_offset, record_at AS committed_at, leader_epoch, metadata
FROM numbered
WHERE place = 1 AND NOT is_tombstone
