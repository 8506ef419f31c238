"""`grouptrail maintain`: deletes what is older than is kept, thins samples, keeps the tables' files few and sorted.

Each table is worked off by itself; broken off anywhere, the next run goes on. Jobs may run meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TextIO

from rich import box
from rich.table import Table

from grouptrail import contracts
from grouptrail.errors import GrouptrailError, first_cause
from grouptrail.maintenance.retention import ORDER, Removal, removals
from grouptrail.query.formats import console_on, displayed
from grouptrail.spark.session import start_session
from grouptrail.storage.tables import is_conflict, table_exists, with_retries

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from grouptrail.config import Config

Report = Callable[[str], None]

_TRIES = 3


class MaintenanceFailed(GrouptrailError):
    """Some table could not be worked off; the others were."""


def maintain(
    config: Config, names: tuple[str, ...] = (), *, dry_run: bool = False, out: TextIO, report: Report = print
) -> None:
    """Works off the named tables, or all that are there; a `dry_run` shows what would be deleted and does nothing.

    Raises MaintenanceFailed where a table could not be worked off, when the others are.
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
    """As `maintain`, in a session that is there."""

    def work(name: str) -> None:
        report(with_retries(lambda: _maintain(spark, config, name, now or datetime.now(UTC)), _TRIES))

    _each(spark, config, names, work)


def _each(spark: SparkSession, config: Config, names: tuple[str, ...], work: Callable[[str], None]) -> None:
    """Works off the tables that are there, in an order in which they may be. Raises MaintenanceFailed at the end."""
    ordered = [*ORDER, *(name for name in contracts.tables() if name not in ORDER)]
    faults = []
    for name in (name for name in ordered if not names or name in names):
        try:
            if table_exists(spark, config, name):
                work(name)
        except Exception as error:
            faults.append(f"{name}: {_reason(error)}")
    if faults:
        raise MaintenanceFailed("; ".join(faults) + ": left as it was, run grouptrail maintain again")


def show_removals(
    spark: SparkSession, config: Config, names: tuple[str, ...], out: TextIO, now: datetime | None = None
) -> None:
    """What would be deleted: rows, the files that hold them, and about how many bytes of these."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("table", no_wrap=True)
    for name in ("rows", "of files", "about bytes"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("which")

    def work(name: str) -> None:
        rows = spark.read.format("delta").load(config.table_path(name)).count()
        size = _size(spark, config.table_path(name))[1]
        for removal in removals(spark, config, name, now or datetime.now(UTC)):
            share = round(size * removal.count / max(rows, 1))
            figures = (f"{removal.count:,}", f"{removal.files:,}", f"{share:,}")
            table.add_row(name, *figures, displayed(removal.why))

    _each(spark, config, names, work)
    console = console_on(out)
    console.print(table)
    console.print("nothing was deleted: this is a dry run")


def _maintain(spark: SparkSession, config: Config, name: str, now: datetime) -> str:
    path = config.table_path(name)
    before = _size(spark, path)
    deleted = sum(_remove(spark, path, removal) for removal in removals(spark, config, name, now))
    _optimize(spark, path, contracts.tables()[name])
    spark.sql(f"VACUUM delta.`{path}`").collect()
    after = _size(spark, path)
    told = f"{deleted:,} rows deleted; " if deleted else ""
    return f"{name}: {told}{before[0]} files, {before[1]:,} bytes -> {after[0]} files, {after[1]:,} bytes"


def _remove(spark: SparkSession, path: str, removal: Removal) -> int:
    """In one commit; how many rows."""
    if not removal.count:
        return 0
    if removal.stays is None:
        spark.sql(f"DELETE FROM delta.`{path}` WHERE {removal.where}").collect()
    else:
        writer = removal.stays.write.format("delta").mode("overwrite").option("replaceWhere", removal.where)
        writer.save(path)
    return removal.count


def _optimize(spark: SparkSession, path: str, table: contracts.Table) -> None:
    """Of tables with open rows only what is closed: the history job writes the others anew all the time, and would
    find files gone that it is at."""
    columns = {column.name: column for column in table.columns}
    if not table.partition_by:
        spark.sql(f"OPTIMIZE delta.`{path}`").collect()
    elif columns["open_bucket"].null_means:
        sort = ", ".join(table.cluster_by)
        spark.sql(f"OPTIMIZE delta.`{path}` WHERE open_bucket IS NULL ZORDER BY ({sort})").collect()


def _reason(error: Exception) -> str:
    return f"other writers came between {_TRIES} times" if is_conflict(error) else first_cause(error)


def _size(spark: SparkSession, path: str) -> tuple[int, int]:
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{path}`").first()
    assert detail is not None
    return detail.numFiles, detail.sizeInBytes
