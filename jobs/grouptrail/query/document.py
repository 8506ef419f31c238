"""Documents that commands print: headings, lines and tables, as text or in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from grouptrail.query.fitted_table import FittedTable, with_short_words
from grouptrail.query.formats import console_on, displayed, markdown_text, write_markdown


@dataclass(frozen=True)
class Heading:
    """The heading of what follows."""

    text: str


@dataclass(frozen=True)
class Line:
    """A line of text; an empty one separates parts."""

    text: str = ""


@dataclass(frozen=True)
class Grid:
    """A table of texts. `numbers` are columns aligned to the right.

    On a narrow terminal, the cells of `long` columns are wrapped. If there are `movable` columns, the `long` ones are
    shortened instead, and these go below their line (`FittedTable`).
    """

    names: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Sequence[str] = ()
    long: Sequence[str] = ()
    movable: Sequence[str] = ()


Block = Heading | Line | Grid


def footer(note: str | None) -> tuple[Line, ...]:
    """Return the lines that end a document with a note, if there is one."""
    return (Line(), Line(note)) if note else ()


def write_document(blocks: Iterable[Block], out: TextIO, *, format: Literal["table", "markdown"]) -> None:
    """Write the blocks as text for a terminal, or as Markdown. Control characters are escaped."""
    if format == "markdown":
        for block in blocks:
            _write_markdown(block, out)
        return
    console = console_on(out)
    for block in blocks:
        _print(block, console)


def _print(block: Block, console: Console) -> None:
    if isinstance(block, Grid) and block.movable and block.rows:
        lines = [(dict(zip(block.names, map(displayed, row), strict=True)), "") for row in block.rows]
        console.print(FittedTable(lines, tuple(block.long), tuple(block.numbers), tuple(block.movable)))
    elif isinstance(block, Grid):
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for name in block.names:
            justify: Literal["left", "right"] = "right" if name in block.numbers else "left"
            table.add_column(name, justify=justify, no_wrap=name not in block.long, overflow="fold")
        for row in block.rows:
            table.add_row(*(Text(displayed(cell)) for cell in row))
        console.print(table)
    else:
        style = "bold" if isinstance(block, Heading) else ""
        text = displayed(block.text)
        shown = with_short_words(text, console.width) if console.is_terminal else text
        console.print(Text(shown, style=style), soft_wrap=True)


def _write_markdown(block: Block, out: TextIO) -> None:
    if isinstance(block, Grid):
        write_markdown(list(block.names), block.rows, out)
        out.write("\n")
    elif isinstance(block, Heading):
        out.write(f"## {markdown_text(displayed(block.text))}\n\n")
    elif block.text:
        out.write(f"{markdown_text(displayed(block.text))}\n\n")
