"""A query cut into pieces, as far as finding calls in it takes: strings, comments and names are told apart."""

from __future__ import annotations

import re
from typing import NamedTuple

_TOKEN = r"""
    (?P<comment>/\*)
    | (?P<blank>\s+|--[^\n]*)
    %s
    | (?P<word>[^\W\d]\w*)
    | (?P<number>\d[\w.]*)
    | (?P<other>.)
    """
STANDARD = re.compile(
    _TOKEN
    % r"""
    | (?P<string>'(?:[^']|'')*')
    | (?P<quoted>[eE]'(?:[^'\\]|\\.|'')*'|"(?:[^"]|"")*"|`[^`]*`|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$)
    """,
    re.DOTALL | re.VERBOSE,
)
# A backslash in a string means something of its own to Spark: such a string is not read here, only passed over.
SPARK = re.compile(
    _TOKEN
    % r"""
    | (?P<string>'(?:[^'\\]|'')*')
    | (?P<quoted>[rR]'[^']*'|[rR]"[^"]*"|'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|`(?:[^`]|``)*`)
    """,
    re.DOTALL | re.VERBOSE,
)
_COMMENT_MARK = re.compile(r"/\*|\*/")


class Token(NamedTuple):
    """A piece of a query; its kind is the name of the group in the pattern."""

    kind: str
    text: str


def tokens(text: str, pattern: re.Pattern[str] = STANDARD) -> list[Token]:
    """All pieces; joined they are the query again."""
    found_so_far = []
    position = 0
    while found := pattern.match(text, position):
        kind, end = str(found.lastgroup), found.end()
        if kind == "comment":
            kind, end = "blank", _comment_end(text, position)
        found_so_far.append(Token(kind, text[position:end]))
        position = end
    return found_so_far


def _comment_end(text: str, start: int) -> int:
    """Behind the comment that starts there; comments may hold comments."""
    depth = 0
    for mark in _COMMENT_MARK.finditer(text, start):
        depth += 1 if mark[0] == "/*" else -1
        if depth == 0:
            return mark.end()
    return len(text)


def next_significant(found: list[Token], index: int) -> int:
    """The first piece from `index` on that is no blank; the number of pieces if there is none."""
    while index < len(found) and found[index].kind == "blank":
        index += 1
    return index


def words_outside_parentheses(found: list[Token]) -> set[str]:
    """The words of the statement itself, in lower case."""
    depth, words = 0, set()
    for token in found:
        depth += (token.text == "(") - (token.text == ")")
        if depth == 0 and token.kind == "word":
            words.add(token.text.lower())
    return words
