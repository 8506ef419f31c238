"""The lag job: computes every group's lag at each sample of the logs, and writes it. Its stream is `log_offsets`."""

from __future__ import annotations

import atexit
import contextlib
import math
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.jobs import LAG, Live, Progress, Publish, Query, Start
from grouptrail.lag.calculator import TABLE
from grouptrail.lag.groups import TABLES as GROUP_TABLES
from grouptrail.lag.positions import TABLE as COMMITTED
from grouptrail.lag.shards import LagShards
from grouptrail.lag.state import (
    CLOCKS_APART,
    MOST_SAMPLES_A_BATCH,
    OFFSET_COMMITS,
    SAMPLES,
    LagState,
    counts_by_status,
)
from grouptrail.memory import release_memory
from grouptrail.spark.streams import query_id
from grouptrail.storage import checkpoints, tables
from grouptrail.storage.files import TableLocation
from grouptrail.storage.files import write as write_files
from grouptrail.storage.following import Appended, follow
from grouptrail.storage.sources import noted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from grouptrail.config import Config

_LOOK_EVERY_SECONDS = 1
# With very many positions, computing the newest lag must not take the processor from the jobs.
_PAUSE_TO_WORK = 3
# After a long stop all samples at once would not fit into memory.
_ROWS_A_BATCH = 2_000_000
_STORE_COMMITTED_EVERY_SECONDS = 60


def check(config: Config) -> None:
    """Raise unless the warehouse can be written; runs before Spark is started."""
    tables.check_warehouse(config)


def start(
    spark: SparkSession,
    config: Config,
    *,
    once: bool,
    report: Callable[[str], None],
    is_written_here: bool = False,
    publish: Publish | None = None,
    live: Live | None = None,
) -> Query:
    """Start the query.

    Reads `log_offsets`, `offset_commits` and the history; writes `consumer_lag` and `committed_offsets`. Without
    shards it passes the newest rows to `publish`, by the commits of `live` too, which may not be in the tables yet.
    """
    tables.ensure_tables(spark, config, (SAMPLES, OFFSET_COMMITS, *GROUP_TABLES, TABLE, COMMITTED))
    begun = checkpoints.begin(spark, config, LAG.name, LAG.writes)
    state = LagState(config, report) if config.lag.shards == 1 else None
    lag: LagComputation = LagShards(spark, config) if state is None else LagHere(config, state)
    writer = LagWriter(lag, app=lambda: query_id(spark, config, LAG.name), report=report)
    samples = Appended(SAMPLES, begun.get("version"), files_a_batch=_samples_a_batch(spark, config))
    after = datetime.fromisoformat(begun["after"]) if "after" in begun else None

    def land(spark: SparkSession, rows: pa.Table, batch: int) -> None:
        writer.land(spark, rows if after is None else rows.filter(pc.field("sampled_at") > after), batch)

    if not once:
        preparing = threading.Thread(target=lag.prepare, name="lag-prepare", daemon=True)
        preparing.start()
        _await_at_exit(preparing)
    query = follow(
        spark,
        config,
        LAG.name,
        samples,
        land=land,
        once=once,
        is_written_here=is_written_here,
        every_seconds=_LOOK_EVERY_SECONDS,
    )
    # What executors compute is served from the table.
    if publish is not None and state is not None:
        interval = config.log_offsets.interval_seconds
        keep_published(state, query, publish, live, report, interval_seconds=interval)
    return query


