"""The command `grouptrail`. What a command needs is imported when it runs: `grouptrail decode` starts in no time."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_type_hints

import typer

from grouptrail.console.text import harmless
from grouptrail.errors import GrouptrailError

if TYPE_CHECKING:
    from io import BufferedIOBase

    from grouptrail.config import Config
    from grouptrail.query.sql import Engine

EXIT_ERROR, EXIT_USAGE, EXIT_BUG, EXIT_PIPE = 1, 2, 70, 141

app = typer.Typer(
    name="grouptrail",
    help="The history of Kafka consumer groups: __consumer_offsets, decoded into Delta tables.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

show = typer.Typer(help="Show what is known of one thing, for people.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(show, name="show")
views = typer.Typer(help="The views of SQL in other engines.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(views, name="views")

Debug = Annotated[bool, typer.Option("--debug", help="Show the stack trace of an error.")]


@dataclass(frozen=True)
class Setup:
    """The options of every command that needs the configuration."""

    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="TOML file. [default: grouptrail.toml, if there is one]"),
    ] = None
    cluster: Annotated[
        str | None, typer.Option(metavar="NAME", help="The cluster's name in every row; of several, this one.")
    ] = None
    warehouse: Annotated[
        str | None, typer.Option(metavar="PLACE", help="Folder or URI that holds the Delta tables.")
    ] = None
    bootstrap_server: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Kafka brokers, with commas between.")
    ] = None
    set: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Any other setting: kafka.security.protocol=SSL. May be repeated."),
    ] = None

    def load(self) -> Config:
        """The configuration of file, environment and these flags, of one cluster."""
        from grouptrail.config import load_config

        return load_config(self.config, self._overrides())

    def load_all(self) -> tuple[Config, ...]:
        """The same of every cluster, unless one was named."""
        from grouptrail.config import load_configs

        return load_configs(self.config, self._overrides())

    def _overrides(self) -> dict[str, str]:
        named = {
            "cluster": self.cluster,
            "warehouse": self.warehouse,
            "kafka.bootstrap.servers": self.bootstrap_server,
        }
        pairs = [text.partition("=") for text in self.set or ()]
        for key, equals, _ in pairs:
            if not equals or not key:
                raise typer.BadParameter(f"'{key}' is not KEY=VALUE", param_hint="--set")
        return {key.strip(): value for key, _, value in pairs} | {
            key: value for key, value in named.items() if value is not None
        }


@contextlib.contextmanager
def _reporting(*, debug: bool) -> Iterator[None]:
    """Ends with one line on stderr and an exit status for whatever goes wrong; with the trace too, if asked for."""
    try:
        yield
        sys.stdout.flush()
    except (typer.Exit, typer.BadParameter):
        raise
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except BrokenPipeError:
        # What is still in the buffer has no reader either: Python would complain of it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(EXIT_PIPE) from None
    except Exception as error:
        if debug:
            traceback.print_exc()
        typer.echo(f"grouptrail: {harmless(_told(error), keep_lines=True)}", err=True)
        raise typer.Exit(EXIT_ERROR if isinstance(error, GrouptrailError) else EXIT_BUG) from error


def _told(error: Exception) -> str:
    if isinstance(error, GrouptrailError):
        return str(error)
    first_line = next(iter(str(error).splitlines()), "")
    name = type(error).__name__
    told = f"{name}: {first_line}" if first_line else name
    return f"{told}; run again with --debug for the trace, and report it"


def _command(function: Callable[..., None], of: typer.Typer = app) -> Callable[..., None]:
    """Makes a function a command: `--debug`, one-line errors, and the options of `Setup` where it takes one."""
    hints = get_type_hints(function, include_extras=True)
    own = [
        parameter.replace(annotation=hints[parameter.name])
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name != "setup"
    ]
    shared = _setup_parameters() if "setup" in hints else []
    debug = inspect.Parameter("debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Debug)

    @functools.wraps(function)
    def command(*, debug: bool, **given: Any) -> None:
        with _reporting(debug=debug):
            if shared:
                given["setup"] = Setup(**{parameter.name: given.pop(parameter.name) for parameter in shared})
            function(**given)

    parameters = [*own, *shared, debug]
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    )
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del command.__wrapped__
    of.command(function.__name__.removesuffix("_").replace("_", "-"))(command)
    return command


def _setup_parameters() -> list[inspect.Parameter]:
    hints = get_type_hints(Setup, include_extras=True)
    return [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in fields(Setup)
    ]


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"grouptrail {version('grouptrail')}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    pass


@_command
def run(
    setup: Setup,
    job: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this job. May be repeated. [default: all]")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Read what is there now, then end.")] = False,
) -> None:
    """Run the pipeline: read __consumer_offsets and land it in the Delta tables."""
    from grouptrail.jobs import JOBS
    from grouptrail.runtime import pipeline

    names = _jobs(job) or tuple(known.name for known in JOBS)
    pipeline.run(setup.load_all(), jobs=names, once=once)


def _jobs(given: list[str] | None) -> tuple[str, ...]:
    """The named jobs, or none. Raises BadParameter for a name that is no job's."""
    from grouptrail.jobs import JOBS

    names = [known.name for known in JOBS]
    unknown = [name for name in given or () if name not in names]
    if unknown:
        raise typer.BadParameter(f"'{unknown[0]}' is none of {', '.join(names)}", param_hint="--job")
    return tuple(given or ())


