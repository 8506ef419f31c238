"""The lag of a cluster's positions, or of a part of them, kept up to date from the tables. Needs no Spark.

The commits, the history and, after a start, the stored lag are read with delta-rs, which reads tens of thousands of
rows in the time that Spark takes to plan a query.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from grouptrail.console.progress import Log
from grouptrail.errors import one_line
from grouptrail.kafka.coordinator import coordinator_partition
from grouptrail.kafka.errors import ClusterError
from grouptrail.kafka.groups import Coordinators
from grouptrail.kafka.log import FirstRecord, RecordRequest, RecordTimestamp
from grouptrail.kafka.records import RecordReader
from grouptrail.kafka.timestamps import TimestampReader
from grouptrail.lag.calculator import ROWS, STORED_LAG, TABLE, UNSHARED_TEXTS, LagCalculator, Rules
from grouptrail.lag.dated import TimestampLookup
from grouptrail.lag.group_status import GroupStatus
from grouptrail.lag.groups import GroupStatuses
from grouptrail.lag.held_back import Offsets
from grouptrail.lag.index import MICROS, UNKNOWN, Ints, ints, moment
from grouptrail.lag.positions import (
    CHECKED,
    CHECKS,
    IS_GONE,
    OF_TABLE,
    STORED,
    after,
    from_checks,
    from_progress,
    from_records,
    from_stored,
    to_stored,
)
from grouptrail.lag.positions import TABLE as COMMITTED
from grouptrail.lag.retention_inputs import RetentionInputs
from grouptrail.lag.seconds import HORIZON_SECONDS, LONGEST_SPAN_SECONDS, kept_times, spans
from grouptrail.lag.shard import ALL, LagInputs, Shard
from grouptrail.lag.verdict import Thresholds
from grouptrail.memory import release_memory
from grouptrail.storage.lineage import SourceVersion, with_source
from grouptrail.storage.progress import decoded_to, read_ends
from grouptrail.storage.reader import OpenTable
from grouptrail.storage.rows import NewRows, own_rows
from grouptrail.storage.schema import table_schema
from grouptrail.storage.share_progress import ShareProgress
from grouptrail.storage.sql import datafusion_literal

if TYPE_CHECKING:
    from grouptrail.config.job_settings import LagSettings

SAMPLES = "log_offsets"
OFFSET_COMMITS = "offset_commits"
# A sample is a file.
MOST_SAMPLES_A_BATCH = 20
MOST_GROUPS_FETCHED = 1000

PUBLISHED = [name for name in ROWS.names if name not in UNSHARED_TEXTS]
"""The columns of rows that are published: all but the longest texts, which metrics do not need."""

CLOCKS_APART = timedelta(minutes=10)
"""What the clocks of jobs, and of the file system, may differ by."""

# A sample is in its table a second or two after it was taken.
_NOT_WRITTEN_YET_SECONDS = 5
_BROKER_TIMEOUT_SECONDS = 2.0
# Of a job that ends with this sample, which has no later one to show what is found.
_TIMESTAMPS_ONCE_SECONDS = 30.0
# So long a search for timestamps may go on when the job ends.
_TIMESTAMPS_SECONDS, _TIMESTAMPS_RETRY_SECONDS = 2.0, 60.0
_ROWS_RESTORED = 500_000
# Spark's statistics of times are whole milliseconds, rounded down.
_STATISTICS_MICROS = 999
_STILL_NEW_SECONDS = 30
# Transactions that commit offsets are usually short; and a sample may be late.
_HELD_BACK_SECONDS, _HELD_BACK_INTERVALS = 15, 2.5
_ENDS = table_schema(SAMPLES)
_NONE_KNOWN: Ints = np.empty(0, np.int64)


def rules_of(settings: LagSettings) -> Rules:
    """Return the rules that the settings make."""
    lag = settings.lag
    return Rules(
        Thresholds.of(lag),
        lag.rate_seconds,
        lag.read_committed_groups,
        lag.exact_groups,
        lag.group_stop_seconds,
        settings.poll_seconds,
        settings.share_poll_seconds,
        # A group must not seem to have stopped before its partition counts as held back.
        max(min(_HELD_BACK_SECONDS, lag.stop_seconds / 2), _HELD_BACK_INTERVALS * settings.sample_seconds),
        lag.timestamp_lookup,
        lag.retention_check_seconds,
    )


class LagState:
    """Computes the lag at each sample from the newest rows of the tables. May be used by several threads."""

    def __init__(self, inputs: LagInputs, log: Log, shard: Shard = ALL) -> None:
        self._warehouse = inputs.warehouse
        self._settings = inputs.settings
        self._log = log
        self._shard = shard
        self._groups = GroupStatuses(inputs.warehouse, shard)
        self._records = RecordReader(inputs.kafka, _BROKER_TIMEOUT_SECONDS)
        self._coordinators = Coordinators(inputs.kafka, inputs.settings.requests_per_second / shard.count)
        self._timestamps = TimestampReader(
            inputs.kafka, _BROKER_TIMEOUT_SECONDS, inputs.settings.requests_per_second / shard.count
        )
        self._timestamps_due = 0.0
        self._has_transactions = False
        self._searching: threading.Thread | None = None
        self._is_ending = False
        self._once = inputs.once
        self._retention = RetentionInputs(inputs.warehouse, once=inputs.once)
        self._calculator: LagCalculator | None = None
        self._prepared: LagCalculator | None = None
        self._commits: NewRows | None = None
        self._missed: NewRows | None = None
        self._shared: ShareProgress | None = None
        self._shared_count = 0
        self._offsets_partitions: int | None = None
        self.has_new_commits = True
        """Whether there are commits that `commits` has not returned."""
        self._failures: set[str] = set()
        self._has_news = self._has_dates = False
        self._computed: pa.Table | None = None
        self._lock = threading.Lock()
        self.has_sample = threading.Event()
        """Set by the caller when what `lag` returned has been written: it can be published then."""

    def prepare(self) -> None:
        """Read the new commits while there is no sample; the first batch reports what prevents it."""
        with self._lock, contextlib.suppress(Exception):
            if self._calculator is not None:
                return
            if self._prepared is None:
                self._prepared = self._with_commits()
                release_memory()
            else:
                self._add_commits(self._prepared)

    def add_live(self, commits: pa.Table) -> None:
        """Add rows of `offset_commits` that the tables may not have yet."""
        with self._lock:
            if self._calculator is not None and len(commits):
                self._calculator.positions.add_live(from_records(commits))
                self._has_news = True

    def fresh_rows(self) -> pa.Table | None:
        """Return `consumer_lag` (`PUBLISHED`) at the newest sample by the newest commits; None without new ones."""
        with self._lock:
            has_dates = self._has_dates
            if self._calculator is None or not (self._read_commits() or self._has_news or has_dates):
                return None
            self._has_news = self._has_dates = False
            computed, self._computed = self._computed, None
            if computed is not None and not has_dates and self._calculator.positions.are_all_due():
                return computed
            rows = self._calculator.compute(*self._of_groups, columns=PUBLISHED)
            self._find_timestamps()
            return rows

    def lag(self, rows: pa.Table) -> pa.Table:
        """Return the rows of `consumer_lag` for rows of `log_offsets`: one or several samples, newer than all before.

        The first call restores what the tables have from before its samples.
        """
        with self._lock:
            lag = self._lag(rows)
            self._has_news = True
        return lag

    def commits(self) -> tuple[pa.Table, SourceVersion]:
        """Return the newest commits in the tables, as rows of `committed_offsets`, and what they were read of."""
        with self._lock:
            self.has_new_commits = False
            known = self._calculator or self._prepared or self._with_commits()
            assert self._commits is not None
            return to_stored(known.positions.in_tables()), self._commits.read_to

    def _lag(self, rows: pa.Table) -> pa.Table:
        times = ints(rows["sampled_at"])
        if self._calculator is None:
            self._resume(before=int(times.min()))
        assert self._calculator is not None
        self._read_commits()
        self._groups.refresh()
        if (line := self._retention.refresh(self._calculator)) is not None:
            self._log_failure(line)
        computed, read_at = [], round(time.time() * MICROS)
        *earlier, newest = split_samples(rows, times, self._apart_seconds)
        for sample in earlier:
            self._add_sample(sample)
            until = int(ints(sample["sampled_at"]).max())
            computed.append(self._calculator.compute(*self._of_groups, until=until, read_at=read_at))
        # Later batches may hold more samples: the newest of this one, too, must not see the commits after it.
        self._add_sample(newest)
        until = int(ints(newest["sampled_at"]).max())
        # Coordinators only know what is committed now, and logs what is in them now.
        is_new = time.time() - until / MICROS < max(_STILL_NEW_SECONDS, 2 * self._settings.sample_seconds)
        compute = partial(
            self._calculator.compute,
            *self._of_groups,
            until=until,
            read_at=read_at,
            fetch_records=self._fetch_records,
            fetch_offsets=self._fetch_offsets if is_new else None,
        )
        computed.append(compute())
        if is_new and self._find_timestamps() and self._once:
            self.await_timestamps(_TIMESTAMPS_ONCE_SECONDS)
            computed[-1] = compute()
        self._computed = computed[-1].select(PUBLISHED)
        return pa.concat_tables(computed)

    def _add_sample(self, sample: pa.Table) -> None:
        assert self._calculator is not None
        self._calculator.add_sample(sample)
        if (since := self._calculator.held_back.progress_since) is not None:
            ends = read_ends(self._warehouse, landed_since=moment(since) - CLOCKS_APART)
            self._calculator.held_back.release(decoded_to(ends))
            # A batch that landed since the commits were read may have released a partition.
            self._read_commits()

    @property
    def _of_groups(self) -> tuple[Mapping[str, GroupStatus], pa.Table, pa.Table]:
        return self._groups.by_id, self._groups.owned, self._groups.last_owners

    @property
    def _apart_seconds(self) -> float:
        """Rows closer together than this belong to one sample."""
        return self._settings.sample_seconds / 2

    def _read_commits(self) -> bool:
        """Read the new commits; return whether there were any."""
        assert self._calculator is not None
        return self._add_commits(self._calculator)

    def _add_commits(self, calculator: LagCalculator, known: Ints = _NONE_KNOWN) -> bool:
        """Read the new commits and add those after the known ones; return whether there were any."""
        assert self._commits is not None
        assert self._missed is not None
        count = self._add_share_progress(calculator)
        for commits in self._commits.fresh():
            count += len(commits)
            calculator.positions.add(after(commits, known))
        for checks in self._missed.fresh():
            count += len(checks)
            calculator.positions.add(from_checks(checks))
        self.has_new_commits |= count > 0
        return count > 0

    def _add_share_progress(self, calculator: LagCalculator) -> int:
        """Read the new records of share groups' state and add them; return how many there were."""
        assert self._shared is not None
        progress = self._shared.fresh()
        if not self._shard.is_all:
            ours = [self._shard.has(self._partition_of(group)) for group in progress["group_id"].to_pylist()]
            progress = progress.filter(pa.array(ours, pa.bool_()))
        if len(progress):
            calculator.positions.add(from_progress(progress, self._shared_count))
            self._shared_count += len(progress)
        return len(progress)

    def _partition_of(self, group_id: str) -> int:
        """Return the group's partition of the offsets topic; the decode job's progress has all of them."""
        if self._offsets_partitions is None:
            self._offsets_partitions = 1 + max(decoded_to(read_ends(self._warehouse)), default=0)
        return coordinator_partition(group_id, self._offsets_partitions)

    def _resume(self, *, before: int) -> None:
        """Restore the calculator from the tables: commits, and samples and lag from before a time (microseconds)."""
        calculator, self._prepared = self._prepared or self._with_commits(), None
        for sample in self._kept_samples(before):
            calculator.add_sample(sample)
        for lag in self._stored_lag(before, among=self._are_of(calculator)):
            calculator.add_stored_lag(lag)
        self._calculator = calculator

    def _are_of(self, calculator: LagCalculator) -> ds.Expression | None:
        """Return a condition: a row of `consumer_lag` is of this shard; it has no partition of the offsets topic."""
        if self._shard.is_all:
            return None
        return pc.field("group_id").isin(pc.unique(calculator.positions.in_tables()["group_id"].cast(pa.string())))

    def _with_commits(self) -> LagCalculator:
        """Return a calculator that knows the newest commits in the tables."""
        calculator = LagCalculator(self._warehouse.cluster, rules_of(self._settings), first_until=self._first_until())
        ours = self._shard.condition()
        commits, newest, source = self._stored_commits(ours)
        calculator.positions.add(commits)
        self._commits = self._warehouse.table(OFFSET_COMMITS).new_rows(OF_TABLE, ours, source)
        gone = IS_GONE if ours is None else ours & IS_GONE
        self._missed = self._warehouse.table(CHECKS).new_rows(CHECKED, gone)
        self._shared = ShareProgress(self._warehouse)
        self._add_commits(calculator, newest)
        return calculator

    def _first_until(self) -> int | None:
        """Return a time (microseconds) from before which no sample comes; None if it is not known."""
        if not self._warehouse.table(SAMPLES).has_rows():
            return round((time.time() - _NOT_WRITTEN_YET_SECONDS) * MICROS)
        times = self._times_of_newest_lag()
        # A batch may come again.
        kept = MOST_SAMPLES_A_BATCH * self._settings.sample_seconds + CLOCKS_APART.total_seconds()
        return max(times) - round(kept * MICROS) if times else None

    def _times_of_newest_lag(self) -> Mapping[int, int]:
        """Return how many rows the newest stored sample has at each time (microseconds); none if it is not known."""
        files = self._warehouse.table(TABLE).files("max.sampled_at")
        if files is None:
            return {}
        newest = int(ints(files["max.sampled_at"]).max(initial=UNKNOWN))
        # A file's newest row may be another cluster's.
        since = newest - round(self._apart_seconds * MICROS)
        return self._rows_at(TABLE, since, newest + _STATISTICS_MICROS + 1)

    def _stored_commits(self, ours: ds.Expression | None) -> tuple[pa.Table, Ints, OpenTable | None]:
        """Return what `from_stored` does, and `offset_commits` as these commits were read of it, if that is known."""
        stored = self._warehouse.table(COMMITTED)
        known = with_source(stored.location, self._warehouse.table(OFFSET_COMMITS).location)
        opened, source = (None, None) if known is None else known
        rows = pa.concat_tables([STORED.empty_table(), *stored.read(STORED, ours, opened)])
        # A crash between the two commits of `Table.replace` leaves none.
        return *from_stored(rows), source if len(rows) else None

    def _kept_samples(self, before: int) -> Iterator[pa.Table]:
        """Yield the stored samples from before a time (microseconds) that `LogEnds` keeps, the oldest first."""
        since = before - round((HORIZON_SECONDS + LONGEST_SPAN_SECONDS) * MICROS)
        kept = kept_times(self._times_of_files(since, before), before, self._apart_seconds)
        samples = self._samples(kept)
        if not all(pc.any(rows["log_end_offset"].is_valid()).as_py() for rows in samples):
            # What failed is not kept, and the files' statistics do not show it.
            times = self._times_of_rows(since, before, "AND error IS NULL")
            samples = self._samples(kept_times(times, before, self._apart_seconds))
        yield from samples

    def _times_of_files(self, since: int, before: int) -> Ints:
        """Return the times of samples in a time, all in microseconds, by the statistics of files with one sample.

        Only files with more, and those without statistics, are opened: to open all of a day takes seconds.
        """
        files = self._warehouse.table(SAMPLES).files("min.sampled_at", "max.sampled_at")
        if files is None:
            return self._times_of_rows(since, before)
        first = ints(files["min.sampled_at"], since)
        last = ints(files["max.sampled_at"], before) + _STATISTICS_MICROS
        first, last = (times[(last >= since) & (first < before)] for times in (first, last))
        is_wide = last - first >= self._apart_seconds * MICROS
        times = np.concatenate([first[~is_wide], last[~is_wide]])
        if is_wide.any():
            earliest, latest = int(first[is_wide].min()), int(last[is_wide].max())
            of_rows = self._times_of_rows(max(since, earliest), min(before, latest + 1))
            times = np.concatenate([times, of_rows])
        return times[(times >= since) & (times < before)]

    def _times_of_rows(self, since: int, before: int, condition: str = "") -> Ints:
        return np.array(list(self._rows_at(SAMPLES, since, before, condition)), np.int64)

    def _samples(self, kept: Sequence[tuple[int, int]]) -> list[pa.Table]:
        """Return stored samples, given their first and last times (microseconds)."""
        if not kept:
            return []
        wanted = " OR ".join(f"({_between(first, last + 1)})" for first, last in kept)
        samples = self._warehouse.table(SAMPLES)
        batches = samples.select_arrow(_ENDS.names, f"AND ({wanted})", rows_at_a_time=_ROWS_RESTORED)
        rows = pa.concat_tables([_ENDS.empty_table(), *batches])
        return list(split_samples(rows, ints(rows["sampled_at"]), self._apart_seconds))

    def _stored_lag(self, before: int, among: ds.Expression | None) -> Iterator[pa.Table]:
        """Yield the stored lag of the samples in the window before a time (microseconds), the oldest first.

        As many at a time as fit into memory. After a longer stop, only the newest sample.
        """
        since = before - round(self._settings.lag.window_seconds * MICROS)
        rows_at = self._rows_at(TABLE, since, before)
        if not rows_at:
            rows_at = {time: rows for time, rows in self._times_of_newest_lag().items() if time < before}
            since = min(rows_at, default=before)
        if not rows_at:
            return
        coded = ("group_id", "topic", "problem", "read_before_end")
        stored = self._warehouse.table(TABLE).dataset(_between(since, before), coded=coded)
        for first, last in _few_rows(spans(np.array(list(rows_at), np.int64), self._apart_seconds), rows_at):
            of_these = (pc.field("sampled_at") >= _timestamp(first)) & (pc.field("sampled_at") <= _timestamp(last))
            wanted = of_these if among is None else among & of_these
            rows = stored.to_table(STORED_LAG.names, own_rows(self._warehouse.cluster, wanted))
            yield from split_samples(rows, ints(rows["sampled_at"]), self._apart_seconds)

    def _rows_at(self, table: str, since: int, before: int, condition: str = "") -> Mapping[int, int]:
        """Return how many rows a table has at each time of a sample; all times are microseconds."""
        rest = f"AND {_between(since, before)} {condition} GROUP BY sampled_at"
        counts = self._warehouse.table(table).select("arrow_cast(sampled_at, 'Int64') AS at, COUNT(*) AS rows", rest)
        return {row["at"]: row["rows"] for row in counts}

    def _fetch_records(self, wanted: Sequence[RecordRequest]) -> Mapping[RecordRequest, FirstRecord | None]:
        """Return first records; none without a broker, so that ages come from the samples."""
        try:
            return self._records.first_records(wanted)
        except ClusterError as error:
            what = "the records of lag.exact_groups" if self._settings.lag.exact_groups else "unread records"
            self._log_failure(f"lag: {what} cannot be fetched: {error}")
            return {}

    def _fetch_offsets(self, groups: Mapping[str, int]) -> Mapping[str, Offsets | str]:
        """Return the coordinators' offsets of groups, or why there are none: too many groups, or no time."""
        queried = dict(list(groups.items())[:MOST_GROUPS_FETCHED])
        beyond = f"the group's coordinator was not queried: more than {MOST_GROUPS_FETCHED:,} groups are held back"
        offsets: dict[str, Offsets | str] = {group: beyond for group in groups if group not in queried}
        try:
            offsets |= self._coordinators.offsets(queried, seconds=_BROKER_TIMEOUT_SECONDS)
        except ClusterError as error:
            self._log_failure(f"lag: no coordinator can be queried: {error}")
            return offsets | dict.fromkeys(queried, "no broker answered")
        late = f"the group's coordinator was not queried within {_BROKER_TIMEOUT_SECONDS:.0f} s"
        return dict.fromkeys(queried, late) | offsets

    def await_timestamps(self, seconds: float) -> None:
        """Wait until no timestamps are searched for, for so long at most."""
        if self._searching is not None:
            self._searching.join(seconds)

    def _find_timestamps(self) -> bool:
        """Find timestamps beside the samples, if any are wanted; return whether a search is under way."""
        assert self._calculator is not None
        if self._searching is not None and self._searching.is_alive():
            return True
        if not self._calculator.has_timestamps_to_find:
            self._timestamps.close()
        elif (lookup := self._timestamp_lookup()) is not None:
            search = partial(self._search_timestamps, self._calculator, lookup)
            self._searching = threading.Thread(target=search, name="lag-timestamps", daemon=True)
            atexit.register(self._end_search)
            self._searching.start()
            return True
        return False

    def _search_timestamps(self, calculator: LagCalculator, lookup: TimestampLookup) -> None:
        try:
            self._has_dates |= calculator.find_timestamps(lookup)
        except Exception as error:
            self._timestamps_due = time.monotonic() + _TIMESTAMPS_RETRY_SECONDS
            self._log_failure(f"lag: timestamps cannot be looked up: {one_line(error)}")
        atexit.unregister(self._end_search)

    def _end_search(self) -> None:
        """End the search before the interpreter does: a thread in native code would crash that."""
        self._is_ending = True
        self.await_timestamps(2 * _TIMESTAMPS_SECONDS)

    def _timestamp_lookup(self) -> TimestampLookup | None:
        """Return what looks up timestamps; None if that is disabled or has just failed."""
        if not self._settings.lag.timestamp_lookup or time.monotonic() < self._timestamps_due:
            return None

        def fetch(asked: Mapping[tuple[str, int], int]) -> Mapping[tuple[str, int], RecordTimestamp | str | None]:
            if self._is_ending:
                return {}
            try:
                answers = self._timestamps.records_since(asked, time.monotonic() + _TIMESTAMPS_SECONDS)
            except ClusterError as error:
                self._timestamps_due = time.monotonic() + _TIMESTAMPS_RETRY_SECONDS
                self._log_failure(f"lag: timestamps cannot be looked up: {error}")
                return {}
            for reason in {answer for answer in answers.values() if isinstance(answer, str)}:
                self._log_failure(
                    f"lag: some timestamps cannot be looked up ({reason}), so that lag in seconds is a lower bound: "
                    "check that their brokers run, and DESCRIBE on the topics"
                )
            self._has_dates = True
            return answers

        return TimestampLookup(fetch, self._may_have_transactions, self._kept_topics)

    def _may_have_transactions(self) -> bool:
        """Return whether there may be markers of transactions, also if no broker says."""
        if not self._has_transactions:
            try:
                self._has_transactions = self._timestamps.has_transactions()
            except ClusterError:
                return True
        return self._has_transactions

    def _kept_topics(self, topics: Collection[str]) -> Collection[str]:
        """Return those topics that are known not to be compacted; none of those that may not be asked about."""
        try:
            return self._timestamps.kept_topics(topics)
        except ClusterError:
            return ()

    def _log_failure(self, line: str) -> None:
        if line not in self._failures:
            self._failures.add(line)
            self._log(line)


