"""Open the Delta tables with delta-rs, for SQL and for what their logs say, without a JVM or pyarrow."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from arro3.core import DataType
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from grouptrail.locations import is_uri, with_locations_shown
from grouptrail.storage.errors import UnreadableTableError
from grouptrail.storage.location import TableLocation

OpenTable = DeltaTable
"""A table at one version."""

READ_ERRORS = (DeltaError, OSError, ValueError)
"""Exceptions of delta-rs if a table cannot be read, or a query is wrong."""

CLUSTERING = "clustering"
"""The writer feature of tables with liquid clustering."""
REARRANGES = "grouptrail.rearranges"
"""Set in the information about a commit that writes rows anew without changing them."""

_COMMITS_SEARCHED = 20
_FIRST_TRY = {"max_retries": "1", "retry_timeout": "10s", "timeout": "10s", "connect_timeout": "5s"}


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Raise DeltaError for a panic in delta-rs, which would end the thread: its class is no Exception."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise DeltaError(str(error)) from error


def existing_table(table: TableLocation, version: int | None = None) -> OpenTable:
    """Open a table that exists, by default its newest version. Raises one of `READ_ERRORS`."""
    hint = Path(table.path, "_delta_log", "_last_checkpoint")
    if not is_uri(table.path) and hint.exists() and not hint.is_file():
        raise OSError(f"{hint} is no regular file")  # to open a pipe takes until somebody writes to it
    with panics_as_errors():
        there = DeltaTable(table.path, version=version, storage_options=dict(table.options))
    if "deletionVectors" in (there.protocol().writer_features or ()) and not is_uri(table.path):
        for vectors in Path(table.path).rglob("deletion_vector_*.bin"):
            if not vectors.is_file():
                raise OSError(f"{vectors} is no regular file")
    return there


def open_table(table: TableLocation, version: int | None = None) -> OpenTable | None:
    """Open a table, by default its newest version; None if there is none. Raises UnreadableTableError."""
    try:
        return existing_table(table, version)
    except TableNotFoundError:
        return None
    except READ_ERRORS as error:
        raise UnreadableTableError(table.shown, one_line(str(error))) from error


def by_file(table: OpenTable, column: str) -> dict[str, Any]:
    """Return a column of delta-rs's `get_add_actions` by the files' paths; None for each if no file has it."""
    files = table.get_add_actions()
    values = files[column].to_pylist() if column in files.column_names else [None] * files.num_rows
    return dict(zip(files["path"].to_pylist(), values, strict=True))


def is_clustered(table: OpenTable) -> bool:
    """Return whether a table has liquid clustering, as version 0.1 made it: delta-rs does not commit to it."""
    return CLUSTERING in (table.protocol().writer_features or ())


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


def pruned_files(table: OpenTable, where: str) -> int:
    """Return how many of a table's files may have rows that match an SQL condition, by their statistics."""
    return len(table.file_uris(file_pruning_predicate=where))


@dataclass(frozen=True)
class Commit:
    """A version of a table, with the time of the last batch that wrote it (ms; 0: not recently), its size, the
    columns of its contract that it lacks, and its rows by the files' statistics (None: a file has none)."""

    version: int
    written_at_ms: int
    size_bytes: int = 0
    lacking: tuple[str, ...] = ()
    rows: int | None = None


def newest_commit(location: TableLocation) -> Commit | None:
    """Return a table's newest commit; None if there is no table. Raises one of `READ_ERRORS` if it cannot be read."""
    try:
        table = existing_table(location)
    except TableNotFoundError:
        return None
    contract, there = location.contract, column_names(table)
    # Unlike OPTIMIZE, VACUUM, redecode and retention. Redecode also merges, but not into history tables.
    by_batches = {"STREAMING UPDATE", "WRITE"} | ({"MERGE"} if contract.partition_by else set())
    history = [one for one in table.history(_COMMITS_SEARCHED) if not one.get(REARRANGES)]
    files = table.get_add_actions()
    counts = files["num_records"].to_pylist() if "num_records" in files.column_names else [None]
    return Commit(
        table.version(),
        max((one["timestamp"] for one in history if one.get("operation") in by_batches), default=0),
        sum(files["size_bytes"].to_pylist()),
        tuple(column.name for column in contract.columns if column.name not in there),
        None if None in counts else sum(counts),
    )


_SCHEMES = ("", "file", "s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl")


def supports(location: str) -> bool:
    """Return whether delta-rs supports the store of a location."""
    return urlsplit(location).scheme in _SCHEMES


def store_fault(location: str, options: Mapping[str, str]) -> str | None:
    """Return why a location cannot be read, in one line; None if it can, or delta-rs does not support it."""
    if not supports(location):
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
        return with_locations_shown(said[1].strip().rstrip("."))
    lines = [line.strip(" ↳") for line in plain.splitlines() if line.strip()]
    return with_locations_shown(lines[-1])[:200].rstrip(".:? ") if lines else "no reason given"


_BACKTRACE = re.compile(r"\s*(\d+: |at \S+:\d+)")


def one_line(message: str) -> str:
    """Return DataFusion's message in one line, without prefixes and lists of all valid names."""
    message = re.sub(r"\x1b\[[\d;]*m", "", message).split("Valid fields are")[0].split("Column names are case")[0]
    parser = re.search(r'ParserError\("(.*)"\)', message)
    text = parser[1] if parser else message
    text = re.sub(r"^((Error during planning|Schema error|External error|Arrow error|Internal error): )+", "", text)
    lines = [line.strip(" ↳") for line in text.splitlines() if line.strip() and not _BACKTRACE.match(line)]
    return with_locations_shown(" ".join(lines))[:300].rstrip(".:? ") or "no reason given"


def column_names(table: OpenTable) -> set[str]:
    """Return the names of a table's columns."""
    return {field.name for field in table.schema().fields}
