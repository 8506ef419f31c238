"""A Delta table's files, written from Arrow where the rows are: in Spark's Python workers, or on the driver.

Spark would take the rows out of Arrow one at a time and put them into columns again, at several times the cost of
Arrow's own writer (docs/adr/0011-arrow-writes-files.md). Files belong to the table once an engine has committed them.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from grouptrail import contracts
from grouptrail.memory import release_memory
from grouptrail.storage.location import TableLocation
from grouptrail.storage.schema import gathered, table_schema
from grouptrail.storage.table_log import table_folder

RowsFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""A function for `DataFrame.mapInArrow`."""

ADDED = "added string"
"""The output of tasks that write files, in Spark's DDL: Delta's `add` action of each file, as JSON."""

_ROWS_A_GROUP = 1 << 18

# Delta keeps as many characters of a string's bounds, and this character sorts after all others.
_CHARACTERS = 32
_LAST_CHARACTER = "\U0010ffff"


def with_all_columns(rows: pa.Table, location: TableLocation, *, keep_codes: bool = False) -> pa.Table:
    """Return rows with all of the table's columns in the contract's order; missing ones are shared values or null.

    `keep_codes`: texts with dictionary codes keep them.
    """
    columns, shared = [], location.new_values
    for column, field in zip(location.contract.columns, table_schema(location.name), strict=True):
        if column.name in rows.column_names:
            given = rows[column.name]
            is_kept = keep_codes and given.type == pa.dictionary(pa.int32(), field.type)
            columns.append(given if is_kept else given.cast(field.type))
        elif column.name in shared or column.null_means is not None:
            columns.append(pa.repeat(pa.scalar(shared.get(column.name), field.type), len(rows)))
        else:
            raise ValueError(f"rows of {location.name} lack {column.name}")
    return pa.Table.from_arrays(columns, names=table_schema(location.name).names)


def write(rows: Iterable[pa.RecordBatch], location: TableLocation) -> Iterator[str]:
    """Write rows to a file of a table and yield Delta's `add` action of it; no rows make no file.

    The rows' columns may be in any order; a missing column that may be null is null.
    """
    groups = (
        with_all_columns(pa.Table.from_batches(group), location, keep_codes=True)
        for group in gathered(rows, rows=_ROWS_A_GROUP)
    )
    if (first := next(groups, None)) is not None:
        yield write_file(chain([first], groups), first.schema, location)


def write_file(
    groups: Iterable[pa.Table], schema: pa.Schema, location: TableLocation, *, prefix: str = "part"
) -> str:
    """Write tables of one schema, each as a row group, to a file of a table; return Delta's `add` action of it."""
    name = f"{prefix}-{uuid.uuid4()}.zstd.parquet"
    collected: list[pq.FileMetaData] = []
    with table_folder(location.path, location.options).open_output_stream(name) as sink:
        with _writer(sink, schema, collected) as writer:
            for group in groups:
                writer.write_table(group, row_group_size=len(group))
        size = sink.tell()
    [metadata] = collected
    added = {
        "path": name,
        "partitionValues": {},
        "size": size,
        "modificationTime": int(time.time() * 1000),
        "dataChange": True,
        "stats": json.dumps(statistics(metadata, location.name)),
    }
    return json.dumps({"add": added})


def _writer(sink: pa.NativeFile, schema: pa.Schema, collected: list[pq.FileMetaData]) -> pq.ParquetWriter:
    # Offsets and times hardly repeat, so a dictionary does not help, but their differences are small.
    types = dict(zip(schema.names, schema.types, strict=True))
    differing = [name for name, of in types.items() if pa.types.is_int64(of) or pa.types.is_timestamp(of)]
    return pq.ParquetWriter(
        sink,
        schema,
        compression="zstd",
        use_dictionary=[name for name in types if name not in differing],
        column_encoding=dict.fromkeys(differing, "DELTA_BINARY_PACKED"),
        store_schema=False,
        write_page_checksum=True,
        metadata_collector=collected,
    )


def writing(rows: RowsFunction, location: TableLocation) -> RowsFunction:
    """Return a function for `DataFrame.mapInArrow` that writes the output of `rows` to a file and yields `ADDED`."""

    def added(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        started = time.monotonic()
        for one in write(rows(batches), location):
            yield pa.RecordBatch.from_pydict({"added": [one]})
        # The worker is kept for a minute, in case that there is another task.
        release_memory(after_seconds=time.monotonic() - started)

    return added


def statistics(metadata: pq.FileMetaData, table: str) -> dict[str, Any]:
    """Return Delta's statistics of a file from those in its footer.

    They have the number of rows, and nulls and bounds of the contract's columns with `stats`. Strings are cut and
    times widened to milliseconds, so that every value stays within the bounds.
    """
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
    """Return an upper bound; None if there is no short one."""
    if isinstance(value, str) and len(value) > _CHARACTERS:
        return None if value[_CHARACTERS] == _LAST_CHARACTER else value[:_CHARACTERS] + _LAST_CHARACTER
    if isinstance(value, datetime):
        return _text(value + timedelta(microseconds=-value.microsecond % 1000))
    return value


def _text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
