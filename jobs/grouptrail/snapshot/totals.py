"""Totals over the tables, kept up to date from one snapshot to the next."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.errors import first_cause
from grouptrail.snapshot.errors import SnapshotError
from grouptrail.storage.errors import TableError
from grouptrail.storage.lineage import SavedRows
from grouptrail.storage.reader import OpenTable, table_id
from grouptrail.storage.rows import NewFiles, OpenTables, own_rows
from grouptrail.storage.schema import columns_of
from grouptrail.storage.sql import datafusion_literal
from grouptrail.storage.warehouse import Warehouse

SAVED = "metrics"
"""The folder, beside the jobs' checkpoints, for what the next start need not read again."""


class Totals:
    """Sums and maxima over a table that is only appended to, by `keys` (the first is `record_partition`).

    Each file is read once, some columns of it. A row counts if its `position` is above all that were counted of its
    partition before: files that OPTIMIZE or a retention rewrote change nothing, and no total ever falls. The totals
    are saved beside the jobs' checkpoints, so that the next start need not read the whole table.
    """

    def __init__(
        self,
        warehouse: Warehouse,
        name: str,
        *,
        position: str,
        keys: tuple[str, ...],
        values: Mapping[str, tuple[str, str]],
    ) -> None:
        """`values`: by name, a column (`!` before a boolean one counts false values) and `sum` or `max`."""
        self._name = name
        self._warehouse = warehouse
        self._keys = list(keys)
        self._position = position
        self._values = values
        needed = ["cluster", position, *keys, *(of.lstrip("!") for of, _ in values.values())]
        self._stored = columns_of(name, dict.fromkeys(needed))
        types = [pa.field(key, self._stored.field(key).type) for key in keys]
        numbers = [pa.field(name, pa.int64()) for name in ("position", *values)]
        self._totals = pa.schema([*types, *numbers]).empty_table()
        self._table_id: str | None = None
        self._files: NewFiles
        self._saved = SavedRows(warehouse.checkpoint_path(SAVED), warehouse.options, name, self._totals.schema)

    def _start(self, table: OpenTable) -> None:
        after = None
        if (saved := self._saved.read(of=table)) is None:
            self._totals = self._totals.schema.empty_table()
        else:
            self._totals, counted = saved
            with suppress(TableError):  # that version is no longer in the log: the rows counted are passed over
                after = self._warehouse.table(self._name).open(counted)
        self._files = NewFiles(
            self._stored, own_rows(self._warehouse.cluster), self._warehouse.options, after, skips_damaged=True
        )
        self._table_id = table_id(table)

    def now(self, table: OpenTable | None) -> pa.Table:
        """Return the totals, with a row for each key and its greatest `position`."""
        if table is None:
            return self._totals
        if table_id(table) != self._table_id:
            self._start(table)
        newest = self._totals.group_by("record_partition").aggregate([("position", "max")])
        marks = {row["record_partition"]: row["position_max"] for row in newest.to_pylist()}
        totals = self._totals
        try:
            for rows in self._files.rows(table):
                totals = self._folded([totals, _above(self._counted(rows), marks)])
        except (OSError, ValueError) as error:
            raise SnapshotError(f"{table.table_uri} cannot be read: {first_cause(error)}") from error
        self._totals = totals
        self._saved.keep(totals, of=table)
        return totals

    def _counted(self, rows: pa.Table) -> pa.Table:
        """Return rows with the totals' columns."""
        columns = {key: rows[key] for key in self._keys} | {"position": rows[self._position].cast("int64")}
        for name, (of, _) in self._values.items():
            value = rows[of.lstrip("!")]
            columns[name] = (pc.invert(value) if of.startswith("!") else value).cast("int64")
        return pa.table(columns, self._totals.schema)

    def _folded(self, parts: Iterable[pa.Table]) -> pa.Table:
        how = [("position", "max"), *((name, how) for name, (_, how) in self._values.items())]
        rows = pa.concat_tables(parts).group_by(self._keys).aggregate(how)
        return rows.select([*self._keys, *(f"{name}_{how}" for name, how in how)]).rename_columns(
            self._totals.column_names
        )


_LATE = timedelta(seconds=15)
"""Rows of a table are written in the order of their time up to this much."""


