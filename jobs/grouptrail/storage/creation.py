"""Create tables with delta-rs, in milliseconds: Spark takes seconds for the first tables after its start."""

from __future__ import annotations

from deltalake import DeltaTable, Field, Schema

from grouptrail.storage import layout
from grouptrail.storage.location import TableLocation
from grouptrail.storage.reader import OpenTable
from grouptrail.storage.schema import table_schema


def create_table(location: TableLocation) -> OpenTable:
    """Create a table; return it."""
    table = location.contract
    plain = Schema.from_arrow(table_schema(location.name)).fields
    fields = [
        Field(field.name, field.type, nullable=True, metadata={"comment": layout.meaning(column)})
        for field, column in zip(plain, table.columns, strict=True)
    ]
    return DeltaTable.create(
        location.path,
        Schema(fields),
        partition_by=list(table.partition_by),
        description=table.about,
        configuration=layout.properties(table),
        storage_options=dict(location.options),
    )
