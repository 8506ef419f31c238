"""A Delta table's files, written from Arrow where the rows are: in Spark's Python workers, or on the driver.

Spark would take the rows out of Arrow one at a time, and puts them into columns again at several times the cost of
Arrow's own writer (docs/adr/0011-arrow-writes-files.md). What is written belongs to the table once `tables` has
committed it.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import PyFileSystem

from grouptrail import contracts
from grouptrail.storage.schema import gathered, table_schema

Rows = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""What `DataFrame.mapInArrow` takes."""

ADDED = "added string"
"""What tasks give that write files, in Spark's DDL: Delta's `add` action of each, as JSON."""

_ROWS_A_GROUP = 1 << 18

# As many characters of a text as Delta itself keeps, and what is behind every one.
_CHARACTERS = 32
_LAST_CHARACTER = "\U0010ffff"


@dataclass(frozen=True)
class Place:
    """Where a table lies, with delta-rs's options for it, secrets in clear; `same` is what all its new rows share."""

    table: str
    path: str
    options: Mapping[str, str]
    same: Mapping[str, str | None]


def whole(rows: pa.Table, place: Place) -> pa.Table:
    """The table's columns in the contract's order."""
    columns = []
    for column, field in zip(contracts.tables()[place.table].columns, table_schema(place.table), strict=True):
        if column.name in rows.column_names:
            columns.append(rows[column.name].cast(field.type))
        elif column.name in place.same or column.null_means is not None:
            columns.append(pa.repeat(pa.scalar(place.same.get(column.name), field.type), len(rows)))
        else:
            raise ValueError(f"rows of {place.table} lack {column.name}")
    return pa.Table.from_arrays(columns, schema=table_schema(place.table))


def write(rows: Iterable[pa.RecordBatch], place: Place) -> Iterator[str]:
    """Writes rows, in any order of columns, to a file of a table, and gives Delta's `add` action of it; where there
    are no rows there is no file. What they lack of the table's columns, and may be null, is null."""
    groups = (whole(pa.Table.from_batches(group), place) for group in gathered(rows, rows=_ROWS_A_GROUP))
    first = next(groups, None)
    if first is None:
        return
    name = f"part-{uuid.uuid4()}.zstd.parquet"
    found: list[pq.FileMetaData] = []
    with PyFileSystem(DeltaStorageHandler(place.path, dict(place.options))).open_output_stream(name) as sink:
        with _writer(sink, first.schema, found) as writer:
            for group in chain([first], groups):
                writer.write_table(group, row_group_size=len(group))
        size = sink.tell()
    [metadata] = found
    added = {
        "path": name,
        "partitionValues": {},
        "size": size,
        "modificationTime": int(time.time() * 1000),
        "dataChange": True,
        "stats": json.dumps(statistics(metadata, place.table)),
    }
    yield json.dumps({"add": added})


def _writer(sink: pa.NativeFile, schema: pa.Schema, found: list[pq.FileMetaData]) -> pq.ParquetWriter:
    # Offsets and times hardly repeat: a dictionary of them takes time for nothing, and differences are small.
    types = dict(zip(schema.names, schema.types, strict=True))
    differing = [name for name, of in types.items() if pa.types.is_int64(of) or pa.types.is_timestamp(of)]
    return pq.ParquetWriter(
        sink,
        schema,
        compression="zstd",
        use_dictionary=[name for name in types if name not in differing],
        column_encoding=dict.fromkeys(differing, "DELTA_BINARY_PACKED"),
        store_schema=False,
        metadata_collector=found,
    )


def written(rows: Rows, place: Place) -> Rows:
    """For `DataFrame.mapInArrow`: what `rows` gives is written to a file; gives `ADDED`."""

    def added(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for one in write(rows(batches), place):
            yield pa.RecordBatch.from_pydict({"added": [one]})

    return added


def statistics(metadata: pq.FileMetaData, table: str) -> dict[str, Any]:
    """Delta's statistics of a file, from those in its footer: rows, and of the contract's columns with `stats` the
    nulls and bounds. Texts are cut and times widened to milliseconds, so that every value stays within."""
    wanted = {column.name for column in contracts.tables()[table].columns if column.stats}
    nulls: dict[str, int] = {}
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    for column in range(metadata.num_columns):
        name = metadata.schema.column(column).path
        if name not in wanted:
            continue
        groups = [metadata.row_group(group).column(column).statistics for group in range(metadata.num_row_groups)]
        nulls[name] = sum(group.null_count for group in groups)
        filled = [group for group in groups if group.has_min_max]
        if filled:
            least[name] = _at_least(min(group.min for group in filled))
            most[name] = _at_most(max(group.max for group in filled))
    known = {name: value for name, value in most.items() if value is not None}
    return {"numRecords": metadata.num_rows, "minValues": least, "maxValues": known, "nullCount": nulls}


def _at_least(value: Any) -> Any:
    if isinstance(value, str):
        return value[:_CHARACTERS]
    return _text(value) if isinstance(value, datetime) else value


def _at_most(value: Any) -> Any:
    """None where nothing short is."""
    if isinstance(value, str) and len(value) > _CHARACTERS:
        return None if value[_CHARACTERS] == _LAST_CHARACTER else value[:_CHARACTERS] + _LAST_CHARACTER
    if isinstance(value, datetime):
        return _text(value + timedelta(microseconds=-value.microsecond % 1000))
    return value


def _text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