@_command
def recover(
    setup: Setup,
    job: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="This job, whatever its checkpoint is like. May be repeated. [default: those that cannot go on]",
        ),
    ] = None,
) -> None:
    """Put a checkpoint that is lost or unreadable aside, and begin a new one where the job's tables end."""
    names = _jobs(job)
    from grouptrail.runtime.recover import recover as run_recover

    run_recover(setup.load_all(), names)


@_command
def decode(
    hex_: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY_HEX [VALUE_HEX]]", help="A record's key and value; no value is a tombstone."),
    ] = None,
    blob: Annotated[
        str | None, typer.Option(metavar="NAME", help="Take the hex argument as this embedded blob instead.")
    ] = None,
) -> None:
    """Decode records, given as hex or as JSON lines {"key_hex": ..., "value_hex": ...} on stdin, to JSON lines."""
    from grouptrail.decode.lines import arriving_lines, decode_lines

    with contextlib.suppress(AttributeError):
        cast("Any", sys.stdout).reconfigure(encoding="utf-8", newline="\n", write_through=False)
    if hex_ or blob:
        lines: Iterator[str] = iter([_hex_line(hex_ or [], blob)])
    else:
        if sys.stdin.isatty():
            typer.echo("reading JSON lines from the terminal; end with Ctrl-D", err=True)
        lines = arriving_lines(cast("BufferedIOBase", sys.stdin.buffer), sys.stdout.flush)
    unusable = decode_lines(lines, sys.stdout)
    if unusable:
        what = "line holds" if unusable == 1 else "lines hold"
        raise GrouptrailError(f'{unusable} {what} no bytes to decode: see "where": "input" in the output')


def _hex_line(given: list[str], blob: str | None) -> str:
    import json

    most = 1 if blob else 2
    if not 0 < len(given) <= most:
        wanted = "one argument, the blob's hex" if blob else "at most KEY_HEX and VALUE_HEX"
        raise typer.BadParameter(f"takes {wanted}, not {len(given)}", param_hint="HEX")
    names = ("value_hex",) if blob else ("key_hex", "value_hex")
    return json.dumps({"blob": blob} | dict(zip(names, given, strict=False)))


@_command
def redecode(setup: Setup) -> None:
    """Decode again, after an upgrade, what lies in undecodable_records, and move what can be read."""
    from grouptrail.decode.redecode import redecode as run_redecode

    run_redecode(setup.load())


