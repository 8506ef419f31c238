"""Commands that run the pipeline and show how it is set up: run, recover, doctor, config."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from grouptrail.cli.command import EXIT_ERROR
from grouptrail.cli.options import ConfigOptions, Listen, RowsFormat, WebConfigFile, parse_names
from grouptrail.console.signals import interrupted_silently
from grouptrail.console.text import harmless, harmless_json


def run(
    options: ConfigOptions,
    job: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Run only this job. May be repeated. [default: all]")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Process what is available now, then exit.")] = False,
    listen: Listen = None,
    web_config_file: WebConfigFile = None,
) -> None:
    """Run the pipeline: read __consumer_offsets and write the Delta tables."""
    from grouptrail.memory import keep_memory_within_batches

    keep_memory_within_batches()
    with interrupted_silently():
        from grouptrail.runtime import pipeline

        settings = {"exporter.listen": listen, "exporter.web_config_file": web_config_file}
        configs = options.with_settings(settings).load_all()
    pipeline.run(configs, jobs=_parse_jobs(job), once=once)


def _parse_jobs(given: list[str] | None) -> tuple[str, ...]:
    from grouptrail.jobs import JOBS

    return parse_names(given, [known.name for known in JOBS], "--job")


def recover(
    options: ConfigOptions,
    job: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Recover this job even if it can resume. May be repeated. [default: jobs that cannot resume]",
        ),
    ] = None,
) -> None:
    """Replace a lost or unreadable checkpoint with a new one that starts where the job's tables end."""
    names = _parse_jobs(job)
    from grouptrail.runtime.recover import recover as run_recover

    run_recover(options.load_all(), names)


def doctor(options: ConfigOptions, web_config_file: WebConfigFile = None, *, format: RowsFormat = "table") -> None:
    """Check Java, versions, warehouse, disk, TLS, broker and permissions; each line says what to do."""
    configs = options.with_settings({"exporter.web_config_file": web_config_file}).load_all(warns=False)
    from grouptrail.runtime.doctor import examine, print_findings

    if not print_findings(examine(configs), sys.stdout, format=format):
        raise typer.Exit(EXIT_ERROR)


def config_(options: ConfigOptions) -> None:
    """Show the configuration in effect as TOML, with secrets redacted."""
    configs = options.load_all()
    for number, config in enumerate(configs):
        if len(configs) > 1:
            typer.echo(("\n" if number else "") + f"# Configuration of cluster {harmless(config.cluster)}")
        typer.echo(harmless_json(config.redacted_toml()), nl=False)  # TOML has JSON's escapes
