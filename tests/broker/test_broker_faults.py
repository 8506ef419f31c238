"""Brokers that fail over, hang, compact and delete: the tables have what the topic has, or count what it lost."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from bench.commits import commits as many_commits
from grouptrail.config import Config
from grouptrail.kafka.coordinator import coordinator_partition
from grouptrail.kafka.offsets_topic import OffsetsTopic
from grouptrail.wire.records import Key, Value, encode_key, encode_value
from servers import processes
from servers.kafka import Broker
from servers.kafka_cluster import KafkaCluster
from servers.offsets_topic import OFFSETS_TOPIC, hanging_transaction, load_raw, read_records
from support import landed
from support.cli_in_process import Cli, succeeded
from support.cli_process import Grouptrail
from support.kafka_clients import PATIENCE_SECONDS, await_that, commit, configure_offsets_topic, make_orders

DECODE = ("--job", "decode")
HALF_A_DAY_MS = 12 * 3_600_000


def groups(partitions: int) -> list[str]:
    """Return a group for each partition of the offsets topic."""
    names = {coordinator_partition(name, partitions): name for name in (f"group-{n}" for n in range(100))}
    return [names[partition] for partition in range(partitions)]


def stopped(run: Grouptrail) -> None:
    run.process.send_signal(signal.SIGTERM)
    printed = run.finished()
    assert run.process.returncode == 128 + signal.SIGTERM, printed


def load_many(bootstrap: str) -> None:
    """Write so many commits that the driver does not decode them by itself, even in two or three batches."""
    load_raw(bootstrap, ((partition % 3, key, value) for partition, key, value in many_commits(150_000)))


@contextlib.contextmanager
def pipeline(config: Config, *arguments: str, environ: dict[str, str] | None = None) -> Iterator[Grouptrail]:
    run = Grouptrail(config, "run", *arguments, environ=environ)
    try:
        yield run
    finally:
        if run.process.poll() is None:
            run.kill()


def await_landed(config: Config, bootstrap: str, run: Grouptrail) -> None:
    def is_there() -> bool:
        assert run.process.poll() is None, run.finished()
        return landed.records(config) == landed.in_topic(bootstrap)

    await_that(is_there, 4 * PATIENCE_SECONDS)


# --- three brokers -------------------------------------------------------------------------------------------


@pytest.mark.full
def test_decode_job_broker_failover_and_python_worker_kill_lands_each_record_once(tmp_path: Path) -> None:
    """One run survives kill -9 of the coordinator, leader elections, an orderly restart, and kill -9 of its Python
    workers."""
    names = groups(3)
    with KafkaCluster(tmp_path / "kafka", properties={"offsets.topic.num.partitions": "3"}) as cluster:
        at = cluster.bootstrap
        make_orders(at)
        config = landed.config_of(at, tmp_path / "warehouse")
        with pipeline(config, *DECODE) as run:
            for name in names:
                commit(at, name, 1)
            await_landed(config, at, run)

            coordinator = cluster.leader(OFFSETS_TOPIC, 0)
            coordinator.kill()
            for name in names:
                commit(at, name, 2)
            assert cluster.leader(OFFSETS_TOPIC, 0) is not coordinator
            await_landed(config, at, run)

            coordinator.start()
            for topic, partitions in ((OFFSETS_TOPIC, 3), ("orders", 2)):
                cluster.elect_preferred(topic, partitions)
            assert cluster.leader(OFFSETS_TOPIC, 0) is coordinator
            commit(at, names[0], 3, partition=1)
            cluster.leader("orders", 0).stop()
            for name in names:
                commit(at, name, 4)
            await_landed(config, at, run)

            cluster.start()
            load_many(at)
            await_that(lambda: bool(processes.python_workers(run.process.pid)))
            for pid in processes.python_workers(run.process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            load_many(at)
            commit(at, names[1], 5)
            await_landed(config, at, run)
            stopped(run)
        landed.assert_progress_adds_up(config)
        landed.assert_formatter_agrees(cluster.brokers[0], config)


# --- one broker, which hangs, and whose topic shrinks --------------------------------------------------------


def newest_progress(config: Config, partition: int) -> dict[str, Any]:
    rows = [row for row in landed.rows(config, "ingest_progress") if row["record_partition"] == partition]
    return max(rows, key=lambda row: row["end_offset"])


@pytest.mark.full
def test_decode_job_network_stall_open_transaction_and_unknown_versions_lands_each_record_once(
    small: Broker, of: Config
) -> None:
    """One run survives the stall, reports the open transaction, and lands records that follow undecodable ones."""
    first, second, _ = groups(3)
    at, config = small.bootstrap, of
    assert small.proxy is not None
    with pipeline(config, *DECODE) as run:
        for name in (first, second):
            commit(at, name, 1)
        await_landed(config, at, run)
        await_that(lambda: len(landed.rows(config, "ingest_progress")) >= 2)
        before = {partition: newest_progress(config, partition)["end_offset"] for partition in (0, 1)}
        small.proxy.stall()
        for offset in (2, 3):
            commit(at, first, offset)
        with hanging_transaction(at, first, "orders", 1, patience_seconds=PATIENCE_SECONDS):
            for offset in (4, 5, 6):
                commit(at, first, offset)
            with pytest.raises(KafkaException):
                AdminClient({"bootstrap.servers": small.proxied_bootstrap}).list_topics(timeout=10)
            assert run.process.poll() is None
            small.proxy.resume()
            stable = before[0] + 2
            await_that(lambda: newest_progress(config, 0)["end_offset"] == stable, 4 * PATIENCE_SECONDS)
            newest = newest_progress(config, 0)
            assert (newest["last_stable_offset"], newest["log_end_offset"]) == (stable, stable + 4)
            commit(at, second, 2)
            await_that(lambda: newest_progress(config, 1)["end_offset"] == before[1] + 1, 4 * PATIENCE_SECONDS)
        await_landed(config, at, run)
        await_that(lambda: newest_progress(config, 0)["end_offset"] == stable + 5)
        landed.assert_formatter_agrees(small, config)

        key = encode_key(Key(1, {"group": first, "topic": "orders", "partition": 0}))
        load_raw(at, [(2, key, b"\x00\x63of a later version"), (2, b"\x00\x63of a later type", b"\x00\x00")])
        commit(at, first, 7)
        await_landed(config, at, run)
        assert len(landed.rows(config, "undecodable_records")) == 2
        stopped(run)
    landed.assert_progress_adds_up(config)


@pytest.mark.usefixtures("restored")
@pytest.mark.full
def test_ingest_progress_compaction_and_retention_while_stopped_counts_holes_and_lost(
    small: Broker, of: Config, cli: Cli
) -> None:
    """Half a day of records arrives while no job runs; most are compacted away, later ones are deleted unread."""
    first, second, _ = groups(3)
    at, config = small.bootstrap, of
    for name in (first, second):
        commit(at, name, 1)
    succeeded(cli(config, "run", "--once", *DECODE))
    before = landed.records(config)
    position = newest_progress(config, 1)["end_offset"]

    load_old(at, first, 200)
    configure_offsets_topic(at, segment_ms="100", min_cleanable_dirty_ratio="0.001", max_compaction_lag_ms="100")
    written = 0

    def is_compacted() -> bool:
        nonlocal written
        written += 1
        commit(at, first, written)  # what is new rolls the segment, and only rolled ones are cleaned
        return sum(record.partition == 0 for record in read_records(at)) < 150

    await_that(is_compacted)
    assert "holes" in succeeded(cli(config, "run", "--once", *DECODE))
    after = landed.records(config)
    assert landed.in_topic(at).items() <= after.items()
    assert before.items() <= after.items()
    landed.assert_progress_adds_up(config)
    assert newest_progress(config, 0)["holes"] > 50

    configure_offsets_topic(at, cleanup_policy="delete", retention_bytes="1")

    def is_deleted() -> bool:
        commit(at, second, 1)
        with OffsetsTopic(config.kafka_settings()) as offsets:
            return offsets.bounds()[1].log_start_offset > position + 2

    await_that(is_deleted)
    printed = succeeded(cli(config, "run", "--once", *DECODE))
    assert "LOST: retention removed them before they were read" in printed
    landed.assert_progress_adds_up(config)
    assert newest_progress(config, 1)["lost"] >= 3
    assert landed.in_topic(at).items() <= landed.records(config).items()


@pytest.fixture
def restored(small: Broker) -> Iterator[None]:
    """Reset compaction and retention after the test, so that no more records of the topic are removed."""
    yield
    configure_offsets_topic(
        small.bootstrap,
        cleanup_policy="compact",
        retention_bytes="-1",
        segment_ms="604800000",
        min_cleanable_dirty_ratio="1",
        max_compaction_lag_ms=str(2**63 - 1),
    )


def load_old(bootstrap: str, group: str, count: int) -> None:
    """Load commits of one position that are half a day old, as after a long outage."""
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": "__admin_client"})
    key = encode_key(of := Key(1, {"group": group, "topic": "orders", "partition": 1}))
    began = round(time.time() * 1000) - HALF_A_DAY_MS
    for number in range(count):
        fields = {"offset": number, "leaderEpoch": -1, "metadata": "", "commitTimestamp": began + number}
        value = encode_value(of, Value(3, fields))
        producer.produce(OFFSETS_TOPIC, key=key, value=value, partition=0, timestamp=began + number)
    assert producer.flush(PATIENCE_SECONDS) == 0


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker behind a proxy with a fast log cleaner; the tests load undecodable records into its last partition
    only."""
    cleaner = {"log.cleaner.backoff.ms": "100", "log.retention.check.interval.ms": "300"}
    properties = {"offsets.topic.num.partitions": "3", "log.segment.delete.delay.ms": "100", **cleaner}
    with Broker(tmp_path_factory.mktemp("kafka"), properties=properties, proxied=True) as started:
        make_orders(started.bootstrap)
        yield started


