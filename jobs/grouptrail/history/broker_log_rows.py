"""What the brokers' log proves of rows of the history tables, in Arrow.

This module reads the events into memory; `broker_log_with_spark` does the same for any number.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.history.arrow_rows import with_rows
from grouptrail.history.broker_log_conclusions import (
    CAUSE_COLUMNS,
    ENDING_COLUMNS,
    Leaver,
    conclude_ending,
    conclude_rebalance,
)
from grouptrail.history.broker_log_evidence import CLOCKS, JOIN_PHASE, Row
from grouptrail.history.departure_commits import MembershipKey, departed_members
from grouptrail.history.rows import Values
from grouptrail.storage.reader import supports
from grouptrail.storage.sql import datafusion_literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from grouptrail.storage.reader import OpenTable
    from grouptrail.storage.table import Table

EVENTS = "broker_log_events"
EVENT_COLUMNS = (
    "logged_at",
    "broker_id",
    "record_partition",
    "group_id",
    "event",
    "generation_before",
    "generation",
    "member_id",
    "trigger",
    "reason",
    "is_forgeable",
    "doubt",
    "line",
)
AT, LEFT_AT = "at", "left_at"

MOST_EVENTS = 100_000
"""So many events are read at a time: about 150 MB. A group that has more in two hours is left alone."""

MOST_NEAR = 5_000
"""More events of a group in an hour prove nothing: each of its rebalances would have to be compared with all."""

_ROWS_AT_A_TIME = 8_192
_REBALANCE_READ = (
    "group_id",
    "record_partition",
    "group_kind",
    "from_generation",
    "to_generation",
    "at",
    "members_joined",
    "members_left",
    "subscriptions_changed",
    "departed",
)
_MEMBERSHIP_READ = (
    "group_id",
    "incarnation",
    "record_partition",
    "member_id",
    "joined_at",
    "left_at",
    "left_generation",
)


class GroupEvents:
    """The events of a group, in order."""

    def __init__(self, events: Iterable[Row]) -> None:
        self._events = sorted(events, key=lambda event: event["logged_at"])
        self._times = [event["logged_at"] for event in self._events]

    def near(self, at: datetime) -> Sequence[Row]:
        """Return the events that may be about a rebalance or an end at a time; none if they are too many."""
        first, last = bisect_left(self._times, at - JOIN_PHASE), bisect_right(self._times, at + CLOCKS)
        return self._events[first:last] if last - first <= MOST_NEAR else ()


@dataclass(frozen=True)
class Piece:
    """The events of some groups that may be about rows between two times."""

    first: datetime
    last: datetime
    by_group: Mapping[str, GroupEvents]


class LoggedEvents:
    """A version of `broker_log_events`, which need not exist."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._opened: OpenTable | None = table.open() if supports(table.path) else None  # ingest needs delta-rs

    @property
    def version(self) -> int | None:
        """The version that is read; None if there is no table."""
        return None if self._opened is None else self._opened.version()

    def is_newest(self) -> bool:
        """Return whether no event has been added since."""
        newest = self._table.open()
        return self.version == (None if newest is None else newest.version())

    def count(self, first: datetime, last: datetime) -> int:
        """Return how many events may be about rows between two times."""
        return sum(map(len, self._read(("logged_at",), first, last)))

    def dataframe(self) -> DataFrame:
        """Return the events in Spark."""
        return self._table.dataframe(self.version)

    def pieces(self, first: datetime, last: datetime, groups: pa.Array | None = None) -> Iterator[Piece]:
        """Yield the events that may be about rows between two times, of some groups or all, some at a time."""
        counts: defaultdict[str, int] = defaultdict(int)
        for rows in self._read(("group_id",), first, last, groups):
            for one in pc.value_counts(rows["group_id"]).to_pylist():
                counts[one["values"]] += one["counts"]
        if sum(counts.values()) > MOST_EVENTS and last - first > JOIN_PHASE:
            middle = first + (last - first) / 2
            yield from self.pieces(first, middle, groups)
            yield from self.pieces(middle, last, groups)
            return
        for some in _packed(counts):
            by_group: dict[str, list[Row]] = {group: [] for group in some}
            few = [group for group in some if counts[group] <= MOST_EVENTS]
            for rows in self._read(EVENT_COLUMNS, first, last, pa.array(few, pa.string())) if few else ():
                for event in rows.to_pylist():
                    by_group[event["group_id"]].append(event)
            yield Piece(first, last, {group: GroupEvents(events) for group, events in by_group.items()})

    def _read(
        self, columns: Sequence[str], first: datetime, last: datetime, groups: pa.Array | None = None
    ) -> Iterator[pa.Table]:
        if self._opened is not None:
            rows = TimedRows(self._table, "logged_at", first - JOIN_PHASE, last + CLOCKS)
            yield from rows.read(self._opened, columns, groups)


