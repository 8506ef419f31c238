"""`grouptrail recover`: replace a lost or unreadable checkpoint by one that begins where the job's tables end.

Rows carry the coordinates of their records, so nothing is written twice; the old checkpoint is renamed. After an
interruption the command can be run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from grouptrail.console.progress import print_now
from grouptrail.jobs import Job, Progress, jobs_for
from grouptrail.runtime.lease import sole_driver
from grouptrail.spark.session import session
from grouptrail.storage import checkpoints, tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from grouptrail.config import Config


def recover(configs: Sequence[Config], jobs: tuple[str, ...] = (), report: Progress = print_now) -> None:
    """Recover, in every cluster, the jobs that no query can continue, or the named ones in any case."""
    for config in configs:
        tables.check_warehouse_exists(config)
    with session(configs[0], "grouptrail-recover", report) as spark:
        for config in configs:
            wanted = jobs_for(config.source, jobs)
            with sole_driver(spark, config, [job.name for job in wanted], report):
                for job in wanted:
                    _recover(spark, config, job, report, by_name=bool(jobs))


def _recover(spark: SparkSession, config: Config, job: Job, report: Progress, *, by_name: bool) -> None:
    writes = () if job.resumes_from_tables else job.writes
    tables.ensure_tables(spark, config, writes)
    if checkpoints.fault(spark, config, job.name, writes) is None and not by_name:
        report(f"{job.name}: its checkpoint is intact, or it has never run: nothing to do")
        return
    start = job.start_after_loss(spark, config, report)
    aside = checkpoints.put_aside(spark, config, job.name)
    checkpoints.write_start(spark, config, job.name, start)
    old = f"the old checkpoint is {aside}" if aside else "there was no checkpoint"
    report(f"{job.name}: the next run begins where its tables end; {old}")
