"""`grouptrail repair`: find the damaged files of tables, and take out of the tables what cannot be restored.

Such a file stays in its folder until `grouptrail maintain` removes it with others that no table has any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TextIO

from grouptrail import contracts
from grouptrail.console.progress import Log, waiting
from grouptrail.errors import GrouptrailError
from grouptrail.history.rows import TABLES
from grouptrail.history.tasks import POSITIONS
from grouptrail.query.formats import RowsFormat, write_rows
from grouptrail.storage.damage import damaged_files, find_damage
from grouptrail.storage.engines.commits import commit
from grouptrail.storage.engines.retries import one_writer
from grouptrail.storage.errors import UnreadableTableError
from grouptrail.storage.reader import by_file, existing_table
from grouptrail.storage.table import Table
from grouptrail.storage.warehouse import Warehouse

_HEADS = ["table", "file", "rows", "what is wrong"]
_LOG = "_delta_log"
_Row = tuple[str, str, int | None, str]


class DamageFoundError(GrouptrailError):
    """Files of tables are damaged, and still part of them."""


def repair(
    warehouse: Warehouse, names: Sequence[str], *, drop: bool, format: RowsFormat, out: TextIO, log: Log
) -> None:
    """Read all files of the named tables, or of all, and print which are damaged, and how many rows they have.

    With `drop` they are taken out of their tables. Raises DamageFoundError if some are still part of one.
    """
    warehouse.check_exists()
    found: list[_Row] = []
    for table in warehouse.tables(list(names or contracts.tables())):
        with waiting(f"reading {table.name}"):
            found += _damaged(table)
    if not found:
        log("no file is damaged")
        return
    write_rows(_HEADS, found, out, format=format)
    files = [row for row in found if row[1] != _LOG]
    if drop:
        for table in warehouse.tables(sorted({name for name, *_ in files})):
            dropped = [path for name, path, *_ in files if name == table.name]
            one_writer(partial(_take_out, table, dropped), table.location)
            log(f"{table.name}: {len(dropped):,} files are no longer part of it")
        if {name for name, *_ in files} & {*TABLES, POSITIONS}:
            log("run grouptrail rebuild history: it computes what the history has lost from the decoded records")
    if unreadable := [name for name, path, *_ in found if path == _LOG]:
        raise DamageFoundError(
            f"the log of {', '.join(unreadable)} cannot be read: restore the folder from a backup, or move it away; "
            "see docs/faults.md#damaged-files"
        )
    if not drop:
        raise DamageFoundError(
            f"{len(files):,} files are damaged: restore them from a backup, or take them out of their tables with "
            "--drop, which loses their rows"
        )


def _damaged(table: Table) -> Iterator[_Row]:
    try:
        there = table.open()
    except UnreadableTableError as error:
        yield table.name, _LOG, None, error.fact
        return
    if there is None:
        return
    find_damage(there, table.location.options)
    if damaged := damaged_files(there):
        counts = by_file(there, "num_records")
        yield from ((table.name, path, counts[path], reason) for path, reason in damaged.items())


def _take_out(table: Table, paths: Sequence[str]) -> None:
    there = existing_table(table.location)
    sizes = by_file(there, "size_bytes")
    commit(table.location, there, [], instead_of={path: sizes[path] for path in paths if path in sizes})
    damaged_files(existing_table(table.location))  # they are forgotten
