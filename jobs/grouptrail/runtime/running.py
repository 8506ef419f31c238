"""Running queries: stop them on a signal, and explain in one line why one failed."""

from __future__ import annotations

import contextlib
import re
import signal
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

from grouptrail.console.progress import Log
from grouptrail.errors import GrouptrailError, first_cause, python_error, text_of
from grouptrail.spark import jvm
from grouptrail.spark.streams import stopping
from grouptrail.storage.following import Query

if TYPE_CHECKING:
    from types import FrameType

    from pyspark.sql import SparkSession

_LAND_LOOK_EVERY_SECONDS = 0.05
_LANDING_DEADLINE_SECONDS = 10.0
_MOST_BACK_SECONDS = 60.0

_DISK_FULL = (
    "the disk is full: make room for the warehouse, or for Spark's own files under spark.local.dir; "
    "the next run resumes where this one ended"
)

_NO_FILE_SYSTEM = (
    "Spark has no file system of the warehouse's kind: submit the jars that Hadoop takes for it "
    "(for s3a: --packages org.apache.hadoop:hadoop-aws of Spark's Hadoop version)"
)

_OWN = "grouptrail."
_DOCTOR = "run grouptrail doctor"

_NOT_WRITABLE = "the warehouse's store denies write access: check the access rights, [storage] and spark.hadoop.fs.…"


class JobFailedError(GrouptrailError):
    """A job could not run, or its query ended with an error."""


@contextlib.contextmanager
def storage_errors_explained() -> Iterator[None]:
    """Raise errors of the warehouse's storage as JobFailedError with a remedy.

    For the start of a job, which creates its tables and its checkpoint before its query runs.
    """
    try:
        yield
    except Exception as fault:
        text = str(fault)
        if _shows_full_disk(text):
            raise JobFailedError(_DISK_FULL) from fault
        if lacks_file_system(text):
            raise JobFailedError(_NO_FILE_SYSTEM) from fault
        if lacks_storage_rights(text):
            raise JobFailedError(_NOT_WRITABLE) from fault
        raise


@contextlib.contextmanager
def stopped_at_exit(spark: SparkSession, signals: list[int], log: Log) -> Iterator[list[Query]]:
    """Yield a list of queries that are stopped at exit, after their current batches; also if one has failed."""
    queries: list[Query] = []
    stopping.clear()
    try:
        yield queries
        if signals and queries:
            log("stopping after the current batch")
    finally:
        stopping.set()
        if not _await_landing(queries) and signals:
            # Stopping a query waits for its batch, however long that takes.
            log("the current batch takes too long: the next run repeats it")
            jvm.end_process(128 + signals[0])
        running = [query for query in queries if query.isActive]
        if running:  # Spark would log errors of a batch that is interrupted
            spark.sparkContext.setLogLevel("OFF")
        for query in running:
            query.stop()


