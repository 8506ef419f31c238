"""`grouptrail recover`: where a job's checkpoint is lost or cannot be read, a new one from where its tables end.

What has landed is known by its coordinates in the tables, so nothing lands twice; the old checkpoint is put aside.
Broken off anywhere, it can be run again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any

from grouptrail.decode import torn
from grouptrail.decode.progress import decoded_to
from grouptrail.runtime.lease import sole_driver
from grouptrail.runtime.pipeline import JOBS, Job
from grouptrail.runtime.rebuild import rebuild
from grouptrail.spark.session import start_session
from grouptrail.storage import checkpoints, tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from grouptrail.config import Config
    from grouptrail.storage.checkpoints import Start

Report = Callable[[str], None]

# A commit's time is the file system's, or another machine's.
_CLOCKS_APART = timedelta(minutes=10)


def recover(configs: Sequence[Config], jobs: tuple[str, ...] = (), report: Report = print) -> None:
    """Of every cluster the jobs whose checkpoint is unfit, or the named ones in any case."""
    spark = start_session(configs[0], "grouptrail-recover", report)
    try:
        for config in configs:
            with sole_driver(spark, config, jobs or tuple(job.name for job in JOBS), report):
                for job in JOBS:
                    if not jobs or job.name in jobs:
                        _recover(spark, config, job, report, by_name=bool(jobs))
    finally:
        spark.stop()


def _recover(spark: SparkSession, config: Config, job: Job, report: Report, *, by_name: bool) -> None:
    module = import_module(job.module)
    is_polled = job.name == "decode" and config.source == "admin"
    # What is polled is numbered by its own offsets, and goes on from its tables in any case.
    writes = () if is_polled else module.WRITES
    tables.ensure_tables(spark, config, writes)
    if checkpoints.fault(spark, config, job.name, writes) is None and not by_name:
        report(f"{job.name}: its checkpoint is whole, or it has never run: left as it is")
        return
    start = {} if is_polled else _STARTS[job.name](spark, config, report)
    aside = checkpoints.put_aside(spark, config, job.name)
    checkpoints.write_start(spark, config, job.name, start)
    old = f"the old checkpoint is {aside}" if aside else "there was no checkpoint"
    report(f"{job.name}: the next run begins where its tables end; {old}")


def _decode(spark: SparkSession, config: Config, report: Report) -> Start:
    known = torn.complete(spark, config, decoded_to(tables.read(spark, config, "ingest_progress")), report)
    return {"offsets": {str(partition): offset for partition, offset in known.items()}}


def _log_offsets(_spark: SparkSession, _config: Config, _report: Report) -> Start:
    """Its next sample is a new one in any case."""
    return {}


def _history(spark: SparkSession, config: Config, report: Report) -> Start:
    """What lands while it is told anew comes once more, and is passed over: each group knows how far it was told."""
    tables.ensure_table(spark, config, "ingest_progress")
    version = _versions(spark, config, "ingest_progress")[0][0]
    rebuild(spark, config, report)
    return {"version": version}


def _lag(spark: SparkSession, config: Config, _report: Report) -> Start:
    newest = tables.read(spark, config, "consumer_lag").selectExpr("max(sampled_at) AS at").collect()[0].at
    if newest is None:
        return {}
    tables.ensure_table(spark, config, "log_offsets")
    versions = _versions(spark, config, "log_offsets")
    later = [version for version, at in versions if at >= newest - _CLOCKS_APART]
    return {"version": min(later, default=versions[0][0]), "after": f"{newest.isoformat()}Z"}


_STARTS: dict[str, Callable[[SparkSession, Config, Report], Start]] = {
    "decode": _decode,
    "log-offsets": _log_offsets,
    "history": _history,
    "lag": _lag,
}


def _versions(spark: SparkSession, config: Config, table: str) -> list[tuple[int, Any]]:
    """A table's commits that are still known, the newest first, and when each was made."""
    rows = spark.sql(f"DESCRIBE HISTORY delta.`{config.table_path(table)}`").select("version", "timestamp").collect()
    return [(row.version, row.timestamp) for row in rows]
