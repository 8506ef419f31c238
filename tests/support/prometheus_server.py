"""Prometheus and promtool for tests. Tests are skipped if the programs are missing, but fail if CI is set in the
environment, where nobody reads which tests were skipped.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from servers import prometheus
from servers.ports import free_port
from servers.prometheus import PrometheusError
from support.deadlines import scaled

__all__ = ["Prometheus", "free_port", "running", "tool"]


def tool(name: str) -> Path:
    """Return the path of `prometheus` or `promtool`; skip the test if it is missing."""
    try:
        return prometheus.program(name)
    except PrometheusError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


@dataclass(frozen=True)
class Prometheus:
    """A running server, queried through its HTTP API."""

    address: str

    def ask(self, path: str, **parameters: str | float) -> Any:
        """Return `data` of the API's response; an error response becomes an AssertionError with its text."""
        asked = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"http://{self.address}/api/v1/{path}?{asked}", timeout=scaled(30)) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as refusal:
            raise AssertionError(f"{path} {parameters}: {refusal.read().decode()}") from None

    def query(self, expression: str) -> list[Any]:
        """Return the series of an instant query, each with `metric` and `value`."""
        result = self.ask("query", query=expression)["result"]
        assert isinstance(result, list)
        return result

    def wait_for(self, expression: str, *, seconds: float = 60) -> list[Any]:
        """Repeat the query until its result is not empty, and return it."""
        deadline = time.monotonic() + seconds
        while not (series := self.query(expression)):
            assert time.monotonic() < deadline, f"nothing for {expression} in {seconds} s"
            time.sleep(0.2)
        return series


@contextlib.contextmanager
def running(folder: Path, config: Mapping[str, Any], *flags: str) -> Iterator[Prometheus]:
    """Start a server with this configuration and its data in `folder`, and yield it once it answers queries.

    The test is skipped if the server's help does not have one of the flags: Debian's is older than some.
    """
    command = tool("prometheus")
    if flags:
        known = subprocess.run([command, "--help"], capture_output=True, text=True, check=False)
        words = re.sub(r"\s+", "", known.stdout + known.stderr)
        missing = [flag for flag in flags if flag.strip("-").rpartition("=")[2] not in words]
        if missing:
            pytest.skip(f"{command} does not know {missing[0]}")
    with prometheus.running(folder, config, *flags) as address:
        yield Prometheus(address)
