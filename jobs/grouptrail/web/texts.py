"""Formatting of values on the pages."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import quote, urlencode

from markupsafe import Markup, escape

from grouptrail.report.group_rows import microseconds
from grouptrail.report.layout import visible

_SHOWN_NAME = 160
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def name(text: str | None) -> str:
    """Return a name with invisible characters escaped, cut if it is very long."""
    shown = visible(text or "")
    return shown if len(shown) <= _SHOWN_NAME else f"{shown[: _SHOWN_NAME - 1]}…"


def named(text: str) -> str:
    """Return the name of a group or a topic, which may be empty."""
    return name(text) or "(empty name)"


def shown(text: str) -> str:
    """Return a sentence, which may have names in it, with invisible characters escaped."""
    return visible(text)


def coded(text: str) -> Markup:
    """Return a sentence as `shown`, in which what is between backticks is code."""
    parts = visible(text).split("`")
    # Without its partner, a backtick is one.
    last = f"`{parts.pop()}" if len(parts) % 2 == 0 else ""
    coded = (
        Markup("<code>{}</code>").format(part) if number % 2 else escape(part) for number, part in enumerate(parts)
    )
    return Markup("").join(coded) + last


def number(value: float | None) -> str:
    """Return a number with thousands separators; a dash if it is unknown."""
    return "–" if value is None else f"{value:,.0f}"


def rate(per_second: float | None) -> str:
    """Return a rate of records; a dash if it is unknown."""
    if per_second is None:
        return "–"
    return f"{per_second:,.0f}/s" if per_second >= 10 else f"{per_second:.1f}/s".replace(".0/", "/")


def span(seconds: float | None) -> str:
    """Return a length of time in one unit, such as `12 min`; a dash if it is unknown."""
    if seconds is None:
        return "–"
    for length, unit in _UNITS:
        if seconds >= 2 * length:
            return f"{seconds / length:.{int(seconds < 10 * length)}f} {unit}".replace(".0 ", " ")
    if seconds < 1:
        return "0 s" if seconds == 0 else f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s".replace(".0 ", " ")


def ago(moment: datetime | None) -> str:
    """Return how long ago a time was."""
    if moment is None:
        return "–"
    seconds = (datetime.now(UTC) - moment).total_seconds()
    return "now" if seconds < 1 else f"{span(seconds)} ago"


def utc(moment: datetime | None) -> str:
    """Return a time in UTC to the second."""
    return "–" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def milliseconds(moment: datetime) -> int:
    """Return a time as a count of milliseconds since 1970, as in the timeline."""
    return microseconds(moment) // 1000


def page_of(kind: str, named: str, **parameters: str | None) -> str:
    """Return the address of the page of a group, a topic or brokers, whatever the name.

    Browsers take the segments `.` and `..` for folders, even percent-encoded, and no name is no segment.
    """
    given = {key: value for key, value in parameters.items() if value}
    if named.strip(".") == "" and len(named) <= 2:
        given = {"name": named, **given}
        named = ""
    path = f"/{kind}/{quote(named, safe='')}"
    return f"{path}?{urlencode(given)}" if given else path
