"""Commands that answer what consumer groups do and did: show group, show lag, backtest, timeline, report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from grouptrail.cli.options import ConfigOptions, Groups, OutputFile, TableOrJson, parse_names, parse_time


def group(
    options: ConfigOptions,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The group.")],
    at: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="As it was then, such as 2026-11-21T14:55:00Z. [default: as it is]"),
    ] = None,
    generations: Annotated[int, typer.Option(metavar="N", min=1, help="How many of its last generations.")] = 10,
    format: Annotated[Literal["table", "json"], typer.Option(help="For people, or one JSON object.")] = "table",
) -> None:
    """Show a group: its state, its members and what they own, and why its last rebalances happened."""
    from grouptrail.query.show_group import show_group

    time = parse_time(at, "--at")
    show_group(options.load(), name, at=time, generations=generations, format=format, out=sys.stdout)


def lag(
    options: ConfigOptions,
    *,
    group: Groups = None,
    topic: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Only these topics. May be repeated.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Go on, until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option(metavar="SECONDS", min=0.2, help="How often --watch looks.")] = 2,
    format: TableOrJson = "table",
) -> None:
    """Show how far behind the groups are, the worst first; partition by partition where some are named."""
    from grouptrail.query.show_lag import show_lag, watch_lag

    config = options.load()
    if watch:
        watch_lag(config, groups=group or (), topics=topic or (), every_seconds=every, out=sys.stdout)
    else:
        show_lag(config, groups=group or (), topics=topic or (), format=format, out=sys.stdout)


def backtest(
    options: ConfigOptions,
    *,
    from_: Annotated[str, typer.Option("--from", metavar="TIME", help="Since when, such as 2026-11-14, or 7d ago.")],
    to: Annotated[str, typer.Option("--to", metavar="TIME", help="Until when.")] = "now",
    group: Groups = None,
    status: Annotated[
        list[str] | None,
        typer.Option(metavar="STATUS", help="Fire at this verdict. [default: STOP, STALL and REWIND]"),
    ] = None,
    lag_seconds: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Fire at a lag of more seconds than this, too.")
    ] = None,
    for_: Annotated[
        float, typer.Option("--for", metavar="SECONDS", min=0, help="Fire once it has held for so long.")
    ] = 0,
    format: TableOrJson = "table",
) -> None:
    """Judge stored lag again, by --set lag.stop_seconds=600, say: would an alert have fired, when, how often?"""
    from grouptrail import contracts
    from grouptrail.lag.backtest import Alert
    from grouptrail.lag.backtest import backtest as run_backtest

    statuses = parse_names(status, contracts.statuses(), "--status")
    only_lag = lag_seconds is not None and not statuses
    alert = Alert(frozenset() if only_lag else frozenset(statuses or Alert().statuses), lag_seconds, for_)
    since, until = parse_time(from_, "--from"), parse_time(to, "--to")
    assert since is not None
    assert until is not None
    run_backtest(options.load(), alert, groups=group or (), since=since, until=until, format=format, out=sys.stdout)


def timeline(
    options: ConfigOptions,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The group.")],
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help="Such as 2026-11-21T14:55:00Z. [default: a day before the end]"),
    ] = None,
    to: Annotated[str | None, typer.Option(metavar="TIME", help="[default: as far as it is known]")] = None,
    out: OutputFile = Path("timeline.html"),
) -> None:
    """Write the picture of a group as one HTML file: who owned what, members, rebalances and why, lag."""
    since, until = parse_time(from_, "--from"), parse_time(to, "--to")
    if since and until and since >= until:
        raise typer.BadParameter(f"'{to}' is not after --from", param_hint="--to")
    config = options.load()
    from grouptrail.report.page import write
    from grouptrail.report.timeline import timeline_page

    write(timeline_page(config, group, since=since, until=until), out)
    typer.echo(f"{out}: open it in a browser")


def report(
    options: ConfigOptions,
    out: OutputFile = Path("report.html"),
) -> None:
    """Write a page on the whole cluster: groups by verdict, storms, worst lag, causes a day, dormant groups."""
    config = options.load()
    from grouptrail.report.page import write
    from grouptrail.report.report import report_page

    write(report_page(config), out)
    typer.echo(f"{out}: open it in a browser")
