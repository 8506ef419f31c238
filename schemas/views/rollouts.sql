-- about: >-
--   One rollout of a group, such as a deploy: at least two members, and at least half of those that it had before, were
--   replaced by others of the same instance ids or client ids, with at most `pause` between two joins or leaves.
--   Restarts of one member, crash loops of one and changes of the number of members are none.
-- parameters:
--   - {name: pause, type: interval, about: "the longest time between two joins or leaves of one rollout", default: 5 minutes}
-- columns:
--   - {name: group_id, type: string, about: the group}
--   - {name: incarnation, type: int, about: "which group of this name, as in memberships"}
--   - {name: started_at, type: timestamp, about: "the first member that left or, if new members join first, that joined"}
--   - {name: ended_at, type: timestamp, null_means: "more members may follow: what has been read ends less than `pause` later", about: "when the last member had joined or left and the rebalances were over"}
--   - {name: way, type: string, null_means: "all happened in one rebalance, or between two polls, so that the order is unknown", about: "recreate (all had left before any joined); blue_green (all had joined before any left); rolling (old and new members were there together)"}
--   - {name: members, type: bigint, about: how many members were replaced}
--   - {name: of_members, type: bigint, about: how many members the group had before}
--   - {name: is_static, type: boolean, about: all replaced members have an instance id}
--   - {name: evidence, type: string, about: "what old and new members have in common: instance_id, client_id_and_host, client_id (on other hosts) or mixed"}
--   - {name: certainty, type: string, about: "likely: most old members are known to have left, or were replaced on other hosts; ambiguous: or the same processes joined again, as after an outage, expired sessions or slow polls"}
--   - {name: rebalances, type: bigint, about: "how many of the group's rebalances were part of it, as far as the log shows"}
--   - {name: first_generation, type: int, null_means: not known, about: the generation or epoch of the first of them}
--   - {name: last_generation, type: int, null_means: not known, about: the generation or epoch of the last of them}
--   - {name: seconds_without_owner, type: double, null_means: "no owners of partitions are known", about: "the time that partitions had no owner between two, added up over all partitions; a lower bound, because eager consumers also pause in rebalances, and a classic member's end is known by the next generation"}
--   - {name: longest_without_owner_seconds, type: double, null_means: "no owners of partitions are known", about: the longest such time of one partition}
-- example: SELECT * FROM rollouts WHERE group_id = 'billing' ORDER BY started_at DESC
WITH lives AS (
  SELECT
    group_id, incarnation, member_id, instance_id, client_host, joined_at, joined_generation, began, left_at,
    left_generation, ended,
    CASE WHEN instance_id IS NULL THEN client_id END AS client_id,
    coalesce(5 * :seconds(left_at, joined_at) < :seconds(:now, :now - :pause), FALSE) AS is_brief
  FROM memberships
  WHERE cluster = :cluster
),
lives_of_clients AS (
  SELECT
    *,
    lag(left_at) OVER client AS left_before,
    lead(joined_at) OVER client AS joined_after
  FROM lives
  WINDOW client AS (
    PARTITION BY group_id, incarnation, instance_id, client_id, client_host, is_brief ORDER BY joined_at, left_at
  )
),
changes AS (
  SELECT
    group_id, incarnation, member_id, instance_id, client_id, client_host, joined_at, left_at, ended, change,
    CASE WHEN change > 0 THEN joined_at ELSE left_at END AS at,
    CASE WHEN change > 0 THEN joined_generation ELSE left_generation END AS generation,
    CASE
      WHEN change > 0 THEN began NOT IN ('there', 'converted')
      ELSE coalesce(ended, 'unknown') NOT IN ('unknown', 'group_ended')
    END AS is_dated
  FROM lives_of_clients
  CROSS JOIN (VALUES (1), (-1)) AS join_or_leave (change)
  WHERE (change > 0 OR left_at IS NOT NULL)
    AND NOT (
      is_brief
      AND (coalesce(left_before >= joined_at - :pause, FALSE) OR coalesce(joined_after <= left_at + :pause, FALSE))
    )
),
placed AS (
  SELECT
    *,
    sum(CASE WHEN is_dated THEN 1 ELSE 0 END) OVER so_far AS place,
    (sum(change) OVER so_far) - change AS size_before
  FROM changes
  WINDOW so_far AS (
    PARTITION BY group_id, incarnation ORDER BY at, change, is_dated, joined_at DESC, member_id
    ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
  )
),
dated AS (
  SELECT
    *,
    CASE
      WHEN lag(at) OVER (PARTITION BY group_id, incarnation ORDER BY place) >= at - :pause THEN 0 ELSE place
    END AS begins
  FROM placed
  WHERE is_dated
),
-- A span, and later a part of it, is named by the place of its first change.
spans AS (
  SELECT
    *,
    max(begins) OVER (
      PARTITION BY group_id, incarnation ORDER BY place ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS span,
    min(CASE WHEN begins > 0 THEN begins END) OVER (
      PARTITION BY group_id, incarnation ORDER BY place DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS next_span
  FROM dated
),
span_counted AS (
  SELECT
    *,
    min(CASE WHEN change < 0 THEN place END) OVER span AS left_place,
    count(CASE WHEN change < 0 THEN 1 END) OVER span AS leaves,
    count(CASE WHEN change > 0 THEN 1 END) OVER span AS joins
  FROM spans
  WHERE coalesce(next_span - span >= 4, TRUE)
  WINDOW span AS (PARTITION BY group_id, incarnation, span)
),
span_begun AS (
  SELECT
    *,
    CASE
      WHEN left_place = span OR joins - leaves = left_place - span THEN left_place
      WHEN joins <= leaves THEN span
    END AS base_place
  FROM span_counted
  WHERE leaves >= 2 AND joins >= 2
),
span_based AS (
  SELECT
    *,
    max(CASE WHEN place = base_place THEN at END) OVER span AS base_at,
    max(CASE WHEN place = base_place THEN size_before END) OVER span AS base_size
  FROM span_begun
  WINDOW span AS (PARTITION BY group_id, incarnation, span)
),
span_aged AS (
  SELECT
    *,
    max(CASE WHEN change < 0 AND joined_at < base_at THEN place END) OVER span AS last_old
  FROM span_based
  WHERE base_place = left_place OR base_size > 0
  WINDOW span AS (PARTITION BY group_id, incarnation, span)
),
span_divided AS (
  SELECT
    *,
    min(CASE WHEN place > last_old AND (change < 0 OR size_before >= base_size) THEN place END) OVER (
      PARTITION BY group_id, incarnation, span
    ) AS next_place
  FROM span_aged
),
parts AS (
  SELECT
    group_id, incarnation, instance_id, client_id, client_host, joined_at, left_at, ended, change, at, generation, place,
    size_before,
    CASE WHEN place >= next_place THEN next_place ELSE span END AS part
  FROM span_divided
),
part_counted AS (
  SELECT
    *,
    min(CASE WHEN change < 0 THEN place END) OVER part AS left_place,
    count(CASE WHEN change < 0 THEN 1 END) OVER part AS leaves,
    count(CASE WHEN change > 0 THEN 1 END) OVER part AS joins
  FROM parts
  WINDOW part AS (PARTITION BY group_id, incarnation, part)
),
part_begun AS (
  SELECT
    *,
    CASE
      WHEN left_place = part OR joins - leaves = left_place - part THEN left_place
      WHEN joins <= leaves THEN part
    END AS base_place
  FROM part_counted
  WHERE leaves >= 2 AND joins >= 2
),
part_based AS (
  SELECT
    *,
    max(CASE WHEN place = base_place THEN at END) OVER part AS base_at,
    max(CASE WHEN place = base_place THEN size_before END) OVER part AS base_size
  FROM part_begun
  WINDOW part AS (PARTITION BY group_id, incarnation, part)
),
part_aged AS (
  SELECT
    *,
    max(CASE WHEN change < 0 AND joined_at < base_at THEN place END) OVER part AS last_old
  FROM part_based
  WHERE base_place = left_place OR base_size > 0
  WINDOW part AS (PARTITION BY group_id, incarnation, part)
),
part_divided AS (
  SELECT
    *,
    change < 0 AND joined_at < base_at AS is_old,
    max(CASE WHEN place = last_old THEN at END) OVER part AS last_left_at,
    min(CASE WHEN place > last_old AND (change < 0 OR size_before >= base_size) THEN place END) OVER part AS next_place
  FROM part_aged
  WINDOW part AS (PARTITION BY group_id, incarnation, part)
),
kept AS (
  SELECT *, change > 0 AND (left_at IS NULL OR left_at > last_left_at) AS is_new
  FROM part_divided
  WHERE place >= base_place AND (next_place IS NULL OR place < next_place)
),
-- Old and new members of a client, or of a client on a host, make pairs as far as there are both.
matched AS (
  SELECT
    *,
    max(CASE WHEN is_old THEN at END) OVER (
      PARTITION BY group_id, incarnation, part ORDER BY place ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS old_before_at,
    min(place) OVER client AS place_of_client,
    min(place) OVER host AS place_of_host,
    least(count(CASE WHEN is_old THEN 1 END) OVER client, count(CASE WHEN is_new THEN 1 END) OVER client) AS pairs,
    least(count(CASE WHEN is_old THEN 1 END) OVER host, count(CASE WHEN is_new THEN 1 END) OVER host) AS pairs_on_host,
    count(CASE WHEN is_old AND ended = 'left' THEN 1 END) OVER host AS proven_on_host
  FROM kept
  WINDOW
    client AS (PARTITION BY group_id, incarnation, part, instance_id, client_id),
    host AS (PARTITION BY group_id, incarnation, part, instance_id, client_id, client_host)
),
-- Spark takes no parameter of a view within an aggregate.
checked AS (
  SELECT *, is_old AND old_before_at < at - (:pause + :pause) AS is_late
  FROM matched
),
totals AS (
  SELECT
    group_id,
    incarnation,
    base_size AS of_members,
    sum(CASE WHEN place = place_of_client THEN pairs ELSE 0 END) AS members,
    sum(CASE WHEN place = place_of_client AND instance_id IS NOT NULL THEN pairs ELSE 0 END) AS instances,
    sum(CASE WHEN place = place_of_host AND instance_id IS NULL THEN pairs_on_host ELSE 0 END) AS on_same_host,
    sum(CASE WHEN place = place_of_host THEN greatest(pairs_on_host - proven_on_host, 0) ELSE 0 END) AS unproven,
    count(CASE WHEN is_late THEN 1 END) AS late,
    count(CASE WHEN is_old THEN 1 END) AS old,
    min(at) AS started_at,
    max(at) AS last_at,
    min(generation) AS first_generation,
    max(generation) AS last_generation,
    min(CASE WHEN is_old THEN at END) AS old_first_at,
    max(CASE WHEN is_old THEN at END) AS old_last_at,
    min(CASE WHEN is_old THEN generation END) AS old_first,
    max(CASE WHEN is_old THEN generation END) AS old_last,
    min(CASE WHEN is_new THEN at END) AS new_first_at,
    max(CASE WHEN is_new THEN at END) AS new_last_at,
    min(CASE WHEN is_new THEN generation END) AS new_first,
    max(CASE WHEN is_new THEN generation END) AS new_last
  FROM checked
  GROUP BY group_id, incarnation, part, base_size
),
owned AS (
  SELECT
    group_id,
    incarnation,
    owned_from,
    max(coalesce(owned_until, :now)) OVER (
      PARTITION BY group_id, incarnation, topic, partition ORDER BY owned_from, record_offset
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS free_from
  FROM partition_ownership
  WHERE cluster = :cluster
),
everything AS (
  SELECT
    group_id,
    incarnation,
    'rollout' AS kind,
    0 AS place,
    started_at AS at,
    started_at AS since,
    last_at AS until,
    last_generation AS from_generation,
    last_generation AS to_generation,
    '' AS cause,
    named_struct(
      'way', CASE
        WHEN old_first_at = old_last_at AND new_first_at = new_last_at AND old_first = new_last THEN NULL
        WHEN old = of_members AND old_last < new_first AND old_last_at <= new_first_at THEN 'recreate'
        WHEN old = of_members AND new_last < old_first AND new_last_at <= old_first_at THEN 'blue_green'
        ELSE 'rolling'
      END,
      'members', members,
      'of_members', of_members,
      'is_static', instances = members,
      'evidence', CASE
        WHEN instances = members THEN 'instance_id'
        WHEN instances > 0 OR (on_same_host > 0 AND on_same_host < members) THEN 'mixed'
        WHEN on_same_host = members THEN 'client_id_and_host'
        ELSE 'client_id'
      END,
      'certainty', CASE
        WHEN members - unproven >= 2 AND 2 * (members - unproven) >= of_members THEN 'likely' ELSE 'ambiguous'
      END,
      'first_generation', first_generation
    ) AS rollout
  FROM totals
  WHERE members >= 2 AND 2 * members >= of_members AND late = 0
  UNION ALL
  SELECT
    group_id, incarnation, 'rebalance' AS kind, 1 AS place, at, at AS since, coalesce(ended_at, at) AS until, from_generation,
    to_generation, cause, NULL AS rollout
  FROM rebalances
  WHERE cluster = :cluster
  UNION ALL
  SELECT
    group_id, incarnation, 'without_owner' AS kind, 2 AS place, owned_from AS at, free_from AS since, owned_from AS until,
    NULL AS from_generation, NULL AS to_generation, NULL AS cause, NULL AS rollout
  FROM owned
  WHERE free_from < owned_from
),
preceded AS (
  SELECT
    *,
    max(CASE WHEN kind = 'rollout' THEN at END) OVER so_far AS started_at,
    max(CASE WHEN kind = 'rollout' THEN until END) OVER so_far AS last_at,
    max(CASE WHEN kind = 'rollout' THEN to_generation END) OVER so_far AS rollout_generation
  FROM everything
  WINDOW so_far AS (
    PARTITION BY group_id, incarnation ORDER BY at, place ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
  )
),
rebalanced AS (
  SELECT
    *,
    kind = 'rebalance'
      AND (
        at <= last_at
        OR (
          at <= last_at + :pause
          AND (
            to_generation <= rollout_generation
            OR (cause = 'cooperative_follow_up' AND from_generation <= rollout_generation)
          )
        )
      ) AS is_part
  FROM preceded
  WHERE started_at IS NOT NULL
),
ended AS (
  SELECT
    *,
    greatest(
      last_at, max(CASE WHEN is_part THEN until END) OVER (PARTITION BY group_id, incarnation, started_at)
    ) AS done_at
  FROM rebalanced
),
clipped AS (
  SELECT
    *,
    CASE WHEN kind = 'without_owner' AND since < done_at THEN greatest(since, started_at) END AS free_from,
    least(until, done_at) AS free_until
  FROM ended
),
summed AS (
  SELECT
    *,
    count(CASE WHEN is_part THEN 1 END) OVER whole AS rebalances,
    min(CASE WHEN is_part THEN to_generation END) OVER whole AS first_generation,
    max(CASE WHEN is_part THEN to_generation END) OVER whole AS last_generation,
    sum(:seconds(free_until, free_from)) OVER whole AS seconds_without_owner,
    max(:seconds(free_until, free_from)) OVER whole AS longest_without_owner_seconds
  FROM clipped
  WINDOW whole AS (PARTITION BY group_id, incarnation, started_at)
),
owners AS (
  SELECT
    group_id, incarnation, min(owned_from) AS since, max(coalesce(owned_until, :now)) AS until
  FROM partition_ownership
  WHERE cluster = :cluster
  GROUP BY group_id, incarnation
),
decoded AS (
  SELECT max(landed_at) AS decoded_until FROM ingest_progress WHERE cluster = :cluster
)
SELECT
  summed.group_id,
  summed.incarnation,
  started_at,
  CASE WHEN decoded_until >= done_at + :pause THEN done_at END AS ended_at,
  rollout['way'] AS way,
  CAST(rollout['members'] AS BIGINT) AS members,
  CAST(rollout['of_members'] AS BIGINT) AS of_members,
  rollout['is_static'] AS is_static,
  rollout['evidence'] AS evidence,
  rollout['certainty'] AS certainty,
  CAST(rebalances AS BIGINT) AS rebalances,
  coalesce(first_generation, rollout['first_generation']) AS first_generation,
  coalesce(last_generation, to_generation) AS last_generation,
  CASE WHEN owners.since <= started_at AND owners.until >= started_at
    THEN CAST(coalesce(seconds_without_owner, 0) AS DOUBLE) END AS seconds_without_owner,
  CASE WHEN owners.since <= started_at AND owners.until >= started_at
    THEN CAST(coalesce(longest_without_owner_seconds, 0) AS DOUBLE) END AS longest_without_owner_seconds
FROM summed
LEFT JOIN owners ON owners.group_id = summed.group_id AND owners.incarnation = summed.incarnation
CROSS JOIN decoded
WHERE kind = 'rollout'
