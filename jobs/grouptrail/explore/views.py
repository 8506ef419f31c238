"""Calls of the views of `schemas/views/` in a query, such as `owners_at('billing', now())`.

The engine has no table functions of its own: each call is replaced by the view's query, with the arguments put in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple

from grouptrail import contracts
from grouptrail.explore.errors import QueryError

Value = str | int | datetime | date | timedelta

LATEST = datetime.max.replace(tzinfo=UTC)
"""A time at which everything that has no end yet goes on."""

_TOKEN = re.compile(
    r"""
    (?P<comment>/\*)
    | (?P<blank>\s+|--[^\n]*)
    | (?P<string>'(?:[^']|'')*')
    | (?P<quoted>[eE]'(?:[^'\\]|\\.|'')*'|"(?:[^"]|"")*"|`[^`]*`|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$)
    | (?P<word>[^\W\d]\w*)
    | (?P<number>\d[\w.]*)
    | (?P<other>.)
    """,
    re.DOTALL | re.VERBOSE,
)
_COMMENT_MARK = re.compile(r"/\*|\*/")
_PLACEHOLDER = re.compile(r"(?<![:\w]):([a-z]\w*)")
_LENGTH = re.compile(r"\s*(\d{1,6})\s*(second|minute|hour|day|week)s?\s*", re.IGNORECASE)
# The engine counts nanoseconds.
_LONGEST = timedelta(days=36_500)
_WANTED = {
    "string": "a string in quotes",
    "int": "a whole number",
    "timestamp": "a time such as '2026-11-21T14:55:00Z', or now()",
    "date": "a day such as '2026-11-21', or now()",
    "interval": "a length of time such as '10 minutes'",
}


class Token(NamedTuple):
    """A piece of a query; its kind is the name of the group in `_TOKEN`."""

    kind: str
    text: str


@dataclass(frozen=True)
class Expanded:
    """A query without calls of views, and the groups that these were asked for."""

    text: str
    groups: frozenset[str]


def expand(text: str, cluster: str) -> Expanded:
    """Puts the queries of views in the place of their calls. Raises QueryError for arguments that do not fit."""
    now = datetime.now(UTC)
    tokens = _tokens(text)
    parts: list[str] = []
    groups: set[str] = set()
    index = 0
    while index < len(tokens):
        token = tokens[index]
        view = contracts.views().get(token.text.lower()) if token.kind == "word" else None
        opening = _next_significant(tokens, index + 1)
        if view is None or opening == len(tokens) or tokens[opening].text != "(":
            parts.append(token.text)
            index += 1
            continue
        given, index = _arguments(view, tokens, opening + 1)
        values = _values(view, given, now)
        groups |= {str(value) for name, value in values.items() if name == "group"}
        # A line break: the query may end in a comment.
        parts.append(f"({filled(view.sql, values | {'cluster': cluster})}\n)")
    return Expanded("".join(parts), frozenset(groups))


def filled(sql: str, values: Mapping[str, Value]) -> str:
    """A query with `:name` replaced by values."""
    return _PLACEHOLDER.sub(lambda found: literal(values[found[1]]), sql)


def literal(value: Value) -> str:
    """A value in the engine's SQL."""
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, datetime):
        # The engine's TIMESTAMP counts nanoseconds and ends in 2262; the columns count microseconds.
        return f"""arrow_cast('{value.isoformat()}', 'Timestamp(Microsecond, Some("UTC"))')"""
    if isinstance(value, date):
        return f"DATE '{value.isoformat()}'"
    if isinstance(value, timedelta):
        return f"INTERVAL '{value // timedelta(seconds=1)} seconds'"
    return str(value)


def parsed_time(text: str) -> datetime:
    """A time in ISO 8601, UTC unless it says otherwise. Raises ValueError."""
    moment = datetime.fromisoformat(text.strip())
    try:
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except OverflowError as error:
        raise ValueError(str(error)) from error


def _tokens(text: str) -> list[Token]:
    tokens = []
    position = 0
    while found := _TOKEN.match(text, position):
        kind, end = str(found.lastgroup), found.end()
        if kind == "comment":
            kind, end = "blank", _comment_end(text, position)
        tokens.append(Token(kind, text[position:end]))
        position = end
    return tokens


def _comment_end(text: str, start: int) -> int:
    """Behind the comment that starts there; comments may hold comments."""
    depth = 0
    for mark in _COMMENT_MARK.finditer(text, start):
        depth += 1 if mark[0] == "/*" else -1
        if depth == 0:
            return mark.end()
    return len(text)


def _next_significant(tokens: list[Token], index: int) -> int:
    while index < len(tokens) and tokens[index].kind == "blank":
        index += 1
    return index


def _arguments(view: contracts.View, tokens: list[Token], start: int) -> tuple[list[list[Token]], int]:
    """A call's arguments, from behind its parenthesis on, and where it ends."""
    arguments: list[list[Token]] = [[]]
    depth = 1
    for index in range(start, len(tokens)):
        token = tokens[index]
        depth += (token.text == "(") - (token.text == ")")
        if depth == 0:
            return [given for given in arguments if given or len(arguments) > 1], index + 1
        if depth == 1 and token.text == ",":
            arguments.append([])
        elif token.kind != "blank":
            arguments[-1].append(token)
    raise QueryError(f"{view.signature} has no closing parenthesis: correct the query")


def _values(view: contracts.View, given: list[list[Token]], now: datetime) -> dict[str, Value]:
    least = sum(parameter.default is None for parameter in view.parameters)
    if not least <= len(given) <= len(view.parameters):
        raise QueryError(f"{view.signature}: not with {len(given)} arguments: write it as in {view.example}")
    values: dict[str, Value] = {
        parameter.name: parameter.default for parameter in view.parameters if parameter.default is not None
    }
    for parameter, tokens in zip(view.parameters, given, strict=False):
        try:
            values[parameter.name] = _value(parameter.type, tokens, now)
        except (ValueError, OverflowError) as error:
            text = " ".join(token.text for token in tokens)
            raise QueryError(
                f"{view.signature}: {parameter.name} is {_WANTED[parameter.type]}, not {text}: correct the query"
            ) from error
    return values


def _value(wanted: str, given: list[Token], now: datetime) -> Value:
    """The value of an argument's tokens. Raises ValueError if it is not of the wanted type."""
    match given:
        case [("string", text)]:
            return _from_string(wanted, text[1:-1].replace("''", "'"))
        case [("word", word), ("string", text)] if word.lower() == wanted != "string":
            return _from_string(wanted, text[1:-1])
        case [("word", word), (_, "("), (_, ")")] if word.lower() == "now" and wanted in ("timestamp", "date"):
            return now if wanted == "timestamp" else now.date()
        case [("number", digits)] if wanted == "int":
            return int(digits)
        case _:
            raise ValueError("not a literal")


def _from_string(wanted: str, text: str) -> Value:
    if wanted == "string":
        return text
    if wanted == "timestamp":
        return parsed_time(text)
    if wanted == "date":
        return date.fromisoformat(text.strip())
    if wanted == "interval" and (found := _LENGTH.fullmatch(text)):
        length = timedelta(**{f"{found[2].lower()}s": int(found[1])})
        if timedelta(0) < length <= _LONGEST:
            return length
    raise ValueError("not of this type")
