-- about: One task of a Kafka Streams application or a Connect cluster at a time, with the member that had it and its role.
-- parameters:
--   - {name: group, type: string, about: "the group: the application.id"}
--   - {name: time, type: timestamp, about: the moment}
-- columns:
--   - {name: subtopology, type: string, about: "the subtopology; for Connect the connector"}
--   - {name: task, type: int, about: "the task's number; for Connect -1 is the connector itself"}
--   - {name: role, type: string, about: "active, standby or warmup, as in task_assignments"}
--   - {name: member_id, type: string, about: the member that had it}
--   - {name: client_id, type: string, about: client.id of the member}
--   - {name: client_host, type: string, about: "the member's address as the broker saw it"}
--   - {name: process_id, type: string, null_means: the protocol has none, about: the process that the member belongs to}
--   - {name: endpoint, type: string, null_means: none is configured, about: "application.server of the member; for Connect the worker's URL"}
--   - {name: assigned_from, type: timestamp, about: "when it was assigned, or first recorded"}
--   - {name: assigned_until, type: timestamp, null_means: still assigned, about: when the member gave it up}
-- example: SELECT * FROM tasks_at('billing', now()) ORDER BY subtopology, task, role
SELECT
  subtopology,
  task,
  role,
  member_id,
  client_id,
  client_host,
  process_id,
  endpoint,
  assigned_from,
  assigned_until
FROM task_assignments
WHERE cluster = :cluster AND group_id = :group
  AND assigned_from <= :time AND (assigned_until IS NULL OR :time < assigned_until)
