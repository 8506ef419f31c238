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

from grouptrail.console.progress import Log
from grouptrail.errors import one_line
from grouptrail.jobs import LAG, JobContext, LagFeed
from grouptrail.lag.calculator import TABLE
from grouptrail.lag.groups import TABLES as GROUP_TABLES
from grouptrail.lag.positions import CHECKS
from grouptrail.lag.positions import TABLE as COMMITTED
from grouptrail.lag.shard import LagInputs
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
from grouptrail.storage.checkpoints import Start
from grouptrail.storage.engines.engine import Once
from grouptrail.storage.files import write as write_files
from grouptrail.storage.following import Query
from grouptrail.storage.lineage import noted
from grouptrail.storage.location import TableLocation
from grouptrail.storage.share_progress import TABLES as SHARE_TABLES
from grouptrail.storage.warehouse import Warehouse

if TYPE_CHECKING:
    from grouptrail.config.job_settings import LagSettings

_LOOK_EVERY_SECONDS = 1
# With very many positions, computing the newest lag must not take the processor from the jobs.
_PAUSE_TO_WORK = 3
# After a long stop all samples at once would not fit into memory.
_ROWS_A_BATCH = 2_000_000
_STORE_COMMITTED_EVERY_SECONDS = 60


def check(context: JobContext[LagSettings]) -> None:
    """Raise unless the warehouse can be written; runs before Spark is started."""
    context.warehouse.check()


def start(context: JobContext[LagSettings]) -> Query:
    """Start the query.

    Reads `log_offsets`, `offset_commits` and the history; writes `consumer_lag` and `committed_offsets`. Without
    shards it passes the newest rows to the context's feed, by the feed's live commits too.
    """
    warehouse, settings = context.warehouse, context.settings
    warehouse.ensure((SAMPLES, OFFSET_COMMITS, CHECKS, *SHARE_TABLES, *GROUP_TABLES, TABLE, COMMITTED))
    checkpoint = warehouse.checkpoint(LAG.name)
    recovered = checkpoint.open(warehouse.tables(LAG.writes))
    inputs = LagInputs(warehouse, context.kafka, settings, once=context.once)
    state = LagState(inputs, context.log) if settings.lag.shards == 1 else None
    lag: LagComputation = LagShards(inputs) if state is None else LagHere(warehouse, state)
    writer = LagWriter(lag, app=checkpoint.query_id, log=context.log)
    after = datetime.fromisoformat(recovered["after"]) if "after" in recovered else None

    def process(rows: pa.Table, batch: int) -> None:
        writer.process(rows if after is None else rows.filter(pc.field("sampled_at") > after), batch)

    if not context.once:
        preparing = threading.Thread(target=lag.prepare, name="lag-prepare", daemon=True)
        preparing.start()
        _await_at_exit(preparing)
    query = warehouse.table(SAMPLES).follow(
        checkpoint,
        process=process,
        once=context.once,
        is_written_here=context.is_written_here,
        every_seconds=_LOOK_EVERY_SECONDS,
        version=recovered.get("version"),
        files_a_batch=_samples_a_batch(warehouse, settings.lag.shards),
    )
    # What executors compute is served from the table.
    if context.feed is not None and state is not None:
        keep_published(state, query, context.feed, context.log, interval_seconds=settings.sample_seconds)
    return query


def _samples_a_batch(warehouse: Warehouse, shards: int) -> int:
    """Return how many samples a batch may have, by the number of positions at the start."""
    [row] = warehouse.table(COMMITTED).select("COUNT(*) AS positions") or [{"positions": 0}]
    positions = int(row["positions"]) // shards
    return min(MOST_SAMPLES_A_BATCH, 1 + _ROWS_A_BATCH // (1 + positions))


def start_after_loss(context: JobContext[LagSettings]) -> Start:
    """Return the version of `log_offsets` from which to read, and the newest sample whose lag is stored."""
    newest = context.warehouse.table(TABLE).dataframe().selectExpr("max(sampled_at) AS at").collect()[0].at
    if newest is None:
        return {}
    samples = context.warehouse.table(SAMPLES)
    samples.ensure()
    versions = samples.versions()
    later = [version for version, at in versions if at >= newest - CLOCKS_APART]
    return {"version": min(later, default=versions[0][0]), "after": f"{newest.isoformat()}Z"}


def keep_published(state: LagState, query: Query, feed: LagFeed, log: Log, *, interval_seconds: float) -> None:
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
            started = time.monotonic()
            try:
                if feed.live is not None:
                    state.add_live(feed.live())
                if (rows := state.fresh_rows()) is not None:
                    feed.publish(rows)
            except Exception as error:
                # The exporter reports that its figures are old; the next attempt may succeed.
                log(f"metrics: cannot compute the newest lag ({one_line(error)})")
            worked = time.monotonic() - started
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

    def append(self, rows: pa.Table, once: Once) -> Mapping[str, int]:
        """Append the lag at samples (rows of `log_offsets`) to its table; return the number of rows by status."""

    @property
    def has_new_commits(self) -> bool:
        """Whether there are commits that `store_commits` has not stored."""

    def store_commits(self) -> None:
        """Store the newest commits; after a restart later ones are read from `offset_commits`."""


class LagHere:
    """Computes the lag in this process."""

    def __init__(self, warehouse: Warehouse, state: LagState) -> None:
        self._warehouse = warehouse
        self._state = state
        self.prepare = state.prepare

    def append(self, rows: pa.Table, once: Once) -> Mapping[str, int]:
        """Do `LagComputation.append`."""
        lag = self._state.lag(rows)
        self._warehouse.table(TABLE).append(lag, once)
        self._state.has_sample.set()
        return counts_by_status(lag)

    @property
    def has_new_commits(self) -> bool:
        """Whether there are commits that have not been stored."""
        return self._state.has_new_commits

    def store_commits(self) -> None:
        """Do `LagComputation.store_commits`."""
        rows, source = self._state.commits()

        def written(location: TableLocation) -> list[str]:
            return [*write_files(rows.to_batches(), location), *noted([source], location.cluster)]

        self._warehouse.table(COMMITTED).replace(written)


class LagWriter:
    """Writes the lag at each sample exactly once, also when a batch is retried."""

    def __init__(self, lag: LagComputation, *, app: Callable[[], str], log: Log) -> None:
        self._lag = lag
        self._app = app
        self._log = log
        self._stored_at = -math.inf
        self._logged: Mapping[str, int] | None = None

    def process(self, rows: pa.Table, batch: int) -> None:
        """Process a micro-batch of rows of `log_offsets`."""
        if not len(rows):
            return
        started = time.monotonic()
        counts = self._lag.append(rows, Once(self._app(), batch))
        if self._lag.has_new_commits and time.monotonic() - self._stored_at >= _STORE_COMMITTED_EVERY_SECONDS:
            self._stored_at = time.monotonic()
            self._lag.store_commits()
        if counts != self._logged:
            self._logged = counts
            self._log(summary(batch, counts, time.monotonic() - started))


def summary(batch: int, counts: Mapping[str, int], seconds: float) -> str:
    """Return the log line of a batch."""
    by_status = ", ".join(f"{count:,} {status}" for status, count in sorted(counts.items()))
    return f"lag batch {batch}: {sum(counts.values()):,} positions ({by_status or 'nothing'}) in {seconds:.1f} s"
