"""Arrow schemas of the decoded tables, and of the rows that travel from the Python workers to Delta."""

from __future__ import annotations

import re
from functools import cache

import pyarrow as pa

from grouptrail import contracts

COMMITS = "offset_commits"
RARE_TABLES = ("group_metadata", "group_records", "undecodable_records")
TABLES = (COMMITS, *RARE_TABLES)
RECORD_COLUMNS = ("record_partition", "record_offset", "record_at")

_PRIMITIVES = {
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


def arrow_type(ddl: str) -> pa.DataType:
    """The Arrow type of a column type in Spark's DDL, as the contracts write it."""
    if ddl in _PRIMITIVES:
        return _PRIMITIVES[ddl]
    outer = re.fullmatch(r"(array|struct)<(.*)>", ddl)
    if outer is None:
        raise ValueError(f"schemas/tables: no such type: {ddl}")
    if outer[1] == "array":
        return pa.list_(arrow_type(outer[2]))
    named = (part.split(":", 1) for part in _top_level(outer[2]))
    return pa.struct([pa.field(name.strip(), arrow_type(type_.strip())) for name, type_ in named])


def _top_level(inner: str) -> list[str]:
    """Splits struct fields at the commas that stand in no angle brackets."""
    parts, depth = [""], 0
    for char in inner:
        depth += (char == "<") - (char == ">")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return parts


@cache
def own_columns(table: str) -> pa.Schema:
    """A table's columns without the ones that every decoded row shares."""
    shared = ("cluster", *RECORD_COLUMNS)
    columns = (column for column in contracts.tables()[table].columns if column.name not in shared)
    return pa.schema([pa.field(column.name, arrow_type(column.type)) for column in columns])


@cache
def decoded() -> pa.Schema:
    """What a Python worker gives back for a record: where it came from, which table it belongs to, the columns of
    `offset_commits` (nearly all rows), and one struct for each rare table, null in rows of the others."""
    shared = {column.name: column for column in contracts.tables()[COMMITS].columns}
    return pa.schema(
        [
            *(pa.field(name, arrow_type(shared[name].type)) for name in RECORD_COLUMNS),
            pa.field("landing_table", pa.string()),
            *own_columns(COMMITS),
            *(pa.field(table, pa.struct(list(own_columns(table)))) for table in RARE_TABLES),
        ]
    )


@cache
def decoded_ddl() -> str:
    """`decoded()` as Spark's DDL."""
    tables = contracts.tables()
    shared = ("cluster", *RECORD_COLUMNS)
    record = [column for column in tables[COMMITS].columns if column.name in RECORD_COLUMNS]
    return ", ".join(
        [
            *(f"{column.name} {column.type}" for column in record),
            "landing_table string",
            tables[COMMITS].ddl(without=shared),
            *(f"{table} struct<{_struct_ddl(table, shared)}>" for table in RARE_TABLES),
        ]
    )


def _struct_ddl(table: str, without: tuple[str, ...]) -> str:
    columns = (column for column in contracts.tables()[table].columns if column.name not in without)
    return ", ".join(f"{column.name}: {column.type}" for column in columns)
