"""Run the jobs of one or more clusters in one Spark application, until they end or a signal comes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from grouptrail.console.progress import print_now
from grouptrail.console.signals import interrupted_silently
from grouptrail.decode.live import LiveCommits
from grouptrail.errors import GrouptrailError, first_cause
from grouptrail.jobs import Job, Live, Publish, Query, jobs_for, reads_offsets_topic
from grouptrail.memory import collect_garbage_sooner
from grouptrail.runtime.restarts import Backoff, is_unrecoverable
from grouptrail.runtime.running import (
    Clock,
    JobFailedError,
    any_runs,
    end_taken_over,
    end_without_spark,
    failure,
    stop_signals,
    stopped_at_exit,
    storage_errors_explained,
)
from grouptrail.spark.session import is_lost
from grouptrail.storage import checkpoints

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from grouptrail.config import Config
    from grouptrail.exporter.service import Exporter

Report = Callable[[str], None]

_LOOK_EVERY_SECONDS = 0.2


def run(
    configs: Sequence[Config], *, jobs: tuple[str, ...] = (), once: bool = False, report: Report = print_now
) -> None:
    """Run the named jobs (default: all) of every cluster in one Spark application, until all have ended.

    Jobs run until they are stopped; with `once`, until they have processed what is there. SIGINT or SIGTERM waits for
    the batches under way (ten seconds at most) and ends the process with 130 or 143; a second signal ends it at once.
    A job that fails is restarted after a pause while the others continue; a fault that no restart can mend
    (`restarts.is_unrecoverable`) stops all jobs and is raised. With several clusters it stops those of its cluster
    only, which are tried again after a pause. With `once` any fault is raised, or for several clusters reported at
    the end.
    """
    with interrupted_silently():
        from grouptrail.spark import jvm
        from grouptrail.spark.session import begun_session, start_session

    clusters = [
        _Cluster(config, jobs_for(config.source, jobs), report if len(configs) == 1 else _with_name(config, report))
        for config in configs
    ]
    with contextlib.ExitStack() as ending:
        with jvm.ended_by_signals():
            # While Spark starts, metrics are served from the tables.
            exporter = None if once else ending.enter_context(_metrics(configs, clusters, report))
            with begun_session(configs[0], report) as begun:
                _check(clusters)
            if exporter is not None:
                report(f"metrics are served at {exporter.url}/metrics")
                if exporter.serves_pages:
                    report(f"web pages: {exporter.url}/")
            name = f"grouptrail-{'-'.join(config.cluster for config in configs)}"
            spark = start_session(configs[0], name, report, begun=begun)
            ending.callback(spark.stop)
            for cluster in clusters:
                ending.callback(cluster.release)
            collect_garbage_sooner()
            signals = ending.enter_context(stop_signals())
        if once:
            _run_once(spark, clusters, signals, report)
        else:
            _run_on(spark, clusters, exporter, signals, report)
    if signals:
        raise SystemExit(128 + signals[0])


class _JobRun:
    """A job that runs until it is stopped: its query, and when it is restarted after a fault."""

    def __init__(self, job: Job, *, is_written_here: bool = False) -> None:
        """`is_written_here` is as for `Job.start`."""
        self.name = job.name
        self.query: Query | None = None
        self.restarts = 0
        self._job = job
        self._is_written_here = is_written_here
        self._backoff = Backoff()
        self._has_run = False

    @property
    def is_due(self) -> bool:
        """Whether there is no query and no pause."""
        return self.query is None and self._backoff.is_due

    def check(self) -> None:
        """Raise JobFailedError if the query has failed."""
        if self.query is not None and (fault := failure(self.query)):
            raise fault

    def start(
        self, spark: SparkSession, config: Config, report: Report, publish: Publish | None, live: Live | None
    ) -> None:
        """Start the query."""
        self._backoff.start()
        if self._has_run:
            checkpoints.refuse_gone(spark, config, self.name)
        with storage_errors_explained():
            self.query = self._job.start(
                spark,
                config,
                once=False,
                report=report,
                is_written_here=self._is_written_here,
                publish=publish,
                live=live,
            )
        if self.restarts:
            report(f"job {self.name}: restarted")
        self._has_run = True

    def put_off(self) -> float:
        """Restart the query later; return the pause in seconds."""
        self.query = None
        self.restarts += 1
        return self._backoff.fail()


class _Cluster:
    """The selected jobs of one cluster."""

    def __init__(self, config: Config, jobs: Sequence[Job], report: Report) -> None:
        self.name = config.cluster
        self.report = report
        self._config = config
        self._jobs = jobs
        written = {table for job in jobs for table in job.writes}
        self._runs = [_JobRun(job, is_written_here=job.follows in written) for job in jobs]
        self._held = contextlib.ExitStack()
        self._live = LiveCommits(config, report)
        self._is_checked = False
        self._is_held = False
        self._backoff = Backoff()

    @property
    def queries(self) -> list[Query]:
        """The queries of its jobs."""
        return [run.query for run in self._runs if run.query is not None]

    @property
    def publishes_lag(self) -> bool:
        """Whether one of its jobs passes on lag from memory."""
        return any(job.publishes_lag for job in self._jobs)

    def check(self) -> None:
        """Raise an error if a job cannot run."""
        for job in self._jobs:
            job.check(self._config)
        self._is_checked = True

    def hold(self, spark: SparkSession) -> None:
        """Keep other drivers from these jobs. Raises AlreadyRunningError if one runs them."""
        from grouptrail.runtime.lease import sole_driver

        names = [job.name for job in self._jobs]
        self._held.enter_context(
            sole_driver(
                spark, self._config, names, self.report, on_loss=lambda loss: end_taken_over(loss, self.report)
            )
        )
        self._is_held = True

    def release(self) -> None:
        """Let other drivers run the jobs."""
        self._is_held = False
        self._held.close()
        self._live.close()

    def one_by_one(self, spark: SparkSession) -> Iterator[Query]:
        """Start each job when the one before has ended, so that it finds all of that job's output."""
        self.hold(spark)
        for job in self._jobs:
            with storage_errors_explained():
                yield job.start(spark, self._config, once=True, report=self.report)

    def keep_running(self, spark: SparkSession, exporter: Exporter | None, signals: list[int]) -> None:
        """Start the jobs that do not run, all at once, those that failed after a pause, unless there is a signal.

        Raises what no restart of one job can mend.
        """
        if not self._is_held:
            if not self._backoff.is_due:
                return
            self._backoff.start()
            if not self._is_checked:
                self.check()
            self.hold(spark)
        due = [run for run in self._runs if run.is_due]
        for run in self._runs:
            self._put_off_if_failed(spark, run, run.check)
        if not due or signals:
            return
        publish = None if exporter is None else partial(exporter.publish, self.name)
        live = None if exporter is None or not reads_offsets_topic(self._config.source) else self._live.fresh
        with ThreadPoolExecutor(len(due)) as pool:
            starts = [pool.submit(run.start, spark, self._config, self.report, publish, live) for run in due]
        for run, start in zip(due, starts, strict=True):
            self._put_off_if_failed(spark, run, start.result)

    def _put_off_if_failed(self, spark: SparkSession, run: _JobRun, result: Callable[[], None]) -> None:
        try:
            result()
        except Exception as fault:
            if is_lost(spark, fault) or is_unrecoverable(fault):
                raise
            pause = run.put_off()
            self.report(f"job {run.name}: {_one_line(fault)}; restarting it in {pause:.0f} s, other jobs continue")

    def show_jobs(self, exporter: Exporter) -> None:
        """Pass the state of its jobs to the exporter."""
        for run in self._runs:
            exporter.show_job(self.name, run.name, is_running=run.query is not None, restarts=run.restarts)

    def give_up_for_now(self, fault: Exception) -> None:
        """Stop the jobs and retry them later, with an increasing pause."""
        for query in self.queries:
            query.stop()
        for run in self._runs:
            if run.query is not None:
                run.put_off()
        self.release()
        self._is_checked = False
        self.report(f"{_one_line(fault)}; retrying in {self._backoff.fail():.0f} s")


