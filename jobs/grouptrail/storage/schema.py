"""Arrow schemas of the contracts' tables, types of their columns, and record batches grouped by size."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache

import pyarrow as pa

from grouptrail import contracts

SEGMENTS = "segments"
"""The `source` of rows that were read from log segments."""
ADMIN = "admin"
"""The `source` of rows that were polled from the brokers."""

_PRIMITIVES = {
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


@cache
def table_schema(name: str, *, without: tuple[str, ...] = ()) -> pa.Schema:
    """Return a table's columns in the contract's order, as `contracts.Table.ddl` does for Spark."""
    columns = (column for column in contracts.tables()[name].columns if column.name not in without)
    return pa.schema([pa.field(column.name, arrow_type(column.type)) for column in columns])


def columns_of(table: str, names: Iterable[str]) -> pa.Schema:
    """Return some columns of a table, in this order."""
    schema = table_schema(table)
    return pa.schema([schema.field(name) for name in names])


def arrow_type(ddl: str) -> pa.DataType:
    """Return the Arrow type of a column type in Spark's DDL, as the contracts write it."""
    if ddl in _PRIMITIVES:
        return _PRIMITIVES[ddl]
    outer = re.fullmatch(r"(array|struct)<(.*)>", ddl)
    if outer is None:
        raise ValueError(f"schemas/tables: no such type: {ddl}")
    if outer[1] == "array":
        return pa.list_(arrow_type(outer[2]))
    return pa.struct([pa.field(name, arrow_type(type_)) for name, type_ in struct_fields(outer[2])])


def struct_fields(inner: str) -> Iterator[tuple[str, str]]:
    """Yield the names and types of the fields between the brackets of a struct in Spark's DDL."""
    for part in _top_level(inner):
        name, type_ = part.split(":", 1)
        yield name.strip(), type_.strip()


def ddl_schema(ddl: str) -> pa.Schema:
    """Return the Arrow schema of columns in Spark's DDL, all of them of plain types: `at timestamp, name string`."""
    return pa.schema([(name, arrow_type(type_)) for name, type_ in map(str.split, ddl.split(", "))])


def column_type(type_: pa.DataType) -> str:
    """Return how the contracts write an Arrow type, or Arrow's own name for one that no table has."""
    named = {arrow: ddl for ddl, arrow in _PRIMITIVES.items()}
    if pa.types.is_list(type_):
        return f"array<{column_type(type_.value_type)}>"
    if pa.types.is_struct(type_):
        return f"struct<{','.join(f'{field.name}:{column_type(field.type)}' for field in type_)}>"
    return "timestamp" if pa.types.is_timestamp(type_) else named.get(type_, str(type_))


def _top_level(inner: str) -> list[str]:
    """Split struct fields at the commas outside angle brackets."""
    parts, depth = [""], 0
    for char in inner:
        depth += (char == "<") - (char == ">")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def compact(schema: pa.Schema) -> pa.Schema:
    """Return a schema with numbers (dictionary codes) for its texts: many rows take a fraction of the memory."""
    texts = pa.dictionary(pa.int32(), pa.string())
    return pa.schema([pa.field(one.name, texts) if pa.types.is_string(one.type) else one for one in schema])


def gathered(
    batches: Iterable[pa.RecordBatch], *, rows: int, size: float = float("inf")
) -> Iterator[list[pa.RecordBatch]]:
    """Group batches, at least `rows` rows or `size` bytes at a time, so that fixed costs per group do not matter."""
    waiting: list[pa.RecordBatch] = []
    rows_waiting = bytes_waiting = 0
    for batch in batches:
        waiting.append(batch)
        rows_waiting += len(batch)
        bytes_waiting += batch.nbytes
        if rows_waiting >= rows or bytes_waiting >= size:
            yield waiting
            waiting, rows_waiting, bytes_waiting = [], 0, 0
    if rows_waiting:
        yield waiting
