"""Whether the files to follow can be read, and have what is looked for: for `grouptrail doctor`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from pathlib import Path

from grouptrail.broker_log.files import BrokerLogError, LineSplitter, read_chunks
from grouptrail.broker_log.layouts import Line, parse_line, unwrapped
from grouptrail.broker_log.matching import followed_files
from grouptrail.broker_log.reading import QUIET_LEVELS, is_of_coordinator
from grouptrail.query.formats import counted

LAST_BYTES = 1 << 20
"""How much of a file's end is looked at."""

_REMEDY = "set the logger org.apache.kafka.coordinator.group to INFO"


@dataclass(frozen=True)
class Inspection:
    """What is to be said about a file; `cannot_read`: it is there, and cannot be read."""

    text: str
    is_good: bool = False
    cannot_read: bool = False


@dataclass
class _Lines:
    """Counts of lines: all, those with a known layout, those in JSON, and those of group coordinators at INFO."""

    read: int = 0
    known: int = 0
    structured: int = 0
    of_coordinators: int = 0
    last_at: datetime | None = None


def inspect_files(patterns: Sequence[str], zone: tzinfo) -> Iterator[Inspection]:
    """Yield what is found of each file, and of each pattern that no file matches."""
    found = followed_files(patterns)
    for pattern in found.without_files:
        yield Inspection(f"{pattern}: no file matches this pattern yet: check broker_log.files")
    for name in found.paths:
        yield _inspect(Path(name), zone)


def _inspect(path: Path, zone: tzinfo) -> Inspection:
    try:
        size = path.stat().st_size
        lines = _read(path, max(0, size - LAST_BYTES), zone)
    except FileNotFoundError:
        return Inspection(f"{path} does not exist yet: check broker_log.files")
    except (OSError, BrokerLogError) as error:
        reason = (
            f"{path} cannot be read ({error.strerror}): check its rights" if isinstance(error, OSError) else error
        )
        return Inspection(str(reason), cannot_read=True)
    what = f"{path}: {counted(lines.read, 'line')}" + (
        f" in its last {LAST_BYTES >> 20} MB" if size > LAST_BYTES else ""
    )
    if not lines.read:
        return Inspection(f"{path} is empty", is_good=True)
    if not lines.known:
        return Inspection(f"{what}, none in a known layout: use one of those in docs/broker-log.md")
    layout = "JSON" if lines.structured * 2 > lines.known else "text"
    newest = f"the newest of {lines.last_at:%Y-%m-%d %H:%M:%S} UTC"
    if not lines.of_coordinators:
        return Inspection(f"{what} of {layout}, {newest}, none of a group coordinator at level INFO: {_REMEDY}")
    useful = f"{lines.of_coordinators:,} of group coordinators at level INFO"
    return Inspection(f"{what} of {layout}, {useful}, {newest}", is_good=True)


def _read(path: Path, offset: int, zone: tzinfo) -> _Lines:
    splitter, lines = LineSplitter(), _Lines()
    is_first = offset > 0  # it may have lost its beginning
    for chunk, _ in read_chunks(path, offset):
        for raw, is_cut in splitter.feed(chunk) if chunk is not None else splitter.end():
            if is_first or is_cut:
                is_first = False
                continue
            lines.read += 1
            text, _ = unwrapped(raw.decode("utf-8", "replace"))
            line = parse_line(text, zone)
            if isinstance(line, Line):
                lines.known += 1
                lines.structured += line.is_structured
                lines.last_at = line.at
                lines.of_coordinators += is_of_coordinator(line) and line.level.upper() in QUIET_LEVELS
    return lines
