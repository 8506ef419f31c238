"""The exporter part of `make bench`: the cost of a scrape, compared with prometheus-client's encoder in the same run.

Both start from the same families in memory, each in a process of its own, so that its peak memory can be measured.
Then an exporter builds one snapshot after the other while it is scraped: the slowest response shows if it blocks.
At last the series of 48,000 positions are pushed by OTLP to a process that throws them away, with and without the
default budget of series.
"""

from __future__ import annotations

import gzip
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.openmetrics.exposition import generate_latest

from bench.measure import seconds
from grouptrail.config import Config, load_config
from grouptrail.config.model import OtlpConfig
from grouptrail.exporter.families import group_families
from grouptrail.exporter.otlp import Pusher
from grouptrail.exporter.page import ClusterPage, Page
from grouptrail.exporter.service import Exporter
from grouptrail.exporter.text import EOF, Family, written
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.snapshot.reader import ServedCluster, SnapshotReader
from grouptrail.spark.jars import silent
from grouptrail.storage.schema import table_schema

SERIES = (10_000, 100_000)
TOPICS_A_GROUP, PARTITIONS_A_TOPIC = 2, 12
SERIES_A_GROUP = 205
ROUNDS = 5
SCRAPES = 40
POSITIONS = 48_000

_OPENMETRICS = {
    "Accept": "application/openmetrics-text;version=1.0.0",
    "Accept-Encoding": "gzip",
}


def lag_rows(groups: int) -> pa.Table:
    """Return a sample of this many groups, with realistic names."""
    now = datetime.now(UTC)
    count = groups * TOPICS_A_GROUP * PARTITIONS_A_TOPIC
    number = np.arange(count)
    group, topic = number // (TOPICS_A_GROUP * PARTITIONS_A_TOPIC), number // PARTITIONS_A_TOPIC
    names = np.array([f"team{group % 40:02d}-service-{group:05d}" for group in range(groups)])
    topics = np.array([f"domain.events-{topic:05d}" for topic in range(groups * TOPICS_A_GROUP)])
    alike = {
        "cluster": "bench", "sampled_at": now, "commit_at": now, "log_start_offset": 1_000, "lost_records": 0,
        "lag_seconds_method": "observed", "lag_seconds_error": 0.5, "consume_rate": 10.5, "produce_rate": 11.25,
        "catch_up_seconds": 12.5, "status": "WARN", "status_reason": "lag never fell", "group_state": "Stable",
        "time_to_loss_seconds": 86_400.0, "time_to_loss_reason": "retention.ms=604800000",
        "rule": "LAG_DID_NOT_FALL",
    }  # fmt: skip
    each = {
        "group_id": names[group], "topic": topics[topic], "partition": number % PARTITIONS_A_TOPIC,
        "committed_offset": 10**9 + number, "log_end_offset": 10**9 + 2 * number, "lag": number,
        "last_stable_offset": 10**9 + 2 * number, "lag_seconds": number / 7,
    }  # fmt: skip
    return pa.table(
        {
            name: pa.array(each[name], type_) if name in each else pa.repeat(pa.scalar(alike.get(name), type_), count)
            for name, type_ in ((field.name, field.type) for field in table_schema("consumer_lag"))
        }
    )