@pytest.fixture
def of(small: Broker, tmp_path: Path) -> Config:
    return landed.config_of(small.proxied_bootstrap, tmp_path / "warehouse")


# --- a full disk ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def little_disk(folder: Path, size: str) -> Iterator[None]:
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        assert "CI" not in os.environ, mounted.stderr
        pytest.skip("no right to mount a small file system")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_run_disk_full_exits_with_one_line_and_next_run_lands_all_records(
    small: Broker, cli: Cli, tmp_path: Path
) -> None:
    """The run ends with one line; once the disk has room, the next run resumes."""
    folder = tmp_path / "disk"
    load_old(small.bootstrap, groups(3)[0], 5_000)
    with little_disk(folder, "72k"):
        config = landed.config_of(small.bootstrap, folder / "warehouse")
        run = Grouptrail(config, "run", "--once", *DECODE)
        line = run.finished().splitlines()[-1]
        assert run.process.returncode == 1
        assert line.startswith("grouptrail: the disk is full: make room for the warehouse"), line
        subprocess.run(["mount", "-o", "remount,size=64m", str(folder)], check=True)
        succeeded(cli(config, "run", "--once", *DECODE))
        assert landed.records(config) == landed.in_topic(small.bootstrap)
        landed.assert_progress_adds_up(config)


@pytest.mark.full
def test_run_disk_full_restarts_its_jobs_until_there_is_room(small: Broker, tmp_path: Path) -> None:
    """All jobs, in one process that nobody restarts."""
    folder = tmp_path / "disk"
    load_old(small.bootstrap, groups(3)[0], 5_000)
    with little_disk(folder, "300k"):
        config = landed.config_of(small.bootstrap, folder / "warehouse")
        with pipeline(config) as run:
            line = next(line for line in run.lines() if "restarting it in" in line)
            assert "the disk is full: make room for the warehouse" in line, line
            subprocess.run(["mount", "-o", "remount,size=256m", str(folder)], check=True)
            await_landed(config, small.bootstrap, run)
            await_that(lambda: landed.rows(config, "consumer_lag"), 4 * PATIENCE_SECONDS)
            stopped(run)
        landed.assert_progress_adds_up(config)
