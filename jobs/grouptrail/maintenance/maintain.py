"""`grouptrail maintain`: apply retention, thin samples, and compact and sort the tables' files.

Tables are processed one by one; after an interruption the next run continues. Jobs may run at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TextIO

from rich import box
from rich.table import Table

from grouptrail import contracts
from grouptrail.console.progress import Log, print_now, waiting
from grouptrail.errors import GrouptrailError, first_cause
from grouptrail.maintenance.queries import DeltaRsQueries, Queries, SparkQueries
from grouptrail.maintenance.retention import ORDER, doomed, removals, rules
from grouptrail.query.formats import RowsFormat, console_on, displayed, write_rows
from grouptrail.storage import upkeep
from grouptrail.storage.engines.retries import is_conflict, with_retries
from grouptrail.storage.errors import TableError
from grouptrail.storage.warehouse import StartSpark, Warehouse

if TYPE_CHECKING:
    from grouptrail.config import MaintainConfig


_TRIES = 3
_Removed = tuple[str, int, int, int, str]
_HEADS = ("table", "rows", "in files", "about bytes", "which")


class MaintenanceError(GrouptrailError):
    """At least one table could not be maintained; the others were."""


def maintain(
    warehouse: Warehouse,
    keep: MaintainConfig,
    names: tuple[str, ...] = (),
    *,
    log: Log = print_now,
    now: datetime | None = None,
) -> None:
    """Maintain the named tables, or all existing ones, in the warehouse's session.

    Raises MaintenanceError if a table could not be maintained, after processing the others.
    """

    def work(name: str) -> None:
        with waiting(f"maintaining {name}"):
            done = with_retries(lambda: _maintain(warehouse, keep, name, now or datetime.now(UTC)), _TRIES)
        log(done)

    for table in warehouse.tables([name for name, of in contracts.tables().items() if of.has_renamed_columns]):
        with suppress(TableError):  # it is reported when its turn comes
            if table.exists():
                table.ensure()
    _each(SparkQueries(warehouse), names, work)


def dry_run(
    warehouses: Sequence[Warehouse],
    keep: MaintainConfig,
    names: tuple[str, ...] = (),
    *,
    start_spark: StartSpark,
    format: RowsFormat = "table",
    out: TextIO,
) -> None:
    """Print what `maintain` would delete of some clusters, as one table.

    Spark is started only for a store that delta-rs does not support.
    """
    rows = [(one.cluster, *row) for one in warehouses for row in _dry_run(one, keep, names, start_spark)]
    if len(warehouses) == 1:
        write_removals([row[1:] for row in rows], out, format)
    else:
        write_removals(rows, out, format, ("cluster", *_HEADS))


def _dry_run(
    warehouse: Warehouse, keep: MaintainConfig, names: tuple[str, ...], start_spark: StartSpark
) -> list[_Removed]:
    warehouse.check_exists()
    if warehouse.is_readable_without_spark:
        return removals_found(DeltaRsQueries(warehouse), keep, names, datetime.now(UTC))
    with start_spark() as started:
        queries = SparkQueries(warehouse.with_spark(started.session))
        return removals_found(queries, keep, names, datetime.now(UTC))


def _each(queries: Queries, names: tuple[str, ...], work: Callable[[str], None]) -> None:
    """Call `work` for each existing table in a safe order; raise MaintenanceError at the end if any failed."""
    ordered = [*ORDER, *(name for name in contracts.tables() if name not in ORDER)]
    faults = []
    for name in (name for name in ordered if not names or name in names):
        try:
            if queries.exists(name):
                work(name)
        except Exception as error:
            lost = f"other writers committed first, {_TRIES} times"
            faults.append(f"{name}: {lost if is_conflict(error) else first_cause(error)}")
    if faults:
        raise MaintenanceError("; ".join(faults) + ": not maintained, run grouptrail maintain again")


def removals_found(queries: Queries, keep: MaintainConfig, names: tuple[str, ...], now: datetime) -> list[_Removed]:
    """Return what would be deleted: table, rows, files that may contain them, approximate bytes, and why."""
    removals: list[_Removed] = []

    def work(name: str) -> None:
        with waiting(f"reading {name}"):
            for rule in rules(queries, keep, name, now):
                [total] = queries.rows(f"SELECT count(*) AS rows FROM {queries.table(name)}")
                [removed] = queries.rows(doomed(queries, rule, "count(*) AS rows"))
                share = round(queries.size_bytes(name) * removed["rows"] / max(total["rows"], 1))
                files = queries.files(name, rule.where) if removed["rows"] else 0
                removals.append((name, removed["rows"], files, share, rule.why))

    _each(queries, names, work)
    return removals


def write_removals(
    removals: Sequence[tuple[str | int, ...]], out: TextIO, format: RowsFormat, heads: Sequence[str] = _HEADS
) -> None:
    """Print `removals_found`, or the same below other headings."""
    if format != "table":
        write_rows([*heads], removals, out, format=format)
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for head in heads:
        is_number = head not in ("cluster", "table", "which")
        table.add_column(head, justify="right" if is_number else "left", no_wrap=head != "which")
    for row in removals:
        table.add_row(*(f"{value:,}" if isinstance(value, int) else displayed(value) for value in row))
    console = console_on(out)
    console.print(table)
    console.print("nothing was deleted: this is a dry run")


def _maintain(warehouse: Warehouse, keep: MaintainConfig, name: str, now: datetime) -> str:
    table = warehouse.table(name)
    before = upkeep.size(table)
    deleted = 0
    for removal in removals(warehouse, keep, name, now):
        if removal.count:
            upkeep.delete(warehouse.table(removal.table), removal.where, removal.stays)
        deleted += removal.count
    upkeep.optimize(table)
    upkeep.vacuum(table)
    after = upkeep.size(table)
    deletions = f"{deleted:,} rows deleted; " if deleted else ""
    return f"{name}: {deletions}{before[0]} files, {before[1]:,} bytes -> {after[0]} files, {after[1]:,} bytes"
