"""What `grouptrail maintain` deletes: rows past the retention in `[maintain]`, and samples that it thins with age.

Open history rows and records that the history job has not processed yet are never deleted. The newest decoded record
of each key is kept, as after compaction, so that no live group or committed offset is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING

from grouptrail.decode.schema import TABLES as DECODED
from grouptrail.storage.positions import KEYS
from grouptrail.storage.progress import PROGRESS, counted_records
from grouptrail.storage.sql import spark_literal
from grouptrail.storage.tables import own_rows, read_all, table_exists

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from grouptrail.config import Config

SUMMARY = "maintain"
"""The `query_id` of the `ingest_progress` rows that summarise deleted batches."""

_STAYS, _FILE = "_stays", "_file"
_WHY_RECORDS = "processed into history, except the newest of each key"

# The column that dates a history row; dependent tables come first, so that no row refers to a deleted one.
_ENDED = {
    "rebalances": "at",
    "partition_ownership": "owned_until",
    "memberships": "left_at",
    "group_states": "ended_at",
    "generations": "ended_at",
}
_VERDICT = {"log_offsets": "error", "consumer_lag": "status"}

ORDER = (*_ENDED, *DECODED, PROGRESS, *_VERDICT, "check_results")
"""The tables with a retention, in an order that is safe to interrupt: the next run continues."""


@dataclass(frozen=True)
class Removal:
    """Rows to delete: those that match `where`, except the rows in `stays` (None: no exceptions).

    `count` is the number of rows, `files` the number of files that contain them.
    """

    table: str
    why: str
    where: str
    stays: DataFrame | None
    count: int
    files: int


def removals(spark: SparkSession, config: Config, name: str, now: datetime) -> Iterator[Removal]:
    """Return the removals for a table, in order."""
    keep = config.maintain
    if name in _ENDED and keep.history_days:
        yield _closed(spark, config, name, now - timedelta(days=keep.history_days))
    elif name in _VERDICT:
        oldest = now - timedelta(days=keep.samples_days) if keep.samples_days else None
        if oldest is not None:
            yield _older(spark, config, name, "sampled_at", oldest)
        if keep.thin_samples:
            yield _thinned(spark, config, name, now, oldest)
    elif name == "check_results" and keep.check_results_days:
        yield _older(spark, config, name, "checked_at", now - timedelta(days=keep.check_results_days))
    elif name in (*DECODED, PROGRESS) and keep.decoded_days:
        bounds = processed_bounds(spark, config, now - timedelta(days=keep.decoded_days))
        if bounds:
            make = _batches if name == PROGRESS else _records
            yield make(spark, config, name, bounds)


def _rows(spark: SparkSession, config: Config, name: str, where: str) -> DataFrame:
    """Return a table's rows, each with the name of its file."""
    from pyspark.sql import functions as F

    rows = read_all(spark, config, name)
    return rows.withColumn(_FILE, F.col("_metadata.file_path")).where(where)


def _all_of(rows: DataFrame, table: str, why: str, where: str) -> Removal:
    from pyspark.sql import functions as F

    found = rows.agg(F.count("*").alias("rows"), F.countDistinct(_FILE).alias("files")).first()
    assert found is not None
    return Removal(table, why, where, None, found["rows"], found["files"])


def _older(spark: SparkSession, config: Config, name: str, column: str, cutoff: datetime) -> Removal:
    where = f"{own_rows(config)} AND {column} < {spark_literal(cutoff)}"
    return _all_of(_rows(spark, config, name, where), name, f"before {cutoff:%Y-%m-%d %H:%M}", where)


