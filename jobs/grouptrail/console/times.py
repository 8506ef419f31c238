"""Times as people write them: ISO 8601, a time of day, `yesterday`, `2h ago`. Without an offset they are UTC."""

from __future__ import annotations

import re
from datetime import UTC, datetime, time, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

from grouptrail.errors import GrouptrailError

FORMS = "2026-11-21T14:55:00Z, 03:12 (its last occurrence), yesterday, 'yesterday 03:12', 2h, '90 min ago' or now"
"""Examples of every form, for messages and help."""

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_UNIT = r"s|sec|seconds?|m|min|minutes?|h|hours?|d|days?|w|weeks?"
_PART = re.compile(rf"(\d{{1,6}})\s*({_UNIT})(?![a-z])\s*")
_AGE = re.compile(rf"(?:{_PART.pattern})+(?:ago)?")
_DAY = re.compile(r"(today|yesterday)(?:\s+(?:at\s+)?(\S+))?")
_OF_DAY = re.compile(r"\d{2}:\d{2}(:\d{2})?")


class TimeZoneError(GrouptrailError):
    """A time zone has a name that is not known."""


def time_zone(name: str) -> tzinfo:
    """Return the time zone of an IANA name or an offset such as +02:00. Raises TimeZoneError."""
    if name.upper() in ("UTC", "Z"):
        return UTC
    if offset := re.fullmatch(r"([+-])(\d\d):?(\d\d)?", name):
        hours, minutes = int(offset[2]), int(offset[3] or 0)
        if hours <= 18 and minutes < 60:
            return timezone((1 if offset[1] == "+" else -1) * timedelta(hours=hours, minutes=minutes))
    else:
        try:
            return ZoneInfo(name)
        except (KeyError, ValueError, OSError):
            pass
    raise TimeZoneError(f"'{name}' is no time zone: use a name such as Europe/Berlin, or an offset such as +02:00")


def parsed_time(text: str) -> datetime:
    """Parse a time in ISO 8601, UTC by default. Raises ValueError."""
    moment = datetime.fromisoformat(text.strip())
    try:
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except OverflowError as error:
        raise ValueError(str(error)) from error


def parsed_moment(text: str, now: datetime) -> datetime:
    """Parse a time in one of `FORMS`. Raises ValueError.

    Days are those of UTC. A time of day without a day is the last one that is not after `now`.
    """
    plain = " ".join(text.lower().split())
    if plain == "now":
        return now
    if day := _DAY.fullmatch(plain):
        date = now.date() - timedelta(days=day[1] == "yesterday")
        return datetime.combine(date, _of_day(day[2]) if day[2] else time(), UTC)
    if _OF_DAY.fullmatch(plain):
        today = datetime.combine(now.date(), _of_day(plain), UTC)
        return today if today <= now else today - timedelta(days=1)
    if _AGE.fullmatch(plain):
        try:
            lengths = (timedelta(**{_UNITS[unit[0]]: int(count)}) for count, unit in _PART.findall(plain))
            return now - sum(lengths, timedelta())
        except OverflowError as error:
            raise ValueError(str(error)) from error
    return parsed_time(text)


def _of_day(text: str) -> time:
    if not _OF_DAY.fullmatch(text):
        raise ValueError(f"{text} is not a time of day")
    return time.fromisoformat(text)
