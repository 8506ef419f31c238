-- about: One partition of a topic at a time, with its leader and the replicas in sync.
-- parameters:
--   - {name: time, type: timestamp, about: the moment}
-- columns:
--   - {name: topic, type: string, about: the topic}
--   - {name: partition, type: int, about: its partition}
--   - {name: leader, type: int, null_means: no leader was available, about: node id of the leader}
--   - {name: host, type: string, null_means: "no leader was available, or the broker was not listed", about: the host that it advertised}
--   - {name: rack, type: string, null_means: "not known, or no rack is set", about: its rack}
--   - {name: leader_epoch, type: int, null_means: a broker before 2.1, about: "the leader's epoch"}
--   - {name: replicas, type: array<int>, about: "node ids of the replicas, the preferred leader first"}
--   - {name: isr, type: array<int>, about: node ids of the replicas in sync}
--   - {name: valid_from, type: timestamp, about: the first sample that showed this}
--   - {name: valid_to, type: timestamp, null_means: still so, about: the first sample that showed something else}
-- example: SELECT * FROM leaders_at('2026-11-27T03:12:00Z') WHERE topic = 'orders' ORDER BY partition
SELECT
  led.topic,
  led.partition,
  led.leader,
  broker.host,
  broker.rack,
  led.leader_epoch,
  led.replicas,
  led.isr,
  led.valid_from,
  led.valid_to
FROM topic_partitions AS led
LEFT JOIN brokers AS broker
  ON broker.cluster = :cluster AND broker.broker_id = led.leader
  AND broker.valid_from <= :time AND (broker.valid_to IS NULL OR :time < broker.valid_to)
WHERE led.cluster = :cluster AND led.valid_from <= :time AND (led.valid_to IS NULL OR :time < led.valid_to)
