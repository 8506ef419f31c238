"""Arrow schemas of the decoded tables, from their contracts."""

from __future__ import annotations

from functools import cache

import pyarrow as pa

from grouptrail import contracts
from grouptrail.arrow import arrow_type

COMMITS = "offset_commits"
RARE_TABLES = ("group_metadata", "group_records", "undecodable_records")
TABLES = (COMMITS, *RARE_TABLES)
RECORD_COLUMNS = ("record_partition", "record_offset", "record_at")


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
