"""The history part of `make bench`: a rebuild, micro-batches and a query, on a generated log.

The log is made as decoded tables: groups of two to five members whose number changes with every generation, and
commits between. A micro-batch is then 1,000 generations more, of as many groups as there are.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.measure import PeakMemory, seconds
from grouptrail import contracts
from grouptrail.config import Config
from grouptrail.history.job import HistoryBatchWriter
from grouptrail.history.rebuild import READ_OR_WRITTEN, rebuild
from grouptrail.jobs import HISTORY
from grouptrail.runtime.warehouses import context_of, warehouse_of
from grouptrail.spark.jars import silent
from grouptrail.storage.progress import PROGRESS, RANGE_COLUMNS
from grouptrail.storage.warehouse import Warehouse
from servers.pipeline import query

PARTITIONS = 50
TOPIC_PARTITIONS = 12
BATCH = 1_000
ROUNDS = 5
WARM_UP = 20

_STARTED_MS = 1_760_000_000_000
_APART_MS = 30_000

_MEMBER = f"""named_struct(
    'member_id', concat(group_id, '-', index), 'group_instance_id', CAST(null AS string),
    'client_id', concat('client-', index), 'client_host', concat('/10.0.0.', index),
    'rebalance_timeout_ms', 60000, 'session_timeout_ms', 45000,
    'subscription', named_struct(
        'layout', 'ConsumerProtocolSubscription', 'version', CAST(1 AS smallint), 'topics', array('orders'),
        'owned_partitions', CAST(null AS array<struct<topic: string, partitions: array<int>>>),
        'generation_id', CAST(null AS int), 'rack_id', CAST(null AS string), 'user_data', CAST(null AS binary),
        'previous_partitions', CAST(null AS array<struct<topic: string, partitions: array<int>>>),
        'previous_generation', CAST(null AS int), 'connect', CAST(null AS string),
        'verbatim', CAST(null AS binary), 'error', CAST(null AS string)),
    'assignment', named_struct(
        'layout', 'ConsumerProtocolAssignment', 'version', CAST(1 AS smallint),
        'partitions', array(named_struct(
            'topic', 'orders',
            'partitions', filter(sequence(0, {TOPIC_PARTITIONS - 1}), part -> part % members_now = index))),
        'user_data', CAST(null AS binary), 'connect', CAST(null AS string),
        'verbatim', CAST(null AS binary), 'error', CAST(null AS string)))"""


class GeneratedLog:
    """A log of `groups` groups in the decoded tables of a warehouse; every group gets the same number of
    generations."""

    def __init__(self, warehouse: Warehouse, groups: int, commits_a_generation: int) -> None:
        self._warehouse = warehouse
        self._groups = groups
        self._commits = commits_a_generation
        self._batches = 0
        warehouse.ensure(READ_OR_WRITTEN)

    def add(self, first: int, last: int, groups: int | None = None) -> None:
        """Write generations `first` to `last` of the first `groups` groups, as one landed batch."""
        step = self._commits + 1
        base = (
            self._warehouse.session.range(0, groups or self._groups, 1, 4)
            .withColumn("group_id", F.format_string("service-%05d", "id"))
            .withColumn("record_partition", (F.col("id") % PARTITIONS).cast("int"))
            .withColumn("generation", F.explode(F.sequence(F.lit(first), F.lit(last))))
            .withColumn("slot", F.expr(f"(generation * {self._groups} + id) * {step}"))
            .withColumn("at_ms", F.expr(f"{_STARTED_MS} + CAST(generation AS bigint) * {_APART_MS} + id % 1000"))
        )
        generations = (
            base.withColumn("members_now", F.expr("2 + (generation + id) % 4"))
            .withColumn("members", F.expr(f"transform(sequence(0, int(members_now - 1)), index -> {_MEMBER})"))
            .selectExpr(
                "record_partition", "slot AS record_offset", "timestamp_millis(at_ms) AS record_at", "group_id",
                "'consumer' AS protocol_type", "generation", "'roundrobin' AS protocol",
                "concat(group_id, '-0') AS leader", "timestamp_millis(at_ms - 20) AS state_at", "members",
            )
        )  # fmt: skip
        commits = base.withColumn("index", F.explode(F.sequence(F.lit(1), F.lit(max(self._commits, 1))))).selectExpr(
            "record_partition", "slot + index AS record_offset",
            f"timestamp_millis(at_ms + index * {_APART_MS // (self._commits + 1)}) AS record_at", "group_id",
            "'orders' AS topic", f"CAST(index % {TOPIC_PARTITIONS} AS int) AS partition",
            "generation * 1000L + index AS committed_offset", "'' AS metadata",
        )  # fmt: skip
        self._append("group_metadata", generations)
        if self._commits:
            self._append("offset_commits", commits)
        self._land(first, last, groups or self._groups)

    def _append(self, table: str, rows: DataFrame) -> None:
        """Append rows with the columns that the history reads; the others are null."""
        rows = rows.withColumn("cluster", F.lit(self._warehouse.cluster)).withColumn("is_tombstone", F.lit(False))
        columns = [
            F.col(column.name) if column.name in rows.columns else F.lit(None).cast(column.type).alias(column.name)
            for column in contracts.tables()[table].columns
        ]
        rows.select(*columns).write.format("delta").mode("append").save(self._warehouse.table(table).path)

    def _land(self, first: int, last: int, groups: int) -> None:
        step = (self._commits + 1) * self._groups
        end = (last + 1) * step
        none = {column.name: None for column in contracts.tables()["ingest_progress"].columns}
        moment = {
            "earliest_record_at": _time(_STARTED_MS + first * _APART_MS),
            "latest_record_at": _time(_STARTED_MS + (last + 1) * _APART_MS + 1000),
        }
        counts = dict.fromkeys(("group_records", "undecodable_records", "holes", "lost"), 0)
        groups_in = [len(range(partition, groups, PARTITIONS)) for partition in range(PARTITIONS)]
        rows = [
            {
                **none, **counts, **moment, "cluster": self._warehouse.cluster, "record_partition": partition,
                "group_metadata": (last - first + 1) * groups_in[partition],
                "offset_commits": (last - first + 1) * groups_in[partition] * self._commits,
                "batch_id": self._batches, "query_id": "bench", "start_offset": first * step, "end_offset": end,
                "last_stable_offset": end, "landed_at": datetime.now(UTC),
            }
            for partition in range(PARTITIONS)
        ]  # fmt: skip
        self._batches += 1
        progress = self._warehouse.table(PROGRESS)
        progress.append(pa.Table.from_pylist(rows, progress.schema))


def _time(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms / 1000, UTC)


def measure(
    spark: SparkSession, config: Config, folder: Path, *, groups: int, generations: int, commits: int
) -> dict[str, Any]:
    """Return the figures of a log of that size, and of micro-batches on it and on one a tenth as long."""
    figures: dict[str, Any] = {}
    batches = {}
    for share in (10, 1):
        own = config.model_copy(update={"warehouse": str(folder / f"history-{share}"), "checkpoints": None})
        warehouse = warehouse_of(own, spark)
        context = context_of(HISTORY, own, warehouse, silent)
        log = GeneratedLog(warehouse, groups, commits)
        length = generations // share
        log.add(1, length)
        records = groups * length * (commits + 1)
        print(f"{records:,} records of {groups:,} groups are there, {groups * length:,} generations", flush=True)
        with PeakMemory() as peak:
            took = seconds(lambda: rebuild(context, lambda: warehouse))  # noqa: B023
        print(
            f"rebuild history: {took:.1f} s, {records / took:,.0f} records a second, peak {peak.bytes / 1e6:,.0f} MB",
            flush=True,
        )
        batches[share] = _micro_batches(own, warehouse, log, length, groups)
        print(f"a micro-batch of {BATCH:,} group records: {batches[share]} s", flush=True)
    figures["rebuild_records_a_second"] = round(records / took)
    figures["rebuild_group_records_a_second"] = round(groups * length / took)
    figures["rebuild_peak_memory_mb"] = round(peak.bytes / 1e6)
    figures["micro_batch_seconds"] = {"a tenth": batches[10], "whole": batches[1]}
    figures["micro_batch_whole_over_tenth"] = round(median(batches[1]) / median(batches[10]), 2)
    middle = _time(_STARTED_MS + length * _APART_MS // 2).isoformat()
    ask = f"SELECT * FROM owners_at('service-{groups // 2:05d}', '{middle}')"
    query(own, ask)
    figures["owners_at_seconds"] = round(seconds(lambda: query(own, ask)), 3)
    print(f"owners_at in the middle of it: {figures['owners_at_seconds']} s", flush=True)
    return figures


def _micro_batches(config: Config, warehouse: Warehouse, log: GeneratedLog, length: int, groups: int) -> list[float]:
    """Return the seconds of each of some micro-batches, after as many warm-up batches as Java needs to compile."""
    lines: list[str] = []
    writer = HistoryBatchWriter(context_of(HISTORY, config, warehouse, lines.append), app=lambda: "bench")
    progress = warehouse.table(PROGRESS).dataframe()
    took = []
    for number in range(ROUNDS + WARM_UP):
        log.add(length + 1 + number, length + 1 + number, min(groups, BATCH))
        landed = progress.where(F.col("batch_id") == number + 1).select(*RANGE_COLUMNS).toArrow()
        started = time.monotonic()
        writer.process(landed, number)
        took.append(round(time.monotonic() - started, 2))
    assert not any("nothing new" in line for line in lines), "a micro-batch folded nothing"
    return took[WARM_UP:]
