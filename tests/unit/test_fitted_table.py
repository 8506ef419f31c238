"""Tables of any names stay within the terminal, and names that differ stay different."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from grouptrail.query.fitted_table import LONGEST_NAME, FittedTable, shortened, with_short_words
from support.strategies import MANY

Row = dict[str, str]

PIECES = st.sampled_from(["g", "orders-", "群", "é", " ", "…", "x" * 50, "x" * 2_000])
NAMES = st.lists(PIECES, max_size=12).map("".join)
ROWS = st.lists(
    st.fixed_dictionaries({"group": NAMES, "topic": NAMES, "lag": st.integers(0, 10**9).map(str), "why": NAMES}),
    min_size=1,
    max_size=4,
)


def printed(rows: list[Row], *, width: int, is_terminal: bool) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=is_terminal, color_system=None)
    names = ("group", "topic")
    console.print(FittedTable([(row, "") for row in rows], names=names, numbers=("lag",), movable=("why",)))
    return out.getvalue().splitlines()


@MANY
@given(ROWS, st.integers(40, 400))
def test_table_on_a_terminal_is_never_wider_than_it(rows: list[Row], width: int) -> None:
    """Names of any length and script; every number is there."""
    lines = printed(rows, width=width, is_terminal=True)
    assert max(map(cell_len, lines)) <= width
    assert all(any(row["lag"] in line for line in lines) for row in rows)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_table_on_a_terminal_shows_names_that_differ_at_the_end_differently(width: int) -> None:
    """Group ids of 20,000 characters."""
    rows = [{"group": "g" * 20_000 + end, "topic": "orders", "lag": "1", "why": ""} for end in ("-blue", "-red")]
    *_, blue, red = printed(rows, width=width, is_terminal=True)
    assert "…" in blue
    assert blue.split()[0].endswith("blue")
    assert red.split()[0].endswith("-red")


def test_table_in_a_file_has_whole_names_and_other_lines_are_no_longer_for_them() -> None:
    long = {"group": "g" * 20_000, "topic": "orders", "lag": "1", "why": "behind"}
    short = {"group": "billing", "topic": "orders", "lag": "2", "why": ""}
    lines = printed([long, short], width=100_000, is_terminal=False)
    assert sum("g" * 20_000 in line for line in lines) == 1
    assert sorted(map(len, lines))[-2] < LONGEST_NAME + 40


@MANY
@given(NAMES, st.integers(1, 300))
def test_shortened_text_has_at_most_its_cells(text: str, width: int) -> None:
    short = shortened(text, width)
    assert cell_len(short) <= width
    assert (short == text) is (cell_len(text) <= width)


def test_with_short_words_leaves_paths_and_usual_names() -> None:
    path = "/data/" + "lake/" * 40
    assert with_short_words(f"see {path}", 40) == f"see {path}"
    assert cell_len(with_short_words("m" * 3_000, 40)) == 40
