-- about: One partition of a group that had an owner at a time, and who that was.
-- parameters:
--   - {name: group, type: string, about: the group}
--   - {name: time, type: timestamp, about: the moment}
-- example: SELECT * FROM owners_at('billing', '2026-11-21T14:55:00Z') ORDER BY topic, partition
SELECT
  owned.topic,
  owned.partition,
  owned.member_id,
  owned.instance_id,
  owned.client_id,
  member.client_host,
  (
    SELECT max(generation)
    FROM generations
    WHERE cluster = :cluster AND group_id = :group AND started_at <= :time AND (ended_at IS NULL OR :time < ended_at)
  ) AS generation,
  owned.owned_from,
  owned.owned_until
FROM partition_ownership AS owned
LEFT JOIN memberships AS member
  ON member.cluster = :cluster AND member.group_id = :group AND member.member_id = owned.member_id
  AND member.joined_at <= :time AND (member.left_at IS NULL OR :time < member.left_at)
WHERE owned.cluster = :cluster AND owned.group_id = :group
  AND owned.owned_from <= :time AND (owned.owned_until IS NULL OR :time < owned.owned_until)
