"""A part of `make bench`: decoding, beside a plain copy of the topic and a hand-written Python UDF.

Commits are loaded into the `__consumer_offsets` of a broker of its own, then copied plainly and decoded by turns, on
one Spark session that has been warmed up.
"""

from __future__ import annotations

import shutil
import statistics
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.commits import commits
from bench.measure import PeakMemory, seconds
from grouptrail.config import Config, load_config
from grouptrail.decode import job
from grouptrail.decode.schema import COMMITS, row_ddl
from grouptrail.decode.tasks import rows_of
from grouptrail.jobs import DECODE
from grouptrail.kafka.offsets_topic import OffsetsTopic
from grouptrail.runtime.warehouses import context_of, session_settings, warehouse_of
from grouptrail.spark.jars import silent
from grouptrail.spark.session import start_session
from grouptrail.spark.streams import read_offsets_topic, start_query
from grouptrail.storage import upkeep
from grouptrail.storage.warehouse import Warehouse
from servers.kafka import Broker, uncleaned_broker
from servers.offsets_topic import ensure_offsets_topic, load_raw

WARM_UPS, ROUNDS = 3, 7


def measure_decode(folder: Path, *, records: int) -> dict[str, Any]:
    """Measure decoding of so many records, and its peak memory for up to eight times as many."""
    with uncleaned_broker(folder / "kafka") as broker:
        return _measure(broker, folder, records)


# By default Spark computes a batch's size after each record, which takes longer than all other work on the record.
_BATCHES = {
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1024",
}


class _Decoding:
    """The measurements on one session and one broker."""

    def __init__(self, spark: SparkSession, config: Config, folder: Path) -> None:
        self._spark = spark
        self._config = config
        self._folder = folder
        with OffsetsTopic(config.kafka_settings()) as topic:
            self._partitions = topic.partitions()
            self._group = topic.answering_group()

    def _own(self, name: str) -> Config:
        warehouse = self._folder / name
        shutil.rmtree(warehouse, ignore_errors=True)
        return self._config.model_copy(update={"warehouse": str(warehouse), "checkpoints": None})

    def _records(self, config: Config) -> DataFrame:
        """Return the topic as Spark's Kafka source reads it, in one task per core."""
        return (
            read_offsets_topic(
                self._spark,
                config.kafka_settings(),
                self._partitions,
                group=self._group,
                max_records_per_batch=config.decode.max_records_per_batch,
            )
            .selectExpr(
                *("partition AS record_partition", "offset AS record_offset", "timestamp AS record_at"),
                *("key", "value", "CAST(null AS boolean) AS is_transactional"),
            )
            .coalesce(self._spark.sparkContext.defaultParallelism)
        )

    def copy(self, name: str = "copy") -> float:
        """Return the seconds of a plain Spark copy of key and value into Delta, with the same source and batches."""
        config = self._own(name)
        records = self._records(config).select("key", "value")
        path = warehouse_of(config).table("copy").path

        def append(batch: DataFrame, _number: int) -> None:
            batch.write.format("delta").mode("append").save(path)

        return seconds(lambda: _run_once(records, config, append))

    def decode(self, name: str = "decode") -> float:
        """Return the seconds of the decode job, with all its tables and its progress."""
        config = self._own(name)
        context = context_of(DECODE, config, warehouse_of(config, self._spark), silent, once=True)
        return seconds(lambda: job.start(context).awaitTermination())

    def bytes_a_commit(self) -> float:
        """Return the bytes per commit in `offset_commits` once `grouptrail maintain` has sorted it."""
        location = f"{self._folder}/decode"
        table = Warehouse(location, "", spark=self._spark).table(COMMITS)
        upkeep.optimize(table)
        return upkeep.size(table)[1] / table.all_clusters().count()

    def decoders(self) -> dict[str, float]:
        """Return the seconds of decoding Parquet input without writing, for the job's decoder and for a Python
        UDF."""
        path = str(self._folder / "records")
        config = self._own("records-source")
        records = self._records(config)

        def append(batch: DataFrame, _number: int) -> None:
            batch.write.mode("append").parquet(path)

        _run_once(records, config, append)
        source = self._spark.read.parquet(path)
        for name, value in _BATCHES.items():
            self._spark.conf.set(name, value)
        columns = "struct<group: string, topic: string, partition: int, offset: bigint, at: bigint>"
        # With Arrow, which is Spark 4.2's default, a UDF on columns of a Parquet file never ends.
        decode_udf = F.udf(_udf, columns, useArrow=False)
        ways = {
            "none": source,
            "vectorised": source.mapInArrow(rows_of(COMMITS, config.decode.max_record_bytes), row_ddl(COMMITS)),
            "python udf": source.select(decode_udf("key", "value").alias("commit")).select("commit.*"),
        }
        return {name: min(_to_nowhere(rows) for _ in range(2)) for name, rows in ways.items()}


