"""Output formats of rows: a table for people, on a terminal or in Markdown; JSON lines, CSV and Parquet for programs.

Timestamps are UTC; in text bytes are base64, nested values JSON.
"""

from __future__ import annotations

import csv
import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal, TextIO

from arro3.core import RecordBatch, Schema
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from grouptrail.console.text import harmless, harmless_json
from grouptrail.query.errors import QueryError
from grouptrail.storage.result_rows import Row, column_names

RowsFormat = Literal["table", "json", "csv", "markdown"]
"""The formats of every command that prints rows."""
TextFormat = Literal[RowsFormat, "reset-offsets"]
Format = Literal[TextFormat, "parquet"]

MAX_TABLE_ROWS = 200
PLAN_COLUMNS = ["plan_type", "plan"]
"""The columns of EXPLAIN, whose cells have many lines."""

_FILE_WIDTH = 100_000
_LINE_END = "\r\n"
# A spreadsheet takes a text for a formula that begins so, also behind a tab or a line break.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_LEAST_WIDE_COLUMN = 30
# An underscore within a word is none.
_MARKDOWN = re.compile(r"[\\`*\[\]<>|~&]|(?<!\w)_+|_+(?!\w)")


def write_rows(names: list[str], rows: Iterable[Row], out: TextIO, *, format: TextFormat) -> None:
    """Write rows in a text format."""
    if format == "table":
        write_table(names, list(rows), out)
    else:
        _WRITERS[format](names, rows, out)


def write_json(names: list[str], rows: Iterable[Row], out: TextIO) -> None:
    """Write one JSON object per line."""
    encode = json.JSONEncoder(ensure_ascii=False).encode
    for row in rows:
        out.write(harmless_json(encode(dict(zip(names, row, strict=True)))) + "\n")


def write_csv(names: list[str], rows: Iterable[Row], out: TextIO, *, guard: bool = False) -> None:
    """Write CSV with a header; null is an empty field. Control characters are escaped only on a terminal.

    With `guard`, a text that a spreadsheet would take for a formula begins with an apostrophe.
    """
    shown = harmless if out.isatty() else str
    text = _guarded if guard else _cell
    writer = _csv_writer(out)
    writer.writerow([shown(text(name)) for name in names])
    for row in rows:
        writer.writerow(["" if value is None else shown(text(value)) for value in row])


class _ShortLineEnds:
    """Writes rows that end in CR and LF with LF alone."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def write(self, row: str) -> None:
        self._out.write(f"{row.removesuffix(_LINE_END)}\n")


def _csv_writer(out: TextIO) -> Any:
    """Return a writer of lines that quotes CR, too: the writer quotes only what may end its lines."""
    return csv.writer(_ShortLineEnds(out), lineterminator=_LINE_END)


def _guarded(value: Any) -> str:
    cell = _cell(value)
    is_formula = cell.startswith(_FORMULA_STARTS) and not _is_number(value) and not _NUMBER.fullmatch(cell)
    return f"'{cell}" if is_formula else cell


def write_markdown(names: list[str], rows: Iterable[Row], out: TextIO) -> None:
    """Write a Markdown table; nothing in a cell is taken for markup."""
    out.write(f"| {' | '.join(map(markdown_text, names))} |\n|{' --- |' * len(names)}\n")
    for row in rows:
        out.write(f"| {' | '.join(markdown_text(displayed(value)) for value in row)} |\n")


def markdown_text(text: str) -> str:
    """Return text for one line of Markdown, without markup or control characters."""
    return _MARKDOWN.sub(lambda match: "".join(f"\\{character}" for character in match[0]), harmless(text))


def write_reset_offsets(names: list[str], rows: Iterable[Row], out: TextIO) -> None:
    """Write lines of topic, partition and offset for kafka-consumer-groups --reset-offsets --from-file.

    Control characters are escaped only on a terminal. Raises QueryError if a query's columns lack them.
    """
    wanted = ("topic", "partition", "committed_offset")
    lacking = [name for name in wanted if name not in names]
    if lacking:
        raise QueryError(
            f"the query has no column {lacking[0]}: --format reset-offsets needs {', '.join(wanted)}, "
            "as in SELECT * FROM offsets_as_of('billing', now())"
        )
    places = [names.index(name) for name in wanted]
    shown = harmless if out.isatty() else str
    writer = _csv_writer(out)
    for row in rows:
        writer.writerow(["" if row[place] is None else shown(_cell(row[place])) for place in places])


def save_parquet(schema: Schema, batches: Iterable[RecordBatch], path: Path) -> None:
    """Write a Parquet file, which appears when it is complete. Raises QueryError for types that Parquet lacks."""
    with whole_file(path) as partial:
        write_parquet(schema, batches, partial)


def write_parquet(schema: Schema, batches: Iterable[RecordBatch], out: Path | BinaryIO) -> None:
    """Write Parquet to a path or a stream. Raises QueryError for types that Parquet lacks."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    names = column_names(schema)
    arrow = pa.schema([field.with_name(name) for field, name in zip(pa.schema(schema), names, strict=True)])
    try:
        with ParquetWriter(out, arrow, compression="zstd") as writer:
            for batch in batches:
                writer.write_batch(pa.RecordBatch.from_arrays(pa.record_batch(batch).columns, schema=arrow))
    except pa.ArrowNotImplementedError as error:
        raise QueryError(f"Parquet has no such type ({error}): cast the column in the query") from error


