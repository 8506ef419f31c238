-- about: >-
--   One time between two samples at which the log's start passed the committed offset of a group: records that it had not
--   read were deleted. What was lost before the first of the samples is not in it.
-- parameters:
--   - {name: window, type: interval, about: how far back from now, default: 1 day}
-- columns:
--   - {name: group_id, type: string, about: the group}
--   - {name: topic, type: string, about: the topic}
--   - {name: partition, type: int, about: its partition}
--   - {name: lost_after, type: timestamp, about: the last sample that had the records}
--   - {name: lost_by, type: timestamp, about: the first sample without them}
--   - {name: lost_records, type: bigint, about: "how many offsets were deleted unread; a compacted topic may have held fewer records"}
--   - {name: first_offset, type: bigint, about: the first of them}
--   - {name: log_start_offset, type: bigint, about: the log's start after that}
--   - {name: time_to_loss_seconds, type: double, null_means: "see time_to_loss_reason", about: "as the sample lost_after foresaw it, at the earliest"}
--   - {name: time_to_loss_reason, type: string, null_means: "a sample of an earlier version", about: "as in consumer_lag, of that sample"}
-- example: SELECT * FROM data_losses('7 days') ORDER BY lost_by DESC
WITH samples AS (
  SELECT
    group_id,
    topic,
    partition,
    sampled_at,
    committed_offset,
    log_start_offset,
    lost_records,
    lag(sampled_at) OVER (PARTITION BY group_id, topic, partition ORDER BY sampled_at) AS before_at,
    lag(log_start_offset) OVER (PARTITION BY group_id, topic, partition ORDER BY sampled_at) AS before_start,
    lag(time_to_loss_seconds) OVER (PARTITION BY group_id, topic, partition ORDER BY sampled_at) AS before_seconds,
    lag(time_to_loss_reason) OVER (PARTITION BY group_id, topic, partition ORDER BY sampled_at) AS before_reason
  FROM consumer_lag
  WHERE cluster = :cluster AND sampled_at >= :now - :window AND lost_records IS NOT NULL
)
SELECT
  group_id,
  topic,
  partition,
  before_at AS lost_after,
  sampled_at AS lost_by,
  log_start_offset - greatest(coalesce(committed_offset, 0), before_start, CAST(0 AS BIGINT)) AS lost_records,
  greatest(coalesce(committed_offset, 0), before_start, CAST(0 AS BIGINT)) AS first_offset,
  log_start_offset,
  before_seconds AS time_to_loss_seconds,
  before_reason AS time_to_loss_reason
FROM samples
WHERE lost_records > 0 AND log_start_offset > before_start
