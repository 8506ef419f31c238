"""The fold's output: changed rows of the history tables, on the driver or in Spark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.history.broker_log_rows import AT, LEFT_AT, LoggedEvents, conclude_memberships, conclude_rebalances
from grouptrail.history.broker_log_with_spark import (
    conclude_memberships_with_spark,
    conclude_rebalances_with_spark,
)
from grouptrail.history.departure_commits import ended_by_commits, fill_departures
from grouptrail.history.departures_with_spark import end_by_commits_with_spark, fill_departures_with_spark
from grouptrail.history.handovers import CommitSpan, fill_commits
from grouptrail.history.handovers_with_spark import fill_commits_with_spark, span, span_aggregates
from grouptrail.storage.schema import table_schema
from grouptrail.storage.sql import datafusion_literal
from grouptrail.storage.table import Table

if TYPE_CHECKING:
    import pyarrow.dataset as ds
    from pyspark.sql import DataFrame

REBALANCES, MEMBERSHIPS = "rebalances", "memberships"

_DATED = {REBALANCES: AT, MEMBERSHIPS: LEFT_AT}
"""The tables whose rows the brokers' log may be about, and their times."""

TimeRange = tuple[datetime, datetime]


class FoldedRows(Protocol):
    """Changed rows of several tables.

    `counts` is their number by table, `span` that of the commits they need, `log` the events that are applied to
    them, and `dated` the time range of the rows that these may be about.
    """

    log: LoggedEvents

    @property
    def counts(self) -> Mapping[str, int]: ...

    @property
    def span(self) -> CommitSpan | None: ...

    @property
    def dated(self) -> TimeRange | None: ...

    def buckets(self, table: str) -> Collection[int]:
        """Return the buckets of the groups with rows of a table."""

    def rows(self, table: str) -> pa.Table | DataFrame:
        """Return a table's rows, with what commits and the brokers' log say of them; each table's only once."""

    def close(self) -> None:
        """Release the rows."""


class DriverRows:
    """Rows in the driver's memory, completed from the table `commits`, within `lookback`, and by a `log`."""

    def __init__(self, commits: Table, lookback: timedelta, log: LoggedEvents) -> None:
        self.log = log
        self.dated: TimeRange | None = None
        self._commits = commits
        self._lookback = lookback
        self._parts: defaultdict[str, list[pa.Table]] = defaultdict(list)
        self._buckets: defaultdict[str, set[int]] = defaultdict(set)
        self._filling = Lock()
        self._filled: pa.Table | None = None

    def add(self, folded: pa.Table) -> None:
        """Add an output of `fold_groups`.

        Its rows have the columns of all tables; only those of their own are kept, a tenth of the memory.
        """
        for table in pc.unique(folded["of"]).to_pylist():
            own = folded.filter(pc.equal(folded["of"], table))
            self._buckets[table].update(pc.unique(own["open_bucket"]).to_pylist())
            rows = pa.Table.from_struct_array(own[table])
            self._parts[table].append(rows)
            if table in _DATED:
                bounds = pc.min_max(rows[_DATED[table]]).as_py()
                self.dated = _wider(self.dated, bounds["min"], bounds["max"])

    @property
    def counts(self) -> Mapping[str, int]:
        return {table: sum(map(len, parts)) for table, parts in self._parts.items()}

    @property
    def span(self) -> CommitSpan | None:
        return CommitSpan.of(self._of(REBALANCES))

    def buckets(self, table: str) -> Collection[int]:
        return self._buckets[table]

    def rows(self, table: str) -> pa.Table:
        if table == REBALANCES:
            return self._rebalances()
        rows = self._of(table)
        self._parts.pop(table, None)
        if table != MEMBERSHIPS:
            return rows
        rebalances = self._rebalances()
        return conclude_memberships(ended_by_commits(rows, rebalances), rebalances, self.log)

    def close(self) -> None:
        self._parts.clear()
        self._filled = None

    def _rebalances(self) -> pa.Table:
        with self._filling:
            if self._filled is None:
                how = (self._commits_between, self._commits.cluster, self._lookback)
                filled = fill_departures(fill_commits(self._of(REBALANCES), *how), *how)
                self._filled = conclude_rebalances(filled, self.log)
            return self._filled

    def _of(self, table: str) -> pa.Table:
        return pa.concat_tables(self._parts.get(table) or [table_schema(table).empty_table()])

    def _commits_between(self, first: datetime, last: datetime) -> ds.Dataset:
        times = f"{datafusion_literal(first)} AND {datafusion_literal(last)}"
        return self._commits.dataset(f"record_at BETWEEN {times}")


