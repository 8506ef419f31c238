"""Commands about the tables' contracts: contracts export."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import typer

from grouptrail.cli.options import ConfigOptions
from grouptrail.console.progress import print_now


def export(
    options: ConfigOptions,
    to: Annotated[
        Literal["dbt", "odcs", "openlineage"],
        typer.Option(
            help="dbt's sources, the Open Data Contract Standard, or what each job reads and writes for OpenLineage."
        ),
    ],
    schema: Annotated[
        str, typer.Option(metavar="NAME", help="The schema that has the tables in the catalog.")
    ] = "grouptrail",
    out: Annotated[
        Path | None, typer.Option("-o", "--output", "--out", metavar="FILE", help="Write it to this file.")
    ] = None,
) -> None:
    """Print the contracts of the tables for other tools: columns with types, meanings, keys, tests, and lineage."""
    from importlib.metadata import version

    from grouptrail.query.formats import whole_file
    from grouptrail.report.data_contracts import exported

    release = version("grouptrail")
    text = _lineage(options, release) if to == "openlineage" else exported(to, version=release, schema=schema)
    if out is None:
        sys.stdout.write(text)
        return
    with whole_file(out) as partial:
        partial.write_text(text, "utf-8")
    content = "what the jobs read and write" if to == "openlineage" else "the contracts of the tables"
    print_now(f"{out}: {content}")


def _lineage(options: ConfigOptions, release: str) -> str:
    from grouptrail.jobs import jobs_for
    from grouptrail.report.openlineage import job_events

    now = datetime.now(UTC).isoformat(timespec="seconds")
    return "".join(
        f"{json.dumps(event)}\n"
        for config in options.load_all()
        for event in job_events(
            jobs_for(config),
            cluster=config.cluster,
            bootstrap_servers=config.kafka_settings()["bootstrap.servers"],
            warehouse=config.warehouse,
            version=release,
            at=now,
        )
    )
