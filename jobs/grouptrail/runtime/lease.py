"""One driver for each job: a driver holds its jobs' checkpoints until its process ends.

In a local folder it holds a lock on `<checkpoint>.lock`, which the kernel releases with the process. In an object
store, or any file system named by a URI, it holds the file `<checkpoint>.lease`, which it rewrites every ten seconds.
A second driver watches that file for 30 seconds by its own clock, so that clocks need not agree, and takes the lease
over if the file has not changed. A driver that finds another's lease in its file exits at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from grouptrail.console.progress import Log
from grouptrail.errors import GrouptrailError
from grouptrail.locations import is_uri, leads_out, shown
from grouptrail.spark import hadoop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from grouptrail.storage.warehouse import Warehouse


RENEW_SECONDS = 10.0
EXPIRE_SECONDS = 30.0

_LOOK_EVERY_SECONDS = 1.0
# Two drivers that take over at once write their leases within this time.
_SETTLE_SECONDS = 2.0


class AlreadyRunningError(GrouptrailError):
    """Another driver runs the job from the same checkpoint, or the checkpoint cannot be locked."""


@contextlib.contextmanager
def sole_driver(
    warehouse: Warehouse,
    jobs: Collection[str],
    log: Log,
    on_loss: Callable[[str], None] | None = None,
) -> Iterator[None]:
    """Hold the jobs' checkpoints. Raises AlreadyRunningError if another driver holds one.

    Without a session the checkpoints must be in a local folder. `on_loss` is called from another thread, with a
    message, when another driver has taken one over.
    """
    with contextlib.ExitStack() as held:
        leases = []
        for job in jobs:
            path = warehouse.checkpoint_path(job)
            if not is_uri(path):
                held.enter_context(_locked(Path(f"{path}.lock"), job))
                continue
            lease = Lease(LeaseFile(warehouse.session, f"{path}.lease"), job)
            leases.append(lease)
            held.callback(lease.release)
        if leases:
            with ThreadPoolExecutor(len(leases)) as pool:
                list(pool.map(lambda lease: lease.take(log), leases))
            held.enter_context(_renewing(leases, on_loss or log))
        yield


def _myself() -> dict[str, str | int]:
    return {"host": socket.gethostname(), "pid": os.getpid(), "since": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"}


def _refusal(job: str, path: str, text: str) -> AlreadyRunningError:
    """Return the error that names the holder, as the lock or lease describes it."""
    try:
        holder = json.loads(text)
        who = f"pid {int(holder['pid'])} on {holder['host']!s:.100} since {holder['since']!s:.40}"
    except (ValueError, KeyError, TypeError):
        who = "another driver"
    return AlreadyRunningError(
        f"job {job} is already run by {who}, which holds {path}: stop that one first; "
        "a second pipeline needs a warehouse and checkpoints of its own"
    )


@contextlib.contextmanager
def _locked(path: Path, job: str) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = _opened(path)
    except OSError as error:
        raise AlreadyRunningError(f"{path} cannot be written ({error.strerror}): grant write access") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise _refusal(job, str(path), file.read()) from error
        except OSError as error:
            raise AlreadyRunningError(
                f"{path} cannot be locked ({error.strerror}): give checkpoints as a URI, file:///…, for a lease"
            ) from error
        file.truncate(0)
        file.write(json.dumps(_myself()))
        file.flush()
        yield


def _opened(path: Path) -> TextIO:
    """Open a lock's file, and never another that stands or is linked to in its place: it is overwritten."""
    if path.exists() and not path.is_file():
        raise AlreadyRunningError(f"{path} is no regular file: delete it")
    if leads_out(str(path.parent), path.name):
        raise AlreadyRunningError(f"{path} is a link to a file outside its folder: delete it")
    return open(path, "a+", encoding="utf-8", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o666))


class LeaseFile:
    """The file that a lease is written to, on any Hadoop file system; `read` returns None if it does not exist."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.path = path
        self.read = partial(hadoop.read_text, spark, path)
        self.write = partial(hadoop.write_text, spark, path)
        self.delete = partial(hadoop.delete, spark, path)


class Lease:
    """A job's lease; `pause` sleeps for a number of seconds."""

    def __init__(self, file: LeaseFile, job: str, pause: Callable[[float], None] = time.sleep) -> None:
        self._file = file
        self._job = job
        self._pause = pause
        self._name = {**_myself(), "id": uuid.uuid4().hex}
        self._renewals = 0

    def take(self, log: Log) -> None:
        """Take the lease. Raises AlreadyRunningError if its holder renews it, or another driver is quicker."""
        if before := self._file.read():
            log(f"job {self._job}: {shown(self._file.path)} exists: waiting to see whether its holder renews it")
            waited = 0.0
            while waited < EXPIRE_SECONDS and (now := self._file.read()) is not None:
                if now != before:
                    raise _refusal(self._job, self._file.path, now)
                self._pause(_LOOK_EVERY_SECONDS)
                waited += _LOOK_EVERY_SECONDS
        self._write()
        self._pause(_SETTLE_SECONDS)
        text = self._file.read() or ""
        if not self._is_mine(text):
            raise _refusal(self._job, self._file.path, text)

    def renew(self) -> str | None:
        """Renew the lease; return who has taken it over, if another driver has."""
        text = self._file.read()
        if text and not self._is_mine(text):
            return str(_refusal(self._job, self._file.path, text))
        self._write()
        return None

    def release(self) -> None:
        """Delete the lease, so that the next driver need not wait."""
        if self._is_mine(self._file.read() or ""):
            self._file.delete()

    def _write(self) -> None:
        self._renewals += 1
        self._file.write(json.dumps({**self._name, "renewals": self._renewals}))

    def _is_mine(self, text: str) -> bool:
        return str(self._name["id"]) in text


@contextlib.contextmanager
def _renewing(leases: list[Lease], on_loss: Callable[[str], None]) -> Iterator[None]:
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(RENEW_SECONDS):
            for lease in leases:
                # A store that does not answer now may answer at the next renewal, which then shows who took over.
                with contextlib.suppress(Exception):
                    if loss := lease.renew():
                        on_loss(loss)
                        return

    renewing = threading.Thread(target=renew, name="lease", daemon=True)
    renewing.start()
    try:
        yield
    finally:
        ended.set()
        renewing.join(timeout=RENEW_SECONDS)
