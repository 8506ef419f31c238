"""The fold's output: changed rows of the history tables, on the driver or in Spark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from threading import Lock
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pyarrow.compute as pc

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


class FoldedRows(Protocol):
    """Changed rows of several tables. `counts` is their number by table, `span` that of the commits they need."""

    @property
    def counts(self) -> Mapping[str, int]: ...

    @property
    def span(self) -> CommitSpan | None: ...

    def buckets(self, table: str) -> Collection[int]:
        """Return the buckets of the groups with rows of a table."""

    def rows(self, table: str) -> pa.Table | DataFrame:
        """Return a table's rows, with what commits say of them; each table's only once."""

    def close(self) -> None:
        """Release the rows."""


class DriverRows:
    """Rows in the driver's memory, completed from the table `commits`, within `lookback`."""

    def __init__(self, commits: Table, lookback: timedelta) -> None:
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
            self._parts[table].append(pa.Table.from_struct_array(own[table]))

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
        return ended_by_commits(rows, self._rebalances()) if table == MEMBERSHIPS else rows

    def close(self) -> None:
        self._parts.clear()
        self._filled = None

    def _rebalances(self) -> pa.Table:
        with self._filling:
            if self._filled is None:
                how = (self._commits_between, self._commits.cluster, self._lookback)
                self._filled = fill_departures(fill_commits(self._of(REBALANCES), *how), *how)
            return self._filled

    def _of(self, table: str) -> pa.Table:
        return pa.concat_tables(self._parts.get(table) or [table_schema(table).empty_table()])

    def _commits_between(self, first: datetime, last: datetime) -> ds.Dataset:
        times = f"{datafusion_literal(first)} AND {datafusion_literal(last)}"
        return self._commits.dataset(f"record_at BETWEEN {times}")


class SparkRows:
    """Rows that Spark has computed and keeps: an output of `fold_groups`, completed as in `DriverRows`."""

    def __init__(self, folded: DataFrame, commits: Table, lookback: timedelta) -> None:
        from pyspark.sql import functions as F

        self._folded = folded.persist()
        self._commits = commits
        self._lookback = lookback
        self._filling = Lock()
        self._filled: DataFrame | None = None
        aggregates = (F.count("*").alias("rows"), F.collect_set("open_bucket").alias("buckets"))
        try:
            by_table = self._folded.groupBy("of").agg(*aggregates, *span_aggregates(REBALANCES)).collect()
        except BaseException:
            self.close()
            raise
        self.counts: Mapping[str, int] = {row.of: row.rows for row in by_table}
        self.span = next((span(row) for row in by_table if row.of == REBALANCES), None)
        self._buckets: dict[str, list[int]] = {row.of: row.buckets for row in by_table}

    def buckets(self, table: str) -> Collection[int]:
        return self._buckets[table]

    def rows(self, table: str) -> DataFrame:
        if table == REBALANCES:
            return self._rebalances()
        rows = self._of(table)
        if table != MEMBERSHIPS or self.span is None:
            return rows
        return end_by_commits_with_spark(rows, self._rebalances())

    def to_driver(self) -> DriverRows:
        """Return the rows in the driver's memory, and release them here."""
        try:
            rows = DriverRows(self._commits, self._lookback)
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
                if self.span is None:
                    return rows
                how = (self.span, self._commits.dataframe(), self._lookback)
                handed_over = fill_commits_with_spark(rows, *how)
                self._filled = fill_departures_with_spark(handed_over, *how).persist()
            return self._filled