@contextlib.contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Yield a list that receives SIGINT and SIGTERM; a second signal ends the process.

    Replaces Spark's own handler, which cancels the batch that is being written.
    """
    received: list[int] = []

    def receive(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        if len(received) > 1:
            jvm.end_process(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_taken_over(loss: str, log: Log) -> NoReturn:
    """End the process because another driver has taken over: this one was suspended or disconnected for too long."""
    log(f"grouptrail: {loss}")
    jvm.end_process(1)


def end_without_spark(log: Log) -> NoReturn:
    """End the process because its JVM is gone: nothing in this process can start another."""
    log(
        "grouptrail: Spark has ended (its JVM was killed or had no memory left): start grouptrail again; "
        "nothing is lost"
    )
    jvm.end_process(1)


class Clock:
    """The machine's clock, which triggers Spark's batches, compared with the monotonic clock."""

    def __init__(self) -> None:
        self._ahead = self._now_ahead()

    def refuse_step_back(self) -> None:
        """Raise JobFailedError if the clock went back by more than a minute since the last call."""
        before, self._ahead = self._ahead, self._now_ahead()
        if before - self._ahead > _MOST_BACK_SECONDS:
            raise JobFailedError(
                f"the clock of this machine went back by {before - self._ahead:.0f} s, and Spark starts no batch "
                "before that time has passed again: restart grouptrail; nothing is lost"
            )

    @staticmethod
    def _now_ahead() -> float:
        return time.time() - time.monotonic()


def any_runs(queries: Sequence[Query]) -> bool:
    """Return whether a query is still running. Raises JobFailedError if one has failed."""
    running = [query for query in queries if query.isActive]
    for query in queries:
        if query not in running and (fault := _fault(query)):
            raise JobFailedError(reason(fault)) from fault
    return bool(running)


def _await_landing(queries: list[Query]) -> bool:
    """Wait some seconds for each query to end its current batch; return whether all have."""
    deadline = time.monotonic() + _LANDING_DEADLINE_SECONDS
    for query, done in [(query, _batches_done(query)) for query in queries]:
        while query.isActive and query.status["isTriggerActive"] and _batches_done(query) == done:
            if time.monotonic() > deadline:
                return False
            time.sleep(_LAND_LOOK_EVERY_SECONDS)
    return True


def stop_between_batches(queries: Sequence[Query]) -> None:
    """Stop queries after their current batches; one that takes longer than ten seconds is interrupted."""
    _await_landing(list(queries))
    for query in queries:
        query.stop()


def _batches_done(query: Query) -> tuple[int, str]:
    """Return the newest completed batch: Spark reports it once its commit is in the checkpoint."""
    progress = query.lastProgress
    return (progress["batchId"], progress["timestamp"]) if progress else (-1, "")


def reason(fault: Exception) -> str:
    """Return one line about a failure of Spark: its cause without what Spark adds around it, and what to do."""
    if isinstance(fault, GrouptrailError):  # it says what to do
        return str(fault)
    text = text_of(fault)
    if _shows_full_disk(text):
        return _DISK_FULL
    error = python_error(text) or python_error("".join(traceback.format_exception(fault, chain=False))) or ""
    if error.startswith(_OWN):  # it says what to do
        return _message(error)
    cause = first_cause(fault)
    return f"{cause.rstrip('.')}: {_remedy(cause)}"


def failure(query: Query) -> JobFailedError | None:
    """Return why a query that runs until it is stopped has ended; None while it runs."""
    if query.isActive:
        return None
    if fault := _fault(query):
        failed = JobFailedError(reason(fault))
        failed.__cause__ = fault
        return failed
    return JobFailedError("its query was stopped from outside")


def _fault(query: Query) -> Exception | None:
    """Return what a query that has ended has raised; None if it was stopped."""
    try:
        query.awaitTermination()
    except Exception as fault:
        return fault
    return None


def lacks_file_system(text: str) -> bool:
    """Return whether an error's text says that Hadoop knows no file system of the warehouse's kind."""
    return "No FileSystem for scheme" in text or bool(
        re.search(r"Class org\.apache\.hadoop\.fs\.\S+ not found", text)
    )


def lacks_storage_rights(text: str) -> bool:
    """Return whether an error's text says that the object store denies access."""
    return "AccessDenied" in text or "AuthorizationPermissionMismatch" in text


def _remedy(cause: str) -> str:
    if "Multiple streaming jobs detected" in cause:
        return "another driver runs this job: stop one of them"
    if re.search("log file was malformed|incomplete log file", cause, re.IGNORECASE):
        return "a file of the checkpoint is damaged: run grouptrail recover --job NAME"
    if re.search("retrieving token from callback handler|response code .* and error|access_token|JWT", cause):
        return f"the token endpoint does not answer, or refuses the client: {_DOCTOR}"
    if "invalid_token" in cause:
        return "the brokers refuse the token: compare its issuer, audience, scope and times with what they expect"
    return _DOCTOR


def _shows_full_disk(text: str) -> bool:
    return "No space left on device" in text or "Disk quota exceeded" in text


def _message(error: str) -> str:
    return error.partition(": ")[2] or error
