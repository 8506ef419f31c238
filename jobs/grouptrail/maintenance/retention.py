"""The rules of `grouptrail maintain`: delete rows past their retention, and thin samples with age.

Open history rows and records that the history job has not processed yet are never deleted. The newest decoded record
of each key is kept, as after compaction, so that no live group or committed offset is lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from grouptrail.decode.schema import TABLES as DECODED
from grouptrail.jobs import CLUSTER
from grouptrail.maintenance.queries import Queries, SparkQueries
from grouptrail.storage.positions import KEYS
from grouptrail.storage.progress import PROGRESS, counted_records
from grouptrail.storage.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from grouptrail.config import MaintainConfig

SUMMARY = "maintain"
"""The `query_id` of the `ingest_progress` rows that summarise deleted batches."""

_STAYS = "stays"
_WHY_RECORDS = "processed into history, except the newest of each key"

# The column that dates a row that has ended; dependent tables come first, so that no row refers to a deleted one.
_ENDED = {
    "rebalances": "at",
    "partition_ownership": "owned_until",
    "task_assignments": "assigned_until",
    "streams_topology": "known_until",
    "memberships": "left_at",
    "group_states": "ended_at",
    "generations": "ended_at",
    **{name: "valid_to" for name in CLUSTER.writes if name != "log_sizes"},
}
_VERDICT = {"log_offsets": "error", "consumer_lag": "status"}
# Of rows that nothing refers to: the column that dates them, and the setting that says how long they are kept.
_KEPT_FOR = {
    "share_deliveries": ("record_at", "decoded_days"),
    "broker_log_events": ("logged_at", "history_days"),
    "check_results": ("checked_at", "check_results_days"),
}

_SHARE_GROUPS = ("share_group_state", "share_group_offsets")

ORDER = (*_ENDED, *DECODED, PROGRESS, *_VERDICT, *_SHARE_GROUPS, *_KEPT_FOR)
"""The tables with a retention, in an order that is safe to interrupt: the next run continues."""


@dataclass(frozen=True)
class Rule:
    """Which rows of a table to delete: those that match `where`, except where `stays` is true of them.

    `stays` may compare a row with the others that match. Rows that `needed_by`, a table, still refers to also stay.
    """

    table: str
    why: str
    where: str
    stays: str | None = None
    needed_by: str | None = None


@dataclass(frozen=True)
class Removal:
    """Rows to delete: those that match `where`, except the rows in `stays` (None: no exceptions)."""

    table: str
    where: str
    stays: DataFrame | None
    count: int


def rules(queries: Queries, keep: MaintainConfig, name: str, now: datetime) -> Iterator[Rule]:
    """Yield the rules for a table, in the order in which they are applied."""
    if name in _ENDED and keep.history_days:
        yield _closed(queries, name, now - timedelta(days=keep.history_days))
    elif name in _VERDICT:
        oldest = now - timedelta(days=keep.samples_days) if keep.samples_days else None
        if oldest is not None:
            yield _older(queries, name, "sampled_at", oldest)
        if keep.thin_samples:
            yield _thinned(queries, keep.thin_samples, name, now, oldest)
    elif name in _SHARE_GROUPS and keep.decoded_days:
        rule = _share_state if name == "share_group_state" else _share_offsets
        yield rule(queries, now - timedelta(days=keep.decoded_days))
    elif name in _KEPT_FOR:
        column, setting = _KEPT_FOR[name]
        if days := getattr(keep, setting):
            yield _older(queries, name, column, now - timedelta(days=days))
    elif name in (*DECODED, PROGRESS) and keep.decoded_days:
        bounds = processed_bounds(queries, now - timedelta(days=keep.decoded_days))
        if bounds:
            yield _records(queries, name, bounds)


def doomed(queries: Queries, rule: Rule, columns: str = "*") -> str:
    """Return the query of the rows that a rule deletes."""
    return f"SELECT {columns} FROM ({_marked(queries, rule)}) WHERE NOT {_STAYS}"


def _marked(queries: Queries, rule: Rule) -> str:
    """Return the query of the rows that match a rule, each with whether it stays."""
    rows = f"SELECT *, coalesce({rule.stays or 'false'}, false) AS {_STAYS} FROM {queries.table(rule.table)} "
    rows += f"WHERE {rule.where}"
    if rule.needed_by is None or not queries.exists(rule.needed_by):
        return rows
    needed = f"SELECT DISTINCT cluster, group_id, record_offset FROM {queries.table(rule.needed_by)} WHERE is_open"
    return (
        f"SELECT doomed.*, needed.group_id IS NOT NULL AS {_STAYS} "
        f"FROM (SELECT * FROM {queries.table(rule.table)} WHERE {rule.where}) AS doomed "
        f"LEFT JOIN ({needed}) AS needed ON needed.cluster = doomed.cluster "
        "AND needed.group_id = doomed.group_id AND needed.record_offset = doomed.record_offset"
    )


def removals(warehouse: Warehouse, keep: MaintainConfig, name: str, now: datetime) -> Iterator[Removal]:
    """Yield the removals for a table, in order."""
    queries = SparkQueries(warehouse)
    for rule in rules(queries, keep, name, now):
        if name == PROGRESS:
            yield _batches(warehouse, rule)
        elif name in _VERDICT and rule.stays:
            yield _thinning(queries, rule)
        else:
            [counted] = queries.rows(doomed(queries, rule, "count(*) AS rows"))
            has_exceptions = rule.stays is not None or rule.needed_by is not None
            stays = _staying(queries, rule) if has_exceptions else None
            yield Removal(name, rule.where, stays, counted["rows"])


def _staying(queries: SparkQueries, rule: Rule) -> DataFrame:
    """Return the rows that match a rule and stay all the same."""
    return queries.warehouse.session.sql(_marked(queries, rule)).where(_STAYS).drop(_STAYS)


def _own_rows(queries: Queries) -> str:
    return f"cluster = {queries.dialect.literal(queries.warehouse.cluster)}"


def _older(queries: Queries, name: str, column: str, cutoff: datetime) -> Rule:
    where = f"{_own_rows(queries)} AND {column} < {queries.dialect.literal(cutoff)}"
    return Rule(name, f"before {cutoff:%Y-%m-%d %H:%M}", where)


def _closed(queries: Queries, name: str, cutoff: datetime) -> Rule:
    """Return closed rows that ended before the cutoff, except generations to which a still open rebalance refers."""
    before = f"{_ENDED[name]} < {queries.dialect.literal(cutoff)}"
    where = f"{_own_rows(queries)} AND open_bucket IS NULL AND NOT is_open AND {before}"
    needed_by = "rebalances" if name == "generations" else None
    return Rule(name, f"ended before {cutoff:%Y-%m-%d %H:%M}", where, needed_by=needed_by)


def _thinned(
    queries: Queries, thin_samples: Sequence[tuple[float, int]], name: str, now: datetime, oldest: datetime | None
) -> Rule:
    """Thin samples: keep the last one of each interval, and those whose verdict differs from a neighbour's."""
    literal = queries.dialect.literal
    steps = sorted(thin_samples, reverse=True)
    cutoffs = [(_whole(now - timedelta(days=days), every), every) for days, every in steps]
    cases = " ".join(f"WHEN sampled_at < {literal(cutoff)} THEN {every}" for cutoff, every in cutoffs)
    step = f"CASE {cases} END"
    seconds = queries.dialect.seconds.format("sampled_at", literal(datetime.fromtimestamp(0, UTC)))
    one = ("group_id, " if name == "consumer_lag" else "") + "topic, partition"
    in_order = f"OVER (PARTITION BY {one} ORDER BY sampled_at)"
    verdict = _VERDICT[name]
    stays = (
        f"sampled_at = max(sampled_at) OVER (PARTITION BY {one}, {step}, floor({seconds} / {step}))"
        f" OR (lead(sampled_at) {in_order}) IS NULL"  # the next sample is too new to be considered
        f" OR ({verdict} IS DISTINCT FROM lead({verdict}) {in_order})"
        f" OR (lag(sampled_at) {in_order}) IS NOT NULL AND ({verdict} IS DISTINCT FROM lag({verdict}) {in_order})"
    )
    since = f" AND sampled_at >= {literal(oldest)}" if oldest is not None else ""
    where = f"{_own_rows(queries)} AND sampled_at < {literal(cutoffs[-1][0])}{since}"
    why = ", ".join(f"one in {every:g} s after {days:g} days" for days, every in reversed(steps))
    return Rule(name, why, where, stays)