class NewestSample:
    """The times of a cluster's newest samples in a table: of any, and of one that meets a condition.

    The newest files are read first, and older ones only until both are found, each once. Files'
    statistics do not tell a cluster's rows from those of others in the same file.
    """

    _DAYS = (0.01, 1, 30, 36_500)

    def __init__(self, cluster: str, tables: OpenTables, name: str, condition: str = "TRUE") -> None:
        """`condition`: SQL about a row of the table `name`."""
        self._tables = tables
        self._name = name
        self._query = (
            f"SELECT MAX(sampled_at) AS any, MAX(CASE WHEN {condition} THEN sampled_at END) AS meeting "
            f"FROM {name} WHERE cluster = {datafusion_literal(cluster)} AND sampled_at >= "
        )
        self._read_from: datetime | None = None
        self._newest: tuple[datetime | None, datetime | None] = (None, None)

    def now(self) -> tuple[datetime | None, datetime | None]:
        """Return both times, None where there is no such sample. Raises TableError."""
        newest = self._tables.newest(self._name, "sampled_at")
        if newest is None or (self._read_from is not None and newest < self._read_from):  # there is another table
            self._read_from, self._newest = None, (None, None)
        if newest is None:
            return self._newest
        windows = (newest - timedelta(days=days) for days in self._DAYS)
        for since in windows if self._read_from is None else (self._read_from,):
            [row] = self._tables.rows(f"{self._query}{datafusion_literal(since)}").to_pylist()
            self._newest = (row["any"] or self._newest[0], row["meeting"] or self._newest[1])
            if None not in self._newest:
                break
        self._read_from = newest - _LATE
        return self._newest


def _above(rows: pa.Table, marks: Mapping[int, int]) -> pa.Table:
    """Return the rows after those that have been counted of their partition."""
    if not marks:
        return rows
    known = pc.index_in(rows["record_partition"], pa.array(list(marks), pa.int32()))
    mark = pc.take(pa.array(list(marks.values()), pa.int64()), known)
    return rows.filter(pc.fill_null(pc.greater(rows["position"], mark), True))


# The cause of a change of topic metadata is refined when the next assignment is computed (docs/history.md).
_REFINED_LATER = "topic_metadata_changed"


_KEYS = ["group_id", "cause"]


class Rising:
    """Counters by group and cause that never fall in a process, even if counted rows are deleted or recomputed."""

    def __init__(self) -> None:
        self._counted: pa.Table | None = None
        self._risen: pa.Table | None = None

    def now(self, counted: pa.Table) -> pa.Table:
        """Return the counts, including rows that were counted before and are deleted now."""
        if self._counted is None or self._risen is None:
            self._counted = self._risen = counted
            return counted
        numbers = [name for name in counted.column_names if name not in _KEYS]
        change = self._sum([counted, _each(self._counted, numbers, pc.negate)])
        is_refined = self._refined(change)
        risen = _each(change, numbers, lambda column: pc.if_else(is_refined, column, pc.max_element_wise(column, 0)))
        self._risen = self._sum([self._risen, risen])
        self._counted = counted
        return self._risen

    @staticmethod
    def _refined(change: pa.Table) -> pa.BooleanArray:
        """Return which decreases are of a refined cause: as many of the group's rebalances have another one now."""
        rises: dict[str, int] = defaultdict(int)
        rows = list(zip(*(change[name].to_pylist() for name in ("group_id", "cause", "count")), strict=True))
        for group_id, cause, count in rows:
            rises[group_id] += max(count, 0) if cause != _REFINED_LATER else 0
        return pa.array([cause == _REFINED_LATER and -rises[group] <= count < 0 for group, cause, count in rows])

    def _sum(self, parts: list[pa.Table]) -> pa.Table:
        names = parts[0].column_names
        numbers = [name for name in names if name not in _KEYS]
        rows = pa.concat_tables(parts).group_by(_KEYS).aggregate([(name, "sum") for name in numbers])
        return rows.select([name if name in _KEYS else f"{name}_sum" for name in names]).rename_columns(names)


def _each(table: pa.Table, columns: list[str], change: Callable[[pa.ChunkedArray], pa.ChunkedArray]) -> pa.Table:
    for name in columns:
        changed = pc.cast(change(table[name]), table.schema.field(name).type)
        table = table.set_column(table.schema.get_field_index(name), name, changed)
    return table
