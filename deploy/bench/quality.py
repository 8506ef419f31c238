"""The parts of `make bench` about the tables themselves: the time of a check, and the size of a lag sample.

Rows are generated from the contracts: a day of lag samples of groups that mostly keep up, one in twenty of which
falls behind for an hour; and commits with the batches that they landed in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from bench.measure import PeakMemory, seconds
from grouptrail.config import Config
from grouptrail.maintenance import maintain
from grouptrail.quality import check, snapshot
from grouptrail.quality.results import TableResult
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.spark.jars import silent
from grouptrail.storage import upkeep
from grouptrail.storage.schema import table_schema
from grouptrail.storage.warehouse import Warehouse

DAY = datetime(2026, 11, 1, tzinfo=UTC)
EVERY_SECONDS = 10
SAMPLES_A_DAY = 24 * 3600 // EVERY_SECONDS
PARTITIONS_A_GROUP = 12
OFFSETS_PARTITIONS = 50
BATCH = 100_000


def lag_day(partitions: int) -> Iterator[pa.Table]:
    """Yield a day of samples of this many group-partitions, an hour at a time."""
    chance = np.random.default_rng(3)
    rates = np.exp(chance.normal(2.5, 1.5, partitions))
    ends = chance.integers(10**4, 10**8, partitions)
    lags = np.zeros(partitions, dtype=np.int64)
    for hour in range(24):
        slow = chance.random(partitions // PARTITIONS_A_GROUP + 1) < 0.05
        behind = np.repeat(slow, PARTITIONS_A_GROUP)[:partitions]
        count = SAMPLES_A_DAY // 24
        growth = chance.poisson(rates * EVERY_SECONDS, (count, partitions))
        end = ends + growth.cumsum(axis=0)
        # In one of five samples, a group that keeps up has lag from records since its last commit.
        jitter = np.where(chance.random((count, partitions)) < 0.2, growth // 3, 0)
        lag = np.where(behind, lags + growth.cumsum(axis=0) // 2, jitter)
        yield _lag_rows(hour, end, lag, behind, rates)
        ends, lags = end[-1], np.where(behind, lag[-1], 0)


def _lag_rows(hour: int, end: Any, lag: Any, behind: Any, rates: Any) -> pa.Table:
    count, partitions = end.shape
    number = np.tile(np.arange(partitions), count)
    start = int((DAY + timedelta(hours=hour)).timestamp() * 1e6)
    at = start + np.repeat(np.arange(count) * EVERY_SECONDS * 10**6, partitions) + number % 1000 * 500
    records_behind, age = lag.ravel(), (lag / rates).ravel().round(3)
    status = np.where(records_behind == 0, "OK", np.where(np.tile(behind, count), "WARN", "OK"))
    group = np.char.add("team-service-", (number // PARTITIONS_A_GROUP).astype(str))
    figures = {
        "cluster": np.full(len(number), "default"),
        "group_id": group,
        "topic": np.char.add("domain.events-", (number // PARTITIONS_A_GROUP % 40).astype(str)),
        "partition": number % PARTITIONS_A_GROUP,
        "sampled_at": at,
        "committed_offset": (end - lag).ravel(),
        "commit_at": at - at % 5_000_000,
        "log_start_offset": np.zeros(len(number)),
        "log_end_offset": end.ravel(),
        "last_stable_offset": end.ravel(),
        "lag": records_behind,
        "lost_records": np.zeros(len(number)),
        "lag_seconds": np.where(records_behind == 0, 0.0, age),
        "lag_seconds_method": np.full(len(number), "observed"),
        "lag_seconds_error": np.where(records_behind == 0, 0.0, 5.0),
        "consume_rate": np.tile(rates.round(2), count),
        "produce_rate": np.tile(rates.round(2), count),
        "catch_up_seconds": np.where(records_behind == 0, 0.0, age * 2),
        "status": status,
        "status_reason": np.where(status == "OK", "keeps up: no lag within the window", "lag grows in every sample"),
        "group_state": np.full(len(number), "Stable"),
    }
    return _table("consumer_lag", figures)


def _table(name: str, columns: dict[str, Any]) -> pa.Table:
    """Return rows with a table's columns; columns without values are null."""
    count = len(next(iter(columns.values())))
    arrays = {
        field.name: pa.array(columns[field.name]).cast(field.type)
        if field.name in columns
        else pa.nulls(count, field.type)
        for field in table_schema(name)
    }
    return pa.table(arrays)


def lay_lag_day(warehouse: Warehouse, partitions: int) -> int:
    """Write a day of samples and return their number."""
    rows = 0
    for hour in lag_day(partitions):
        _append(warehouse, "consumer_lag", hour)
        rows += len(hour)
    return rows


def _append(warehouse: Warehouse, name: str, rows: pa.Table) -> None:
    frame = warehouse.session.createDataFrame(rows)
    frame.coalesce(1).write.format("delta").mode("append").save(warehouse.table(name).path)


