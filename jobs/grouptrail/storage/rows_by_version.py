"""The rows appended to a table, by version: from the memory of the process that appends, or from the table's log."""

from __future__ import annotations

import threading
from collections import defaultdict

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow.fs import FileType

from grouptrail.storage.damage import OUTSIDE, damage_error, is_outside
from grouptrail.storage.files import with_all_columns
from grouptrail.storage.location import TableLocation
from grouptrail.storage.rows import own_rows
from grouptrail.storage.schema import table_schema
from grouptrail.storage.table_log import log_file, read_commit, table_folder

_readers: defaultdict[str, set[RowsByVersion]] = defaultdict(set)


def note(location: TableLocation, version: int, rows: pa.Table) -> None:
    """Pass rows that this process has appended to a table, as that version, to those that read it."""
    for reader in tuple(_readers[location.path]):
        reader.note(version, with_all_columns(rows, location))


class RowsByVersion:
    """A cluster's rows that are appended to a table, by version; used as a context.

    Versions that delete or rewrite rows have none, as with Delta's `skipChangeCommits`. At most `kept` versions are
    in memory; others, and those of other processes, are read from the table's log and files.
    """

    def __init__(self, table: TableLocation, *, kept: int) -> None:
        self._path = table.path
        self._files = table_folder(table.path, table.options)
        self._schema = table_schema(table.name)
        self._ours = own_rows(table.cluster)
        self._kept = kept
        self._rows: dict[int, pa.Table] = {}
        self._next = 0
        self.news = threading.Event()
        """Set when this process has appended rows."""

    def __enter__(self) -> RowsByVersion:
        _readers[self._path].add(self)
        return self

    def __exit__(self, *_: object) -> None:
        _readers[self._path].discard(self)

    def note(self, version: int, rows: pa.Table) -> None:
        """Keep the rows of a version for `rows`, unless it has been read from the log already."""
        if version < self._next:
            return
        self._rows[version] = rows
        if len(self._rows) > self._kept:
            self._rows.pop(min(self._rows), None)
        self.news.set()

    def rows(self, version: int) -> pa.Table | None:
        """Return the rows of a version; None if it does not exist yet. Ask for each once, in order."""
        if (rows := self._rows.pop(version, None)) is not None:
            self._next = version + 1
            return rows.filter(self._ours)
        if not self.has(version):
            return None
        self._next = version + 1
        added = ds.dataset(self._added(version), self._schema, format="parquet", filesystem=self._files)
        return added.to_table(filter=self._ours, use_threads=False)

    def has(self, version: int) -> bool:
        """Return whether the log has this version: it does not yet, or not any more."""
        return bool(self._files.get_file_info(log_file(version)).type != FileType.NotFound)

    def _added(self, version: int) -> list[str]:
        commit = read_commit(self._files, version)
        added = [] if any(commit.removed.values()) else [path for path, is_new in commit.added.items() if is_new]
        if outside := [path for path in added if is_outside(path)]:
            raise damage_error(self._path, {outside[0]: OUTSIDE})
        return added
