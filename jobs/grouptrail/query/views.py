"""Calls of the views of `schemas/views/` in a query, such as `owners_at('billing', now())`.

The engines have no such functions of their own: each call is replaced by the view's query, with the arguments put in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from grouptrail import contracts
from grouptrail.query import tokens
from grouptrail.query.errors import QueryError
from grouptrail.query.tokens import Token, next_significant


@dataclass(frozen=True)
class Expression:
    """A piece of SQL that stands for a value, such as the parameter of a function."""

    sql: str


Value = str | int | datetime | date | timedelta | Expression

LATEST = datetime.max.replace(tzinfo=UTC)
"""A time at which everything that has no end yet goes on."""

_PLACEHOLDER = re.compile(r"(?<![:\w]):([a-z]\w*)")
_SECONDS = re.compile(r"(?<![:\w]):seconds\(([^(),]+),([^(),]+)\)")
_LENGTH = re.compile(r"\s*(\d{1,6})\s*(second|minute|hour|day|week)s?\s*", re.IGNORECASE)
_AGO = re.compile(r"\s*(\d{1,6})\s*(s|seconds?|m|minutes?|h|hours?|d|days?|w|weeks?)\s*", re.IGNORECASE)
# The engine counts nanoseconds.
_LONGEST = timedelta(days=36_500)
_WANTED = {
    "string": "a string in quotes",
    "int": "a whole number",
    "timestamp": "a time such as '2026-11-21T14:55:00Z', or now()",
    "date": "a day such as '2026-11-21', or now()",
    "interval": "a length of time such as '10 minutes'",
}
# What may follow a table in FROM and is no name of it.
_AFTER_TABLE = re.compile(
    "anti|cross|except|fetch|for|full|group|having|inner|intersect|join|lateral|left|limit|minus|natural|offset|on"
    "|order|outer|qualify|right|semi|sort|tablesample|union|using|where|window",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Dialect:
    """How an engine writes values, the seconds between two timestamps, and strings."""

    literal: Callable[[Value], str]
    seconds: str
    pattern: re.Pattern[str]


@dataclass(frozen=True)
class Expanded:
    """A query without calls of views, and the groups that these were asked for, each with a table that has it."""

    text: str
    groups: frozenset[tuple[str, str]] = frozenset()


def literal(value: Value) -> str:
    """A value in the SQL of delta-rs' engine."""
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, datetime):
        # The engine's TIMESTAMP counts nanoseconds and ends in 2262; the columns count microseconds.
        return f"""arrow_cast('{value.isoformat()}', 'Timestamp(Microsecond, Some("UTC"))')"""
    return _literal(value)


def _spark_literal(value: Value) -> str:
    if isinstance(value, str):
        # Spark puts variables in the place of ${...} before it reads the query.
        escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024")
        return f"'{escaped}'"
    if isinstance(value, datetime):
        return f"TIMESTAMP '{value.isoformat()}'"
    return _literal(value)


def _literal(value: int | date | timedelta | Expression) -> str:
    if isinstance(value, date):
        return f"DATE '{value.isoformat()}'"
    if isinstance(value, timedelta):
        return f"INTERVAL '{value // timedelta(seconds=1)} seconds'"
    return value.sql if isinstance(value, Expression) else str(value)


DELTA_RS = Dialect(literal, "((CAST({0} AS BIGINT) - CAST({1} AS BIGINT)) / 1e6)", tokens.STANDARD)
SPARK = Dialect(_spark_literal, "((unix_micros({0}) - unix_micros({1})) / 1e6)", tokens.SPARK)


def expand(text: str, cluster: str, dialect: Dialect = DELTA_RS) -> Expanded:
    """Puts the queries of views in the place of their calls. Raises QueryError for arguments that do not fit."""
    now = utc_now()
    found = tokens.tokens(text, dialect.pattern)
    parts: list[str] = []
    groups: set[tuple[str, str]] = set()
    index = 0
    while index < len(found):
        view = contracts.views().get(found[index].text.lower()) if found[index].kind == "word" else None
        end = _call_end(view, found, index) if view else None
        if view is None or end is None:
            parts.append(found[index].text)
            index += 1
            continue
        values = _values(view, _arguments(found[index + 1 : end]), now)
        groups |= {(view.group_table, str(value)) for name, value in values.items() if name == "group"}
        parts.append(f"({view_query(view, cluster, values, dialect)}\n){_name(view, found, end)}")
        index = end
    return Expanded("".join(parts), frozenset(groups))


