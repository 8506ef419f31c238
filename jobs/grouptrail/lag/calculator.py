"""Compute the rows of `consumer_lag` from commits and samples of the logs.

Works on whole columns; reads no table, no broker and no clock. Start at `LagCalculator.compute`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.kafka.log import FirstRecord, RecordRequest
from grouptrail.lag.group_status import GroupStatus, Position
from grouptrail.lag.held_back import CoordinatorOffsets, FetchOffsets, HeldBackPartitions
from grouptrail.lag.index import (
    UNKNOWN,
    Bools,
    Floats,
    Ints,
    PartitionIndex,
    Texts,
    at_numbers,
    ints,
    lengthened,
    moment,
    whole,
)
from grouptrail.lag.offsets import Entries, Lag, are_of_other_log, lag_in_offsets, matching
from grouptrail.lag.positions import COMMITS, READ, Positions
from grouptrail.lag.seconds import LogEnds, LogEndSample
from grouptrail.lag.unread import FetchRecords, UnreadOffsets
from grouptrail.lag.verdict import PositionSample, Thresholds, Verdict, judge
from grouptrail.lag.window import Window
from grouptrail.storage.schema import ADMIN, table_schema

TABLE = "consumer_lag"
COLUMNS = table_schema(TABLE)
STORED_LAG = pa.schema(
    [
        COLUMNS.field(name)
        for name in (
            *("group_id", "topic", "partition", "sampled_at"),
            *("committed_offset", "commit_at", "lag", "lost_records", "problem"),
        )
    ]
)
"""The columns of stored rows that verdicts look back on."""

_MICROS = 1_000_000

# The columns of `log_offsets` that entries need.
_OF_LOGS = (*("topic_id", "sampled_at", "log_start_offset", "last_stable_offset", "log_end_offset", "error"),)

# Within this time the history reads the record of a member that commits, and a member that has started commits.
_HISTORY_FOLLOWS_MICROS = 60 * _MICROS


FindLastCommits = Callable[[Mapping[str, datetime]], Mapping[str, int]]
"""Returns the time (microseconds) of each group's last commit before the time at which it became Empty."""


@dataclass(frozen=True)
class Rules:
    """Settings of the section [lag].

    `poll_seconds`: how much older than a sample a polled group's offsets may be. `held_back_seconds`: how long a
    transaction may be open on a partition of the offsets topic before that partition counts as held back.
    """

    thresholds: Thresholds = field(default_factory=Thresholds)
    rate_seconds: float = 300
    read_committed_groups: tuple[str, ...] = ()
    exact_groups: tuple[str, ...] = ()
    poll_seconds: float = 0
    held_back_seconds: float = 15


@dataclass(frozen=True)
class _Age:
    """The age of each position's first unread record; NaN and None where not known."""

    seconds: Floats
    errors: Floats
    methods: Texts

    def without_markers(self, lag: Lag) -> _Age:
        """Return the ages with 0 where brokers showed that no record is left to read."""
        none = lag.holds_no_record & (lag.lag > 0)
        self.methods.set(np.flatnonzero(none), "exact")
        return _Age(np.where(none, 0.0, self.seconds), np.where(none, 0.0, self.errors), self.methods)


@dataclass(frozen=True)
class _Members:
    """The members of each position's group; `silent_seconds` is the time since their last commit."""

    is_ignored: Bools
    is_empty: Bools
    silent_seconds: Floats


