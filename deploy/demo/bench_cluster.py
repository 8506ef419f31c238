"""Two parts of `make bench`: the decode job on a Spark cluster, and the time that a start takes.

The cluster is a standalone one on this machine, each executor with a core of its own; the job is submitted to one
executor and to two, alternately. A start is `grouptrail run` on one machine, with all jobs; a probe commits before
it, and the start ends when the exporter serves the probe's offset. The last ones resume with a long history.
"""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow.compute as pc
from deltalake import DeltaTable
from kafka import KafkaAdminClient
from kafka.admin import NewTopic

from demo.bench_lag import running_pipeline
from demo.cluster import SparkCluster
from demo.kafka import Broker, ensure_offsets_topic, load_raw
from demo.probe import Probe
from grouptrail.config import Config, load_config
from grouptrail.storage.files import TableLocation, write

ROUNDS = 2
FEW = 100_000
BATCH = 500_000

_TOPIC = "probed"
_RUN_DEADLINE_SECONDS = 600.0
_LANDED = re.compile(r"^batch \d+: ([\d,]+) records in ([\d.]+) s", re.MULTILINE)

Commits = Callable[[int], Iterator[tuple[int, bytes, bytes]]]


def measure_executors(folder: Path, commits: Commits, *, records: int) -> dict[str, Any]:
    """Measure records per second with one executor and with two, without each run's first batch, in which Java
    compiles."""
    found: dict[int, list[float]] = {1: [], 2: []}
    with _broker(folder) as broker, SparkCluster(folder / "cluster", memory="2g") as cluster:
        ensure_offsets_topic(broker.bootstrap)
        load_raw(broker.bootstrap, commits(records))
        print(f"{records:,} commits are in __consumer_offsets", flush=True)
        for number, executors in itertools.product(range(ROUNDS), found):
            warehouse = str(folder / f"warehouse-{number}-{executors}")
            printed = _submitted(cluster, broker, warehouse, executors)
            batches = [(int(count.replace(",", "")), float(took)) for count, took in _LANDED.findall(printed)][1:]
            assert batches, printed
            rate = sum(count for count, _ in batches) / sum(took for _, took in batches)
            found[executors].append(rate)
            print(f"{executors} executors: {rate:,.0f} records a second", flush=True)
    return {
        "records": records,
        "records_a_second": {executors: [round(rate) for rate in rates] for executors, rates in found.items()},
        "two_over_one": round(median(two / one for one, two in zip(found[1], found[2], strict=True)), 2),
    }


def _submitted(cluster: SparkCluster, broker: Broker, warehouse: str, executors: int) -> str:
    environ = cluster.environment() | {
        "PYSPARK_PYTHON": sys.executable,
        "GROUPTRAIL_WAREHOUSE": warehouse,
        "GROUPTRAIL_KAFKA__BOOTSTRAP_SERVERS": broker.bootstrap,
        "GROUPTRAIL_DECODE__MAX_RECORDS_PER_BATCH": str(BATCH),
    }
    command = [*cluster.submission(None, executors=executors), "--job", "decode", "--once"]
    run = subprocess.run(
        command, env=environ, capture_output=True, text=True, check=True, timeout=_RUN_DEADLINE_SECONDS
    )
    return run.stdout


def measure_start(folder: Path, commits: Commits, *, records: int, history: int) -> dict[str, Any]:
    """Measure the seconds until the first correct metric, for a first start and a restart, by number of records.

    At last for restarts with so many commits of `history` in `offset_commits`: the first of them reads all, as they
    were appended by no job.
    """
    figures: dict[str, Any] = {}
    with _broker(folder) as broker, closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as admin:
        ensure_offsets_topic(broker.bootstrap)
        admin.create_topics([NewTopic(_TOPIC, 1, 1)], timeout_ms=60_000)
        probe = Probe(admin, _TOPIC)
        loaded = 0
        for count in (FEW, records):
            load_raw(broker.bootstrap, commits(count - loaded))
            loaded = count
            config = load_config(
                None, {"kafka.bootstrap.servers": broker.bootstrap, "warehouse": str(folder / f"of-{count}")}, {}
            )
            # The second run resumes after the first one, past the batches of the first minute.
            figures[f"{count:,}"] = {
                name: _until_served(probe, config, folder / f"{name}-{count}.log")
                for name in ("first", "resumed", "resumed again")
            }
            print(f"{count:,} records: {figures[f'{count:,}']}", flush=True)
        rows = _lengthen(config, history)
        _until_served(probe, config, folder / "reads-all.log")
        figures[f"{rows:,} in the table"] = [
            _until_served(probe, config, folder / f"long-{number}.log") for number in range(ROUNDS)
        ]
        print(f"{rows:,} commits in the table: {figures[f'{rows:,} in the table']}", flush=True)
    return figures


def _lengthen(config: Config, wanted: int) -> int:
    """Append the commits of `offset_commits` again, as older ones, until there are as many; return their number."""
    location = TableLocation("offset_commits", config.table_path("offset_commits"), config.storage_options(), {})
    table = DeltaTable(location.path)
    rows = table.to_pyarrow_table()
    many, added = max(1, wanted // len(rows)), list[str]()
    end = 1 + pc.max(rows["record_offset"]).as_py()
    for number in range(1, many):
        offsets = pc.subtract(rows["record_offset"], number * end)
        older = rows.set_column(rows.column_names.index("record_offset"), "record_offset", offsets)
        added += write(older.to_batches(), location)
    log = Path(location.path, "_delta_log", f"{table.version() + 1:020}.json")
    log.write_text("".join(f"{action}\n" for action in added))
    return many * len(rows)


def _until_served(probe: Probe, config: Config, log: Path) -> float:
    wanted = probe.commit()
    with running_pipeline(config, log) as pipeline:
        pipeline.await_commit(wanted, _RUN_DEADLINE_SECONDS)
        return round(time.monotonic() - pipeline.started, 1)


def _broker(folder: Path) -> Broker:
    return Broker(folder / "kafka", properties={"log.cleaner.enable": "false"}, heap="600m", report=print)
