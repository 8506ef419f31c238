"""A monitor that runs, and a probe: a group whose commits the monitor's metrics must show."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient, OffsetAndMetadata, TopicPartition

from bench.measure import PeakMemory, cpu_seconds
from grouptrail.config import without_settings
from servers.pipeline import answer_of

PROBE = "probe"
COMMITTED = re.compile(r'^kafka_consumer_group_committed_offset\{[^}]*group="probe"[^}]*\} (\d+)', re.MULTILINE)

_LOOK_EVERY_SECONDS = 0.1
_STOP_DEADLINE_SECONDS = 120.0
_SHOWN_OF_LOG = 2_000
_ENDED = "the monitor ended: see its log"


@dataclass(frozen=True)
class Monitor:
    """A running monitor: its process, the URL of its metrics, when it was started (`time.monotonic`), and where its
    metrics have the probe's offset."""

    process: subprocess.Popen[bytes]
    url: str
    committed: re.Pattern[str] = COMMITTED
    started: float = field(default_factory=time.monotonic)

    @property
    def pid(self) -> int:
        """The process's id."""
        return self.process.pid

    def metrics(self) -> str:
        """Return the served metrics; empty while there is no answer."""
        return answer_of(self.url)

    def await_metrics(self, is_there: Callable[[str], object], within_seconds: float) -> None:
        """Wait until `is_there` is true of the metrics. Raises AssertionError if the monitor ends or takes longer."""
        deadline = time.monotonic() + within_seconds
        while not is_there(self.metrics()):
            assert self.process.poll() is None, _ENDED
            assert time.monotonic() < deadline, f"the metrics are not there after {within_seconds:.0f} s"
            time.sleep(_LOOK_EVERY_SECONDS)

    def await_commit(self, offset: int, within_seconds: float) -> None:
        """Wait until the metrics have that offset of the probe. Raises AssertionError as `await_metrics` does."""
        self.await_metrics(lambda metrics: self._offset(metrics) >= offset, within_seconds)

    def cost_until(self, offset: int, within_seconds: float) -> dict[str, float]:
        """Do `await_commit`; return the seconds and processor seconds since the start, and the peak memory."""
        with PeakMemory(self.pid) as peak:
            self.await_commit(offset, within_seconds)
        took, spent = time.monotonic() - self.started, cpu_seconds(self.pid)
        return {"s": round(took, 1), "CPU-s": round(spent, 1), "peak MB": round(peak.bytes / 1e6)}

    def latencies(self, probe: Probe, seconds: float, within_seconds: float) -> Iterator[float]:
        """Let the probe commit once a second, for that long; yield the seconds from each commit until the metrics
        have its offset or a later one.

        It does not wait for one commit before the next: then most would come just after a trigger.
        """
        started = due = time.monotonic()
        waiting: deque[tuple[int, float]] = deque()
        while (is_due := due < started + seconds) or waiting:
            if is_due and time.monotonic() >= due:
                waiting.append((probe.commit(), time.monotonic()))
                due += 1
            shown, now = self._offset(self.metrics()), time.monotonic()
            while waiting and waiting[0][0] <= shown:
                yield now - waiting.popleft()[1]
            assert self.process.poll() is None, _ENDED
            assert not waiting or now < waiting[0][1] + within_seconds, "a commit is not served"
            time.sleep(_LOOK_EVERY_SECONDS)

    def _offset(self, metrics: str) -> int:
        return max(map(int, self.committed.findall(metrics)), default=-1)

    def stop(self) -> float:
        """Stop the process by SIGTERM; return the seconds that took."""
        started = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(_STOP_DEADLINE_SECONDS)
        return time.monotonic() - started


@contextmanager
def running(
    command: Sequence[str], environ: dict[str, str], listen: str, log: Path, committed: re.Pattern[str] = COMMITTED
) -> Iterator[Monitor]:
    """Run a monitor that serves its metrics at `listen`; if the block fails, print the end of its log."""
    with log.open("wb") as out:
        # The user's own settings must not change what is measured.
        process = subprocess.Popen(command, env=without_settings(os.environ) | environ, stdout=out, stderr=out)
        monitor = Monitor(process, f"http://{listen}/metrics", committed)
        try:
            yield monitor
        except AssertionError:
            print(log.read_text(errors="replace")[-_SHOWN_OF_LOG:], flush=True)
            raise
        finally:
            if process.poll() is None:
                monitor.stop()


class Probe:
    """Commits for a group of its own on a topic's first partition, each time a greater offset."""

    def __init__(self, admin: Any, topic: str) -> None:
        self._admin = admin
        self._place = TopicPartition(topic, 0)
        self._offsets = itertools.count(1)

    def commit(self) -> int:
        """Commit; return the offset."""
        offset = next(self._offsets)
        self._admin.alter_group_offsets(PROBE, {self._place: OffsetAndMetadata(offset, "", -1)})
        return offset


@contextmanager
def probing(bootstrap: str, topic: str) -> Iterator[Probe]:
    """Return a probe that commits on that topic."""
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as admin:
        yield Probe(admin, topic)