class LagCalculator:
    """Computes the lag of all positions of a cluster from samples and commits.

    After a restart it is brought up to date with the stored ones through the same methods.
    """

    def __init__(
        self,
        cluster: str,
        rules: Rules,
        find_last_commits: FindLastCommits = lambda _ends: {},
        *,
        first_until: int | None = None,
    ) -> None:
        """`first_until` (microseconds): no sample is from before it."""
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
        self._last_commits = LastCommits(find_last_commits)
        self._unread = UnreadOffsets()
        self._coordinators = CoordinatorOffsets()
        self.held_back = HeldBackPartitions(rules.held_back_seconds)
        self.positions = Positions(first_until)

    def add_stored_lag(self, rows: pa.Table) -> None:
        """Add the rows (`STORED_LAG`) of one earlier sample to the window that verdicts look back on."""
        partitions = self._index.partitions(rows)
        numbers = self._index.positions(rows, partitions)
        at = int(ints(rows["sampled_at"]).max())
        lag, lost = ints(rows["lag"]), ints(rows["lost_records"])
        # Offsets of another log do not count: the row says so, or the log was recreated later.
        is_other = at < at_numbers(self._recreated_at, partitions)
        is_other |= are_of_other_log(rows["problem"])
        committed = np.where(is_other, UNKNOWN, ints(rows["committed_offset"]))
        readable = np.where(is_other | (lag == UNKNOWN), UNKNOWN, np.maximum(lag - np.maximum(lost, 0), 0))
        self._window.add(
            at, numbers, partitions, committed=committed, committed_at=ints(rows["commit_at"]), lag=readable
        )

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
        self._window.forget(np.flatnonzero(np.isin(self._partition_of, replaced)))
        self._recreated_at = lengthened(self._recreated_at, self._index.partition_count)
        self._recreated_at[replaced] = int(sampled_at.max())
        row_of = np.full(self._index.partition_count, UNKNOWN)
        row_of[numbers] = np.arange(len(rows))
        self._sample = (int(sampled_at.max()), rows, row_of)
        self.held_back.add_sample(rows, int(sampled_at.max()))

    def compute(
        self,
        groups: Mapping[str, GroupStatus],
        owned: Sequence[Position] = (),
        *,
        until: int | None = None,
        fetch_records: FetchRecords | None = None,
        fetch_offsets: FetchOffsets | None = None,
    ) -> pa.Table:
        """Return the rows of `consumer_lag` at the newest sample; none before the first sample.

        Uses the newest commits, or with `until` (microseconds) those made by that time. `owned` lists the positions
        that members own, so that one without a commit gets a row. `fetch_records` serves `exact_groups` and groups
        that seem to have stopped a few offsets before the end. `fetch_offsets` serves groups whose commits are held
        back. Without them earlier answers are used; with `until`, no earlier offsets are.
        """
        entries = self._entries(groups, owned, until, fetch_offsets)
        if entries is None:
            return COLUMNS.empty_table()
        of_each = _Groups.of(entries, groups)
        # The history cannot read past an open transaction either.
        is_ignored = of_each.ignore(entries.commits["topic"]) & ~entries.is_held_back
        lag = lag_in_offsets(entries, is_ignored, self._rules.read_committed_groups)
        first = self._first_records(entries, lag, fetch_records)
        age = self._age(entries, lag, first)
        known = self._window.newest_at(entries.at)
        members = _Members(
            is_ignored,
            is_empty=self._last_commits.left_on_purpose(entries, of_each),
            silent_seconds=self._silent_seconds(entries, of_each),
        )
        lag.holds_no_record = self._unread.nothing_left(entries)
        verdict = self._verdict(entries, lag, age, members)
        if fetch_records is not None:
            self._unread.query(entries, lag, _not_progressing(verdict), fetch_records)
            before, lag.holds_no_record = lag.holds_no_record, self._unread.nothing_left(entries)
            if (before != lag.holds_no_record).any():
                verdict = self._verdict(entries, lag, age, members)
        columns = self._lag_columns(entries, lag, age.without_markers(lag))
        columns |= self._rate_columns(entries, lag)
        columns["status"], columns["status_reason"] = verdict
        columns["group_state"] = of_each.states()
        if known is not None and until is None:
            # Samples not processed yet may be older than these commits: the window must not contain them.
            self._window.restore(known)
        return pa.table([columns[name] for name in COLUMNS.names], schema=COLUMNS)

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

    def _entries(
        self,
        groups: Mapping[str, GroupStatus],
        owned: Sequence[Position],
        until: int | None,
        fetch_offsets: FetchOffsets | None,
    ) -> Entries | None:
        """Return the positions whose logs were sampled or that are owned without a commit, in the table's order."""
        if self._sample is None:
            return None
        at, logs, row_of = self._sample
        commits = self.positions.latest(until)
        if fetch_offsets is not None or until is not None:
            self._coordinators.refresh(self._held_groups(commits, groups), at, fetch_offsets)
        commits = self._numbered(self._coordinators.apply_to(commits))
        commits = self._with_owned(commits, owned)
        commits = commits.append_column("log", pa.array(at_numbers(row_of, ints(commits["partition_number"]))))
        is_wanted = pc.or_(pc.not_equal(commits["log"], UNKNOWN), pc.is_null(commits["committed_offset"]))
        if not pc.all(is_wanted).as_py():  # filtering copies all rows
            commits = commits.filter(is_wanted)
        commits = commits.unify_dictionaries().take(pa.array(self._index.order(ints(commits["position"]))))
        rows = ints(commits["log"])
        entries = Entries(
            at=at,
            positions=ints(commits["position"]),
            partitions=ints(commits["partition_number"]),
            commits=commits.select(COMMITS.names),
            logs=_with_sample_time(logs.select(_OF_LOGS).take(pa.array(rows, mask=rows == UNKNOWN)), at),
            held_back=self._coordinators.reasons(commits),
        )
        self._partition_of = lengthened(self._partition_of, self._index.position_count)
        self._partition_of[entries.positions] = entries.partitions
        return entries

    def _numbered(self, commits: pa.Table) -> pa.Table:
        """Add the columns partition_number and position: the numbers of each row's partition and position."""
        partitions = self._index.partitions(commits)
        return commits.append_column("partition_number", pa.array(partitions)).append_column(
            "position", pa.array(self._index.positions(commits, partitions))
        )

    def _with_owned(self, commits: pa.Table, owned: Sequence[Position]) -> pa.Table:
        """Add the positions that have an owner and no commit; all rows are `_numbered`."""
        rows = [{"group_id": group, "topic": of, "partition": at} for group, of, at in owned]
        without = self._numbered(pa.Table.from_pylist(rows, READ))
        has_none = ~np.isin(ints(without["position"]), ints(commits["position"]))
        return pa.concat_tables([commits, without.filter(pa.array(has_none))])

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

    def _first_records(
        self, entries: Entries, lag: Lag, fetch_records: FetchRecords | None
    ) -> dict[int, FirstRecord | None]:
        """Return the first unread records of exact groups by entry, and set the lag of those without one to 0."""
        is_exact = (lag.lag > 0) & matching(entries.commits["group_id"], self._rules.exact_groups)
        exact = np.flatnonzero(is_exact)
        if not len(exact):
            return {}
        commits = entries.commits.take(pa.array(exact))
        is_isolated = matching(commits["group_id"], self._rules.read_committed_groups).tolist()
        offsets = np.maximum(entries.committed, ints(entries.logs["log_start_offset"]))[exact].tolist()
        columns = (commits["topic"].to_pylist(), commits["partition"].to_pylist(), offsets, is_isolated)
        wanted = dict(zip(exact.tolist(), map(RecordRequest, *columns), strict=True))
        if fetch_records is not None:
            # Where there was none before, there may be one now.
            known = {at: record for at, record in self._first.items() if record is not None}
            answers = {**known, **fetch_records([at for at in dict.fromkeys(wanted.values()) if at not in known])}
            self._first = {at: answers[at] for at in wanted.values() if at in answers}
        found = {entry: self._first[at] for entry, at in wanted.items() if at in self._first}
        ends = entries.end
        for entry, record in found.items():
            if record is None or record.offset >= ends[entry]:
                lag.lag[entry] = 0
        return found

    def _age(self, entries: Entries, lag: Lag, first: Mapping[int, FirstRecord | None]) -> _Age:
        seconds = np.where(lag.lag == 0, 0.0, np.nan)
        errors = seconds.copy()
        methods = Texts(len(entries))
        methods.set(np.flatnonzero(lag.lag == 0), "observed")
        lagging = np.flatnonzero(lag.lag > 0)
        now = entries.sampled_at
        age = self._ends.age(entries.partitions[lagging], entries.committed[lagging], now[lagging])
        seconds[lagging], errors[lagging] = age.seconds, age.errors
        methods.set(lagging, "observed")
        methods.set(lagging[np.isnan(age.errors)], "bounded")
        for entry, record in first.items():
            errors[entry] = 0.0
            waiting = int(now[entry]) - record.written_at if record is not None and lag.lag[entry] else 0
            seconds[entry] = max(waiting, 0) / _MICROS
        methods.set(np.array(list(first), np.int64), "exact")
        is_polled = pc.fill_null(pc.equal(entries.commits["source"], ADMIN), False)
        errors[lagging] += np.where(np.asarray(whole(is_polled))[lagging], self._rules.poll_seconds, 0.0)
        return _Age(seconds, errors, methods)

    def _lag_columns(self, entries: Entries, lag: Lag, age: _Age) -> dict[str, pa.Array]:
        commits, logs = entries.commits, entries.logs
        return {
            "cluster": pa.repeat(self._cluster, len(entries)),
            **{name: whole(commits[name]).cast(pa.string()) for name in ("group_id", "topic")},
            **{name: whole(commits[name]) for name in ("partition", "committed_offset")},
            "commit_at": whole(_commit_at(commits)),
            **{name: whole(logs[name]) for name in ("sampled_at", "log_start_offset", "log_end_offset")},
            "last_stable_offset": whole(logs["last_stable_offset"]),
            "lag": _or_null(lag.lag),
            "lost_records": _or_null(lag.lost),
            "lag_seconds": _seconds(age.seconds),
            "lag_seconds_method": age.methods.array(),
            "lag_seconds_error": _seconds(age.errors),
            "problem": lag.problem,
        }

    def _rate_columns(self, entries: Entries, lag: Lag) -> dict[str, pa.Array]:
        """Return the rates over `rate_seconds`, or over the part of it that the window covers."""
        committed_then, then = self._window.since(self._rules.rate_seconds, entries.positions)
        consumed = _rate(entries.committed, committed_then, (entries.at - then) / _MICROS)
        end_then, end_at = self._ends.end_since(entries.partitions, then)
        produced = _rate(entries.end, end_then, (entries.at - end_at) / _MICROS)
        falls = consumed - produced
        with np.errstate(divide="ignore", invalid="ignore"):
            catch_up = np.where(lag.lag == 0, 0.0, np.where(falls > 0, lag.lag / falls, np.nan))
        catch_up[lag.lag == UNKNOWN] = np.nan
        return {
            "consume_rate": _seconds(consumed),
            "produce_rate": _seconds(produced),
            "catch_up_seconds": _seconds(catch_up),
        }

    def _in_effect_at(self, entries: Entries) -> Ints:
        """Return the times (microseconds) at which the commits took effect."""
        partitions, offsets = (ints(entries.commits[name]) for name in ("record_partition", "record_offset"))
        # Kafka writes a topic id only into commits outside a transaction.
        is_nontransactional = np.asarray(whole(pc.is_valid(entries.commits["topic_id"])))
        written_at = entries.committed_at
        return np.where(is_nontransactional, written_at, self.held_back.in_effect_at(partitions, offsets, written_at))

    def _silent_seconds(self, entries: Entries, of_each: _Groups) -> Floats:
        """Return for how long members have not committed, counted from their start if that is recent."""
        committed_at = self._in_effect_at(entries)
        since_commit = np.where(committed_at == UNKNOWN, np.nan, (entries.at - committed_at) / _MICROS)
        now = moment(entries.at)
        started = np.array([group.started_seconds(now) for group in of_each.statuses], np.float64)[of_each.numbers]
        is_new = (started >= 0) & (started < _HISTORY_FOLLOWS_MICROS / _MICROS)
        return np.where(is_new, np.minimum(since_commit, started), since_commit)

    def _verdict(self, entries: Entries, lag: Lag, age: _Age, members: _Members) -> Verdict:
        committed = np.where(lag.is_of_other_log, UNKNOWN, entries.committed)
        where = (entries.positions, entries.partitions)
        self._window.add(
            entries.at, *where, committed=committed, committed_at=_commit_times(entries), lag=lag.readable
        )
        now = PositionSample(
            positions=entries.positions,
            committed=entries.committed,
            lag=lag.readable,
            lost=lag.lost,
            lag_seconds=age.seconds,
            commit_seconds=members.silent_seconds,
            is_empty=members.is_empty,
            is_unsubscribed=members.is_ignored,
            held_back=entries.held_back,
            without_records=np.where(lag.holds_no_record, lag.lag, 0),
        )
        return judge(self._window, now, self._rules.thresholds)


