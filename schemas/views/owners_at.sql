-- about: One partition of a group that had an owner at a time, with that owner.
-- parameters:
--   - {name: group, type: string, about: the group}
--   - {name: time, type: timestamp, about: the moment}
-- columns:
--   - {name: topic, type: string, about: the topic}
--   - {name: partition, type: int, about: its partition}
--   - {name: member_id, type: string, about: the owner}
--   - {name: instance_id, type: string, null_means: a dynamic member, about: group.instance.id of the owner}
--   - {name: client_id, type: string, about: client.id of the owner}
--   - {name: client_host, type: string, null_means: not known, about: "the owner's address as the broker saw it"}
--   - {name: generation, type: int, null_means: not known, about: the generation or epoch at that time}
--   - {name: owned_from, type: timestamp, about: when its ownership began}
--   - {name: owned_until, type: timestamp, null_means: still owned, about: when its ownership ended}
-- example: SELECT * FROM owners_at('billing', '2026-11-21T14:55:00Z') ORDER BY topic, partition
WITH generation_then AS (
  SELECT max(generation) AS generation
  FROM generations
  WHERE cluster = :cluster AND group_id = :group AND started_at <= :time AND (ended_at IS NULL OR :time < ended_at)
)
SELECT
  owned.topic,
  owned.partition,
  owned.member_id,
  owned.instance_id,
  owned.client_id,
  member.client_host,
  generation_then.generation,
  owned.owned_from,
  owned.owned_until
FROM partition_ownership AS owned
CROSS JOIN generation_then
LEFT JOIN memberships AS member
  ON member.cluster = :cluster AND member.group_id = :group AND member.member_id = owned.member_id
  AND member.joined_at <= :time AND (member.left_at IS NULL OR :time < member.left_at)
WHERE owned.cluster = :cluster AND owned.group_id = :group
  AND owned.owned_from <= :time AND (owned.owned_until IS NULL OR :time < owned.owned_until)
