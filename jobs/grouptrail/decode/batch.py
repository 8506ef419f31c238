"""Arrow batches of records in, Arrow batches of decoded rows out: what Spark's Python workers run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from grouptrail.decode.commits import decode_commits
from grouptrail.decode.rows import decode_row
from grouptrail.decode.schema import COMMITS, RARE_TABLES, RECORD_COLUMNS, decoded


def decode_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For `DataFrame.mapInArrow`.

    In: record_partition int, record_offset bigint, record_at timestamp, key binary, value binary. Out: one row a
    record, in the form of `schema.decoded()`. Never raises over a record.
    """
    for batch in batches:
        if batch.num_rows:
            yield from _decode(batch)


def _decode(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    key, value = batch.column("key"), batch.column("value")
    plain, commits = decode_commits(key, value)
    record = [batch.column(name) for name in RECORD_COLUMNS]
    if plain.all():
        yield _landing(record, commits)
        return
    if len(commits):
        yield _landing([column.filter(pa.array(plain)) for column in record], commits)
    rest = pa.array(np.flatnonzero(~plain))
    yield _interpret([column.take(rest) for column in record], key.take(rest), value.take(rest))


def _landing(record: list[pa.Array], commits: pa.RecordBatch) -> pa.RecordBatch:
    count = len(commits)
    columns = [
        *record,
        pa.repeat(COMMITS, count),
        *commits.columns,
        *(pa.nulls(count, decoded().field(table).type) for table in RARE_TABLES),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=decoded())


def _interpret(record: list[pa.Array], keys: pa.Array, values: pa.Array) -> pa.RecordBatch:
    rows: list[dict[str, Any]] = []
    for key, value in zip(keys.to_pylist(), values.to_pylist(), strict=True):
        table, row = decode_row(key, value)
        rows.append({"landing_table": table, **(row if table == COMMITS else {table: row})})
    own = pa.schema(list(decoded())[len(record) :])
    landed = pa.RecordBatch.from_pylist(rows, schema=own)
    return pa.RecordBatch.from_arrays([*record, *landed.columns], schema=decoded())
