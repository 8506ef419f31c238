"""`grouptrail maintain`: apply retention, thin samples, and compact and sort the tables' files.

Tables are processed one by one; after an interruption the next run continues. Jobs may run at the same time.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TextIO

from rich import box
from rich.table import Table

from grouptrail import contracts
from grouptrail.console.progress import print_now
from grouptrail.errors import GrouptrailError, first_cause
from grouptrail.maintenance.retention import ORDER, Removal, removals
from grouptrail.query.formats import console_on, displayed
from grouptrail.spark.session import start_session
from grouptrail.storage import upkeep
from grouptrail.storage.tables import is_conflict, read_all, table_exists, with_retries

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from grouptrail.config import Config

Report = Callable[[str], None]

_TRIES = 3


class MaintenanceError(GrouptrailError):
    """At least one table could not be maintained; the others were."""


def maintain(
    config: Config, names: tuple[str, ...] = (), *, dry_run: bool = False, out: TextIO, report: Report = print_now
) -> None:
    """Maintain the named tables, or all existing ones; a `dry_run` only shows what would be deleted.

    Raises MaintenanceError if a table could not be maintained, after processing the others.
    """
    spark = start_session(config, "grouptrail-maintain", report)
    try:
        if dry_run:
            show_removals(spark, config, names, out)
        else:
            run(spark, config, names, report)
    finally:
        spark.stop()


def run(
    spark: SparkSession, config: Config, names: tuple[str, ...], report: Report, now: datetime | None = None
) -> None:
    """Maintain tables like `maintain`, but in an existing session."""

    def work(name: str) -> None:
        report(with_retries(lambda: _maintain(spark, config, name, now or datetime.now(UTC)), _TRIES))

    _each(spark, config, names, work)


def _each(spark: SparkSession, config: Config, names: tuple[str, ...], work: Callable[[str], None]) -> None:
    """Call `work` for each existing table in a safe order; raise MaintenanceError at the end if any failed."""
    ordered = [*ORDER, *(name for name in contracts.tables() if name not in ORDER)]
    faults = []
    for name in (name for name in ordered if not names or name in names):
        try:
            if table_exists(spark, config, name):
                work(name)
        except Exception as error:
            faults.append(f"{name}: {_reason(error)}")
    if faults:
        raise MaintenanceError("; ".join(faults) + ": not maintained, run grouptrail maintain again")


def show_removals(
    spark: SparkSession, config: Config, names: tuple[str, ...], out: TextIO, now: datetime | None = None
) -> None:
    """Print what would be deleted: rows, the files that contain them, and their approximate size in bytes."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("table", no_wrap=True)
    for name in ("rows", "in files", "about bytes"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("which")

    def work(name: str) -> None:
        rows = read_all(spark, config, name).count()
        size = upkeep.size(spark, config, name)[1]
        for removal in removals(spark, config, name, now or datetime.now(UTC)):
            share = round(size * removal.count / max(rows, 1))
            figures = (f"{removal.count:,}", f"{removal.files:,}", f"{share:,}")
            table.add_row(name, *figures, displayed(removal.why))

    _each(spark, config, names, work)
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
