"""A table that keeps its numbers at any width: names are shortened, and other columns move below their line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.text import Text

Line = dict[str, str]

LONGEST_NAME = 249
"""Of a topic in Kafka. Nothing limits the names of groups, clients and members but the protocol's 32,767 bytes."""

_BETWEEN = "  "
_READABLE_NAME, _LEAST_NAME = 20, 8
_INDENT = 4


@dataclass(frozen=True)
class FittedTable:
    """Lines of equal columns, each with a style.

    `numbers` are columns that are aligned to the right; `names` are shortened where there is no room; `movable` go
    below their line where even that is not enough, the first one first; it is a text that needs no name there.
    """

    lines: Sequence[tuple[Line, str]]
    names: tuple[str, ...]
    numbers: tuple[str, ...]
    movable: tuple[str, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the header, and each line with what is below it.

        In a file, a cell longer than LONGEST_NAME is whole and makes its own line longer, but no other.
        """
        widths = {
            name: max([cell_len(name), *(cell_len(line[name]) for line, _ in self.lines)])
            for name in self.lines[0][0]
        }
        overflows = not console.is_terminal
        if overflows:
            widths = {name: min(width, LONGEST_NAME) for name, width in widths.items()}
        below = self._fit(widths, options.max_width)
        yield Text(self._line({name: name for name in widths}, widths), style="bold")
        yield Text(_BETWEEN.join("─" * width for width in widths.values()))
        for line, style in self.lines:
            yield Text(self._line(line, widths, overflows=overflows), style=style)
            if moved := ", ".join(self._moved(line, below)):
                words = with_short_words(moved, options.max_width - _INDENT)
                yield Padding(Text(words, style=style), (0, 0, 0, _INDENT))

    def _fit(self, widths: dict[str, int], width: int) -> list[str]:
        """Narrow the columns to a width; return those that have to move below their line."""
        below = []
        excess = _total(widths) - width
        for name in self.movable:
            if excess <= sum(max(widths.get(one, 0) - _READABLE_NAME, 0) for one in self.names):
                break
            if name in widths:
                del widths[name]
                below.append(name)
                excess = _total(widths) - width
        shortened_ones = [name for name in self.names if name in widths]
        for _ in range(excess if shortened_ones else 0):
            longest = max(shortened_ones, key=lambda name: widths[name])
            widths[longest] = max(widths[longest] - 1, _LEAST_NAME)
        return below

    def _line(self, line: Line, widths: dict[str, int], *, overflows: bool = False) -> str:
        cells = (
            _right(line[name], width)
            if name in self.numbers
            else line[name]
            if overflows and width == LONGEST_NAME < cell_len(line[name])
            else set_cell_size(shortened(line[name], width), width)
            for name, width in widths.items()
        )
        return _BETWEEN.join(cells).rstrip()

    def _moved(self, line: Line, below: list[str]) -> Iterator[str]:
        for name in (name for name in line if name in below):
            if line[name] not in ("", "-"):
                yield line[name] if name == self.movable[0] else f"{name} {line[name]}"


def _total(widths: dict[str, int]) -> int:
    return sum(widths.values()) + len(_BETWEEN) * (len(widths) - 1)


def _right(text: str, width: int) -> str:
    return " " * (width - cell_len(text)) + text


def shortened(text: str, width: int) -> str:
    """Return text of at most this many cells; its middle is left out, as names often differ at their end."""
    if cell_len(text) <= width:
        return text
    tail = (width - 1) // 2
    end = text[-tail:] if tail else ""
    while cell_len(end) > tail:
        end = end[1:]
    return f"{set_cell_size(text, width - 1 - cell_len(end))}…{end}"


def with_short_words(text: str, width: int) -> str:
    """Return text in which words that are longer than any topic's name are shortened to at most this many cells."""
    return " ".join(
        shortened(word, width) if cell_len(word) > max(width, LONGEST_NAME) else word for word in text.split(" ")
    )
