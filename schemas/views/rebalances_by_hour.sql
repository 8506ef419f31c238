-- about: How many rebalances of one cause a group had in an hour of a day (UTC), and how many partitions they moved.
-- parameters:
--   - {name: day, type: date, about: the day}
-- columns:
--   - {name: hour, type: timestamp, about: the start of the hour}
--   - {name: group_id, type: string, about: the group}
--   - {name: cause, type: string, about: as in rebalances}
--   - {name: rebalances, type: bigint, about: how many}
--   - {name: partitions_moved, type: bigint, about: "partitions that went to another member in them"}
-- example: SELECT * FROM rebalances_by_hour('2026-11-21') ORDER BY hour, rebalances DESC
SELECT
  date_trunc('hour', at) AS hour,
  group_id,
  cause,
  count(*) AS rebalances,
  sum(partitions_moved) AS partitions_moved
FROM rebalances
WHERE cluster = :cluster AND at >= :day AND at < :day + INTERVAL '1 day'
GROUP BY date_trunc('hour', at), group_id, cause
