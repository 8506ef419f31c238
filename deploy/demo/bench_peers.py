"""Two parts of `make bench`: what `grouptrail run` costs beside another monitor, and beside an older grouptrail.

Every contestant reads the same broker, one after the other in each round. A probe commits at each start and, while
other groups commit, once a second; a start or a commit is over when the contestant's metrics have the probe's offset.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from kafka import KafkaAdminClient, OffsetAndMetadata, TopicPartition

from demo.bench_lag import COMMITTED, PROBE, Load, page, steady
from demo.kafka import Broker, ensure_offsets_topic, load_raw
from demo.measure import PeakMemory, cpu_seconds, resident
from demo.prometheus import free_port

RESTARTS = 2
MOST_RATIO = 1.3
"""How many times as much as the older grouptrail this one may take."""
GUARDED = ("first start, s", "restart, s", "restart, CPU-s", "idle, cores", "idle, MB")

_PARTITIONS = 120
_OFFSETS = 1_000
_SERVED_DEADLINE_SECONDS = 600.0
_SETTLE_SECONDS = 15.0
_STOP_DEADLINE_SECONDS = 60.0

Figures = Mapping[str, list[float]]


@dataclass(frozen=True)
class Contestant:
    """A monitor that serves metrics: its command, its environment and where its metrics have the probe's offset.

    `environ` takes the bootstrap servers, the port, a folder to keep tables in, and the only group to show, if any.
    """

    name: str
    command: Sequence[str]
    environ: Callable[[str, int, Path, str | None], Mapping[str, str]]
    committed: re.Pattern[str]


def grouptrail(name: str, python: str) -> Contestant:
    """Return `grouptrail run` with its default settings, of the environment of that Python."""

    def environ(bootstrap: str, port: int, folder: Path, group: str | None) -> Mapping[str, str]:
        settings = {
            "GROUPTRAIL_WAREHOUSE": str(folder / name),
            "GROUPTRAIL_KAFKA__BOOTSTRAP_SERVERS": bootstrap,
            "GROUPTRAIL_EXPORTER__LISTEN": f"127.0.0.1:{port}",
        }
        return settings | ({"GROUPTRAIL_EXPORTER__ALLOW_GROUPS": group} if group else {})

    return Contestant(name, [python, "-m", "grouptrail", "run"], environ, COMMITTED)


def kminion(binary: str) -> Contestant:
    """Return KMinion, which reads the offsets topic and keeps no history."""

    def environ(bootstrap: str, port: int, _folder: Path, group: str | None) -> Mapping[str, str]:
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
    folder: Path, *, records: int, groups: int, a_second: int, minutes: float, release: str | None
) -> dict[str, Any]:
    """Measure grouptrail and an older one, in whose checkout `make setup` was run; exit with 1 if this one takes more
    than `MOST_RATIO` times as much."""
    python = Path(release or "") / ".venv" / "bin" / "python"
    if release is None or not python.is_file():
        raise SystemExit("bench: RELEASE must name a checkout of the release to compare with, after make setup in it")
    contestants = [grouptrail("this", sys.executable), grouptrail("release", str(python.absolute()))]
    found = _measured(folder, contestants, records=records, groups=groups, a_second=a_second, minutes=minutes)
    ratios = {name: round(found["this"][name] / found["release"][name], 2) for name in GUARDED}
    print(f"this over release: {ratios}", flush=True)
    if slower := [name for name, ratio in ratios.items() if ratio > MOST_RATIO]:
        raise SystemExit(f"bench: more than {MOST_RATIO} times that of the release: {', '.join(slower)}")
    return found | {"ratios": ratios}


def _measured(
    folder: Path, contestants: Sequence[Contestant], *, records: int, groups: int, a_second: int, minutes: float
) -> dict[str, Any]:
    with Broker(folder / "kafka", properties={"log.cleaner.enable": "false"}, heap="600m", report=print) as broker:
        ensure_offsets_topic(broker.bootstrap)
        load = Load(broker.bootstrap, partitions=_PARTITIONS, groups=groups)
        load.make_topics()
        commits = load.commits()
        load_raw(broker.bootstrap, itertools.islice(commits, max(records, load.positions)))
        print(f"{records:,} commits of {load.positions:,} positions are in __consumer_offsets", flush=True)
        with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as admin:
            probe = Probe(admin, load.topics[0])
            found: dict[str, dict[str, list[float]]] = {one.name: defaultdict(list) for one in contestants}
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
                    found[contestant.name][name].append(value)
    return {name: _medians(figures) for name, figures in found.items()}


def _medians(figures: Figures) -> dict[str, float]:
    return {name: round(median(values), 2) for name, values in figures.items()}


class Probe:
    """Commits for a group of its own, each time another offset."""

    def __init__(self, admin: Any, topic: str) -> None:
        self._admin = admin
        self._place = TopicPartition(topic, 0)
        self._offsets = itertools.cycle(range(1, _OFFSETS))

    def commit(self) -> str:
        """Commit; return the offset as metrics show it."""
        offset = next(self._offsets)
        self._admin.alter_group_offsets(PROBE, {self._place: OffsetAndMetadata(offset, "", -1)})
        return str(offset)


class _Run:
    """A contestant's process and the figures of it: seconds, CPU-seconds, cores and MB."""

    def __init__(self, contestant: Contestant, process: subprocess.Popen[bytes], url: str, began: float) -> None:
        self._contestant = contestant
        self._process = process
        self._url = url
        self._began = began

    def until_served(self, probe: Probe, kind: str) -> dict[str, float]:
        """Wait for the probe's offset after the start."""
        with PeakMemory(self._process.pid) as peak:
            self._await_offset(probe.commit())
        took = time.monotonic() - self._began
        return {
            f"{kind}, s": round(took, 1),
            f"{kind}, CPU-s": round(cpu_seconds(self._process.pid), 1),
            f"{kind}, peak MB": round(peak.bytes / 1e6),
        }

    def watched(self, kind: str, minutes: float, probe: Probe | None = None) -> dict[str, float]:
        """Measure for some minutes, with a commit of the probe every second."""
        began, spent = time.monotonic(), cpu_seconds(self._process.pid)
        latencies: list[float] = []
        while (left := began + minutes * 60 - time.monotonic()) > 0:
            if probe is None:
                time.sleep(left)
                continue
            wanted, committed = probe.commit(), time.monotonic()
            self._await_offset(wanted)
            latencies.append(time.monotonic() - committed)
            time.sleep(max(0.0, committed + 1 - time.monotonic()))
        cores = (cpu_seconds(self._process.pid) - spent) / (time.monotonic() - began)
        figures = {f"{kind}, cores": round(cores, 3), f"{kind}, MB": round(resident(self._process.pid) / 1e6)}
        if len(latencies) > 1:
            cuts = quantiles(latencies, n=20)
            figures |= {"commit to metric, p50 s": round(cuts[9], 1), "commit to metric, p95 s": round(cuts[18], 1)}
        return figures

    def scraped(self) -> dict[str, float]:
        """Measure a scrape of all series: the second one, as the first one fills caches."""
        page(self._url)
        began = time.monotonic()
        with urllib.request.urlopen(self._url, timeout=120) as answer:
            size = len(answer.read())
        return {"scrape, s": round(time.monotonic() - began, 2), "scrape, MB": round(size / 1e6, 1)}

    def stopped(self) -> dict[str, float]:
        """Stop the process by SIGTERM."""
        began = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(_STOP_DEADLINE_SECONDS)
        return {"SIGTERM, s": round(time.monotonic() - began, 1)}

    def _await_offset(self, wanted: str) -> None:
        deadline = time.monotonic() + _SERVED_DEADLINE_SECONDS
        while wanted not in self._contestant.committed.findall(page(self._url)):
            assert self._process.poll() is None, f"{self._contestant.name} ended: see its log"
            assert time.monotonic() < deadline, f"{self._contestant.name} did not serve a commit"
            time.sleep(0.1)


@contextmanager
def _running(contestant: Contestant, bootstrap: str, folder: Path, group: str | None) -> Iterator[_Run]:
    port = free_port()
    log = folder / f"{contestant.name}.log"
    # The user's own settings must not change what is measured.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GROUPTRAIL_")}
    environ.pop("PYTHONPATH", None)
    began = time.monotonic()
    with log.open("wb") as out:
        process = subprocess.Popen(
            contestant.command,
            env={**environ, **contestant.environ(bootstrap, port, folder, group)},
            stdout=out,
            stderr=out,
        )
        try:
            yield _Run(contestant, process, f"http://127.0.0.1:{port}/metrics", began)
        except AssertionError:
            print(log.read_text(errors="replace")[-2_000:], flush=True)
            raise
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(_STOP_DEADLINE_SECONDS)
