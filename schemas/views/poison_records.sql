-- about: >-
--   Offsets of a partition that a share group archived after so many deliveries or more: the broker gave them up after the last one
--   (share.delivery.count.limit, 5 by default), or a member rejected them.
-- parameters:
--   - {name: deliveries, type: int, about: "how often they were delivered at least", default: 2}
--   - {name: window, type: interval, about: how far back from now, default: 7 days}
-- columns:
--   - {name: archived_at, type: timestamp, about: "when they were archived; with is_first before that"}
--   - {name: group_id, type: string, about: the share group}
--   - {name: topic, type: string, about: "the topic; its id if the name is not known"}
--   - {name: partition, type: int, about: its partition}
--   - {name: first_offset, type: bigint, about: the first of the offsets}
--   - {name: last_offset, type: bigint, about: the last of them}
--   - {name: records, type: bigint, about: "how many offsets these are"}
--   - {name: deliveries, type: int, about: "how often each was delivered"}
--   - {name: delivery_limit, type: int, null_means: "not known: group_configs has no row of that time, as with brokers before 4.3, where no group has this setting", about: "share.delivery.count.limit of the group at that time: with fewer deliveries they were not given up"}
--   - {name: is_first, type: boolean, about: "as in share_deliveries: they were archived before the first record that was read of the partition's state"}
-- example: SELECT * FROM poison_records(5) ORDER BY archived_at DESC
WITH archived AS (
  SELECT record_at, group_id, topic_id, partition, first_offset, last_offset, records, delivery_count, is_first
  FROM share_deliveries
  WHERE cluster = :cluster AND record_at >= :now - :window
    AND delivery_state = 'archived' AND delivery_count >= :deliveries
),
limits AS (
  SELECT group_id, CAST(value AS INT) AS delivery_limit, valid_from, valid_to
  FROM group_configs
  WHERE cluster = :cluster AND name = 'share.delivery.count.limit'
),
names AS (
  SELECT topic_id, topic
  FROM topic_names
  WHERE cluster = :cluster
)
SELECT
  record_at AS archived_at,
  archived.group_id,
  coalesce(topic, archived.topic_id) AS topic,
  partition,
  first_offset,
  last_offset,
  records,
  CAST(delivery_count AS INT) AS deliveries,
  delivery_limit,
  is_first
FROM archived
LEFT JOIN limits ON limits.group_id = archived.group_id AND limits.valid_from <= archived.record_at
  AND (limits.valid_to IS NULL OR archived.record_at < limits.valid_to)
LEFT JOIN names ON names.topic_id = archived.topic_id