@_command
def ingest_segments(
    setup: Setup,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A broker's log folder (log.dirs), or a copy of it.")],
) -> None:
    """Land what lies in __consumer_offsets' log segments on a disk, or in a backup, and has not landed yet."""
    from grouptrail.decode.sources.ingest import ingest_segments as run_ingest

    run_ingest(setup.load(), folder)


@_command
def rebuild(
    setup: Setup,
    what: Annotated[Literal["history"], typer.Argument(help="The tables to make anew.")],
) -> None:
    """Make the history tables anew from all decoded records. Stop the history job first."""
    config = setup.load()
    if what == "history":
        from grouptrail.runtime.rebuild import rebuild_history

        rebuild_history(config)


@_command
def sql(
    setup: Setup,
    *,
    text: Annotated[
        str | None, typer.Argument(metavar="[QUERY]", help="The query; - reads it from stdin. [default: a prompt]")
    ] = None,
    file: Annotated[Path | None, typer.Option(metavar="FILE", help="Read the query from a file.")] = None,
    format: Annotated[
        Literal["table", "json", "csv", "parquet", "reset-offsets"],
        typer.Option(
            help="A table, JSON lines, CSV, a Parquet file, or what kafka-consumer-groups --from-file takes."
        ),
    ] = "table",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the answer there.")] = None,
    engine: Annotated[
        Literal["delta-rs", "spark"], typer.Option(help="What answers: delta-rs at once, Spark what is big.")
    ] = "delta-rs",
) -> None:
    """Ask the tables in SQL, at a prompt where no query is given. Answers come without a JVM; times are UTC."""
    if format == "parquet" and out is None:
        raise typer.BadParameter("Parquet is no text: name a file with --out", param_hint="--format")
    query = None if text is None and file is None and sys.stdin.isatty() else _query(text, file)
    config = setup.load()
    from grouptrail.query.sql import run_sql, save_sql

    with _engine(config, engine) as answering:
        if query is None:
            from grouptrail.query.prompt import prompt

            prompt(config, answering, sys.stdout)
        elif out is not None:
            save_sql(config, query, format=format, path=out, engine=answering)
        elif format != "parquet":
            run_sql(config, query, format=format, out=sys.stdout, engine=answering)


@contextlib.contextmanager
def _engine(config: Config, name: str) -> Iterator[Engine]:
    if name == "spark":
        from grouptrail.query.spark.engine import spark_engine

        with spark_engine(config, lambda line: typer.echo(line, err=True)) as engine:
            yield engine
    else:
        from grouptrail.query.sql import DeltaRs

        yield DeltaRs(config)


def _query(text: str | None, file: Path | None) -> str:
    if (text is None) == (file is None):
        raise typer.BadParameter("give a query, or --file FILE, or - for stdin", param_hint="QUERY")
    if file is None:
        return sys.stdin.read() if text == "-" else str(text)
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{file} cannot be read: {error}", param_hint="--file") from error


@_command
def tables(
    setup: Setup,
    name: Annotated[str | None, typer.Argument(help="Show the columns of this table or view instead.")] = None,
) -> None:
    """List the tables, what is in them and the views, or the columns of one and what they mean."""
    from grouptrail.query.sql import print_columns, print_tables

    if name is None:
        print_tables(setup.load(), sys.stdout)
    else:
        print_columns(name, sys.stdout)


@functools.partial(_command, of=views)
def install(
    setup: Setup,
    schema: Annotated[str, typer.Option(metavar="NAME", help="The schema; made where it is not.")] = "grouptrail",
) -> None:
    """Put the tables, views and table functions into Spark's catalog; again after an upgrade."""
    from grouptrail.query.spark.catalog import install_views

    install_views(setup.load(), schema=schema, report=typer.echo)


