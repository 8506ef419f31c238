"""`grouptrail sql` and `grouptrail tables`: questions to the Delta tables of a warehouse, answered by delta-rs."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, TextIO

from arro3.core import DataType, RecordBatch, Schema
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError, TableNotFoundError
from rich import box
from rich.markup import escape
from rich.table import Table

from grouptrail import contracts
from grouptrail.errors import GrouptrailError
from grouptrail.explore.formats import (
    MAX_TABLE_ROWS,
    Format,
    column_names,
    console_on,
    rows,
    write_csv,
    write_json,
    write_table,
)

if TYPE_CHECKING:
    from grouptrail.config import Config

_BEFORE_WORD = r"(?:\s|\(|--[^\n]*(?:\n|$)|/\*(?:(?!/\*).)*?\*/)*"
_QUERY = re.compile(
    rf"{_BEFORE_WORD}(?:explain\b(?:{_BEFORE_WORD}(?:analyze|verbose|format\s+\w+)\b)*{_BEFORE_WORD})?"
    r"(?:select|with|values|show|describe|desc)\b",
    re.IGNORECASE | re.DOTALL,
)
_CATALOG_QUESTION = re.compile(r"\bshow\b|\binformation_schema\b", re.IGNORECASE)
_TABLE_NOT_FOUND = re.compile(r"table '(?:datafusion\.public\.)?([^']+)' not found")
_WRITERS = {"json": write_json, "csv": write_csv, "table": write_table}


class QueryError(GrouptrailError):
    """A question that cannot be answered."""


@dataclass(frozen=True)
class TableSummary:
    """What is in one table; the figures are None while nothing has landed in it. `newest_at` is UTC, ISO 8601."""

    name: str
    about: str
    rows: int | None = None
    files: int | None = None
    size_bytes: int | None = None
    newest_at: str | None = None


def run_sql(config: Config, text: str, *, format: Format, out: TextIO) -> None:
    """Answers one query over the warehouse's tables; QueryError tells in one line whatever is wrong with it."""
    started = time.monotonic()
    if not _QUERY.match(text):
        raise QueryError("only queries are answered: begin with SELECT, WITH, VALUES, EXPLAIN, DESCRIBE or SHOW")
    schema, batches = _answer(config, text, _named_in(text))
    found = rows(batches)
    count = _WRITERS[format](column_names(schema), found, out)
    if format == "table":
        shown = "" if count <= MAX_TABLE_ROWS else f", the first {MAX_TABLE_ROWS} shown (--format csv shows all)"
        plural = "" if count == 1 else "s"
        out.write(f"{count} row{plural} in {time.monotonic() - started:.2f} s{shown}\n")


def list_tables(config: Config) -> list[TableSummary]:
    """Every table there can be, in the contracts' order."""
    return [_summary(config, contract) for contract in contracts.tables().values()]


def print_tables(config: Config, out: TextIO) -> None:
    """`grouptrail tables`: one line a table."""
    summaries = list_tables(config)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name, justify in (("table", "left"), ("rows", "right"), ("files", "right"), ("size", "right")):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("newest (UTC)", no_wrap=True)
    table.add_column("one row is")
    for summary in summaries:
        table.add_row(*_cells(summary))
    console = console_on(out)
    console.print(table)
    console.print(f"in {config.warehouse}", markup=False, soft_wrap=True)
    if all(summary.rows is None for summary in summaries):
        console.print("Nothing has landed there yet: run `grouptrail run`, or correct --warehouse.")


def _cells(summary: TableSummary) -> list[str]:
    if summary.rows is None:
        return [summary.name, "-", "-", "-", "-", _first_sentence(summary.about)]
    newest = (summary.newest_at or "-").removesuffix("Z").replace("T", " ")
    size = _size(summary.size_bytes or 0)
    return [
        summary.name,
        f"{summary.rows:,}",
        f"{summary.files:,}",
        size,
        newest,
        _first_sentence(summary.about),
    ]


