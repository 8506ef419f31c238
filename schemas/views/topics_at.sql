-- about: One topic that the cluster had at a time, with its settings then.
-- parameters:
--   - {name: time, type: timestamp, about: the moment}
-- columns:
--   - {name: topic, type: string, about: the topic}
--   - {name: topic_id, type: string, null_means: a broker before 2.8, about: "Kafka's topic id"}
--   - {name: partition_count, type: int, about: how many partitions it had}
--   - {name: replication_factor, type: int, about: how many replicas its partitions had}
--   - {name: is_internal, type: boolean, about: an internal topic of Kafka}
--   - {name: cleanup_policy, type: string, null_means: "unknown: see problem", about: cleanup.policy}
--   - {name: retention_ms, type: bigint, null_means: "unknown: see problem", about: retention.ms}
--   - {name: retention_bytes, type: bigint, null_means: "unknown: see problem", about: retention.bytes of each partition}
--   - {name: min_insync_replicas, type: int, null_means: "unknown: see problem", about: min.insync.replicas}
--   - {name: problem, type: string, null_means: "the settings are known, or were not read yet", about: why the settings are unknown}
--   - {name: created_at, type: timestamp, null_means: the first sample of the cluster had it already, about: "the first sample that showed it"}
--   - {name: deleted_at, type: timestamp, null_means: not deleted since, about: the first sample without it}
-- example: SELECT * FROM topics_at('2026-11-27T03:12:00Z') ORDER BY topic
SELECT
  was.topic,
  was.topic_id,
  was.partition_count,
  was.replication_factor,
  was.is_internal,
  settings.cleanup_policy,
  settings.retention_ms,
  settings.retention_bytes,
  settings.min_insync_replicas,
  settings.problem,
  was.created_at,
  was.deleted_at
FROM topics AS was
LEFT JOIN topic_configs AS settings
  ON settings.cluster = :cluster AND settings.topic = was.topic
  AND settings.valid_from <= :time AND (settings.valid_to IS NULL OR :time < settings.valid_to)
WHERE was.cluster = :cluster AND was.valid_from <= :time AND (was.valid_to IS NULL OR :time < was.valid_to)
