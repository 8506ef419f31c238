"""One driver a job: who runs a job from a checkpoint holds it until he ends, however he ends.

In a local folder that is a lock on `<checkpoint>.lock`, which the kernel takes back when its holder is gone. In an
object store, or any file system named by a URI, it is the file `<checkpoint>.lease`, which its holder writes anew
every ten seconds; whoever comes later watches it for 30 seconds by his own clock, so that clocks need not agree, and
takes it over where it has not changed. A holder that finds another's word in it ends at once.
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
from typing import TYPE_CHECKING, Protocol

from grouptrail.config import is_uri
from grouptrail.errors import GrouptrailError
from grouptrail.spark import hadoop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from grouptrail.config import Config

Report = Callable[[str], None]

RENEW_SECONDS = 10.0
EXPIRE_SECONDS = 30.0

_LOOK_EVERY_SECONDS = 1.0
# As long as two who take over at once may be apart.
_SETTLE_SECONDS = 2.0


class AlreadyRunningError(GrouptrailError):
    """Another driver runs the job from the same checkpoint."""


@contextlib.contextmanager
def sole_driver(
    spark: SparkSession,
    config: Config,
    jobs: Collection[str],
    report: Report,
    on_loss: Callable[[str], None] | None = None,
) -> Iterator[None]:
    """Holds the jobs' checkpoints. Raises AlreadyRunningError where another driver holds one.

    `on_loss` is called, from another thread, with what to tell where another has taken one over.
    """
    with contextlib.ExitStack() as held:
        leases = []
        for job in jobs:
            path = config.checkpoint_path(job)
            if not is_uri(path):
                held.enter_context(_locked(Path(f"{path}.lock"), job))
                continue
            lease = Lease(File(spark, f"{path}.lease"), job)
            leases.append(lease)
            held.callback(lease.release)
        if leases:
            with ThreadPoolExecutor(len(leases)) as pool:
                list(pool.map(lambda lease: lease.take(report), leases))
            held.enter_context(_renewing(leases, on_loss or report))
        yield


def _myself() -> dict[str, str | int]:
    return {"host": socket.gethostname(), "pid": os.getpid(), "since": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"}


def _refusal(job: str, path: str, text: str) -> AlreadyRunningError:
    """Who holds it, by his own word."""
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
        file = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise AlreadyRunningError(
            f"{path} cannot be written ({error.strerror}): give the right to write there"
        ) from error
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


class Place(Protocol):
    """Where a lease lies."""

    path: str

    def read(self) -> str | None:
        """Its text; None where it is not there."""

    def write(self, text: str) -> None:
        """In place of what is there."""

    def delete(self) -> None:
        """If it is there."""


class File:
    """A file, on whichever Hadoop file system."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.path = path
        self.read = partial(hadoop.read_text, spark, path)
        self.write = partial(hadoop.write_text, spark, path)
        self.delete = partial(hadoop.delete, spark, path)


class Lease:
    """A job's lease; `pause` waits so many seconds."""

    def __init__(self, place: Place, job: str, pause: Callable[[float], None] = time.sleep) -> None:
        self._place = place
        self._job = job
        self._pause = pause
        self._name = {**_myself(), "id": uuid.uuid4().hex}
        self._renewals = 0

    def take(self, report: Report) -> None:
        """Raises AlreadyRunningError where its holder gives a sign of life, or another is quicker."""
        if before := self._place.read():
            report(f"job {self._job}: {self._place.path} is there: watching it for a sign of life")
            waited = 0.0
            while waited < EXPIRE_SECONDS and (now := self._place.read()) is not None:
                if now != before:
                    raise _refusal(self._job, self._place.path, now)
                self._pause(_LOOK_EVERY_SECONDS)
                waited += _LOOK_EVERY_SECONDS
        self._write()
        self._pause(_SETTLE_SECONDS)
        text = self._place.read() or ""
        if not self._is_mine(text):
            raise _refusal(self._job, self._place.path, text)

    def renew(self) -> str | None:
        """Gives a sign of life; who has taken it over, where one has."""
        text = self._place.read()
        if text and not self._is_mine(text):
            return str(_refusal(self._job, self._place.path, text))
        self._write()
        return None

    def release(self) -> None:
        """The next driver need not wait."""
        if self._is_mine(self._place.read() or ""):
            self._place.delete()

    def _write(self) -> None:
        self._renewals += 1
        self._place.write(json.dumps({**self._name, "renewals": self._renewals}))

    def _is_mine(self, text: str) -> bool:
        return str(self._name["id"]) in text


@contextlib.contextmanager
def _renewing(leases: list[Lease], on_loss: Callable[[str], None]) -> Iterator[None]:
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(RENEW_SECONDS):
            for lease in leases:
                # A store that does not answer now may do so at the next turn; whoever took over meanwhile shows then.
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
