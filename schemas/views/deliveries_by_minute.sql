-- about: >-
--   What became of the records that a share group had in a partition, in one minute: how many were acknowledged, came back for another
--   delivery, or were archived, and how often records were delivered again. What was so before the first record that was read of the
--   partition's state is not counted.
-- parameters:
--   - {name: window, type: interval, about: how far back from now, default: 1 day}
-- columns:
--   - {name: minute, type: timestamp, about: the start of the minute}
--   - {name: group_id, type: string, about: the share group}
--   - {name: topic, type: string, about: "the topic; its id if the name is not known"}
--   - {name: partition, type: int, about: its partition}
--   - {name: acknowledged, type: bigint, about: "records that a member accepted"}
--   - {name: came_back, type: bigint, about: "records that a member released, or held for too long: they are delivered again"}
--   - {name: archived, type: bigint, about: "records that are not delivered any more: rejected, given up after the last delivery, deleted by retention, or no record to read"}
--   - {name: redeliveries, type: bigint, about: "deliveries after the first one of a record that ended in this minute; as far as the state before is known"}
-- example: SELECT * FROM deliveries_by_minute('2 hours') ORDER BY redeliveries DESC LIMIT 20
WITH changes AS (
  SELECT
    date_trunc('minute', record_at) AS minute,
    group_id,
    topic_id,
    partition,
    delivery_state,
    records,
    redeliveries
  FROM share_deliveries
  WHERE cluster = :cluster AND record_at >= :now - :window AND NOT is_first
),
names AS (
  SELECT topic_id, topic
  FROM topic_names
  WHERE cluster = :cluster
)
SELECT
  minute,
  group_id,
  coalesce(topic, changes.topic_id) AS topic,
  partition,
  CAST(sum(CASE WHEN delivery_state = 'acknowledged' THEN records ELSE 0 END) AS BIGINT) AS acknowledged,
  CAST(sum(CASE WHEN delivery_state = 'available' THEN records ELSE 0 END) AS BIGINT) AS came_back,
  CAST(sum(CASE WHEN delivery_state = 'archived' THEN records ELSE 0 END) AS BIGINT) AS archived,
  CAST(sum(coalesce(redeliveries, 0)) AS BIGINT) AS redeliveries
FROM changes
LEFT JOIN names ON names.topic_id = changes.topic_id
GROUP BY minute, group_id, coalesce(topic, changes.topic_id), partition
