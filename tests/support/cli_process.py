"""The pipeline run as its user runs it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from grouptrail.config import Config
from support.deadlines import scaled

# The longest time that a test waits for a process.
_LIFETIME_SECONDS = scaled(300)


def settings_of(config: Config | Path) -> dict[str, str]:
    """Return the environment with a command's configuration, or with the path of its configuration file."""
    settings = {"GROUPTRAIL_EXPORTER__LISTEN": "127.0.0.1:0"}
    if isinstance(config, Path):
        return settings | {"GROUPTRAIL_CONFIG": str(config)}
    return settings | {
        "GROUPTRAIL_CLUSTER": config.cluster,
        "GROUPTRAIL_WAREHOUSE": config.warehouse,
        "GROUPTRAIL_DECODE__TRIGGER_SECONDS": str(config.decode.trigger_seconds),
        "GROUPTRAIL_DECODE__MAX_RECORDS_PER_BATCH": str(config.decode.max_records_per_batch),
        "GROUPTRAIL_KAFKA__BOOTSTRAP_SERVERS": config.kafka_settings()["bootstrap.servers"],
    }


class Grouptrail:
    """The command line as a separate process, with all its children in one process group."""

    def __init__(self, config: Config | Path, *arguments: str, environ: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "grouptrail", *arguments],
            env={**os.environ, **settings_of(config), **(environ or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._deadline = threading.Timer(_LIFETIME_SECONDS, self.kill)
        self._deadline.daemon = True
        self._deadline.start()

    def lines(self) -> Iterator[str]:
        """Yield the output line by line as it is printed."""
        assert self.process.stdout is not None
        # Not `yield from`: that would close the process's pipe as soon as the caller stops iterating.
        for line in self.process.stdout:  # noqa: UP028
            yield line

    def kill(self) -> None:
        """Send SIGKILL to the driver, its JVM and its Python workers at once."""
        self._deadline.cancel()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def finished(self, deadline_seconds: float = 240) -> str:
        """Wait until the process ends, longer on a slow machine; return its output."""
        try:
            printed, _ = self.process.communicate(timeout=scaled(deadline_seconds))
        except subprocess.TimeoutExpired:
            self.kill()
            printed, _ = self.process.communicate()
            raise AssertionError(f"not ended after {deadline_seconds} s: {self.process.args}\n{printed}") from None
        self._deadline.cancel()
        return printed
