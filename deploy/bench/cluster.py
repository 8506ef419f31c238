"""A part of `make bench`: the decode job on a Spark cluster.

The cluster is a standalone one on this machine, each executor with a core of its own; the job is submitted to one
executor and to two, alternately.
"""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from bench.commits import commits
from servers.kafka import Broker, uncleaned_broker
from servers.offsets_topic import ensure_offsets_topic, load_raw
from servers.spark_cluster import SparkCluster

ROUNDS = 2
BATCH = 500_000

_RUN_DEADLINE_SECONDS = 600.0
_BATCH_LINE = re.compile(r"^batch \d+: ([\d,]+) records in ([\d.]+) s", re.MULTILINE)


def measure_executors(folder: Path, *, records: int) -> dict[str, Any]:
    """Measure records per second with one executor and with two, without each run's first batch, in which Java
    compiles."""
    rates: dict[int, list[float]] = {1: [], 2: []}
    with uncleaned_broker(folder / "kafka") as broker, SparkCluster(folder / "cluster", memory="2g") as cluster:
        ensure_offsets_topic(broker.bootstrap)
        load_raw(broker.bootstrap, commits(records))
        print(f"{records:,} commits are in __consumer_offsets", flush=True)
        for number, executors in itertools.product(range(ROUNDS), rates):
            warehouse = str(folder / f"warehouse-{number}-{executors}")
            printed = _submitted(cluster, broker, warehouse, executors)
            batches = [(int(count.replace(",", "")), float(took)) for count, took in _BATCH_LINE.findall(printed)][1:]
            assert batches, printed
            rate = sum(count for count, _ in batches) / sum(took for _, took in batches)
            rates[executors].append(rate)
            print(f"{executors} executors: {rate:,.0f} records a second", flush=True)
    return {
        "records": records,
        "records_a_second": {executors: [round(rate) for rate in of_one] for executors, of_one in rates.items()},
        "two_over_one": round(median(two / one for one, two in zip(rates[1], rates[2], strict=True)), 2),
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
