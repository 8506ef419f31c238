-- about: >-
--   One task of a Kafka Streams application now, with the lag of the source and repartition topics that it reads: task 3
--   reads partition 3 of each. Only active tasks have a lag: no offset is committed for standby and warm-up tasks. Of classic
--   applications offset_sum shows how far their state was when the member last joined.
-- columns:
--   - {name: group_id, type: string, about: "the group: the application.id"}
--   - {name: subtopology, type: string, about: the subtopology}
--   - {name: task, type: int, about: "the task's number"}
--   - {name: role, type: string, about: "active, standby or warmup, as in task_assignments"}
--   - {name: member_id, type: string, about: the member that has it}
--   - {name: client_id, type: string, about: client.id of the member}
--   - {name: process_id, type: string, null_means: not known, about: the process that the member belongs to}
--   - {name: endpoint, type: string, null_means: none is configured, about: application.server of the member}
--   - {name: lag, type: bigint, null_means: "unknown: see problem", about: "the sum of the lag of its topics' partitions, as far as known"}
--   - {name: max_lag_seconds, type: double, null_means: "unknown: see problem", about: the highest lag_seconds of these partitions}
--   - {name: topics, type: bigint, about: "how many topics the subtopology reads, except those that match a pattern"}
--   - {name: topics_without_lag, type: bigint, null_means: not an active task, about: "how many of them have no known lag in this partition: no commit yet, no sample, or no such partition"}
--   - {name: offset_sum, type: bigint, null_means: "not known, as in task_assignments", about: "how far its member's copy of the state was when it last joined, as in task_assignments"}
--   - {name: offset_sum_at, type: timestamp, null_means: "not known, as in task_assignments", about: when that was recorded}
--   - {name: sampled_at, type: timestamp, null_means: no sample of these partitions, about: the newest of their samples}
--   - {name: problem, type: string, null_means: none, about: "why lag is null or may lack some"}
-- example: SELECT * FROM task_lag WHERE role = 'active' ORDER BY lag DESC
WITH used AS (
  SELECT
    group_id,
    subtopology,
    topic,
    max(CASE WHEN usage = 'source_pattern' THEN 1 ELSE 0 END) AS is_pattern
  FROM streams_topology
  WHERE cluster = :cluster AND is_open AND usage IN ('source', 'source_pattern', 'repartition_source')
  GROUP BY group_id, subtopology, topic
),
-- Without a topology, as of a Connect cluster, there is no task.
tasks AS (
  SELECT task.*
  FROM task_assignments AS task
  JOIN (SELECT DISTINCT group_id FROM used) AS streams ON streams.group_id = task.group_id
  WHERE task.cluster = :cluster AND task.is_open
),
measured AS (
  SELECT
    tasks.group_id,
    tasks.subtopology,
    tasks.task,
    tasks.role,
    tasks.member_id,
    tasks.client_id,
    tasks.process_id,
    tasks.endpoint,
    tasks.offset_sum,
    tasks.offset_sum_at,
    sum(sample.lag) AS lag,
    max(sample.lag_seconds) AS max_lag_seconds,
    count(CASE WHEN used.is_pattern = 0 THEN 1 END) AS topics,
    count(CASE WHEN used.is_pattern = 1 THEN 1 END) AS patterns,
    count(CASE WHEN used.is_pattern = 0 AND sample.lag IS NULL THEN 1 END) AS topics_without_lag,
    max(sample.sampled_at) AS sampled_at,
    max(sample.problem) AS problem
  FROM tasks
  LEFT JOIN used ON used.group_id = tasks.group_id AND used.subtopology = tasks.subtopology
  LEFT JOIN current_lag() AS sample
    ON sample.group_id = tasks.group_id AND sample.topic = used.topic AND sample.partition = tasks.task
    AND used.is_pattern = 0 AND tasks.role = 'active'
  GROUP BY
    tasks.group_id, tasks.subtopology, tasks.task, tasks.role, tasks.member_id, tasks.client_id, tasks.process_id,
    tasks.endpoint, tasks.offset_sum, tasks.offset_sum_at
)
SELECT
  group_id,
  subtopology,
  task,
  role,
  member_id,
  client_id,
  process_id,
  endpoint,
  lag,
  max_lag_seconds,
  topics,
  CASE WHEN role = 'active' THEN topics_without_lag END AS topics_without_lag,
  offset_sum,
  offset_sum_at,
  sampled_at,
  CASE
    WHEN role <> 'active' AND offset_sum_at IS NULL THEN 'no offset of a standby or warm-up task is recorded: how far it is behind its changelogs is not known'
    WHEN role <> 'active' THEN 'only offset_sum is recorded: which changelogs the task has, and how far it has come since, is not known'
    WHEN topics = 0 AND patterns = 0 THEN 'the topics of the subtopology are not known'
    WHEN patterns > 0 THEN 'topics that match a pattern are not among them'
    WHEN problem IS NOT NULL THEN problem
    WHEN topics_without_lag > 0 THEN 'topics without a commit or a sample of this partition'
  END AS problem
FROM measured
