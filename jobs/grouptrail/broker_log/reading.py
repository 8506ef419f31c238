"""A broker's log file as rows of `broker_log_events`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any

from grouptrail.broker_log.doubts import Doubts, FoundLine
from grouptrail.broker_log.events import Event, is_coordinator, parse_message
from grouptrail.broker_log.files import MAX_LINE_BYTES, BrokerLogError, read_lines
from grouptrail.broker_log.layouts import Line, parse_line, unwrapped

Row = dict[str, Any]

LINE_CHARACTERS = 2_000
"""How much of a line is kept."""

QUIET_LEVELS = frozenset({"TRACE", "DEBUG", "INFO", "NOTICE"})
"""The levels of messages about groups."""

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


def read_events(path: Path, zone: tzinfo, counts: LineCounts, *, trusts_clients: bool = False) -> Iterator[Row]:
    """Yield the events of a file as rows, without the cluster, and count its lines.

    Raises BrokerLogError, of a damaged file after the rows before that place.
    """
    reader, fault = EventReader(zone, counts, trusts_clients=trusts_clients), None
    try:
        for raw, is_cut in read_lines(path):
            yield from reader.add(raw, is_cut=is_cut)
    except BrokerLogError as error:
        fault = error
    yield from reader.passed()
    if fault is not None:
        raise fault


class EventReader:
    """Makes the lines of a log, in order, into rows of its events, without the cluster, and counts them.

    Times without an offset are of `zone`. `last_at` is the time of the last line that has one.
    """

    def __init__(self, zone: tzinfo, counts: LineCounts, *, trusts_clients: bool = False) -> None:
        self.counts = counts
        self.last_at: datetime | None = None
        self._zone = zone
        self._trusts_clients = trusts_clients
        self._doubts = Doubts(trusts_clients=trusts_clients)
        self._begun = ""
        self._may_continue = False

    def add(self, raw: bytes, *, is_cut: bool) -> Iterator[Row]:
        """Add a line, and yield the rows of those that no further line can make doubtful."""
        self.counts.lines += 1
        text = None if is_cut else self._whole(raw)
        if text is not None and self._begun:
            return
        for line in self._found(text):
            yield from self._rows(line)

    def passed(self, up_to: int | None = None) -> Iterator[Row]:
        """Yield the rows of the lines that still wait: of all, or of the first `up_to` of the log.

        If a later line makes one doubtful, its rows are yielded again, with the doubt.
        """
        for line in self._doubts.passed(up_to):
            yield from self._rows(line)

    def end_of_file(self) -> Iterator[Row]:
        """Yield the rows that still wait; the next line is the first of another file."""
        yield from self.passed()
        self._doubts = Doubts(trusts_clients=self._trusts_clients)
        self._begun, self._may_continue = "", False

    def state(self) -> dict[str, Any]:
        """Return what is needed to go on in another process, as JSON."""
        return {
            "counts": asdict(self.counts),
            "last_at": None if self.last_at is None else self.last_at.isoformat(),
            "begun": self._begun,
            "may_continue": self._may_continue,
            "doubts": self._doubts.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        for name, count in state["counts"].items():
            setattr(self.counts, name, count)
        self.last_at = None if state["last_at"] is None else datetime.fromisoformat(state["last_at"])
        self._begun, self._may_continue = state["begun"], state["may_continue"]
        self._doubts.restore(state["doubts"], self._parsed)

    def _parsed(self, text: str) -> tuple[tuple[Event, ...], bool]:
        line = parse_line(text, self._zone)
        return (parse_message(line.message).events, line.is_structured) if isinstance(line, Line) else ((), False)

    def _whole(self, raw: bytes) -> str | None:
        """Return a line without the prefix of a container, None if it cannot be read; keep one that goes on."""
        before, self._begun = self._begun, ""
        try:
            text, goes_on = unwrapped(raw.decode("utf-8"))
        except UnicodeDecodeError:
            return None
        text = before + text
        if goes_on:
            self._begun = text[: MAX_LINE_BYTES + 1]
            return self._begun
        return None if len(text) > MAX_LINE_BYTES else text

    def _found(self, text: str | None) -> Iterator[FoundLine]:
        line = None if text is None else parse_line(text, self._zone)
        if isinstance(line, Line):
            self.last_at = line.at
            is_ours = is_of_coordinator(line)
            self._may_continue = is_ours and line.level.upper() in QUIET_LEVELS
            if is_ours and text is not None:
                yield from self._of_coordinator(line, text)
        elif text is None or (line is not None and line.why == "malformed"):
            self.counts.malformed += 1
            self._doubts.add_odd(self.counts.lines, None)
            self._may_continue = False
        elif line is not None and line.why == "ambiguous_time":
            self.counts.ambiguous_times += 1
        elif self._may_continue and text:
            self._doubts.add_odd(self.counts.lines, None)

    def _of_coordinator(self, line: Line, text: str) -> Iterator[FoundLine]:
        message = parse_message(line.message) if line.logger else None
        if message is None or not message.is_known:
            if line.level.upper() in QUIET_LEVELS:
                self.counts.unmatched += 1
                if not line.is_structured:
                    self._doubts.add_odd(self.counts.lines, line.at)
        elif message.events:
            found = FoundLine(self.counts.lines, line.at, text, message.events, line.is_structured)
            yield from self._doubts.add(found)

    def _rows(self, line: FoundLine) -> Iterator[Row]:
        is_forgeable = not line.is_structured and not self._trusts_clients
        for number, event in enumerate(line.events):
            self.counts.events += not line.is_repeated
            self.counts.doubtful += line.doubt is not None
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


def is_of_coordinator(line: Line) -> bool:
    """Return whether a line is a group coordinator's: by its logger, or as it begins if that is cut off."""
    return is_coordinator(line.logger) if line.logger else line.message.startswith(_CONTEXTS)


def _shortened(text: str | None) -> str | None:
    if text is None or len(text) <= LINE_CHARACTERS:
        return text
    return text[: LINE_CHARACTERS - 1] + "…"
