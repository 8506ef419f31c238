"""Commands that query the tables in SQL: sql, tables, views install, serve-sql."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from grouptrail.cli.completion import complete_table
from grouptrail.cli.options import ConfigOptions, RowsFormat
from grouptrail.console.progress import print_log, print_now


def sql(
    options: ConfigOptions,
    *,
    text: Annotated[
        str | None, typer.Argument(metavar="[QUERY]", help="The query; - reads it from stdin. [default: a prompt]")
    ] = None,
    file: Annotated[Path | None, typer.Option(metavar="FILE", help="Read the query from a file.")] = None,
    format: Annotated[
        Literal["table", "json", "csv", "markdown", "parquet", "reset-offsets"],
        typer.Option(
            help="A table, JSON lines, CSV, a table in Markdown, a Parquet file, or the CSV that "
            "kafka-consumer-groups --from-file reads."
        ),
    ] = "table",
    out: Annotated[
        Path | None,
        typer.Option("-o", "--output", "--out", metavar="FILE", help="Write the result to this file."),
    ] = None,
    engine: Annotated[
        Literal["delta-rs", "spark"], typer.Option(help="delta-rs answers at once; Spark is for large queries.")
    ] = "delta-rs",
) -> None:
    """Query the tables in SQL; without a query, open a prompt. No JVM is needed; times are UTC."""
    if format == "parquet" and out is None:
        raise typer.BadParameter("Parquet is a binary format: name a file with --out", param_hint="--format")
    query = None if text is None and file is None and sys.stdin.isatty() else _read_query(text, file)
    config = options.load()
    from grouptrail.query.sql import run_sql, save_sql
    from grouptrail.runtime.warehouses import query_context

    with query_context(config, engine, print_log) as context:
        if query is None:
            from grouptrail.query.prompt import prompt

            prompt(context, sys.stdout)
        elif out is not None:
            save_sql(context, query, format=format, path=out)
        elif format != "parquet":
            run_sql(context, query, format=format, out=sys.stdout)


def _read_query(text: str | None, file: Path | None) -> str:
    if (text is None) == (file is None):
        raise typer.BadParameter("give either a query, or --file FILE, or - for stdin", param_hint="QUERY")
    if file is None:
        return sys.stdin.read() if text == "-" else str(text)
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"cannot read {file}: {error}", param_hint="--file") from error


def tables(
    options: ConfigOptions,
    name: Annotated[
        str | None,
        typer.Argument(autocompletion=complete_table, help="Describe the columns of this table or view."),
    ] = None,
    *,
    format: RowsFormat = "table",
) -> None:
    """List the tables and views with their contents, or describe the columns of one."""
    from grouptrail.query.sql import print_columns, print_tables

    if name is None:
        from grouptrail.runtime.warehouses import warehouse_of

        print_tables(warehouse_of(options.load()), sys.stdout, format=format)
    else:
        print_columns(name, sys.stdout, format=format)


def install(
    options: ConfigOptions,
    schema: Annotated[str, typer.Option(metavar="NAME", help="The schema; created if missing.")] = "grouptrail",
) -> None:
    """Register the tables, views and table functions in Spark's catalog. Repeat after an upgrade."""
    from grouptrail.query.spark.catalog import install_views
    from grouptrail.runtime.warehouses import warehouse_in_session

    with warehouse_in_session(options.load_stored(), "views", print_now) as warehouse:
        install_views(warehouse, schema=schema, log=print_now)


def serve_sql(
    options: ConfigOptions,
    *,
    host: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="Address to listen on; any but loopback requires a token and TLS."),
    ] = "127.0.0.1",
    connect_port: Annotated[
        int, typer.Option(metavar="PORT", min=1, max=65535, help="Port of Spark Connect.")
    ] = 15002,
    thrift_port: Annotated[
        int, typer.Option(metavar="PORT", min=1, max=65535, help="Port of the Thrift server.")
    ] = 10000,
    connect: Annotated[bool, typer.Option(help="Serve Spark Connect.")] = True,
    thrift: Annotated[bool, typer.Option(help="Serve Thrift: JDBC, ODBC, beeline.")] = True,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Require the token in this file. [default: only the user who runs this may connect]"
        ),
    ] = None,
    tls_certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Encrypt connections with this certificate (PEM).")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="The certificate's key (PEM).")] = None,
    allow_writes: Annotated[
        bool, typer.Option("--allow-writes", help="Let clients do whatever the user who runs this may do.")
    ] = False,
) -> None:
    """Serve the tables, views and table functions to SQL clients, read-only, until Ctrl-C."""
    if (tls_certificate is None) != (tls_key is None):
        raise typer.BadParameter("--tls-certificate and --tls-key belong together", param_hint="--tls-key")
    from grouptrail.config.tokens import read_token
    from grouptrail.query.spark.access import Access, Tls
    from grouptrail.query.spark.server import Listening, serve_sql
    from grouptrail.runtime.warehouses import session_settings, warehouse_of

    token = None if token_file is None else read_token(token_file, "--token-file")
    tls = None if tls_certificate is None or tls_key is None else Tls(tls_certificate, tls_key)
    listening = Listening(
        Access(host, token, tls),
        connect_port if connect else None,
        thrift_port if thrift else None,
        allow_writes=allow_writes,
    )
    config = options.load_stored()
    serve_sql(warehouse_of(config), session_settings(config), listening, print_now)
