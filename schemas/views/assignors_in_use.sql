-- about: One assignor (or Connect's rebalance protocol) that groups with members use now, and how even its assignments are.
-- columns:
--   - {name: group_kind, type: string, about: "classic, consumer, share or streams"}
--   - {name: assignor, type: string, null_means: "the broker's default", about: "its name, as in generations.protocol"}
--   - {name: groups, type: bigint, about: how many groups use it}
--   - {name: members, type: bigint, about: how many members these groups have}
--   - {name: partitions, type: bigint, null_means: unknown for every group, about: "how many partitions are assigned, as far as known"}
--   - {name: worst_skew, type: int, null_means: unknown for every group, about: "the largest skew of a group: the highest minus the lowest number of partitions per member"}
--   - {name: groups_assigned_otherwise, type: bigint, about: groups whose assignment differs from what the assignor computes}
-- example: SELECT * FROM assignors_in_use ORDER BY groups DESC
SELECT
  group_kind,
  protocol AS assignor,
  count(*) AS groups,
  sum(member_count) AS members,
  sum(partition_count) AS partitions,
  max(skew) AS worst_skew,
  count(CASE WHEN NOT is_assignors_own THEN 1 END) AS groups_assigned_otherwise
FROM generations
WHERE cluster = :cluster AND ended_at IS NULL AND member_count > 0
GROUP BY group_kind, protocol
