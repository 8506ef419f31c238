"""Queries that run in a thread of the driver, for jobs whose batches Spark need not plan."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grouptrail.storage.checkpoints import Checkpoint


class ThreadQuery(ABC):
    """A query that runs in a thread until it is stopped; its methods and properties are those of Spark's queries."""

    def __init__(self, name: str) -> None:
        self._stopped = threading.Event()
        self._fault: Exception | None = None
        self._is_processing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def isActive(self) -> bool:  # noqa: N802
        """Whether it has neither been stopped nor failed."""
        return self._thread.is_alive()

    @property
    def status(self) -> dict[str, Any]:
        """Whether a batch is being processed."""
        return {"isTriggerActive": self._is_processing}

    @property
    def lastProgress(self) -> dict[str, Any]:  # noqa: N802
        """The number of the last batch."""
        return {"batchId": self._next_batch() - 1, "timestamp": ""}

    def stop(self) -> None:
        """Stop after the current batch."""
        self._stopped.set()
        self._thread.join()

    def awaitTermination(self, timeout: float | None = None) -> bool | None:  # noqa: N802
        """Wait until it ends; return whether it has. Raises what a batch has raised."""
        self._thread.join(timeout)
        if self._fault is not None:
            raise self._fault
        return None if timeout is None else not self._thread.is_alive()

    @abstractmethod
    def _next_batch(self) -> int:
        """Return the number of the next batch."""

    @abstractmethod
    def _process_batches(self) -> None:
        """Process batches until `_stopped` is set; `_is_processing` is true during each."""

    def _run(self) -> None:
        try:
            self._process_batches()
        except Exception as fault:
            self._fault = fault
        finally:
            self._is_processing = False


class IntervalQuery(ThreadQuery):
    """Processes a batch at an interval: for jobs that sample, and resume from their tables alone.

    `process` gets the number of each batch, counted from the start; the next one begins at once if it returns that
    there is more to do. Of its checkpoint it needs no more than the query's id, and writes nothing else. With `once`
    it ends after a batch that leaves nothing to do.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        process: Callable[[int], bool | None],
        once: bool,
        every_seconds: float,
        first_after_seconds: float = 0,
    ) -> None:
        super().__init__(checkpoint.query_name)
        checkpoint.ensure_query_id()
        self._process = process
        self._once = once
        self._every_seconds = every_seconds
        self._due_at = time.monotonic() + first_after_seconds
        self._batch = 0
        self._thread.start()

    def _next_batch(self) -> int:
        return self._batch

    def _process_batches(self) -> None:
        while not self._stopped.wait(max(0.0, self._due_at - time.monotonic())):
            self._is_processing = True
            has_more = self._process(self._batch)
            self._batch += 1
            self._is_processing = False
            if has_more:
                continue
            if self._once:
                return
            self._due_at = max(self._due_at + self._every_seconds, time.monotonic())
