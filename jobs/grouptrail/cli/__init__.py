"""The command `grouptrail`: one module for each family of commands, and here the list of them all.

A command parses its options, calls a room below and prints. What it needs is imported when it runs, so that
`grouptrail decode` and `grouptrail --help` start without Spark, pandas or the configuration.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from grouptrail.cli import groups, maintenance, metrics, query, records, run
from grouptrail.cli.command import add_command
from grouptrail.console.text import harmless


class _Group(TyperGroup):
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
            error.message = harmless(message)  # type: ignore[attr-defined]
        raise


def _group(name: str, text: str) -> typer.Typer:
    return typer.Typer(
        cls=_Group, name=name, help=text, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None
    )


app = _group("grouptrail", "The history of Kafka consumer groups: __consumer_offsets, decoded into Delta tables.")
_show = _group("show", "Show one consumer group, or the lag of groups.")
_views = _group("views", "Install the SQL views in other engines.")
app.add_typer(_show)
app.add_typer(_views)

# In the order of `grouptrail --help`.
_COMMANDS: dict[typer.Typer, tuple[Callable[..., None], ...]] = {
    app: (
        *(run.run, run.recover),
        *(records.decode, records.redecode, records.ingest_segments, records.rebuild),
        *(query.sql, query.tables, query.serve_sql),
        *(groups.backtest, metrics.serve, run.doctor, groups.timeline, groups.report),
        *(maintenance.check, maintenance.maintain, run.config_),
    ),
    _show: (groups.group, groups.lag),
    _views: (query.install,),
}
for _parent, _functions in _COMMANDS.items():
    for _function in _functions:
        add_command(_parent, _function)


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


def main() -> None:
    """Run the command that the process was started with."""
    app(prog_name="grouptrail")
