"""Commands about what has not happened yet: what-if broker."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import typer

from grouptrail.cli.options import TIMES, ConfigOptions, parse_past_time
from grouptrail.runtime.warehouses import warehouse_of


def broker(
    options: ConfigOptions,
    ids: Annotated[
        list[int] | None, typer.Argument(metavar="[ID]...", help="Node ids of the brokers that stop together.")
    ] = None,
    rack: Annotated[
        list[str] | None,
        typer.Option(metavar="RACK", help="All brokers in this rack (broker.rack). May be repeated."),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(metavar="TIME", help=f"If they had stopped at this time. {TIMES} [default: now]"),
    ] = None,
    format: Annotated[
        Literal["table", "json", "csv", "markdown"],
        typer.Option(help="Tables, one JSON object, the partitions as CSV, or everything in Markdown."),
    ] = "table",
) -> None:
    """Show what a stop of brokers would do: partitions offline or refusing writes, groups that cannot commit."""
    if not ids and not rack:
        raise typer.BadParameter("name a broker, or a rack with --rack", param_hint="ID")
    from grouptrail.query.show_what_if import show_loss

    time = parse_past_time(at, "--at") if at else None
    config = options.load_stored()
    show_loss(
        warehouse_of(config),
        ids or (),
        racks=rack or (),
        at=time,
        sample_seconds=config.log_offsets.interval_seconds,
        format=format,
        out=sys.stdout,
    )
