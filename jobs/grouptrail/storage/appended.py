"""New rows of a Delta table, read by delta-rs: to follow a table without a Spark job."""

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
    """New rows of a table: each file is read once; rows of a file that OPTIMIZE has rewritten come again.

    `columns` are read of the rows that match `among`; `storage` are delta-rs's storage options of the table.
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
        """Yield the rows that were added since the last call, about a million at a time."""
        self._table.update_incremental()
        if self._table.version() == self._version:
            return
        there = set(self._table.get_add_actions()["path"].to_pylist())
        yield from rows_of_files(self._table, sorted(there - self._read), self._columns, self._among, self._storage)
        self._read, self._version = there, self._table.version()


def rows_of_files(
    table: DeltaTable, files: list[str], columns: pa.Schema, among: ds.Expression, storage: Mapping[str, str]
) -> Iterator[pa.Table]:
    """Yield the rows of some of a table's files, about a million at a time.

    Files are many and small, and processing one costs as much as processing a thousand.
    """
    if not files:
        return
    source = PyFileSystem(DeltaStorageHandler(table.table_uri, dict(storage)))
    batches = ds.dataset(files, columns, format="parquet", filesystem=source).to_batches(filter=among)
    yield from map(pa.Table.from_batches, gathered(batches, rows=_ROWS_AT_A_TIME))
