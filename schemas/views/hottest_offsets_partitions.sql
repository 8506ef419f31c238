-- about: >-
--   One partition of __consumer_offsets and its recently decoded records. All records of a group are in one partition, and
--   one broker coordinates all groups of a partition: consider splitting the groups of a hot one.
-- parameters:
--   - {name: window, type: interval, about: how far back from now, default: 1 hour}
-- columns:
--   - {name: record_partition, type: int, about: the partition of __consumer_offsets}
--   - {name: records, type: bigint, about: the number of decoded records}
--   - {name: share, type: double, about: "the fraction of all decoded records: 0 to 1"}
--   - {name: offset_commits, type: bigint, about: how many of them were commits}
--   - {name: undecodable_records, type: bigint, about: how many of them could not be decoded}
--   - {name: last_landed_at, type: timestamp, about: when its newest batch was written}
-- example: SELECT * FROM hottest_offsets_partitions('1 day') ORDER BY records DESC LIMIT 10
WITH landed AS (
  SELECT
    record_partition,
    sum(offset_commits + group_metadata + group_records + undecodable_records) AS records,
    sum(offset_commits) AS offset_commits,
    sum(undecodable_records) AS undecodable_records,
    max(landed_at) AS last_landed_at
  FROM ingest_progress
  WHERE cluster = :cluster AND landed_at >= :now - :window
  GROUP BY record_partition
)
SELECT
  record_partition,
  records,
  CAST(records AS DOUBLE) / CAST(sum(records) OVER () AS DOUBLE) AS share,
  offset_commits,
  undecodable_records,
  last_landed_at
FROM landed
WHERE records > 0
