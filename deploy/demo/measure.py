"""What a bench measures with: wall time, and the resident memory of a process and all it started."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def seconds(work: Callable[[], Any]) -> float:
    """How long it takes."""
    started = time.monotonic()
    work()
    return time.monotonic() - started


class PeakMemory:
    """The most resident memory of this process and its descendants (driver JVM, Python workers) while it is open."""

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
        while not self._over.wait(0.25):
            self.bytes = max(self.bytes, resident(os.getpid()))


def resident(root: int) -> int:
    """Bytes of a process and its descendants, Kafka's own apart."""
    parents, pages = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, rest = int(stat.parent.name), stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[pid], pages[pid] = int(rest[1]), int(rest[21])
    family = {root}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    own_java = {pid for pid in family if "kafka.Kafka" not in _command(pid)}
    return sum(pages.get(pid, 0) for pid in own_java) * os.sysconf("SC_PAGE_SIZE")


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""
