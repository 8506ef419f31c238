"""Measure wall time, and the memory and processor time of a process with its descendants, for the benchmarks."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def seconds(work: Callable[[], Any]) -> float:
    """Return how long the work takes."""
    started = time.monotonic()
    work()
    return time.monotonic() - started


# A reading takes 25 ms of a core for 1.5 GB: more of them would slow down what is measured.
_PEAK_EVERY_SECONDS = 1.0


class PeakMemory:
    """The most resident memory of a process (this one) and its descendants (JVM, Python workers) while it is open."""

    def __init__(self, root: int | None = None) -> None:
        self._root = root or os.getpid()

    def __enter__(self) -> PeakMemory:
        self.bytes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        is_over = False
        while not is_over:
            self.bytes = max(self.bytes, resident(self._root))
            is_over = self._over.wait(_PEAK_EVERY_SECONDS)


def resident(root: int) -> int:
    """Return the resident bytes of a process and its descendants except Kafka's, the smaller of two readings: a
    process that Java starts briefly has all of Java's memory."""
    first = _resident(root)
    time.sleep(0.1)
    return min(first, _resident(root))


def _resident(root: int) -> int:
    """Count a page that several processes share once, as a container's limit does: Python workers are forks."""
    return sum(map(_proportional, _family(root)))


def _proportional(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def cpu_seconds(root: int) -> float:
    """Return the processor time of the same processes and of their finished children."""
    ticks = sum(int(one) for stat in _family(root).values() for one in stat[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def _family(root: int) -> dict[int, list[str]]:
    """Return the fields of /proc/PID/stat, from the state on, of each process by its id."""
    stats = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            stats[int(path.parent.name)] = path.read_text().rpartition(")")[2].split()
    family = {root} & stats.keys()
    while more := {pid for pid, stat in stats.items() if int(stat[1]) in family} - family:
        family |= more
    return {pid: stats[pid] for pid in family if "kafka.Kafka" not in _command(pid)}


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""