def lay_commits(warehouse: Warehouse, count: int) -> None:
    """Write this many commits, and the batches in which they landed."""
    a_partition = count // OFFSETS_PARTITIONS
    start = int(DAY.timestamp() * 1e6)
    for first in range(0, a_partition, BATCH // OFFSETS_PARTITIONS):
        width = min(BATCH // OFFSETS_PARTITIONS, a_partition - first)
        partition = np.repeat(np.arange(OFFSETS_PARTITIONS), width)
        offset = np.tile(np.arange(first, first + width), OFFSETS_PARTITIONS)
        at = start + offset * 10**6
        size = len(offset)
        commits = {
            "cluster": np.full(size, "default"),
            "record_partition": partition,
            "record_offset": offset,
            "record_at": at,
            "group_id": np.char.add("team-service-", partition.astype(str)),
            "topic": np.full(size, "domain.events"),
            "partition": offset % PARTITIONS_A_GROUP,
            "committed_offset": offset * 10,
            "metadata": np.full(size, ""),
            "commit_at": at,
            "key_type": np.ones(size),
            "value_version": np.full(size, 4),
            "is_tombstone": np.zeros(size, dtype=bool),
        }
        _append(warehouse, "offset_commits", _table("offset_commits", commits))
        _append(warehouse, "ingest_progress", _table("ingest_progress", _batch(first, width, start)))


def _batch(first: int, width: int, start: int) -> dict[str, Any]:
    one = np.ones(OFFSETS_PARTITIONS, dtype=np.int64)
    none = dict.fromkeys(("group_metadata", "group_records", "undecodable_records", "holes", "lost"), 0 * one)
    times = {"earliest_record_at": first, "latest_record_at": first + width - 1, "landed_at": first + width}
    return {
        "cluster": np.full(OFFSETS_PARTITIONS, "default"),
        "record_partition": np.arange(OFFSETS_PARTITIONS),
        "batch_id": first * one,
        "query_id": np.full(OFFSETS_PARTITIONS, "bench"),
        "start_offset": first * one,
        "end_offset": (first + width) * one,
        "offset_commits": width * one,
        **none,
        **{name: (start + second * 10**6) * one for name, second in times.items()},
    }


def measure_check(spark: SparkSession, config: Config, folder: Path, *, rows: int) -> dict[str, Any]:
    """Return the seconds of a check of this many rows, half commits, half lag samples, by delta-rs and by Spark.

    Each is measured twice; the first one by Spark includes Java's compilation."""
    own = warehouse_of(config.model_copy(update={"warehouse": str(folder / "check")}), spark)
    own.ensure(("offset_commits", "ingest_progress", "consumer_lag"))
    lay_commits(own, rows // 2)
    samples = lay_lag_day(own, max(1, rows // 2 // SAMPLES_A_DAY))
    took: dict[str, list[float]] = {"delta-rs": [], "Spark": []}
    with PeakMemory() as peak:
        for _ in range(2):
            taken = snapshot.take(own, patience_seconds=0)
            without_spark = own.with_spark(None)
            quick = partial(check.run_with_delta_rs, without_spark, (), taken, start_spark=lambda: nullcontext(own))
            for engine, run in (("delta-rs", quick), ("Spark", partial(check.run, own))):
                took[engine].append(round(seconds(partial(_check, run)), 1))
    total = rows // 2 + samples
    print(
        f"check of {total:,} rows in two tables and their batches: {took} s, peak {peak.bytes / 1e6:,.0f} MB",
        flush=True,
    )
    return {"rows": total, "seconds": took, "peak_memory_mb": round(peak.bytes / 1e6)}


def _check(run: Callable[[], list[TableResult]]) -> None:
    check.raise_on_failures(run())


def measure_keep(spark: SparkSession, config: Config, folder: Path, *, partitions: int) -> dict[str, Any]:
    """Return the bytes of a day of lag samples: as the job wrote them, after `maintain`, and thinned with age."""
    own = warehouse_of(config.model_copy(update={"warehouse": str(folder / "keep")}), spark)
    table = own.table("consumer_lag")
    table.ensure()
    samples = lay_lag_day(own, partitions)
    figures: dict[str, Any] = {"samples": samples}
    for name, days in (("after a day", 1), ("after 2 days", 2.1), ("after 8 days", 8.1)):
        now = DAY + timedelta(days=days)
        started = time.monotonic()
        maintain.maintain(own, config.maintain, ("consumer_lag",), log=silent, now=now)
        took = time.monotonic() - started
        there = table.all_clusters().count()
        size = upkeep.size(table)[1]
        figures[name] = {
            "samples": there,
            "bytes": size,
            "bytes_a_sample": round(size / there, 2),
            "seconds": round(took, 1),
        }
        print(f"{name}: {there:,} of {samples:,} samples, {size:,} bytes, {size / there:.2f} a sample", flush=True)
    return figures
