"""The lag job: at each sample of the logs, how far behind every group is.

Its stream is `log_offsets`. The commits, the groups' history and, after a start, what was stored before are read by
delta-rs: a few tens of thousands of rows are there in the time in which Spark plans a query.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.jobs import LAG, Progress, Publish, Start
from grouptrail.kafka.errors import ClusterError
from grouptrail.kafka.groups import Coordinators
from grouptrail.kafka.log import FirstRecord, RecordRequest
from grouptrail.kafka.records import RecordReader
from grouptrail.lag.board import COLUMNS, TABLE, Board, Rules
from grouptrail.lag.groups import LEAST_SESSION_SECONDS, Groups
from grouptrail.lag.groups import TABLES as GROUP_TABLES
from grouptrail.lag.held_back import Offsets
from grouptrail.lag.index import Ints, ints
from grouptrail.lag.positions import COMMITS, STORED, resumed, stored
from grouptrail.lag.positions import TABLE as COMMITTED
from grouptrail.lag.seconds import kept_times
from grouptrail.lag.verdict import Thresholds
from grouptrail.query.warehouse import Warehouse
from grouptrail.spark.streams import query_id, read_table_appends, start_query
from grouptrail.storage import checkpoints, tables
from grouptrail.storage.appended import AppendedRows
from grouptrail.storage.schema import table_schema
from grouptrail.storage.sql import datafusion_literal, spark_literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from grouptrail.config import Config

SAMPLES = "log_offsets"
OFFSET_COMMITS = "offset_commits"
PROGRESS = "ingest_progress"

_LOOK_EVERY_SECONDS = 1
# A sample is a file; those of a long absence would not fit into memory at once.
_SAMPLES_A_BATCH = 20
_STORE_COMMITTED_EVERY_SECONDS = 30
_ASK_SECONDS = 2.0
# A commit's time is the file system's, or another machine's.
_CLOCKS_APART = timedelta(minutes=10)
MOST_GROUPS_FETCHED = 1000
_GROUPS_A_QUERY = 100
_STILL_NEW_SECONDS = 30
# Transactions that commit offsets are open for a moment, as a rule; and a sample may be late.
_HELD_BACK_SECONDS, _HELD_BACK_INTERVALS = 15, 2.5
_MICROS = 1_000_000
_ENDS = table_schema(SAMPLES)


def check(config: Config) -> None:
    """Whether the warehouse can be written; raises before Spark is started."""
    tables.check_warehouse(config)


def start(
    spark: SparkSession,
    config: Config,
    *,
    once: bool,
    report: Callable[[str], None],
    publish: Publish | None = None,
) -> StreamingQuery:
    """In: `log_offsets`, `offset_commits` and the history; out: `consumer_lag`, `committed_offsets`, and the newest
    rows to `publish`."""
    tables.ensure_tables(spark, config, (SAMPLES, OFFSET_COMMITS, *GROUP_TABLES, TABLE, COMMITTED))
    begun = checkpoints.begin(spark, config, LAG.name, LAG.writes)
    watch = Watch(config, app=lambda: query_id(spark, config, LAG.name), report=report)
    samples = read_table_appends(spark, config, SAMPLES, files_a_batch=_SAMPLES_A_BATCH, version=begun.get("version"))
    if "after" in begun:
        samples = samples.where(f"cluster <> {spark_literal(config.cluster)} OR sampled_at > '{begun['after']}'")
    query = start_query(samples, config, LAG.name, land=watch.land, once=once, every_seconds=_LOOK_EVERY_SECONDS)
    if publish is not None:
        keep_published(watch, query, publish, report)
    return query


def start_after_loss(spark: SparkSession, config: Config, _report: Progress) -> Start:
    """Return the version of `log_offsets` from which to read, and the newest sample whose lag is stored."""
    newest = tables.read(spark, config, TABLE).selectExpr("max(sampled_at) AS at").collect()[0].at
    if newest is None:
        return {}
    tables.ensure_table(spark, config, SAMPLES)
    versions = tables.versions(spark, config, SAMPLES)
    later = [version for version, at in versions if at >= newest - _CLOCKS_APART]
    return {"version": min(later, default=versions[0][0]), "after": f"{newest.isoformat()}Z"}


def rules_of(config: Config) -> Rules:
    """What the configuration asks for."""
    lag = config.lag
    return Rules(
        Thresholds(lag.window_seconds, lag.stop_seconds, lag.allowed_lag),
        lag.rate_seconds,
        lag.read_committed_groups,
        lag.exact_groups,
        config.admin.interval_seconds,
        max(_HELD_BACK_SECONDS, _HELD_BACK_INTERVALS * config.log_offsets.interval_seconds),
    )


def keep_published(watch: Watch, query: StreamingQuery, publish: Publish, report: Callable[[str], None]) -> None:
    """Publish the newest sample by the newest commits, for as long as the query runs."""
    ended = threading.Event()

    def runs() -> bool:
        with contextlib.suppress(Exception):  # Spark has been stopped
            return bool(query.isActive)
        return False

    def publish_news() -> None:
        while not ended.wait(_LOOK_EVERY_SECONDS) and runs():
            try:
                if (rows := watch.news()) is not None:
                    publish(rows)
            except Exception as error:
                # Figures grow old then, and the exporter says so; the next look may do better.
                report(f"metrics: the newest lag cannot be told ({type(error).__name__}: {error})")

    publishing = threading.Thread(target=publish_news, name="lag-publish", daemon=True)
    publishing.start()

    def end() -> None:
        ended.set()
        publishing.join(timeout=5)

    # A thread that is in native code when the interpreter ends would crash it.
    atexit.register(end)


class Watch:
    """Lands the lag at each sample, once, however often a batch is tried; what it knows is on the board."""

    def __init__(self, config: Config, *, app: Callable[[], str], report: Callable[[str], None]) -> None:
        self._config = config
        self._app = app
        self._report = report
        self._groups = Groups(config)
        self._records = RecordReader(config.kafka_settings())
        self._coordinators = Coordinators(config.kafka_settings(), config.admin.requests_per_second)
        self._board: Board | None = None
        self._commits: AppendedRows | None = None
        self._stored_at = -math.inf
        self._told: Mapping[str, int] | None = None
        self._silence = ""
        self._has_news = False
        self._lock = threading.Lock()

    def land(self, samples: DataFrame, batch: int) -> None:
        """A micro-batch of rows of `log_offsets`."""
        started = time.monotonic()
        rows = samples.where(samples["cluster"] == self._config.cluster).toArrow().cast(_ENDS)
        if not len(rows):
            return
        with self._lock:
            found = self._lag(rows)
            self._has_news = True
        spark = samples.sparkSession
        tables.append(spark, found, self._config, TABLE, app=self._app(), version=batch)
        self._store_committed(spark)
        self._tell(batch, found, time.monotonic() - started)

    def news(self) -> pa.Table | None:
        """`consumer_lag` at the newest sample, by the commits that have landed since; None where nothing is new."""
        with self._lock:
            if self._board is None or not (self._read_commits() or self._has_news):
                return None
            self._has_news = False
            return self._board.rows(self._groups.by_id, self._groups.owned)

    def _lag(self, rows: pa.Table) -> pa.Table:
        times = ints(rows["sampled_at"])
        if self._board is None:
            self._resume(before=int(times.min()))
        assert self._board is not None
        self._read_commits()
        self._groups.refresh()
        found = []
        *earlier, newest = one_by_one(rows, times, self._apart_seconds)
        for sample in earlier:
            self._take(sample)
            until = int(ints(sample["sampled_at"]).max())
            found.append(self._board.rows(self._groups.by_id, self._groups.owned, until=until))
        # More samples may wait behind the newest of this batch: it, too, is judged by the commits made before it.
        self._take(newest)
        until = int(ints(newest["sampled_at"]).max())
        # A coordinator tells what is committed now.
        is_new = time.time() - until / _MICROS < max(
            _STILL_NEW_SECONDS, 2 * self._config.log_offsets.interval_seconds
        )
        how: dict[str, Any] = {"until": until, "ask": self._ask, "fetch": self._fetch if is_new else None}
        found.append(self._board.rows(self._groups.by_id, self._groups.owned, **how))
        return pa.concat_tables(found)

    def _take(self, sample: pa.Table) -> None:
        assert self._board is not None
        self._board.sample(sample)
        if self._board.held_back.waits:
            rows = Warehouse(self._config, [PROGRESS]).rows(
                f"SELECT record_partition, MAX(end_offset) AS landed_to FROM {PROGRESS} "
                f"WHERE cluster = {datafusion_literal(self._config.cluster)} GROUP BY record_partition"
            )
            self._board.held_back.landed({row["record_partition"]: row["landed_to"] for row in rows})

    @property
    def _apart_seconds(self) -> float:
        """Answers closer together are of one sample."""
        return self._config.log_offsets.interval_seconds / 2

    def _read_commits(self) -> bool:
        """Whether there were any."""
        assert self._board is not None
        assert self._commits is not None
        count = 0
        for commits in self._commits.fresh():
            count += len(commits)
            self._board.positions.add(commits)
        return count > 0

    def _resume(self, *, before: int) -> None:
        """Reads what was stored of the time before a sample (microseconds), and of the commits what stood then."""
        board = Board(self._config.cluster, rules_of(self._config), self._last_commits)
        committed = pa.concat_tables([STORED.empty_table(), *self._all_rows(COMMITTED, STORED)])
        standing, newest = resumed(committed)
        board.positions.add(standing)
        is_newer = ~pc.field("record_partition").isin(list(newest))
        for partition, offset in newest.items():
            is_newer |= (pc.field("record_partition") == partition) & (pc.field("record_offset") > offset)
        self._commits = self._appended(OFFSET_COMMITS, COMMITS, self._ours() & is_newer)
        for sample in self._kept_samples(before):
            board.sample(sample)
        since = before - round(self._config.lag.window_seconds * _MICROS)
        recent = (pc.field("sampled_at") >= _timestamp(since)) & (pc.field("sampled_at") < _timestamp(before))
        lag = pa.concat_tables([COLUMNS.empty_table(), *self._all_rows(TABLE, COLUMNS, recent)])
        for sample in one_by_one(lag, ints(lag["sampled_at"]), self._apart_seconds):
            board.remember(sample)
        self._board = board

    def _kept_samples(self, before: int) -> Iterator[pa.Table]:
        """Samples of the time before, the older the further apart, the oldest first."""
        only_times = pa.schema([_ENDS.field("cluster"), _ENDS.field("sampled_at"), _ENDS.field("error")])
        is_told = pc.field("error").is_null() & (pc.field("sampled_at") < _timestamp(before))
        times = [ints(pc.unique(part["sampled_at"])) for part in self._all_rows(SAMPLES, only_times, is_told)]
        there = np.unique(np.concatenate([np.empty(0, np.int64), *times]))
        spans = kept_times(there, before, self._apart_seconds)
        kept = [time for time in there.tolist() if any(first <= time <= last for first, last in spans)]
        among = pc.field("sampled_at").isin(pa.array(kept).cast(_ENDS.field("sampled_at").type))
        rows = pa.concat_tables([_ENDS.empty_table(), *self._all_rows(SAMPLES, _ENDS, among)])
        yield from one_by_one(rows, ints(rows["sampled_at"]), self._apart_seconds)

    def _all_rows(self, table: str, columns: pa.Schema, among: pc.Expression | None = None) -> Iterator[pa.Table]:
        """Of a table, this cluster's rows as they are."""
        wanted = self._ours() if among is None else self._ours() & among
        return self._appended(table, columns, wanted).fresh()

    def _appended(self, table: str, columns: pa.Schema, among: pc.Expression) -> AppendedRows:
        return AppendedRows(self._config.table_path(table), columns, among, self._config.storage_options())

    def _ours(self) -> pc.Expression:
        return pc.field("cluster") == self._config.cluster

    def _ask(self, wanted: Sequence[RecordRequest]) -> Mapping[RecordRequest, FirstRecord | None]:
        """Where nobody tells, the samples do."""
        try:
            return self._records.first_records(wanted, seconds=_ASK_SECONDS)
        except ClusterError as error:
            what = "the records of lag.exact_groups" if self._config.lag.exact_groups else "unread records"
            self._report_silence(f"lag: {what} cannot be asked: {error}")
            return {}

    def _last_commits(self, ends: Mapping[str, datetime]) -> Mapping[str, int]:
        """Only commits shortly before the end say how it came."""
        least = timedelta(seconds=LEAST_SESSION_SECONDS)
        of_each = [
            f"(group_id = {datafusion_literal(group)} "
            f"AND record_at BETWEEN {datafusion_literal(end - least)} AND {datafusion_literal(end)})"
            for group, end in ends.items()
        ]
        found: dict[str, int] = {}
        warehouse = Warehouse(self._config, [OFFSET_COMMITS])
        for first in range(0, len(of_each), _GROUPS_A_QUERY):
            some = " OR ".join(of_each[first : first + _GROUPS_A_QUERY])
            rows = warehouse.rows(
                f"SELECT group_id, MAX(arrow_cast(record_at, 'Int64')) AS at FROM {OFFSET_COMMITS} "
                f"WHERE NOT is_tombstone AND cluster = {datafusion_literal(self._config.cluster)} AND ({some}) "
                "GROUP BY group_id"
            )
            found |= {row["group_id"]: row["at"] for row in rows}
        return found

    def _fetch(self, groups: Mapping[str, int]) -> Mapping[str, Offsets | str]:
        """Those beyond the most that are asked about, and those for which there was no time, are said to be so."""
        asked = dict(list(groups.items())[:MOST_GROUPS_FETCHED])
        beyond = f"its coordinator was not asked: a sample asks about {MOST_GROUPS_FETCHED:,} groups at most"
        found: dict[str, Offsets | str] = {group: beyond for group in groups if group not in asked}
        try:
            found |= self._coordinators.offsets(asked, seconds=_ASK_SECONDS)
        except ClusterError as error:
            self._report_silence(f"lag: no coordinator can be asked: {error}")
            return found | dict.fromkeys(asked, "no broker can be asked")
        late = f"its coordinator was not asked: there was no time within {_ASK_SECONDS:.0f} s"
        return dict.fromkeys(asked, late) | found

    def _report_silence(self, line: str) -> None:
        if line != self._silence:
            self._silence = line
            self._report(line)

    def _store_committed(self, spark: SparkSession) -> None:
        """Now and then: what has come since is read from the commits themselves after a restart."""
        assert self._board is not None
        if time.monotonic() - self._stored_at < _STORE_COMMITTED_EVERY_SECONDS:
            return
        self._stored_at = time.monotonic()
        with self._lock:
            rows = stored(self._board.positions.standing())
        tables.replace(spark.createDataFrame(rows).coalesce(1), self._config, COMMITTED)

    def _tell(self, batch: int, found: pa.Table, seconds: float) -> None:
        """Of batches that differ in the groups' verdicts from the one before."""
        counts = {row["values"]: row["counts"] for row in pc.value_counts(found["status"]).to_pylist()}
        if counts != self._told:
            self._told = counts
            self._report(summary(batch, counts, seconds))


def summary(batch: int, counts: Mapping[str, int], seconds: float) -> str:
    """One line for people."""
    by_status = ", ".join(f"{count:,} {status}" for status, count in sorted(counts.items()))
    return f"lag batch {batch}: {sum(counts.values()):,} positions ({by_status or 'nothing'}) in {seconds:.1f} s"


def one_by_one(rows: pa.Table, times: Ints, apart_seconds: float) -> list[pa.Table]:
    """The samples that rows belong to, the oldest first: answers closer together than this are of one."""
    if not len(rows):
        return []
    distinct = np.unique(times)
    sample_of = np.cumsum(np.diff(distinct, prepend=distinct[0]) >= apart_seconds * _MICROS)
    numbers = sample_of[np.searchsorted(distinct, times)]
    return [rows.filter(pa.array(numbers == number)) for number in range(int(sample_of[-1]) + 1)]


def _timestamp(micros: int) -> pa.Scalar:
    return pa.scalar(micros, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
