"""Queries while they run: how they are stopped, and what is told when one fails."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

from grouptrail.errors import GrouptrailError

if TYPE_CHECKING:
    from types import FrameType

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_LAND_LOOK_EVERY_SECONDS = 0.05
_LANDING_DEADLINE_SECONDS = 10.0
_MOST_BACK_SECONDS = 60.0

_DISK_FULL = (
    "the disk is full: make room for the warehouse, or for Spark's own files under spark.local.dir; "
    "the next run goes on where this one ended"
)

_NO_FILE_SYSTEM = (
    "Spark has no file system of the warehouse's kind: submit the jars that Hadoop takes for it "
    "(for s3a: --packages org.apache.hadoop:hadoop-aws of Spark's Hadoop version)"
)

_NOT_WRITABLE = "the warehouse's store denies writing there: correct the rights, or [storage] or spark.hadoop.fs.…"


class JobFailedError(GrouptrailError):
    """A job's query ended with an error."""


def collect_soon() -> None:
    """Sets aside what has been imported, so that Python looks for cycles every minute or two, not every six.

    Each of py4j's objects is in one, and holds a plan or a snapshot in Java until it is found.
    """
    gc.collect()
    gc.freeze()
    gc.collect()  # by its count of what is left, Python decides when to look at all of it again


@contextlib.contextmanager
def told_of_the_warehouse() -> Iterator[None]:
    """A job makes its tables and its checkpoint before its query runs: what is wrong with their place shows there."""
    try:
        yield
    except Exception as fault:
        text = str(fault)
        if _shows_full_disk(text):
            raise JobFailedError(_DISK_FULL) from fault
        if "No FileSystem for scheme" in text or re.search(r"Class org\.apache\.hadoop\.fs\.\S+ not found", text):
            raise JobFailedError(_NO_FILE_SYSTEM) from fault
        if "AccessDenied" in text or "AuthorizationPermissionMismatch" in text:
            raise JobFailedError(_NOT_WRITABLE) from fault
        raise


@contextlib.contextmanager
def stopped_at_the_end(
    spark: SparkSession, signals: list[int], report: Callable[[str], None]
) -> Iterator[list[StreamingQuery]]:
    """Queries that are stopped when they have landed what they are at; also where one has failed."""
    queries: list[StreamingQuery] = []
    try:
        yield queries
        if signals:
            report("stopping when the batch under way has landed")
    finally:
        if not _await_landing(queries) and signals:
            # To stop a query is to wait for its batch, however long that takes.
            report("the batch under way takes longer: the next run lands it")
            _end_at_once(spark, 128 + signals[0])
        running = [query for query in queries if query.isActive]
        if running:  # Spark would log what is broken off where a batch takes longer, or the next has begun
            spark.sparkContext.setLogLevel("OFF")
        for query in running:
            query.stop()


@contextlib.contextmanager
def stop_signals(spark: SparkSession) -> Iterator[list[int]]:
    """The signal that asked this process to stop, once there is one; the second ends the process.

    In place of Spark's own handler, which cancels what is being landed.
    """
    received: list[int] = []

    def receive(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        if len(received) > 1:
            _end_at_once(spark, 128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_at_once(spark: SparkSession, status: int) -> NoReturn:
    """As a crash would, after which the next run loses and doubles nothing."""
    process = getattr(spark.sparkContext._gateway, "proc", None)
    if process is not None:
        process.kill()
    os._exit(status)


def end_taken_over(spark: SparkSession, loss: str, report: Callable[[str], None]) -> NoReturn:
    """Where another driver runs the jobs by now: the process stood still, or was cut off, for too long."""
    report(f"grouptrail: {loss}")
    _end_at_once(spark, 1)


class Clock:
    """The machine's clock, by which Spark's trigger goes, watched by the one that nobody sets."""

    def __init__(self) -> None:
        self._ahead = self._now_ahead()

    def refuse_step_back(self) -> None:
        """Raises JobFailedError where it went back by more than a minute since it was looked at last."""
        before, self._ahead = self._ahead, self._now_ahead()
        if before - self._ahead > _MOST_BACK_SECONDS:
            raise JobFailedError(
                f"the clock of this machine went back by {before - self._ahead:.0f} s, and Spark starts no batch "
                "until it is where it was: start it again; nothing is lost"
            )

    @staticmethod
    def _now_ahead() -> float:
        return time.time() - time.monotonic()


def any_runs(queries: Sequence[StreamingQuery]) -> bool:
    """Whether one has not ended yet. Raises JobFailedError where one has failed."""
    from pyspark.errors import StreamingQueryException

    running = [query for query in queries if query.isActive]
    for query in queries:
        try:
            if query not in running:
                query.awaitTermination()
        except StreamingQueryException as fault:
            raise JobFailedError(reason(fault)) from fault
    return bool(running)


def _await_landing(queries: list[StreamingQuery]) -> bool:
    """Gives each query some seconds to end the batch that it is in; whether all have."""
    deadline = time.monotonic() + _LANDING_DEADLINE_SECONDS
    for query, done in [(query, _batches_done(query)) for query in queries]:
        while query.isActive and query.status["isTriggerActive"] and _batches_done(query) == done:
            if time.monotonic() > deadline:
                return False
            time.sleep(_LAND_LOOK_EVERY_SECONDS)
    return True


def _batches_done(query: StreamingQuery) -> tuple[int, str]:
    """The newest batch that has landed: it says so once its commit is in the checkpoint."""
    progress = query.lastProgress
    return (progress["batchId"], progress["timestamp"]) if progress else (-1, "")


def reason(fault: Exception) -> str:
    """One line of a stream's failure: its cause, without what Spark puts around it, and what to do."""
    text = str(fault).strip() or type(fault).__name__
    if _shows_full_disk(text):
        return _DISK_FULL
    cause = _python_cause(text) or text.splitlines()[0]
    cause = cause.partition("terminated with exception: ")[2] or cause
    return f"{cause.partition(' SQLSTATE')[0].strip().rstrip('.')}: {_remedy(cause)}"


def is_passing(fault: Exception) -> bool:
    """Whether a job failed because the machine was too busy, so that it only has to be started again.

    Spark gives a Python process ten seconds to call back, whatever else there is to do; its code fixes that time.
    """
    return "Python worker failed to connect back" in str(fault)


def _remedy(cause: str) -> str:
    if "Multiple streaming jobs detected" in cause:
        return "another driver runs this job: stop one of them"
    if re.search("log file was malformed|incomplete log file", cause, re.IGNORECASE):
        return "a file of the checkpoint is damaged: run grouptrail recover --job NAME"
    return "grouptrail doctor looks for the reason"


def _shows_full_disk(text: str) -> bool:
    return "No space left on device" in text or "Disk quota exceeded" in text


def _python_cause(text: str) -> str | None:
    """What Python raised while a batch was written: the first line behind the traceback's frames, as in

    `Traceback (most recent call last):`, indented frames, `package.Error: message`; where Java raised it, that line
    is py4j's and the next one `: java.package.Error: message`.
    """
    _, _, trace = text.partition("Traceback (most recent call last):\n")
    raised = [line for line in trace.splitlines() if line and not line.startswith(" ")]
    if raised and raised[0].startswith("py4j.protocol.Py4JJavaError"):
        raised = [line.removeprefix(": ") for line in raised[1:]]
    return (raised[0].partition(": ")[2] or raised[0]) if raised else None
