"""How the value of one setting is read and validated, whichever source it comes from."""

from __future__ import annotations

import math
import os
import re
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    SecretStr,
    WithJsonSchema,
)

from grouptrail.console.times import TimeZoneError, time_zone
from grouptrail.locations import is_uri, normalized, shown

_LISTEN_ADDRESS = re.compile(r"(\[[\w.:%]+\]|[\w.-]+):\d{1,5}")


def _as_text(value: Any) -> str | SecretStr:
    """Return a setting of Kafka's client, Spark or delta-rs as text: booleans in lower case, numbers as written."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    if isinstance(value, SecretStr):
        return value
    raise ValueError("must be text, a number, true or false")


def _split(value: Any) -> Any:
    """Split text at its commas: in variables and flags a list is text."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _check_patterns(patterns: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse an empty pattern and malformed character sets, which fnmatch would match literally or never."""
    for pattern in patterns:
        sets = re.sub(r"\[!?\]?[^\]]*\]", "", pattern)
        ranges = re.findall(r"(.)-(.)", "".join(re.findall(r"\[!?(\]?[^\]]*)\]", pattern)))
        if not pattern:
            raise ValueError("an empty pattern matches nothing: remove it")
        if "[" in sets:
            raise ValueError(f"{pattern!r} is not a valid pattern: close [ with ], or write [[] for the character [")
        if any(low > high for low, high in ranges):
            raise ValueError(f"{pattern!r} is not a valid pattern: a range is reversed")
    return patterns


def _check_address(value: str) -> str:
    if value and (not _LISTEN_ADDRESS.fullmatch(value) or int(value.rpartition(":")[2]) > 65535):
        raise ValueError("must be host:port, such as 127.0.0.1:9308 or [::]:9308")
    return value


def _check_warehouse(location: str) -> str:
    """Refuse locations that delta-rs and Spark would take for different folders."""
    odd = re.search(r"%[0-9a-fA-F]{2}", location) or re.search(r"\\|[\x00-\x1f\x7f]", location)
    if odd:
        raise ValueError(f"contains {odd[0]!r}, which delta-rs and Spark read differently: choose another folder")
    return location


def _check_zone(name: str) -> str:
    try:
        time_zone(name)
    except TimeZoneError as error:
        raise ValueError(str(error)) from error
    return name


def _absolute(patterns: tuple[str, ...]) -> tuple[str, ...]:
    """Return patterns of local files as absolute ones."""
    for pattern in patterns:
        if not pattern or is_uri(pattern) or "\0" in pattern:
            raise ValueError(f"{pattern!r} is no local file: give paths of files, or patterns such as /logs/*.log")
    return tuple(os.path.abspath(os.path.expanduser(pattern)) for pattern in patterns)


def _parse_thinning(value: Any) -> tuple[tuple[float, int], ...]:
    """Return pairs of days and seconds, from texts like `7:600`."""
    steps = _split(value) if isinstance(value, (str, list, tuple)) else [value]
    try:
        pairs = tuple((float(days), int(seconds)) for days, seconds in (str(step).split(":") for step in steps))
    except ValueError:
        pairs = ((-1.0, 0),)
    if any(not 0 < days < math.inf or seconds < 1 for days, seconds in pairs):
        raise ValueError("must be pairs days:seconds, such as 7:600, which keeps one sample per 600 s after 7 days")
    return pairs


def parse_pairs(value: Any) -> tuple[tuple[str, str], ...]:
    """Return pairs of name and value, from texts like `name=value`. Raises ValueError for any other."""
    texts = _split(value) if isinstance(value, (str, list, tuple)) else [value]
    pairs = [tuple(text) if isinstance(text, (list, tuple)) else str(text).partition("=")[::2] for text in texts]
    if any(len(pair) != 2 or not all(isinstance(part, str) and part.strip() for part in pair) for pair in pairs):
        raise ValueError("must be pairs name=value, separated by commas")
    return tuple((name.strip(), text.strip()) for name, text in pairs)


def _parse_group_seconds(value: Any) -> tuple[tuple[str, float], ...]:
    """Return pairs of a pattern and seconds, from texts like `hourly-*:7200`."""
    texts = _split(value) if isinstance(value, (str, list, tuple)) else [value]
    parts = [text if isinstance(text, (list, tuple)) else str(text).rpartition(":")[::2] for text in texts]
    try:
        pairs = tuple((str(pattern), float(seconds)) for pattern, seconds in parts)
    except (TypeError, ValueError):
        pairs = (("", 0.0),)
    if any(not pattern or not 0 < seconds < math.inf for pattern, seconds in pairs):
        raise ValueError("must be pairs pattern:seconds, such as hourly-*:7200")
    _check_patterns(tuple(pattern for pattern, _ in pairs))
    return pairs


_TEXTS = WithJsonSchema({"type": "array", "items": {"type": "string"}})

ClientSetting = Annotated[
    str | SecretStr, PlainValidator(_as_text), WithJsonSchema({"type": ["string", "number", "boolean"]})
]
Location = Annotated[str, Field(min_length=1), AfterValidator(normalized), PlainSerializer(shown, when_used="json")]
WarehouseLocation = Annotated[Location, AfterValidator(_check_warehouse)]
SplitText = BeforeValidator(_split)
Patterns = Annotated[tuple[str, ...], SplitText, AfterValidator(_check_patterns)]
FilePatterns = Annotated[tuple[str, ...], SplitText, AfterValidator(_absolute)]
TimeZone = Annotated[str, AfterValidator(_check_zone)]
ListenAddress = Annotated[str, AfterValidator(_check_address)]
GroupSeconds = Annotated[
    tuple[tuple[str, float], ...],
    BeforeValidator(_parse_group_seconds),
    PlainSerializer(lambda pairs: [f"{pattern}:{seconds:g}" for pattern, seconds in pairs]),
    _TEXTS,
]
ResourceAttributes = Annotated[
    tuple[tuple[str, str], ...],
    BeforeValidator(parse_pairs),
    PlainSerializer(lambda pairs: [f"{name}={value}" for name, value in pairs]),
]
ThinningSteps = Annotated[
    tuple[tuple[float, int], ...],
    BeforeValidator(_parse_thinning),
    PlainSerializer(lambda steps: [f"{days:g}:{seconds}" for days, seconds in steps]),
    _TEXTS,
]