_UNKNOWN_GROUP = GroupStatus()


@dataclass(frozen=True)
class _Groups:
    """The groups of entries, each once: `numbers` are by entry, names and statuses by number."""

    numbers: Ints
    names: list[str]
    statuses: list[GroupStatus]

    @classmethod
    def of(cls, entries: Entries, groups: Mapping[str, GroupStatus]) -> _Groups:
        encoded = whole(entries.commits["group_id"]).dictionary_encode()
        names = encoded.dictionary.to_pylist()
        return cls(ints(encoded.indices), names, [groups.get(name, _UNKNOWN_GROUP) for name in names])

    def ignore(self, topics: pa.ChunkedArray) -> Bools:
        """Return whether the group of each entry has members, none of which subscribes to the entry's topic."""
        encoded = whole(topics).dictionary_encode()
        names = encoded.dictionary.to_pylist()
        pairs, of_each = np.unique(self.numbers * len(names) + ints(encoded.indices), return_inverse=True)
        places = (divmod(pair, len(names)) for pair in pairs.tolist())
        return np.array([self.statuses[group].ignores(names[topic]) for group, topic in places], bool)[of_each]

    def states(self) -> pa.Array:
        """Return the state of each entry's group."""
        return pa.array([group.state for group in self.statuses], pa.string()).take(pa.array(self.numbers))


