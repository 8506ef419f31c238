"""The command that serves metrics and web pages from the tables: serve."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from grouptrail.cli.options import ConfigOptions
from grouptrail.console.text import harmless


def serve(
    options: ConfigOptions,
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Address to listen on. [default: exporter.listen, 127.0.0.1:9308]"),
    ] = None,
    also_as: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Also serve the metric names of these exporters: kafka_exporter,kminion,burrow,kafka-lag-exporter.",
        ),
    ] = None,
) -> None:
    """Serve web pages and Prometheus metrics from the tables, without a JVM, until Ctrl-C."""
    values = {"exporter.listen": listen, "exporter.also_as": also_as}
    named = [f"{name}={value}" for name, value in values.items() if value is not None]
    configs = replace(options, set=[*(options.set or ()), *named]).load_all()
    from grouptrail.runtime.serving import serve as serve_until_stopped

    serve_until_stopped(configs, lambda line: typer.echo(harmless(line, keep_lines=True), err=True))