@_command
def serve_sql(
    setup: Setup,
    *,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where both listen; they ask nobody who he is.")
    ] = "127.0.0.1",
    connect_port: Annotated[int, typer.Option(metavar="PORT", min=1, max=65535, help="Spark Connect's.")] = 15002,
    thrift_port: Annotated[int, typer.Option(metavar="PORT", min=1, max=65535, help="The Thrift server's.")] = 10000,
    connect: Annotated[bool, typer.Option(help="Spark Connect.")] = True,
    thrift: Annotated[bool, typer.Option(help="The Thrift server: JDBC, ODBC, beeline.")] = True,
) -> None:
    """Serve the tables, views and table functions to SQL clients, until Ctrl-C."""
    from grouptrail.query.spark.server import Listening, serve_sql

    listening = Listening(host, connect_port if connect else None, thrift_port if thrift else None)
    serve_sql(setup.load(), listening, typer.echo)


@functools.partial(_command, of=show)
def group(
    setup: Setup,
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

    time = _time(at, "--at")
    show_group(setup.load(), name, at=time, generations=generations, format=format, out=sys.stdout)


Groups = Annotated[
    list[str] | None, typer.Option(metavar="PATTERN", help="Only these groups, as in billing-*. May be repeated.")
]


@functools.partial(_command, of=show)
def lag(
    setup: Setup,
    *,
    group: Groups = None,
    topic: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Only these topics. May be repeated.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Go on, until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option(metavar="SECONDS", min=0.2, help="How often --watch looks.")] = 2,
    format: Annotated[Literal["table", "json"], typer.Option(help="For people, or JSON lines.")] = "table",
) -> None:
    """Show how far behind the groups are, the worst first; partition by partition where some are named."""
    from grouptrail.query.show_lag import show_lag, watch_lag

    config = setup.load()
    if watch:
        watch_lag(config, groups=group or (), topics=topic or (), every_seconds=every, out=sys.stdout)
    else:
        show_lag(config, groups=group or (), topics=topic or (), format=format, out=sys.stdout)


@_command
def backtest(
    setup: Setup,
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
    format: Annotated[Literal["table", "json"], typer.Option(help="For people, or JSON lines.")] = "table",
) -> None:
    """Judge stored lag again, by --set lag.stop_seconds=600, say: would an alert have fired, when, how often?"""
    from grouptrail import contracts
    from grouptrail.lag.backtest import Alert
    from grouptrail.lag.backtest import backtest as run_backtest

    wrong = [name for name in status or () if name not in contracts.statuses()]
    if wrong:
        raise typer.BadParameter(f"'{wrong[0]}' is none of {', '.join(contracts.statuses())}", param_hint="--status")
    only_lag = lag_seconds is not None and not status
    alert = Alert(frozenset() if only_lag else frozenset(status or Alert().statuses), lag_seconds, for_)
    since, until = _time(from_, "--from"), _time(to, "--to")
    assert since is not None
    assert until is not None
    run_backtest(setup.load(), alert, groups=group or (), since=since, until=until, format=format, out=sys.stdout)


@_command
def serve(
    setup: Setup,
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Where to listen. [default: exporter.listen, 127.0.0.1:9308]"),
    ] = None,
    also_as: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Serve these exporters' names, too: kafka_exporter,kminion,burrow,kafka-lag-exporter.",
        ),
    ] = None,
) -> None:
    """Serve metrics to Prometheus from the tables alone, without a JVM, until interrupted."""
    given = {"exporter.listen": listen, "exporter.also_as": also_as}
    named = [f"{name}={value}" for name, value in given.items() if value is not None]
    configs = replace(setup, set=[*(setup.set or ()), *named]).load_all()
    from grouptrail.exporter.service import serve as run_exporter

    run_exporter(configs, lambda line: typer.echo(line, err=True))


@_command
def doctor(setup: Setup) -> None:
    """Check Java, versions, warehouse, disk, broker and rights; each line says what to do."""
    configs = setup.load_all()
    from grouptrail.runtime.doctor import examine, print_findings

    if not print_findings(examine(configs), sys.stdout):
        raise typer.Exit(EXIT_ERROR)


