"""Create a small table and append to it with delta-rs, without a JVM.

delta-rs does not write to tables with liquid clustering, as Spark creates them; a table that it creates has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable, Field, Schema, write_deltalake

from grouptrail import contracts
from grouptrail.storage import layout
from grouptrail.storage.reader import OpenTable, column_names, open_table
from grouptrail.storage.schema import table_schema

if TYPE_CHECKING:
    from grouptrail.config import Config

_CLUSTERING = "clustering"


def append_without_spark(config: Config, name: str, rows: list[dict[str, Any]]) -> bool:
    """Append rows, to a new table if there is none; return False if only Spark can do it."""
    table = open_table(config, name)
    if table is None:
        table = create_without_spark(name, config.table_path(name), config.storage_options())
    names = table_schema(name).names
    if _CLUSTERING in (table.protocol().writer_features or ()) or not column_names(table) >= set(names):
        return False
    write_deltalake(table, pa.Table.from_pylist(rows, table_schema(name)), mode="append")
    return True


def create_without_spark(name: str, path: str, options: Mapping[str, str]) -> OpenTable:
    """Create a table of a contract at a place; return it."""
    table = contracts.tables()[name]
    plain = Schema.from_arrow(table_schema(name)).fields
    fields = [
        Field(field.name, field.type, nullable=True, metadata={"comment": layout.meaning(column)})
        for field, column in zip(plain, table.columns, strict=True)
    ]
    return DeltaTable.create(
        path,
        Schema(fields),
        partition_by=list(table.partition_by),
        description=table.about,
        configuration=layout.properties(table),
        storage_options=dict(options),
    )
