"""Arrow schemas of the decoded tables, from their contracts."""

from __future__ import annotations

from functools import cache

import pyarrow as pa

from grouptrail import contracts
from grouptrail.arrow import table_schema

COMMITS = "offset_commits"
RARE_TABLES = ("group_metadata", "group_records", "undecodable_records")
TABLES = (COMMITS, *RARE_TABLES)
RECORD_COLUMNS = ("record_partition", "record_offset", "record_at")


@cache
def own_columns(table: str) -> pa.Schema:
    """A table's columns without the ones that say which record a row is."""
    shared = ("cluster", *RECORD_COLUMNS)
    return pa.schema([field for field in row_schema(table) if field.name not in shared])


def row_schema(table: str) -> pa.Schema:
    """A decoded table's columns but `cluster`, which a decoder cannot know."""
    return table_schema(table, without=("cluster",))


def row_ddl(table: str) -> str:
    """`row_schema` as Spark's DDL."""
    return contracts.tables()[table].ddl(without=("cluster",))
