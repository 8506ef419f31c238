"""Debian's packages, unpacked into the cache folder: nothing is installed, no service starts, root is not needed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from pathlib import Path

from grouptrail.spark.java import cache_folder

_DOWNLOAD_SECONDS = 300


def unpacked(name: str, *packages: str, with_dependencies: bool = False) -> Path:
    """Return the folder `name` of the cache with the contents of these packages, downloaded the first time.

    `with_dependencies`: and of the packages that they need and that are not installed here. Raises OSError or
    subprocess.SubprocessError if they cannot be downloaded.
    """
    target = cache_folder() / name
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            download = ["apt-get", *(_with_dependencies(folder) if with_dependencies else ["download"]), *packages]
            if _run(download, folder, check=False).returncode:
                # A fresh container has no package lists; only root may download them.
                _run(["apt-get", "update"], folder)
                _run(download, folder)
            for package in Path(folder).glob("*.deb"):
                _run(["dpkg", "-x", str(package), f"{folder}/whole"], folder)
            # Another process may have unpacked it in the meantime.
            with contextlib.suppress(OSError):
                os.rename(f"{folder}/whole", target)
    return target


def _with_dependencies(folder: str) -> list[str]:
    """Return apt-get's arguments for a download into the folder; the lock that it would take is root's."""
    os.makedirs(f"{folder}/partial")
    options = [f"Dir::Cache::archives={folder}", "Debug::NoLocking=1"]
    flags = ["--yes", "--download-only", "--reinstall", "--no-install-recommends"]
    return [*flags, *(part for option in options for part in ("-o", option)), "install"]


def _run(command: list[str], folder: str, *, check: bool = True) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, cwd=folder, check=check, timeout=_DOWNLOAD_SECONDS, capture_output=True)
