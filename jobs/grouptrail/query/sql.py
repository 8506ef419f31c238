"""`grouptrail sql` and `grouptrail tables`: queries of a warehouse, and the list of its tables and views."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Protocol, TextIO

from arro3.core import RecordBatch, Schema
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from grouptrail import contracts
from grouptrail.console.progress import print_note
from grouptrail.query.clusters import stored_cluster
from grouptrail.query.errors import QueryError
from grouptrail.query.fitted_table import FittedTable
from grouptrail.query.formats import (
    MAX_TABLE_ROWS,
    Format,
    RowsFormat,
    TextFormat,
    console_on,
    save_parquet,
    whole_file,
    write_rows,
    write_table,
)
from grouptrail.query.freshness import LAG, stale_note
from grouptrail.query.views import DELTA_RS, Dialect, expand
from grouptrail.storage.reader import table_size
from grouptrail.storage.result_rows import column_names, first_rows, rows
from grouptrail.storage.sql_snapshot import SqlSnapshot, no_such_table
from grouptrail.storage.warehouse import Warehouse

_BEFORE_WORD = r"(?:\s|\(|--[^\n]*(?:\n|$)|/\*(?:(?!/\*).)*?\*/)*"
_QUERY = re.compile(
    rf"{_BEFORE_WORD}(?:explain\b(?:{_BEFORE_WORD}(?:analyze|verbose|format\s+\w+)\b)*{_BEFORE_WORD})?"
    r"(?:select|with|values|show|describe|desc)\b",
    re.IGNORECASE | re.DOTALL,
)
_CATALOG_QUESTION = re.compile(r"\bshow\b|\binformation_schema\b", re.IGNORECASE)

_ABOUT = "one row is"

ONLY_QUERIES = "only queries are answered: begin with SELECT, WITH, VALUES, EXPLAIN, DESCRIBE or SHOW"


@dataclass(frozen=True)
class TableSummary:
    """The size of a table; None before its first rows. `newest_at` is UTC in ISO 8601."""

    name: str
    about: str
    rows: int | None = None
    files: int | None = None
    size_bytes: int | None = None
    newest_at: str | None = None


class Engine(Protocol):
    """An engine that answers queries."""

    dialect: Dialect

    def answer(self, text: str, names: Collection[str]) -> tuple[Schema, Iterator[RecordBatch]]:
        """Run a query over the tables of these names. Raises QueryError, also while the batches are read."""


class DeltaRs:
    """The engine of delta-rs, DataFusion, which needs no JVM."""

    dialect = DELTA_RS

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse

    def answer(self, text: str, names: Collection[str]) -> tuple[Schema, Iterator[RecordBatch]]:
        return SqlSnapshot(self._warehouse, names).stream(text)


@dataclass(frozen=True)
class QueryContext:
    """What queries are run with.

    Views have the rows of the warehouse's cluster, or unless the settings name one (`is_cluster_named`) those of the
    only cluster there. `sample_seconds` is the time between samples of the logs (`log_offsets.interval_seconds`).
    """

    warehouse: Warehouse
    engine: Engine
    sample_seconds: float
    is_cluster_named: bool


def run_query(context: QueryContext, text: str) -> tuple[Schema, Iterator[RecordBatch]]:
    """Run a query over the tables and views of the warehouse. Raises QueryError with one line."""
    return run_query_with_note(context, text)[:2]


def run_query_with_note(context: QueryContext, text: str) -> tuple[Schema, Iterator[RecordBatch], str | None]:
    """Do as `run_query`; return also a note if the data are too old to show what the query's views are asked for."""
    if not _QUERY.match(text):
        raise QueryError(ONLY_QUERIES)
    warehouse, engine = context.warehouse, context.engine
    query = expand(text, warehouse.cluster, engine.dialect)
    if query.calls:
        cluster = stored_cluster(warehouse, is_named=context.is_cluster_named)
        if cluster != warehouse.cluster:
            warehouse, query = warehouse.of_cluster(cluster), expand(text, cluster, engine.dialect)
    groups = SqlSnapshot(warehouse, {table for table, _ in query.groups})
    for table, group_id in sorted(query.groups):
        groups.require_group(group_id, table)
    schema, batches = engine.answer(query.text, _named_in(query.text))
    notes = (
        stale_note(warehouse, context.sample_seconds, until, of_lag=LAG.keys() <= set(view.tables))
        for view, until in query.calls
    )
    return schema, batches, next(filter(None, notes), None)


def run_sql(context: QueryContext, text: str, *, format: TextFormat, out: TextIO) -> None:
    """Run a query and write the result as text."""
    started = time.monotonic()
    schema, batches, note = run_query_with_note(context, text)
    names = column_names(schema)
    if format != "table":
        write_rows(names, rows(batches), out, format=format)
        print_note(note)
    else:
        first, count = first_rows(batches, MAX_TABLE_ROWS)
        write_table(names, first, out)
        shown = "" if count <= MAX_TABLE_ROWS else f", the first {MAX_TABLE_ROWS} shown (--format csv shows all)"
        plural = "" if count == 1 else "s"
        out.write(f"{count} row{plural} in {time.monotonic() - started:.2f} s{shown}\n")
        out.write(f"{note}\n" if note else "")


