"""Arrow schemas of the decoded tables, from their contracts."""

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
    """A table's columns without the ones that say which record a row is."""
    shared = ("cluster", *RECORD_COLUMNS)
    return pa.schema([field for field in row_schema(table) if field.name not in shared])


@cache
def row_schema(table: str) -> pa.Schema:
    """A decoded table's columns but `cluster`, which a decoder cannot know."""
    columns = (column for column in contracts.tables()[table].columns if column.name != "cluster")
    return pa.schema([pa.field(column.name, arrow_type(column.type)) for column in columns])


def row_ddl(table: str) -> str:
    """`row_schema` as Spark's DDL."""
    return contracts.tables()[table].ddl(without=("cluster",))
