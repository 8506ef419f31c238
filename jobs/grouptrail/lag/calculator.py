"""Compute the rows of `consumer_lag` from commits and samples of the logs.

Works on whole columns; reads no table, no broker and no clock. Start at `LagCalculator.compute`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.kafka.log import FirstRecord, RecordRequest
from grouptrail.lag.clocks import CoordinatorClocks, NewestCommits, of_partitions
from grouptrail.lag.dated import CHECK_SECONDS, DatedRecords, StoredAges, TimestampLookup, UnreadRecords
from grouptrail.lag.departures import (
    ALL_KEPT_SECONDS,
    READ_BEFORE_END,
    Departed,
    Departures,
    LastCommits,
    LastOwners,
)
from grouptrail.lag.group_status import NO_LAST_OWNERS, NONE_OWNED, OWNED, GroupStatus
from grouptrail.lag.held_back import CoordinatorOffsets, FetchOffsets, HeldBackPartitions
from grouptrail.lag.index import (
    MICROS,
    UNKNOWN,
    Bools,
    Floats,
    Ints,
    PartitionIndex,
    Texts,
    at_numbers,
    floats,
    ints,
    lengthened,
    valid,
    whole,
)
from grouptrail.lag.last_offset import LastOffsetHabits
from grouptrail.lag.members import Groups
from grouptrail.lag.offsets import (
    CLOCKS_DIFFER_SECONDS,
    SAMPLES_TO_KEEP_UP,
    Entries,
    Lag,
    are_of_other_log,
    keeps_up,
    lag_in_offsets,
    not_deleted,
)
from grouptrail.lag.positions import READ, Positions
from grouptrail.lag.retention import NO_LAG, NOTHING_UNREAD, LogSizes, Retention, UnreadLogs, time_to_loss
from grouptrail.lag.rhythm import GroupWaits, UsualWaits
from grouptrail.lag.seconds import LogEnds, LogEndSample, Written
from grouptrail.lag.unread import MOST_QUERIES, FetchRecords, UnreadOffsets, UnreadQuery
from grouptrail.lag.verdict import PositionSample, Thresholds, Verdict, judge, stop_seconds_of
from grouptrail.lag.window import Window
from grouptrail.storage.positions import CAME_BACK
from grouptrail.storage.schema import ADMIN, columns_of, compact, table_schema

TABLE = "consumer_lag"
COLUMNS = table_schema(TABLE)
UNSHARED_TEXTS = ("problem", "status_reason")
"""Columns whose texts differ from row to row."""
ROWS = pa.schema(
    [field if field.name in UNSHARED_TEXTS else compact(pa.schema([field])).field(0) for field in COLUMNS]
)
"""The same columns, with dictionary codes for texts that many rows share."""
_WAITS = ("usual_wait_seconds", "last_wait_seconds")
STORED_LAG = columns_of(
    TABLE,
    (
        *("group_id", "topic", "partition", "sampled_at"),
        *("committed_offset", "delivery_complete_count", "commit_at", "log_end_offset"),
        *("lag", "lost_records", "silent_seconds"),
        *("lag_seconds", "lag_seconds_method", "lag_seconds_error"),
        *(*_WAITS, "read_before_end", "pauses_with_one_left", "problem"),
    ),
)
"""The columns of stored rows that verdicts look back on."""

# The records of a log are dated up to here; what a client sets is any number.
_LAST_TIME = 253_402_300_800 * MICROS

# The columns of `log_offsets` that entries need.
_OF_LOGS = ["topic_id", "sampled_at", "log_start_offset", "last_stable_offset", "log_end_offset", "error"]

_NO_AGES = (np.empty(0),) * 3

_NOT_PROGRESSING = ("STOP", "STALL", "WARN")

# A consumer without an offset begins where the log ends when it first polls, if `auto.offset.reset` says so.
_FIRST_POLL_MICROS = 60 * MICROS

# So many entries at a time stay in the processor's cache, and take little memory.
_ENTRIES_AT_A_TIME = 1 << 16


@dataclass(frozen=True)
class Rules:
    """Settings of the section [lag].

    `poll_seconds`, and for share groups `share_poll_seconds`: how much older than a sample a polled group's offsets
    may be. `held_back_seconds`: how long a transaction may be open on a partition of the offsets topic before that
    partition counts as held back.
    `timestamp_lookup`: whether stored ages by timestamps are used. `retention_check_seconds`: how often brokers check
    which segments to delete.
    """

    thresholds: Thresholds = field(default_factory=Thresholds)
    rate_seconds: float = 300
    read_committed_groups: tuple[str, ...] = ()
    exact_groups: tuple[str, ...] = ()
    group_stop_seconds: tuple[tuple[str, float], ...] = ()
    poll_seconds: float = 0
    share_poll_seconds: float = 0
    held_back_seconds: float = 15
    timestamp_lookup: bool = True
    retention_check_seconds: float = 300


@dataclass(frozen=True)
class _Age:
    """The age of each position's first unread record; NaN and None where not known.

    `by_samples` is the age without timestamps that brokers looked up, which verdicts go by: a producer may set any.
    `record_at` is the record's own timestamp (microseconds), where it was read. `older` are the records that are
    older than the samples; `is_due`: such a record has to be read to know more. `limits` returns the lower and the
    upper limits, infinite without any, and the upper ones by the samples alone.
    """

    seconds: Floats
    limits: Callable[[], tuple[Floats, Floats, Floats]]
    by_samples: Floats
    errors: Floats
    methods: Texts
    record_at: Ints
    older: UnreadRecords
    is_due: Bools


@dataclass(frozen=True)
class _Sampled:
    """All positions at a sample.

    `commits` has a row for each, those to be computed are at the numbers `order`; the other columns are by row, of
    which `log_rows` are the numbers of rows of `logs`. The last ones, so many as `without_commit`, have none.
    """

    at: int
    logs: pa.Table
    commits: pa.Table
    order: Ints
    positions: Ints
    partitions: Ints
    groups: Ints
    log_rows: Ints
    without_commit: int


@dataclass(frozen=True)
class _Context:
    """What the entries of a sample have in common.

    Columns by the groups' numbers: `is_isolated` if it reads under read_committed, `is_exact` as `exact_groups`,
    `stop_seconds` how long it may be silent, `away_seconds` for how long it has been without members and
    `may_be_away_seconds` how long that may last, NaN unless it is Empty. By position: what is known of its `departed`
    owner, `is_overdue` as in `lag_in_offsets`, `habitual_pauses` at which one record was left, and `committed_then`
    the committed offset from which rates are computed, `then` its time.
    """

    groups: Groups
    is_isolated: Bools
    is_exact: Bools
    stop_seconds: Floats
    away_seconds: Floats
    may_be_away_seconds: Floats
    departed: Departed
    is_overdue: Bools
    habitual_pauses: Ints
    committed_then: Ints
    then: int


class LagCalculator:
    """Computes the lag of all positions of a cluster from samples and commits.

    After a restart it is brought up to date with the stored ones through the same methods.
    """

    def __init__(
        self,
        cluster: str,
        rules: Rules,
        *,
        first_until: int | None = None,
        entries_at_a_time: int = _ENTRIES_AT_A_TIME,
    ) -> None:
        """`first_until` (microseconds): no sample is from before it."""
        self._at_a_time = entries_at_a_time
        self._cluster = cluster
        self._rules = rules
        self._index = PartitionIndex()
        self._topic_ids: dict[int, str] = {}
        self._newest_ends = np.empty(0, np.int64)
        self._ends = LogEnds()
        self._window = Window(rules.thresholds.window_seconds, rules.thresholds.allowed_lag)
        self._sample: tuple[int, pa.Table, Ints] | None = None
        self._first: Mapping[RecordRequest, FirstRecord | None] = {}
        self._partition_of = np.empty(0, np.int64)
        self._recreated_at = np.empty(0, np.int64)
        self._departures = Departures()
        self._last_owners = NO_LAST_OWNERS
        self._numbered_owners = LastOwners.of(NO_LAST_OWNERS, np.empty(0, np.int64))
        self._waits, self._group_waits = UsualWaits(), GroupWaits()
        self._habits = LastOffsetHabits()
        self._clocks = CoordinatorClocks()
        self._clock_offsets = np.empty(0, np.int64)
        # The log ends by partition at the last samples, the newest last.
        self._recent_ends: list[tuple[int, Ints]] = []
        self._owned = NONE_OWNED
        self._owned_numbers = np.empty(0, np.int64), np.empty(0, np.int64)
        self._unread = UnreadOffsets()
        self._dated, self._stored_ages = DatedRecords(), StoredAges()
        self._stored_until = 0
        self._retention, self._sizes = Retention({}), LogSizes(np.empty(0, np.int64), np.empty(0, np.int64))
        self._coordinators = CoordinatorOffsets()
        self.held_back = HeldBackPartitions(rules.held_back_seconds)
        self.positions = Positions(first_until)

    def set_retention(self, retention: Retention) -> None:
        """Set what is known of the topics' settings."""
        self._retention = retention

    def set_log_sizes(self, rows: pa.Table) -> None:
        """Set the sizes of logs. In: topic, partition, size_bytes, sampled_at."""
        self._sizes = LogSizes.of(rows, self._index)

    def add_stored_lag(self, rows: pa.Table) -> None:
        """Add the rows (`STORED_LAG`) of one earlier sample to the window that verdicts look back on."""
        partitions = self._index.partitions(rows)
        numbers = self._index.positions(rows, partitions)
        at = int(ints(rows["sampled_at"]).max())
        # Offsets of another log do not count: the row says so, or the log was recreated later.
        is_other = at < at_numbers(self._recreated_at, partitions)
        is_other |= are_of_other_log(rows["problem"])
        committed, committed_at = ints(rows["committed_offset"]), ints(rows["commit_at"])
        complete = np.maximum(ints(rows["delivery_complete_count"]), 0)
        readable = not_deleted(ints(rows["lag"]), ints(rows["lost_records"]), committed)
        committed, readable = (np.where(is_other, UNKNOWN, column) for column in (committed, readable))
        consumed = np.where(committed == UNKNOWN, UNKNOWN, committed + complete)
        self._window.start_sample(at, self._index.position_count)
        self._add_ends(at, partitions, ints(rows["log_end_offset"]))
        self._window.put(
            numbers,
            partitions,
            committed=consumed,
            committed_at=committed_at,
            lag=readable,
            keeps_up=self._keeps_up(partitions, consumed, readable),
        )
        silent, *waits = (floats(rows[name]) for name in ("silent_seconds", *_WAITS))
        self._waits.start_sample(at, self._index.position_count)
        self._waits.put(numbers, np.where(np.isnan(silent), UNKNOWN, consumed), silent)
        self._waits.restore(numbers, *waits)
        self._group_waits.start_sample(at)
        has_commit = committed != UNKNOWN
        self._group_waits.restore(self._index.groups(numbers[has_commit]), waits[0][has_commit])
        self._habits.start_sample(at, self._index.position_count)
        left = np.where(valid(rows["delivery_complete_count"]), UNKNOWN, readable)
        self._habits.put(numbers, end=ints(rows["log_end_offset"]), committed=committed, left=left)
        self._habits.restore(numbers, ints(rows["pauses_with_one_left"]))
        self._departures.restore(numbers, rows["read_before_end"], at)
        self._partition_of = lengthened(self._partition_of, self._index.position_count)
        self._partition_of[numbers] = partitions
        if self._rules.timestamp_lookup:
            self._restore_ages(numbers, rows, committed)

    def _restore_ages(self, numbers: Ints, rows: pa.Table, committed: Ints) -> None:
        """Restore the ages of the rows of one sample that are older than the samples."""
        seconds, errors = floats(rows["lag_seconds"]), floats(rows["lag_seconds_error"])
        is_dated = np.asarray(whole(pc.fill_null(pc.equal(rows["lag_seconds_method"], "dated"), False)), bool)
        is_dated &= ~np.isnan(seconds) & (committed != UNKNOWN)
        # Timestamps are whole milliseconds, and so are ages.
        times = (
            np.rint(ints(rows["sampled_at"]) / 1000 - np.where(is_dated, seconds, 0) * 1000).astype(np.int64) * 1000
        )
        offsets = np.maximum(committed, 0) + np.maximum(ints(rows["lost_records"]), 0)
        self._stored_until = int(ints(rows["sampled_at"]).max()) + CHECK_SECONDS * MICROS
        self._stored_ages.restore(numbers, offsets, np.where(is_dated, times, UNKNOWN), ~np.isnan(errors))

    def add_sample(self, rows: pa.Table) -> None:
        """Add the rows of `log_offsets` of one sample, which is newer than all before."""
        numbers = self._index.partitions(rows)
        ends, sampled_at = ints(rows["log_end_offset"]), ints(rows["sampled_at"])
        is_known = ends != UNKNOWN
        if is_known.any():
            column = np.full(self._index.partition_count, UNKNOWN)
            column[numbers] = ends
            asked_at, answered_at = ints(rows["asked_at"])[is_known].min(), sampled_at[is_known].max()
            self._ends.add(LogEndSample(int(asked_at), int(answered_at), column))
        replaced = self._replaced_logs(numbers, ends, rows["topic_id"].to_pylist())
        self._ends.forget(replaced)
        self._dated.forget(replaced)
        of_replaced = np.flatnonzero(np.isin(self._partition_of, replaced))
        self._window.forget(of_replaced)
        self._waits.forget(of_replaced)
        self._habits.forget(of_replaced)
        self._clocks.forget(replaced)
        self._stored_ages.forget(of_replaced)
        self._recreated_at = lengthened(self._recreated_at, self._index.partition_count)
        self._recreated_at[replaced] = int(sampled_at.max())
        row_of = np.full(self._index.partition_count, UNKNOWN)
        row_of[numbers] = np.arange(len(rows))
        self._sample = (int(sampled_at.max()), rows, row_of)
        self.held_back.add_sample(rows, int(sampled_at.max()))

    def compute(
        self,
        statuses: Mapping[str, GroupStatus],
        owned: pa.Table = NONE_OWNED,
        last_owners: pa.Table = NO_LAST_OWNERS,
        *,
        until: int | None = None,
        read_at: int | None = None,
        fetch_records: FetchRecords | None = None,
        fetch_offsets: FetchOffsets | None = None,
        columns: Sequence[str] = ROWS.names,
    ) -> pa.Table:
        """Return `columns` of the rows of `consumer_lag` at the newest sample (`ROWS`); none before the first sample.

        Uses the newest commits, or with `until` (microseconds) those made by that time, of those that had been read
        at `read_at` (None: when the sample was taken). `owned` are the positions that members own (`OWNED`), so that
        one without a commit gets a row; `last_owners` those that the last members of Empty groups owned
        (`LAST_OWNERS`). `fetch_records` serves `exact_groups` and groups that seem to have stopped a few offsets
        before the end, or whose records are older than the samples. `fetch_offsets` serves groups whose commits are
        held back. Without them earlier answers are used; with `until`, no earlier offsets are.
        """
        if self._sample is None:
            return ROWS.empty_table().select(columns)
        sampled, groups = self._sampled(statuses, owned, until, read_at, fetch_offsets)
        if sampled.at >= self._stored_until + CHECK_SECONDS * MICROS:
            self._stored_ages = StoredAges()
        at, rules = sampled.at, self._rules
        if last_owners is not self._last_owners:
            self._last_owners = last_owners
            self._numbered_owners = LastOwners.of(last_owners, self._numbers(last_owners)[1])
        known, noted = self._window.newest_at(at), self._waits.newest
        self._window.start_sample(at, self._index.position_count)
        self._waits.start_sample(at, self._index.position_count)
        self._group_waits.start_sample(at)
        habits = self._habits.newest
        self._habits.start_sample(at, self._index.position_count)
        self._add_ends(at, sampled.partitions, at_numbers(ints(sampled.logs["log_end_offset"]), sampled.log_rows))
        stop_seconds = stop_seconds_of(
            pa.array(groups.names, pa.string()), rules.thresholds, rules.group_stop_seconds
        )
        context = _Context(
            groups,
            groups.matching(rules.read_committed_groups),
            groups.matching(rules.exact_groups),
            stop_seconds,
            np.where(groups.are_empty, (groups.coordinators_at - groups.emptied_at) / MICROS, np.nan),
            groups.may_be_away_seconds(rules.thresholds),
            self._departed(sampled, groups),
            self._are_overdue(sampled, groups, stop_seconds),
            self._habits.habitual(self._index.groups(np.arange(self._index.position_count))),
            *self._window.since(rules.rate_seconds),
        )
        if fetch_records is not None:
            self._fetch_first_records(sampled, context, fetch_records)
        rows = self._rows_in_parts(sampled, context, columns, fetch_records)
        if known is not None and until is None:
            # Samples not processed yet may be older than these commits: the window must not contain them.
            self._window.restore(known)
            self._waits.newest = noted
            self._habits.newest = habits
        else:
            positions = sampled.positions[sampled.order]
            self._group_waits.put(self._index.groups(positions), self._waits.ended(positions))
        return rows

    @property
    def has_timestamps_to_find(self) -> bool:
        """Whether at the newest sample `find_timestamps` is of use."""
        return self._dated.has_questions

    def find_timestamps(self, lookup: TimestampLookup) -> bool:
        """Find the timestamps of unread records that are older than the samples, for later calls of `compute`.

        Returns whether there are any. Another thread may use the calculator meanwhile.
        """
        return self._dated.search(lookup)

    def _replaced_logs(self, numbers: Ints, ends: Ints, topic_ids: list[str | None]) -> Ints:
        """Return the partitions whose log is shorter than before, or whose topic has another id than before."""
        before = at_numbers(self._newest_ends, numbers)
        replaced = set(numbers[(ends != UNKNOWN) & (ends < before)].tolist())
        for number, topic_id in zip(numbers.tolist(), topic_ids, strict=True):
            if topic_id is not None and self._topic_ids.get(number, topic_id) != topic_id:
                replaced.add(number)
            if topic_id is not None:
                self._topic_ids[number] = topic_id
        self._newest_ends = lengthened(self._newest_ends, self._index.partition_count)
        self._newest_ends[numbers] = np.where(ends == UNKNOWN, before, ends)
        return np.array(sorted(replaced), np.int64)

    def _sampled(
        self,
        statuses: Mapping[str, GroupStatus],
        owned: pa.Table,
        until: int | None,
        read_at: int | None,
        fetch_offsets: FetchOffsets | None,
    ) -> tuple[_Sampled, Groups]:
        """Return the positions whose logs were sampled or that are owned without a commit, and their groups."""
        assert self._sample is not None
        at, logs, row_of = self._sample
        self._learn_clocks(read_at)
        commits = self.positions.latest(until)
        if fetch_offsets is not None or until is not None:
            self._coordinators.refresh(self._held_groups(commits, statuses), at, fetch_offsets)
        commits = self._coordinators.apply_to(commits)
        partitions, positions = self._numbers(commits)
        if owned is not self._owned:
            self._owned, self._owned_numbers = owned, self._numbers(owned)
        is_known = np.full(self._index.position_count, False)
        is_known[positions] = True
        without = np.flatnonzero(~is_known[self._owned_numbers[1]])
        if len(without):
            commits = pa.concat_tables([commits, _without_offsets(owned.take(pa.array(without)))])
            columns = zip((partitions, positions), self._owned_numbers, strict=True)
            partitions, positions = (np.concatenate([known, more[without]]) for known, more in columns)
        if commits["group_id"].num_chunks > 1:
            commits = commits.unify_dictionaries().combine_chunks()
        log_rows = at_numbers(row_of, partitions)
        order = self._index.order(positions)
        is_wanted = (log_rows != UNKNOWN) | ~valid(commits["committed_offset"])
        if not is_wanted.all():
            order = order[is_wanted[order]]
        self._partition_of = lengthened(self._partition_of, self._index.position_count)
        self._partition_of[positions[order]] = partitions[order]
        group_ids = whole(commits["group_id"])
        codes, of_logs = np.asarray(group_ids.indices), logs.select(_OF_LOGS)
        sampled = _Sampled(at, of_logs, commits, order, positions, partitions, codes, log_rows, len(without))
        return sampled, Groups.of(at, group_ids.dictionary.to_pylist(), statuses, self._clock_offsets)

    def _entries(self, sampled: _Sampled, rows: Ints) -> Entries:
        """Return the entries at some rows of the commits."""
        commits, of_logs = sampled.commits.take(pa.array(rows)), sampled.log_rows[rows]
        return Entries(
            at=sampled.at,
            positions=sampled.positions[rows],
            partitions=sampled.partitions[rows],
            groups=sampled.groups[rows],
            commits=commits,
            logs=_with_sample_time(sampled.logs.take(pa.array(of_logs, mask=of_logs == UNKNOWN)), sampled.at),
            held_back=self._coordinators.reasons(commits),
            clock_offsets=of_partitions(self._clock_offsets, ints(commits["record_partition"])),
        )

    def _learn_clocks(self, read_at: int | None) -> None:
        """Learn by how much the coordinators' clocks differ from that of the samples."""
        assert self._sample is not None
        at, logs, row_of = self._sample
        commits = self.positions.newest()
        is_new = self._clocks.are_new(ints(commits["record_partition"]), ints(commits["record_offset"]))
        commits = commits.filter(pa.array(is_new))
        partitions = self._index.known_partitions(commits)
        columns = ("committed_offset", "record_partition", "record_offset", "record_at")
        new = NewestCommits(partitions, *(ints(commits[name]) for name in columns))
        end_of = np.where(row_of == UNKNOWN, UNKNOWN, at_numbers(ints(logs["log_end_offset"]), row_of))
        # Of a log that was replaced since the commit, the end says nothing of clocks.
        is_other = (partitions == UNKNOWN) | (
            new.record_at <= at_numbers(self._recreated_at, np.maximum(partitions, 0))
        )
        new_ends = np.where(is_other, UNKNOWN, at_numbers(end_of, np.maximum(partitions, 0)))
        # Without a sample that a leader answered, no end is known.
        asked_at = self._ends.samples[-1].asked_at if len(self._ends) else at
        self._clocks.learn(new, new_ends, end_of, at=at, asked_at=asked_at, read_at=read_at)
        self._clock_offsets = self._clocks.offsets(at)
        self.positions.set_clock_offsets(self._clock_offsets)

    def _rows_in_parts(
        self, sampled: _Sampled, context: _Context, names: Sequence[str], fetch_records: FetchRecords | None
    ) -> pa.Table:
        """Return the rows of `consumer_lag` with these columns; brokers are queried once for all parts."""
        parts = [
            sampled.order[first : first + self._at_a_time] for first in range(0, len(sampled.order), self._at_a_time)
        ]
        tables: list[pa.Table] = []
        due: list[UnreadQuery] = []
        due_for_age: list[UnreadQuery] = []
        older: list[UnreadRecords] = []
        for part in parts:
            entries = self._entries(sampled, part)
            rows, lag, age = self._rows(entries, context, names)
            tables.append(rows)
            older.append(age.older)
            if fetch_records is not None and len(due) < MOST_QUERIES:
                is_stuck = np.asarray(pc.is_in(rows["status"], pa.array(_NOT_PROGRESSING)))
                is_stuck &= self._unread.are_few(lag)
                due += self._unread.due(entries, lag, is_stuck)
                due_for_age += self._unread.due(entries, lag, age.is_due & ~is_stuck)
        due = (due + due_for_age)[:MOST_QUERIES]
        if fetch_records is not None and due:
            is_changed = np.full(self._index.position_count, False)
            is_changed[self._unread.query(due, sampled.at, fetch_records)] = True
            for number, part in enumerate(parts):
                if is_changed[sampled.positions[part]].any():
                    tables[number], _, age = self._rows(self._entries(sampled, part), context, names)
                    older[number] = age.older
        self._dated.want(UnreadRecords.concat(older), sampled.at, self._index.names)
        return pa.concat_tables([ROWS.empty_table().select(names), *tables]).unify_dictionaries()

    def _rows(self, entries: Entries, context: _Context, names: Sequence[str]) -> tuple[pa.Table, Lag, _Age]:
        """Return the rows of `consumer_lag` for entries with these columns, their lag and its age."""
        is_ignored = self._are_ignored(entries, context)
        lag = self._lag_in_offsets(entries, is_ignored, context)
        # A record that nobody can process is left at each pause of a share group, too.
        left = np.where(entries.are_shared, UNKNOWN, lag.left)
        self._habits.put(entries.positions, end=entries.end, committed=entries.committed, left=left)
        wanted = _first_unread(entries, lag, context)
        first = {entry: self._first[at] for entry, at in wanted.items() if at in self._first}
        lag = self._without_unreadable(entries, lag, first, context)
        age = self._age(entries, lag, first, context.is_isolated[entries.groups])
        silent, waits, verdict = self._verdict(entries, lag, age, is_ignored, context)
        columns = self._lag_columns(entries, lag, age)
        rates = self._rates(entries, context)
        columns |= _rate_columns(lag, *rates)
        columns |= self._loss_columns(entries, lag, age, *rates)
        columns["silent_seconds"] = _seconds(silent)
        columns |= zip(_WAITS, map(_seconds, waits), strict=True)
        columns["read_before_end"] = self._read_before_end(entries, context)
        clock_offsets = entries.clock_offsets / MICROS
        columns["clock_offset_seconds"] = _seconds(np.where(clock_offsets == 0, np.nan, clock_offsets))
        columns["pauses_with_one_left"] = _or_null(self._habits.pauses(entries.positions)).cast(pa.int32())
        columns |= {"status": verdict.status, "rule": verdict.rule, "ruled_out": verdict.ruled_out}
        if "status_reason" in names:
            columns["status_reason"] = verdict.reason
        columns["group_state"] = context.groups.states.take(pa.array(entries.groups))
        return pa.table([columns[name] for name in names], schema=pa.schema(list(map(ROWS.field, names)))), lag, age

    def _are_ignored(self, entries: Entries, context: _Context) -> Bools:
        """Return whether the group of each entry has members, none of which subscribes to the topic."""
        # The history cannot read past an open transaction either.
        return context.groups.ignore(entries.groups, entries.commits["topic"]) & ~entries.is_held_back

    @staticmethod
    def _lag_in_offsets(entries: Entries, is_ignored: Bools, context: _Context) -> Lag:
        isolated, overdue = context.is_isolated[entries.groups], context.is_overdue[entries.positions]
        lag = lag_in_offsets(entries, is_ignored, isolated, overdue)
        return lag.without_last(context.habitual_pauses[entries.positions])

    def _are_overdue(self, sampled: _Sampled, groups: Groups, stop_seconds: Floats) -> Bools:
        """Return by position where a group should have committed for the first time, as far as the samples show.

        A record came after the group's last assignment, when the member had had time to poll, and the group has
        committed elsewhere once that record had waited for `stop_seconds` (by group).
        """
        are_overdue = np.full(self._index.position_count, False)
        if not sampled.without_commit:
            return are_overdue
        partitions, positions, of_groups = (
            column[-sampled.without_commit :] for column in (sampled.partitions, sampled.positions, sampled.groups)
        )
        assigned_at = groups.assigned_at[of_groups]
        since = np.where(assigned_at == UNKNOWN, sampled.at + 1, assigned_at + _FIRST_POLL_MICROS)
        then = self._ends.ends_since(partitions, since)
        written_by = self._ends.written(partitions, then).before
        committed_at = np.full(len(stop_seconds), UNKNOWN)
        np.maximum.at(committed_at, sampled.groups, ints(sampled.commits["record_at"]))
        is_known = (then != UNKNOWN) & (written_by != UNKNOWN)
        are_overdue[positions] = is_known & (committed_at[of_groups] - written_by >= stop_seconds[of_groups] * MICROS)
        return are_overdue

    def _numbers(self, rows: pa.Table) -> tuple[Ints, Ints]:
        """Return the numbers of each row's partition and position."""
        partitions = self._index.partitions(rows)
        return partitions, self._index.positions(rows, partitions)

    def _departed(self, sampled: _Sampled, groups: Groups) -> Departed:
        """Return what is known of the last owners of Empty groups' positions."""
        # What a share group has read last says nothing of the records before.
        is_shared = valid(sampled.commits["delivery_complete_count"])[sampled.order]
        of_empty = sampled.order[groups.are_empty[sampled.groups[sampled.order]] & ~is_shared]
        commits = sampled.commits.select(["committed_offset", "record_at", "record_offset", "is_transactional"])
        of_them = commits.take(pa.array(of_empty))
        is_plain = np.asarray(whole(pc.fill_null(pc.invert(of_them["is_transactional"]), False)), bool)
        offsets, committed_at, record_offsets = map(ints, of_them.columns[:3])
        last = LastCommits(
            groups=sampled.groups[of_empty],
            positions=sampled.positions[of_empty],
            offsets=offsets,
            committed_at=committed_at,
            record_offsets=record_offsets,
            is_plain=is_plain,
            read=Written.unknown(len(of_empty)),
            unread=Written.unknown(len(of_empty)),
        )
        away = groups.at - groups.emptied_at[last.groups]
        # Later samples show no more of that time.
        new = np.flatnonzero((away >= 0) & (away < ALL_KEPT_SECONDS * MICROS))
        partitions = sampled.partitions[of_empty[new]]
        last.read.put(new, self._ends.written(partitions, offsets[new] - 1))
        last.unread.put(new, self._ends.written(partitions, offsets[new]))
        last = last.of(committed_at != UNKNOWN)
        return self._departures.find(groups, last, self._numbered_owners, self._index.position_count)

    def _read_before_end(self, entries: Entries, context: _Context) -> pa.Array:
        """Return what the groups without members had read when the last one was gone, as dictionary codes."""
        codes = context.departed.evidence[entries.positions].astype(np.int32) - 1
        return pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), pa.array(READ_BEFORE_END))

    def _held_groups(self, commits: pa.Table, groups: Mapping[str, GroupStatus]) -> dict[str, int]:
        """Return the groups whose partition of the offsets topic is held back, with that partition."""
        held = self.held_back.partitions()
        if not held:
            return {}
        known = {name: group.record_partition for name, group in groups.items() if group.record_partition is not None}
        of_commits = commits.select(["group_id", "record_partition"]).group_by("group_id")
        for row in of_commits.aggregate([("record_partition", "max")]).to_pylist():
            known[row["group_id"]] = row["record_partition_max"]
        return {name: partition for name, partition in sorted(known.items()) if partition in held}

    def _fetch_first_records(self, sampled: _Sampled, context: _Context, fetch_records: FetchRecords) -> None:
        """Fetch the first unread records of exact groups."""
        exact = sampled.order[context.is_exact[sampled.groups[sampled.order]]]
        if not len(exact):
            return
        entries = self._entries(sampled, exact)
        lag = self._lag_in_offsets(entries, self._are_ignored(entries, context), context)
        wanted = list(dict.fromkeys(_first_unread(entries, lag, context).values()))
        # Where there was none before, there may be one now.
        known = {at: record for at, record in self._first.items() if record is not None}
        answers = {**known, **fetch_records([at for at in wanted if at not in known])}
        self._first = {at: answers[at] for at in wanted if at in answers}

    def _without_unreadable(
        self, entries: Entries, lag: Lag, first: Mapping[int, FirstRecord | None], context: _Context
    ) -> Lag:
        """Return the lag without offsets that hold no record, as far as the brokers showed that."""
        lag = lag.without(self._unread.nothing_left(entries))
        ends = entries.end
        nothing = [entry for entry, record in first.items() if record is None or record.offset >= ends[entry]]
        is_exact = context.is_exact[entries.groups] & (lag.readable == 0)
        is_exact[nothing] = True
        return replace(lag, lag=np.where(is_exact, 0, lag.lag), readable=np.where(is_exact, 0, lag.readable))

    def _age(self, entries: Entries, lag: Lag, first: Mapping[int, FirstRecord | None], is_isolated: Bools) -> _Age:
        none = lag.readable == 0
        seconds, errors = np.where(none, 0.0, np.nan), np.where(none, 0.0, np.nan)
        methods = Texts(len(entries))
        methods.set(np.flatnonzero(none), "observed")
        methods.set(np.flatnonzero(none & lag.holds_no_record), "exact")
        methods.set(np.array([entry for entry in first if none[entry]], np.int64), "exact")
        read = {entry: record for entry, record in first.items() if record is not None and not none[entry]}
        offsets, now, record_at = lag.first_unread.copy(), entries.sampled_at, np.full(len(entries), UNKNOWN)
        is_append_time = np.full(len(entries), False)
        for entry, record in read.items():
            offsets[entry], is_append_time[entry] = record.offset, record.is_append_time
            record_at[entry] = record.written_at if 0 <= record.written_at < _LAST_TIME else UNKNOWN
        lagging = np.flatnonzero(lag.readable > 0)
        written = self._ends.written(entries.partitions[lagging], offsets[lagging])
        age = written.age(now[lagging])
        stamp = record_at[lagging]
        # A broker's stamp dates the append; a producer's may be any time, so that the samples have to bear it out.
        slack = np.where(is_append_time[lagging], CLOCKS_DIFFER_SECONDS * MICROS, 0)
        is_known = is_append_time[lagging] | (written.after != UNKNOWN)
        latest = np.where(written.before == UNKNOWN, now[lagging], written.before)
        is_exact = (stamp != UNKNOWN) & is_known & (written.after <= stamp + slack) & (stamp <= latest + slack)
        waited = np.maximum(now[lagging] - stamp, 0) / MICROS
        seconds[lagging] = np.where(is_exact, waited, age.seconds)
        errors[lagging] = np.where(is_exact, 0.0, age.errors)
        methods.set(lagging, "observed")
        methods.set(lagging[is_exact], "exact")
        bounded = lagging[np.isnan(errors[lagging])]
        methods.set(bounded, "bounded")
        by_samples = seconds.copy()
        shown_offsets, shown_times = np.full(len(entries), UNKNOWN), np.full(len(entries), UNKNOWN)
        if self._dated.is_in_use:
            shown_offsets, shown_times = self._unread.first_left(entries, offsets)
            for entry, record in read.items():
                shown_offsets[entry], shown_times[entry] = record.offset, record_at[entry]
        stored_times, stored_are_exact = self._stored_ages.times(entries.positions, offsets)
        is_stored = stored_are_exact & (shown_offsets == UNKNOWN) & (entries.at < self._stored_until)
        shown_offsets, shown_times = (
            np.where(is_stored, stored, shown)
            for stored, shown in ((offsets, shown_offsets), (stored_times, shown_times))
        )
        older = UnreadRecords(
            entries.partitions[bounded],
            offsets[bounded],
            lag.readable[bounded],
            shown_offsets[bounded],
            shown_times[bounded],
            is_isolated[bounded],
        )
        by_timestamp = self._dated.age(older, now[bounded])
        stored_seconds = np.where(stored_times == UNKNOWN, np.nan, (now - stored_times) / MICROS)[bounded]
        # Until they are found again.
        is_old = np.isnan(by_timestamp.seconds)
        by_timestamp = replace(
            by_timestamp,
            seconds=np.where(is_old, stored_seconds, by_timestamp.seconds),
            is_exact=np.where(is_old, stored_are_exact[bounded], by_timestamp.is_exact),
            is_due=by_timestamp.is_due & ~is_stored[bounded],
        )
        # The samples show that the record is at least so old: a lower age comes from a clock that is ahead.
        is_dated = by_timestamp.seconds > by_samples[bounded]
        dated = bounded[is_dated]
        methods.set(dated, "dated")
        seconds[dated] = by_timestamp.seconds[is_dated]
        errors[dated] = np.where(by_timestamp.is_exact[is_dated], 0.0, np.nan)
        is_due = np.full(len(entries), False)
        is_due[bounded] = by_timestamp.is_due
        errors[lagging] += self._poll_seconds(entries)[lagging]
        limits = partial(
            _limits,
            seconds,
            written.of(~is_exact),
            now[lagging[~is_exact]],
            observed=lagging[~is_exact],
            bounded=bounded,
            by_timestamp=by_timestamp.most_seconds,
        )
        return _Age(seconds, limits, by_samples, errors, methods, record_at, older, is_due)

    def _lag_columns(self, entries: Entries, lag: Lag, age: _Age) -> dict[str, pa.Array]:
        commits, logs = entries.commits, entries.logs
        return {
            "cluster": pa.DictionaryArray.from_arrays(np.zeros(len(entries), np.int32), [self._cluster]),
            **{name: whole(commits[name]) for name in ("group_id", "topic", "partition", "committed_offset")},
            "delivery_complete_count": _or_null(np.maximum(ints(commits["delivery_complete_count"]), UNKNOWN)),
            **{name: whole(commits[name].cast(ROWS.field(name).type)) for name in CAME_BACK},
            "commit_at": whole(_commit_at(commits)),
            **{name: whole(logs[name]) for name in ("sampled_at", "log_start_offset", "log_end_offset")},
            "last_stable_offset": whole(logs["last_stable_offset"]),
            "lag": _or_null(lag.lag),
            "lag_error": _or_null(np.where(lag.lag == UNKNOWN, UNKNOWN, ints(commits["lag_error"]))),
            "lost_records": _or_null(lag.lost),
            "readable_lag": _or_null(lag.readable),
            "lag_seconds": _seconds(age.seconds),
            "lag_seconds_method": age.methods.codes(),
            "lag_seconds_error": _seconds(age.errors),
            "first_unread_record_at": _or_null(age.record_at).cast(pa.timestamp("us", tz="UTC")),
            "problem": lag.problem,
        }

    def _rates(self, entries: Entries, context: _Context) -> tuple[Floats, Floats]:
        """Return the records consumed and produced a second, over `rate_seconds` or what the window has of it."""
        committed_then = context.committed_then[entries.positions]
        consumed = _rate(entries.consumed, committed_then, (entries.at - context.then) / MICROS)
        end_then, end_at = self._ends.end_since(entries.partitions, context.then)
        return consumed, _rate(entries.end, end_then, (entries.at - end_at) / MICROS)

    def _loss_columns(
        self, entries: Entries, lag: Lag, age: _Age, consumed: Floats, produced: Floats
    ) -> dict[str, pa.Array]:
        """Return after how many seconds retention deletes an unread record, if the group goes on at its rate."""
        least, most = (np.full(len(entries), np.nan) for _ in range(2))
        reasons = Texts(len(entries))
        reasons.set(np.flatnonzero(lag.readable == 0), NOTHING_UNREAD)
        reasons.set(np.flatnonzero(lag.readable == UNKNOWN), NO_LAG)
        unread = np.flatnonzero(lag.readable > 0)
        kinds = self._retention.of(entries.partitions[unread], self._index)
        for these, reason in self._retention.reasons_without_limit(kinds):
            reasons.set(unread[these], reason)
        is_limited = self._retention.are_limited[kinds]
        unread, kinds = unread[is_limited], kinds[is_limited]
        partitions, offsets = entries.partitions[unread], lag.first_unread[unread]
        least_ages, most_ages, sampled_ages = (ages[unread] for ages in (age.limits() if len(unread) else _NO_AGES))
        # The group may have read more since it was polled.
        least_ages = np.maximum(least_ages - self._poll_seconds(entries)[unread], 0.0)
        # Deletion goes by the record's own timestamp.
        is_read = age.record_at[unread] != UNKNOWN
        waited = np.maximum(entries.sampled_at - age.record_at, 0)[unread] / MICROS
        logs = UnreadLogs(
            kinds=kinds,
            partitions=partitions,
            offsets=offsets,
            ends=offsets + lag.readable[unread],
            at=entries.sampled_at[unread],
            least_ages=np.where(is_read, np.minimum(least_ages, waited), least_ages),
            most_ages=np.where(is_read, waited, most_ages),
            sampled_ages=sampled_ages,
            consume_rates=consumed[unread],
            produce_rates=produced[unread],
            starts=ints(entries.logs["log_start_offset"])[unread],
            log_ends=entries.end[unread],
            bytes=at_numbers(self._sizes.bytes, partitions),
            sized_ends=self._ends.ends_at(partitions, at_numbers(self._sizes.at, partitions))
            if self._retention.has_bytes
            else np.full(len(unread), UNKNOWN),
        )
        loss = time_to_loss(logs, self._retention, self._ends.samples, self._rules.retention_check_seconds)
        least[unread], most[unread] = np.floor(loss.least * 1000) / 1000, np.ceil(loss.most * 1000) / 1000
        for these, reason in loss.reasons:
            reasons.set(unread[these], reason)
        return {
            "time_to_loss_seconds": _seconds(least),
            "time_to_loss_most_seconds": _seconds(most),
            "time_to_loss_reason": reasons.codes(),
        }

    def _poll_seconds(self, entries: Entries) -> Floats:
        """Return how much older than the sample offsets may be that were polled; 0 for others."""
        is_polled = np.asarray(whole(pc.fill_null(pc.equal(entries.commits["source"], ADMIN), False)))
        of_kind = np.where(entries.are_shared, self._rules.share_poll_seconds, self._rules.poll_seconds)
        return np.where(is_polled, of_kind, 0.0)

    def _in_effect_at(self, entries: Entries) -> Ints:
        """Return the times (microseconds) at which the commits took effect."""
        partitions, offsets = (ints(entries.commits[name]) for name in ("record_partition", "record_offset"))
        is_plain = np.asarray(whole(pc.fill_null(pc.invert(entries.commits["is_transactional"]), False)))
        written_at = entries.committed_at
        return np.where(is_plain, written_at, self.held_back.in_effect_at(partitions, offsets, written_at))

    def _silent_seconds(self, entries: Entries, groups: Groups) -> Floats:
        """Return for how long members have not committed, counted from their start if that is recent."""
        committed_at = self._in_effect_at(entries)
        since_commit = np.where(committed_at == UNKNOWN, np.nan, (entries.at - committed_at) / MICROS)
        started = groups.new_seconds[entries.groups]
        return np.where(np.isnan(started), since_commit, np.minimum(since_commit, started))

    def _add_ends(self, at: int, partitions: Ints, ends: Ints) -> None:
        """Add the log ends at a sample (microseconds), in place of those of the same time."""
        column = np.full(self._index.partition_count, UNKNOWN)
        column[partitions] = ends
        earlier = [one for one in self._recent_ends if one[0] < at]
        self._recent_ends = [*earlier[-SAMPLES_TO_KEEP_UP:], (at, column)]

    def _keeps_up(self, partitions: Ints, committed: Ints, readable: Ints) -> Bools:
        """Return where all that was there some samples before the newest one has been read."""
        if len(self._recent_ends) <= SAMPLES_TO_KEEP_UP:
            return np.full(len(partitions), False)
        return keeps_up(committed, readable, at_numbers(self._recent_ends[0][1], partitions))

    def _verdict(
        self, entries: Entries, lag: Lag, age: _Age, is_ignored: Bools, context: _Context
    ) -> tuple[Floats, tuple[Floats, Floats], Verdict]:
        """Return how long positions are silent, how long records usually wait and last waited, and the verdict."""
        committed = np.where(lag.is_of_other_log, UNKNOWN, entries.consumed)
        self._window.put(
            entries.positions,
            entries.partitions,
            committed=committed,
            committed_at=ints(_commit_at(entries.commits)),
            lag=lag.readable,
            keeps_up=self._keeps_up(entries.partitions, committed, lag.readable),
        )
        quiet = self._silent_seconds(entries, context.groups)
        silent = np.where(lag.readable > self._rules.thresholds.allowed_lag, np.minimum(quiet, age.by_samples), 0.0)
        silent = np.where(lag.readable == UNKNOWN, np.nan, np.round(silent, 3))
        self._waits.put(entries.positions, np.where(np.isnan(silent), UNKNOWN, committed), silent)
        own_usual, last_wait = self._waits.waits(entries.positions)
        group_usual = self._group_waits.usual(self._index.groups(entries.positions))
        usual = np.fmax(own_usual, group_usual)
        departed, away = context.departed, context.away_seconds[entries.groups]
        has_left, is_pausing = (one[entries.positions] for one in (departed.has_left, departed.had_read_all))
        is_overdue = has_left & (away >= context.may_be_away_seconds[entries.groups])
        is_pausing &= ~has_left & (away >= 0) & (away < context.groups.may_pause_seconds[entries.groups])
        now = PositionSample(
            positions=entries.positions,
            committed=entries.committed,
            lag=lag.readable,
            lost=lag.lost,
            lag_seconds=age.by_samples,
            commit_seconds=quiet,
            is_empty=(has_left & (away >= 0) & ~is_overdue) | is_pausing,
            is_pausing=is_pausing,
            is_unsubscribed=is_ignored,
            held_back=entries.held_back,
            without_records=np.where(lag.holds_no_record, lag.lag, 0),
            overdue_seconds=np.where(is_overdue, away, np.nan),
            usual_seconds=usual,
            is_usual_of_group=np.nan_to_num(group_usual) > np.nan_to_num(own_usual),
            stop_seconds=context.stop_seconds[entries.groups],
            uncommitted=lag.uncommitted,
            pauses_with_one_left=lag.pauses_with_one_left,
            are_shared=entries.are_shared,
            awaiting_redelivery=ints(entries.commits["awaiting_redelivery"]),
            most_deliveries=ints(entries.commits["most_deliveries"]),
            most_delivered_offset=ints(entries.commits["most_delivered_offset"]),
        )
        return silent, (usual, last_wait), judge(self._window, now, self._rules.thresholds)