@contextmanager
def whole_file(path: Path, remedy: str = "give another --out") -> Iterator[Path]:
    """Yield a temporary path that is renamed to `path` on success. Raises QueryError if it cannot be written.

    The temporary file is a new one, whose name nobody can foresee: in a folder such as /tmp another user could have
    put a symbolic link in its place, and the rows would overwrite the file that it points to.
    """
    partial = path.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666))
        try:
            yield partial
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise QueryError(f"{path} cannot be written ({error.strerror or error}): {remedy}") from error


def write_table(names: list[str], shown: Sequence[Row], out: TextIO) -> None:
    """Write the rows as a table, or one column per line if they are too wide for the terminal."""
    console = console_on(out)
    is_plan = names == PLAN_COLUMNS
    names = [harmless(name) for name in names]  # a query may give a column any name
    # EXPLAIN returns cells of many lines; in other cells a line break could forge rows.
    cells = [[displayed(value, keep_lines=is_plan) for value in row] for row in shown]
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    if sum(min(width, _LEAST_WIDE_COLUMN) + 3 for width in widths) <= console.width:
        _write_wide(names, shown, cells, console)
    else:
        _write_long(names, cells, console)


def _write_wide(names: list[str], values: Sequence[Row], cells: list[list[str]], console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for index, name in enumerate(names):
        is_number = any(_is_number(row[index]) for row in values)
        table.add_column(Text(name), justify="right" if is_number else "left", overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))
    console.print(table)


def _write_long(names: list[str], cells: list[list[str]], console: Console) -> None:
    width = max(map(len, names))
    for number, row in enumerate(cells, start=1):
        console.print(Text(f"-- row {number} ".ljust(width + 10, "-"), style="dim"))
        for name, cell in zip(names, row, strict=True):
            console.print(Text(f"{name:<{width}}  {cell}"), soft_wrap=True)


def console_on(out: TextIO) -> Console:
    """Return a console that wraps at the width of the terminal; output to a file is not wrapped."""
    return Console(file=out, width=None if out.isatty() else _FILE_WIDTH, highlight=False)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _cell(value: Any) -> str:
    if isinstance(value, (bool, list, dict)):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def displayed(value: Any, *, keep_lines: bool = False) -> str:
    """Return a cell as text without control characters; a timestamp has a blank instead of the T."""
    if value is None:
        return "null"
    if isinstance(value, str) and re.fullmatch(r"\d{4,}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z?", value):
        return value.replace("T", " ")
    return harmless(_cell(value), keep_lines=keep_lines)


def duration(seconds: float) -> str:
    """Return a duration in its two largest units."""
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 10 or seconds == int(seconds) else f"{seconds:.1f} s"
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if days:
        return f"{days} d {hours % 24} h"
    return f"{hours} h {minutes % 60} min" if hours else f"{minutes} min {int(seconds) % 60} s"


def counted(many: int, noun: str, plural: str = "") -> str:
    """Return a number and its noun: `2 groups`; the `plural` is given where it is not the noun with an s."""
    return f"{many:,} {noun if many == 1 else plural or f'{noun}s'}"


def to_the_second(text: str) -> str:
    """Return a time, in ISO 8601, without the fraction of its second, the T and the Z."""
    return text[:19].replace("T", " ")


_WRITERS = {
    "json": write_json,
    "csv": write_csv,
    "markdown": write_markdown,
    "reset-offsets": write_reset_offsets,
}
