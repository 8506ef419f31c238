-- about: One static member (group.instance.id) of a group, in its latest state, with the number of its member ids.
-- columns:
--   - {name: group_id, type: string, about: the group}
--   - {name: instance_id, type: string, about: group.instance.id}
--   - {name: member_id, type: string, about: its newest member id}
--   - {name: client_id, type: string, about: client.id}
--   - {name: client_host, type: string, about: "the client's address as the broker saw it"}
--   - {name: joined_at, type: timestamp, about: when it got that member id}
--   - {name: left_at, type: timestamp, null_means: it is still a member, about: when it left}
--   - {name: ended, type: string, null_means: it is still a member, about: "how it left, as in memberships"}
--   - {name: member_ids, type: bigint, about: "how many member ids it has had: one for each start of its client"}
-- example: SELECT * FROM static_members ORDER BY group_id, instance_id
WITH numbered AS (
  SELECT
    group_id,
    instance_id,
    member_id,
    client_id,
    client_host,
    joined_at,
    left_at,
    ended,
    row_number() OVER (PARTITION BY group_id, instance_id ORDER BY joined_at DESC, record_offset DESC) AS place,
    count(*) OVER (PARTITION BY group_id, instance_id) AS member_ids
  FROM memberships
  WHERE cluster = :cluster AND instance_id IS NOT NULL
)
SELECT group_id, instance_id, member_id, client_id, client_host, joined_at, left_at, ended, member_ids
FROM numbered
WHERE place = 1