def counts_by_status(lag: pa.Table) -> Mapping[str, int]:
    """Return the number of rows of `consumer_lag` by status."""
    return {row["values"]: row["counts"] for row in pc.value_counts(lag["status"]).to_pylist()}


def split_samples(rows: pa.Table, times: Ints, apart_seconds: float) -> list[pa.Table]:
    """Split rows into samples, the oldest first: rows closer together than `apart_seconds` belong to one."""
    bounds = spans(times, apart_seconds)
    return [rows.filter(pa.array((times >= first) & (times <= last))) for first, last in bounds]


def _few_rows(samples: Sequence[tuple[int, int]], rows_at: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    """Join successive samples (first and last time) that have few rows together, given the rows at each time."""
    waiting: list[tuple[int, int]] = []
    rows = 0
    for first, last in samples:
        more = sum(count for at, count in rows_at.items() if first <= at <= last)
        if waiting and rows + more > _ROWS_RESTORED:
            yield waiting[0][0], waiting[-1][1]
            waiting, rows = [], 0
        waiting.append((first, last))
        rows += more
    if waiting:
        yield waiting[0][0], waiting[-1][1]


def _between(since: int, before: int) -> str:
    """Return the condition (SQL) that a sample was taken in a time (microseconds), without its end."""
    first, end = (datafusion_literal(moment(time)) for time in (since, before))
    return f"sampled_at >= {first} AND sampled_at < {end}"


def _timestamp(micros: int) -> pa.Scalar:
    return pa.scalar(micros, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
