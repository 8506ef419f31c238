"""Calls of the views of `schemas/views/` in a query, such as `owners_at('billing', now())`.

The engines have no such functions of their own: each call is replaced by the view's query, with the arguments put in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, Literal

from grouptrail import contracts
from grouptrail.console.times import parsed_time
from grouptrail.query.errors import QueryError
from grouptrail.storage.sql import Value, datafusion_literal, spark_literal

if TYPE_CHECKING:
    from grouptrail.query.view_calls import Argument, ViewCall


LATEST = datetime.max.replace(tzinfo=UTC)
"""A time after every event: what has no end is still open then."""

_PLACEHOLDER = re.compile(r"(?<![:\w]):([a-z]\w*)")
_SECONDS = re.compile(r"(?<![:\w]):seconds\(([^(),]+),([^(),]+)\)")
_LENGTH = re.compile(r"\s*(\d{1,6})\s*(second|minute|hour|day|week)s?\s*", re.IGNORECASE)
# DataFusion stores intervals in nanoseconds.
_LONGEST = timedelta(days=36_500)
_WANTED = {
    "string": "a string in quotes",
    "int": "a whole number",
    "timestamp": "a time such as '2026-11-21T14:55:00Z', or now()",
    "date": "a day such as '2026-11-21', or now()",
    "interval": "a length of time such as '10 minutes'",
}


@dataclass(frozen=True)
class Dialect:
    """How an engine writes values and the seconds between two timestamps."""

    name: Literal["datafusion", "spark"]
    literal: Callable[[Value], str]
    seconds: str


@dataclass(frozen=True)
class ExpandedQuery:
    """A query whose calls of views are replaced, and the (table, group) pairs that the calls name.

    `calls` are the views, each with the time up to which it is asked: that of its argument, or the present.
    """

    text: str
    groups: frozenset[tuple[str, str]] = frozenset()
    calls: tuple[tuple[contracts.View, datetime], ...] = ()


DELTA_RS = Dialect("datafusion", datafusion_literal, "((CAST({0} AS BIGINT) - CAST({1} AS BIGINT)) / 1e6)")
SPARK = Dialect("spark", spark_literal, "((unix_micros({0}) - unix_micros({1})) / 1e6)")


def expand(text: str, cluster: str, dialect: Dialect = DELTA_RS) -> ExpandedQuery:
    """Replace the calls of views by their queries. Raises QueryError for arguments that do not fit."""
    views = contracts.views()
    if views.keys().isdisjoint(re.findall(r"\w+", text.lower())):
        return ExpandedQuery(text)
    from grouptrail.query.view_calls import view_calls

    now = utc_now()
    expanded, position, groups, calls = "", 0, set(), []
    for call in view_calls(text, views, dialect.name):
        values = _values(call, now)
        groups |= {(call.view.group_table, str(value)) for name, value in values.items() if name == "group"}
        calls.append((call.view, _asked_until(call.view, values, now)))
        alias = "" if call.has_alias else f" AS {call.view.name}"
        query = view_query(call.view, cluster, values, dialect)
        expanded += f"{text[position : call.start]}({query}\n){alias}"
        position = call.end
    return ExpandedQuery(expanded + text[position:], frozenset(groups), tuple(calls))


def _asked_until(view: contracts.View, values: Mapping[str, Value], now: datetime) -> datetime:
    """Return the time that a view is asked for, or the end of the day; by default the present."""
    for value in (values[parameter.name] for parameter in view.parameters):
        if isinstance(value, datetime):
            return value
        if isinstance(value, date):
            return min(now, datetime.combine(value + timedelta(days=1), time(), UTC))
    return now


def view_query(view: contracts.View, cluster: str, values: Mapping[str, Value], dialect: Dialect = DELTA_RS) -> str:
    """Return a view's query with its parameters and the queries of the views that it calls put in."""
    sql = filled(view.sql, {"now": utc_now()} | dict(values) | {"cluster": cluster}, dialect)
    return expand(sql, cluster, dialect).text


def filled(sql: str, values: Mapping[str, Value], dialect: Dialect = DELTA_RS) -> str:
    """Return a query with `:name` replaced by values, and `:seconds(later, earlier)` by the engine's expression."""
    sql = _SECONDS.sub(lambda match: dialect.seconds.format(match[1].strip(), match[2].strip()), sql)
    return _PLACEHOLDER.sub(lambda match: dialect.literal(values[match[1]]), sql)


def utc_now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


def window_from(since: datetime) -> str:
    """Return the interval of a view that looks back from now, so that it begins an hour or more before a time.

    The view `resets` compares each commit with the one before it."""
    hours = (utc_now() - since) // timedelta(hours=1) + 2
    return f"{min(max(hours, 2), _LONGEST // timedelta(hours=1))} hours"


def _values(call: ViewCall, now: datetime) -> dict[str, Value]:
    view, given = call.view, call.arguments
    if not view.required <= len(given) <= len(view.parameters):
        raise QueryError(
            f"{view.signature} cannot be called with {len(given)} arguments: write it as in {view.example}"
        )
    values = default_values(view) | {"now": now}
    for parameter, argument in zip(view.parameters, given, strict=False):
        try:
            values[parameter.name] = _value(parameter.type, argument, now)
        except (ValueError, OverflowError) as error:
            raise QueryError(
                f"{view.signature}: {parameter.name} is {_WANTED[parameter.type]}, not {argument.sql}: "
                "correct the query"
            ) from error
        if _is_future(values[parameter.name], now):
            raise QueryError(
                f"{view.signature}: {parameter.name} {argument.sql} is in the future: give one up to now()"
            )
    return values


def _is_future(value: Value, now: datetime) -> bool:
    return value > now if isinstance(value, datetime) else isinstance(value, date) and value > now.date()


def default_values(view: contracts.View) -> dict[str, Value]:
    """Return the values of the optional parameters."""
    return {
        parameter.name: _from_string("interval", parameter.default)
        if isinstance(parameter.default, str)
        else parameter.default
        for parameter in view.parameters
        if parameter.default is not None
    }


def _value(wanted: str, given: Argument, now: datetime) -> Value:
    """Return the value of an argument. Raises ValueError if it is not a literal of the wanted type."""
    if given.string is not None and (len(given.words) == 1 or given.words[:-1] == (wanted,) != ("string",)):
        return _from_string(wanted, given.string)
    if given.words == ("now", "(", ")") and wanted in ("timestamp", "date"):
        return now if wanted == "timestamp" else now.date()
    if wanted == "int" and given.sql.isdecimal():
        return int(given.sql)
    raise ValueError("not a literal")


def _from_string(wanted: str, text: str) -> Value:
    if wanted == "string":
        return text
    if wanted == "timestamp":
        return parsed_time(text)
    if wanted == "date":
        return date.fromisoformat(text.strip())
    if wanted == "interval" and (match := _LENGTH.fullmatch(text)):
        length = timedelta(**{f"{match[2].lower()}s": int(match[1])})
        if timedelta(0) < length <= _LONGEST:
            return length
    raise ValueError("not of this type")
