"""Which lines a client seems to have written: names and reasons may contain line breaks.

In a text layout, a client's reason can end its own line and continue with others that look like the coordinator's.
Doubtful is what follows an unusual reason closely and is about another group, and everything near a line that is
incomplete, continues another, has an unknown message, or goes back in time. A client that knows Kafka's source can
avoid all of these, so that lines of text prove less than JSON, which escapes line breaks and is never doubtful.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from grouptrail.broker_log.events import Event

LINES_NEAR = 100
"""How many lines before and after may be part of the same forgery."""

SECONDS_NEAR = timedelta(seconds=5)
"""How far ahead a client can guess the time of a rebalance of another group, by the line's own time."""

_SET_BACK = timedelta(seconds=1)
"""How far lines of several threads may be out of order."""

FOLLOWS_TEXT = "follows an unusual reason of a client of another group"
NEAR_INCOMPLETE = "near a line that is incomplete or has an unknown message"
BACK_IN_TIME = "earlier than a line before it"

# The reasons of clients of Kafka's own, librdkafka's lack of one, and lists of topics. Static members of Java give an
# empty one for their first join.
_USUAL = re.compile(
    r"""not\ provided|member\ was\ removed\ by\ an\ admin|subscription\ has\ changed|group\ is\ already\ rebalancing
    | (?:the\ )?consumer\ .{0,60}|need\ to\ re.{0,200}|rebalance\ (?:failed\ due\ to|enforced).{0,100}
    | cached\ metadata\ has\ changed.{0,250}|received\ assignment\ does.{0,60}|offset\ commit\ failed.{0,60}
    | \[[\w.,\ -]*\]|\{.*\}""",
    re.VERBOSE,
)


@dataclass(slots=True)
class FoundLine:
    """A line with events. `number` counts the lines of the file, `doubt` is why it may be a client's, if it may.

    `is_passed_on`: it has been passed on with this doubt; `is_repeated`: and before that without it.
    """

    number: int
    at: datetime
    text: str
    events: tuple[Event, ...]
    is_structured: bool
    doubt: str | None = None
    is_passed_on: bool = False
    is_repeated: bool = False