@dataclass(frozen=True)
class TimedRows:
    """The rows of a table with a time in a range."""

    table: Table
    time: str
    first: datetime
    last: datetime

    def read(self, opened: OpenTable, columns: Sequence[str], groups: pa.Array | None) -> Iterator[pa.Table]:
        """Yield columns of the rows of some groups, or of all, in an open version of the table."""
        bounds = f"{datafusion_literal(self.first)} AND {datafusion_literal(self.last)}"
        wanted = columns if groups is None else list(dict.fromkeys((*columns, "group_id")))
        rest = f"AND {self.time} BETWEEN {bounds}"
        for rows in self.table.select_arrow(wanted, rest, rows_at_a_time=_ROWS_AT_A_TIME, opened=opened):
            some = rows if groups is None else rows.filter(pc.is_in(rows["group_id"], groups))
            yield some.select(columns)


def _packed(counts: Mapping[str, int]) -> Iterator[list[str]]:
    """Divide groups so that each part has at most `MOST_EVENTS`, or one group."""
    some: list[str] = []
    total = 0
    for group, count in sorted(counts.items()):
        if some and total + count > MOST_EVENTS:
            yield some
            some, total = [], 0
        some.append(group)
        total += count
    if some:
        yield some


def conclude_rebalances(rebalances: pa.Table, events: LoggedEvents) -> pa.Table:
    """Return rows of `rebalances`, with the commits of members that are gone, with what the log proves."""
    for piece in _pieces(rebalances, AT, events):
        rebalances = rebalances_with_log(rebalances, piece)
    return rebalances


def conclude_memberships(memberships: pa.Table, rebalances: pa.Table, events: LoggedEvents) -> pa.Table:
    """Return rows of `memberships` that end as the log proves; `rebalances` have the timeouts of their members."""
    leavers = leavers_of(rebalances) if events.version is not None else {}
    for piece in _pieces(memberships, LEFT_AT, events):
        memberships = memberships_with_log(memberships, leavers, piece)
    return memberships


def _pieces(rows: pa.Table, time: str, events: LoggedEvents) -> Iterator[Piece]:
    bounds = pc.min_max(rows[time]).as_py()
    if bounds["min"] is not None:
        dated = rows.filter(rows[time].is_valid())
        yield from events.pieces(bounds["min"], bounds["max"], pc.unique(dated["group_id"]))


def leavers_of(rebalances: pa.Table) -> dict[MembershipKey, Leaver]:
    """Return what rows of `rebalances` say of the members that are gone."""
    return {key: Leaver.of(one) for key, one in departed_members(rebalances)}


def rebalances_with_log(rebalances: pa.Table, events: Piece) -> pa.Table:
    """Return rows of `rebalances` with what the events of some groups prove."""

    def concluded(row: Values) -> Values:
        return conclude_rebalance(row, events.by_group[row["group_id"]].near(row[AT]))

    return _with_log(rebalances, AT, events, (_REBALANCE_READ, CAUSE_COLUMNS), concluded)


def memberships_with_log(memberships: pa.Table, leavers: Mapping[MembershipKey, Leaver], events: Piece) -> pa.Table:
    """Return rows of `memberships` that end as the events of some groups prove."""

    def concluded(row: Values) -> Values:
        key = (row["group_id"], row["incarnation"], row["left_generation"], row["member_id"])
        return conclude_ending(row, events.by_group[row["group_id"]].near(row[LEFT_AT]), leavers.get(key))

    return _with_log(memberships, LEFT_AT, events, (_MEMBERSHIP_READ, ENDING_COLUMNS), concluded)


def _with_log(
    rows: pa.Table,
    time: str,
    events: Piece,
    columns: tuple[Sequence[str], Sequence[str]],
    concluded: Callable[[Values], Values],
) -> pa.Table:
    """Return rows, in their order, of which those that events may be about are changed.

    `columns` are those that `concluded` reads, and those that it changes.
    """
    read, changed = columns
    is_near = pc.and_(
        pc.is_in(rows["group_id"], pa.array(list(events.by_group), pa.string())),
        pc.and_(pc.greater_equal(rows[time], events.first), pc.less_equal(rows[time], events.last)),
    )
    numbers = np.flatnonzero(is_near.fill_null(False).to_numpy())
    before = rows.select(list(dict.fromkeys((*read, *changed)))).take(numbers).to_pylist()
    after = [concluded(row) for row in before]
    differing = [one for one, row in enumerate(after) if any(row[name] != before[one][name] for name in changed)]
    if not differing:
        return rows
    return with_rows(rows, numbers[differing], {name: [after[one][name] for one in differing] for name in changed})


def differing_rows(before: pa.Table, after: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return the rows of `after` that differ in some columns from those of `before` at the same place."""
    was, is_now = (table.select(columns).to_pylist() for table in (before, after))
    return after.take(pa.array([number for number, row in enumerate(is_now) if row != was[number]], pa.int64()))