def _with_name(config: Config, report: Report) -> Report:
    return lambda line: report(f"{config.cluster}: {line}")


def _one_line(fault: Exception) -> str:
    if isinstance(fault, GrouptrailError):
        return str(fault)
    return f"{type(fault).__name__}: {first_cause(fault)}"


def _check(clusters: Sequence[_Cluster]) -> None:
    """Raise an error if no cluster can be run, before Spark is started."""
    faults = {}
    for cluster in clusters:
        try:
            cluster.check()
        except GrouptrailError as fault:
            if len(clusters) == 1:
                raise
            faults[cluster.name] = fault
    if len(faults) == len(clusters):
        raise JobFailedError("; ".join(f"{name}: {fault}" for name, fault in faults.items()))


@contextlib.contextmanager
def _metrics(configs: Sequence[Config], clusters: Sequence[_Cluster], report: Report) -> Iterator[Exporter | None]:
    """Serve the metrics of all clusters if a job has some and there is an address to listen on."""
    if not configs[0].exporter.listen or not any(cluster.publishes_lag for cluster in clusters):
        yield None
        return
    from grouptrail.runtime.serving import exporter_with_pages

    with exporter_with_pages(configs, report, awaits_lag=True) as exporter:
        yield exporter


@contextlib.contextmanager
def _ended_without_spark(spark: SparkSession, report: Report) -> Iterator[None]:
    """End the process with one line after a fault that comes from the end of the JVM, wherever it is met."""
    try:
        yield
    except Exception as fault:
        if is_lost(spark, fault):
            end_without_spark(report)
        raise


def _run_once(spark: SparkSession, clusters: Sequence[_Cluster], signals: list[int], report: Report) -> None:
    """Run one cluster after the other, one job after the other. Raises JobFailedError at the end if any failed."""
    faults = {}
    for cluster in clusters:
        try:
            with _ended_without_spark(spark, report):
                for query in cluster.one_by_one(spark):
                    with stopped_at_exit(spark, signals, report) as queries:
                        queries.append(query)
                        while any_runs(queries) and not signals:
                            time.sleep(_LOOK_EVERY_SECONDS)
                    if signals:
                        return
        except Exception as fault:
            if len(clusters) == 1:
                raise
            cluster.report(_one_line(fault))
            faults[cluster.name] = fault
    if faults:
        raise JobFailedError(
            f"{len(faults)} of {len(clusters)} clusters failed: {', '.join(faults)}; the others are done"
        )


def _run_on(
    spark: SparkSession,
    clusters: Sequence[_Cluster],
    exporter: Exporter | None,
    signals: list[int],
    report: Report,
) -> None:
    """Run all jobs of all clusters until a signal arrives."""
    clock = Clock()
    with _ended_without_spark(spark, report), stopped_at_exit(spark, signals, report) as queries:
        while not signals:
            clock.refuse_step_back()
            for cluster in clusters:
                try:
                    cluster.keep_running(spark, exporter, signals)
                except Exception as fault:
                    if is_lost(spark, fault):
                        raise
                    if len(clusters) == 1 and is_unrecoverable(fault):
                        raise
                    cluster.give_up_for_now(fault)
                finally:
                    queries[:] = [query for cluster in clusters for query in cluster.queries]
                if exporter is not None:
                    cluster.show_jobs(exporter)
            time.sleep(_LOOK_EVERY_SECONDS)
