-- about: One partition that had fewer replicas in sync than replicas at a time.
-- parameters:
--   - {name: time, type: timestamp, about: the moment}
-- columns:
--   - {name: topic, type: string, about: the topic}
--   - {name: partition, type: int, about: its partition}
--   - {name: leader, type: int, null_means: no leader was available, about: node id of the leader}
--   - {name: replicas, type: array<int>, about: "node ids of the replicas, the preferred leader first"}
--   - {name: isr, type: array<int>, about: node ids of the replicas in sync}
--   - {name: offline, type: array<int>, about: node ids of the replicas that were offline}
--   - {name: min_insync_replicas, type: int, null_means: not known, about: min.insync.replicas}
--   - {name: is_below_min_isr, type: boolean, null_means: min.insync.replicas is not known, about: producers with acks=all were refused}
--   - {name: valid_from, type: timestamp, about: the first sample that showed this}
-- example: SELECT * FROM under_replicated(now()) ORDER BY topic, partition
SELECT
  led.topic,
  led.partition,
  led.leader,
  led.replicas,
  led.isr,
  led.offline,
  settings.min_insync_replicas,
  CAST(coalesce(cardinality(led.isr), 0) AS INT) < settings.min_insync_replicas AS is_below_min_isr,
  led.valid_from
FROM topic_partitions AS led
LEFT JOIN topic_configs AS settings
  ON settings.cluster = :cluster AND settings.topic = led.topic
  AND settings.valid_from <= :time AND (settings.valid_to IS NULL OR :time < settings.valid_to)
WHERE led.cluster = :cluster AND led.valid_from <= :time AND (led.valid_to IS NULL OR :time < led.valid_to)
  AND CAST(coalesce(cardinality(led.isr), 0) AS INT) < CAST(cardinality(led.replicas) AS INT)