_NOT_PROGRESSING = ("STOP", "STALL", "WARN")


def _not_progressing(verdict: Verdict) -> Bools:
    found: Bools = np.asarray(pc.is_in(verdict.status, pa.array(_NOT_PROGRESSING)))
    return found


class LastCommits:
    """The last commit of each Empty group before its last member was gone.

    Later commits do not show that a member is alive: an administrator can reset the offsets of an Empty group. One
    that does not go back may come from a new member whose record the history has not read yet.
    """

    def __init__(self, find_last_commits: FindLastCommits) -> None:
        self._find = find_last_commits
        self._before_end: dict[str, tuple[datetime, int]] = {}
        self._offsets_before_end: dict[int, int] = {}

    def left_on_purpose(self, entries: Entries, of_each: _Groups) -> Bools:
        """Return whether the group's members left on purpose, judged by its last commit to any partition."""
        ends = [group.emptied_at for group in of_each.statuses]
        emptied = np.flatnonzero(np.array([end is not None for end in ends], bool)[of_each.numbers])
        columns = (of_each.numbers, entries.committed_at, entries.positions, entries.committed)
        returned, unseen = set(), {}
        for number, at, position, offset in zip(*(column[emptied].tolist() for column in columns), strict=True):
            group_id, end = of_each.names[number], ends[number]
            if end is None or at == UNKNOWN:
                continue
            if moment(at) > end:
                unseen[group_id] = end
                continues = offset >= self._offsets_before_end.get(position, offset + 1)
                if continues and entries.at - at < _HISTORY_FOLLOWS_MICROS:
                    returned.add(group_id)
                continue
            self._add(group_id, end, at)
            self._offsets_before_end[position] = offset
        unseen = {name: end for name, end in unseen.items() if self._before_end.get(name, (None,))[0] != end}
        if unseen:  # a later commit replaced the one before the end before any sample saw it
            found = self._find(unseen)
            for name, end in unseen.items():
                self._add(name, end, found.get(name, UNKNOWN))
        left = [
            name not in returned and not group.is_returning and self._left_on_purpose(name, group)
            for name, group in zip(of_each.names, of_each.statuses, strict=True)
        ]
        return np.array(left, bool)[of_each.numbers]

    def _add(self, group_id: str, end: datetime, at: int) -> None:
        known_end, known_at = self._before_end.get(group_id, (end, UNKNOWN))
        self._before_end[group_id] = (end, max(at, known_at) if known_end == end else at)

    def _left_on_purpose(self, group_id: str, group: GroupStatus) -> bool:
        end, at = self._before_end.get(group_id, (None, UNKNOWN))
        is_known = at != UNKNOWN and end == group.emptied_at
        return group.left_on_purpose(moment(at) if is_known else None)