def _samples_a_batch(spark: SparkSession, config: Config) -> int:
    """Return how many samples a batch may have, by the number of positions at the start."""
    [row] = tables.select(spark, config, COMMITTED, "COUNT(*) AS positions") or [{"positions": 0}]
    positions = int(row["positions"]) // config.lag.shards
    return min(MOST_SAMPLES_A_BATCH, 1 + _ROWS_A_BATCH // (1 + positions))


def start_after_loss(spark: SparkSession, config: Config, _report: Progress) -> Start:
    """Return the version of `log_offsets` from which to read, and the newest sample whose lag is stored."""
    newest = tables.read(spark, config, TABLE).selectExpr("max(sampled_at) AS at").collect()[0].at
    if newest is None:
        return {}
    tables.ensure_table(spark, config, SAMPLES)
    versions = tables.versions(spark, config, SAMPLES)
    later = [version for version, at in versions if at >= newest - CLOCKS_APART]
    return {"version": min(later, default=versions[0][0]), "after": f"{newest.isoformat()}Z"}


def keep_published(
    state: LagState,
    query: Query,
    publish: Publish,
    live: Live | None,
    report: Callable[[str], None],
    *,
    interval_seconds: float,
) -> None:
    """Publish the lag at the newest sample whenever there are new commits, for as long as the query runs.

    `interval_seconds` is the time between samples.
    """
    ended = threading.Event()

    def end() -> None:
        ended.set()
        state.has_sample.set()

    def runs() -> bool:
        with contextlib.suppress(Exception):  # Spark has been stopped
            return bool(query.isActive)
        return False

    def publish_news() -> None:
        due = math.inf
        while not ended.is_set() and runs():
            state.prepare()
            began = time.monotonic()
            try:
                if live is not None:
                    state.add_live(live())
                if (rows := state.fresh_rows()) is not None:
                    publish(rows)
            except Exception as error:
                # The exporter reports that its figures are old; the next attempt may succeed.
                report(f"metrics: cannot compute the newest lag ({type(error).__name__}: {error})")
            worked = time.monotonic() - began
            release_memory(after_seconds=worked)
            pause = max(_LOOK_EVERY_SECONDS, _PAUSE_TO_WORK * worked)
            if not state.has_sample.wait(pause) and 0 < due - time.monotonic() < 2 * worked:
                # The next sample would wait for what is computed now, and be published right after it.
                state.has_sample.wait(3 * worked)
            if state.has_sample.is_set():
                due = time.monotonic() + interval_seconds
            state.has_sample.clear()

    publishing = threading.Thread(target=publish_news, name="lag-publish", daemon=True)
    publishing.start()

    _await_at_exit(publishing)
    atexit.register(end)  # what is registered last runs first


def _await_at_exit(thread: threading.Thread) -> None:
    """A thread in native code at the end of the interpreter would crash it."""
    atexit.register(thread.join, 5)


class LagComputation(Protocol):
    """Where the lag is computed: in this process, or in parts beside Spark's executors."""

    def prepare(self) -> None:
        """Read the commits while there is no sample; `append` reports what prevents it."""

    def append(self, spark: SparkSession, rows: pa.Table, *, app: str, version: int) -> Mapping[str, int]:
        """Append the lag at samples (rows of `log_offsets`) to its table; return the number of rows by status."""

    def has_new_commits(self) -> bool:
        """Return whether there are commits that `store_commits` has not stored."""

    def store_commits(self, spark: SparkSession) -> None:
        """Store the newest commits; after a restart later ones are read from `offset_commits`."""


class LagHere:
    """Computes the lag in this process."""

    def __init__(self, config: Config, state: LagState) -> None:
        self._config = config
        self._state = state
        self.prepare = state.prepare

    def append(self, spark: SparkSession, rows: pa.Table, *, app: str, version: int) -> Mapping[str, int]:
        """Do `LagComputation.append`."""
        found = self._state.lag(rows)
        tables.append(spark, found, self._config, TABLE, app=app, version=version)
        self._state.has_sample.set()
        return counts_by_status(found)

    def has_new_commits(self) -> bool:
        """Do `LagComputation.has_new_commits`."""
        return self._state.has_new_commits

    def store_commits(self, spark: SparkSession) -> None:
        """Do `LagComputation.store_commits`."""
        rows, source = self._state.commits()

        def written(location: TableLocation) -> list[str]:
            return [*write_files(rows.to_batches(), location), *noted([source], self._config.cluster)]

        tables.replace_files(spark, written, self._config, COMMITTED)


class LagWriter:
    """Writes the lag at each sample exactly once, also when a batch is retried."""

    def __init__(self, lag: LagComputation, *, app: Callable[[], str], report: Callable[[str], None]) -> None:
        self._lag = lag
        self._app = app
        self._report = report
        self._stored_at = -math.inf
        self._reported: Mapping[str, int] | None = None

    def land(self, spark: SparkSession, rows: pa.Table, batch: int) -> None:
        """Process a micro-batch of rows of `log_offsets`."""
        if not len(rows):
            return
        started = time.monotonic()
        counts = self._lag.append(spark, rows, app=self._app(), version=batch)
        if self._lag.has_new_commits() and time.monotonic() - self._stored_at >= _STORE_COMMITTED_EVERY_SECONDS:
            self._stored_at = time.monotonic()
            self._lag.store_commits(spark)
        if counts != self._reported:
            self._reported = counts
            self._report(summary(batch, counts, time.monotonic() - started))


def summary(batch: int, counts: Mapping[str, int], seconds: float) -> str:
    """Return the log line of a batch."""
    by_status = ", ".join(f"{count:,} {status}" for status, count in sorted(counts.items()))
    return f"lag batch {batch}: {sum(counts.values()):,} positions ({by_status or 'nothing'}) in {seconds:.1f} s"