def view_query(view: contracts.View, cluster: str, values: Mapping[str, Value], dialect: Dialect) -> str:
    """A view's query with its parameters put in, and the queries of the views it calls."""
    sql = filled(view.sql, {"now": utc_now()} | dict(values) | {"cluster": cluster}, dialect)
    return expand(sql, cluster, dialect).text


def filled(sql: str, values: Mapping[str, Value], dialect: Dialect = DELTA_RS) -> str:
    """A query with `:name` replaced by values, and `:seconds(later, earlier)` by what computes them."""
    sql = _SECONDS.sub(lambda found: dialect.seconds.format(found[1].strip(), found[2].strip()), sql)
    return _PLACEHOLDER.sub(lambda found: dialect.literal(values[found[1]]), sql)


def utc_now() -> datetime:
    """The time of a query."""
    return datetime.now(UTC)


def parsed_time(text: str) -> datetime:
    """A time in ISO 8601, UTC unless it says otherwise. Raises ValueError."""
    moment = datetime.fromisoformat(text.strip())
    try:
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except OverflowError as error:
        raise ValueError(str(error)) from error


def parsed_moment(text: str) -> datetime:
    """A time as for `parsed_time`, `now`, or so long ago, as in `90 s`, `7d` or `2 hours`. Raises ValueError."""
    if text.strip() == "now":
        return utc_now()
    if ago := _AGO.fullmatch(text):
        unit = next(name for name in ("seconds", "minutes", "hours", "days", "weeks") if name[0] == ago[2][0].lower())
        return utc_now() - timedelta(**{unit: int(ago[1])})
    return parsed_time(text)


def _call_end(view: contracts.View, found: list[Token], index: int) -> int | None:
    """Behind the call of a view that begins at `index`; None if what is there is no call."""
    opening = next_significant(found, index + 1)
    if opening < len(found) and found[opening].text == "(":
        return _closing(view, found, opening)
    before = [token.text.lower() for token in found[:index] if token.kind != "blank"]
    is_named_table = any(
        token.text.lower() == view.name and _opens_named_query(found, place) for place, token in enumerate(found)
    )
    by_name = not view.required and before[-1:] in (["from"], ["join"]) and not is_named_table
    return index + 1 if by_name else None


def _closing(view: contracts.View, found: list[Token], opening: int) -> int:
    depth = 0
    for index in range(opening, len(found)):
        depth += (found[index].text == "(") - (found[index].text == ")")
        if depth == 0:
            return index + 1
    raise QueryError(f"{view.signature} has no closing parenthesis: correct the query")


def _opens_named_query(found: list[Token], index: int) -> bool:
    """Whether the word there is the name of a query in WITH."""
    following = [token.text.lower() for token in found[index + 1 :] if token.kind != "blank"][:2]
    return following == ["as", "("]


def _name(view: contracts.View, found: list[Token], end: int) -> str:
    """What names a view's rows after the view, unless the query names them itself."""
    following = next_significant(found, end)
    is_named = following < len(found) and (
        found[following].kind == "quoted"
        or (found[following].kind == "word" and not _AFTER_TABLE.fullmatch(found[following].text))
    )
    return "" if is_named else f" AS {view.name}"


def _arguments(call: list[Token]) -> list[list[Token]]:
    """A call's arguments: what stands between its parentheses, cut at the commas."""
    arguments: list[list[Token]] = [[]]
    depth = 0
    for token in call[next_significant(call, 0) + 1 : -1]:
        depth += (token.text == "(") - (token.text == ")")
        if depth == 0 and token.text == ",":
            arguments.append([])
        elif token.kind != "blank":
            arguments[-1].append(token)
    return [given for given in arguments if given or len(arguments) > 1]


def _values(view: contracts.View, given: list[list[Token]], now: datetime) -> dict[str, Value]:
    if not view.required <= len(given) <= len(view.parameters):
        raise QueryError(f"{view.signature}: not with {len(given)} arguments: write it as in {view.example}")
    values = default_values(view) | {"now": now}
    for parameter, argument in zip(view.parameters, given, strict=False):
        try:
            values[parameter.name] = _value(parameter.type, argument, now)
        except (ValueError, OverflowError) as error:
            text = " ".join(token.text for token in argument)
            raise QueryError(
                f"{view.signature}: {parameter.name} is {_WANTED[parameter.type]}, not {text}: correct the query"
            ) from error
    return values


def default_values(view: contracts.View) -> dict[str, Value]:
    """The values of the parameters that may be left out."""
    return {
        parameter.name: _from_string("interval", parameter.default)
        if isinstance(parameter.default, str)
        else parameter.default
        for parameter in view.parameters
        if parameter.default is not None
    }


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
