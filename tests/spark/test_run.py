"""`grouptrail run` as a process of its own, with the jobs that need no broker."""

from __future__ import annotations

import os
import re
import signal
import time
import urllib.error
import urllib.request
from pathlib import Path

from grouptrail.config import Config
from support.cli_process import Grouptrail
from support.deadlines import scaled

DEADLINE_SECONDS = scaled(120)
POLL_SECONDS = 0.1
RUNNING = re.compile(r'^grouptrail_job_running\{cluster="test",job_name="([\w-]+)"\} 1$', re.MULTILINE)
RESTARTS = re.compile(r'^grouptrail_job_restarts_total\{cluster="test",job_name="([\w-]+)"\} (\d+)$', re.MULTILINE)


def metrics(url: str) -> str:
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
            return str(answer.read(), "utf-8")
    except urllib.error.URLError:  # the first snapshot is not made yet, or the process ends
        return ""


def java_of(pid: int) -> int:
    """Return the process id of a driver's JVM."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return next(int(child) for child in children if "java" in Path(f"/proc/{child}/cmdline").read_text())


def test_run_serves_the_state_of_its_jobs_and_ends_with_one_line_if_the_jvm_is_killed(config: Config) -> None:
    run = Grouptrail(config, "run", "--job", "history", "--job", "lag")
    try:
        lines = run.lines()
        url = next(match[1] for line in lines if (match := re.search(r"served at (\S+)/metrics", line)))
        deadline = time.monotonic() + DEADLINE_SECONDS
        while set(RUNNING.findall(page := metrics(url))) != {"exporter", "history", "lag"}:
            assert run.process.poll() is None, run.finished()
            assert time.monotonic() < deadline, page
            time.sleep(POLL_SECONDS)
        assert dict(RESTARTS.findall(page)) == {"exporter": "0", "history": "0", "lag": "0"}
        os.kill(java_of(run.process.pid), signal.SIGKILL)
        printed = run.finished(60)
    finally:
        run.kill()
    assert run.process.returncode == 1
    assert "Traceback" not in printed
    assert [line for line in printed.splitlines() if "Spark has ended" in line] == [
        "grouptrail: Spark has ended (its JVM was killed or had no memory left): start grouptrail again; "
        "nothing is lost"
    ]
