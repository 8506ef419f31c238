"""Arrow schemas of the decoded tables, from their contracts."""

from __future__ import annotations

from functools import cache

import pyarrow as pa

from grouptrail import contracts
from grouptrail.storage.schema import table_schema

COMMITS = "offset_commits"
OF_GROUPS = ("group_metadata", "group_records")
RARE_TABLES = (*OF_GROUPS, "undecodable_records")
TABLES = (COMMITS, *RARE_TABLES)
RECORD_COLUMNS = ("record_partition", "record_offset", "record_at", "is_transactional", "partition_leader_epoch")
"""Columns that are copied from the record; only `offset_commits` has the fourth, only groups' tables the fifth."""
UNDECODED = ("cluster", "source", "not_before", "read_at", "is_gapless")
"""Columns that a decoder cannot know."""


@cache
def own_columns(table: str) -> pa.Schema:
    """Return a table's columns without those that are copied from the record."""
    return pa.schema([field for field in row_schema(table) if field.name not in RECORD_COLUMNS])


def row_schema(table: str) -> pa.Schema:
    """Return a decoded table's columns without those that a decoder cannot know."""
    return table_schema(table, without=UNDECODED)


def row_ddl(table: str) -> str:
    """Return `row_schema` as Spark's DDL."""
    return contracts.tables()[table].ddl(without=UNDECODED)
