"""Commands that query the tables in SQL: sql, tables, views install, serve-sql."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from grouptrail.cli.options import ConfigOptions

if TYPE_CHECKING:
    from grouptrail.config import Config
    from grouptrail.query.sql import Engine


def sql(
    options: ConfigOptions,
    *,
    text: Annotated[
        str | None, typer.Argument(metavar="[QUERY]", help="The query; - reads it from stdin. [default: a prompt]")
    ] = None,
    file: Annotated[Path | None, typer.Option(metavar="FILE", help="Read the query from a file.")] = None,
    format: Annotated[
        Literal["table", "json", "csv", "parquet", "reset-offsets"],
        typer.Option(
            help="A table, JSON lines, CSV, a Parquet file, or what kafka-consumer-groups --from-file takes."
        ),
    ] = "table",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the answer there.")] = None,
    engine: Annotated[
        Literal["delta-rs", "spark"], typer.Option(help="What answers: delta-rs at once, Spark what is big.")
    ] = "delta-rs",
) -> None:
    """Ask the tables in SQL, at a prompt where no query is given. Answers come without a JVM; times are UTC."""
    if format == "parquet" and out is None:
        raise typer.BadParameter("Parquet is no text: name a file with --out", param_hint="--format")
    query = None if text is None and file is None and sys.stdin.isatty() else _query(text, file)
    config = options.load()
    from grouptrail.query.sql import run_sql, save_sql

    with _engine(config, engine) as answering:
        if query is None:
            from grouptrail.query.prompt import prompt

            prompt(config, answering, sys.stdout)
        elif out is not None:
            save_sql(config, query, format=format, path=out, engine=answering)
        elif format != "parquet":
            run_sql(config, query, format=format, out=sys.stdout, engine=answering)


@contextlib.contextmanager
def _engine(config: Config, name: str) -> Iterator[Engine]:
    if name == "spark":
        from grouptrail.query.spark.engine import spark_engine

        with spark_engine(config, lambda line: typer.echo(line, err=True)) as engine:
            yield engine
    else:
        from grouptrail.query.sql import DeltaRs

        yield DeltaRs(config)


def _query(text: str | None, file: Path | None) -> str:
    if (text is None) == (file is None):
        raise typer.BadParameter("give a query, or --file FILE, or - for stdin", param_hint="QUERY")
    if file is None:
        return sys.stdin.read() if text == "-" else str(text)
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{file} cannot be read: {error}", param_hint="--file") from error


def tables(
    options: ConfigOptions,
    name: Annotated[str | None, typer.Argument(help="Show the columns of this table or view instead.")] = None,
) -> None:
    """List the tables, what is in them and the views, or the columns of one and what they mean."""
    from grouptrail.query.sql import print_columns, print_tables

    if name is None:
        print_tables(options.load(), sys.stdout)
    else:
        print_columns(name, sys.stdout)


def install(
    options: ConfigOptions,
    schema: Annotated[str, typer.Option(metavar="NAME", help="The schema; made where it is not.")] = "grouptrail",
) -> None:
    """Put the tables, views and table functions into Spark's catalog; again after an upgrade."""
    from grouptrail.query.spark.catalog import install_views

    install_views(options.load(), schema=schema, report=typer.echo)


def serve_sql(
    options: ConfigOptions,
    *,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where both listen; they ask nobody who he is.")
    ] = "127.0.0.1",
    connect_port: Annotated[int, typer.Option(metavar="PORT", min=1, max=65535, help="Spark Connect's.")] = 15002,
    thrift_port: Annotated[int, typer.Option(metavar="PORT", min=1, max=65535, help="The Thrift server's.")] = 10000,
    connect: Annotated[bool, typer.Option(help="Spark Connect.")] = True,
    thrift: Annotated[bool, typer.Option(help="The Thrift server: JDBC, ODBC, beeline.")] = True,
) -> None:
    """Serve the tables, views and table functions to SQL clients, until Ctrl-C."""
    from grouptrail.query.spark.server import Listening, serve_sql

    listening = Listening(host, connect_port if connect else None, thrift_port if thrift else None)
    serve_sql(options.load(), listening, typer.echo)
