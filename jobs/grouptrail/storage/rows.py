"""Rows of the Delta tables as Arrow tables, read with delta-rs: whole tables, new rows, results of queries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from grouptrail import contracts
from grouptrail.errors import first_cause
from grouptrail.storage.damage import damaged_files, naming_damage, noting_unreadable, require_undamaged
from grouptrail.storage.datafusion import DataFusion
from grouptrail.storage.errors import TableError, UnreadableTableError
from grouptrail.storage.lineage import SourceVersion
from grouptrail.storage.location import TableLocation
from grouptrail.storage.reader import (
    READ_ERRORS,
    OpenTable,
    column_names,
    existing_table,
    open_table,
    panics_as_errors,
    table_id,
)
from grouptrail.storage.schema import gathered, table_schema
from grouptrail.storage.sql import datafusion_literal
from grouptrail.storage.table_log import read_commit, table_folder

_ROWS_AT_A_TIME = 250_000
# A dataset keeps some 50 kB of each file that it has read.
_FILES_AT_A_TIME = 500


def dataset(table: TableLocation, where: str, *, coded: Sequence[str] = ()) -> ds.Dataset:
    """Return an existing table's files as a dataset, the texts in `coded` as dictionary codes.

    Left out are files that by their statistics have no row that matches `where` (SQL): a file takes a third of a
    millisecond, and a day without OPTIMIZE leaves thousands. The others have rows of any kind, and of all clusters.
    """
    options = ds.ParquetReadOptions(dictionary_columns=list(coded))
    there = existing_table(table)
    require_undamaged(there)
    return there.to_pyarrow_dataset(parquet_read_options=options, file_pruning_predicate=where)


def read_rows(
    location: TableLocation, columns: pa.Schema, among: ds.Expression | None, table: OpenTable | None
) -> Iterator[pa.Table]:
    """Yield this cluster's rows of an open table that match `among`, many at a time; none of None."""
    if table is not None:
        yield from NewFiles(columns, own_rows(location.cluster, among), location.options).rows(table)


def select(location: TableLocation, columns: str, rest: str = "") -> list[dict[str, Any]]:
    """Return rows of this cluster: `columns` of a table and the `rest` of the query after its WHERE condition.

    No rows if there is no table.
    """
    if (table := open_table(location)) is None:
        return []
    query = f"SELECT {columns} FROM {location.name} WHERE {_ours(location)} {rest}"
    rows: list[dict[str, Any]] = pa.table(
        DataFusion({location.name: table}, location.options).rows(query)
    ).to_pylist()
    return rows


def select_arrow(
    location: TableLocation,
    columns: Sequence[str],
    rest: str,
    *,
    rows_at_a_time: int,
    computes_all: bool,
    opened: OpenTable | None = None,
) -> Iterator[pa.Table]:
    """Yield some rows at a time of what `select` returns. Raises TableError if the table cannot be read.

    They are those of the version that was `opened`, or of the newest.
    With `computes_all` they are computed first, which takes their memory, but no damaged file can end the process.
    """
    if (table := opened or open_table(location)) is None:
        return
    name = location.name
    settings = {"datafusion.execution.batch_size": str(rows_at_a_time)}
    engine = DataFusion({name: table}, location.options, settings=settings)
    schema = pa.schema([table_schema(name).field(column) for column in columns])
    try:
        run = engine.rows if computes_all else engine.stream
        for batch in run(f"SELECT {', '.join(columns)} FROM {name} WHERE {_ours(location)} {rest}"):
            yield pa.Table.from_batches([pa.record_batch(batch)]).cast(schema)
    except READ_ERRORS as error:
        raise TableError(f"{location.shown} cannot be read: {first_cause(error)}") from error


def _ours(table: TableLocation) -> str:
    return f"cluster = {datafusion_literal(table.cluster)}"


def has_columns(table: OpenTable | None, columns: pa.Schema) -> bool:
    """Return whether there is a table and it has these columns."""
    if table is None:
        return False
    there = pa.schema(table.schema().to_arrow())
    return all(there.get_field_index(one.name) >= 0 and there.field(one.name).type == one.type for one in columns)


def own_rows(cluster: str, among: ds.Expression | None = None) -> ds.Expression:
    """Return a condition: a row is of this cluster, and matches `among`."""
    ours = pc.field("cluster") == cluster
    return ours if among is None else ours & among


