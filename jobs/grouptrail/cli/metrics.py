"""Commands about metrics and web pages: serve, open, dashboards export."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from grouptrail.cli.options import ConfigOptions, Listen, WebConfigFile
from grouptrail.console.progress import Log, print_log, print_note
from grouptrail.console.text import harmless

# How `serve` reports its address.
_SERVING = re.compile(r"serving (https?://[^\s/]+/)")


def serve(
    options: ConfigOptions,
    listen: Listen = None,
    also_as: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Also serve the metric names of these exporters: kafka_exporter,kminion,burrow,kafka-lag-exporter.",
        ),
    ] = None,
    web_config_file: WebConfigFile = None,
) -> None:
    """Serve Prometheus metrics from the tables, without a JVM, until Ctrl-C."""
    settings = {"exporter.listen": listen, "exporter.also_as": also_as, "exporter.web_config_file": web_config_file}
    _serve(options, settings, print_log)


def open_(options: ConfigOptions, listen: Listen = None, web_config_file: WebConfigFile = None) -> None:
    """Run `serve` and open its address in the browser."""

    def log(line: str) -> None:
        print_log(line)
        if match := _SERVING.match(line):
            _open_browser(match[1])

    _serve(options, {"exporter.listen": listen, "exporter.web_config_file": web_config_file}, log)


def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write to.")],
    runbook_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where the runbooks are, such as http://grouptrail:9308/runbooks: each alert links to its section. "
            "[default: no links]",
        ),
    ] = None,
    datasource_uid: Annotated[
        str | None,
        typer.Option(
            metavar="UID",
            help="The Prometheus data source that the dashboards show at first. [default: Grafana's default]",
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace files that were changed, or not written by an export.")
    ] = False,
) -> None:
    """Write the Grafana dashboards and Prometheus alert rules to a folder."""
    from grouptrail.exporter.dashboards import export_files, exported_files

    content = exported_files(runbook_url=runbook_url, datasource_uid=datasource_uid)
    for path, change in export_files(content, folder, overwrites=overwrite).items():
        print(f"{harmless(str(folder / path))} ({change})")
    if runbook_url is None:
        print_note(
            "the alerts have no runbook_url: give --runbook-url with the address of the web pages and /runbooks"
        )


def _serve(options: ConfigOptions, settings: Mapping[str, str | None], log: Log) -> None:
    configs = options.with_settings(settings).load_all()
    from grouptrail.runtime.serving import serve as serve_until_stopped

    serve_until_stopped(configs, log)


def _open_browser(url: str) -> None:
    import webbrowser

    try:
        is_open = webbrowser.open(url)
    except (webbrowser.Error, OSError):
        is_open = False
    if not is_open:
        print_log(f"no browser could be opened here: open {url}")
