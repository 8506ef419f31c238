"""The rows that a Delta table gains, read by delta-rs: for a driver that follows a table without a Spark job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import PyFileSystem

from grouptrail.storage.schema import gathered

_ROWS_AT_A_TIME = 1_000_000


class AppendedRows:
    """Rows of a table, each file's once; those of a file that OPTIMIZE has written anew come once more.

    `columns` are read, `among` says of which rows; `storage` has delta-rs's options for where the table lies.
    """

    def __init__(
        self, table: str, columns: pa.Schema, among: ds.Expression, storage: Mapping[str, str] | None = None
    ) -> None:
        self._storage = dict(storage or {})
        self._table = DeltaTable(table, storage_options=self._storage)
        self._columns = columns
        self._among = among
        self._read: set[str] = set()
        self._version = -1

    def fresh(self) -> Iterator[pa.Table]:
        """What has come since the last call, about a million rows at a time."""
        self._table.update_incremental()
        if self._table.version() == self._version:
            return
        there = set(self._table.get_add_actions()["path"].to_pylist())
        yield from rows_of_files(self._table, sorted(there - self._read), self._columns, self._among, self._storage)
        self._read, self._version = there, self._table.version()


def rows_of_files(
    table: DeltaTable, files: list[str], columns: pa.Schema, among: ds.Expression, storage: Mapping[str, str]
) -> Iterator[pa.Table]:
    """Rows of some of a table's files, about a million at a time: files are many and small, and to fold one costs as
    much as to fold a thousand."""
    if not files:
        return
    source = PyFileSystem(DeltaStorageHandler(table.table_uri, dict(storage)))
    batches = ds.dataset(files, columns, format="parquet", filesystem=source).to_batches(filter=among)
    yield from map(pa.Table.from_batches, gathered(batches, rows=_ROWS_AT_A_TIME))