def _closed(spark: SparkSession, config: Config, name: str, cutoff: datetime) -> Removal:
    """Return closed rows that ended before the cutoff, except generations to which a still open rebalance refers."""
    where = f"{own_rows(config)} AND open_bucket IS NULL AND NOT is_open AND {_ENDED[name]} < {spark_literal(cutoff)}"
    why = f"ended before {cutoff:%Y-%m-%d %H:%M}"
    rows = _rows(spark, config, name, where)
    if name != "generations" or not table_exists(spark, config, "rebalances"):
        return _all_of(rows, name, why, where)
    of = ["group_id", "record_offset"]
    needed = _rows(spark, config, "rebalances", f"{own_rows(config)} AND is_open").select(*of)
    removal = _all_of(rows.join(needed, of, "left_anti"), name, why, where)
    return replace(removal, stays=rows.join(needed, of, "left_semi").drop(_FILE))


def _thinned(spark: SparkSession, config: Config, name: str, now: datetime, oldest: datetime | None) -> Removal:
    """Thin samples: keep the last one of each interval, and those whose verdict differs from a neighbour's."""
    from pyspark.sql import functions as F

    steps = sorted(config.maintain.thin_samples, reverse=True)
    cutoffs = [(_whole(now - timedelta(days=days), every), every) for days, every in steps]
    step = (
        "CASE "
        + " ".join(f"WHEN sampled_at < {spark_literal(cutoff)} THEN {every}" for cutoff, every in cutoffs)
        + " END"
    )
    one = ("group_id, " if name == "consumer_lag" else "") + "topic, partition"
    in_order = f"OVER (PARTITION BY {one} ORDER BY sampled_at)"
    verdict = _VERDICT[name]
    stays = (
        f"sampled_at = max(sampled_at) OVER (PARTITION BY {one}, {step}, unix_seconds(sampled_at) DIV {step})"
        f" OR lead(sampled_at) {in_order} IS NULL"  # the next sample is too new to be considered
        f" OR NOT {verdict} <=> lead({verdict}) {in_order}"
        f" OR lag(sampled_at) {in_order} IS NOT NULL AND NOT {verdict} <=> lag({verdict}) {in_order}"
    )
    since = f" AND sampled_at >= {spark_literal(oldest)}" if oldest is not None else ""
    where = f"{own_rows(config)} AND sampled_at < {spark_literal(cutoffs[-1][0])}{since}"
    rows = _rows(spark, config, name, where).withColumn(_STAYS, F.expr(stays))
    found = (
        rows.where(f"NOT {_STAYS}")
        .agg(
            F.count("*").alias("rows"),
            F.countDistinct(_FILE).alias("files"),
            *(bound("sampled_at").cast("string").alias(bound.__name__) for bound in (F.min, F.max)),
        )
        .first()
    )
    assert found is not None
    why = ", ".join(f"one in {every:g} s after {days:g} days" for days, every in reversed(steps))
    if not found["rows"]:
        return Removal(name, why, where, None, 0, 0)
    # Samples that are already thinned are not rewritten.
    within = f"sampled_at BETWEEN timestamp '{found['min']}' AND timestamp '{found['max']}'"
    kept = rows.where(f"{within} AND {_STAYS}").drop(_STAYS, _FILE)
    return Removal(name, why, f"{where} AND {within}", kept, found["rows"], found["files"])


