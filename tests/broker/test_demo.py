"""`make demo`, and Ctrl-C in the middle of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from servers.processes import command_line, descendants

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_SECONDS = 240
# The kernel closes the children's stdin when the demo ends, and they are killed then (`servers.processes`).
ENDED_SECONDS = 30


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "demo", "--folder", str(tmp_path / "demo"), "--seconds", "200"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "deploy")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline = threading.Timer(DEADLINE_SECONDS, process.kill)
    deadline.start()
    yield process
    deadline.cancel()
    process.kill()


@pytest.mark.full
def test_demo_sigint_exits_with_130_and_stops_every_process_it_started(demo: subprocess.Popen[str]) -> None:
    """While the groups are running: broker, pipeline with its JVM, and all clients; the tables are kept."""
    assert demo.stdout is not None
    printed = ""
    while "offset commits" not in printed:
        line = demo.stdout.readline()
        assert line, printed
        printed += line
    started = {pid: command for pid in descendants(demo.pid) if (command := command_line(pid))}
    assert any("kafka.Kafka" in command for command in started.values()), started
    assert any("grouptrail" in command and "run" in command for command in started.values()), started
    demo.send_signal(signal.SIGINT)
    printed += demo.communicate()[0]
    assert demo.returncode == 130, printed
    assert "interrupted: stopping everything" in printed
    assert "Traceback" not in printed
    deadline = time.monotonic() + ENDED_SECONDS
    while left := {pid: command for pid, command in started.items() if command_line(pid) == command}:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
    assert re.search(r"The tables are kept in \S+", printed)
