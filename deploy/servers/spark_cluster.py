"""A real Spark cluster without Docker, from pyspark's own classes: a master and workers on loopback.

Its executors run a Python of their own, which has nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyspark

from grouptrail.errors import GrouptrailError
from grouptrail.spark.java import find_java, java_environment
from grouptrail.spark.session import connector_jars, driver_java_options
from servers import processes
from servers.ports import free_ports

SUBMIT = Path(__file__).resolve().parents[1] / "spark" / "submit.py"

_HOME = Path(pyspark.__file__).parent
_START_DEADLINE_SECONDS = 60.0
_POLL_SECONDS = 0.1
_EXECUTOR = b"org.apache.spark.executor.CoarseGrainedExecutorBackend"


class ClusterError(GrouptrailError):
    """The master or a worker did not start."""


class SparkCluster:
    """A master and `workers`, each of one core and `memory`, with what they write under `directory`.

    They die with this process, and their executors with them.
    """

    def __init__(self, directory: Path, *, workers: int = 2, memory: str = "1g") -> None:
        self._directory = directory.absolute()
        self._workers = workers
        self._memory = memory
        self._port, self._status_port = free_ports(2)
        self._processes: list[subprocess.Popen[bytes]] = []
        self.python = self._directory / "python" / "bin" / "python"

    @property
    def master(self) -> str:
        """The value of `--master`."""
        return f"spark://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", self.python.parents[1]], check=True)
        try:
            ports = ("--port", str(self._port), "--webui-port", str(self._status_port))
            self._launch("master.Master", *ports)
            self._await_workers(0)
            for number in range(self._workers):
                work = str(self._directory / f"worker-{number}")
                size = ("--cores", "1", "--memory", self._memory, "--work-dir", work)
                self._launch("worker.Worker", "--port", "0", "--webui-port", "0", *size, self.master)
            self._await_workers(self._workers)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Kill the master and the workers."""
        while self._processes:
            processes.kill(self._processes.pop())

    def environment(self) -> dict[str, str]:
        """Return the environment of the submitting process, without variables of grouptrail, Python and Spark."""
        others = ("GROUPTRAIL", "PYTHON", "PYSPARK", "SPARK")
        own = {name: value for name, value in os.environ.items() if not name.startswith(others)}
        spark = {"SPARK_HOME": str(_HOME), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": str(self.python)}
        return own | java_environment(find_java()) | spark

    def submission(
        self,
        archives: Path | None,
        *,
        executors: int = 2,
        files: Sequence[str] = (),
        jars: Iterable[Path] = (),
        settings: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Return the command up to the script's arguments; archives in that folder, if given, contain grouptrail.

        Executors get `files` in their working folder. `jars` come with those of the connectors.
        """
        settings = {"spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false", **(settings or {})}
        brought = []
        if archives is not None:
            settings["spark.executorEnv.PYTHONPATH"] = "site-packages"
            requirements = f"{archives / 'site-packages.zip'}#site-packages"
            brought = ["--py-files", str(archives / "grouptrail.zip"), "--archives", requirements]
        return [
            *(str(_HOME / "bin" / "spark-submit"), "--master", self.master),
            *("--driver-memory", "1g", "--executor-memory", self._memory),
            *("--driver-java-options", driver_java_options()),
            *("--executor-cores", "1", "--total-executor-cores", str(executors)),
            *("--jars", ",".join(sorted(map(str, [*connector_jars().glob("*.jar"), *jars])))),
            *brought,
            *(("--files", ",".join(files)) if files else ()),
            *(part for name, value in settings.items() for part in ("--conf", f"{name}={value}")),
            str(SUBMIT),
        ]

    def executors(self) -> list[int]:
        """Return the running executor processes."""
        ours = {process.pid for process in self._processes}
        return [pid for pid, of in _processes_there() if of.group in ours and _EXECUTOR in of.command]

    def python_workers(self) -> list[int]:
        """Return the processes that run Python for an executor: children of its daemon."""
        there = dict(_processes_there())
        executors = self.executors()
        return [pid for pid, of in there.items() if of.parent in there and there[of.parent].parent in executors]

    def _launch(self, name: str, *arguments: str) -> None:
        command = [str(_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1"]
        with (self._directory / f"{name}.log").open("ab") as log:
            started = processes.launch(
                [*command, *arguments], stdout=log, stderr=subprocess.STDOUT, environ=self.environment()
            )
        self._processes.append(started)

    def _await_workers(self, count: int) -> None:
        """Return when the master answers and knows this many workers."""
        deadline = time.monotonic() + _START_DEADLINE_SECONDS
        while (self._status() or {}).get("aliveworkers", -1) < count:
            if time.monotonic() > deadline or any(process.poll() is not None for process in self._processes):
                raise ClusterError(f"Spark's master or workers did not start: their logs are in {self._directory}")
            time.sleep(_POLL_SECONDS)

    def _status(self) -> dict[str, Any] | None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._status_port}/json/", timeout=5) as answer:
                status: dict[str, Any] = json.load(answer)
                return status
        except (OSError, ValueError):  # it is still starting
            return None


@dataclass(frozen=True)
class _Process:
    command: bytes
    parent: int
    group: int


def _processes_there() -> Iterator[tuple[int, _Process]]:
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it may end meanwhile
            parent, group = (folder / "stat").read_text().rpartition(")")[2].split()[1:3]
            yield int(folder.name), _Process((folder / "cmdline").read_bytes(), int(parent), int(group))