def _commit_at(commits: pa.Table) -> pa.ChunkedArray:
    return pc.coalesce(commits["commit_at"], commits["record_at"])


def _commit_times(entries: Entries) -> Ints:
    """Return the commit times (microseconds) as `consumer_lag` shows them."""
    return ints(_commit_at(entries.commits))


def _with_sample_time(logs: pa.Table, at: int) -> pa.Table:
    """Set the time (microseconds) of missing rows of `log_offsets` to the sample's."""
    name = "sampled_at"
    time = pa.scalar(at, pa.int64()).cast(logs.schema.field(name).type)
    return logs.set_column(logs.schema.get_field_index(name), name, pc.fill_null(logs[name], time))


def _rate(now: Ints, then: Ints, seconds: float) -> Floats:
    """Return the increase a second; NaN where an offset is not known or went back."""
    is_known = (now != UNKNOWN) & (then != UNKNOWN) & (now >= then) & (seconds > 0)
    return np.where(is_known, (now - then) / (seconds or 1), np.nan)


def _or_null(column: Ints) -> pa.Array:
    return pa.array(column, mask=column == UNKNOWN)


def _seconds(column: Any) -> pa.Array:
    """Round to milliseconds: further digits are noise, and would double the column's size."""
    return pa.array(np.round(column, 3), mask=np.isnan(column))
