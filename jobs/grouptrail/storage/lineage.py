"""Up to which version of another table, its source, rows were made: so much need not be read again after a start.

A table's log notes it for each cluster (Delta's protocol: "Transaction Identifiers"), a file in its own metadata.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from grouptrail.locations import is_uri
from grouptrail.storage.location import TableLocation
from grouptrail.storage.reader import READ_ERRORS, OpenTable, existing_table, table_id
from grouptrail.storage.table_log import table_folder, transaction

_FILE_ERRORS = (*READ_ERRORS, KeyError, pa.ArrowException)
_KEEP_EVERY_SECONDS = 60
_ID, _VERSION = b"grouptrail.table_id", b"grouptrail.version"


class SourceVersion(NamedTuple):
    """A version of the source, which has the same id as long as it is not created again."""

    table_id: str
    version: int


def noted(sources: Iterable[SourceVersion], cluster: str) -> list[str]:
    """Return Delta's actions, as JSON, that note of what a cluster's rows were made, to be committed with them.

    Of several sources the oldest is noted; none if they are not of the same table.
    """
    oldest, *others = sorted(sources)
    if any(other.table_id != oldest.table_id for other in others):
        return []
    return [transaction(_app(oldest.table_id, cluster), oldest.version)]


def with_source(table: TableLocation, source: TableLocation) -> tuple[OpenTable, OpenTable] | None:
    """Return a table, and its source as it was when the cluster's rows were made of it.

    None if that is not known, or no longer in the source's log.
    """
    try:
        made, newest = (existing_table(one) for one in (table, source))
        version = made.transaction_version(_app(table_id(newest), table.cluster))
        if version is None or not 0 <= version <= newest.version():
            return None
        return made, existing_table(source, version)
    except READ_ERRORS:
        return None


class SavedRows:
    """Rows made of a table, with some columns, saved in a folder (`options`: delta-rs's of its store).

    They only save time: what cannot be written, or read, is made anew.
    """

    def __init__(self, folder: str, options: Mapping[str, str], table: str, columns: pa.Schema) -> None:
        self._columns = columns
        self._folder = folder
        self._file = f"{table}.parquet"
        self._options = options
        self._kept: tuple[str, int] | None = None
        self._kept_at = -math.inf

    def read(self, *, of: OpenTable) -> tuple[pa.Table, int] | None:
        """Return the rows and the version of the table that they were made of; None if there are none of it."""
        with suppress(*_FILE_ERRORS):
            rows = pq.read_table(self._file, filesystem=table_folder(self._folder, self._options))
            noted = rows.schema.metadata or {}
            id_, version = noted[_ID].decode(), int(noted[_VERSION])
            if id_ == table_id(of) and version <= of.version() and rows.schema.equals(self._columns):
                self._kept = id_, version
                return rows.replace_schema_metadata(None), version
        return None

    def keep(self, rows: pa.Table, *, of: OpenTable) -> None:
        """Do `write` once a minute, if the table has changed."""
        version, now = (table_id(of), of.version()), time.monotonic()
        if version != self._kept and now - self._kept_at >= _KEEP_EVERY_SECONDS:
            self._kept, self._kept_at = version, now
            self.write(rows, of=of)

    def write(self, rows: pa.Table, *, of: OpenTable) -> None:
        """Replace the rows by those made of the table as it is."""
        noted = rows.replace_schema_metadata({_ID: table_id(of), _VERSION: str(of.version())})
        with suppress(*_FILE_ERRORS):
            if not is_uri(self._folder):
                Path(self._folder).mkdir(parents=True, exist_ok=True)
            pq.write_table(noted, self._file, filesystem=table_folder(self._folder, self._options))


def _app(source_id: str, cluster: str) -> str:
    return f"{source_id}-{cluster}"
