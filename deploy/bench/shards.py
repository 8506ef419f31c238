"""A part of `make bench`: samples of lag in two shards on one executor and on two, and in one of ten shards, alone.

There is no Kafka: the benchmark writes the commits, and the samples of the logs one at a time, as the jobs do. A
sample counts from its commit to `log_offsets` until that of its lag to `consumer_lag`. Each executor has a core.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import write_deltalake

from bench.measure import seconds
from grouptrail.config import Config, job_settings, load_config
from grouptrail.kafka.coordinator import coordinator_partition
from grouptrail.lag.shard import LagInputs, Shard
from grouptrail.lag.state import LagState
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.storage.creation import create_table
from grouptrail.storage.files import with_all_columns, write
from grouptrail.storage.schema import table_schema
from grouptrail.storage.share_progress import TABLES as SHARE_TABLES
from servers.spark_cluster import SparkCluster

SAMPLES = 8
_SHARDS = 2
_WARM_UP = 3
PARTITIONS = 120
_PARTITIONS_A_TOPIC, _OFFSETS_PARTITIONS = 12, 50
_GROUPS_AT_A_TIME = 2_000
_DEADLINE_SECONDS = 900.0


def measure_shards(folder: Path, *, positions: int) -> dict[str, Any]:
    """Measure the seconds of a sample, and the most memory of a shard's process, on one executor and on two."""
    by_executors: dict[str, Any] = {}
    with SparkCluster(folder / "cluster", memory="1g") as cluster:
        for executors in (1, 2):
            config = load_config(None, {"warehouse": str(folder / f"warehouse-{executors}")}, {})
            lay_commits(config, positions // PARTITIONS)
            with _running(cluster, config, executors) as driver:
                took = [_sample_seconds(config, driver) for _ in range(SAMPLES)]
                memory = round(max(_shard_memory()) / 1e6)
            by_executors[f"{executors}"] = {"seconds": [round(one, 2) for one in took], "shard_memory_mb": memory}
            print(f"{positions:,} positions, {executors} executors: {by_executors[f'{executors}']}", flush=True)
    one, two = (median(by_executors[executors]["seconds"][_WARM_UP:]) for executors in ("1", "2"))
    figures = {"positions": positions, "executors": by_executors, "one_over_two": round(one / two, 2)}
    return figures | _one_of_ten(folder / "ten", positions=10 * positions)


def _one_of_ten(folder: Path, *, positions: int) -> dict[str, Any]:
    """Measure the seconds of a sample in one of ten shards, alone: what each of ten machines would do."""
    config = load_config(None, {"warehouse": str(folder)}, {})
    lay_commits(config, positions // PARTITIONS)
    warehouse = warehouse_of(config)
    for table in warehouse.tables(("consumer_lag", "committed_offsets", "tombstone_checks", *SHARE_TABLES)):
        create_table(table.location)
    location = warehouse.table("consumer_lag").location
    inputs = LagInputs(warehouse, config.kafka_settings(), job_settings.lag(config))
    state = LagState(inputs, lambda _: None, Shard(0, 10))
    state.prepare()
    started_at = datetime.now(UTC)
    took = []
    for number in range(SAMPLES):
        logs = sample(config.cluster, started_at + timedelta(seconds=10 * number))
        took.append(seconds(lambda logs=logs: list(write(state.lag(logs).to_batches(), location))))  # type: ignore[misc]
    figures = {"positions_of_ten": positions, "one_of_ten_seconds": [round(one, 2) for one in took]}
    print(f"{positions:,} positions, one of ten shards: {figures['one_of_ten_seconds']}", flush=True)
    return figures


def lay_commits(config: Config, groups: int) -> None:
    """Create the tables, with a commit of each group in each partition."""
    commits_table, logs = warehouse_of(config).tables(("offset_commits", "log_offsets"))
    for table in (commits_table, logs):
        create_table(table.location)
    location = commits_table.location.sharing({"source": "topic", "key_type": 1, "is_tombstone": False})
    for commits in commits_of(groups):
        write_deltalake(location.path, with_all_columns(commits, location), mode="append")


def commits_of(groups: int) -> Iterator[pa.Table]:
    """Yield a commit of each group in each partition, as rows of `offset_commits`, for some groups at a time."""
    typed = table_schema("offset_commits")
    at = pa.scalar(datetime.now(UTC) - timedelta(seconds=60), pa.timestamp("us", tz="UTC"))
    topics, partitions = places()
    for first in range(0, groups, _GROUPS_AT_A_TIME):
        numbers = np.arange(first, min(first + _GROUPS_AT_A_TIME, groups))
        names = [f"service-{number:06d}" for number in numbers]
        where = [coordinator_partition(name, _OFFSETS_PARTITIONS) for name in names]
        rows = len(numbers) * PARTITIONS
        columns = {
            "record_partition": np.repeat(where, PARTITIONS),
            "record_offset": np.arange(first * PARTITIONS, first * PARTITIONS + rows),
            "record_at": pa.repeat(at, rows),
            "commit_at": pa.repeat(at, rows),
            "group_id": pa.array(names).take(pa.array(np.repeat(np.arange(len(numbers)), PARTITIONS))),
            "topic": pa.array(topics * len(numbers)),
            "partition": pa.array(partitions * len(numbers)),
            "committed_offset": np.full(rows, 1000),
        }
        yield pa.table({name: pa.array(column).cast(typed.field(name).type) for name, column in columns.items()})


def places() -> tuple[list[str], list[int]]:
    """Return the topic and the number of each partition."""
    topics = [f"events-{number // _PARTITIONS_A_TOPIC:03d}" for number in range(PARTITIONS)]
    return topics, [number % _PARTITIONS_A_TOPIC for number in range(PARTITIONS)]


def sample(cluster: str, now: datetime) -> pa.Table:
    """Return rows of `log_offsets` at a time; the logs grow by a record a second."""
    topics, partitions = places()
    end = 1000 + round(now.timestamp()) % 100_000
    times = {"asked_at": now, "sampled_at": now}
    ends = {"log_start_offset": 0, "last_stable_offset": end, "log_end_offset": end}
    rows = [
        {"cluster": cluster, "topic": topic, "partition": partition} | times | ends
        for topic, partition in zip(topics, partitions, strict=True)
    ]
    return pa.Table.from_pylist(rows, table_schema("log_offsets"))


def _sample_seconds(config: Config, driver: subprocess.Popen[str]) -> float:
    """Append a sample, in which all logs have grown; return the seconds until its lag is in the table."""
    before = _newest_commit(config, "consumer_lag")
    write_deltalake(
        warehouse_of(config).table("log_offsets").path, sample(config.cluster, datetime.now(UTC)), mode="append"
    )
    appended = _newest_commit(config, "log_offsets")
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while (ended := _newest_commit(config, "consumer_lag")) == before:
        assert driver.poll() is None, "the driver has ended"
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return ended - appended


def _newest_commit(config: Config, table: str) -> float:
    """Return the time of the newest commit that adds rows; 0 without any."""
    commits = Path(warehouse_of(config).table(table).path, "_delta_log").glob("0*.json")
    return max((one.stat().st_mtime for one in commits if '"add"' in one.read_text()), default=0.0)


@contextmanager
def _running(cluster: SparkCluster, config: Config, executors: int) -> Iterator[subprocess.Popen[str]]:
    """Run the lag job."""
    environ = cluster.environment() | {
        "PYSPARK_PYTHON": sys.executable,
        "GROUPTRAIL_WAREHOUSE": config.warehouse,
        "GROUPTRAIL_LAG__SHARDS": str(_SHARDS),
        "GROUPTRAIL_EXPORTER__LISTEN": "",
    }
    command = [*cluster.submission(None, executors=executors), "--job", "lag"]
    log = Path(f"{config.warehouse}.log")
    with (
        log.open("w") as printed,
        subprocess.Popen(command, env=environ, stdout=printed, stderr=printed, text=True) as driver,
    ):
        try:
            yield driver
        finally:
            driver.terminate()
            driver.wait(60)


def _shard_memory() -> list[int]:
    """Return the resident bytes of each shard's process."""
    peaks = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if "grouptrail.lag.shard_process" in (process / "cmdline").read_text():
                [line] = re.findall(r"VmHWM:\s+(\d+) kB", (process / "status").read_text())
                peaks.append(int(line) * 1024)
        except OSError:  # it has ended
            continue
    return peaks
