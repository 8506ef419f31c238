"""Read the Delta tables with delta-rs, without a JVM: whole tables, new rows, SQL, and what their logs say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from arro3.core import DataType
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import PyFileSystem

from grouptrail import contracts
from grouptrail.errors import first_cause
from grouptrail.spark import object_stores
from grouptrail.storage.errors import TableError
from grouptrail.storage.schema import gathered

if TYPE_CHECKING:
    from grouptrail.config import Config

OpenTable = DeltaTable
"""A table at one version."""

READ_ERRORS = (DeltaError, OSError, ValueError)
"""What delta-rs raises if a table cannot be read, or a query is wrong."""

_ROWS_AT_A_TIME = 1_000_000
_COMMITS_SEARCHED = 20
_FIRST_TRY = {"max_retries": "1", "retry_timeout": "10s", "timeout": "10s", "connect_timeout": "5s"}


def open_table(config: Config, name: str) -> OpenTable | None:
    """Open a table; None if it does not exist yet. Raises TableError if it cannot be read."""
    path = config.table_path(name)
    try:
        return DeltaTable(path, storage_options=config.storage_options())
    except TableNotFoundError:
        return None
    except READ_ERRORS as error:
        reason = one_line(str(error))
        raise TableError(f"{path} cannot be read ({reason}): check the warehouse and the access rights") from error


def dataset(config: Config, name: str) -> ds.Dataset:
    """Return the rows of all clusters of an existing table as a dataset."""
    return DeltaTable(config.table_path(name), storage_options=config.storage_options()).to_pyarrow_dataset()


def rows(config: Config, name: str, columns: pa.Schema, among: ds.Expression | None = None) -> Iterator[pa.Table]:
    """Yield this cluster's rows that match `among`, about a million at a time; none if there is no table."""
    if (table := open_table(config, name)) is not None:
        yield from NewFiles(columns, own_rows(config, among), config.storage_options()).rows(table)


def own_rows(config: Config, among: ds.Expression | None = None) -> ds.Expression:
    """Return a condition: a row is of this cluster, and matches `among`."""
    ours = pc.field("cluster") == config.cluster
    return ours if among is None else ours & among


class NewFiles:
    """Reads each file of a table once; rows of a file that OPTIMIZE has rewritten come again.

    `columns` are read of the rows that match `among`; `storage` are delta-rs's storage options of the table.
    """

    def __init__(self, columns: pa.Schema, among: ds.Expression, storage: Mapping[str, str] | None = None) -> None:
        self._columns = columns
        self._among = among
        self._storage = dict(storage or {})
        self._read: set[str] = set()

    def rows(self, table: OpenTable) -> Iterator[pa.Table]:
        """Yield the rows of the files that are new since the last call that was read to its end.

        About a million rows at a time: files are many and small, and one costs as much as a thousand.
        """
        there = set(table.get_add_actions()["path"].to_pylist())
        if files := sorted(there - self._read):
            source = PyFileSystem(DeltaStorageHandler(table.table_uri, self._storage))
            found = ds.dataset(files, self._columns, format="parquet", filesystem=source)
            batches = found.to_batches(filter=self._among)
            yield from map(pa.Table.from_batches, gathered(batches, rows=_ROWS_AT_A_TIME))
        self._read = there


class AppendedRows:
    """New rows of a table as it grows, each file's once (see `NewFiles`)."""

    def __init__(
        self, table: str, columns: pa.Schema, among: ds.Expression, storage: Mapping[str, str] | None = None
    ) -> None:
        self._table = DeltaTable(table, storage_options=dict(storage or {}))
        self._files = NewFiles(columns, among, storage)
        self._version = -1

    def fresh(self) -> Iterator[pa.Table]:
        """Yield the rows that were added since the last call, about a million at a time."""
        self._table.update_incremental()
        if self._table.version() != self._version:
            yield from self._files.rows(self._table)
            self._version = self._table.version()


def query_engine(tables: Mapping[str, OpenTable], settings: Mapping[str, str] | None = None) -> QueryBuilder:
    """Return DataFusion over the versions of some open tables; its queries raise one of `READ_ERRORS`."""
    engine = QueryBuilder(dict(settings or {}))
    for name, table in tables.items():
        engine.register(name, table)
    return engine


class OpenTables:
    """The tables of a warehouse, opened once; all queries see the versions of the last `refresh`."""

    def __init__(self, config: Config, columns: Mapping[str, tuple[str, ...]]) -> None:
        """`columns` are the columns to read, by table."""
        self._config = config
        self._columns = columns
        self._tables: dict[str, OpenTable] = {}
        self._engine = QueryBuilder()

    def refresh(self) -> None:
        """Update all tables to their newest versions. Raises TableError if one cannot be read."""
        for name in self._columns:
            self._refresh(name)
        self._engine = query_engine(self._tables)

    def get(self, name: str) -> OpenTable | None:
        """Return the table; None if it does not exist yet."""
        return self._tables.get(name)

    def rows(self, query: str) -> pa.Table:
        """Return the rows of a query. Raises TableError."""
        try:
            found = pa.table(self._engine.execute(query))
        except READ_ERRORS as error:
            raise TableError(f"{self._config.warehouse} cannot be read: {first_cause(error)}") from error
        plain = [pa.field(field.name, _plain(field.type)) for field in found.schema]
        return found.cast(pa.schema(plain))

    def newest(self, name: str, column: str) -> datetime | None:
        """Return the latest time in a column by the statistics of files that may have rows of this cluster."""
        table = self._tables.get(name)
        if table is None:
            return None
        files = pa.table(table.get_add_actions(flatten=True))
        wanted = ("min.cluster", "max.cluster", f"max.{column}")
        if not set(wanted) <= set(files.column_names):
            return None
        cluster = pa.scalar(self._config.cluster)
        low, high = (pc.cast(files[bound], pa.string()) for bound in wanted[:2])
        ours = files.filter(pc.and_(pc.less_equal(low, cluster), pc.greater_equal(high, cluster)))
        latest: datetime | None = pc.max(ours[wanted[2]]).as_py()
        return latest

    def _refresh(self, name: str) -> None:
        table = self._tables.pop(name, None)
        if table is None or not _moved_on(table):
            # If there is no new version, the table may have been deleted and created again, with a new log.
            table = open_table(self._config, name)
            if table is None:
                return
            self._require_columns(name, table)
        self._tables[name] = table

    def _require_columns(self, name: str, table: OpenTable) -> None:
        there = _columns(table)
        missing = [column for column in self._columns[name] if column not in there]
        if missing:
            raise TableError(
                f"{self._config.table_path(name)} has no column {missing[0]}: an older grouptrail made it; "
                "`grouptrail run` of this version adds what is missing"
            )


