-- about: >-
--   One partition of a group in the newest round of samples: how far behind the group is. Deleted groups and offsets
--   are omitted, as are partitions without a sample within 30 seconds before the newest one.
-- columns:
--   - {name: group_id, type: string, about: the group}
--   - {name: topic, type: string, about: the topic}
--   - {name: partition, type: int, about: its partition}
--   - {name: sampled_at, type: timestamp, about: the time of the sample}
--   - {name: committed_offset, type: bigint, null_means: no commit yet, about: the next offset to consume}
--   - {name: log_end_offset, type: bigint, null_means: "unknown: see problem", about: where the log ended}
--   - {name: lag, type: bigint, null_means: "unknown: see problem", about: how many offsets behind}
--   - {name: lost_records, type: bigint, null_means: "unknown: see problem", about: "how many of these offsets were deleted unread"}
--   - {name: lag_seconds, type: double, null_means: "unknown: see problem", about: how many seconds behind}
--   - {name: lag_seconds_method, type: string, null_means: lag_seconds is null, about: "observed, bounded (a lower bound), dated or exact"}
--   - {name: lag_seconds_error, type: double, null_means: "lag_seconds is a lower bound, or null", about: "the maximum error of lag_seconds"}
--   - {name: consume_rate, type: double, null_means: fewer than two samples, about: records per second that the group consumes}
--   - {name: produce_rate, type: double, null_means: fewer than two samples, about: records per second that are produced}
--   - {name: catch_up_seconds, type: double, null_means: "never at these rates, or unknown", about: seconds until lag is 0 at these rates}
--   - {name: status, type: string, about: "the verdict: OK, WARN, STALL, STOP, REWIND, EMPTY, UNCOMMITTED, UNSUBSCRIBED or UNKNOWN"}
--   - {name: status_reason, type: string, about: the rule that gave this status and its figures}
--   - {name: group_state, type: string, null_means: not in the history, about: "the group's state"}
--   - {name: problem, type: string, null_means: none, about: why a value is null or differs}
--   - {name: time_to_loss_seconds, type: double, null_means: "none is foreseen, or it is not known: see time_to_loss_reason", about: "seconds until retention deletes an unread record, at the earliest"}
--   - {name: time_to_loss_most_seconds, type: double, null_means: no upper limit is known, about: at the latest}
--   - {name: time_to_loss_reason, type: string, null_means: "a sample of an earlier version", about: "which setting deletes first, or why there is no figure"}
--   - {name: awaiting_redelivery, type: bigint, null_means: "not a share group, or unknown", about: "how many records of a share group were delivered and came back"}
--   - {name: most_deliveries, type: smallint, null_means: as awaiting_redelivery, about: "how often the one of these was delivered that was delivered most often; 0 without any"}
--   - {name: most_delivered_offset, type: bigint, null_means: "as awaiting_redelivery, or there is none", about: its offset}
--   - {name: lag_error, type: bigint, null_means: "not a share group whose coordinator was asked, or lag is unknown", about: "by how much lag may be too high"}
-- example: SELECT * FROM current_lag WHERE status <> 'OK' ORDER BY lag DESC
WITH recent AS (
  SELECT *, row_number() OVER (PARTITION BY group_id, topic, partition ORDER BY sampled_at DESC) AS place
  FROM consumer_lag
  WHERE cluster = :cluster
    AND sampled_at > (SELECT max(sampled_at) FROM consumer_lag WHERE cluster = :cluster) - INTERVAL '30 seconds'
),
-- A round begins after the one before it has ended, and has a sample of every partition that still has an offset.
previous_round AS (
  SELECT max(sampled_at) AS ended_at
  FROM recent
  WHERE place = 2
),
deleted AS (
  SELECT group_id, max(started_at) AS deleted_at
  FROM group_states
  WHERE cluster = :cluster AND state = 'Dead'
  GROUP BY group_id
)
SELECT
  recent.group_id,
  recent.topic,
  recent.partition,
  recent.sampled_at,
  recent.committed_offset,
  recent.log_end_offset,
  recent.lag,
  recent.lost_records,
  recent.lag_seconds,
  recent.lag_seconds_method,
  recent.lag_seconds_error,
  recent.consume_rate,
  recent.produce_rate,
  recent.catch_up_seconds,
  recent.status,
  recent.status_reason,
  recent.group_state,
  recent.problem,
  recent.time_to_loss_seconds,
  recent.time_to_loss_most_seconds,
  recent.time_to_loss_reason,
  recent.awaiting_redelivery,
  recent.most_deliveries,
  recent.most_delivered_offset,
  recent.lag_error
FROM recent
CROSS JOIN previous_round
LEFT JOIN deleted ON deleted.group_id = recent.group_id
WHERE recent.place = 1
  AND (previous_round.ended_at IS NULL OR recent.sampled_at > previous_round.ended_at)
  AND (deleted.deleted_at IS NULL OR deleted.deleted_at <= recent.sampled_at)
