-- about: One member that a group had at a time.
-- parameters:
--   - {name: group, type: string, about: the group}
--   - {name: time, type: timestamp, about: the moment}
-- columns:
--   - {name: member_id, type: string, about: the member id}
--   - {name: instance_id, type: string, null_means: a dynamic member, about: group.instance.id}
--   - {name: client_id, type: string, about: client.id}
--   - {name: client_host, type: string, about: "the client's address as the broker saw it"}
--   - {name: joined_at, type: timestamp, about: the first record that names it}
--   - {name: joined_generation, type: int, about: the generation or epoch of that record}
--   - {name: left_at, type: timestamp, null_means: it is still a member, about: the first record without it}
--   - {name: began, type: string, about: "joined, rejoined, replaced, converted or there, as in memberships"}
-- example: SELECT * FROM members_at('billing', now()) ORDER BY joined_at
SELECT member_id, instance_id, client_id, client_host, joined_at, joined_generation, left_at, began
FROM memberships
WHERE cluster = :cluster AND group_id = :group
  AND joined_at <= :time AND (left_at IS NULL OR :time < left_at)
