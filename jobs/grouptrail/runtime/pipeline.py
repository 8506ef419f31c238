"""Run the jobs of one or more clusters in one Spark application, until they end or a signal comes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from grouptrail.console.progress import Log, print_now
from grouptrail.console.signals import interrupted_silently
from grouptrail.decode.live import LiveCommits
from grouptrail.errors import GrouptrailError, one_line
from grouptrail.jobs import Job, LagFeed, jobs_for, one_after_the_other
from grouptrail.kafka.errors import TopicMissingError
from grouptrail.memory import collect_garbage_sooner
from grouptrail.runtime.checks import JobsCheck
from grouptrail.runtime.kafka_secrets import KafkaSecrets
from grouptrail.runtime.restarts import Backoff, is_outage, is_refused_login, is_unrecoverable
from grouptrail.runtime.running import (
    Clock,
    JobFailedError,
    any_runs,
    end_taken_over,
    end_without_spark,
    failure,
    stop_between_batches,
    stop_signals,
    stopped_at_exit,
    storage_errors_explained,
)
from grouptrail.runtime.warehouses import context_of, session_settings, warehouse_of
from grouptrail.spark.session import is_lost
from grouptrail.storage.following import Query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from grouptrail.config import Config
    from grouptrail.exporter.service import Exporter

_LOOK_EVERY_SECONDS = 0.2


def run(configs: Sequence[Config], *, jobs: tuple[str, ...] = (), once: bool = False, log: Log = print_now) -> None:
    """Run the named jobs (default: all) of every cluster in one Spark application, until all have ended.

    Jobs run until they are stopped; with `once`, until they have processed what is there. SIGINT or SIGTERM waits for
    the batches under way (ten seconds at most) and ends the process with 130 or 143; a second signal ends it at once.
    A job that fails is restarted after a pause while the others continue; a fault that no restart can mend
    (`restarts.is_unrecoverable`) stops all jobs and is raised. With several clusters it stops those of its cluster
    only, which are tried again after a pause. A cluster whose brokers do not answer at the start is waited for while
    its tables are served, unless nothing can be served or run. With `once` any fault is raised, or for several
    clusters reported at the end.
    """
    with interrupted_silently():
        from grouptrail.spark import jvm
        from grouptrail.spark.session import start_session, starting_jvm

    clusters = [
        _Cluster(config, jobs_for(config, jobs), log if len(configs) == 1 else _with_name(config, log))
        for config in configs
    ]
    with contextlib.ExitStack() as ending:
        with jvm.ended_by_signals():
            # While Spark starts, metrics are served from the tables.
            exporter = None if once else ending.enter_context(_metrics(configs, clusters, log))
            settings = session_settings(*configs)
            with starting_jvm(settings, log) as jvm_settings:
                _check(clusters, waits=not once)
            if exporter is not None:
                for cluster in clusters:
                    if cluster.is_waiting:
                        cluster.show(exporter)
                log(f"metrics are served at {exporter.url}/metrics")
                if exporter.serves_pages:
                    log(f"web pages: {exporter.url}/")
            name = f"grouptrail-{'-'.join(config.cluster for config in configs)}"
            spark = start_session(settings, name, log, jvm_settings=jvm_settings)
            ending.callback(spark.stop)
            for cluster in clusters:
                ending.callback(cluster.release)
            collect_garbage_sooner()
            signals = ending.enter_context(stop_signals())
        if once:
            _run_once(spark, clusters, signals, log)
        else:
            _run_on(spark, clusters, exporter, signals, log)
    if signals:
        raise SystemExit(128 + signals[0])


class _JobRun:
    """A job that runs until it is stopped: its query, and when it is restarted after a fault."""

    def __init__(self, job: Job, *, is_written_here: bool = False) -> None:
        """`is_written_here` is as for `JobContext`."""
        self.name = job.name
        self.query: Query | None = None
        self.restarts = 0
        self._job = job
        self._is_written_here = is_written_here
        self._backoff = Backoff()
        self.has_run = False

    @property
    def is_due(self) -> bool:
        """Whether there is no query and no pause."""
        return self.query is None and self._backoff.is_due

    def check(self) -> None:
        """Raise JobFailedError if the query has failed."""
        if self.query is not None and (fault := failure(self.query)):
            raise fault

    def start(self, spark: SparkSession, config: Config, log: Log, feed: LagFeed | None) -> None:
        """Start the query."""
        self._backoff.start()
        warehouse = warehouse_of(config, spark)
        if self.has_run:
            warehouse.checkpoint(self.name).refuse_gone()
        context = context_of(self._job, config, warehouse, log, is_written_here=self._is_written_here, feed=feed)
        with storage_errors_explained():
            self.query = self._job.start(context)
        if self.restarts:
            log(f"job {self.name}: restarted")
        self.has_run = True

    def stop_for_restart(self) -> None:
        """Forget the query, which has been stopped, and any pause."""
        self.query = None
        self._backoff.end()

    def put_off(self) -> float:
        """Restart the query later; return the pause in seconds."""
        self.query = None
        self.restarts += 1
        return self._backoff.fail()


class _Cluster:
    """The selected jobs of one cluster."""

    def __init__(self, config: Config, jobs: Sequence[Job], log: Log) -> None:
        self.name = config.cluster
        self.log = log
        self._config = config
        self._jobs = jobs
        written = {table for job in jobs for table in job.writes}
        self._runs = [_JobRun(job, is_written_here=job.follows in written) for job in jobs]
        self._held = contextlib.ExitStack()
        self._secrets = KafkaSecrets(config)
        self._live = LiveCommits(config.kafka_settings(), config.decode.max_record_bytes, log)
        self._check = JobsCheck(self._check_jobs, log)
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

    @property
    def is_stored(self) -> bool:
        """Whether the warehouse has rows of it."""
        from grouptrail.query.clusters import has_rows

        return has_rows(warehouse_of(self._config))

    @property
    def is_waiting(self) -> bool:
        """Whether its jobs wait for a broker."""
        return self._check.outage is not None

    def check(self) -> None:
        """Raise an error if a job cannot run."""
        self._check.run()

    def await_brokers(self, fault: Exception) -> None:
        """Start the jobs when a broker answers: `fault` says why none does."""
        self._check.await_brokers(fault)

    def _check_jobs(self) -> None:
        for job in self._jobs:
            job.check(context_of(job, self._config, warehouse_of(self._config), self.log))

    def hold(self, spark: SparkSession) -> None:
        """Keep other drivers from these jobs. Raises AlreadyRunningError if one runs them."""
        from grouptrail.runtime.lease import sole_driver

        names = [job.name for job in self._jobs]
        self._held.enter_context(
            sole_driver(
                warehouse_of(self._config, spark),
                names,
                self.log,
                on_loss=lambda loss: end_taken_over(loss, self.log),
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
        for job in one_after_the_other(self._jobs):
            with storage_errors_explained():
                warehouse = warehouse_of(self._config, spark)
                yield job.start(context_of(job, self._config, warehouse, self.log, once=True))

    def keep_running(self, spark: SparkSession, exporter: Exporter | None, signals: list[int]) -> None:
        """Start the jobs that do not run, all at once, those that failed after a pause, unless there is a signal.

        Raises what no restart of one job can mend.
        """
        if not self._is_held:
            if not self._backoff.is_due:
                return
            self._backoff.start()
            self.hold(spark)
        if not self._check.has_passed():
            return
        if not signals and self._secrets.have_changed():
            self._restart_with_new_secrets()
        due = [run for run in self._runs if run.is_due]
        for run in self._runs:
            self._put_off_if_failed(spark, run, run.check)
        if not due or signals:
            return
        feed = None
        if exporter is not None:
            live = self._live.fresh if self._config.reads_topic else None
            feed = LagFeed(partial(exporter.publish, self.name), live)
        with ThreadPoolExecutor(len(due)) as pool:
            starts = [pool.submit(run.start, spark, self._config, self.log, feed) for run in due]
        for run, start in zip(due, starts, strict=True):
            self._put_off_if_failed(spark, run, start.result)

    def _restart_with_new_secrets(self) -> None:
        self.log("secrets of the Kafka settings were renewed: restarting the jobs with them")
        stop_between_batches(self.queries)
        for run in self._runs:
            run.stop_for_restart()
        self._live.close()
        self._live = LiveCommits(self._config.kafka_settings(), self._config.decode.max_record_bytes, self.log)

    def _put_off_if_failed(self, spark: SparkSession, run: _JobRun, result: Callable[[], None]) -> None:
        try:
            result()
        except Exception as fault:
            is_temporary = not is_unrecoverable(fault) or (run.has_run and is_refused_login(fault))
            if is_lost(spark, fault) or not is_temporary:
                raise
            pause = run.put_off()
            self.log(f"job {run.name}: {one_line(fault)}; restarting it in {pause:.0f} s, other jobs continue")

    def show(self, exporter: Exporter) -> None:
        """Pass the state of its jobs to the exporter, and why they wait."""
        exporter.show_outage(self.name, self._check.outage)
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
        self._check = JobsCheck(self._check_jobs, self.log)
        self.log(f"{one_line(fault)}; retrying in {self._backoff.fail():.0f} s")


def _with_name(config: Config, log: Log) -> Log:
    return lambda line: log(f"{config.cluster}: {line}")


def _check(clusters: Sequence[_Cluster], *, waits: bool) -> None:
    """Raise an error if no cluster can be run, before Spark is started.

    With `waits`, clusters whose brokers do not answer are waited for, if others can be run or rows of one of them
    are stored. An address with nothing stored may be a mistake that somebody is making now.
    """
    faults: dict[_Cluster, GrouptrailError] = {}
    for cluster in clusters:
        try:
            cluster.check()
        except GrouptrailError as fault:
            faults[cluster] = fault
    outages = [cluster for cluster, fault in faults.items() if waits and is_outage(fault)]
    if len(faults) == len(clusters) and not any(cluster.is_stored for cluster in outages):
        if len(clusters) == 1:
            raise faults[clusters[0]]
        raise JobFailedError("; ".join(f"{cluster.name}: {fault}" for cluster, fault in faults.items()))
    for cluster in outages:
        cluster.await_brokers(faults[cluster])


@contextlib.contextmanager
def _metrics(configs: Sequence[Config], clusters: Sequence[_Cluster], log: Log) -> Iterator[Exporter | None]:
    """Serve the metrics of all clusters if a job has some and there is an address to listen on."""
    if not configs[0].exporter.listen or not any(cluster.publishes_lag for cluster in clusters):
        yield None
        return
    from grouptrail.runtime.serving import exporter_with_pages

    with exporter_with_pages(configs, log, awaits_lag=True) as exporter:
        yield exporter


@contextlib.contextmanager
def _ended_without_spark(spark: SparkSession, log: Log) -> Iterator[None]:
    """End the process with one line after a fault that comes from the end of the JVM, wherever it is met."""
    try:
        yield
    except Exception as fault:
        if is_lost(spark, fault):
            end_without_spark(log)
        raise


def _run_once(spark: SparkSession, clusters: Sequence[_Cluster], signals: list[int], log: Log) -> None:
    """Run one cluster after the other, one job after the other. Raises JobFailedError at the end if any failed."""
    faults = {}
    for cluster in clusters:
        try:
            with _ended_without_spark(spark, log):
                for query in cluster.one_by_one(spark):
                    with stopped_at_exit(spark, signals, log) as queries:
                        queries.append(query)
                        while any_runs(queries) and not signals:
                            time.sleep(_LOOK_EVERY_SECONDS)
                    if signals:
                        return
        except Exception as fault:
            if len(clusters) == 1:
                raise
            cluster.log(one_line(fault))
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
    log: Log,
) -> None:
    """Run all jobs of all clusters until a signal arrives."""
    clock = Clock()
    with _ended_without_spark(spark, log), stopped_at_exit(spark, signals, log) as queries:
        while not signals:
            clock.refuse_step_back()
            for cluster in clusters:
                try:
                    cluster.keep_running(spark, exporter, signals)
                except Exception as fault:
                    if is_lost(spark, fault):
                        raise
                    # Of the topic only the check says that it is missing, which ends a run at its start, too.
                    if len(clusters) == 1 and (is_unrecoverable(fault) or isinstance(fault, TopicMissingError)):
                        raise
                    cluster.give_up_for_now(fault)
                finally:
                    queries[:] = [query for cluster in clusters for query in cluster.queries]
                if exporter is not None:
                    cluster.show(exporter)
            time.sleep(_LOOK_EVERY_SECONDS)