def own_files(cluster: str, table: OpenTable | None, *needed: str) -> pa.Table | None:
    """Return a table's files that may have rows of this cluster, with their statistics.

    The columns are those of delta-rs's `get_add_actions`. None if there is no table, or no file has statistics of the
    cluster or one of those `needed`.
    """
    if table is None:
        return None
    files = pa.table(table.get_add_actions(flatten=True))
    bounds = ("min.cluster", "max.cluster")
    if not {*bounds, *needed} <= set(files.column_names):
        return None
    low, high = (pc.cast(files[bound], pa.string()) for bound in bounds)
    ours = pc.and_(pc.less_equal(low, pa.scalar(cluster)), pc.greater_equal(high, pa.scalar(cluster)))
    return files.filter(pc.fill_null(ours, True))


def files_dataset(
    table: OpenTable, files: Sequence[str], columns: pa.Schema, storage: Mapping[str, str] | None = None
) -> ds.Dataset:
    """Return the rows of some files of a table as a dataset; `storage` are delta-rs's storage options of the table.

    Texts are read as dictionary codes where their type in `columns` is one (`compact`).
    """
    coded = [one.name for one in columns if pa.types.is_dictionary(one.type)]
    parquet = ds.ParquetFileFormat(
        dictionary_columns=coded,
        # Spark's times may be far from today, which nanoseconds do not reach.
        coerce_int96_timestamp_unit="us",
        default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True),
    )
    return ds.dataset(files, columns, format=parquet, filesystem=table_folder(table.table_uri, storage))


