"""The lag part of `make bench`: all jobs at once on a real broker, many partitions, a steady stream of commits.

The topics' partitions are real and have a few records each; the commits are written directly into
`__consumer_offsets`. A probe commits for a group of its own and waits until the exporter serves that offset.
"""

from __future__ import annotations

import itertools
import re
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import quantiles
from typing import Any

import pyarrow.dataset as ds
from confluent_kafka import Producer
from deltalake import DeltaTable
from kafka import KafkaAdminClient
from kafka.admin import NewTopic

from bench.measure import cpu_seconds, resident
from bench.probe import PROBE, Monitor, Probe, probing, running
from grouptrail.config import Config, load_config
from grouptrail.kafka.cluster import Cluster
from grouptrail.kafka.coordinator import coordinator_partition
from grouptrail.runtime.warehouses import warehouse_of
from servers.kafka import Broker
from servers.kafka_cluster import KafkaCluster
from servers.offsets_topic import ensure_offsets_topic, load_raw
from servers.ports import free_port

OFFSETS_PARTITIONS = 50
PARTITIONS_A_TOPIC = 500
RECORDS = 20

_PROPERTIES = {
    "log.cleaner.enable": "false",
    "offsets.topic.replication.factor": "1",
    "min.insync.replicas": "1",
}
_READY_SECONDS = 900.0
_PROBE_DEADLINE_SECONDS = 60.0
_READY = re.compile(r"^grouptrail_ready\S* 1$", re.MULTILINE)