@_command
def timeline(
    setup: Setup,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The group.")],
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help="Such as 2026-11-21T14:55:00Z. [default: a day before the end]"),
    ] = None,
    to: Annotated[str | None, typer.Option(metavar="TIME", help="[default: as far as it is known]")] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The file to write.")] = Path("timeline.html"),
) -> None:
    """Write the picture of a group as one HTML file: who owned what, members, rebalances and why, lag."""
    since, until = _time(from_, "--from"), _time(to, "--to")
    if since and until and since >= until:
        raise typer.BadParameter(f"'{to}' is not after --from", param_hint="--to")
    config = setup.load()
    from grouptrail.report.page import write
    from grouptrail.report.timeline import timeline_page

    write(timeline_page(config, group, since=since, until=until), out)
    typer.echo(f"{out}: open it in a browser")


@_command
def report(
    setup: Setup,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The file to write.")] = Path("report.html"),
) -> None:
    """Write a page on the whole cluster: groups by verdict, storms, worst lag, causes a day, dormant groups."""
    config = setup.load()
    from grouptrail.report.page import write
    from grouptrail.report.report import report_page

    write(report_page(config), out)
    typer.echo(f"{out}: open it in a browser")


def _time(text: str | None, option: str) -> datetime | None:
    """A time, `now`, or a length of time before it."""
    from grouptrail.query.views import parsed_moment

    try:
        return parsed_moment(text) if text else None
    except ValueError as error:
        raise typer.BadParameter(
            f"'{text}' is no time such as 2026-11-21T14:55:00Z, 7d or now", param_hint=option
        ) from error


@_command
def check(
    setup: Setup,
    table: Annotated[list[str] | None, typer.Argument(metavar="[TABLE]...", help="[default: all tables]")] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Only rows since then, such as 2026-11-21T14:55:00Z. [default: all]"),
    ] = None,
    docs: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write what came of it there, as pages for a browser.")
    ] = None,
) -> None:
    """Hold the tables against what is expected of them; ends with 1 where that is not so."""
    names, time = _tables(table), _time(since, "--since")
    from grouptrail.quality.check import check as run_check

    run_check(setup.load(), names, since=time, docs=docs, out=sys.stdout)


def _tables(given: list[str] | None) -> tuple[str, ...]:
    """The named tables, or none. Raises BadParameter for a name that is no table's."""
    from grouptrail import contracts

    unknown = [name for name in given or () if name not in contracts.tables()]
    if unknown:
        raise typer.BadParameter(f"'{unknown[0]}' is no table: see `grouptrail tables`", param_hint="TABLE")
    return tuple(given or ())


@_command
def maintain(
    setup: Setup,
    table: Annotated[list[str] | None, typer.Argument(metavar="[TABLE]...", help="[default: all tables]")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted, and do nothing.")] = False,
) -> None:
    """Thin old samples, delete what is older than [maintain] keeps, and make the tables' files large and sorted."""
    names = _tables(table)
    from grouptrail.maintenance.maintain import maintain as run_maintain

    for config in setup.load_all():
        run_maintain(config, names, dry_run=dry_run, out=sys.stdout)


@_command
def config_(setup: Setup) -> None:
    """Show the configuration in effect, as TOML, with stars in place of secrets."""
    configs = setup.load_all()
    for number, config in enumerate(configs):
        if len(configs) > 1:
            typer.echo(("\n" if number else "") + f"# The configuration of cluster {config.cluster}")
        typer.echo(_toml(config.redacted()), nl=False)


def _toml(tree: dict[str, Any]) -> str:
    import json

    def line(key: str, value: Any) -> str:
        name = key if key.replace("_", "").isalnum() else json.dumps(key)
        return f"{name} = {json.dumps(value, ensure_ascii=False)}\n"

    plain = "".join(line(key, value) for key, value in tree.items() if not isinstance(value, dict))
    sections = [
        f"\n[{name}]\n" + "".join(line(key, value) for key, value in section.items())
        for name, section in tree.items()
        if isinstance(section, dict) and section
    ]
    return plain + "".join(sections)


def main() -> None:
    """The entry point."""
    app(prog_name="grouptrail")
