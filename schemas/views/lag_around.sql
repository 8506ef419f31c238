-- about: One sample of a group's lag in one partition, near a time.
-- parameters:
--   - {name: group, type: string, about: the group}
--   - {name: time, type: timestamp, about: the moment}
--   - {name: within, type: interval, about: how far before and after it, default: 5 minutes}
-- columns:
--   - {name: sampled_at, type: timestamp, about: the time of the sample}
--   - {name: topic, type: string, about: the topic}
--   - {name: partition, type: int, about: its partition}
--   - {name: committed_offset, type: bigint, null_means: no commit yet, about: the next offset to consume}
--   - {name: log_end_offset, type: bigint, null_means: "unknown: see problem", about: where the log ended}
--   - {name: lag, type: bigint, null_means: "unknown: see problem", about: how many offsets behind}
--   - {name: lost_records, type: bigint, null_means: "unknown: see problem", about: "how many of these offsets were deleted unread"}
--   - {name: lag_seconds, type: double, null_means: "unknown: see problem", about: how many seconds behind}
--   - {name: lag_seconds_method, type: string, null_means: lag_seconds is null, about: "observed, bounded (a lower bound), dated or exact"}
--   - {name: consume_rate, type: double, null_means: fewer than two samples, about: records per second that the group consumes}
--   - {name: produce_rate, type: double, null_means: fewer than two samples, about: records per second that are produced}
--   - {name: catch_up_seconds, type: double, null_means: "never at these rates, or unknown", about: seconds until lag is 0 at these rates}
--   - {name: status, type: string, about: "the verdict: OK, WARN, STALL, STOP, REWIND, EMPTY, UNCOMMITTED, UNSUBSCRIBED or UNKNOWN"}
--   - {name: status_reason, type: string, about: the rule that gave this status and its figures}
--   - {name: group_state, type: string, null_means: not in the history, about: "the group's state"}
--   - {name: problem, type: string, null_means: none, about: why a value is null or differs}
-- example: SELECT * FROM lag_around('billing', '2026-11-21T14:55:00Z') ORDER BY topic, partition, sampled_at
SELECT
  sampled_at,
  topic,
  partition,
  committed_offset,
  log_end_offset,
  lag,
  lost_records,
  lag_seconds,
  lag_seconds_method,
  consume_rate,
  produce_rate,
  catch_up_seconds,
  status,
  status_reason,
  group_state,
  problem
FROM consumer_lag
WHERE cluster = :cluster AND group_id = :group
  AND sampled_at >= :time - :within AND sampled_at <= :time + :within
