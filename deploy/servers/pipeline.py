"""The pipeline as a user runs it: `grouptrail run` in a separate process, with a configuration file."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

from grouptrail.config import Config, load_config, without_settings
from grouptrail.errors import GrouptrailError
from grouptrail.kafka.offsets_topic import OffsetsTopic
from grouptrail.query.errors import QueryError
from grouptrail.query.sql import DeltaRs, QueryContext, run_sql
from grouptrail.runtime.warehouses import warehouse_of
from servers import processes
from servers.ports import free_port

GROUPTRAIL = Path(sys.executable).with_name("grouptrail")

_STOP_DEADLINE_SECONDS = 60.0
_LOOK_EVERY_SECONDS = 0.5
_ANSWER_SECONDS = 30

_HISTORY_BATCH = re.compile(r"history batch \d+, up to batch (\d+) of decode")

_CONFIG = """\
# What `make demo` runs with: GROUPTRAIL_CONFIG={file} grouptrail ...
cluster = "demo"
warehouse = "{warehouse}"

[kafka]
"bootstrap.servers" = "{bootstrap}"

[decode]
trigger_seconds = 2

[exporter]
listen = "{listen}"
refresh_seconds = 2

[spark]
"spark.driver.memory" = "1g"
# For some minutes and some thousand records: a quicker start, and less processor time than the defaults.
"spark.driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"

{settings}"""


class PipelineError(GrouptrailError):
    """The pipeline exited by itself, or does not catch up."""


class Pipeline:
    """`grouptrail run` on a broker; its tables (unless `warehouse` is a URI) and settings are below `folder`.

    `settings` are further tables of the configuration file.
    `on_line` gets each line it prints, from another thread. What it says on stderr is in `log_file`.
    """

    def __init__(
        self,
        folder: Path,
        bootstrap: str,
        on_line: Callable[[str], None],
        *,
        warehouse: str = "warehouse",
        settings: str = "",
    ) -> None:
        self.config_file = folder / "grouptrail.toml"
        self.log_file = folder / "pipeline.log"
        listen = f"127.0.0.1:{free_port()}"
        places = {"file": self.config_file, "bootstrap": bootstrap, "listen": listen, "warehouse": warehouse}
        self.config_file.write_text(_CONFIG.format(**places, settings=settings))
        self.config: Config = load_config(self.config_file, {}, {})
        self._on_line = on_line
        self._process: subprocess.Popen[bytes] | None = None
        self._history_batch = -1

    def start(self) -> None:
        """Start the process and return at once; Spark needs some ten seconds until the first batch."""
        # The user's own settings must not make the demo use another warehouse.
        with self.log_file.open("wb") as log:
            self._process = processes.launch(
                [str(GROUPTRAIL), "run", "--config", str(self.config_file)],
                stdout=subprocess.PIPE,
                stderr=log,
                environ=without_settings(os.environ),
            )
        threading.Thread(target=self._read, args=(self._process,), daemon=True).start()

    @property
    def pid(self) -> int | None:
        """The driver's process id while it runs."""
        running = self._process is not None and self._process.poll() is None
        return self._process.pid if self._process is not None and running else None

    @property
    def pages_url(self) -> str:
        """The address of the web pages."""
        return f"http://{self.config.exporter.listen}/"

    @property
    def metrics_url(self) -> str:
        """The URL of the metrics while it runs."""
        return f"http://{self.config.exporter.listen}/metrics"

    def metrics(self) -> str:
        """Return the served metrics; empty while there is no answer."""
        return answer_of(self.metrics_url)

    def check(self) -> None:
        """Raise PipelineError with the end of the pipeline's output if it has exited."""
        if self._process is not None and self._process.poll() is not None:
            raise PipelineError(f"the pipeline ended ({self._process.returncode}): {self._last_words()}")

    def stop(self) -> None:
        """End the process after its current batch; return when it has exited."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_STOP_DEADLINE_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """Kill the process; the tables remain consistent."""
        if self._process is not None:
            processes.kill(self._process)

    def wait_until_caught_up(self, deadline_seconds: float = 240) -> None:
        """Return when all readable records of the topic are in the tables and the history."""
        deadline = time.monotonic() + deadline_seconds
        with OffsetsTopic(self.config.kafka_settings()) as topic:
            while behind := self._behind(topic):
                self.check()
                if time.monotonic() > deadline:
                    raise PipelineError(f"{behind} within {deadline_seconds:.0f} s: see {self.log_file}")
                time.sleep(_LOOK_EVERY_SECONDS)

    def _behind(self, topic: OffsetsTopic) -> str:
        """Describe what is not in the tables; empty if nothing is missing."""
        text = """SELECT record_partition, max(end_offset) AS decoded_to, max(batch_id) AS batch
            FROM ingest_progress GROUP BY record_partition"""
        try:
            rows = query(self.config, text)
        except QueryError:
            rows = []  # the pipeline has not made its tables yet
        decoded_to = {row["record_partition"]: row["decoded_to"] for row in rows}
        waiting = sum(
            log.last_stable_offset > max(decoded_to.get(partition, 0), log.log_start_offset)
            for partition, log in topic.bounds().items()
        )
        if waiting:
            return f"{waiting} partitions are not decoded to their end"
        return (
            "the history job is behind"
            if self._history_batch < max((row["batch"] for row in rows), default=-1)
            else ""
        )

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for content in process.stdout:
            line = content.decode(errors="replace").rstrip()
            if batch := _HISTORY_BATCH.match(line):
                self._history_batch = int(batch[1])
            self._on_line(line)

    def _last_words(self) -> str:
        lines = self.log_file.read_text(errors="replace").splitlines()
        messages = [line.removeprefix("grouptrail: ") for line in lines if line.startswith("grouptrail: ")]
        return (messages or lines or ["no output"])[-1] + f" (full log: {self.log_file})"


def query(config: Config, text: str) -> list[dict[str, Any]]:
    """Return the rows of `grouptrail sql` as dicts."""
    warehouse, out = warehouse_of(config), StringIO()
    context = QueryContext(warehouse, DeltaRs(warehouse), config.log_offsets.interval_seconds, is_cluster_named=True)
    run_sql(context, text, format="json", out=out)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def answer_of(url: str) -> str:
    """Return what is served at a URL; empty while there is no answer."""
    try:
        with urllib.request.urlopen(url, timeout=_ANSWER_SECONDS) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""
