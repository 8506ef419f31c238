"""Start here: the jobs in the order data flows, what each reads and what it writes.

    __consumer_offsets --decode--> offset_commits, group_metadata, group_records, undecodable_records, ingest_progress

Each job is one structured-streaming query with a checkpoint of its own. The command line, the schedules and the
docs take the jobs from here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from grouptrail.errors import GrouptrailError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from grouptrail.config import Config

Report = Callable[[str], None]


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
)


class JobFailed(GrouptrailError):
    """A job's query ended with an error."""


def run(config: Config, *, jobs: tuple[str, ...] = (), once: bool = False, report: Report = print) -> None:
    """Runs the named jobs (all, where none is named) in one Spark application, until all have ended.

    Jobs run until they are stopped; with `once`, until they have done what is there. Raises JobFailed when one
    fails; the others are stopped then.
    """
    from grouptrail.session import start_session

    wanted = [job for job in JOBS if not jobs or job.name in jobs]
    starts = [import_module(job.module) for job in wanted]
    for job in starts:
        job.check(config)
    spark = start_session(config, f"grouptrail-{config.cluster}", report)
    try:
        queries = [job.start(spark, config, once=once, report=report) for job in starts]
        _await_all(spark, queries)
    finally:
        spark.stop()


def _await_all(spark: SparkSession, queries: list[StreamingQuery]) -> None:
    """Returns when every query has ended; stops the others when one has failed."""
    from pyspark.errors import StreamingQueryException

    try:
        for query in queries:
            while not query.awaitTermination(1):
                failed = next((query for query in queries if not query.isActive and query.exception()), None)
                if failed is not None:
                    failed.awaitTermination()
    except StreamingQueryException as fault:
        raise JobFailed(_reason(fault)) from fault
    finally:
        for query in queries:
            query.stop()


def _reason(fault: Exception) -> str:
    """One line of a stream's failure: its root cause, not the layers it came through."""
    lines = [line.strip() for line in str(fault).splitlines() if line.strip()]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return f"{(causes or lines or [type(fault).__name__])[-1]}: grouptrail doctor looks for the reason"
