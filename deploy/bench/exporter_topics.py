"""A part of `make bench`: what names of other exporters about all topics of a large cluster cost the exporter.

There is no Kafka: the tables have one sample of the cluster that `bench.cluster_facts` makes up, and of its logs.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench import cluster_facts
from grouptrail.cluster_facts.sampler import Sampler
from grouptrail.cluster_facts.state import OpenRows
from grouptrail.config import Config, load_config
from grouptrail.exporter.page import ClusterPage, Page
from grouptrail.jobs import CLUSTER
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.snapshot.reader import ServedCluster, SnapshotReader
from grouptrail.storage.schema import table_schema

_ROUNDS = 5
_LOGS = "log_offsets"


def measure(folder: Path, *, topics: int) -> dict[str, Any]:
    """Return by exporters' names the processor time of a refresh and of a page's text, its size, and the memory."""
    spawning = multiprocessing.get_context("spawn")
    cluster_facts.write_responses(folder, topics)
    _run(spawning.Process(target=_lay, args=(folder, topics)))
    measured: dict[str, Any] = {"partitions": topics * cluster_facts.PARTITIONS}
    for names in ("", "kafka_exporter", "kminion"):
        figures = folder / "figures.json"
        _run(spawning.Process(target=_measure, args=(folder, names, figures)))
        measured[names or "own names only"] = json.loads(figures.read_text())
        print(names, measured[names or "own names only"], flush=True)
    return measured


def _run(process: Any) -> None:
    process.start()
    process.join()
    assert process.exitcode == 0


def _config(folder: Path, names: str) -> Config:
    settings = {
        "exporter.listen": "127.0.0.1:0",
        "exporter.also_as": names,
        "exporter.series_budget": "2000000",
        "exporter.page_bytes": "1000000000",
    }
    return load_config(None, {"warehouse": str(folder / "warehouse"), "cluster": "bench", **settings}, {})


def _lay(folder: Path, topics: int) -> None:
    warehouse = warehouse_of(_config(folder, ""))
    warehouse.ensure((*CLUSTER.writes, _LOGS))
    rows = OpenRows(warehouse, lambda: "bench")
    sampler = Sampler(cluster_facts.responses(folder), log_sizes_seconds=1)
    rows.update(sampler.sample(rows.tables))
    sizes, _ = sampler.log_sizes()
    assert sizes is not None
    rows.replace_log_sizes(sizes)
    noted = {"at": datetime.now(UTC).isoformat(), "interval_seconds": 3600, "problems": []}
    checkpoint = Path(warehouse.checkpoint_path(CLUSTER.name))
    checkpoint.mkdir(parents=True)
    (checkpoint / "last_sample.json").write_text(json.dumps(noted))
    warehouse.table(_LOGS).append(_logs(topics))
    files = [file for file in (folder / "warehouse").rglob("*.parquet") if _LOGS in file.parts]
    size = sum(file.stat().st_size for file in files)
    print(f"a sample of all logs takes {size / 1e6:.1f} MB", flush=True)


def _logs(topics: int) -> pa.Table:
    count, now = topics * cluster_facts.PARTITIONS, datetime.now(UTC)
    number = np.arange(count)
    names = pa.array([cluster_facts.name_of(topic) for topic in range(topics)])
    ends = np.random.default_rng(1).integers(0, 10**9, count)
    offsets = dict.fromkeys(("log_end_offset", "last_stable_offset"), pa.array(ends))
    columns = {
        "topic": names.take(pa.array(number // cluster_facts.PARTITIONS)),
        "partition": pa.array(number % cluster_facts.PARTITIONS),
        "log_start_offset": pa.array(ends // 2),
        **offsets,
        "topic_id": pa.nulls(count),
        "asked_at": pa.repeat(pa.scalar(now), count),
        "sampled_at": pa.repeat(pa.scalar(now), count),
        "error": pa.nulls(count),
    }
    schema = table_schema(_LOGS, without=("cluster",))
    return pa.table([columns[name].cast(schema.field(name).type) for name in schema.names], schema=schema)


def _measure(folder: Path, names: str, file: Path) -> None:
    config = _config(folder, names)
    # The sample of the logs, which is taken once, stays recent.
    reader = SnapshotReader(ServedCluster(warehouse_of(config), config.exporter, 3600))
    took: dict[str, list[float]] = {}

    def timed(what: str, started: float) -> None:
        took.setdefault(what, []).append(time.process_time() - started)

    for number in range(1 + _ROUNDS):
        started = time.process_time()
        snapshot = reader.read()
        timed("first read, s" if number == 0 else "read, s", started)
        started = time.process_time()
        page = ClusterPage(snapshot, config.exporter)
        timed("families, s", started)
        started = time.process_time()
        text = Page([page]).text(openmetrics=False)
        timed("text, s", started)
    figures = {what: round(sorted(values)[len(values) // 2], 3) for what, values in took.items()}
    series = sum(family.series for family in page.families)
    status = Path("/proc/self/status").read_text()
    peak = int(status.split("VmHWM:")[1].split()[0])
    figures |= {"series": series, "page, MB": round(sum(map(len, text)) / 1e6, 1), "peak, MB": round(peak / 1e3)}
    file.write_text(json.dumps(figures))
