"""All positions at a glance: from commits and samples of the logs, the rows of `consumer_lag`.

Pure, and in arrays: it knows no table, no broker and no clock. Start at `Board.rows`.
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
from grouptrail.lag.groups import Group, Position
from grouptrail.lag.held_back import CoordinatorOffsets, Fetch, HeldBack
from grouptrail.lag.index import (
    UNKNOWN,
    Bools,
    Floats,
    Index,
    Ints,
    at_numbers,
    ints,
    moment,
    partition_names,
    position_names,
    whole,
)
from grouptrail.lag.offsets import Entries, Lag, lag_in_offsets, matching
from grouptrail.lag.positions import COMMITS, Positions
from grouptrail.lag.seconds import LogEnds, Sample
from grouptrail.lag.unread import Ask, UnreadOffsets
from grouptrail.lag.verdict import Now, Thresholds, Verdict, Window
from grouptrail.storage.schema import ADMIN, table_schema

TABLE = "consumer_lag"
COLUMNS = table_schema(TABLE)

_MICROS = 1_000_000

# By then the history has the record of a member that commits, and a member that has started has committed.
_HISTORY_FOLLOWS_MICROS = 60 * _MICROS


Recall = Callable[[Mapping[str, datetime]], Mapping[str, int]]
"""By group, when it last committed before a time at which its members were gone (microseconds)."""


@dataclass(frozen=True)
class Rules:
    """As in the configuration's section [lag]."""

    thresholds: Thresholds = field(default_factory=Thresholds)
    rate_seconds: float = 300
    read_committed_groups: tuple[str, ...] = ()
    exact_groups: tuple[str, ...] = ()
    poll_seconds: float = 0
    """By so much the position of a polled group may be older than a sample."""
    held_back_seconds: float = 15
    """A partition of the offsets topic is held back once a transaction may have been open there for so long."""


@dataclass(frozen=True)
class _Age:
    """How old the first unread records are; NaN and None where not known."""

    seconds: Floats
    errors: Floats
    methods: list[str | None]

    def where_records_are(self, lag: Lag) -> _Age:
        """0 where brokers showed that no record is left."""
        none = lag.holds_no_record & (lag.lag > 0)
        methods = ["exact" if is_none else method for is_none, method in zip(none, self.methods, strict=True)]
        return _Age(np.where(none, 0.0, self.seconds), np.where(none, 0.0, self.errors), methods)


@dataclass(frozen=True)
class _Members:
    """Of each position's group; `silent_seconds`: for how long its members have not committed."""

    is_ignored: Bools
    is_empty: Bools
    silent_seconds: Floats


