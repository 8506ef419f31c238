"""Processes that write to one table at the same time, to be killed or beaten: `started` runs one, `wait` ends it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from grouptrail.storage import sorting
from grouptrail.storage.engines.engine import Once
from grouptrail.storage.errors import NeedsSparkError
from grouptrail.storage.table import Table
from grouptrail.storage.warehouse import Warehouse
from support.deadlines import scaled

TABLE = "log_offsets"
AT = datetime(2026, 11, 1, 12, tzinfo=UTC)
_SECONDS = scaled(300)


def table_at(location: str, options: Mapping[str, str], cluster: str = "test") -> Table:
    return Warehouse(location, cluster, options).table(TABLE)


def batch(table: Table, number: int, rows: int) -> pa.Table:
    """Return the rows of a batch, which are the same whoever writes it; they are in no order of their topic."""
    names = ("topic", "partition", "log_end_offset", "asked_at", "sampled_at")
    values = [(f"t{(7 * row + number) % 5}", row, number * rows + row, AT, AT) for row in range(rows)]
    columns = [dict(zip(names, value, strict=True)) for value in values]
    return pa.Table.from_pylist(columns, pa.schema([table.schema.field(name) for name in names]))


def append_batches(table: Table, first: int, last: int, rows: int) -> None:
    for number in range(first, last):
        table.append(batch(table, number, rows), Once("job", number))


def ensure_and_append(table: Table, first: int, last: int, rows: int) -> None:
    with suppress(NeedsSparkError):  # it may lack columns, too
        table.ensure()
    append_batches(table, first, last, rows)


def sort_until(table: Table, last: int) -> None:
    """Sort into short runs until a batch has been appended, and once more."""
    sorting._ROWS_A_RUN = 16
    is_last = False
    while not is_last:
        is_last = table.last_version("job") >= last
        sorting.sort_new_files(table.location)


def started(location: str, options: Mapping[str, str], *work: str | int) -> subprocess.Popen[bytes]:
    """Start a process that does some work of `main`."""
    given = [location, json.dumps(dict(options)), *map(str, work)]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    return subprocess.Popen([sys.executable, "-m", "support.racing_writers", *given], env=environ)


def wait(*processes: subprocess.Popen[bytes]) -> None:
    for process in processes:
        assert process.wait(_SECONDS) == 0


def main(location: str, options: str, work: str, *numbers: str) -> None:
    table = table_at(location, json.loads(options))
    works = {"append": append_batches, "ensure": ensure_and_append, "sort": sort_until}
    works[work](table, *map(int, numbers))


if __name__ == "__main__":
    main(*sys.argv[1:])