def _run_once(records: DataFrame, config: Config, append: Callable[[DataFrame, int], None]) -> None:
    """Run a query of all records that are there."""
    checkpoint = warehouse_of(config).checkpoint_path("copy")
    query = start_query(records, "copy", checkpoint, process=append, once=True, every_seconds=0)
    query.awaitTermination()


def _udf(key: bytes, value: bytes) -> tuple[str, str, int, int, int]:
    """A hand-written UDF for commits of version 4: it decodes less than the job does, one record at a time."""
    (group_length,) = struct.unpack_from(">h", key, 2)
    at = 4 + group_length
    (topic_length,) = struct.unpack_from(">h", key, at)
    group, topic = key[4:at].decode(), key[at + 2 : at + 2 + topic_length].decode()
    (partition,) = struct.unpack_from(">i", key, at + 2 + topic_length)
    _, offset, _, metadata, commit_at = struct.unpack_from(">hqibq", value, 0)
    assert metadata == 1
    return group, topic, partition, offset, commit_at


def _to_nowhere(rows: DataFrame) -> float:
    return seconds(lambda: rows.write.format("noop").mode("overwrite").save())


def _measure(broker: Broker, folder: Path, count: int) -> dict[str, Any]:
    ensure_offsets_topic(broker.bootstrap)
    _load(broker, count, upto=count)
    figures = _times(broker, folder)
    memory = {}
    for upto in (count, 2 * count, 4 * count, 8 * count):
        if upto > count:
            _load(broker, upto // 2, upto=upto)
        peak = _peak_memory(broker, folder / f"of-{upto}")
        print(f"decoding {upto:,} records: peak memory {peak / 1e6:,.0f} MB", flush=True)
        memory[f"{upto:,}"] = round(peak / 1e6)
    return {"records": count, **figures, "peak_memory_mb": memory}


def _load(broker: Broker, count: int, *, upto: int) -> None:
    load_raw(broker.bootstrap, commits(count))
    print(f"{upto:,} commits are in __consumer_offsets", flush=True)


def _times(broker: Broker, folder: Path) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    config = load_config(None, {"kafka.bootstrap.servers": broker.bootstrap, "warehouse": str(folder)}, {})
    spark = start_session(session_settings(config), "bench", print)
    try:
        bench = _Decoding(spark, config, folder)
        for _ in range(WARM_UPS):
            bench.copy("warm-up")
            bench.decode("warm-up")
        pairs = [(bench.copy(), bench.decode()) for _ in range(ROUNDS)]
        for copied, decoded in pairs:
            print(f"plain copy {copied:.1f} s, decode {decoded:.1f} s: ratio {decoded / copied:.2f}", flush=True)
        figures["copy_seconds"] = [round(copied, 1) for copied, _ in pairs]
        figures["decode_seconds"] = [round(decoded, 1) for _, decoded in pairs]
        copied, decoded = (statistics.median(times) for times in zip(*pairs, strict=True))
        figures["decode_over_copy"] = round(decoded / copied, 2)
        print(f"medians: {copied:.1f} s and {decoded:.1f} s, ratio {figures['decode_over_copy']}", flush=True)
        figures["bytes_a_commit"] = round(bench.bytes_a_commit(), 2)
        print(f"sorted: {figures['bytes_a_commit']} bytes a commit", flush=True)
        alone = bench.decoders()
        figures["decoder_seconds"] = {name: round(seconds, 1) for name, seconds in alone.items()}
        figures["python_udf_over_vectorised"] = round(
            (alone["python udf"] - alone["none"]) / (alone["vectorised"] - alone["none"]), 1
        )
        print(f"decoding alone: {figures['decoder_seconds']}, a Python UDF takes", end=" ")
        print(f"{figures['python_udf_over_vectorised']} times as long", flush=True)
    finally:
        spark.stop()
    return figures


def _peak_memory(broker: Broker, warehouse: Path) -> int:
    """Return the peak memory in bytes of a first `grouptrail run --job decode --once`."""
    command = [sys.executable, "-m", "grouptrail", "run", "--job", "decode", "--once"]
    place = ["--bootstrap-server", broker.bootstrap, "--warehouse", str(warehouse)]
    with subprocess.Popen([*command, *place], stdout=subprocess.DEVNULL) as run, PeakMemory(run.pid) as peak:
        if run.wait():
            raise SystemExit(f"{' '.join(command)} ended with {run.returncode}")
    shutil.rmtree(warehouse)
    return peak.bytes
