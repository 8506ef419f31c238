-- about: How often a group committed recently.
-- parameters:
--   - {name: window, type: interval, about: how far back from now, default: 10 minutes}
-- columns:
--   - {name: group_id, type: string, about: the group}
--   - {name: commits, type: bigint, about: "its commits, counted per partition"}
--   - {name: commits_per_second, type: double, about: the average rate over the window}
--   - {name: partitions, type: bigint, about: the number of partitions committed to}
--   - {name: last_commit_at, type: timestamp, about: the newest of them}
-- example: SELECT * FROM commits_per_second('10 minutes') ORDER BY commits DESC LIMIT 20
WITH recent AS (
  SELECT group_id, topic, partition, record_at, :now - :window AS since, :now AS until
  FROM offset_commits
  WHERE cluster = :cluster AND record_at >= :now - :window AND NOT is_tombstone
),
by_partition AS (
  SELECT group_id, count(*) AS commits, max(record_at) AS last_commit_at, max(until) AS until, min(since) AS since
  FROM recent
  GROUP BY group_id, topic, partition
)
SELECT
  group_id,
  sum(commits) AS commits,
  sum(commits) / max(:seconds(until, since)) AS commits_per_second,
  count(*) AS partitions,
  max(last_commit_at) AS last_commit_at
FROM by_partition
GROUP BY group_id
