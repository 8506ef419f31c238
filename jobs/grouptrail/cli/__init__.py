"""The command `grouptrail`: one module for each family of commands, and here the list of them all.

A command parses its options, calls a room below and prints. What it needs is imported when it runs, so that
`grouptrail decode` and `grouptrail --help` start without Spark, pandas or the configuration.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from grouptrail.cli import contracts, groups, maintenance, metrics, query, records, run, what_if
from grouptrail.cli.command import add_command
from grouptrail.cli.help import Group
from grouptrail.console.text import harmless


class _Group(Group):
    """Commands whose errors of usage repeat no control characters of an argument to the terminal."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Parse the options of the group itself."""
        with _harmless_errors():
            return super().make_context(*args, **options)

    def invoke(self, *args: Any, **options: Any) -> Any:
        """Parse the options of a command, and run it."""
        with _harmless_errors():
            return super().invoke(*args, **options)


@contextlib.contextmanager
def _harmless_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if isinstance(message := getattr(error, "message", None), str):
            is_help = type(error).__name__ == "NoArgsIsHelpError"  # typer keeps the class to itself
            error.message = harmless(message, keep_lines=is_help)  # type: ignore[attr-defined]
        raise


def _group(name: str, text: str) -> typer.Typer:
    return typer.Typer(
        cls=_Group,
        name=name,
        help=text,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


app = _group("grouptrail", "The history of Kafka consumer groups: __consumer_offsets, decoded into Delta tables.")
_show = _group("show", "Show one consumer group, or the lag of groups.")
_what_if = _group("what-if", "Show what a stop of brokers would do.")
_dashboards = _group("dashboards", "Write the dashboards and alerts for the metrics.")
_contracts = _group("contracts", "Print the contracts of the tables for other tools.")
_views = _group("views", "Install the SQL views in other engines.")

_RUN, _ASK, _SERVE, _TABLES = "Run the pipeline", "Look at groups", "Serve others", "Records and tables"
# In the order of `grouptrail --help`.
_COMMANDS: tuple[tuple[typer.Typer, str | None, tuple[Callable[..., None] | typer.Typer, ...]], ...] = (
    (app, _RUN, (run.run, run.doctor, run.recover, run.config_)),
    (app, _ASK, (_show, groups.timeline, groups.diff, groups.report, groups.digest, groups.backtest)),
    (app, _ASK, (_what_if, query.sql, query.tables)),
    (app, _SERVE, (metrics.serve, metrics.open_, _dashboards, query.serve_sql, _views, _contracts)),
    (app, _TABLES, (maintenance.check, maintenance.repair, maintenance.maintain)),
    (app, _TABLES, (records.decode, records.redecode, records.ingest_segments)),
    (app, _TABLES, (records.ingest_broker_log, records.rebuild)),
    (_show, None, (groups.group, groups.lag)),
    (_what_if, None, (what_if.broker,)),
    (_dashboards, None, (metrics.export,)),
    (_views, None, (query.install,)),
    (_contracts, None, (contracts.export,)),
)
for _parent, _heading, _listed in _COMMANDS:
    for _one in _listed:
        if isinstance(_one, typer.Typer):
            _parent.add_typer(_one, rich_help_panel=_heading)
        else:
            add_command(_parent, _one, heading=_heading)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"grouptrail {version('grouptrail')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    pass


def command() -> Callable[..., Any]:
    """Return what parses the arguments of the process and runs the command in them."""
    return typer.main.get_command(app)


def main() -> None:
    """Run the command that the process was started with."""
    command()(prog_name="grouptrail")
