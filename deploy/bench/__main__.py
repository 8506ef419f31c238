"""`make bench`: measure decoding, history, lag, metrics, views, timelines and web pages.

Decoding runs against a real broker of its own: commits are loaded into its `__consumer_offsets`, then copied
plainly and decoded by turns, on one Spark session that has been warmed up. Each of the others has a module of its
own, `bench_…`. See docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.cluster import measure_executors
from bench.exporter import measure as measure_exporter
from bench.history import measure as measure_history
from bench.lag import measure as measure_lag
from bench.measure import PeakMemory, seconds
from bench.pages import measure as measure_pages
from bench.peers import measure_peers, measure_release
from bench.quality import measure_check, measure_keep
from bench.sample import measure_sample
from bench.shards import measure_shards
from bench.start import measure_start
from bench.timeline import measure as measure_timeline
from bench.views import measure as measure_views
from grouptrail.config import Config, load_config
from grouptrail.decode import job
from grouptrail.decode.schema import COMMITS, row_ddl
from grouptrail.decode.tasks import rows_of
from grouptrail.kafka.coordinator import coordinator_partition
from grouptrail.kafka.offsets_topic import OffsetsTopic
from grouptrail.spark.jars import silent
from grouptrail.spark.session import start_session
from grouptrail.spark.streams import read_offsets_topic, start_query
from servers.kafka import Broker, ensure_offsets_topic, load_raw, uncleaned_broker

PARTITIONS = 50
GROUPS, TOPICS_A_GROUP, PARTITIONS_A_TOPIC, TOPICS = 400, 2, 12, 40
WARM_UPS, ROUNDS = 3, 7


def commits(count: int) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield commits of 400 groups: each commits its 24 partitions at once, advancing by up to some hundreds."""
    chance = random.Random(3)
    topics = [(f"domain.events-{number:02d}", chance.randbytes(16)) for number in range(TOPICS)]
    groups = []
    for number in range(GROUPS):
        name = f"team{number % 40:02d}-service-{number:03d}"
        keys = [
            (_key(name, topic, partition), topic_id)
            for topic, topic_id in chance.sample(topics, TOPICS_A_GROUP)
            for partition in range(PARTITIONS_A_TOPIC)
        ]
        offsets = [chance.randrange(10**7) for _ in keys]
        groups.append((coordinator_partition(name, PARTITIONS), keys, offsets, chance.randrange(2, 800)))
    now = int(time.time() * 1000) - count // 10
    for done in range(0, count, TOPICS_A_GROUP * PARTITIONS_A_TOPIC):
        partition, keys, offsets, step = chance.choice(groups)
        for index, (key, topic_id) in enumerate(keys):
            offsets[index] += chance.randrange(step)
            head = struct.pack(">hqi", 4, offsets[index], 3) + b"\x01" + struct.pack(">q", now + done // 10)
            yield partition, key, head + b"\x01\x00\x10" + topic_id


def _key(group: str, topic: str, partition: int) -> bytes:
    return b"".join(
        [
            *(struct.pack(">hh", 1, len(group)), group.encode()),
            *(struct.pack(">h", len(topic)), topic.encode(), struct.pack(">i", partition)),
        ]
    )


# By default Spark computes a batch's size after each record, which takes longer than all other work on the record.
_BATCHES = {
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1024",
}


class Bench:
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
            read_offsets_topic(self._spark, config, self._partitions, group=self._group)
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

        def land(batch: DataFrame, _number: int) -> None:
            batch.write.format("delta").mode("append").save(config.table_path("copy"))

        return seconds(lambda: start_query(records, config, "copy", land=land, once=True).awaitTermination())

    def decode(self, name: str = "decode") -> float:
        """Return the seconds of the decode job, with all its tables and its progress."""
        config = self._own(name)
        return seconds(lambda: job.start(self._spark, config, once=True, report=silent).awaitTermination())

    def bytes_a_commit(self) -> float:
        """Return the bytes per commit in `offset_commits` after the OPTIMIZE of `grouptrail maintain`."""
        path = self._config.model_copy(update={"warehouse": str(self._folder / "decode")}).table_path(COMMITS)
        self._spark.sql(f"OPTIMIZE delta.`{path}`").collect()
        detail = self._spark.sql(f"DESCRIBE DETAIL delta.`{path}`").collect()[0]
        rows = self._spark.read.format("delta").load(path).count()
        return float(detail.sizeInBytes) / rows

    def decoders(self) -> dict[str, float]:
        """Return the seconds of decoding Parquet input without writing, for the job's decoder and for a Python
        UDF."""
        path = str(self._folder / "records")
        config = self._own("records-source")
        records = self._records(config)

        def land(batch: DataFrame, _number: int) -> None:
            batch.write.mode("append").parquet(path)

        start_query(records, config, "records", land=land, once=True).awaitTermination()
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


def main() -> None:
    """Run the benchmark or parts of it, and print its figures, as text and as one line of JSON."""
    parts: dict[str, Callable[[Path, argparse.Namespace], dict[str, Any]]] = {
        "decode": _decode,
        "cluster": lambda folder, options: measure_executors(folder, commits, records=options.records),
        "start": lambda folder, options: measure_start(
            folder, commits, records=options.records, history=options.history, batches=options.batches
        ),
        "history": lambda folder, options: _on_tables(
            folder,
            measure_history,
            groups=options.groups,
            generations=options.generations,
            commits=options.commits,
        ),
        "lag": lambda folder, options: measure_lag(
            folder,
            partitions=options.partitions,
            groups=options.groups_each,
            minutes=options.minutes,
            a_second=options.a_second,
            on_cluster=options.on_cluster,
        ),
        "sample": lambda _folder, options: measure_sample(positions=options.positions),
        "shards": lambda folder, options: measure_shards(folder, positions=options.positions),
        "views": lambda folder, options: measure_views(
            load_config(None, {}, {}),
            folder,
            groups=options.groups,
            generations=options.generations,
            commits=options.commits,
        ),
        "check": lambda folder, options: _on_tables(folder, measure_check, rows=options.rows),
        "keep": lambda folder, options: _on_tables(folder, measure_keep, partitions=options.lag_partitions),
        "exporter": lambda _folder, _: measure_exporter(),
        "timeline": lambda folder, _: measure_timeline(folder),
        "pages": lambda folder, _: measure_pages(folder),
        "peers": lambda folder, options: measure_peers(folder, binary=os.environ.get("KMINION"), **_beside(options)),
        "release": lambda folder, options: measure_release(
            folder, release=os.environ.get("RELEASE"), binary=os.environ.get("KMINION"), **_beside(options)
        ),
    }
    parser = argparse.ArgumentParser(description=__doc__)
    default = [name for name in parts if name != "release"]  # needs a checkout to compare with
    parser.add_argument("--only", type=lambda text: text.split(","), default=default, help=", ".join(parts))
    parser.add_argument("--records", type=int, default=4_000_000, help="commits to decode")
    parser.add_argument("--history", type=int, default=100_000_000, help="commits in the table at a late start")
    parser.add_argument("--batches", type=int, default=17_280, help="batches at a late start that are not compacted")
    parser.add_argument("--groups", type=int, default=5_000, help="groups of the history")
    parser.add_argument("--generations", type=int, default=40, help="generations of each of them")
    parser.add_argument("--commits", type=int, default=49, help="commits in each generation")
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows to check")
    parser.add_argument("--lag-partitions", type=int, default=240, help="group-partitions of a day of lag samples")
    parser.add_argument("--partitions", type=int, default=5_000, help="number of real partitions")
    parser.add_argument("--groups-each", type=int, default=10, help="groups that commit to each of them")
    parser.add_argument("--positions", type=int, default=1_008_000, help="positions (group, partition) of a sample")
    parser.add_argument("--a-second", type=int, default=1_000, help="commits that are written meanwhile")
    parser.add_argument("--on-cluster", action="store_true", help="on three brokers, which can open more files")
    parser.add_argument("--minutes", type=float, default=10, help="for how long")
    parser.add_argument("--groups-beside", type=int, default=400, help="groups of several monitors' bench")
    parser.add_argument("--minutes-beside", type=float, default=1, help="for how long each of them is watched")
    options = parser.parse_args()
    if unknown := [name for name in options.only if name not in parts]:
        parser.error(f"--only: no such benchmark: {unknown[0]}: choose from {', '.join(parts)}")
    figures: dict[str, Any] = {"cores": os.cpu_count()}
    for name, part in parts.items():
        if name in options.only:
            with tempfile.TemporaryDirectory(prefix="grouptrail-bench-") as folder:
                figures[name] = part(Path(folder), options)
    print(json.dumps(figures))


def _decode(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    with uncleaned_broker(folder / "kafka") as broker:
        return _measure(broker, folder, options.records)


def _beside(options: argparse.Namespace) -> dict[str, Any]:
    """Return the size of what several monitors read."""
    return {
        "records": options.records,
        "groups": options.groups_beside,
        "a_second": options.a_second,
        "minutes": options.minutes_beside,
    }


def _on_tables(folder: Path, measure: Callable[..., dict[str, Any]], **size: int) -> dict[str, Any]:
    """Run the parts that need only tables, on a session of their own."""
    config = load_config(None, {"warehouse": str(folder)}, {})
    spark = start_session(config, "bench", print)
    try:
        return measure(spark, config, folder, **size)
    finally:
        spark.stop()


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
    spark = start_session(config, "bench", print)
    try:
        bench = Bench(spark, config, folder)
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
        print(f"after OPTIMIZE: {figures['bytes_a_commit']} bytes a commit", flush=True)
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


if __name__ == "__main__":
    main()
