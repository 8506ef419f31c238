-- about: >-
--   One rebalance storm of a group: consecutive rebalances with more than a given number in each window. `main_cause` is
--   their most frequent cause.
-- parameters:
--   - {name: window, type: interval, about: the length of the window}
--   - {name: more_than, type: int, about: the highest number of rebalances in a window that is not a storm, default: 3}
-- columns:
--   - {name: group_id, type: string, about: the group}
--   - {name: began_at, type: timestamp, about: its first rebalance}
--   - {name: ended_at, type: timestamp, about: its last rebalance}
--   - {name: rebalances, type: bigint, about: how many}
--   - {name: main_cause, type: string, about: "their most frequent cause, as in rebalances"}
--   - {name: main_cause_rebalances, type: bigint, about: how many had it}
-- example: SELECT * FROM rebalance_storms('10 minutes') ORDER BY rebalances DESC
WITH placed AS (
  SELECT group_id, at, row_number() OVER (PARTITION BY group_id ORDER BY at, record_offset) AS place
  FROM rebalances
  WHERE cluster = :cluster
),
counted AS (
  SELECT later.group_id, later.at
  FROM placed AS later
  JOIN placed AS earlier
    ON earlier.group_id = later.group_id AND earlier.place + :more_than = later.place
    AND earlier.at >= later.at - :window
),
crowded AS (
  SELECT group_id, at, lag(at) OVER (PARTITION BY group_id ORDER BY at) AS crowded_before
  FROM counted
),
numbered AS (
  SELECT
    group_id,
    at,
    sum(CASE WHEN crowded_before >= at - :window THEN 0 ELSE 1 END) OVER (PARTITION BY group_id ORDER BY at) AS storm
  FROM crowded
),
storms AS (
  SELECT group_id, storm, min(at) - :window AS not_before, max(at) AS ended_at
  FROM numbered
  GROUP BY group_id, storm
),
causes AS (
  SELECT storms.group_id, storms.storm, rebalances.cause, count(*) AS times, min(rebalances.at) AS first_at
  FROM storms
  JOIN rebalances
    ON rebalances.cluster = :cluster AND rebalances.group_id = storms.group_id
    AND rebalances.at >= storms.not_before AND rebalances.at <= storms.ended_at
  GROUP BY storms.group_id, storms.storm, rebalances.cause
),
ranked AS (
  SELECT
    group_id,
    storm,
    cause,
    times,
    min(first_at) OVER (PARTITION BY group_id, storm) AS began_at,
    sum(times) OVER (PARTITION BY group_id, storm) AS rebalances,
    row_number() OVER (PARTITION BY group_id, storm ORDER BY times DESC, cause) AS place
  FROM causes
)
SELECT
  ranked.group_id,
  ranked.began_at,
  storms.ended_at,
  CAST(ranked.rebalances AS BIGINT) AS rebalances,
  ranked.cause AS main_cause,
  ranked.times AS main_cause_rebalances
FROM ranked
JOIN storms ON storms.group_id = ranked.group_id AND storms.storm = ranked.storm
WHERE ranked.place = 1
