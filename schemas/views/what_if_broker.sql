-- about: One partition with a replica on a broker at a time, and what would become of it if the broker stopped then.
-- parameters:
--   - {name: broker, type: int, about: node id of the broker}
--   - {name: time, type: timestamp, about: the moment}
-- columns:
--   - {name: topic, type: string, about: the topic}
--   - {name: partition, type: int, about: its partition}
--   - {name: effect, type: string, about: "offline (no replica in sync is left), below_min_isr (writes with acks=all would be refused), unknown (see problem), offline_already, below_min_isr_already, leader_moves, fewer_in_sync, or none (its replica there is not in sync)"}
--   - {name: is_led, type: boolean, about: the broker leads it}
--   - {name: leader, type: int, null_means: no leader was available, about: node id of the leader}
--   - {name: replicas, type: array<int>, about: "node ids of the replicas, the preferred leader first"}
--   - {name: isr, type: array<int>, about: node ids of the replicas in sync}
--   - {name: isr_left, type: array<int>, about: those that would be left}
--   - {name: min_insync_replicas, type: int, null_means: not known, about: "min.insync.replicas; more than the number of replicas counts as that number"}
--   - {name: problem, type: string, null_means: the effect is known, about: why the effect is not known}
-- example: SELECT * FROM what_if_broker(3, now()) WHERE effect IN ('offline', 'below_min_isr') ORDER BY topic, partition
WITH hosted AS (
  SELECT
    led.topic,
    led.partition,
    led.leader,
    led.replicas,
    led.isr,
    CASE
      WHEN cardinality(led.offline) > 0 THEN array_except(array_remove(led.isr, CAST(:broker AS INT)), led.offline)
      ELSE array_remove(led.isr, CAST(:broker AS INT))
    END AS isr_left,
    coalesce(led.leader = CAST(:broker AS INT), FALSE) AS is_led,
    coalesce(led.leader = CAST(:broker AS INT), FALSE) OR array_contains(led.isr, CAST(:broker AS INT)) AS is_touched,
    coalesce(led.leader <> CAST(:broker AS INT) AND NOT array_contains(led.isr, led.leader), FALSE) AS leads_out_of_sync,
    CAST(coalesce(cardinality(led.replicas), 0) AS INT) AS replica_count,
    CAST(coalesce(cardinality(led.isr), 0) AS INT) AS in_sync,
    settings.min_insync_replicas,
    settings.problem
  FROM topic_partitions AS led
  LEFT JOIN topic_configs AS settings
    ON settings.cluster = :cluster AND settings.topic = led.topic
    AND settings.valid_from <= :time AND (settings.valid_to IS NULL OR :time < settings.valid_to)
  WHERE led.cluster = :cluster AND led.valid_from <= :time AND (led.valid_to IS NULL OR :time < led.valid_to)
    AND (array_contains(led.replicas, CAST(:broker AS INT)) OR coalesce(led.leader = CAST(:broker AS INT), FALSE))
),
counted AS (
  SELECT
    *,
    CAST(coalesce(cardinality(isr_left), 0) AS INT) AS left_in_sync,
    -- Whatever the setting is, it asks for one replica and for no more than there are.
    least(coalesce(min_insync_replicas, 1), replica_count) AS needed,
    min_insync_replicas IS NOT NULL OR replica_count <= 1 AS is_known
  FROM hosted
),
judged AS (
  SELECT
    *,
    CASE
      WHEN leader IS NULL THEN 'offline_already'
      WHEN is_touched AND left_in_sync = 0 AND NOT leads_out_of_sync THEN 'offline'
      WHEN is_touched AND (leads_out_of_sync OR NOT is_known AND left_in_sync < replica_count) THEN 'unknown'
      WHEN is_known AND in_sync < needed THEN 'below_min_isr_already'
      WHEN is_touched AND left_in_sync < needed THEN 'below_min_isr'
      WHEN is_led THEN 'leader_moves'
      WHEN is_touched THEN 'fewer_in_sync'
      ELSE 'none'
    END AS effect
  FROM counted
)
SELECT
  topic,
  partition,
  effect,
  is_led,
  leader,
  replicas,
  isr,
  isr_left,
  min_insync_replicas,
  CASE
    WHEN effect <> 'unknown' THEN CAST(NULL AS STRING)
    WHEN leads_out_of_sync THEN 'its leader is not among its replicas in sync'
    ELSE coalesce(problem, 'its settings have not been read yet')
  END AS problem
FROM judged