class Load:
    """The committed offsets of many groups on many partitions."""

    def __init__(self, bootstrap: str, *, partitions: int, groups: int) -> None:
        self._bootstrap = bootstrap
        self._each = min(PARTITIONS_A_TOPIC, partitions)
        self.topics = [f"events-{number:03d}" for number in range(partitions // self._each)]
        self._groups = [f"service-{number:03d}" for number in range(groups)]
        self._partitions = partitions

    def make_topics(self) -> None:
        """Create the topics; return when every partition has a leader and some records."""
        with closing(KafkaAdminClient(bootstrap_servers=self._bootstrap)) as admin:
            for topic in self.topics:
                admin.create_topics([NewTopic(topic, self._each, 1)], timeout_ms=60_000)
        deadline = time.monotonic() + _READY_SECONDS
        with Cluster({"bootstrap.servers": self._bootstrap}) as cluster:
            while (there := len(cluster.partition_metadata())) < self._partitions:
                assert time.monotonic() < deadline, f"{there:,} of {self._partitions:,} partitions are there"
                time.sleep(2)
        producer = Producer({"bootstrap.servers": self._bootstrap, "linger.ms": 50, "log_level": 3})
        for topic, partition in itertools.product(self.topics, range(self._each)):
            for _ in range(RECORDS):
                while len(producer) > 50_000:
                    producer.poll(0.1)
                producer.produce(topic, b"x", partition=partition)
        assert producer.flush(300) == 0

    def commits(self) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield a commit of every position, again and again, each time at a later offset."""
        for round_ in itertools.count():
            for topic, partition, group in itertools.product(self.topics, range(self._each), self._groups):
                key = struct.pack(">hh", 1, len(group)) + group.encode()
                key += struct.pack(">h", len(topic)) + topic.encode() + struct.pack(">i", partition)
                value = struct.pack(">hqihq", 3, round_ % RECORDS, -1, 0, int(time.time() * 1000))
                yield coordinator_partition(group, OFFSETS_PARTITIONS), key, value

    @property
    def positions(self) -> int:
        """The number of (group, partition) pairs."""
        return self._partitions * len(self._groups)


@contextmanager
def steady(bootstrap: str, commits: Iterator[tuple[int, bytes, bytes]], a_second: int) -> Iterator[None]:
    """Write `a_second` commits per second until the block ends."""
    ended = threading.Event()

    def write() -> None:
        while not ended.wait(1.0):
            load_raw(bootstrap, itertools.islice(commits, a_second))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def measure(
    folder: Path, *, partitions: int, groups: int, minutes: float, a_second: int = 1_000, on_cluster: bool = False
) -> dict[str, Any]:
    """Measure lag with this many real partitions and groups per partition; `on_cluster` uses three brokers."""
    kind = KafkaCluster if on_cluster else Broker
    with kind(folder / "kafka", properties=_PROPERTIES, heap="1g", log=print) as kafka:
        bootstrap = kafka.bootstrap
        ensure_offsets_topic(bootstrap)
        load = Load(bootstrap, partitions=partitions, groups=groups)
        started = time.monotonic()
        load.make_topics()
        commits = load.commits()
        load_raw(bootstrap, itertools.islice(commits, load.positions))
        print(
            f"{partitions:,} partitions, {load.positions:,} positions after {time.monotonic() - started:.0f} s",
            flush=True,
        )
        config = load_config(None, {"kafka.bootstrap.servers": bootstrap, "warehouse": str(folder / "warehouse")}, {})
        with (
            running_pipeline(config, folder / "pipeline.log") as pipeline,
            probing(bootstrap, load.topics[0]) as probe,
        ):
            pipeline.await_metrics(_READY.search, _READY_SECONDS)
            with steady(bootstrap, commits, a_second):
                figures = _watched(pipeline, probe, minutes)
        return {"partitions": partitions, "positions": load.positions} | figures | _stored(config, load.topics[0])


@contextmanager
def running_pipeline(config: Config, log: Path) -> Iterator[Monitor]:
    """Run `grouptrail run`, with the metrics of the probe's group only."""
    listen = f"127.0.0.1:{free_port()}"
    settings = {
        "GROUPTRAIL_WAREHOUSE": config.warehouse,
        "GROUPTRAIL_KAFKA__BOOTSTRAP_SERVERS": config.kafka_settings()["bootstrap.servers"],
        "GROUPTRAIL_DECODE__TRIGGER_SECONDS": "2",
        "GROUPTRAIL_EXPORTER__LISTEN": listen,
        "GROUPTRAIL_EXPORTER__ALLOW_GROUPS": PROBE,
    }
    with running([sys.executable, "-m", "grouptrail", "run"], settings, listen, log) as monitor:
        yield monitor


def _watched(pipeline: Monitor, probe: Probe, minutes: float) -> dict[str, Any]:
    """Let the probe commit; measure the pipeline's memory and processor time meanwhile."""
    latencies, memory = [], []
    began_at, spent = time.monotonic(), cpu_seconds(pipeline.pid)
    for latency in pipeline.latencies(probe, minutes * 60, _PROBE_DEADLINE_SECONDS):
        latencies.append(latency)
        memory.append(resident(pipeline.pid) / 1e6)
    busy = (cpu_seconds(pipeline.pid) - spent) / (time.monotonic() - began_at)
    cuts = quantiles(latencies, n=20)
    thirds = [memory[len(memory) * share // 3 : len(memory) * (share + 1) // 3] for share in range(3)]
    figures = {
        "probes": len(latencies),
        "commit_to_served_seconds": {
            "p50": round(cuts[9], 1),
            "p95": round(cuts[18], 1),
            "most": round(max(latencies), 1),
        },
        "memory_mb_by_thirds": [round(max(third, default=0)) for third in thirds],
        "cores": round(busy, 2),
    }
    print(figures, flush=True)
    return figures


def _stored(config: Config, topic: str) -> dict[str, Any]:
    """Return the number and size of the samples, and the seconds between them for a topic's first partition."""
    one = (ds.field("topic") == topic) & (ds.field("partition") == 0)
    stored = DeltaTable(warehouse_of(config).table("log_offsets").path).to_pyarrow_dataset()
    times = sorted(stored.to_table(columns=["sampled_at"], filter=one)["sampled_at"].to_pylist())
    apart = [(later - sooner).total_seconds() for sooner, later in itertools.pairwise(times)]
    figures = {
        "samples": len(times),
        "seconds_between_samples": {"median": sorted(apart)[len(apart) // 2], "most": max(apart)},
    }
    lag = DeltaTable(warehouse_of(config).table("consumer_lag").path)
    rows = sum(lag.get_add_actions(flatten=True)["num_records"].to_pylist())
    subprocess.run(
        [sys.executable, "-m", "grouptrail", "maintain", "consumer_lag", "--warehouse", config.warehouse],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    lag.update_incremental()
    size = sum(lag.get_add_actions(flatten=True)["size_bytes"].to_pylist())
    return figures | {"lag_rows": rows, "bytes_a_lag_sample": round(size / rows, 2)}
