"""Start here: the jobs in the order data flows, what each reads and what it writes.

    __consumer_offsets --decode--> offset_commits, group_metadata, group_records, undecodable_records, ingest_progress
    offset_commits + brokers --log-offsets-> log_offsets
    these              --history-> generations, group_states, memberships, partition_ownership, rebalances
    these and log_offsets  --lag-> consumer_lag, committed_offsets

Each job is one structured-streaming query with a checkpoint of its own. The command line, the schedules and the
docs take the jobs from here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn

from grouptrail.errors import GrouptrailError

if TYPE_CHECKING:
    from types import FrameType

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from grouptrail.config import Config

Report = Callable[[str], None]

_LOOK_EVERY_SECONDS = 0.2
_LAND_LOOK_EVERY_SECONDS = 0.05
_LANDING_DEADLINE_SECONDS = 10.0


@dataclass(frozen=True)
class Job:
    """A job; `module` has `start(spark, config, once=…, report=…)`, which gives its running query."""

    name: str
    about: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    module: str


JOBS = (
    Job(
        name="decode",
        about="decodes every record of the offsets topic and lands it in exactly one table",
        reads=("__consumer_offsets",),
        writes=(
            "offset_commits",
            "group_metadata",
            "group_records",
            "undecodable_records",
            "ingest_progress",
        ),
        module="grouptrail.decode.job",
    ),
    Job(
        name="log-offsets",
        about="asks the brokers where the logs begin and end whose partitions a group commits to",
        reads=("offset_commits",),
        writes=("log_offsets",),
        module="grouptrail.log_offsets.job",
    ),
    Job(
        name="history",
        about="tells each group's generations, states, members, ownership and rebalances from its records",
        reads=("ingest_progress", "offset_commits", "group_metadata", "group_records"),
        writes=(
            "generations",
            "group_states",
            "memberships",
            "partition_ownership",
            "rebalances",
            "topic_names",
            "history_positions",
        ),
        module="grouptrail.history.job",
    ),
    Job(
        name="lag",
        about="tells how far behind each group is, in offsets and in seconds, and whether that is a worry",
        reads=("log_offsets", "offset_commits", "group_states", "generations", "memberships", "partition_ownership"),
        writes=("consumer_lag", "committed_offsets"),
        module="grouptrail.lag.job",
    ),
)


_DISK_FULL = (
    "the disk is full: make room for the warehouse, or for Spark's own files under spark.local.dir; "
    "the next run goes on where this one ended"
)


class JobFailed(GrouptrailError):
    """A job's query ended with an error."""


def _print_now(line: str) -> None:
    """A line that a pipe or a log gets at once, too."""
    print(line, flush=True)


def run(config: Config, *, jobs: tuple[str, ...] = (), once: bool = False, report: Report = _print_now) -> None:
    """Runs the named jobs (all, where none is named) in one Spark application, until all have ended.

    Jobs run until they are stopped; with `once`, until they have done what is there. SIGINT or SIGTERM lets the
    batches under way land (for ten seconds at most) and ends the process with 130 or 143; a second signal ends it at
    once. Raises JobFailed when a job fails; the others are stopped then.
    """
    from grouptrail.session import start_session

    wanted = [job for job in JOBS if not jobs or job.name in jobs]
    starts = [import_module(job.module) for job in wanted]
    for job in starts:
        job.check(config)
    spark = start_session(config, f"grouptrail-{config.cluster}", report)
    try:
        with _stop_signals(spark) as signals:
            # A job that ends by itself leaves its successor all that it found.
            for together in [[job] for job in starts] if once else [starts]:
                with _stopped_at_the_end(spark, signals, report) as queries:
                    for job in together:
                        if signals:
                            break
                        with _told_of_full_disks():
                            queries.append(job.start(spark, config, once=once, report=report))
                    _await_all(queries, signals, report)
                if signals:
                    break
    finally:
        spark.stop()
    if signals:
        raise SystemExit(128 + signals[0])


@contextlib.contextmanager
def _told_of_full_disks() -> Iterator[None]:
    """A job makes its tables and its checkpoint before its query runs: a full disk shows there, too."""
    try:
        yield
    except Exception as fault:
        if _shows_full_disk(str(fault)):
            raise JobFailed(_DISK_FULL) from fault
        raise


@contextlib.contextmanager
def _stopped_at_the_end(spark: SparkSession, signals: list[int], report: Report) -> Iterator[list[StreamingQuery]]:
    """Queries that are stopped when they have landed what they are at; also where one has failed."""
    queries: list[StreamingQuery] = []
    try:
        yield queries
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
def _stop_signals(spark: SparkSession) -> Iterator[list[int]]:
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


def _await_all(queries: list[StreamingQuery], signals: list[int], report: Report) -> None:
    """Returns when every query has ended, or a signal has come. Raises JobFailed when one has failed."""
    from pyspark.errors import StreamingQueryException

    running = queries
    while running and not signals:
        running = [query for query in queries if query.isActive]
        for query in queries:  # one that failed before this was looked at, too
            try:
                if query not in running:
                    query.awaitTermination()
            except StreamingQueryException as fault:
                raise JobFailed(_reason(fault)) from fault
        if running:
            time.sleep(_LOOK_EVERY_SECONDS)
    if signals:
        report("stopping when the batch under way has landed")


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


def _reason(fault: Exception) -> str:
    """One line of a stream's failure: its cause, without what Spark puts around it, and what to do."""
    text = str(fault).strip() or type(fault).__name__
    if _shows_full_disk(text):
        return _DISK_FULL
    cause = _python_cause(text) or text.splitlines()[0]
    cause = cause.partition("terminated with exception: ")[2] or cause
    return f"{cause.partition(' SQLSTATE')[0].strip().rstrip('.')}: grouptrail doctor looks for the reason"


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