def save_sql(context: QueryContext, text: str, *, format: Format, path: Path) -> None:
    """Run a query and write the result to a file; an existing file is replaced only on success."""
    if format == "parquet":
        schema, batches, note = run_query_with_note(context, text)
        save_parquet(schema, batches, path)
        print_note(note)
        return
    with whole_file(path) as partial, partial.open("w", encoding="utf-8", newline="\n") as out:
        run_sql(context, text, format=format, out=out)


def list_tables(warehouse: Warehouse) -> list[TableSummary]:
    """Return every table in the order of the contracts."""
    return [_summary(warehouse, contract) for contract in contracts.tables().values()]


def print_tables(warehouse: Warehouse, out: TextIO, *, format: RowsFormat = "table") -> None:
    """Print one line per table, then one per view; in other formats than a table, only the tables."""
    summaries = list_tables(warehouse)
    if format != "table":
        names = [field.name for field in fields(TableSummary)]
        write_rows(names, (astuple(summary) for summary in summaries), out, format=format)
        return
    console = console_on(out)
    console.print(FittedTable([(_line(one), "") for one in summaries], (), ("rows", "files", "size"), (_ABOUT,)))
    console.print(f"in {warehouse.shown}\n", markup=False, soft_wrap=True)
    views = [
        ({"view": view.signature, _ABOUT: first_sentence(view.about)}, "") for view in contracts.views().values()
    ]
    console.print(FittedTable(views, (), (), (_ABOUT,)))
    if all(summary.rows is None for summary in summaries):
        console.print("Nothing has landed there yet: run `grouptrail run`, or check --warehouse.")


def _line(summary: TableSummary) -> dict[str, str]:
    has_rows = summary.rows is not None
    return {
        "table": summary.name,
        "rows": f"{summary.rows:,}" if has_rows else "-",
        "files": f"{summary.files:,}" if has_rows else "-",
        "size": _size(summary.size_bytes or 0) if has_rows else "-",
        "newest (UTC)": (summary.newest_at or "-").removesuffix("Z").replace("T", " "),
        _ABOUT: first_sentence(summary.about),
    }


def first_sentence(text: str) -> str:
    """Return the first sentence of a text, without its full stop."""
    return text.split(". ", maxsplit=1)[0].removesuffix(".")


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def print_columns(name: str, out: TextIO, *, format: RowsFormat = "table") -> None:
    """Print the columns of a table, or the parameters and columns of a view, with their meaning.

    In other formats than a table these are only the columns. Raises QueryError if there is neither.
    """
    console = console_on(out)
    view, contract = contracts.views().get(name), contracts.tables().get(name)
    described = view or contract
    if described is None:
        raise QueryError(no_such_table(name))
    if format != "table":
        meanings = ((column.name, column.type, column.about, column.null_means) for column in described.columns)
        write_rows(["column", "type", "meaning", "null_means"], meanings, out, format=format)
        return
    if view is not None:
        _print_view(view, console)
        return
    assert contract is not None
    console.print(escape(f"{contract.name}: {contract.about.strip()}"))
    console.print(f"key: {', '.join(contract.key)}")
    _print_meanings("column", contract.columns, console)


def _print_view(view: contracts.View, console: Console) -> None:
    console.print(escape(f"{view.signature}: {view.about.strip()}"))
    console.print(f"example: {view.example}", markup=False, soft_wrap=True)
    if view.parameters:
        _print_meanings("parameter", view.parameters, console)
        console.print()
    _print_meanings("column", view.columns, console)


def _print_meanings(what: str, named: Sequence[contracts.Column | contracts.Parameter], console: Console) -> None:
    table = Table(what, "type", "meaning", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for one in named:
        if isinstance(one, contracts.Column):
            more = f" (null: {one.null_means})" if one.null_means else ""
        else:
            more = "" if one.default is None else f" (default: {one.default})"
        table.add_row(one.name, escape(one.type), escape(one.about + more))
    console.print(table)


def _named_in(text: str) -> set[str]:
    """Return the tables named in a query: opening a table reads its log, so no others are opened."""
    names = set(contracts.tables())
    return names if _CATALOG_QUESTION.search(text) else names & set(re.findall(r"\w+", text.lower()))


def _summary(warehouse: Warehouse, contract: contracts.Table) -> TableSummary:
    table = warehouse.table(contract.name).open()
    if table is None:
        return TableSummary(contract.name, contract.about)
    size = table_size(table, contract.time_column)
    count, newest_at = size.rows, size.newest_at
    if count is None:
        count, newest_at = _counted_by_query(warehouse, contract)
    return TableSummary(contract.name, contract.about, count, size.files, size.size_bytes, newest_at)


def _counted_by_query(warehouse: Warehouse, contract: contracts.Table) -> tuple[int, str | None]:
    newest = f"max({contract.time_column or 'NULL'})"
    _, batches = SqlSnapshot(warehouse, [contract.name]).answer(f"SELECT count(*), {newest} FROM {contract.name}")
    [(count, newest_at)] = rows(batches)
    return count, newest_at
