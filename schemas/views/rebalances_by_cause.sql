-- about: How many rebalances of one cause a group had on a day (UTC).
-- parameters:
--   - {name: day, type: date, about: the day}
-- columns:
--   - {name: group_id, type: string, about: the group}
--   - {name: cause, type: string, about: as in rebalances}
--   - {name: rebalances, type: bigint, about: how many}
-- example: SELECT * FROM rebalances_by_cause('2026-11-21') ORDER BY rebalances DESC
SELECT group_id, cause, count(*) AS rebalances
FROM rebalances
WHERE cluster = :cluster AND at >= :day AND at < :day + INTERVAL '1 day'
GROUP BY group_id, cause