def _first_sentence(text: str) -> str:
    return text.split(". ", maxsplit=1)[0].removesuffix(".")


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def print_columns(name: str, out: TextIO) -> None:
    """`grouptrail tables NAME`: the columns, their types and what they mean. Raises QueryError for no such table."""
    contract = contracts.tables().get(name)
    if contract is None:
        raise QueryError(_no_such_table(name))
    console = console_on(out)
    console.print(escape(f"{contract.name}: {contract.about.strip()}"))
    console.print(f"key: {', '.join(contract.key)}")
    table = Table("column", "type", "meaning", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in contract.columns:
        null = f" (null: {column.null_means})" if column.null_means else ""
        table.add_row(column.name, escape(column.type), escape(column.about + null))
    console.print(table)


def _named_in(text: str) -> list[str]:
    """The tables a query may read: opening one costs a look at its log, so only those whose names it contains."""
    names = list(contracts.tables())
    if _CATALOG_QUESTION.search(text):
        return names
    words = set(re.findall(r"\w+", text.lower()))
    return [name for name in names if name in words]


def _answer(config: Config, text: str, names: Iterable[str]) -> tuple[Schema, Iterator[RecordBatch]]:
    builder = QueryBuilder({"datafusion.catalog.information_schema": "true"})
    for name in names:
        table = _open(config, name)
        if table is not None:
            builder.register(name, table)
    try:
        reader = builder.execute(text)
    except (DeltaError, OSError, ValueError) as error:
        raise _explained(config, error) from error
    return reader.schema, _told(config, reader)


def _told(config: Config, batches: Iterable[RecordBatch]) -> Iterator[RecordBatch]:
    """The batches; what fails only while they are computed is told like all else."""
    try:
        yield from batches
    except Exception as error:
        raise _explained(config, error) from error


def _open(config: Config, name: str) -> DeltaTable | None:
    """The table of that name; None while there is none. Raises QueryError if it cannot be read."""
    path = config.table_path(name)
    try:
        return DeltaTable(path)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError, ValueError) as error:
        reason = _one_line(str(error))
        raise QueryError(f"{path} cannot be read ({reason}): correct the warehouse, or the rights to it") from error


def _explained(config: Config, error: Exception) -> QueryError:
    missing = _TABLE_NOT_FOUND.search(str(error))
    if missing is None:
        return QueryError(f"{_one_line(str(error))}: correct the query (`grouptrail tables NAME` lists the columns)")
    name = missing[1]
    if name in contracts.tables():
        return QueryError(
            f"nothing has landed in {name} under {config.warehouse} yet: run `grouptrail run`, or correct --warehouse"
        )
    return QueryError(_no_such_table(name))


def _no_such_table(name: str) -> str:
    near = get_close_matches(name, contracts.tables(), n=1)
    hint = f"did you mean {near[0]}?" if near else "`grouptrail tables` lists them"
    return f"there is no table {name}: {hint}"


def _one_line(message: str) -> str:
    """DataFusion's message in one line, without its wrappings and its lists of everything there is."""
    message = re.sub(r"\x1b\[[\d;]*m", "", message).split("Valid fields are")[0].split("Column names are case")[0]
    parser = re.search(r'ParserError\("(.*)"\)', message)
    text = parser[1] if parser else message
    text = re.sub(r"^((Error during planning|Schema error|External error|Arrow error|Internal error): )+", "", text)
    lines = [line.strip(" ↳") for line in text.splitlines() if line.strip()]
    return " ".join(lines)[:300].rstrip(".:? ") or "it failed without a word"


def _summary(config: Config, contract: contracts.Table) -> TableSummary:
    table = _open(config, contract.name)
    if table is None:
        return TableSummary(contract.name, contract.about)
    files = table.get_add_actions(flatten=True)
    count, newest_at = _counted_by_statistics(table, contract) or _counted_by_query(config, contract)
    return TableSummary(
        name=contract.name,
        about=contract.about,
        rows=count,
        files=files.num_rows,
        size_bytes=sum(files["size_bytes"].to_pylist()),
        newest_at=newest_at,
    )


def _counted_by_statistics(table: DeltaTable, contract: contracts.Table) -> tuple[int, str | None] | None:
    """Rows and newest time, from the statistics in Delta's log; None where those do not tell."""
    files = table.get_add_actions(flatten=True)
    newest = f"max.{_newest_column(contract)}"
    if next(iter(table.deletion_vectors()), None) is not None or newest not in files.column_names:
        return None
    counts = files["num_records"].to_pylist()
    times = files[newest].cast(DataType.string()).to_pylist()
    if None in counts or None in times:
        return None
    return sum(counts), max(times, default=None)


def _counted_by_query(config: Config, contract: contracts.Table) -> tuple[int, str | None]:
    text = f"SELECT count(*), max({_newest_column(contract)}) FROM {contract.name}"
    _, batches = _answer(config, text, [contract.name])
    [(count, newest_at)] = rows(batches)
    return count, newest_at


def _newest_column(contract: contracts.Table) -> str:
    """The time by which a table's newest row is told."""
    names = {column.name for column in contract.columns}
    return "record_at" if "record_at" in names else "landed_at"
