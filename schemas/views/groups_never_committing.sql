-- about: >-
--   One group that has members and consumes, but without any decoded commit: its offsets are stored elsewhere, or
--   it starts from scratch each time. Share groups, and classic groups that do not consume, such as those of Connect's workers and of
--   Schema Registry, never commit and are excluded.
-- columns:
--   - {name: group_id, type: string, about: the group}
--   - {name: group_kind, type: string, about: "classic, consumer or streams"}
--   - {name: member_count, type: int, about: how many members it has}
--   - {name: partition_count, type: int, null_means: not known for every member, about: how many partitions are assigned}
--   - {name: seen_since, type: timestamp, about: its first generation}
--   - {name: generation, type: int, about: its present generation or epoch}
-- example: SELECT * FROM groups_never_committing ORDER BY member_count DESC
WITH committing AS (
  SELECT DISTINCT group_id FROM offset_commits WHERE cluster = :cluster
),
first_seen AS (
  SELECT group_id, min(started_at) AS seen_since FROM generations WHERE cluster = :cluster GROUP BY group_id
)
SELECT
  present.group_id,
  present.group_kind,
  present.member_count,
  present.partition_count,
  first_seen.seen_since,
  present.generation
FROM generations AS present
JOIN first_seen ON first_seen.group_id = present.group_id
LEFT JOIN committing ON committing.group_id = present.group_id
WHERE present.cluster = :cluster AND present.ended_at IS NULL AND present.member_count > 0
  AND present.group_kind <> 'share' AND committing.group_id IS NULL
  AND (present.group_kind <> 'classic' OR present.protocol_type IN ('', 'consumer'))