class _Collected:
    """A collector that creates prometheus-client's families for each scrape."""

    def __init__(self, families: list[Family]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        for family in self._families:
            gauge = GaugeMetricFamily(family.name, family.help, labels=[*family.fixed, *family.labels])
            columns = [family.rows[column].to_pylist() for column in family.labels.values()]
            for *labels, value in zip(*columns, family.rows["value"].to_pylist(), strict=True):
                gauge.add_metric([*family.fixed.values(), *map(str, labels)], value)
            yield gauge


def _config(warehouse: Path) -> Config:
    settings = {
        "exporter.listen": "127.0.0.1:0",
        "exporter.refresh_seconds": "3600",
        "exporter.series_budget": "1000000",
    }
    return load_config(None, {"warehouse": str(warehouse), "cluster": "bench", **settings}, {})


def _served_cluster(config: Config) -> ServedCluster:
    return ServedCluster(warehouse_of(config), config.exporter, config.log_offsets.interval_seconds)


def _way(way: str, series: int, warehouse: Path) -> dict[str, Any]:
    """Measure one encoder in this process: seconds of each scrape, and peak memory."""
    config = _config(warehouse)
    snapshot = SnapshotReader(_served_cluster(config)).read(lag_rows(series // SERIES_A_GROUP))
    families = [family for family in group_families(snapshot) if len(family.rows)]
    registry = CollectorRegistry()
    registry.register(_Collected(families))
    # The exporter caches its page; here each round formats the text again.
    encoded: Callable[[object], bytes] = generate_latest
    ways: dict[str, Callable[[], object]] = {
        "nothing": lambda: None,
        "ours": lambda: written(families, openmetrics=True) + EOF,
        "ours, gzip": lambda: Page([ClusterPage(snapshot, config.exporter)]).gzipped(openmetrics=True),
        "client": lambda: encoded(registry),
        "client, gzip": lambda: gzip.compress(encoded(registry)),
    }
    took = [round(seconds(ways[way]), 4) for _ in range(ROUNDS)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"series": sum(family.series for family in families), "seconds": took, "peak_mb": round(peak / 1e6)}


def _scrape(url: str) -> int:
    request = urllib.request.Request(f"{url}/metrics", headers=_OPENMETRICS)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return len(answer.read())


def _served(series: int, warehouse: Path) -> dict[str, Any]:
    """Return the seconds of a scrape while one page is served, and while pages are replaced without a pause."""
    rows = lag_rows(series // SERIES_A_GROUP)
    config = _config(warehouse)
    with Exporter([_served_cluster(config)], config.web, silent) as exporter:
        exporter.publish(config.cluster, rows)
        while exporter.page is None or not len(exporter.page.snapshots[0].lag):
            time.sleep(0.01)
        first = seconds(lambda: _scrape(exporter.url))
        standing = [seconds(lambda: _scrape(exporter.url)) for _ in range(SCRAPES)]
        stop, pages = threading.Event(), set()

        def publish() -> None:
            while not stop.wait(0.01):
                exporter.publish(config.cluster, rows)
                pages.add(id(exporter.page))

        publishing = threading.Thread(target=publish)
        publishing.start()
        moving, alive = [], []
        for _ in range(SCRAPES):
            moving.append(seconds(lambda: _scrape(exporter.url)))
            alive.append(seconds(lambda: urllib.request.urlopen(f"{exporter.url}/healthz", timeout=60).close()))
        stop.set()
        publishing.join()
        made = exporter.page.snapshots[0].seconds
    return {
        "first_scrape": round(first, 4),
        "scrape": round(median(standing), 4),
        "scrape_while_swapping": {"median": round(median(moving), 4), "most": round(max(moving), 4)},
        "healthz_while_swapping_most": round(max(alive), 4),
        "snapshot_from_memory": round(made, 4),
        "pages": len(pages),
    }


class _Sink(BaseHTTPRequestHandler):
    """An OTLP receiver that reads requests and accepts them."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def _sink() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Sink) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()


def _push(budget: int, warehouse: Path) -> dict[str, Any]:
    """Measure a push in this process: processor seconds, seconds, and by how much its peak memory grows."""
    exporter = _config(warehouse).exporter.model_copy(update={"series_budget": budget})
    config = _config(warehouse).model_copy(update={"exporter": exporter})
    snapshot = SnapshotReader(_served_cluster(config)).read(lag_rows(POSITIONS // 24))
    page = Page([ClusterPage(snapshot, config.exporter)])
    page.gzipped(openmetrics=True)
    with subprocess.Popen(
        [sys.executable, "-m", "bench.exporter", "sink"], stdout=subprocess.PIPE, text=True
    ) as sink:
        try:
            assert sink.stdout is not None
            url = f"http://127.0.0.1:{int(sink.stdout.readline())}/v1/metrics"
            said: list[str] = []
            pusher = Pusher(OtlpConfig(endpoint=url), lambda: page, said.append)
            before = resource.getrusage(resource.RUSAGE_SELF)
            took = [round(seconds(pusher.push), 2) for _ in range(ROUNDS)]
            after = resource.getrusage(resource.RUSAGE_SELF)
        finally:
            sink.terminate()
    assert said == []
    return {
        "series": page.series,
        "seconds": took,
        "processor_seconds": round((after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / ROUNDS, 2),
        "more_peak_mb": round((after.ru_maxrss - before.ru_maxrss) * 1024 / 1e6),
    }


def measure() -> dict[str, Any]:
    """Return the figures for 10,000 and 100,000 series."""
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="grouptrail-bench-") as folder:
        for series in SERIES:
            ways = {
                way: _apart(way, series, folder)
                for way in ("nothing", "ours", "ours, gzip", "client", "client, gzip")
            }
            best = {way: min(measured["seconds"]) for way, measured in ways.items()}
            compared = {
                "ways": ways,
                "client_over_ours": round(best["client"] / best["ours"], 1),
                "client_over_ours_with_gzip": round(best["client, gzip"] / best["ours, gzip"], 1),
                "served": _served(series, Path(folder)),
            }
            figures[f"{series:,}"] = compared
            print(f"{ways['ours']['series']:,} series: {best['ours']} s, client {best['client']} s; ", end="")
            print(f"with gzip {best['ours, gzip']} s, client {best['client, gzip']} s", flush=True)
            peaks = ", ".join(f"{way} {ways[way]['peak_mb']} MB" for way in ways)
            print(f"peak memory: {peaks}\nover HTTP: {compared['served']}", flush=True)
        for budget in (100_000, 1_000_000):
            figures[f"push, budget {budget:,}"] = pushed = _apart("push", budget, folder)
            print(f"push of {POSITIONS:,} positions with a budget of {budget:,}: {pushed}", flush=True)
    return figures


def _apart(way: str, series: int, warehouse: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.exporter", way, str(series), warehouse]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    figures: dict[str, Any] = json.loads(subprocess.check_output(command, env=environ))
    return figures


if __name__ == "__main__":
    if sys.argv[1] == "sink":
        _sink()
    elif sys.argv[1] == "push":
        print(json.dumps(_push(int(sys.argv[2]), Path(sys.argv[3]))))
    else:
        print(json.dumps(_way(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))))
