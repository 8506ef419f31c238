"""Commands about the tables' contracts: contracts export."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from grouptrail.console.progress import print_now


def export(
    to: Annotated[Literal["dbt", "odcs"], typer.Option(help="dbt's sources, or the Open Data Contract Standard.")],
    schema: Annotated[
        str, typer.Option(metavar="NAME", help="The schema that has the tables in the catalog.")
    ] = "grouptrail",
    out: Annotated[
        Path | None, typer.Option("-o", "--output", "--out", metavar="FILE", help="Write it to this file.")
    ] = None,
) -> None:
    """Print the contracts of the tables for other tools: columns with types, meanings, keys and tests."""
    from importlib.metadata import version

    from grouptrail.query.formats import whole_file
    from grouptrail.report.data_contracts import exported

    text = exported(to, version=version("grouptrail"), schema=schema)
    if out is None:
        sys.stdout.write(text)
        return
    with whole_file(out) as partial:
        partial.write_text(text, "utf-8")
    print_now(f"{out}: the contracts of the tables")
