"""Layouts of a broker's log: a line's time, level, logger and message.

Read are Kafka's default layout `[%d] %p %m (%c)%n`, those that put the logger before the message, and JSON (log4j2's
JsonLayout and JsonTemplateLayout with its ECS, Logstash and GELF templates), each also behind the prefix of a
container runtime or of kubectl or docker compose.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any, Literal

_LEVELS = "TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|FATAL|SEVERE"
_DATE = (
    r"(?P<date>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)"
    r"(?:\s?(?P<zone>Z|UTC|GMT|[+-]\d\d(?::?\d\d)?))?"
)
_HEAD = re.compile(rf"\[?{_DATE}\]?\s+(?:\[[^\]]*\]\s+)?(?P<level>{_LEVELS})\s+(?P<rest>.*)", re.DOTALL)
_LOGGER = r"(?:[a-z]\w*\.)*[A-Za-z_$][\w$]*"
# `.*` takes the last place that fits, as a message may have parentheses of its own.
_LOGGER_LAST = re.compile(rf"(?P<message>.*) \((?P<logger>{_LOGGER})(?::\d+)?\)(?: \[[^\]]*\])?", re.DOTALL)
_LOGGER_FIRST = re.compile(
    rf"(?:\[[^\]]*\]\s+)?(?:\[(?P<in_brackets>{_LOGGER})(?::\d+)?\]|(?P<plain>{_LOGGER})(?::\d+)?)"
    r"\s*(?: -|:)\s+(?P<message>.*)",
    re.DOTALL,
)
_CONTAINER = re.compile(
    r"(?P<date>\d{4}-\d\d-\d\dT\S+) (?:stdout|stderr) (?P<tag>[FP])(?::\S+)? (?P<text>.*)", re.DOTALL
)
_PREFIXES = re.compile(
    r"(?:\[pod/\S+\] )?(?:[\w.-]+ +\| )?(?:\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d) (?=[\[{]|\d{4}-))?"
)

_TIMES = ("@timestamp", "timestamp", "time", "instant", "timeMillis")
_MESSAGES = ("message", "msg", "short_message")
_LOGGERS = ("log.logger", "loggerName", "logger_name", "logger", "_logger")
_LEVEL_NAMES = ("log.level", "level", "severity")


class AmbiguousTimeError(ValueError):
    """A local time that a change of clocks made happen twice, or never."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line with a header. `is_structured`: in JSON, where a message cannot begin another line.

    `logger` is empty where the line has none: a message that was cut, or that continues on the next line.
    """

    at: datetime
    level: str
    logger: str
    message: str
    is_structured: bool = False


@dataclass(frozen=True, slots=True)
class NotALine:
    """Text without a header, or whose header cannot be read."""

    why: Literal["continuation", "malformed", "ambiguous_time"]


def unwrapped(text: str) -> tuple[str, bool]:
    """Return a line without the prefix of a container runtime, and whether the next one continues it."""
    if cri := _CONTAINER.fullmatch(text):
        return cri["text"], cri["tag"] == "P"
    if text.startswith('{"log":'):
        try:
            log = json.loads(text)["log"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return text, False
        if isinstance(log, str):
            return log.removesuffix("\n"), not log.endswith("\n")
    if prefix := _PREFIXES.match(text):
        return text[prefix.end() :], False
    return text, False


def parse_line(text: str, zone: tzinfo) -> Line | NotALine:
    """Return what a line says, without its container's prefix; times without an offset are of `zone`."""
    try:
        if text.startswith("{"):
            return _structured(text, zone)
        return _plain(text, zone)
    except AmbiguousTimeError:
        return NotALine("ambiguous_time")


def _plain(text: str, zone: tzinfo) -> Line | NotALine:
    head = _HEAD.fullmatch(text)
    if head is None:
        return NotALine("continuation")
    at = _parsed(head["date"], head["zone"], zone)
    if at is None:
        return NotALine("malformed")
    if last := _LOGGER_LAST.fullmatch(head["rest"]):
        return Line(at, head["level"], last["logger"], last["message"])
    if first := _LOGGER_FIRST.fullmatch(head["rest"]):
        return Line(at, head["level"], first["in_brackets"] or first["plain"], first["message"])
    return Line(at, head["level"], "", head["rest"])


def _structured(text: str, zone: tzinfo) -> Line | NotALine:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return NotALine("malformed")
    if not isinstance(data, dict):
        return NotALine("malformed")
    if isinstance(data.get("log"), dict):
        data = {**data, **{f"log.{name}": value for name, value in data["log"].items()}}
    message, logger, level = (_first(data, names) for names in (_MESSAGES, _LOGGERS, _LEVEL_NAMES))
    at = next((at for name in _TIMES if name in data and (at := _moment(data[name], zone)) is not None), None)
    if at is None or not isinstance(message, str):
        return NotALine("malformed")
    named = logger if isinstance(logger, str) else ""
    return Line(at, level if isinstance(level, str) else "", named, message, is_structured=True)


def _first(data: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((data[name] for name in names if name in data), None)


def _moment(value: Any, zone: tzinfo) -> datetime | None:
    if isinstance(value, dict):
        seconds, nanos = value.get("epochSecond"), value.get("nanoOfSecond", 0)
        return _since_epoch(seconds, nanos) if isinstance(seconds, int) and isinstance(nanos, int) else None
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        # timeMillis and the seconds of GELF
        return _since_epoch(value / 1000 if value > 100_000_000_000 else value)
    whole = re.fullmatch(_DATE, value) if isinstance(value, str) else None
    return None if whole is None else _parsed(whole["date"], whole["zone"], zone)


def _since_epoch(seconds: float, nanos: int = 0) -> datetime | None:
    try:
        return datetime.fromtimestamp(0, UTC) + timedelta(seconds=seconds, microseconds=nanos // 1000)
    except (OverflowError, ValueError):
        return None


def _parsed(date: str, offset: str | None, zone: tzinfo) -> datetime | None:
    """Return a time in UTC, None for no real date. Raises AmbiguousTimeError."""
    whole, _, fraction = date.replace(",", ".").replace(" ", "T").partition(".")
    try:
        local = datetime.fromisoformat(whole).replace(microsecond=int((fraction + "000000")[:6]))
        if offset is not None:
            return local.replace(tzinfo=_offset(offset)).astimezone(UTC)
        earlier, later = (local.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    except (ValueError, OverflowError):
        return None
    if earlier != later:
        raise AmbiguousTimeError
    return earlier


def _offset(text: str) -> tzinfo:
    if text in ("Z", "UTC", "GMT"):
        return UTC
    digits = text[1:].replace(":", "").ljust(4, "0")
    return timezone((-1 if text[0] == "-" else 1) * timedelta(hours=int(digits[:2]), minutes=int(digits[2:])))