def _thinning(queries: SparkQueries, rule: Rule) -> Removal:
    """Return the removal of a thinning; samples that are already thinned are not rewritten."""
    bounds = ", ".join(f"CAST({bound}(sampled_at) AS STRING) AS {bound}" for bound in ("min", "max"))
    [counted] = queries.rows(doomed(queries, rule, f"count(*) AS rows, {bounds}"))
    if not counted["rows"]:
        return Removal(rule.table, rule.where, None, 0)
    within = f"sampled_at BETWEEN timestamp '{counted['min']}' AND timestamp '{counted['max']}'"
    kept = _staying(queries, rule).where(within)
    return Removal(rule.table, f"{rule.where} AND {within}", kept, counted["rows"])


def _whole(at: datetime, seconds: float) -> datetime:
    """Round down to a whole interval, so that no interval is split."""
    return datetime.fromtimestamp(at.timestamp() // seconds * seconds, UTC)


def processed_bounds(queries: Queries, cutoff: datetime) -> dict[int, int]:
    """Return, per partition, the batch end below which all records are older than the cutoff and in the history.

    The newest batch of a partition is kept, as are all batches from the first unprocessed record on.
    """
    if not all(queries.exists(name) for name in (PROGRESS, "history_positions")):
        return {}
    own = _own_rows(queries)
    bounds = queries.rows(f"""
WITH unprocessed AS ({_first_unprocessed(queries)}),
batches AS (
  SELECT batch.*, first_unprocessed
  FROM {queries.table(PROGRESS)} AS batch
  LEFT JOIN unprocessed ON unprocessed.record_partition = batch.record_partition
  WHERE {own}
),
marked AS (
  SELECT
    *,
    coalesce(latest_record_at, landed_at) >= {queries.dialect.literal(cutoff)} OR end_offset > first_unprocessed
      OR start_offset = max(start_offset) OVER (PARTITION BY record_partition) AS {_STAYS}
  FROM batches
),
bounds AS (SELECT record_partition, min(start_offset) AS bound FROM marked WHERE {_STAYS} GROUP BY record_partition)
SELECT DISTINCT bounds.record_partition, bounds.bound
FROM bounds
JOIN marked ON marked.record_partition = bounds.record_partition
WHERE marked.end_offset <= bounds.bound AND marked.query_id <> '{SUMMARY}'
""")
    return {row["record_partition"]: row["bound"] for row in bounds}


def _first_unprocessed(queries: Queries) -> str:
    """Return the query of the first record of each partition that the history job has not processed."""
    own = _own_rows(queries)
    kinds = {"group_metadata": "true", "group_records": "true", "offset_commits": "is_tombstone"}
    records = " UNION ALL ".join(
        f"SELECT record_partition, group_id, record_offset FROM {queries.table(name)} WHERE {own} AND {which}"
        for name, which in kinds.items()
        if queries.exists(name)
    )
    return f"""
  SELECT record.record_partition, min(record.record_offset) AS first_unprocessed
  FROM ({records}) AS record
  LEFT JOIN (
    SELECT record_partition, group_id, processed_to FROM {queries.table("history_positions")} WHERE {own}
  ) AS position
    ON position.record_partition = record.record_partition AND position.group_id = record.group_id
  WHERE position.processed_to IS NULL OR record.record_offset >= position.processed_to
  GROUP BY record.record_partition
"""


def _records(queries: Queries, name: str, bounds: dict[int, int]) -> Rule:
    """Return decoded records, except the newest of each key unless it is a tombstone; or the batches of all these."""
    if name == PROGRESS:
        where = _below(queries, bounds, "end_offset", "<=")
        return Rule(name, "batches of these records, replaced by one row", where)
    where = _below(queries, bounds, "record_offset", "<")
    if name not in KEYS:
        return Rule(name, _WHY_RECORDS, where)
    newest = f"record_offset = max(record_offset) OVER (PARTITION BY record_partition, {', '.join(KEYS[name])})"
    return Rule(name, _WHY_RECORDS, where, f"NOT is_tombstone AND {newest}")


def _share_state(queries: Queries, cutoff: datetime) -> Rule:
    """Return records of share groups' state, except the newest of each key unless it is a tombstone.

    The newest of each partition of their topic stays, too: it says where to read on.
    """
    of_partition = "record_offset = max(record_offset) OVER (PARTITION BY record_partition{})"
    of_key = of_partition.format(", group_id, topic_id, partition")
    stays = f"{of_partition.format('')} OR NOT is_tombstone AND {of_key}"
    return replace(_older(queries, "share_group_state", "record_at", cutoff), stays=stays)


def _share_offsets(queries: Queries, cutoff: datetime) -> Rule:
    """Return what polls of share groups found, except the newest of each partition until it is superseded."""
    newest = "polled_at = max(polled_at) OVER (PARTITION BY group_id, topic, partition)"
    stays = f"outcome <> 'superseded' AND {newest}"
    return replace(_older(queries, "share_group_offsets", "polled_at", cutoff), stays=stays)


def _below(queries: Queries, bounds: dict[int, int], column: str, sign: str) -> str:
    parts = (
        f"record_partition = {partition} AND {column} {sign} {bound}" for partition, bound in sorted(bounds.items())
    )
    return f"{_own_rows(queries)} AND ({' OR '.join(f'({part})' for part in parts)})"


def _batches(warehouse: Warehouse, rule: Rule) -> Removal:
    """Replace the batches of each partition with one row, which counts the deleted records as holes."""
    rows = warehouse.table(PROGRESS).all_clusters().where(rule.where)
    records = rule.where.replace("end_offset <=", "record_offset <")
    survivors = counted_records(warehouse, DECODED, records).drop("first_offset", "end_offset")
    summed = rows.groupBy("record_partition").agg(*_summed(rows.columns)).join(survivors, "record_partition", "left")
    counted = summed.fillna(0, list(DECODED))
    kept = " + ".join(DECODED)
    whole = counted.selectExpr("*", f"end_offset - start_offset - lost - ({kept}) AS holes")
    return Removal(PROGRESS, rule.where, whole.select(*rows.columns), rows.count())


def _summed(columns: list[str]) -> list[Column]:
    """Return the aggregates of the row that replaces many batches, except those computed from the kept records."""
    from pyspark.sql import functions as F

    aggregates = {
        "cluster": F.first("cluster"),
        "batch_id": F.lit(-1).cast("bigint"),
        "query_id": F.lit(SUMMARY),
        "start_offset": F.min("start_offset"),
        "end_offset": F.max("end_offset"),
        "lost": F.sum("lost"),
        "landed_at": F.max("landed_at"),
    }
    survivors = (*DECODED, "holes", "earliest_record_at", "latest_record_at", "record_partition")
    newest = {name: F.max_by(name, "end_offset") for name in columns if name not in (*aggregates, *survivors)}
    return [value.alias(name) for name, value in (aggregates | newest).items()]
