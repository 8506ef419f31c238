"""The process that computes the lag of a shard, beside an executor (`shards`): `python -m` with its socket's address.

It keeps its state (`LagState`) between requests, and answers one at a time.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Any

from grouptrail.console.progress import print_now
from grouptrail.errors import GrouptrailError, one_line
from grouptrail.lag.shard import Commits, LagInputs, Samples, Shard, ShardError, WrittenCommits, WrittenLag
from grouptrail.lag.state import LagState, counts_by_status
from grouptrail.memory import keep_memory_within_batches, release_memory
from grouptrail.storage.files import write

_LOOK_EVERY_SECONDS = 1.0
# A shard that has moved to another executor leaves its process behind.
_IDLE_SECONDS, _IDLE_INTERVALS = 600, 5


class _Server:
    def __init__(self, inputs: LagInputs, shard: Shard) -> None:
        self._new_state: Callable[[], LagState] = lambda: LagState(inputs, print_now, shard)
        self._state = self._new_state()
        self._last_request = ""
        self._asked_at = time.monotonic()
        self._is_busy = False
        self._idle_seconds = max(_IDLE_SECONDS, _IDLE_INTERVALS * inputs.settings.sample_seconds)

    def serve(self, listener: Listener) -> None:
        """Answer requests for ever."""
        while True:
            with listener.accept() as connection:
                self._is_busy = True
                try:
                    connection.send(self._answer(connection.recv()))
                except (EOFError, OSError) as error:
                    print_now(f"lag: a task has ended without waiting for its answer ({error})")
                finally:
                    release_memory()
                    self._asked_at = time.monotonic()
                    self._is_busy = False

    def is_wanted(self, parent: int) -> bool:
        """Return whether the parent lives and requests still come."""
        try:
            os.kill(parent, 0)
        except OSError:
            return False
        return self._is_busy or time.monotonic() - self._asked_at < self._idle_seconds

    def _answer(self, request: Samples | Commits | None) -> Any:
        try:
            if isinstance(request, Samples):
                return self._lag(request)
            if isinstance(request, Commits):
                rows, source = self._state.commits()
                return WrittenCommits(tuple(write(rows.to_batches(), request.location)), source)
            self._state.prepare()
        except GrouptrailError as error:
            return error
        except Exception as error:
            return ShardError(one_line(error))
        return None

    def _lag(self, request: Samples) -> WrittenLag:
        if self._last_request != request.after:
            self._state = self._new_state()
        self._last_request = "failed"
        lag = self._state.lag(request.rows)
        files = tuple(write(lag.to_batches(), request.location))
        self._last_request = request.request
        return WrittenLag(files, counts_by_status(lag), self._state.has_new_commits)


def main(address: str, parent: int) -> None:
    """Serve a shard's requests at a socket until `parent` ends."""
    keep_memory_within_batches()
    server = _Server(*pickle.loads(sys.stdin.buffer.read()))
    listener = Listener(address, "AF_UNIX", backlog=8)
    threading.Thread(target=server.serve, args=(listener,), daemon=True).start()
    while server.is_wanted(parent):
        time.sleep(_LOOK_EVERY_SECONDS)
    for file in (Path(address), Path(f"{address}.lock")):
        file.unlink(missing_ok=True)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
