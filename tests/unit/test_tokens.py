"""A query in pieces is the query still."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouptrail.query.tokens import SPARK, STANDARD, tokens, words_outside_parentheses

_MARKS = [
    "'",
    '"',
    "`",
    "\\",
    "--",
    "/*",
    "*/",
    "(",
    ")",
    "\n",
    "$",
    "$$",
    "r'",
    "e'",
    "owners_at",
    "12",
    "é",
    ";",
    ":x",
]
_PIECES = st.lists(st.sampled_from(_MARKS))


@pytest.mark.parametrize("pattern", [STANDARD, SPARK])
@given(text=st.one_of(st.text(), _PIECES.map("".join)))
def test_tokens_joined_are_the_whole_query(pattern: re.Pattern[str], text: str) -> None:
    """Nothing is lost, whatever is left open."""
    assert "".join(token.text for token in tokens(text, pattern)) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("WITH x AS (INSERT y) SELECT 'delete' -- update", {"with", "x", "as", "select"}),
        ("With x as (select 1) Insert Into t select * from x", {"with", "x", "as", "insert", "into", "t"}),
        (r"WITH x AS (SELECT '\'') DELETE FROM t", {"with", "x", "as", "delete", "from", "t"}),
    ],
)
def test_words_outside_parentheses_has_statement_words_but_no_comment_words(text: str, words: set[str]) -> None:
    """Neither those in parentheses nor in strings and comments."""
    assert words <= words_outside_parentheses(tokens(text, SPARK))
    assert "update" not in words_outside_parentheses(tokens(text, SPARK))
