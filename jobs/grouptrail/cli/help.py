"""`--help` in sections: commands and options under headings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from typer.core import TyperCommand, TyperGroup

_COMMANDS, _OPTIONS, _ARGUMENTS = "Commands", "Options", "Arguments"

# Click cuts a longer sentence.
_WHOLE = 1_000


class Command(TyperCommand):
    """A command that lists its options under the headings that they name."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then options, then those of other headings."""
        _write_options(self, ctx, formatter)


class Group(TyperGroup):
    """A group that lists its commands under the headings that they name."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write options, then commands."""
        _write_options(self, ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each command with the first sentence of its help."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        _write_sections(
            formatter,
            (
                (getattr(command, "rich_help_panel", None) or _COMMANDS, (name, command.get_short_help_str(_WHOLE)))
                for name, command in commands
                if command is not None and not command.hidden
            ),
        )


def _write_options(command: Any, ctx: Any, formatter: Any) -> None:
    records = [(param, param.get_help_record(ctx)) for param in command.get_params(ctx)]
    _write_sections(
        formatter,
        sorted(
            ((_heading(param), record) for param, record in records if record is not None),
            key=lambda one: (one[0] != _ARGUMENTS, one[0] != _OPTIONS),
        ),
    )


def _heading(param: Any) -> str:
    if param.param_type_name == "argument":
        return _ARGUMENTS
    return param.rich_help_panel or _OPTIONS


def _write_sections(formatter: Any, records: Iterable[tuple[str, tuple[str, str]]]) -> None:
    """Write records under their headings, in the order in which these first occur."""
    sections: dict[str, list[tuple[str, str]]] = {}
    for heading, record in records:
        sections.setdefault(heading, []).append(record)
    for heading, listed in sections.items():
        with formatter.section(heading):
            formatter.write_dl(listed)