def _whole(at: datetime, seconds: float) -> datetime:
    """Round down to a whole interval, so that no interval is split."""
    return datetime.fromtimestamp(at.timestamp() // seconds * seconds, UTC)


def processed_bounds(spark: SparkSession, config: Config, cutoff: datetime) -> dict[int, int]:
    """Return, per partition, the batch end below which all records are older than the cutoff and in the history.

    The newest batch of a partition is kept, as are all batches from the first unprocessed record on.
    """
    from pyspark.sql import functions as F

    if not all(table_exists(spark, config, name) for name in (PROGRESS, "history_positions")):
        return {}
    unprocessed = _first_unprocessed(spark, config)
    batches = _rows(spark, config, PROGRESS, own_rows(config)).join(
        F.broadcast(unprocessed), "record_partition", "left"
    )
    stays = (
        f"coalesce(latest_record_at, landed_at) >= {spark_literal(cutoff)} OR end_offset > first_unprocessed"
        " OR start_offset = max(start_offset) OVER (PARTITION BY record_partition)"
    )
    bounds = batches.withColumn(_STAYS, F.expr(stays)).where(_STAYS).groupBy("record_partition")
    below = bounds.agg(F.min("start_offset").alias("bound"))
    found = batches.join(F.broadcast(below), "record_partition").where(
        f"end_offset <= bound AND query_id <> '{SUMMARY}'"
    )
    return {row.record_partition: row.bound for row in found.select("record_partition", "bound").distinct().collect()}


def _first_unprocessed(spark: SparkSession, config: Config) -> DataFrame:
    """Return, per partition, the first record that the history job has not processed."""
    from pyspark.sql import functions as F

    kinds = {"group_metadata": "true", "group_records": "true", "offset_commits": "is_tombstone"}
    frames = [
        _rows(spark, config, name, f"{own_rows(config)} AND {which}").select(
            "record_partition", "group_id", "record_offset"
        )
        for name, which in kinds.items()
        if table_exists(spark, config, name)
    ]
    positions = _rows(spark, config, "history_positions", own_rows(config))
    positions = positions.select("record_partition", "group_id", "told_to")
    return (
        reduce(type(positions).unionByName, frames)
        .join(positions, ["record_partition", "group_id"], "left")
        .where("told_to IS NULL OR record_offset >= told_to")
        .groupBy("record_partition")
        .agg(F.min("record_offset").alias("first_unprocessed"))
    )


def _below(config: Config, bounds: dict[int, int], column: str, sign: str) -> str:
    parts = (
        f"record_partition = {partition} AND {column} {sign} {bound}" for partition, bound in sorted(bounds.items())
    )
    return f"{own_rows(config)} AND ({' OR '.join(f'({part})' for part in parts)})"


def _records(spark: SparkSession, config: Config, name: str, bounds: dict[int, int]) -> Removal:
    """Remove decoded records, except the newest of each key unless it is a tombstone."""
    from pyspark.sql import functions as F

    where = _below(config, bounds, "record_offset", "<")
    if name not in KEYS:
        return _all_of(_rows(spark, config, name, where), name, _WHY_RECORDS, where)
    newest = f"record_offset = max(record_offset) OVER (PARTITION BY record_partition, {', '.join(KEYS[name])})"
    rows = _rows(spark, config, name, where).withColumn(_STAYS, F.expr(f"NOT is_tombstone AND {newest}"))
    removal = _all_of(rows.where(f"NOT {_STAYS}"), name, _WHY_RECORDS, where)
    return replace(removal, stays=rows.where(_STAYS).drop(_STAYS, _FILE))


def _batches(spark: SparkSession, config: Config, name: str, bounds: dict[int, int]) -> Removal:
    """Replace the batches of each partition with one row, which counts the deleted records as holes."""
    where = _below(config, bounds, "end_offset", "<=")
    rows = _rows(spark, config, name, where)
    removal = _all_of(rows, name, "batches of these records, replaced by one row", where)
    survivors = counted_records(spark, config, DECODED, _below(config, bounds, "record_offset", "<"))
    survivors = survivors.drop("first_offset", "end_offset")
    summed = rows.groupBy("record_partition").agg(*_summed(rows.columns)).join(survivors, "record_partition", "left")
    counted = summed.fillna(0, list(DECODED))
    kept = " + ".join(DECODED)
    whole = counted.selectExpr("*", f"end_offset - start_offset - lost - ({kept}) AS holes")
    return replace(removal, stays=whole.select(*(column for column in rows.columns if column != _FILE)))


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
    survivors = (*DECODED, "holes", "earliest_record_at", "latest_record_at", "record_partition", _FILE)
    newest = {name: F.max_by(name, "end_offset") for name in columns if name not in (*aggregates, *survivors)}
    return [value.alias(name) for name, value in (aggregates | newest).items()]
