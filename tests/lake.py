"""Small Delta tables for tests of what is asked of them, of the contracts' columns."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from grouptrail import contracts
from grouptrail.arrow import table_schema
from grouptrail.config import Config

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)
HISTORY = ("generations", "group_states", "memberships", "partition_ownership", "rebalances", "ingest_progress")
_SHARED = {"cluster": "default", "group_id": "billing", "incarnation": 1, "record_partition": 9, "is_open": False}
_EMPTY: dict[str, Any] = {"string": "", "smallint": 0, "int": 0, "bigint": 0, "double": 0.0, "boolean": False}


def at(minute: float) -> datetime:
    """So many minutes after noon of 2026-03-04."""
    return NOON + timedelta(minutes=minute)


def lay(config: Config, table: str, *rows: dict[str, Any]) -> None:
    """Writes rows; a column that a row does not name is null, or empty where it never is null."""
    columns = contracts.tables()[table].columns
    whole = [
        {column.name: (_SHARED | row).get(column.name, _absent(column, number)) for column in columns}
        for number, row in enumerate(rows)
    ]
    write_deltalake(config.table_path(table), pa.Table.from_pylist(whole, table_schema(table)), mode="append")


def _absent(column: contracts.Column, number: int) -> Any:
    if column.name == "record_offset":
        return number
    if column.null_means:
        return None
    if column.type == "timestamp":
        return at(0)
    return _EMPTY.get(column.type, [])