class SparkRows:
    """Rows that Spark has computed and keeps: an output of `fold_groups`, completed as in `DriverRows`."""

    def __init__(self, folded: DataFrame, commits: Table, lookback: timedelta, log: LoggedEvents) -> None:
        from pyspark.sql import functions as F

        self.log = log
        self._folded = folded.persist()
        self._commits = commits
        self._lookback = lookback
        self._filling = Lock()
        self._filled: DataFrame | None = None
        at = F.coalesce(*(F.col(f"{table}.{name}") for table, name in _DATED.items()))
        bounds = (F.min(at).alias("first"), F.max(at).alias("last"))
        aggregates = (F.count("*").alias("rows"), F.collect_set("open_bucket").alias("buckets"), *bounds)
        try:
            by_table = self._folded.groupBy("of").agg(*aggregates, *span_aggregates(REBALANCES)).collect()
        except BaseException:
            self.close()
            raise
        self.counts: Mapping[str, int] = {row.of: row.rows for row in by_table}
        self.span = next((span(row) for row in by_table if row.of == REBALANCES), None)
        self._buckets: dict[str, list[int]] = {row.of: row.buckets for row in by_table}
        self.dated: TimeRange | None = None
        for row in by_table:
            self.dated = _wider(self.dated, *(one and one.replace(tzinfo=UTC) for one in (row.first, row.last)))

    def buckets(self, table: str) -> Collection[int]:
        return self._buckets[table]

    def rows(self, table: str) -> DataFrame:
        if table == REBALANCES:
            return self._rebalances()
        rows = self._of(table)
        if table != MEMBERSHIPS:
            return rows
        if self.span is not None:
            rows = end_by_commits_with_spark(rows, self._rebalances())
        if self._has_events:
            rows = conclude_memberships_with_spark(rows, self._rebalances(), self.log.dataframe())
        return rows

    def to_driver(self) -> DriverRows:
        """Return the rows in the driver's memory, and release them here."""
        try:
            rows = DriverRows(self._commits, self._lookback, self.log)
            rows.add(self._folded.toArrow())
            return rows
        finally:
            self.close()

    def close(self) -> None:
        self._folded.unpersist()
        if self._filled is not None:
            self._filled.unpersist()

    def _of(self, table: str) -> DataFrame:
        return self._folded.where(self._folded["of"] == table).select(f"{table}.*")

    def _rebalances(self) -> DataFrame:
        with self._filling:
            if self._filled is None:
                rows = self._of(REBALANCES)
                if self.span is not None:
                    how = (self.span, self._commits.dataframe(), self._lookback)
                    rows = fill_departures_with_spark(fill_commits_with_spark(rows, *how), *how)
                if self._has_events:
                    rows = conclude_rebalances_with_spark(rows, self.log.dataframe())
                self._filled = rows.persist()
            return self._filled

    @cached_property
    def _has_events(self) -> bool:
        return self.dated is not None and self.log.count(*self.dated) > 0


def _wider(known: TimeRange | None, first: datetime | None, last: datetime | None) -> TimeRange | None:
    """Return a time range that contains another and two times, if there are any."""
    if first is None or last is None:
        return known
    return (first, last) if known is None else (min(known[0], first), max(known[1], last))
