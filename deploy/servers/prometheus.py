"""Prometheus for the demo and the tests: the one on PATH, else Debian's package, unpacked into the cache folder."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from grouptrail.errors import GrouptrailError
from servers import debian
from servers.ports import free_port

_START_SECONDS = 60


class PrometheusError(GrouptrailError):
    """Prometheus is not available, or does not start."""


def program(name: str) -> Path:
    """Return the path of `prometheus` or `promtool`. Raises PrometheusError if it is not available."""
    on_path = shutil.which(name)
    if on_path:
        return Path(on_path)
    unpacked = _unpacked()
    if isinstance(unpacked, str):
        raise PrometheusError(f"no {name}: {unpacked}")
    return unpacked / name


@cache
def _unpacked() -> Path | str:
    """Return the folder with both programs, or the reason why there is none."""
    try:
        programs = debian.unpacked("prometheus", "prometheus") / "usr" / "bin"
        (programs / "prometheus").stat()
    except (OSError, subprocess.SubprocessError) as error:
        return f"not on PATH, and Debian's package cannot be had ({error}): install prometheus"
    return programs


@contextlib.contextmanager
def running(folder: Path, config: Mapping[str, Any], *flags: str) -> Iterator[str]:
    """Run a server with this configuration and its data in `folder`; yield its address once it is ready."""
    command = program("prometheus")
    (folder / "prometheus.yml").write_text(yaml.safe_dump(dict(config)))
    address = f"127.0.0.1:{free_port()}"
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                command,
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address={address}",
                *flags,
            ],
            stdout=log,
            stderr=log,
            process_group=0,
        )
        try:
            _wait_until_ready(address, process, folder / "prometheus.log")
            yield address
        finally:
            process.terminate()
            process.wait(30)


def _wait_until_ready(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{address}/-/ready", timeout=5):
            return
        time.sleep(0.1)
    raise PrometheusError(f"Prometheus is not ready: {log.read_text(errors='replace')[-2000:]}")