def table_id(table: OpenTable) -> str:
    """Return the table's id, which differs if it was deleted and created again."""
    return str(table.metadata().id)


@dataclass(frozen=True)
class TableSize:
    """A table's files, and by their statistics its rows and newest time (UTC in ISO 8601): None if incomplete."""

    files: int
    size_bytes: int
    rows: int | None
    newest_at: str | None


def table_size(table: OpenTable, time_column: str | None) -> TableSize:
    """Return a table's size from its log; `time_column` is the column of the newest time."""
    files = table.get_add_actions(flatten=True)
    size_bytes = sum(files["size_bytes"].to_pylist())
    needed = ["num_records", *([f"max.{time_column}"] if time_column else [])]
    if next(iter(table.deletion_vectors()), None) is None and set(needed) <= set(files.column_names):
        counts, *times = (files[name].cast(DataType.string()).to_pylist() for name in needed)
        if not any(None in values for values in (counts, *times)):
            newest_at = max((time for values in times for time in values), default=None)
            return TableSize(files.num_rows, size_bytes, sum(map(int, counts)), newest_at)
    return TableSize(files.num_rows, size_bytes, None, None)


@dataclass(frozen=True)
class Commit:
    """A version of a table, with the time of the last batch that wrote it (ms; 0: not recently), its size, and the
    columns of its contract that it lacks."""

    version: int
    written_at_ms: int
    size_bytes: int = 0
    lacking: tuple[str, ...] = ()


def newest_commit(config: Config, name: str) -> Commit | None:
    """Return a table's newest commit; None if there is no table. Raises one of `READ_ERRORS` if it cannot be read."""
    try:
        table = DeltaTable(config.table_path(name), storage_options=config.storage_options())
    except TableNotFoundError:
        return None
    contract, there = contracts.tables()[name], _columns(table)
    # Unlike OPTIMIZE, VACUUM, redecode and retention. Redecode also merges, but not into history tables.
    by_batches = {"STREAMING UPDATE", "WRITE"} | ({"MERGE"} if contract.partition_by else set())
    history = table.history(_COMMITS_SEARCHED)
    return Commit(
        table.version(),
        max((one["timestamp"] for one in history if one.get("operation") in by_batches), default=0),
        sum(table.get_add_actions()["size_bytes"].to_pylist()),
        tuple(column.name for column in contract.columns if column.name not in there),
    )


def store_fault(location: str, options: Mapping[str, str]) -> str | None:
    """Return why a location cannot be read, in one line; None if it can, or delta-rs does not support it."""
    if not object_stores.is_known(location):
        return None
    try:
        DeltaTable.is_deltatable(location, {**_FIRST_TRY, **options})
    except READ_ERRORS as error:
        return _store_reason(str(error))
    return None


def _store_reason(message: str) -> str:
    """Return the innermost reason of an error of delta-rs's object store, or the store's own message."""
    plain = re.sub(r"\x1b\[[\d;]*m", "", message)
    said = re.search(r"<Message>(.*?)</Message>", plain, re.DOTALL)
    if said:
        return said[1].strip().rstrip(".")
    lines = [line.strip(" ↳") for line in plain.splitlines() if line.strip()]
    return lines[-1][:200].rstrip(".:? ") if lines else "no reason given"


def one_line(message: str) -> str:
    """Return DataFusion's message in one line, without prefixes and lists of all valid names."""
    message = re.sub(r"\x1b\[[\d;]*m", "", message).split("Valid fields are")[0].split("Column names are case")[0]
    parser = re.search(r'ParserError\("(.*)"\)', message)
    text = parser[1] if parser else message
    text = re.sub(r"^((Error during planning|Schema error|External error|Arrow error|Internal error): )+", "", text)
    lines = [line.strip(" ↳") for line in text.splitlines() if line.strip()]
    return " ".join(lines)[:300].rstrip(".:? ") or "no reason given"


def _moved_on(table: OpenTable) -> bool:
    """Update a table; return whether it has a new version."""
    version = table.version()
    try:
        table.update_incremental()
    except READ_ERRORS:
        return False
    return table.version() > version


def _columns(table: OpenTable) -> set[str]:
    return {field.name for field in table.schema().fields}


def _plain(type_: pa.DataType) -> pa.DataType:
    return pa.string() if type_ == pa.string_view() else type_
