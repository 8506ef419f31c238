"""Commands about consumer groups, now and in the past: show group, show lag, backtest, timeline, report."""

from __future__ import annotations

import re
import sys
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from grouptrail.cli.completion import complete_group
from grouptrail.cli.options import (
    TIMES,
    ConfigOptions,
    Group,
    Groups,
    OutputFile,
    RowsFormat,
    Topics,
    parse_names,
    parse_past_time,
    parse_time,
)
from grouptrail.console.progress import print_note, print_now
from grouptrail.runtime.warehouses import warehouse_of


def group(
    options: ConfigOptions,
    name: Annotated[str, typer.Argument(metavar="NAME", autocompletion=complete_group, help="The group.")],
    *,
    at: Annotated[
        str | None,
        typer.Option(metavar="TIME", help=f"The group as of this time. {TIMES} [default: now]"),
    ] = None,
    generations: Annotated[
        int, typer.Option(metavar="N", min=1, help="How many of its latest generations to show.")
    ] = 10,
    why: Annotated[
        str | None,
        typer.Option(
            metavar="GENERATION|TOPIC-PARTITION",
            help="Instead: what the cause of this rebalance, or the verdict of this partition, rests on.",
        ),
    ] = None,
    format: Annotated[
        Literal["table", "json", "csv", "markdown"],
        typer.Option(help="Tables, one JSON object, the members as CSV, or everything in Markdown."),
    ] = "table",
) -> None:
    """Show a group: state, members and their partitions, and causes of its latest rebalances."""
    from grouptrail.query.show_group import show_group

    time = parse_past_time(at, "--at") if at else None
    if why is not None:
        _show_why(options, name, why, time, format)
        return
    config = options.load_stored()
    show_group(
        warehouse_of(config),
        name,
        at=time,
        generations=generations,
        sample_seconds=config.log_offsets.interval_seconds,
        format=format,
        out=sys.stdout,
    )


def _show_why(options: ConfigOptions, group_id: str, what: str, at: datetime | None, format: RowsFormat) -> None:
    from grouptrail.query.show_verdict import show_verdict
    from grouptrail.query.show_why import show_why

    named = re.fullmatch("(?:(.+)-)?([0-9]{1,9})", what)
    if named is None:
        about = "it is neither a generation, such as 7, nor a partition, such as orders-3"
        raise typer.BadParameter(about, param_hint="--why")
    topic, number = named[1], int(named[2])
    if topic:
        warehouse = warehouse_of(options.load_stored())
        show_verdict(warehouse, group_id, topic, number, at=at, format=format, out=sys.stdout)
        return
    if at is not None:
        raise typer.BadParameter("a generation has one time: --at is for a partition", param_hint="--why")
    show_why(warehouse_of(options.load_stored()), group_id, number, format=format, out=sys.stdout)


def lag(
    options: ConfigOptions,
    *,
    group: Groups = None,
    topic: Topics = None,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option(metavar="SECONDS", min=0.2, help="How often --watch refreshes.")] = 2,
    format: RowsFormat = "table",
) -> None:
    """Show the lag of groups, worst first; of each partition where --group or --topic is given."""
    from grouptrail.query.show_lag import show_lag, watch_lag

    config = options.load_stored()
    show = partial(watch_lag, every_seconds=every) if watch else show_lag
    show(
        warehouse_of(config),
        groups=group or (),
        topics=topic or (),
        sample_seconds=config.log_offsets.interval_seconds,
        format=format,
        out=sys.stdout,
    )


def backtest(
    options: ConfigOptions,
    *,
    from_: Annotated[str, typer.Option("--from", metavar="TIME", help=f"Start. {TIMES}")],
    to: Annotated[str, typer.Option("--to", metavar="TIME", help="End.")] = "now",
    group: Groups = None,
    status: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATUS", help="Fire on this verdict. May be repeated. [default: STOP, STALL and REWIND]"
        ),
    ] = None,
    lag_seconds: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Fire on more lag in seconds than this; on verdicts only if --status is given, too.",
        ),
    ] = None,
    for_: Annotated[
        float,
        typer.Option("--for", metavar="SECONDS", min=0, help="Fire after the condition has held for this long."),
    ] = 0,
    format: RowsFormat = "table",
) -> None:
    """Evaluate an alert on stored lag: when would it have fired? Try thresholds: --set lag.stop_seconds=600."""
    from grouptrail import contracts
    from grouptrail.config import job_settings
    from grouptrail.lag.backtest import Alert
    from grouptrail.lag.backtest import backtest as run_backtest

    statuses = parse_names(status, contracts.statuses(), "--status")
    only_lag = lag_seconds is not None and not statuses
    alert = Alert(frozenset() if only_lag else frozenset(statuses or Alert().statuses), lag_seconds, for_)
    since, until = parse_time(from_, "--from"), parse_time(to, "--to")
    config = options.load_stored()
    of_cluster = (warehouse_of(config), job_settings.lag(config))
    run_backtest(*of_cluster, alert, groups=group or (), since=since, until=until, format=format, out=sys.stdout)


