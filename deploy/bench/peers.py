"""Two parts of `make bench`: the cost of `grouptrail run` compared with another monitor and an older grouptrail.

Every contestant reads the same broker, one after the other in each round. A probe commits at each start and, while
other groups commit, once a second; a start or a commit is over when the contestant's metrics have the probe's offset.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from bench.lag import Load, steady
from bench.measure import cpu_seconds, resident
from bench.probe import COMMITTED, PROBE, Monitor, Probe, probing, running
from servers.kafka import uncleaned_broker
from servers.offsets_topic import ensure_offsets_topic, load_raw
from servers.ports import free_port

RESTARTS = 2
MOST_RATIO = 1.3
"""How many times as much as the older grouptrail this one may take."""
GUARDED = ("first start, s", "restart, s", "restart, CPU-s", "idle, cores", "idle, MB")

_PARTITIONS = 120
_SERVED_DEADLINE_SECONDS = 600.0
_SETTLE_SECONDS = 15.0

Figures = Mapping[str, list[float]]


@dataclass(frozen=True)
class Contestant:
    """A monitor that serves metrics: its command, its environment and where its metrics have the probe's offset.

    `environ` takes the bootstrap servers, the port, a folder to keep tables in, and the only group to show, if any.
    """

    name: str
    command: Sequence[str]
    environ: Callable[[str, int, Path, str | None], dict[str, str]]
    committed: re.Pattern[str]


def grouptrail(name: str, python: str) -> Contestant:
    """Return `grouptrail run` with its default settings, of the environment of that Python."""

    def environ(bootstrap: str, port: int, folder: Path, group: str | None) -> dict[str, str]:
        settings = {
            "GROUPTRAIL_WAREHOUSE": str(folder / name),
            "GROUPTRAIL_KAFKA__BOOTSTRAP_SERVERS": bootstrap,
            "GROUPTRAIL_EXPORTER__LISTEN": f"127.0.0.1:{port}",
            # The older one is what its own environment has installed.
            "PYTHONPATH": os.environ.get("PYTHONPATH", "") if python == sys.executable else "",
        }
        return settings | ({"GROUPTRAIL_EXPORTER__ALLOW_GROUPS": group} if group else {})

    return Contestant(name, [python, "-m", "grouptrail", "run"], environ, COMMITTED)


def kminion(binary: str) -> Contestant:
    """Return KMinion, which reads the offsets topic and keeps no history."""

    def environ(bootstrap: str, port: int, _folder: Path, group: str | None) -> dict[str, str]:
        settings = {
            "KAFKA_BROKERS": bootstrap,
            "MINION_CONSUMERGROUPS_SCRAPEMODE": "offsetsTopic",
            "MINION_CONSUMERGROUPS_GRANULARITY": "partition",
            "EXPORTER_HOST": "127.0.0.1",
            "EXPORTER_PORT": str(port),
        }
        return settings | ({"MINION_CONSUMERGROUPS_ALLOWEDGROUPS": group} if group else {})

    served = rf'^kminion_kafka_consumer_group_topic_offset_sum\{{[^}}]*group_id="{PROBE}"[^}}]*\}} (\d+)'
    return Contestant("kminion", [binary], environ, re.compile(served, re.MULTILINE))


def measure_peers(
    folder: Path, *, records: int, groups: int, a_second: int, minutes: float, binary: str | None
) -> dict[str, Any]:
    """Measure grouptrail, and KMinion if its binary is given."""
    contestants = [grouptrail("grouptrail", sys.executable)]
    contestants += [kminion(binary)] if binary else []
    return _measured(folder, contestants, records=records, groups=groups, a_second=a_second, minutes=minutes)


def measure_release(
    folder: Path,
    *,
    records: int,
    groups: int,
    a_second: int,
    minutes: float,
    release: str | None,
    binary: str | None = None,
) -> dict[str, Any]:
    """Measure grouptrail, an older one in whose checkout `make setup` was run, and KMinion if its binary is given.

    Exits with 1 if this one takes more than `MOST_RATIO` times as much as the older one.
    """
    python = Path(release or "") / ".venv" / "bin" / "python"
    if release is None or not python.is_file():
        raise SystemExit("bench: RELEASE must name a checkout of the release to compare with, after make setup in it")
    contestants = [grouptrail("this", sys.executable), grouptrail("release", str(python.absolute()))]
    contestants += [kminion(binary)] if binary else []
    measured = _measured(folder, contestants, records=records, groups=groups, a_second=a_second, minutes=minutes)
    ratios = {name: round(measured["this"][name] / measured["release"][name], 2) for name in GUARDED}
    print(f"this over release: {ratios}", flush=True)
    if slower := [name for name, ratio in ratios.items() if ratio > MOST_RATIO]:
        raise SystemExit(f"bench: more than {MOST_RATIO} times that of the release: {', '.join(slower)}")
    return measured | {"ratios": ratios}


def _measured(
    folder: Path, contestants: Sequence[Contestant], *, records: int, groups: int, a_second: int, minutes: float
) -> dict[str, Any]:
    with uncleaned_broker(folder / "kafka") as broker:
        ensure_offsets_topic(broker.bootstrap)
        load = Load(broker.bootstrap, partitions=_PARTITIONS, groups=groups)
        load.make_topics()
        commits = load.commits()
        load_raw(broker.bootstrap, itertools.islice(commits, max(records, load.positions)))
        print(f"{records:,} commits of {load.positions:,} positions are in __consumer_offsets", flush=True)
        with probing(broker.bootstrap, load.topics[0]) as probe:
            measured: dict[str, dict[str, list[float]]] = {one.name: defaultdict(list) for one in contestants}
            for number, contestant in itertools.product(range(1 + RESTARTS), contestants):
                kind, is_last = "restart" if number else "first start", number == RESTARTS
                with _running(contestant, broker.bootstrap, folder, PROBE) as run:
                    figures = run.until_served(probe, kind)
                    if is_last:
                        time.sleep(_SETTLE_SECONDS)
                        figures |= run.watched("idle", minutes)
                        with steady(broker.bootstrap, commits, a_second):
                            time.sleep(_SETTLE_SECONDS)
                            figures |= run.watched(f"{a_second:,} commits a second", minutes, probe)
                    figures |= run.stopped() if is_last else {}
                if is_last:
                    with _running(contestant, broker.bootstrap, folder, None) as run:
                        run.until_served(probe, kind)
                        figures |= run.scraped()
                print(f"{contestant.name}: {figures}", flush=True)
                for name, value in figures.items():
                    measured[contestant.name][name].append(value)
    return {name: _medians(figures) for name, figures in measured.items()}


def _medians(figures: Figures) -> dict[str, float]:
    return {name: round(median(values), 2) for name, values in figures.items()}


@dataclass
class _Run:
    """A contestant that runs, and the figures of it: seconds, CPU-seconds, cores and MB."""

    monitor: Monitor

    def until_served(self, probe: Probe, kind: str) -> dict[str, float]:
        """Wait for the probe's offset after the start."""
        cost = self.monitor.cost_until(probe.commit(), _SERVED_DEADLINE_SECONDS)
        return {f"{kind}, {unit}": value for unit, value in cost.items()}

    def watched(self, kind: str, minutes: float, probe: Probe | None = None) -> dict[str, float]:
        """Measure for some minutes, with a commit of the probe every second."""
        started, spent = time.monotonic(), cpu_seconds(self.monitor.pid)
        if probe is None:
            latencies = []
            time.sleep(minutes * 60)
        else:
            latencies = list(self.monitor.latencies(probe, minutes * 60, _SERVED_DEADLINE_SECONDS))
        cores = (cpu_seconds(self.monitor.pid) - spent) / (time.monotonic() - started)
        figures = {f"{kind}, cores": round(cores, 3), f"{kind}, MB": round(resident(self.monitor.pid) / 1e6)}
        if len(latencies) > 1:
            cuts = quantiles(latencies, n=20)
            figures |= {"commit to metric, p50 s": round(cuts[9], 1), "commit to metric, p95 s": round(cuts[18], 1)}
        return figures

    def scraped(self) -> dict[str, float]:
        """Measure a scrape of all series: the second one, as the first one fills caches."""
        self.monitor.metrics()
        started = time.monotonic()
        size = len(self.monitor.metrics().encode())
        return {"scrape, s": round(time.monotonic() - started, 2), "scrape, MB": round(size / 1e6, 1)}

    def stopped(self) -> dict[str, float]:
        """Stop the process by SIGTERM."""
        return {"SIGTERM, s": round(self.monitor.stop(), 1)}


@contextmanager
def _running(contestant: Contestant, bootstrap: str, folder: Path, group: str | None) -> Iterator[_Run]:
    port = free_port()
    environ = contestant.environ(bootstrap, port, folder, group)
    log = folder / f"{contestant.name}.log"
    with running(contestant.command, environ, f"127.0.0.1:{port}", log, contestant.committed) as monitor:
        yield _Run(monitor)
