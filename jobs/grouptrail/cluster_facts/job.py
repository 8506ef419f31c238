"""The job `cluster`: samples the cluster and writes the rows that have changed since the last sample."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from grouptrail.cluster_facts.sample import TOPICS, Sample
from grouptrail.cluster_facts.sampler import Sampler
from grouptrail.cluster_facts.state import OpenRows
from grouptrail.console.progress import Log
from grouptrail.jobs import CLUSTER, JobContext
from grouptrail.kafka.cluster import Cluster
from grouptrail.kafka.cluster_metadata import ClusterDescription
from grouptrail.kafka.errors import ClusterError
from grouptrail.memory import release_memory
from grouptrail.storage.checkpoints import Start
from grouptrail.storage.last_sample import LastSample, read_last_sample, write_last_sample
from grouptrail.storage.living_groups import living_groups
from grouptrail.storage.thread_query import IntervalQuery

if TYPE_CHECKING:
    from grouptrail.config.job_settings import ClusterFactsSettings
    from grouptrail.storage.following import Query
    from grouptrail.storage.warehouse import Warehouse

OUTDATED = (
    "cluster: a broker answers what has changed since: nothing is written until another one answers; "
    "check that its connection to the controller works"
)
_MOST_OUTDATED = 5
# By then the other jobs have done their first batches, which should not have to share the processors.
_FIRST_AFTER_SECONDS = 10.0


def check(context: JobContext[ClusterFactsSettings]) -> None:
    """Raise unless a broker answers and the warehouse can be written; runs before Spark is started."""
    context.warehouse.check()
    with Cluster(context.kafka) as cluster:
        cluster.brokers()


def start(context: JobContext[ClusterFactsSettings]) -> Query:
    """Start the query. In: the brokers' descriptions of the cluster; out: the tables of `cluster_facts.sample`."""
    warehouse, settings = context.warehouse, context.settings
    warehouse.ensure(CLUSTER.writes)
    checkpoint = warehouse.checkpoint(CLUSTER.name)
    checkpoint.open(())  # it may be older than the tables: a sample is compared with these
    cluster = ClusterDescription(context.kafka, settings.requests_per_second)
    interval = settings.cluster_facts.interval_seconds

    def note(asked_at: datetime, problems: tuple[str, ...], missing: Collection[str]) -> None:
        write_last_sample(checkpoint, LastSample(asked_at, interval, problems, tuple(sorted(missing))))

    last = read_last_sample(warehouse, CLUSTER.name)
    states = warehouse.table("group_states")

    def groups_of(kinds: Collection[str]) -> dict[str, str]:
        return living_groups(states, kinds) if states.exists() else {}

    sampler = Sampler(
        cluster,
        groups_of=groups_of,
        missing=() if last is None else last.missing,
        log_sizes_seconds=settings.cluster_facts.log_sizes_interval_seconds,
    )
    sampling = Sampling(warehouse, sampler, app=checkpoint.query_id, log=context.log, note=note)
    return IntervalQuery(
        checkpoint,
        process=sampling.process,
        once=context.once,
        every_seconds=interval,
        first_after_seconds=0 if context.once else _FIRST_AFTER_SECONDS,
    )


def start_after_loss(_context: JobContext[ClusterFactsSettings]) -> Start:
    """Return no position to start from: the first sample is compared with the tables."""
    return {}


class Sampling:
    """Takes samples and writes what each changes.

    After a failure halfway the next sample is compared with what was written. Brokers that do not answer end nothing:
    the log has one line, and the next sample asks again. `note` gets when each sample that the tables have was asked
    for, its problems, and the topics that it missed.
    """

    def __init__(
        self,
        warehouse: Warehouse,
        sampler: Sampler,
        *,
        app: Callable[[], str],
        log: Log,
        note: Callable[[datetime, tuple[str, ...], Collection[str]], None] = lambda *_: None,
    ) -> None:
        self._warehouse = warehouse
        self._sampler = sampler
        self._app = app
        self._log = log
        self._note = note
        self._rows: OpenRows | None = None
        self._problems: tuple[str, ...] = ()
        self._sizes_problems: tuple[str, ...] = ()
        self._outdated = 0

    def process(self, batch: int) -> None:
        """Take one sample."""
        started = time.monotonic()
        rows = self._rows if self._rows is not None else OpenRows(self._warehouse, self._app)
        self._rows = None  # read again from the tables if this fails halfway
        sample = self._sample(rows)
        if sample is not None:
            changes = rows.update(sample)
            asked_at, problems, missing = sample.tables[TOPICS].asked_at, sample.problems, sample.missing
            self._note(asked_at, (*problems, *self._sizes_problems), missing)
            if changes:
                self._log(summary(batch, changes, time.monotonic() - started))
            del sample  # its memory is enough for the sizes
            if self._read_sizes(rows):
                self._note(asked_at, (*problems, *self._sizes_problems), missing)
        self._rows = rows
        release_memory(after_seconds=time.monotonic() - started)

    def _read_sizes(self, rows: OpenRows) -> bool:
        """Write the sizes of logs if they are due; return whether other problems than before were found."""
        sizes, problems = self._sampler.log_sizes()
        if sizes is not None:
            rows.replace_log_sizes(sizes)
        before, self._sizes_problems = self._sizes_problems, problems
        self._log_those(problems, before)
        return problems != before

    def _sample(self, rows: OpenRows) -> Sample | None:
        """Return a sample to write; None if there is none, which is logged."""
        try:
            sample = self._sampler.sample(rows.tables)
        except ClusterError as error:
            self._log_new((str(error),))
            return None
        # An epoch that stays lower was set back, as when a cluster is restored.
        is_outdated = rows.is_outdated(sample) and self._outdated < _MOST_OUTDATED
        self._outdated = self._outdated + 1 if is_outdated else 0
        self._log_new((OUTDATED,) if is_outdated else sample.problems)
        return None if is_outdated else sample

    def _log_new(self, problems: tuple[str, ...]) -> None:
        """Log the problems that the sample before did not have."""
        before, self._problems = self._problems, problems
        self._log_those(problems, before)

    def _log_those(self, problems: tuple[str, ...], before: tuple[str, ...]) -> None:
        for problem in problems:
            if problem not in before:
                self._log(problem if problem.startswith("cluster: ") else f"cluster: {problem}")


def summary(batch: int, changes: Mapping[str, tuple[int, int]], seconds: float) -> str:
    """Return the log line of a batch: how many rows of each table ended and began."""
    counts = ", ".join(f"{name} -{ended:,} +{began:,}" for name, (ended, began) in changes.items())
    return f"cluster batch {batch}: {counts} in {seconds:.1f} s"