def _without_offsets(owned: pa.Table) -> pa.Table:
    """Return owned positions as commits without an offset."""
    given = {field.name: owned[field.name].cast(READ.field(field.name).type) for field in OWNED}
    return pa.table([given.get(field.name, pa.nulls(len(owned), field.type)) for field in READ], schema=READ)


def _first_unread(entries: Entries, lag: Lag, context: _Context) -> dict[int, RecordRequest]:
    """Return requests for the first unread records of exact groups by entry."""
    exact = np.flatnonzero((lag.readable > 0) & context.is_exact[entries.groups])
    commits = entries.commits.select(["topic", "partition"]).take(pa.array(exact)).to_pydict()
    offsets = lag.first_unread[exact].tolist()
    is_isolated = context.is_isolated[entries.groups[exact]].tolist()
    requests = map(RecordRequest, commits["topic"], commits["partition"], offsets, is_isolated)
    return dict(zip(exact.tolist(), requests, strict=True))


def _commit_at(commits: pa.Table) -> pa.ChunkedArray:
    """Return the commit times as `consumer_lag` shows them."""
    return pc.coalesce(commits["commit_at"], commits["record_at"])


def _with_sample_time(logs: pa.Table, at: int) -> pa.Table:
    """Set the time (microseconds) of missing rows of `log_offsets` to the sample's."""
    name = "sampled_at"
    time = pa.scalar(at, pa.int64()).cast(logs.schema.field(name).type)
    return logs.set_column(logs.schema.get_field_index(name), name, pc.fill_null(logs[name], time))


