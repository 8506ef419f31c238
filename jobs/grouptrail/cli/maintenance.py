"""Commands that check and maintain the tables: check, repair, maintain."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from grouptrail.cli.options import TIMES, ConfigOptions, RowsFormat, Tables, parse_past_time, parse_tables
from grouptrail.console.progress import print_note, print_now
from grouptrail.runtime.warehouses import warehouse_in_session, warehouse_of


def check(
    options: ConfigOptions,
    table: Tables = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help=f"Only rows since this time. {TIMES} [default: all]"),
    ] = None,
    docs: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the results as HTML pages to this folder; requires Spark."),
    ] = None,
    *,
    format: RowsFormat = "table",
) -> None:
    """Validate the tables against their expectations. Exits with 1 if any is not met."""
    names, time = parse_tables(table), parse_past_time(since, "--since") if since else None
    from grouptrail.quality.check import check as run_check

    config = options.load_stored()
    run_check(
        warehouse_of(config),
        names,
        since=time,
        docs=docs,
        sample_seconds=config.log_offsets.interval_seconds,
        start_spark=partial(warehouse_in_session, config, "check", print_now),
        format=format,
        out=sys.stdout,
    )


def repair(
    options: ConfigOptions,
    table: Tables = None,
    drop: Annotated[
        bool, typer.Option("--drop", help="Take damaged files out of their tables, which loses their rows.")
    ] = False,
    *,
    format: RowsFormat = "table",
) -> None:
    """Read all files of the tables, and list the damaged ones. Exits with 1 if any remains."""
    names = parse_tables(table)
    from grouptrail.maintenance.repair import repair as run_repair

    run_repair(warehouse_of(options.load_stored()), names, drop=drop, format=format, out=sys.stdout, log=print_note)


def maintain(
    options: ConfigOptions,
    table: Tables = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted; change nothing.")] = False,
    *,
    format: Annotated[
        Literal["table", "json", "csv", "markdown"], typer.Option(help="Output format of --dry-run.")
    ] = "table",
) -> None:
    """Thin old samples, delete rows past their retention in [maintain], and compact and sort the tables' files."""
    names = parse_tables(table)
    from grouptrail.maintenance import maintain as maintenance

    configs = options.load_all()
    start_spark = partial(warehouse_in_session, configs[0], "maintain", print_now)
    if dry_run:
        warehouses = [warehouse_of(config) for config in configs]
        of = (warehouses, configs[0].maintain, names)
        maintenance.dry_run(*of, start_spark=start_spark, format=format, out=sys.stdout)
        return
    with start_spark() as started:
        for config in configs:
            maintenance.maintain(warehouse_of(config, started.session), config.maintain, names)
