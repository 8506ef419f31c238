"""Damaged files of deletion vectors, which Spark writes to tables that somebody gave this feature."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from grouptrail.storage.engines.spark import table_in_sql
from grouptrail.storage.errors import TableError
from grouptrail.storage.rows import OpenTables
from grouptrail.storage.table import Table
from grouptrail.storage.warehouse import Warehouse

BREAKS: dict[str, Callable[[Path], object]] = {
    "pipe": lambda file: (file.unlink(), os.mkfifo(file)),
    "device": lambda file: (file.unlink(), file.symlink_to("/dev/zero")),
    "missing": lambda file: file.unlink(),
    "empty": lambda file: file.write_bytes(b""),
    "zeros": lambda file: file.write_bytes(bytes(file.stat().st_size)),
}


@pytest.fixture
def table(warehouse: Warehouse) -> Table:
    """A table of which every seventh row is deleted by a vector."""
    table = warehouse.table("log_offsets")
    name = table_in_sql(table.location)
    sql = warehouse.session.sql
    sql(
        f"CREATE TABLE {name} (cluster STRING, topic STRING, partition INT) USING delta "
        "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    sql(f"INSERT INTO {name} SELECT 'test', 'orders', id FROM range(0, 700, 1, 1)")
    sql(f"DELETE FROM {name} WHERE partition % 7 = 3")
    return table


def partitions(table: Table) -> int:
    tables = OpenTables([table.location], {table.name: ("topic", "partition")})
    if (unreadable := tables.refresh()) is not None:
        raise unreadable
    return len(tables.rows(f"SELECT partition FROM {table.name}"))


@pytest.mark.parametrize("name", BREAKS)
def test_open_tables_damaged_deletion_vector_raises_one_line_that_names_it(table: Table, name: str) -> None:
    """Without the vector, deleted rows would come back."""
    assert partitions(table) == 600
    [vector] = Path(table.path).glob("deletion_vector_*.bin")
    BREAKS[name](vector)
    with pytest.raises(TableError, match=vector.name) as caught:
        partitions(table)
    assert "\n" not in str(caught.value)
