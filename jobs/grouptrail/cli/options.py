"""Options that several commands share, and how their values are parsed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from grouptrail.cli.completion import complete_cluster, complete_group, complete_table, complete_topic
from grouptrail.cli.overrides import overrides

if TYPE_CHECKING:
    from grouptrail.config import Config

CONFIGURATION = "Configuration"

Debug = Annotated[
    bool,
    typer.Option(
        "--debug", rich_help_panel=CONFIGURATION, help="Show the stack trace of an error, and which engine does what."
    ),
]
Groups = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATTERN",
        autocompletion=complete_group,
        help="Only groups that match this pattern, such as billing-*. May be repeated.",
    ),
]
Topics = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATTERN",
        autocompletion=complete_topic,
        help="Only topics that match this pattern. May be repeated.",
    ),
]
Group = Annotated[str, typer.Argument(metavar="GROUP", autocompletion=complete_group, help="The group.")]
Tables = Annotated[
    list[str] | None,
    typer.Argument(metavar="[TABLE]...", autocompletion=complete_table, help="[default: all tables]"),
]
RowsFormat = Annotated[
    Literal["table", "json", "csv", "markdown"],
    typer.Option(help="A table, JSON lines, CSV, or a table in Markdown."),
]
Listen = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Address to listen on. [default: exporter.listen, 127.0.0.1:9308]"),
]
WebConfigFile = Annotated[
    str | None,
    typer.Option(
        "--web.config.file",
        metavar="FILE",
        help="TLS and users of the metrics and pages, as Prometheus' exporters configure them. "
        "[default: exporter.web_config_file]",
    ),
]
OutputFile = Annotated[Path, typer.Option("-o", "--output", "--out", metavar="FILE", help="The file to write.")]
TIMES = "For example 03:12, yesterday, '2h ago' or 2026-11-21T14:55:00Z; UTC unless it has an offset."
"""Help text of every option that takes a time."""


@dataclass(frozen=True)
class ConfigOptions:
    """The options of every command that needs the configuration."""

    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel=CONFIGURATION,
            help="TOML file. [default: grouptrail.toml, if it exists]",
        ),
    ] = None
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            rich_help_panel=CONFIGURATION,
            autocompletion=complete_cluster,
            help="Name of the cluster in every row; selects one of several configured clusters.",
        ),
    ] = None
    warehouse: Annotated[
        str | None,
        typer.Option(metavar="LOCATION", rich_help_panel=CONFIGURATION, help="Folder or URI of the Delta tables."),
    ] = None
    bootstrap_server: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", rich_help_panel=CONFIGURATION, help="Kafka brokers, separated by commas."),
    ] = None
    set: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            rich_help_panel=CONFIGURATION,
            help="Any other setting: kafka.security.protocol=SSL. May be repeated.",
        ),
    ] = None

    def with_settings(self, settings: Mapping[str, str | None]) -> ConfigOptions:
        """Return these options with some more settings, as with `--set`; None sets nothing."""
        named = [f"{name}={value}" for name, value in settings.items() if value is not None]
        return replace(self, set=[*(self.set or ()), *named])

    def load(self) -> Config:
        """Load the configuration of one cluster from file, environment and these options."""
        from grouptrail.config import load_config

        config = load_config(self.config, overrides(vars(self)))
        _warn(config)
        return config

    def load_stored(self) -> Config:
        """Load the configuration of one cluster that the warehouse has: the only one there, if none is configured."""
        from grouptrail.runtime.warehouses import stored

        return stored(self.load())

    def load_all(self, *, warns: bool = True) -> tuple[Config, ...]:
        """Load the configuration of every cluster, or of the one named by `--cluster`."""
        from grouptrail.config import load_configs

        configs = load_configs(self.config, overrides(vars(self)))
        if warns:
            _warn(configs[0])
        return configs


def _warn(config: Config) -> None:
    if config.warning is not None:
        from grouptrail.console.progress import print_log

        print_log(f"grouptrail: warning: {config.warning}")


def parse_time(text: str, option: str) -> datetime:
    """Return the time in one of the forms of `console.times`. Raise BadParameter for any other text."""
    from grouptrail.console.times import FORMS, parsed_moment

    try:
        return parsed_moment(text, datetime.now(UTC))
    except ValueError as error:
        raise typer.BadParameter(f"'{text}' is not a time: use one such as {FORMS}", param_hint=option) from error


def parse_past_time(text: str, option: str) -> datetime:
    """Return the time as `parse_time` does. Raise BadParameter also for a future one, of which nothing is known."""
    time = parse_time(text, option)
    if time > datetime.now(UTC):
        raise typer.BadParameter(f"'{text}' is in the future: give one up to now", param_hint=option)
    return time


def parse_names(given: list[str] | None, known: Iterable[str], option: str) -> tuple[str, ...]:
    """Return the given names. Raise BadParameter for one that is not among the known names."""
    names = list(known)
    unknown = [name for name in given or () if name not in names]
    if unknown:
        raise typer.BadParameter(f"'{unknown[0]}' is not one of {', '.join(names)}", param_hint=option)
    return tuple(given or ())


def parse_tables(given: list[str] | None) -> tuple[str, ...]:
    """Return the given table names. Raise BadParameter for one that is not a table's."""
    from grouptrail import contracts

    return parse_names(given, contracts.tables(), "TABLE")
