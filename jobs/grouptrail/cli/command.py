"""How a function becomes a command: shared options, one-line errors and exit statuses."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any, get_type_hints

import typer

from grouptrail.cli.help import Command
from grouptrail.cli.options import ConfigOptions, Debug
from grouptrail.console.text import harmless
from grouptrail.errors import GrouptrailError, comes_from_spark, missing_package, one_line, printable

EXIT_ERROR, EXIT_USAGE, EXIT_BUG, EXIT_PIPE = 1, 2, 70, 141


def add_command(app: typer.Typer, function: Callable[..., None], *, heading: str | None = None) -> None:
    """Add a function to an app as a command of its name, with `--debug` and one-line errors.

    `heading` is the one under which `--help` lists it.
    Where the function takes `options: ConfigOptions`, the command takes the options in it, after the function's own.
    """
    parameters = _parameters(function)
    shared = _parameters(ConfigOptions) if parameters.pop("options", None) else {}
    debug = inspect.Parameter("debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Debug)
    parameters |= shared | {"debug": debug}

    @functools.wraps(function)
    def command(*, debug: bool, **values: Any) -> None:
        with report_errors(debug=debug):
            if shared:
                values["options"] = ConfigOptions(**{name: values.pop(name) for name in shared})
            function(**values)

    command.__signature__ = inspect.Signature([*parameters.values()])  # type: ignore[attr-defined]
    command.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
    del command.__wrapped__
    name = function.__name__.removesuffix("_").replace("_", "-")
    app.command(name, cls=Command, rich_help_panel=heading)(command)


def _parameters(owner: Callable[..., object]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function or dataclass, keyword-only and with their annotations evaluated."""
    hints = get_type_hints(owner, include_extras=True)
    return {
        name: parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name])
        for name, parameter in inspect.signature(owner).parameters.items()
    }


@contextlib.contextmanager
def report_errors(*, debug: bool) -> Iterator[None]:
    """Turn an exception into one line on stderr and an exit status.

    With `debug` also print the stack trace, and which engine does what meanwhile.
    """
    try:
        with _choices_logged() if debug else contextlib.nullcontext():
            yield
        sys.stdout.flush()
        _note_damage()
    except (typer.Exit, typer.BadParameter):
        raise
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except BrokenPipeError:
        # The rest of the buffer cannot be written either: Python would print an error about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(EXIT_PIPE) from None
    except Exception as error:
        if debug:
            typer.echo(harmless(printable(traceback.format_exc()), keep_lines=True), err=True, nl=False)
        typer.echo(f"grouptrail: {harmless(printable(_message(error)), keep_lines=True)}", err=True)
        is_known = isinstance(error, GrouptrailError) or comes_from_spark(error) or missing_package(error)
        raise typer.Exit(EXIT_ERROR if is_known else EXIT_BUG) from error


def _note_damage() -> None:
    """Write to stderr which files were left out since they are damaged."""
    if "grouptrail.storage.damage" in sys.modules:  # it takes a while to import
        from grouptrail.storage.damage import all_damage, notes

        for line in notes(all_damage()):
            typer.echo(f"grouptrail: {harmless(line, keep_lines=True)}", err=True)


@contextlib.contextmanager
def _choices_logged() -> Iterator[None]:
    """Write to stderr which engine reads or writes how many rows (`storage.engines.choice`)."""
    import logging

    lines = logging.StreamHandler()
    lines.setFormatter(logging.Formatter("engine: %(message)s"))
    choices = logging.getLogger("grouptrail.engine")
    choices.addHandler(lines)
    choices.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        choices.removeHandler(lines)
        choices.setLevel(logging.NOTSET)


def _message(error: Exception) -> str:
    if isinstance(error, GrouptrailError):
        return str(error)
    if package := missing_package(error):
        return f"this command needs {package}, which is not installed: pip install grouptrail adds what is missing"
    if comes_from_spark(error):
        from grouptrail.runtime.running import reason

        return f"{reason(error)}; --debug prints the stack trace"
    return f"{one_line(error)}; run again with --debug for the stack trace, and report it as a bug"
