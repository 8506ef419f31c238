-- about: The broker that led each partition of __consumer_offsets at a time, and so coordinated the groups in it.
-- parameters:
--   - {name: time, type: timestamp, about: the moment}
-- columns:
--   - {name: record_partition, type: int, about: partition of __consumer_offsets}
--   - {name: broker_id, type: int, about: node id of the broker}
--   - {name: host, type: string, null_means: the broker was not listed, about: the host that it advertised}
--   - {name: rack, type: string, null_means: "not known, or no rack is set", about: its rack}
--   - {name: leader_epoch, type: int, about: "the leader's epoch"}
--   - {name: first_offset, type: bigint, about: offset of the first record of the epoch}
--   - {name: valid_from, type: timestamp, about: the first sample that showed this epoch as the newest}
--   - {name: valid_to, type: timestamp, null_means: still so, about: the first sample that showed a newer one}
--   - {name: last_seen_at, type: timestamp, null_means: still so, about: "a sample before valid_to that still showed it: it may have moved since"}
-- example: SELECT * FROM coordinators_at('2026-11-27T03:12:00Z') WHERE record_partition = 9
SELECT
  led.record_partition,
  led.broker_id,
  broker.host,
  broker.rack,
  led.leader_epoch,
  led.first_offset,
  led.valid_from,
  led.valid_to,
  led.last_seen_at
FROM coordinators AS led
LEFT JOIN brokers AS broker
  ON broker.cluster = :cluster AND broker.broker_id = led.broker_id
  AND broker.valid_from <= :time AND (broker.valid_to IS NULL OR :time < broker.valid_to)
WHERE led.cluster = :cluster AND led.valid_from <= :time AND (led.valid_to IS NULL OR :time < led.valid_to)
