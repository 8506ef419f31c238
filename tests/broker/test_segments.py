"""The topic's files on a broker's disk against the topic itself: the same rows, each once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from demo.workload import Workload
from grouptrail.config import Config, load_config
from grouptrail.console.progress import Log
from grouptrail.decode import job
from grouptrail.decode.schema import TABLES
from grouptrail.decode.sources.ingest import ingest_segments
from grouptrail.decode.sources.segments import SegmentsError, partition_folders
from grouptrail.jobs import DECODE
from grouptrail.runtime.warehouses import warehouse_of
from servers.kafka import Broker
from support import landed
from support.cli_in_process import Cli, run_cli, succeeded
from support.contexts import context
from support.kafka_clients import PATIENCE_SECONDS
from support.landed import config_of

WORKLOAD_SECONDS = 12
PARTITIONS = 4


@dataclass(frozen=True)
class Disk:
    """Copies of a broker's log folder, made while it ran (`early`) and after a kill -9 (`late`), where a transaction
    was open; `topic` is what a consumer then read of it. `live` is the warehouse that the decode
    job filled when the broker was up again."""

    early: Path
    late: Path
    broker: Broker
    live: Config
    topic: dict[landed.Coordinates, landed.Bytes]


def warehouse(folder: Path, broker: Broker) -> Config:
    settings = {"warehouse": str(folder), "cluster": "test", "kafka.bootstrap.servers": broker.bootstrap}
    return load_config(None, settings, {})


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Disk]:
    folder = tmp_path_factory.mktemp("disk")
    settings = {"offsets.topic.num.partitions": str(PARTITIONS)}
    with Broker(folder / "kafka", properties=settings) as broker:
        Workload(broker.bootstrap, prefix="disk-", report=lambda _actor, _event: None).run_for(WORKLOAD_SECONDS)
        shutil.copytree(broker.directory / "data", folder / "early")
        open_transaction(broker)
        topic = landed.in_topic(broker.bootstrap)
        broker.kill()
        shutil.copytree(broker.directory / "data", folder / "late")
        broker.start()
        live = warehouse(folder / "live", broker)
        decode(spark, live)
        yield Disk(folder / "early", folder / "late", broker, live, topic)


def open_transaction(broker: Broker) -> None:
    """Return the offsets of a transaction that is never ended."""
    settings = {"bootstrap.servers": broker.bootstrap}
    admin = AdminClient(settings)  # kept: what it has been asked fails when it is gone
    admin.create_topics([NewTopic("held", 2, 1)])["held"].result(PATIENCE_SECONDS)
    producer = Producer({**settings, "transactional.id": "hangs", "transaction.timeout.ms": 600_000})
    producer.init_transactions(PATIENCE_SECONDS)
    producer.begin_transaction()
    group = Consumer({**settings, "group.id": "held-back"})
    offsets = [TopicPartition("held", partition, 5) for partition in range(2)]
    producer.send_offsets_to_transaction(offsets, group.consumer_group_metadata(), PATIENCE_SECONDS)
    group.close()


def decode(spark: SparkSession, config: Config) -> None:
    query = job.start(context(DECODE, config, spark, lambda _line: None, once=True))
    assert query.awaitTermination(PATIENCE_SECONDS * 2)


def ingest(spark: SparkSession, config: Config, folder: Path, log: Log) -> None:
    limits = config.decode
    ingest_segments(
        warehouse_of(config, spark),
        partition_folders(folder),
        log,
        max_batch_bytes=limits.max_segment_batch_bytes,
        max_record_bytes=limits.max_record_bytes,
    )


def ingested(spark: SparkSession, config: Config, folder: Path) -> list[str]:
    lines: list[str] = []
    ingest(spark, config, folder, lines.append)
    return lines


def rows(config: Config, among: set[landed.Coordinates]) -> dict[str, list[dict[str, Any]]]:
    """Return the decoded tables' rows of some records, without what depends on the reading."""
    rows_of: dict[str, list[dict[str, Any]]] = {}
    for table in TABLES:
        ours = [row for row in landed.rows(config, table) if (row["record_partition"], row["record_offset"]) in among]
        in_order = sorted(ours, key=lambda row: (row["record_partition"], row["record_offset"]))
        of_reading = ("source", "read_at", "is_gapless")
        rows_of[table] = [{name: value for name, value in row.items() if name not in of_reading} for row in in_order]
    return rows_of


