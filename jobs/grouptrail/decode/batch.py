"""Decode Arrow batches of records into Arrow batches of rows, one for each table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.decode.commits import decode_commits
from grouptrail.decode.rows import decode_row
from grouptrail.decode.schema import COMMITS, RECORD_COLUMNS, own_columns, row_schema
from grouptrail.storage.schema import gathered

_ENOUGH_ROWS = 1 << 15
_ENOUGH_BYTES = 16 << 20


def decode_batches(
    batches: Iterable[pa.RecordBatch], max_record_bytes: int | None = None
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Decode every record of the batches into a row of exactly one table; no record raises an error.

    A record whose key or value has more than `max_record_bytes` becomes a row of `undecodable_records`.

    In: batches of `RECORD_SCHEMA`. Out: a table's name and rows of it, with the columns of
    `schema.row_schema(table)`.
    """
    for enough in gathered(batches, rows=_ENOUGH_ROWS, size=_ENOUGH_BYTES):
        yield from _decode(pa.concat_batches(enough), max_record_bytes)


def _decode(batch: pa.RecordBatch, max_record_bytes: int | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    plain, commits = decode_commits(batch.column("key"), batch.column("value"))
    if plain.all():
        yield COMMITS, _with_records(COMMITS, batch, commits)
        return
    if len(commits):
        yield COMMITS, _with_records(COMMITS, batch.filter(pa.array(plain)), commits)
    others = batch.take(pa.array(np.flatnonzero(~plain)))
    for start, end in _parts(others):
        yield from _decode_one_by_one(others.slice(start, end - start), max_record_bytes)


def _parts(batch: pa.RecordBatch) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows with few bytes each: decoded by the interpreter, they take thirty times their size."""
    lengths = (pc.fill_null(pc.binary_length(batch.column(name)), 0) for name in ("key", "value"))
    ends = np.cumsum(np.sum([length.to_numpy(zero_copy_only=False) for length in lengths], axis=0, dtype=np.int64))
    start = 0
    while start < len(ends):
        before = ends[start - 1] if start else 0
        end = max(start + 1, int(np.searchsorted(ends, before + _ENOUGH_BYTES, side="right")))
        yield start, end
        start = end


def _decode_one_by_one(batch: pa.RecordBatch, max_record_bytes: int | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    keys, values = batch.column("key").to_pylist(), batch.column("value").to_pylist()
    by_table: dict[str, tuple[list[int], list[dict[str, Any]]]] = {}
    for index, (key, value) in enumerate(zip(keys, values, strict=True)):
        table, row = decode_row(key, value, max_record_bytes)
        indices, rows = by_table.setdefault(table, ([], []))
        indices.append(index)
        rows.append(row)
    for table, (indices, rows) in by_table.items():
        own = pa.RecordBatch.from_pylist(rows, schema=own_columns(table))
        yield table, _with_records(table, batch.take(pa.array(indices)), own)


def _with_records(table: str, batch: pa.RecordBatch, own: pa.RecordBatch) -> pa.RecordBatch:
    schema = row_schema(table)
    columns = [(batch if name in RECORD_COLUMNS else own).column(name) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