class Board:
    """What is known of a cluster's positions; what is read again after a restart is given to it in the same way."""

    def __init__(self, cluster: str, rules: Rules, recall: Recall = lambda _ends: {}) -> None:
        self._cluster = cluster
        self._rules = rules
        self._index = Index()
        self._partitions = Index()
        self._topic_ids: dict[int, str] = {}
        self._newest_ends = np.empty(0, np.int64)
        self._ends = LogEnds()
        self._window = Window(rules.thresholds)
        self._sample: tuple[int, pa.Table, Ints] | None = None
        self._first: Mapping[RecordRequest, FirstRecord | None] = {}
        self._partition_of = np.empty(0, np.int64)
        self._remade_at = np.empty(0, np.int64)
        self._last_commits = LastCommits(recall)
        self._unread = UnreadOffsets()
        self._coordinators = CoordinatorOffsets()
        self.held_back = HeldBack(rules.held_back_seconds)
        self.positions = Positions(self._index)

    def remember(self, rows: pa.Table) -> None:
        """Rows of `consumer_lag` of one earlier sample, for the verdicts to look back on."""
        numbers = self._index.of(position_names(rows["topic"], rows["partition"], rows["group_id"]))
        partitions = self._partitions.of(partition_names(rows["topic"], rows["partition"]))
        at = int(ints(rows["sampled_at"]).max())
        lag, lost = ints(rows["lag"]), ints(rows["lost_records"])
        # Of another log are commits that were judged so, and those made to a log that was made anew later.
        is_other = at < at_numbers(self._remade_at, partitions)
        is_other |= np.array(["made anew" in (problem or "") for problem in rows["problem"].to_pylist()], bool)
        committed = np.where(is_other, UNKNOWN, ints(rows["committed_offset"]))
        readable = np.where(is_other | (lag == UNKNOWN), UNKNOWN, np.maximum(lag - np.maximum(lost, 0), 0))
        self._window.add(at, numbers, committed, ints(rows["commit_at"]), readable)

    def sample(self, rows: pa.Table) -> None:
        """Rows of `log_offsets` of one sample, newer than those before."""
        numbers = self._partitions.of(partition_names(rows["topic"], rows["partition"]))
        ends, sampled_at = ints(rows["log_end_offset"]), ints(rows["sampled_at"])
        is_told = ends != UNKNOWN
        if is_told.any():
            column = np.full(len(self._partitions), UNKNOWN)
            column[numbers] = ends
            asked_at, told_at = ints(rows["asked_at"])[is_told].min(), sampled_at[is_told].max()
            self._ends.add(Sample(int(asked_at), int(told_at), column))
        others = self._others(numbers, ends, rows["topic_id"].to_pylist())
        self._ends.forget(others)
        self._window.forget(np.flatnonzero(np.isin(self._partition_of, others)))
        remade_at = at_numbers(self._remade_at, np.arange(len(self._partitions)))
        remade_at[others] = int(sampled_at.max())
        self._remade_at = remade_at
        row_of = np.full(len(self._partitions), UNKNOWN)
        row_of[numbers] = np.arange(len(rows))
        self._sample = (int(sampled_at.max()), rows, row_of)
        self.held_back.sample(rows, int(sampled_at.max()))

    def rows(
        self,
        groups: Mapping[str, Group],
        owned: Sequence[Position] = (),
        *,
        until: int | None = None,
        ask: Ask | None = None,
        fetch: Fetch | None = None,
    ) -> pa.Table:
        """`consumer_lag` at the newest sample; empty before the first.

        By the newest commits, or those until a time (microseconds). `owned`: positions that members have, so that
        one without a commit is seen. `ask`: for `exact_groups`, and where a group seems to stand still before few
        offsets; without it, what was told before stands. `fetch`: for groups whose commits are held back; without
        it, what was told before stands, but for commits until a time.
        """
        entries = self._entries(groups, owned, until, fetch)
        if entries is None:
            return COLUMNS.empty_table()
        of_each = [groups.get(group, _UNTOLD) for group in entries.commits["group_id"].to_pylist()]
        topics = entries.commits["topic"].to_pylist()
        is_ignored = np.array([group.ignores(topic) for group, topic in zip(of_each, topics, strict=True)], bool)
        is_ignored &= ~entries.is_held_back  # as the history, too, has not read what lies behind
        lag = lag_in_offsets(entries, is_ignored, self._rules.read_committed_groups)
        first = self._first_records(entries, lag, ask)
        age = self._age(entries, lag, first)
        known = self._window.newest_at(entries.at)
        members = _Members(
            is_ignored,
            is_empty=self._last_commits.left_by_themselves(entries, of_each),
            silent_seconds=self._silent_seconds(entries, of_each),
        )
        lag.holds_no_record = self._unread.nothing_left(entries)
        verdict = self._judged(entries, lag, age, members)
        if ask is not None and self._unread.ask(entries, lag, _standing_still(verdict), ask):
            lag.holds_no_record = self._unread.nothing_left(entries)
            verdict = self._judged(entries, lag, age, members)
        columns = self._measured(entries, lag, age.where_records_are(lag))
        columns |= self._rates(entries, lag)
        columns["status"], columns["status_reason"] = (pa.array(column, pa.string()) for column in verdict)
        columns["group_state"] = pa.array([group.state for group in of_each], pa.string())
        if known is not None and until is None:
            # Later samples may wait that were taken before the commits that have come since.
            self._window.restore(known)
        return pa.table([columns[name] for name in COLUMNS.names], schema=COLUMNS)

    def _others(self, numbers: Ints, ends: Ints, topic_ids: list[str | None]) -> Ints:
        """The partitions whose log is shorter than before, or of another topic of the same name."""
        before = at_numbers(self._newest_ends, numbers)
        others = set(numbers[(ends != UNKNOWN) & (ends < before)].tolist())
        for number, topic_id in zip(numbers.tolist(), topic_ids, strict=True):
            if topic_id is not None and self._topic_ids.get(number, topic_id) != topic_id:
                others.add(number)
            if topic_id is not None:
                self._topic_ids[number] = topic_id
        newest = at_numbers(self._newest_ends, np.arange(len(self._partitions)))
        newest[numbers] = np.where(ends == UNKNOWN, before, ends)
        self._newest_ends = newest
        return np.array(sorted(others), np.int64)

    def _entries(
        self, groups: Mapping[str, Group], owned: Sequence[Position], until: int | None, fetch: Fetch | None
    ) -> Entries | None:
        """The positions whose logs were sampled or that members have without a commit, sorted as the table is."""
        if self._sample is None:
            return None
        at, logs, row_of = self._sample
        commits = self.positions.standing(until)
        if fetch is not None or until is not None:
            self._coordinators.refresh(self._held_groups(commits, groups), at, fetch)
        commits = _with_owned(self._coordinators.in_place_of(commits), owned)
        partitions = self._partitions.of(partition_names(commits["topic"], commits["partition"]))
        commits = commits.append_column("log", pa.array(at_numbers(row_of, partitions)))
        is_sampled, is_owned = pc.field("log") != UNKNOWN, pc.field("committed_offset").is_null()
        commits = commits.append_column("number", pa.array(partitions)).filter(is_sampled | is_owned)
        commits = commits.sort_by([(name, "ascending") for name in ("group_id", "topic", "partition")])
        rows = ints(commits["log"])
        entries = Entries(
            at=at,
            positions=self._index.of(position_names(commits["topic"], commits["partition"], commits["group_id"])),
            partitions=ints(commits["number"]),
            commits=commits.select(COMMITS.names),
            logs=_dated(logs.take(pa.array(rows, mask=rows == UNKNOWN)), at),
            held_back=self._coordinators.reasons(commits),
        )
        partition_of = at_numbers(self._partition_of, np.arange(len(self._index)))
        partition_of[entries.positions] = entries.partitions
        self._partition_of = partition_of
        return entries

    def _held_groups(self, commits: pa.Table, groups: Mapping[str, Group]) -> dict[str, int]:
        """Those whose partition of the offsets topic is held back, with that partition."""
        held = self.held_back.now()
        if not held:
            return {}
        known = {name: group.record_partition for name, group in groups.items() if group.record_partition is not None}
        of_commits = commits.select(["group_id", "record_partition"]).group_by("group_id")
        for row in of_commits.aggregate([("record_partition", "max")]).to_pylist():
            known[row["group_id"]] = row["record_partition_max"]
        return {name: partition for name, partition in sorted(known.items()) if partition in held}

    def _first_records(self, entries: Entries, lag: Lag, ask: Ask | None) -> dict[int, FirstRecord | None]:
        """By place, the first unread records of exact groups; where there is none, there is no lag."""
        is_exact = (lag.lag > 0) & matching(entries.commits["group_id"], self._rules.exact_groups)
        places = np.flatnonzero(is_exact)
        if not len(places):
            return {}
        asked = entries.commits.take(pa.array(places))
        is_isolated = matching(asked["group_id"], self._rules.read_committed_groups).tolist()
        offsets = np.maximum(entries.committed, ints(entries.logs["log_start_offset"]))[places].tolist()
        columns = (asked["topic"].to_pylist(), asked["partition"].to_pylist(), offsets, is_isolated)
        wanted = dict(zip(places.tolist(), map(RecordRequest, *columns), strict=True))
        if ask is not None:
            # Where there was none before, there may be one now.
            known = {at: record for at, record in self._first.items() if record is not None}
            answers = {**known, **ask([at for at in dict.fromkeys(wanted.values()) if at not in known])}
            self._first = {at: answers[at] for at in wanted.values() if at in answers}
        told = {place: self._first[at] for place, at in wanted.items() if at in self._first}
        ends = entries.end
        for place, record in told.items():
            if record is None or record.offset >= ends[place]:
                lag.lag[place] = 0
        return told

    def _age(self, entries: Entries, lag: Lag, first: Mapping[int, FirstRecord | None]) -> _Age:
        seconds = np.where(lag.lag == 0, 0.0, np.nan)
        errors = seconds.copy()
        methods: list[str | None] = ["observed" if known == 0 else None for known in lag.lag.tolist()]
        lagging = np.flatnonzero(lag.lag > 0)
        now = entries.sampled_at
        told = self._ends.age(entries.partitions[lagging], entries.committed[lagging], now[lagging])
        seconds[lagging], errors[lagging] = told.seconds, told.errors
        for place, error in zip(lagging.tolist(), told.errors.tolist(), strict=True):
            methods[place] = "bounded" if np.isnan(error) else "observed"
        for place, record in first.items():
            methods[place], errors[place] = "exact", 0.0
            waiting = int(now[place]) - record.written_at if record is not None and lag.lag[place] else 0
            seconds[place] = max(waiting, 0) / _MICROS
        is_polled = pc.fill_null(pc.equal(entries.commits["source"], ADMIN), False)
        errors[lagging] += np.where(np.asarray(whole(is_polled))[lagging], self._rules.poll_seconds, 0.0)
        return _Age(seconds, errors, methods)

    def _measured(self, entries: Entries, lag: Lag, age: _Age) -> dict[str, pa.Array]:
        commits, logs = entries.commits, entries.logs
        return {
            "cluster": pa.array([self._cluster] * len(entries), pa.string()),
            **{name: whole(commits[name]) for name in ("group_id", "topic", "partition", "committed_offset")},
            "commit_at": whole(_commit_at(commits)),
            **{name: whole(logs[name]) for name in ("sampled_at", "log_start_offset", "log_end_offset")},
            "last_stable_offset": whole(logs["last_stable_offset"]),
            "lag": _or_null(lag.lag),
            "lost_records": _or_null(lag.lost),
            "lag_seconds": _seconds(age.seconds),
            "lag_seconds_method": pa.array(age.methods, pa.string()),
            "lag_seconds_error": _seconds(age.errors),
            "problem": pa.array(lag.problem, pa.string()),
        }

    def _rates(self, entries: Entries, lag: Lag) -> dict[str, pa.Array]:
        """Over `rate_seconds`, or what there is of them."""
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
        """When the commits took effect; one with a topic id is of no transaction."""
        partitions, offsets = (ints(entries.commits[name]) for name in ("record_partition", "record_offset"))
        is_plain = np.asarray(whole(pc.is_valid(entries.commits["topic_id"])))
        written_at = entries.committed_at
        return np.where(is_plain, written_at, self.held_back.in_effect_at(partitions, offsets, written_at))

    def _silent_seconds(self, entries: Entries, of_each: Sequence[Group]) -> Floats:
        """For how long members could have committed and did not; those that have just started still will."""
        committed_at = self._in_effect_at(entries)
        since_commit = np.where(committed_at == UNKNOWN, np.nan, (entries.at - committed_at) / _MICROS)
        now = moment(entries.at)
        started = np.array([group.started_seconds(now) for group in of_each], np.float64)
        is_new = (started >= 0) & (started < _HISTORY_FOLLOWS_MICROS / _MICROS)
        return np.where(is_new, np.minimum(since_commit, started), since_commit)

    def _judged(self, entries: Entries, lag: Lag, age: _Age, members: _Members) -> Verdict:
        committed = np.where(lag.is_of_other_log, UNKNOWN, entries.committed)
        self._window.add(entries.at, entries.positions, committed, _commit_times(entries), lag.readable)
        now = Now(
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
        return self._window.judge(now)


_UNTOLD = Group()
_STANDING_STILL = ("STOP", "STALL", "WARN")


def _standing_still(verdict: Verdict) -> list[int]:
    return [place for place, status in enumerate(verdict.status) if status in _STANDING_STILL]


def _with_owned(commits: pa.Table, owned: Sequence[Position]) -> pa.Table:
    """Adds positions that have an owner and no commit."""
    without = pa.Table.from_pylist(
        [{"group_id": group, "topic": of, "partition": at} for group, of, at in owned], COMMITS
    )
    names = position_names(commits["topic"], commits["partition"], commits["group_id"])
    theirs = position_names(without["topic"], without["partition"], without["group_id"])
    return pa.concat_tables([commits, without.filter(pc.invert(pc.is_in(theirs, names)))])


class LastCommits:
    """The last commit of each group that has no members, from before its last member was gone.

    Later ones are no sign of life: an administrator resets the offsets of a group that has no members. One that goes
    on from where the group was may be a new member's, whose record the history has not read yet.
    """

    def __init__(self, recall: Recall) -> None:
        self._recall = recall
        self._before_end: dict[str, tuple[datetime, int]] = {}
        self._offsets_before_end: dict[int, int] = {}

    def left_by_themselves(self, entries: Entries, of_each: Sequence[Group]) -> Bools:
        """Whether the group's members left on purpose, judged by its last commit to any partition."""
        group_ids = entries.commits["group_id"].to_pylist()
        columns = (entries.committed_at.tolist(), entries.positions.tolist(), entries.committed.tolist())
        returned, unseen = set(), {}
        for group_id, group, at, position, offset in zip(group_ids, of_each, *columns, strict=True):
            end = group.emptied_at
            if end is None or at == UNKNOWN:
                continue
            if moment(at) > end:
                unseen[group_id] = end
                goes_on = offset >= self._offsets_before_end.get(position, offset + 1)
                if goes_on and entries.at - at < _HISTORY_FOLLOWS_MICROS:
                    returned.add(group_id)
                continue
            self._add(group_id, end, at)
            self._offsets_before_end[position] = offset
        unseen = {name: end for name, end in unseen.items() if self._before_end.get(name, (None,))[0] != end}
        if unseen:  # the commit before the end was in no sample since the start, and another has taken its place
            told = self._recall(unseen)
            for name, end in unseen.items():
                self._add(name, end, told.get(name, UNKNOWN))
        left = [
            name not in returned and not group.is_returning and self._left(name, group)
            for name, group in zip(group_ids, of_each, strict=True)
        ]
        return np.array(left, bool)

    def _add(self, group_id: str, end: datetime, at: int) -> None:
        known_end, known_at = self._before_end.get(group_id, (end, UNKNOWN))
        self._before_end[group_id] = (end, max(at, known_at) if known_end == end else at)

    def _left(self, group_id: str, group: Group) -> bool:
        end, at = self._before_end.get(group_id, (None, UNKNOWN))
        is_known = at != UNKNOWN and end == group.emptied_at
        return group.left_by_itself(moment(at) if is_known else None)


def _commit_at(commits: pa.Table) -> pa.ChunkedArray:
    return pc.coalesce(commits["commit_at"], commits["record_at"])


def _commit_times(entries: Entries) -> Ints:
    """When the commits were made (microseconds), as the table has it."""
    return ints(_commit_at(entries.commits))


def _dated(logs: pa.Table, at: int) -> pa.Table:
    """Rows of `log_offsets`, those that are not there at the sample's time (microseconds)."""
    name = "sampled_at"
    time = pa.scalar(at, pa.int64()).cast(logs.schema.field(name).type)
    return logs.set_column(logs.schema.get_field_index(name), name, pc.fill_null(logs[name], time))


def _rate(now: Ints, then: Ints, seconds: float) -> Floats:
    """A second; NaN where one of both is not known, or it went back."""
    is_known = (now != UNKNOWN) & (then != UNKNOWN) & (now >= then) & (seconds > 0)
    return np.where(is_known, (now - then) / (seconds or 1), np.nan)


def _or_null(column: Ints) -> pa.Array:
    return pa.array(column, mask=column == UNKNOWN)


def _seconds(column: Any) -> pa.Array:
    """To a millisecond: what is beyond it is noise, and would cost as many bytes as the rest."""
    return pa.array(np.round(column, 3), mask=np.isnan(column))
