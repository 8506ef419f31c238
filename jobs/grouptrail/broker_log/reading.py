"""A broker's log file as rows of `broker_log_events`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import tzinfo
from pathlib import Path
from typing import Any

from grouptrail.broker_log.doubts import Doubts, FoundLine
from grouptrail.broker_log.events import is_coordinator, parse_message
from grouptrail.broker_log.files import MAX_LINE_BYTES, BrokerLogError, read_lines
from grouptrail.broker_log.layouts import Line, parse_line, unwrapped

LINE_CHARACTERS = 2_000
"""How much of a line is kept."""

_QUIET_LEVELS = frozenset({"TRACE", "DEBUG", "INFO", "NOTICE"})
_CONTEXTS = ("[GroupCoordinator ", "[GroupMetadataManager ")


@dataclass
class LineCounts:
    """Counts of the lines of log files.

    `unmatched` are coordinators' lines with an unknown message, `malformed` those that cannot be read: no UTF-8, no
    valid time, too long. `ambiguous_times` were dropped, because clocks were changed then. `doubtful` events may have
    been written by a client.
    """

    lines: int = 0
    events: int = 0
    doubtful: int = 0
    unmatched: int = 0
    malformed: int = 0
    ambiguous_times: int = 0


def read_events(
    path: Path, zone: tzinfo, counts: LineCounts, *, trusts_clients: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield the events of a file as rows, without the cluster, and count its lines.

    Raises BrokerLogError, of a damaged file after the rows before that place.
    """
    doubts, fault = Doubts(trusts_clients=trusts_clients), None
    try:
        for line in _found(path, zone, counts, doubts):
            yield from _rows(line, counts, trusts_clients=trusts_clients)
    except BrokerLogError as error:
        fault = error
    for line in doubts.rest():
        yield from _rows(line, counts, trusts_clients=trusts_clients)
    if fault is not None:
        raise fault


def _found(path: Path, zone: tzinfo, counts: LineCounts, doubts: Doubts) -> Iterator[FoundLine]:
    may_continue = False
    for text in _texts(path, counts):
        line = None if text is None else parse_line(text, zone)
        if isinstance(line, Line):
            is_ours = is_coordinator(line.logger) if line.logger else line.message.startswith(_CONTEXTS)
            may_continue = is_ours and line.level.upper() in _QUIET_LEVELS
            if is_ours and text is not None:
                yield from _of_coordinator(line, text, counts, doubts)
        elif text is None or (line is not None and line.why == "malformed"):
            counts.malformed += 1
            doubts.add_odd(counts.lines, None)
            may_continue = False
        elif line is not None and line.why == "ambiguous_time":
            counts.ambiguous_times += 1
        elif may_continue and text:
            doubts.add_odd(counts.lines, None)


def _texts(path: Path, counts: LineCounts) -> Iterator[str | None]:
    """Yield the lines without the prefixes of containers, in one piece; None for those that cannot be read."""
    begun = ""
    for raw, is_cut in read_lines(path):
        counts.lines += 1
        try:
            text, goes_on = unwrapped(raw.decode("utf-8"))
        except UnicodeDecodeError:
            begun = ""
            yield None
            continue
        text = begun + text
        if goes_on:
            begun = text[: MAX_LINE_BYTES + 1]
            continue
        begun = ""
        yield None if is_cut or len(text) > MAX_LINE_BYTES else text


def _of_coordinator(line: Line, text: str, counts: LineCounts, doubts: Doubts) -> Iterator[FoundLine]:
    message = parse_message(line.message) if line.logger else None
    if message is None or not message.is_known:
        if line.level.upper() in _QUIET_LEVELS:
            counts.unmatched += 1
            if not line.is_structured:
                doubts.add_odd(counts.lines, line.at)
    elif message.events:
        yield from doubts.add(FoundLine(counts.lines, line.at, text, message.events, line.is_structured))


def _rows(line: FoundLine, counts: LineCounts, *, trusts_clients: bool) -> Iterator[dict[str, Any]]:
    is_forgeable = not line.is_structured and not trusts_clients
    for number, event in enumerate(line.events):
        counts.events += 1
        counts.doubtful += line.doubt is not None
        source = f"{line.at.isoformat()}\0{number}\0{is_forgeable}\0{line.text}"
        yield {
            "event_id": hashlib.sha256(source.encode()).hexdigest()[:32],
            "logged_at": line.at,
            "broker_id": event.broker_id,
            "record_partition": event.record_partition,
            "group_id": event.group_id,
            "event": event.event,
            "generation_before": event.generation_before,
            "generation": event.generation,
            "member_id": event.member_id,
            "trigger": event.trigger,
            "reason": _shortened(event.reason),
            "is_forgeable": is_forgeable,
            "doubt": line.doubt,
            "line": _shortened(line.text),
        }


def _shortened(text: str | None) -> str | None:
    if text is None or len(text) <= LINE_CHARACTERS:
        return text
    return text[: LINE_CHARACTERS - 1] + "…"
