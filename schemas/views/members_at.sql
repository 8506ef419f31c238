-- about: One member that a group had at a time.
-- parameters:
--   - {name: group, type: string, about: the group}
--   - {name: time, type: timestamp, about: the moment}
-- example: SELECT * FROM members_at('billing', now()) ORDER BY joined_at
SELECT member_id, instance_id, client_id, client_host, joined_at, joined_generation, left_at, began
FROM memberships
WHERE cluster = :cluster AND group_id = :group
  AND joined_at <= :time AND (left_at IS NULL OR :time < left_at)