def file_batches(
    table: OpenTable,
    files: Sequence[str],
    columns: pa.Schema,
    storage: Mapping[str, str] | None = None,
    among: ds.Expression | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some files that match `among`, in the files' order: see `files_dataset`.

    Raises DamagedFileError.
    """
    for first in range(0, len(files), _FILES_AT_A_TIME):
        some = files_dataset(table, files[first : first + _FILES_AT_A_TIME], columns, storage)
        with naming_damage(table, storage or {}):
            # Threads, and batches read ahead, take more memory and processor time than they save.
            yield from some.to_batches(filter=among, batch_readahead=2, use_threads=False)


class NewFiles:
    """Reads each file of a table once, and none in which OPTIMIZE has only arranged anew what was read.

    Rows of other rewritten files come again. `columns` are read of the rows that match `among`, texts as dictionary
    codes where their type is one (`compact`); `storage` are delta-rs's storage options of the table. What the table
    had in the version `after` counts as read. With `skips_damaged` files that are known to be damaged are left out;
    otherwise, and where one turns out to be, DamagedFileError is raised.
    """

    def __init__(
        self,
        columns: pa.Schema,
        among: ds.Expression,
        storage: Mapping[str, str] | None = None,
        after: OpenTable | None = None,
        *,
        skips_damaged: bool = False,
    ) -> None:
        self._columns = columns
        self._among = among
        self._skips_damaged = skips_damaged
        self._storage = dict(storage or {})
        self._read, self._version = (set[str](), -1) if after is None else (_paths(after), after.version())

    def rows(self, table: OpenTable) -> Iterator[pa.Table]:
        """Yield the rows of the files that are new since the last call that was read to its end.

        Many rows at a time: files are many and small, and one costs as much as a thousand.
        """
        there = _paths(table)
        if files := sorted(there - self._read - self._arranged_anew(table, there)):
            if damaged := damaged_files(table).keys() & files:
                if not self._skips_damaged:
                    require_undamaged(table)
                files = [file for file in files if file not in damaged]
            batches = file_batches(table, files, self._columns, self._storage, self._among)
            yield from map(pa.Table.from_batches, gathered(batches, rows=_ROWS_AT_A_TIME))
        self._read, self._version = there, table.version()

    def _arranged_anew(self, table: OpenTable, there: set[str]) -> set[str]:
        """Return the files since the last call whose rows are all from files that were read.

        Delta's protocol (there: "Add File and Remove File"): a commit whose actions have `dataChange` false only
        arranges rows. Of a commit that is no longer in the log nothing is returned.
        """
        rearranged: set[str] = set()
        if self._read <= there:  # files were only added
            return rearranged
        folder = table_folder(table.table_uri, self._storage)
        for version in range(self._version + 1, table.version() + 1):
            with suppress(FileNotFoundError):
                added, removed = read_commit(folder, version)
                is_known = bool(removed) and removed.keys() <= self._read | rearranged
                if is_known and not any((*added.values(), *removed.values())):
                    rearranged |= added.keys()
        return rearranged


def _paths(table: OpenTable) -> set[str]:
    return set(table.get_add_actions()["path"].to_pylist())


class NewRows:
    """New rows of a cluster in a table as it grows, each file's once, without those of the version `after`.

    They match `among`; `NewFiles` says more. Raises one of `reader.READ_ERRORS` if there is no table.
    """

    def __init__(
        self,
        table: TableLocation,
        columns: pa.Schema,
        among: ds.Expression | None = None,
        after: OpenTable | None = None,
    ) -> None:
        self._table = existing_table(table)
        self._files = NewFiles(columns, own_rows(table.cluster, among), table.options, after)
        self._version = -1

    @property
    def read_to(self) -> SourceVersion:
        """The version up to which all rows were read; -1: none were."""
        return SourceVersion(table_id(self._table), self._version)

    def fresh(self) -> Iterator[pa.Table]:
        """Yield the rows that were added since the last call, many at a time."""
        self._table.update_incremental()
        if self._table.version() != self._version:
            yield from self._files.rows(self._table)
            self._version = self._table.version()


class OpenTables:
    """Some tables of a cluster, opened once; all queries see the versions of the last `refresh`.

    Rows in damaged files are missing. A table that cannot be opened keeps its last version, or is missing.
    """

    def __init__(self, tables: Sequence[TableLocation], columns: Mapping[str, tuple[str, ...]]) -> None:
        """`columns` are the columns to read, by table."""
        self._locations = {table.name: table for table in tables}
        self._columns = columns
        self._tables: dict[str, OpenTable] = {}
        self._engine = self._query_engine()

    def refresh(self) -> UnreadableTableError | None:
        """Update all tables to their newest versions; return why none of them can be read, if so."""
        unreadable = []
        for name in self._columns:
            try:
                with noting_unreadable(self._locations[name].path):
                    self._refresh(name)
            except UnreadableTableError as error:
                unreadable.append(error)
        self._engine = self._query_engine()
        return None if self._tables or not unreadable else unreadable[0]

    def get(self, name: str) -> OpenTable | None:
        """Return the table; None if it does not exist yet."""
        return self._tables.get(name)

    def rows(self, query: str) -> pa.Table:
        """Return the rows of a query. Raises TableError."""
        try:
            rows = pa.table(self._engine.rows(query))
        except READ_ERRORS as error:
            paths = ", ".join(location.shown for location in self._locations.values())
            raise TableError(f"{paths} cannot be read: {first_cause(error)}") from error
        plain = [pa.field(field.name, _plain(field.type)) for field in rows.schema]
        return rows.cast(pa.schema(plain))

    def newest(self, name: str, column: str) -> datetime | None:
        """Return the latest time in a column by the statistics of files that may have rows of this cluster."""
        files = own_files(self._locations[name].cluster, self._tables.get(name), f"max.{column}")
        if files is None:
            return None
        latest: datetime | None = pc.max(files[f"max.{column}"]).as_py()
        return latest

    def files_since(self, name: str, column: str, since: datetime) -> tuple[list[str], int]:
        """Return the undamaged files that may have rows of this cluster from a time on, and how many rows these have.

        Both are taken from the files' statistics. The number is 0 if these lack it, and if files may have rows that a
        deletion vector deletes.
        """
        files = own_files(self._locations[name].cluster, self._tables.get(name), f"max.{column}", "num_records")
        if files is None:
            return [], 0
        if "deletionVectors" in (self._tables[name].protocol().writer_features or ()):
            return [], 0
        latest = files[f"max.{column}"]
        recent = files.filter(pc.fill_null(pc.greater_equal(latest, pa.scalar(since, latest.type)), True))
        if damaged := damaged_files(self._tables[name]):
            recent = recent.filter(pc.invert(pc.is_in(recent["path"], pa.array(damaged))))
        counts = recent["num_records"]
        return recent["path"].to_pylist(), 0 if counts.null_count else pc.sum(counts).as_py() or 0

    def _refresh(self, name: str) -> None:
        table = self._tables.get(name)
        if table is None or not _moved_on(table):
            # If there is no new version, the table may have been deleted and created again, with a new log.
            table = open_table(self._locations[name])
            if table is None:
                self._tables.pop(name, None)
                return
            self._require_columns(name, table)
        self._tables[name] = table

    def _query_engine(self) -> DataFusion:
        options = next(iter(self._locations.values())).options
        return DataFusion(self._tables, options, skips_damaged=True)

    def _require_columns(self, name: str, table: OpenTable) -> None:
        there = column_names(table)
        later = {
            column.name
            for column in contracts.tables()[name].columns
            if column.null_means or column.formerly in there
        }
        missing = [column for column in self._columns[name] if column not in there | later]
        if missing:
            raise UnreadableTableError(
                self._locations[name].shown,
                f"it has no column {missing[0]}",
                "`grouptrail run` of this version adds what a table of an older one lacks",
            )


def _moved_on(table: OpenTable) -> bool:
    """Update a table; return whether it has a new version."""
    version = table.version()
    try:
        with panics_as_errors():
            table.update_incremental()
    except READ_ERRORS:
        return False
    return table.version() > version


def _plain(type_: pa.DataType) -> pa.DataType:
    return pa.string() if type_ == pa.string_view() else type_
