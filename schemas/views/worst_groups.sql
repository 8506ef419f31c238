-- about: >-
--   One group in the newest round of samples, with the verdict of its worst partition. From worst to best: REWIND
--   (records are read again), STALL (the committed offset does not advance), STOP (no commits), WARN (falls behind), UNKNOWN
--   (no lag to judge), EMPTY, OK, UNCOMMITTED (no commit yet), UNSUBSCRIBED; `severity` is 7 to 0, which the last two share.
-- columns:
--   - {name: group_id, type: string, about: the group}
--   - {name: status, type: string, about: the worst of its partitions' verdicts}
--   - {name: severity, type: int, about: "the verdict's rank in that order: 7 is the worst"}
--   - {name: topic, type: string, about: "the topic of the partition with that verdict; of several partitions, the one with the most lag"}
--   - {name: partition, type: int, about: that partition}
--   - {name: status_reason, type: string, about: the rule that gave this status and its figures}
--   - {name: partitions_with_it, type: bigint, about: how many of its partitions have that verdict}
--   - {name: partitions, type: bigint, about: how many partitions it has}
--   - {name: lag, type: bigint, null_means: unknown for every partition, about: "the sum of its partitions' lag, as far as known"}
--   - {name: max_lag_seconds, type: double, null_means: unknown for every partition, about: "the highest lag_seconds of its partitions"}
--   - {name: sampled_at, type: timestamp, about: the newest of its samples}
-- example: SELECT * FROM worst_groups ORDER BY severity DESC, lag DESC LIMIT 20
WITH judged AS (
  SELECT
    *,
    CASE status
      WHEN 'REWIND' THEN 7
      WHEN 'STALL' THEN 6
      WHEN 'STOP' THEN 5
      WHEN 'WARN' THEN 4
      WHEN 'UNKNOWN' THEN 3
      WHEN 'EMPTY' THEN 2
      WHEN 'OK' THEN 1
      WHEN 'UNCOMMITTED' THEN 0
      ELSE 0
    END AS severity
  FROM current_lag()
),
ranked AS (
  SELECT
    *,
    row_number() OVER (PARTITION BY group_id ORDER BY severity DESC, status, lag DESC NULLS LAST, topic, partition) AS place,
    count(*) OVER (PARTITION BY group_id, status) AS partitions_with_it,
    count(*) OVER (PARTITION BY group_id) AS partitions,
    sum(lag) OVER (PARTITION BY group_id) AS group_lag,
    max(lag_seconds) OVER (PARTITION BY group_id) AS max_lag_seconds,
    max(sampled_at) OVER (PARTITION BY group_id) AS newest_at
  FROM judged
)
SELECT
  group_id,
  status,
  CAST(severity AS INT) AS severity,
  topic,
  partition,
  status_reason,
  partitions_with_it,
  partitions,
  group_lag AS lag,
  max_lag_seconds,
  newest_at AS sampled_at
FROM ranked
WHERE place = 1
