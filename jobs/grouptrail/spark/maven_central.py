"""Download known files of Maven Central, several at a time."""

from __future__ import annotations

import hashlib
import http.client
import threading
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path

URL = "https://repo1.maven.org/maven2/"

_AT_ONCE = 8
_REPORT_EVERY_SECONDS = 2.0
_TIMEOUT_SECONDS = 30.0
_CHUNK = 256 * 1024


def download(digests: Mapping[str, str], folder: Path, report: Callable[[], None]) -> None:
    """Download files, by their paths on Maven Central with their SHA-256 digests, into one folder, by their names.

    Proxies are those of the environment (`HTTPS_PROXY`). Files that are there with the right digest are kept; one
    that comes with another digest is left for the caller to find. `report` is called every two seconds. Raises
    OSError at the first failure; files that are complete stay.
    """
    stopping = threading.Event()
    pool = ThreadPoolExecutor(_AT_ONCE)
    try:
        missing = {pool.submit(_download, path, digest, folder, stopping) for path, digest in digests.items()}
        while missing:
            report()
            done, missing = wait(missing, _REPORT_EVERY_SECONDS, FIRST_EXCEPTION)
            for one in done:
                one.result()
    finally:
        stopping.set()
        pool.shutdown(cancel_futures=True)


def _download(path: str, digest: str, folder: Path, stopping: threading.Event) -> None:
    file = folder / path.rpartition("/")[2]
    if file.is_file() and sha256(file) == digest:
        return
    part = file.with_name(f".{file.name}")
    try:
        with urllib.request.urlopen(URL + path, timeout=_TIMEOUT_SECONDS) as answer, part.open("wb") as output:
            while not stopping.is_set() and (chunk := answer.read(_CHUNK)):
                output.write(chunk)
    except http.client.HTTPException as error:
        raise OSError(f"{path}: {error}") from error
    if not stopping.is_set():
        part.replace(file)


def sha256(file: Path) -> str:
    """Return a file's digest, in hexadecimal digits."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