@pytest.mark.full
def test_ingest_segments_killed_broker_files_match_decode_job_rows(
    disk: Disk, spark: SparkSession, cli: Cli, tmp_path: Path
) -> None:
    """Row for row. The open transaction is left out and reported, and a second run adds nothing. The decode job then
    begins where the files end; together they land the same rows as the decode job alone."""
    config = warehouse(tmp_path / "warehouse", disk.broker)
    printed = succeeded(cli(config, "ingest-segments", str(disk.late)))
    assert "Traceback" not in printed, printed
    assert landed.records(config) == disk.topic
    assert rows(config, set(disk.topic)) == rows(disk.live, set(disk.topic))
    assert {row["source"] for table in TABLES for row in landed.rows(config, table)} == {"segments"}
    assert "a transaction is unfinished from offset" in printed
    assert "2 of unfinished transactions left out" in printed
    assert "of aborted transactions left out" in printed
    assert "next: grouptrail rebuild history" in printed.splitlines()[-1]
    landed.assert_progress_adds_up(config)
    before = landed.rows(config, "ingest_progress")

    lines = ingested(spark, config, disk.late)
    assert lines[-1].startswith(f"0 of {len(disk.topic):,} records landed, {len(disk.topic):,} had landed before")
    assert landed.records(config) == disk.topic
    assert landed.rows(config, "ingest_progress") == before

    decode(spark, config)
    whole = landed.records(disk.live)
    assert landed.records(config) == whole
    assert rows(config, set(whole)) == rows(disk.live, set(whole))
    landed.assert_progress_adds_up(config)


@pytest.mark.full
def test_ingest_segments_existing_warehouse_adds_only_missing_records(
    disk: Disk, spark: SparkSession, tmp_path: Path
) -> None:
    """As if compaction had removed records before the decode job read them. Records after the job's position are left
    to the job."""
    shutil.copytree(disk.live.warehouse, tmp_path / "warehouse")
    config = warehouse(tmp_path / "warehouse", disk.broker)
    whole = landed.records(config)
    for table, where in (("offset_commits", "record_offset % 3 = 0"), ("group_metadata", "record_partition = 1")):
        spark.sql(f"DELETE FROM delta.`{warehouse_of(config).table(table).path}` WHERE {where}")
    missing = whole.keys() - landed.records(config).keys()
    assert missing & disk.topic.keys()
    lines = ingested(spark, config, disk.late)
    assert lines[-2].startswith(f"{len(missing & disk.topic.keys()):,} of {len(disk.topic):,} records landed")
    assert landed.records(config).keys() == whole.keys() - (missing - disk.topic.keys())
    landed.assert_progress_adds_up(config)
    assert ingested(spark, config, disk.late)[-1].startswith("0 of ")


def _checked_byte(segment: bytearray, position: int) -> int:
    """Return the first byte that the checksum of the batch at a position is about: its leader epoch is not checked.

    Source: Kafka's documentation, "Record Batch".
    """
    batch = following = 0
    while following <= position:
        batch, following = following, following + 12 + int.from_bytes(segment[following + 8 : following + 12], "big")
    return batch + 21


@pytest.mark.full
def test_ingest_segments_one_replica_corrupted_lands_all_records_and_raises(
    disk: Disk, spark: SparkSession, tmp_path: Path
) -> None:
    """Two copies of the same partitions, one of them damaged: records missing in one are read from the other."""
    config = warehouse(tmp_path / "warehouse", disk.broker)
    for replica in ("early", "late"):
        shutil.copytree(getattr(disk, replica), tmp_path / "disk" / replica)
    largest = max(
        (tmp_path / "disk" / "early").glob("__consumer_offsets-*/*.log"), key=lambda path: path.stat().st_size
    )
    content = bytearray(largest.read_bytes())
    content[_checked_byte(content, len(content) // 2)] ^= 0xFF
    largest.write_bytes(content)
    lines: list[str] = []
    with pytest.raises(SegmentsError, match=r"1 places could not be read.*all else was ingested"):
        ingest(spark, config, tmp_path / "disk", lines.append)
    assert any(line.startswith(f"{largest}, byte ") for line in lines), lines
    assert landed.records(config) == disk.topic


@pytest.mark.parametrize(("name", "message"), [("absent", "there is no folder"), ("", "no segment")])
def test_ingest_segments_no_segments_exits_with_one_line(tmp_path: Path, name: str, message: str) -> None:
    config = config_of("127.0.0.1:9", tmp_path / "warehouse")
    run = run_cli(config, "ingest-segments", str(tmp_path / name))
    assert run.returncode == 1
    (line,) = run.printed.strip().splitlines()
    assert line.startswith(f"grouptrail: {message}")