def timeline(
    options: ConfigOptions,
    group: Group,
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help=f"Start. {TIMES} [default: one day before the end]"),
    ] = None,
    to: Annotated[str | None, typer.Option(metavar="TIME", help="End. [default: the latest data]")] = None,
    out: OutputFile = Path("timeline.html"),
) -> None:
    """Draw the history of a group as one HTML file: partition owners, members, rebalances and causes, lag."""
    since = parse_time(from_, "--from") if from_ else None
    until = parse_time(to, "--to") if to else None
    if since and until and since >= until:
        raise typer.BadParameter(f"'{to}' is not after --from", param_hint="--to")
    warehouse = warehouse_of(options.load_stored())
    from grouptrail.report.group_rows import moment
    from grouptrail.report.page import write
    from grouptrail.report.timeline import timeline_page, timeline_rows

    rows = timeline_rows(warehouse, group, since=since, until=until)
    write(timeline_page(rows), out)
    print_now(f"{out}: open it in a browser")
    if since and since < moment(rows.first_us):
        print_note(f"its history begins at {moment(rows.first_us):%Y-%m-%d %H:%M:%S} UTC")


def report(options: ConfigOptions, out: OutputFile = Path("report.html")) -> None:
    """Write a report on the cluster as one HTML file: verdicts, rebalance storms, worst lag, dormant groups."""
    config = options.load_stored()
    from grouptrail.report.page import write
    from grouptrail.report.report import report_page

    write(report_page(warehouse_of(config), sample_seconds=config.log_offsets.interval_seconds), out)
    print_now(f"{out}: open it in a browser")


def diff(
    options: ConfigOptions,
    *,
    group: Group,
    first: Annotated[str, typer.Argument(metavar="T1", help=f"The first moment. {TIMES}")],
    second: Annotated[str, typer.Argument(metavar="T2", help="The second moment.")] = "now",
    format: RowsFormat = "table",
) -> None:
    """Compare a group at two moments: state, assignor, members, partition owners and lag."""
    before, after = parse_past_time(first, "T1"), parse_past_time(second, "T2")
    if before >= after:
        raise typer.BadParameter(f"'{second}' is not after T1", param_hint="T2")
    from grouptrail.query.group_diff import diff_group

    config = options.load_stored()
    seconds = config.log_offsets.interval_seconds
    diff_group(warehouse_of(config), group, before, after, sample_seconds=seconds, format=format, out=sys.stdout)


def digest(
    options: ConfigOptions,
    *,
    since: Annotated[str, typer.Option(metavar="TIME", help=f"Start of the period. {TIMES}")] = "24h",
    format: Annotated[Literal["markdown", "html"], typer.Option(help="Output format.")] = "markdown",
    post: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Send it to this Slack-compatible webhook instead of printing it; - reads the URL, a secret, "
            "from stdin.",
        ),
    ] = None,
) -> None:
    """Summarise what happened: worst groups, rebalance storms, offset resets, vanished and new groups."""
    start = parse_past_time(since, "--since")
    url = _read_secret("webhook URL") if post == "-" else post
    config = options.load_stored()
    from grouptrail.report.digest import digest_of, nothing_recorded, render
    from grouptrail.report.digest_rows import NothingRecordedError, read_digest
    from grouptrail.report.webhook import post as post_to

    try:
        rows = read_digest(warehouse_of(config), start, sample_seconds=config.log_offsets.interval_seconds)
        summary = digest_of(rows)
    except NothingRecordedError as error:
        if url is not None:  # where silence would look as if all were well
            post_to(url, render(nothing_recorded(config.cluster, str(error)), "chat"))
        raise
    if url is None:
        sys.stdout.write(render(summary, format))
    else:
        post_to(url, render(summary, "chat"))
        print_now("the digest was posted")


def _read_secret(what: str) -> str:
    """Read a line from stdin; on a terminal it is asked for and not shown."""
    if sys.stdin.isatty():
        return str(typer.prompt(what, hide_input=True, err=True)).strip()
    return sys.stdin.readline().strip()