def _limits(
    seconds: Floats, written: Written, now: Ints, *, observed: Ints, bounded: Ints, by_timestamp: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return the lower and upper limits of ages, and the upper ones by samples alone.

    `written` is of the `observed` entries; those that are `bounded` are `by_timestamp` old at most.
    """
    least, most_by_samples = seconds.copy(), seconds.copy()
    latest = np.where(written.before == UNKNOWN, now, written.before)
    least[observed], most_by_samples[observed] = (now - latest) / MICROS, (now - written.after) / MICROS
    most_by_samples[bounded] = np.inf
    most = most_by_samples.copy()
    most[bounded] = np.maximum(by_timestamp, seconds[bounded])
    least[bounded] = seconds[bounded]
    return least, most, most_by_samples


def _rate_columns(lag: Lag, consumed: Floats, produced: Floats) -> dict[str, pa.Array]:
    falls = consumed - produced
    with np.errstate(divide="ignore", invalid="ignore"):
        catch_up = np.where(lag.readable == 0, 0.0, np.where(falls > 0, lag.readable / falls, np.nan))
    catch_up[lag.lag == UNKNOWN] = np.nan
    return {
        "consume_rate": _seconds(consumed),
        "produce_rate": _seconds(produced),
        "catch_up_seconds": _seconds(catch_up),
    }


def _rate(now: Ints, then: Ints, seconds: float) -> Floats:
    """Return the increase a second; NaN where an offset is not known or went back."""
    is_known = (now != UNKNOWN) & (then != UNKNOWN) & (now >= then) & (seconds > 0)
    return np.where(is_known, (now.astype(np.float64) - then) / (seconds or 1), np.nan)


def _or_null(column: Ints) -> pa.Array:
    return pa.array(column, mask=column == UNKNOWN)


def _seconds(column: Any) -> pa.Array:
    """Round to milliseconds: further digits are noise, and would double the column's size."""
    return pa.array(np.round(column, 3), mask=np.isnan(column))
