-- about: >-
--   One client (client id and host, or static member) that recently joined a group repeatedly: a crash loop, slow polls
--   or an unreliable network.
-- parameters:
--   - {name: window, type: interval, about: how far back from now, default: 1 day}
--   - {name: at_least, type: int, about: the minimum number of joins, default: 3}
-- columns:
--   - {name: group_id, type: string, about: the group}
--   - {name: client_id, type: string, about: client.id}
--   - {name: client_host, type: string, about: "the client's address as the broker saw it"}
--   - {name: instance_id, type: string, null_means: a dynamic member, about: group.instance.id}
--   - {name: joins, type: bigint, about: how often it joined}
--   - {name: expired, type: bigint, about: "how often its membership ended because of missing heartbeats or polls, as far as the log shows"}
--   - {name: first_joined_at, type: timestamp, about: the first of these joins}
--   - {name: last_joined_at, type: timestamp, about: the last of them}
--   - {name: shortest_stay_seconds, type: double, null_means: it has not left yet, about: the shortest time between a join and the end of that membership}
-- example: SELECT * FROM flapping_members('1 day', 3) ORDER BY joins DESC
SELECT
  group_id,
  client_id,
  client_host,
  instance_id,
  count(*) AS joins,
  count(
    CASE WHEN ended IN (
      'expired', 'poll_timeout', 'rebalance_timeout', 'left_or_poll_timeout', 'left_or_expired', 'expired_or_removed'
    ) THEN 1 END
  ) AS expired,
  min(joined_at) AS first_joined_at,
  max(joined_at) AS last_joined_at,
  min(:seconds(left_at, joined_at)) AS shortest_stay_seconds
FROM memberships
WHERE cluster = :cluster AND joined_at >= :now - :window AND began <> 'there'
GROUP BY group_id, client_id, client_host, instance_id
HAVING count(*) >= :at_least
