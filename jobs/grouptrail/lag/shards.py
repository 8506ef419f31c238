"""Lag in shards: each is computed by a process of its own beside one of Spark's executors, which keeps its state.

A task of Spark asks the process on its machine (`ask`), and starts it if there is none. Executors are chosen by the
blocks of a cached RDD, so that a shard stays where its state is. A process that has not seen all samples so far, such
as one that is new because an executor was lost, restores its state from the tables, as the job does after a restart.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pickle
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from grouptrail.lag.calculator import TABLE
from grouptrail.lag.positions import TABLE as COMMITTED
from grouptrail.lag.shard import Commits, LagInputs, Samples, Shard, ShardError, WrittenCommits, WrittenLag
from grouptrail.memory import KEPT_WITHIN_BATCHES
from grouptrail.storage.engines.engine import Once
from grouptrail.storage.lineage import noted
from grouptrail.storage.location import TableLocation

if TYPE_CHECKING:
    from pyspark import RDD

_PROCESS = "grouptrail.lag.shard_process"
_START_SECONDS = 60


class LagShards:
    """Computes the lag by tasks of Spark, as `job.LagComputation`."""

    def __init__(self, inputs: LagInputs) -> None:
        count = inputs.settings.lag.shards
        self._inputs = inputs
        context = inputs.warehouse.session.sparkContext
        numbers: RDD[int] = context.parallelize(range(count), count)
        self._shards = numbers.map(partial(Shard, count=count)).persist()
        self._last_request = ""
        self.has_new_commits = False

    def prepare(self) -> None:
        """Start the processes; each reads its commits."""
        with contextlib.suppress(Exception):
            self._shards.foreach(partial(_ask, self._inputs, None))

    def append(self, rows: pa.Table, once: Once) -> Mapping[str, int]:
        """Do `job.LagComputation.append`."""
        request = uuid.uuid4().hex
        parts: list[WrittenLag] = []

        def written(location: TableLocation) -> Iterable[str]:
            parts.extend(self._ask(Samples(rows, location, request, after=self._last_request)))
            return [file for lag in parts for file in lag.files]

        self._inputs.warehouse.table(TABLE).append(written, once)
        self._last_request = request
        self.has_new_commits |= any(lag.has_new_commits for lag in parts)
        return sum((Counter(lag.counts) for lag in parts), Counter())

    def store_commits(self) -> None:
        """Do `job.LagComputation.store_commits`."""
        self.has_new_commits = False

        def written(location: TableLocation) -> Iterable[str]:
            parts: list[WrittenCommits] = self._ask(Commits(location))
            sources = noted((part.source for part in parts), location.cluster)
            return [*(file for part in parts for file in part.files), *sources]

        self._inputs.warehouse.table(COMMITTED).replace(written)

    def _ask(self, request: Samples | Commits) -> list[Any]:
        return self._shards.map(partial(_ask, self._inputs, request)).collect()


def _ask(inputs: LagInputs, request: Samples | Commits | None, shard: Shard) -> Any:
    """Return the answer of a shard's process, which is started if there is none beside this executor."""
    return ask(inputs, shard, request, parent=os.getppid())


def ask(inputs: LagInputs, shard: Shard, request: Samples | Commits | None, *, parent: int) -> Any:
    """Return what a shard's process answers; None to no request. The process lives as long as `parent` (a PID) does.

    One that ends without an answer is replaced once. Raises ShardError.
    """
    try:
        answer = _answer(inputs, shard, request, parent)
    except (EOFError, OSError):
        try:
            answer = _answer(inputs, shard, request, parent)
        except (EOFError, OSError) as error:
            raise ShardError(f"{_name(shard)} ended: see the executor's log, and its memory limit") from error
    if isinstance(answer, Exception):
        raise ShardError(f"{_name(shard)}: {answer}")
    return answer


def _answer(inputs: LagInputs, shard: Shard, request: Samples | Commits | None, parent: int) -> Any:
    with _connection(inputs, shard, parent) as connection:
        connection.send(request)
        return connection.recv()


def _name(shard: Shard) -> str:
    return f"the process of lag shard {shard.number + 1} of {shard.count}"


def _connection(inputs: LagInputs, shard: Shard, parent: int) -> Connection:
    # A socket's address has at most some hundred characters.
    address = _folder() / f"{_id(inputs)}-{parent}-{shard.number}"
    with Path(f"{address}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a second attempt of a task may ask at the same time
        with_one = partial(Client, str(address), "AF_UNIX")
        try:
            return with_one()
        except OSError:  # it has not been started, or has ended
            address.unlink(missing_ok=True)
        command = [sys.executable, "-m", _PROCESS, str(address), str(parent)]
        environ = os.environ | KEPT_WITHIN_BATCHES | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        # Its output goes to the executor's log; Spark reads the worker's stdout.
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=2, env=environ, start_new_session=True)
        assert process.stdin is not None
        with process.stdin as given:  # not in the command, where others could read secrets
            given.write(pickle.dumps((inputs, shard)))
        deadline = time.monotonic() + _START_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            try:
                return with_one()
            except OSError:
                time.sleep(0.02)
    raise ShardError(f"{_name(shard)} did not start within {_START_SECONDS} s: see the executor's log")


def _id(inputs: LagInputs) -> str:
    of = f"{inputs.warehouse.location}\n{inputs.warehouse.cluster}\n{inputs.settings.lag.shards}"
    return hashlib.sha256(of.encode()).hexdigest()[:12]


def _folder() -> Path:
    """Return a folder that only this user can read: sockets in it need no further protection."""
    folder = Path(tempfile.gettempdir(), f"grouptrail-lag-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    state = folder.stat()
    if state.st_uid != os.getuid() or state.st_mode & 0o077:
        raise ShardError(f"{folder} is open to other users: remove it, or set TMPDIR")
    return folder
