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
    group_id,
    incarnation,
    instance_id,
    CASE WHEN instance_id IS NULL THEN client_id END AS client_id,
    client_host,
    joined_at,
    joined_generation,
    began,
    left_at,
    left_generation,
    ended,
    coalesce(5 * :seconds(left_at, joined_at) < :seconds(:now, :now - :pause), FALSE) AS is_brief
  FROM memberships
  WHERE cluster = :cluster
),
brief AS (
  SELECT
    *,
    lag(left_at) OVER (
      PARTITION BY group_id, incarnation, instance_id, client_id, client_host ORDER BY joined_at, left_at
    ) AS left_before,
    lead(joined_at) OVER (
      PARTITION BY group_id, incarnation, instance_id, client_id, client_host ORDER BY joined_at, left_at
    ) AS joined_after
  FROM lives
  WHERE is_brief
),
lasting AS (
  SELECT
    group_id, incarnation, instance_id, client_id, client_host, joined_at, joined_generation, began, left_at,
    left_generation, ended
  FROM lives
  WHERE NOT is_brief
  UNION ALL
  SELECT
    group_id, incarnation, instance_id, client_id, client_host, joined_at, joined_generation, began, left_at,
    left_generation, ended
  FROM brief
  WHERE coalesce(left_before < joined_at - :pause, TRUE) AND coalesce(joined_after > left_at + :pause, TRUE)
),
events AS (
  SELECT
    group_id, incarnation, instance_id, client_id, client_host, joined_at, left_at, ended,
    joined_at AS at,
    1 AS change,
    joined_generation AS generation,
    began NOT IN ('there', 'converted') AS is_dated
  FROM lasting
  UNION ALL
  SELECT
    group_id, incarnation, instance_id, client_id, client_host, joined_at, left_at, ended,
    left_at AS at,
    -1 AS change,
    left_generation AS generation,
    coalesce(ended, 'unknown') NOT IN ('unknown', 'group_ended') AS is_dated
  FROM lasting
  WHERE left_at IS NOT NULL
),
placed AS (
  SELECT
    *,
    sum(CASE WHEN is_dated THEN 1 ELSE 0 END) OVER (
      PARTITION BY group_id, incarnation ORDER BY at, change, is_dated, joined_at DESC
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS place,
    sum(change) OVER (
      PARTITION BY group_id, incarnation ORDER BY at, change, is_dated, joined_at DESC
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) - change AS size_before,
    max(CASE WHEN is_dated THEN at END) OVER (
      PARTITION BY group_id, incarnation ORDER BY at, change, is_dated, joined_at DESC
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS at_before
  FROM events
),
dated AS (
  SELECT *, CASE WHEN at_before >= at - :pause THEN 0 ELSE 1 END AS begins
  FROM placed
  WHERE is_dated
),
spanned AS (
  SELECT
    *,
    sum(begins) OVER (
      PARTITION BY group_id, incarnation ORDER BY at, change, is_dated, joined_at DESC
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS span,
    max(CASE WHEN begins = 1 THEN place END) OVER (
      PARTITION BY group_id, incarnation ORDER BY at, change, is_dated, joined_at DESC
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS span_place,
    max(CASE WHEN change < 0 THEN place END) OVER (
      PARTITION BY group_id, incarnation ORDER BY at, change, is_dated, joined_at DESC
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS left_place
  FROM dated
),
spans AS (
  SELECT
    group_id,
    incarnation,
    span,
    max(CASE WHEN begins = 1 THEN size_before END) AS first_size,
    max(CASE WHEN change < 0 AND coalesce(left_place < span_place, TRUE) THEN size_before END) AS left_size,
    min(CASE WHEN change < 0 THEN place END) - min(place) AS joined_first,
    min(CASE WHEN change < 0 THEN at END) AS first_left_at,
    min(at) AS first_at,
    sum(change) AS growth
  FROM spanned
  GROUP BY group_id, incarnation, span
  HAVING count(CASE WHEN change < 0 THEN 1 END) >= 2 AND count(CASE WHEN change > 0 THEN 1 END) >= 2
),
based AS (
  SELECT
    group_id,
    incarnation,
    span,
    CASE WHEN joined_first = 0 OR growth = joined_first THEN first_left_at ELSE first_at END AS base_at,
    CASE WHEN joined_first = 0 OR growth = joined_first THEN left_size ELSE first_size END AS base_size
  FROM spans
  WHERE joined_first = 0 OR growth = joined_first OR (first_size > 0 AND growth <= 0)
),
aged AS (
  SELECT
    spanned.*,
    based.base_size,
    max(CASE WHEN spanned.change < 0 AND spanned.joined_at < based.base_at THEN spanned.place END) OVER (
      PARTITION BY spanned.group_id, spanned.incarnation, spanned.span
    ) AS last_old
  FROM spanned
  JOIN based
    ON based.group_id = spanned.group_id
    AND based.incarnation = spanned.incarnation
    AND based.span = spanned.span
),
divided AS (
  SELECT
    *,
    min(CASE WHEN place > last_old AND (change < 0 OR size_before >= base_size) THEN place END) OVER (
      PARTITION BY group_id, incarnation, span
    ) AS next_place
  FROM aged
),
parts AS (
  SELECT
    group_id, incarnation, instance_id, client_id, client_host, joined_at, left_at, ended, at, change, generation, place,
    size_before, span,
    CASE WHEN place >= next_place THEN 2 ELSE 1 END AS part,
    CASE WHEN begins = 1 OR place = next_place THEN size_before END AS first_size
  FROM divided
),
parts_begun AS (
  SELECT
    group_id, incarnation, instance_id, client_id, client_host, joined_at, left_at, ended, at, change, generation, place,
    size_before, span, part,
    max(first_size) OVER (PARTITION BY group_id, incarnation, span, part) AS first_size,
    min(place) OVER (PARTITION BY group_id, incarnation, span, part) AS first_place,
    min(CASE WHEN change < 0 THEN place END) OVER (PARTITION BY group_id, incarnation, span, part) AS left_place,
    min(CASE WHEN change < 0 THEN at END) OVER (PARTITION BY group_id, incarnation, span, part) AS first_left_at,
    min(at) OVER (PARTITION BY group_id, incarnation, span, part) AS first_at,
    sum(change) OVER (PARTITION BY group_id, incarnation, span, part) AS growth
  FROM parts
),
parts_sized AS (
  SELECT
    *,
    left_place - first_place AS joined_first,
    max(CASE WHEN place = left_place THEN size_before END) OVER (
      PARTITION BY group_id, incarnation, span, part
    ) AS left_size
  FROM parts_begun
),
parts_based AS (
  SELECT
    *,
    CASE
      WHEN joined_first = 0 OR growth = joined_first THEN first_left_at
      WHEN first_size > 0 AND growth <= 0 THEN first_at
    END AS base_at,
    CASE WHEN joined_first = 0 OR growth = joined_first THEN left_size ELSE first_size END AS base_size
  FROM parts_sized
),
parts_aged AS (
  SELECT
    *,
    change < 0 AND joined_at < base_at AS is_old,
    max(CASE WHEN change < 0 AND joined_at < base_at THEN place END) OVER (
      PARTITION BY group_id, incarnation, span, part
    ) AS last_old,
    max(CASE WHEN change < 0 AND joined_at < base_at THEN at END) OVER (
      PARTITION BY group_id, incarnation, span, part
    ) AS last_left_at
  FROM parts_based
  WHERE base_at IS NOT NULL
),
parts_divided AS (
  SELECT
    *,
    min(CASE WHEN place > last_old AND (change < 0 OR size_before >= base_size) THEN place END) OVER (
      PARTITION BY group_id, incarnation, span, part
    ) AS next_place,
    lag(at) OVER (PARTITION BY group_id, incarnation, span, part, is_old ORDER BY place) AS same_before_at
  FROM parts_aged
),
kept AS (
  SELECT
    *,
    change > 0 AND (left_at IS NULL OR left_at > last_left_at) AS is_new,
    is_old AND same_before_at < at - (:pause + :pause) AS is_late
  FROM parts_divided
  WHERE at >= base_at AND (next_place IS NULL OR place < next_place)
),
hosts AS (
  SELECT
    group_id,
    incarnation,
    span,
    part,
    base_size,
    instance_id,
    client_id,
    client_host,
    count(CASE WHEN is_old THEN 1 END) AS old,
    count(CASE WHEN is_new THEN 1 END) AS new,
    count(CASE WHEN is_old AND ended = 'left' THEN 1 END) AS proven,
    min(at) AS first_at,
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
    max(CASE WHEN is_new THEN generation END) AS new_last,
    max(CASE WHEN is_late THEN 1 ELSE 0 END) AS late
  FROM kept
  GROUP BY group_id, incarnation, span, part, base_size, instance_id, client_id, client_host
),
clients AS (
  SELECT
    group_id,
    incarnation,
    span,
    part,
    base_size,
    instance_id,
    sum(old) AS old,
    least(sum(old), sum(new)) AS replaced,
    sum(least(old, new)) AS on_same_host,
    sum(greatest(least(old, new) - proven, 0)) AS unproven,
    min(first_at) AS first_at,
    max(last_at) AS last_at,
    min(first_generation) AS first_generation,
    max(last_generation) AS last_generation,
    min(old_first_at) AS old_first_at,
    max(old_last_at) AS old_last_at,
    min(old_first) AS old_first,
    max(old_last) AS old_last,
    min(new_first_at) AS new_first_at,
    max(new_last_at) AS new_last_at,
    min(new_first) AS new_first,
    max(new_last) AS new_last,
    max(late) AS late
  FROM hosts
  GROUP BY group_id, incarnation, span, part, base_size, instance_id, client_id
),
totals AS (
  SELECT
    group_id,
    incarnation,
    base_size,
    sum(old) AS old,
    sum(replaced) AS members,
    sum(CASE WHEN instance_id IS NOT NULL THEN replaced ELSE 0 END) AS instances,
    sum(CASE WHEN instance_id IS NULL THEN on_same_host ELSE 0 END) AS on_same_host,
    sum(unproven) AS unproven,
    min(first_at) AS started_at,
    max(last_at) AS last_at,
    min(first_generation) AS first_generation,
    max(last_generation) AS last_generation,
    min(old_first_at) AS old_first_at,
    max(old_last_at) AS old_last_at,
    min(old_first) AS old_first,
    max(old_last) AS old_last,
    min(new_first_at) AS new_first_at,
    max(new_last_at) AS new_last_at,
    min(new_first) AS new_first,
    max(new_last) AS new_last
  FROM clients
  GROUP BY group_id, incarnation, span, part, base_size
  HAVING sum(replaced) >= 2 AND 2 * sum(replaced) >= base_size AND max(late) = 0
),
replacements AS (
  SELECT
    group_id,
    incarnation,
    started_at,
    last_at,
    members,
    base_size AS of_members,
    CASE
      WHEN old_first_at = old_last_at AND new_first_at = new_last_at AND old_first = new_last THEN NULL
      WHEN old = base_size AND old_last < new_first AND old_last_at <= new_first_at THEN 'recreate'
      WHEN old = base_size AND new_last < old_first AND new_last_at <= old_first_at THEN 'blue_green'
      ELSE 'rolling'
    END AS way,
    CASE
      WHEN instances = members THEN 'instance_id'
      WHEN instances > 0 OR (on_same_host > 0 AND on_same_host < members) THEN 'mixed'
      WHEN on_same_host = members THEN 'client_id_and_host'
      ELSE 'client_id'
    END AS evidence,
    instances = members AS is_static,
    CASE
      WHEN members - unproven >= 2 AND 2 * (members - unproven) >= base_size THEN 'likely'
      ELSE 'ambiguous'
    END AS certainty,
    first_generation,
    last_generation
  FROM totals
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
    started_at AS at,
    0 AS place,
    started_at,
    last_at,
    members,
    of_members,
    way,
    evidence,
    is_static,
    certainty,
    first_generation,
    last_generation,
    last_generation AS since_generation,
    '' AS cause,
    started_at AS since,
    last_at AS until
  FROM replacements
  UNION ALL
  SELECT
    group_id,
    incarnation,
    at,
    1 AS place,
    NULL AS started_at,
    NULL AS last_at,
    NULL AS members,
    NULL AS of_members,
    NULL AS way,
    NULL AS evidence,
    NULL AS is_static,
    NULL AS certainty,
    to_generation AS first_generation,
    to_generation AS last_generation,
    from_generation AS since_generation,
    cause,
    at AS since,
    coalesce(ended_at, at) AS until
  FROM rebalances
  WHERE cluster = :cluster
  UNION ALL
  SELECT
    group_id,
    incarnation,
    owned_from AS at,
    2 AS place,
    NULL AS started_at,
    NULL AS last_at,
    NULL AS members,
    NULL AS of_members,
    NULL AS way,
    NULL AS evidence,
    NULL AS is_static,
    NULL AS certainty,
    NULL AS first_generation,
    NULL AS last_generation,
    NULL AS since_generation,
    '' AS cause,
    free_from AS since,
    owned_from AS until
  FROM owned
  WHERE free_from < owned_from
  UNION ALL
  SELECT
    group_id,
    incarnation,
    min(owned_from) AS at,
    3 AS place,
    NULL AS started_at,
    NULL AS last_at,
    NULL AS members,
    NULL AS of_members,
    NULL AS way,
    NULL AS evidence,
    NULL AS is_static,
    NULL AS certainty,
    NULL AS first_generation,
    NULL AS last_generation,
    NULL AS since_generation,
    '' AS cause,
    min(owned_from) AS since,
    max(coalesce(owned_until, :now)) AS until
  FROM partition_ownership
  WHERE cluster = :cluster
  GROUP BY group_id, incarnation
),
followed AS (
  SELECT
    *,
    max(started_at) OVER (
      PARTITION BY group_id, incarnation ORDER BY at, place ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS rollout_at,
    max(last_at) OVER (
      PARTITION BY group_id, incarnation ORDER BY at, place ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS rollout_last_at,
    max(CASE WHEN place = 0 THEN last_generation END) OVER (
      PARTITION BY group_id, incarnation ORDER BY at, place ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS rollout_last_generation,
    max(CASE WHEN place = 3 THEN since END) OVER (PARTITION BY group_id, incarnation) AS owners_since,
    max(CASE WHEN place = 3 THEN until END) OVER (PARTITION BY group_id, incarnation) AS owners_until
  FROM everything
),
counted AS (
  SELECT
    *,
    place = 1
      AND (
        at <= rollout_last_at
        OR (
          at <= rollout_last_at + :pause
          AND (
            last_generation <= rollout_last_generation
            OR (cause = 'cooperative_follow_up' AND since_generation <= rollout_last_generation)
          )
        )
      ) AS is_rebalance
  FROM followed
  WHERE rollout_at IS NOT NULL AND place < 3
),
timed AS (
  SELECT
    *,
    greatest(
      rollout_last_at,
      coalesce(
        max(CASE WHEN is_rebalance THEN until END) OVER (PARTITION BY group_id, incarnation, rollout_at),
        rollout_last_at
      )
    ) AS done_at
  FROM counted
),
gaps AS (
  SELECT
    *,
    CASE WHEN place = 2 THEN greatest(since, rollout_at) END AS gap_from,
    CASE WHEN place = 2 THEN least(until, done_at) END AS gap_until
  FROM timed
  WHERE place = 0 OR is_rebalance OR (place = 2 AND since < done_at)
),
finished AS (
  SELECT
    group_id,
    incarnation,
    rollout_at AS started_at,
    max(done_at) AS done_at,
    max(way) AS way,
    max(members) AS members,
    max(of_members) AS of_members,
    bool_or(is_static) AS is_static,
    max(evidence) AS evidence,
    max(certainty) AS certainty,
    count(CASE WHEN place = 1 THEN 1 END) AS rebalances,
    coalesce(
      min(CASE WHEN place = 1 THEN first_generation END), min(CASE WHEN place = 0 THEN first_generation END)
    ) AS first_generation,
    coalesce(
      max(CASE WHEN place = 1 THEN last_generation END), max(CASE WHEN place = 0 THEN last_generation END)
    ) AS last_generation,
    CASE
      WHEN max(CASE WHEN owners_since <= rollout_at AND owners_until >= rollout_at THEN 1 ELSE 0 END) = 1
        THEN coalesce(sum(:seconds(gap_until, gap_from)), 0)
    END AS without_owner,
    CASE
      WHEN max(CASE WHEN owners_since <= rollout_at AND owners_until >= rollout_at THEN 1 ELSE 0 END) = 1
        THEN coalesce(max(:seconds(gap_until, gap_from)), 0)
    END AS longest_without_owner
  FROM gaps
  GROUP BY group_id, incarnation, rollout_at
),
decoded AS (
  SELECT max(landed_at) AS decoded_until FROM ingest_progress WHERE cluster = :cluster
)
SELECT
  group_id,
  incarnation,
  started_at,
  CASE WHEN decoded_until >= done_at + :pause THEN done_at END AS ended_at,
  way,
  CAST(members AS BIGINT) AS members,
  CAST(of_members AS BIGINT) AS of_members,
  is_static,
  evidence,
  certainty,
  CAST(rebalances AS BIGINT) AS rebalances,
  first_generation,
  last_generation,
  CAST(without_owner AS DOUBLE) AS seconds_without_owner,
  CAST(longest_without_owner AS DOUBLE) AS longest_without_owner_seconds
FROM finished
CROSS JOIN decoded
