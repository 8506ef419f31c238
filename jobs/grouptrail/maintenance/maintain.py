"""`grouptrail maintain`: apply retention, thin samples, and compact and sort the tables' files.

Tables are processed one by one; after an interruption the next run continues. Jobs may run at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TextIO

from rich import box
from rich.table import Table

from grouptrail import contracts
from grouptrail.console.progress import print_now, waiting
from grouptrail.errors import GrouptrailError, first_cause
from grouptrail.maintenance.retention import ORDER, Removal, doomed, removals, rules
from grouptrail.maintenance.sources import DeltaRsSource, Source, SparkSource
from grouptrail.query.formats import RowsFormat, console_on, displayed, write_rows
from grouptrail.spark import object_stores
from grouptrail.spark.session import session
from grouptrail.storage import upkeep
from grouptrail.storage.tables import check_warehouse_exists, is_conflict, with_retries

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from grouptrail.config import Config

Report = Callable[[str], None]

_TRIES = 3
_Found = tuple[str, int, int, int, str]
_HEADS = ("table", "rows", "in files", "about bytes", "which")


class MaintenanceError(GrouptrailError):
    """At least one table could not be maintained; the others were."""


def maintain(config: Config, names: tuple[str, ...] = (), *, report: Report = print_now) -> None:
    """Maintain the named tables, or all existing ones.

    Raises MaintenanceError if a table could not be maintained, after processing the others.
    """
    with session(config, "grouptrail-maintain", report) as spark:
        run(spark, config, names, report)


def dry_run(
    configs: Sequence[Config],
    names: tuple[str, ...] = (),
    *,
    format: RowsFormat = "table",
    out: TextIO,
    report: Report = print_now,
) -> None:
    """Print what `maintain` would delete of some clusters, as one table.

    No JVM is needed, unless delta-rs does not know the warehouse's store.
    """
    rows = [(config.cluster, *row) for config in configs for row in _dry_run(config, names, report)]
    if len(configs) == 1:
        write_removals([row[1:] for row in rows], out, format)
    else:
        write_removals(rows, out, format, ("cluster", *_HEADS))


def _dry_run(config: Config, names: tuple[str, ...], report: Report) -> list[_Found]:
    check_warehouse_exists(config)
    if object_stores.is_known(config.warehouse):
        return removals_found(DeltaRsSource(config), config, names, datetime.now(UTC))
    with session(config, "grouptrail-maintain", report) as spark:
        return removals_found(SparkSource(spark, config), config, names, datetime.now(UTC))


def run(
    spark: SparkSession, config: Config, names: tuple[str, ...], report: Report, now: datetime | None = None
) -> None:
    """Maintain tables like `maintain`, but in an existing session."""

    def work(name: str) -> None:
        with waiting(f"maintaining {name}"):
            done = with_retries(lambda: _maintain(spark, config, name, now or datetime.now(UTC)), _TRIES)
        report(done)

    _each(SparkSource(spark, config), names, work)


def _each(source: Source, names: tuple[str, ...], work: Callable[[str], None]) -> None:
    """Call `work` for each existing table in a safe order; raise MaintenanceError at the end if any failed."""
    ordered = [*ORDER, *(name for name in contracts.tables() if name not in ORDER)]
    faults = []
    for name in (name for name in ordered if not names or name in names):
        try:
            if source.exists(name):
                work(name)
        except Exception as error:
            faults.append(f"{name}: {_reason(error)}")
    if faults:
        raise MaintenanceError("; ".join(faults) + ": not maintained, run grouptrail maintain again")


def removals_found(source: Source, config: Config, names: tuple[str, ...], now: datetime) -> list[_Found]:
    """Return what would be deleted: table, rows, files that may contain them, approximate bytes, and why."""
    found: list[_Found] = []

    def work(name: str) -> None:
        with waiting(f"reading {name}"):
            for rule in rules(source, config, name, now):
                [total] = source.rows(f"SELECT count(*) AS rows FROM {source.table(name)}")
                [removed] = source.rows(doomed(source, rule, "count(*) AS rows"))
                share = round(source.size_bytes(name) * removed["rows"] / max(total["rows"], 1))
                files = source.files(name, rule.where) if removed["rows"] else 0
                found.append((name, removed["rows"], files, share, rule.why))

    _each(source, names, work)
    return found


def write_removals(
    found: Sequence[tuple[str | int, ...]], out: TextIO, format: RowsFormat, heads: Sequence[str] = _HEADS
) -> None:
    """Print `removals_found`, or the same below other headings."""
    if format == "table":
        _print_removals(heads, found, out)
    else:
        write_rows([*heads], found, out, format=format)


def _print_removals(heads: Sequence[str], found: Sequence[tuple[str | int, ...]], out: TextIO) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for head in heads:
        is_number = head not in ("cluster", "table", "which")
        table.add_column(head, justify="right" if is_number else "left", no_wrap=head != "which")
    for row in found:
        table.add_row(*(f"{value:,}" if isinstance(value, int) else displayed(value) for value in row))
    console = console_on(out)
    console.print(table)
    console.print("nothing was deleted: this is a dry run")


def _maintain(spark: SparkSession, config: Config, name: str, now: datetime) -> str:
    before = upkeep.size(spark, config, name)
    deleted = sum(_remove(spark, config, removal) for removal in removals(spark, config, name, now))
    upkeep.optimize(spark, config, name)
    upkeep.vacuum(spark, config, name)
    after = upkeep.size(spark, config, name)
    deletions = f"{deleted:,} rows deleted; " if deleted else ""
    return f"{name}: {deletions}{before[0]} files, {before[1]:,} bytes -> {after[0]} files, {after[1]:,} bytes"


def _remove(spark: SparkSession, config: Config, removal: Removal) -> int:
    """Delete rows in one commit; return how many."""
    if removal.count:
        upkeep.delete(spark, config, removal.table, removal.where, removal.stays)
    return removal.count


def _reason(error: Exception) -> str:
    return f"other writers committed first, {_TRIES} times" if is_conflict(error) else first_cause(error)