class Doubts:
    """Passes on the lines of one file, in order, once the lines near them have been seen.

    Where `passed` passes on some before that, they are passed on again if a later line makes them doubtful. With
    `trusts_clients`, the words of clients are taken to contain no lines of their own.
    """

    def __init__(self, *, trusts_clients: bool = False) -> None:
        self._trusts_clients = trusts_clients
        self._waiting: deque[FoundLine] = deque()
        self._odd: tuple[int, datetime] | None = None
        self._texts: dict[str, tuple[int, datetime]] = {}
        self._latest: dict[int | None, tuple[int, datetime]] = {}
        self._last_at: datetime | None = None

    def add(self, line: FoundLine) -> Iterator[FoundLine]:
        """Add a line, and yield those that no further line can make doubtful."""
        self._last_at = line.at
        if not line.is_structured and not self._trusts_clients:
            line.doubt = self._doubt(line)
            self._note(line)
        self._waiting.append(line)
        yield from self._ready(line.number)

    def add_odd(self, number: int, at: datetime | None) -> None:
        """Add a line that is incomplete, continues another, or has an unknown message; `at` if it has a time."""
        at = at or self._last_at
        if at is None or self._trusts_clients:
            return
        self._last_at = at
        self._odd = (number, at)
        for line in self._waiting:
            if not line.is_structured and line.doubt is None and _is_near(line, self._odd):
                line.doubt = NEAR_INCOMPLETE
                line.is_passed_on, line.is_repeated = False, line.is_passed_on

    def passed(self, up_to: int | None = None) -> Iterator[FoundLine]:
        """Yield the lines that still wait: at the end of the file, or those up to a number, as no more may come."""
        for line in self._waiting:
            if not line.is_passed_on and (up_to is None or line.number <= up_to):
                line.is_passed_on = True
                yield line

    def _forget_old(self, number: int) -> None:
        """Forget the brokers whose last line is too far away to matter: a client can name any number of them."""
        if len(self._latest) > 2 * LINES_NEAR:
            kept = {broker: place for broker, place in self._latest.items() if number - place[0] <= LINES_NEAR}
            self._latest = kept

    def state(self) -> dict[str, Any]:
        """Return what is needed to go on in another process, as JSON."""
        return {
            "odd": _place_as_json(self._odd),
            "texts": [[group, *_as_json(place)] for group, place in self._texts.items()],
            "latest": [[broker, *_as_json(place)] for broker, place in self._latest.items()],
            "last_at": None if self._last_at is None else self._last_at.isoformat(),
            "waiting": [
                [line.number, line.at.isoformat(), line.text, line.doubt, line.is_passed_on, line.is_repeated]
                for line in self._waiting
            ],
        }

    def restore(self, state: Mapping[str, Any], parse: Callable[[str], tuple[tuple[Event, ...], bool]]) -> None:
        """Go on from a state; `parse` returns the events of a line, and whether it is structured."""
        self._odd = None if state["odd"] is None else _place(state["odd"])
        self._texts = {group: _place(place) for group, *place in state["texts"]}
        self._latest = {broker: _place(place) for broker, *place in state["latest"]}
        self._last_at = None if state["last_at"] is None else datetime.fromisoformat(state["last_at"])
        self._waiting = deque(
            FoundLine(number, datetime.fromisoformat(at), text, *parse(text), doubt, is_passed_on, is_repeated)
            for number, at, text, doubt, is_passed_on, is_repeated in state["waiting"]
        )

    def _ready(self, number: int) -> Iterator[FoundLine]:
        while self._waiting and number - self._waiting[0].number > LINES_NEAR:
            line = self._waiting.popleft()
            if not line.is_passed_on:
                yield line

    def _doubt(self, line: FoundLine) -> str | None:
        if self._odd is not None and _is_near(line, self._odd):
            return NEAR_INCOMPLETE
        for event in line.events:
            latest = self._latest.get(event.broker_id)
            if latest is not None and line.number - latest[0] <= LINES_NEAR and line.at < latest[1] - _SET_BACK:
                return BACK_IN_TIME
        groups = {event.group_id for event in line.events}
        others = (place for group, place in self._texts.items() if group not in groups)
        return FOLLOWS_TEXT if any(_is_near(line, place) for place in others) else None

    def _note(self, line: FoundLine) -> None:
        place = (line.number, line.at)
        for event in line.events:
            latest = self._latest.get(event.broker_id)
            if latest is None or line.at >= latest[1] or line.number - latest[0] > LINES_NEAR:
                self._latest[event.broker_id] = place
                self._forget_old(line.number)
            words = _client_text(event)
            if event.takes_text and words and not _USUAL.fullmatch(words):
                self._texts.pop(event.group_id, None)
                self._texts[event.group_id] = place
        while self._texts:
            oldest = next(iter(self._texts))
            if line.number - self._texts[oldest][0] <= LINES_NEAR:
                break
            del self._texts[oldest]


def _client_text(event: Event) -> str:
    """Return what a client wrote at the end of a message."""
    reason = event.reason or ""
    _, named, words = reason.partition("; client reason: ")
    return words if named else reason


def _as_json(place: tuple[int, datetime]) -> list[Any]:
    return [place[0], place[1].isoformat()]


def _place_as_json(place: tuple[int, datetime] | None) -> list[Any] | None:
    return None if place is None else _as_json(place)


def _place(stored: Sequence[Any]) -> tuple[int, datetime]:
    number, at = stored
    return number, datetime.fromisoformat(at)


def _is_near(line: FoundLine, place: tuple[int, datetime]) -> bool:
    return abs(line.number - place[0]) <= LINES_NEAR and abs(line.at - place[1]) <= SECONDS_NEAR
