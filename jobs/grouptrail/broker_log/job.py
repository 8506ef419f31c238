"""The job `broker-log`: follows the brokers' log files and writes what they say about groups.

Positions are stored after the events were written and applied: what is read again after an interruption is in the
table already. `following` describes how a log is read.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from grouptrail.broker_log.events_table import write_events
from grouptrail.broker_log.following import FollowedLog
from grouptrail.broker_log.matching import followed_files
from grouptrail.broker_log.rotation import File, FileId, by_age
from grouptrail.broker_log.status import NOTE_SECONDS, FollowedFile, FollowStatus, write_status
from grouptrail.console.progress import Log
from grouptrail.console.times import time_zone
from grouptrail.errors import GrouptrailError
from grouptrail.jobs import BROKER_LOG, Applied, ApplyEvents, JobContext
from grouptrail.memory import release_memory
from grouptrail.storage.thread_query import IntervalQuery

if TYPE_CHECKING:
    from grouptrail.broker_log.reading import Row
    from grouptrail.config.model import BrokerLogConfig
    from grouptrail.storage.checkpoints import Start
    from grouptrail.storage.following import Query
    from grouptrail.storage.warehouse import Warehouse

BYTES_A_BATCH = 4 << 20
"""About so much is read at a time: its events take some 40 MB if every line has one."""

# By then the other jobs have done their first batches, which should not have to share the processors.
_FIRST_AFTER_SECONDS = 5.0
_GAP = timedelta(hours=1)
_MOST_SPANS = 20
_KEEP_GONE_SECONDS = 7 * 86_400.0
_MOST_READ_BEFORE = 200


class NoFilesError(GrouptrailError):
    """No files are configured to be followed, or the warehouse cannot be written without Spark."""


def check(context: JobContext[BrokerLogConfig]) -> None:
    """Raise unless files are configured and the warehouse can be written; the files need not exist."""
    if not context.settings.files:
        raise NoFilesError("no files of brokers' logs are configured: set broker_log.files")
    if not context.warehouse.is_readable_without_spark:
        raise NoFilesError(
            f"events of brokers' logs cannot be used in {context.warehouse.shown}, which delta-rs does not support: "
            "remove broker_log.files"
        )
    context.warehouse.check()


def start(context: JobContext[BrokerLogConfig]) -> Query:
    """Start the query. In: the files of `broker_log.files`; out: `broker_log_events`, and rows of the history."""
    warehouse, settings = context.warehouse, context.settings
    warehouse.ensure(BROKER_LOG.writes)
    checkpoint = warehouse.checkpoint(BROKER_LOG.name)
    checkpoint.open(())  # it may be older than the table, which has each event once
    assert context.apply_events is not None
    following = Following(
        warehouse,
        settings,
        Positions(checkpoint),
        apply=context.apply_events,
        log=context.log,
        note=lambda status: write_status(checkpoint, status),
        once=context.once,
    )
    return IntervalQuery(
        checkpoint,
        process=following.process,
        once=context.once,
        every_seconds=settings.interval_seconds,
        first_after_seconds=0 if context.once else _FIRST_AFTER_SECONDS,
    )


def start_after_loss(_context: JobContext[BrokerLogConfig]) -> Start:
    """Return no position to start from: files are read from their beginning, and the table has each event once."""
    return {}


class Texts(Protocol):
    """A folder of small files."""

    def text(self, name: str) -> str | None:
        """Return the text of a file; None if there is none."""

    def write_text(self, name: str, text: str) -> None:
        """Write or replace a file."""


class Positions:
    """How far each log was read, in two files by turns: a process may be killed while it writes one."""

    _FILES = ("positions-0.json", "positions-1.json")

    def __init__(self, folder: Texts) -> None:
        self._folder = folder
        self._number = 0

    def read(self) -> dict[str, Any]:
        """Return the newest state that was written whole: of each log by its path, when last and how far."""
        newest: dict[str, Any] = {}
        for name in self._FILES:
            try:
                stored = json.loads(self._folder.text(name) or "")
                number, logs = int(stored["number"]), dict(stored["logs"])
            except (ValueError, KeyError, TypeError):
                continue
            if number > self._number:
                self._number, newest = number, logs
        return newest

    def write(self, logs: Mapping[str, Any]) -> None:
        """Write a state in place of the older one."""
        self._number += 1
        text = json.dumps({"number": self._number, "logs": logs})
        self._folder.write_text(self._FILES[self._number % 2], text)


class Following:
    """Looks at the files, and writes and applies the events of their new lines.

    After a failure it must be replaced by a new one, which resumes at the stored positions. `note` gets what is known
    of the files, when that has changed and once a minute.
    """

    def __init__(
        self,
        warehouse: Warehouse,
        settings: BrokerLogConfig,
        positions: Positions,
        *,
        apply: ApplyEvents,
        log: Log,
        note: Callable[[FollowStatus], None] = lambda _: None,
        once: bool = False,
    ) -> None:
        self._warehouse = warehouse
        self._settings = settings
        self._positions = positions
        self._apply = apply
        self._log = log
        self._note = note
        self._once = once
        self._logs: dict[str, FollowedLog] = {}
        self._rotated: Mapping[str, Sequence[Path]] = {}
        self._read_before: list[FileId] = []
        self._seen_at: dict[str, float] = {}
        self._without_files: tuple[str, ...] = ()
        self._to_look_at: deque[str] = deque()
        self._problems: dict[str, str] = {}
        self._reason: str | None = None
        self._noted: tuple[list[FollowedFile], float] = [], 0.0
        for name, stored in positions.read().items():
            self._follow(name, stored["log"])
            self._seen_at[name] = stored["seen_at"]

    def process(self, batch: int) -> bool:
        """Read what is new, up to `BYTES_A_BATCH`, and return whether there is more."""
        started = time.monotonic()
        if not self._to_look_at:
            self._find()
            self._to_look_at.extend(self._logs)
        before = self._lines
        rows = self._read()
        new = write_events(self._warehouse, rows) if rows else 0
        applied = [self._apply(*span) for span in _spans([row["logged_at"] for row in rows])]
        if any(log.has_changed for log in self._logs.values()):
            self._store()
        if new or any(applied):
            self._log(_summary(batch, self._lines - before, new, applied, time.monotonic() - started))
        self._log_reason(applied)
        self._log_problems()
        self._note_status()
        release_memory(after_seconds=time.monotonic() - started)
        return bool(self._to_look_at)

    @property
    def _lines(self) -> int:
        return sum(log.counts.lines for log in self._logs.values())

    def _follow(self, name: str, state: Mapping[str, Any] | None = None) -> None:
        zone, trusts_clients = time_zone(self._settings.time_zone), self._settings.trust_clients
        self._logs[name] = FollowedLog(Path(name), zone, self._log, trusts_clients=trusts_clients)
        if state is not None:
            self._logs[name].restore(state)

    def _find(self) -> None:
        """Find the files that match the settings: follow new ones, and forget those that do not match any more."""
        found = followed_files(self._settings.files)
        self._rotated, self._without_files = found.paths, found.without_files
        now = time.time()
        self._seen_at |= dict.fromkeys(found.paths, now)
        for name in [name for name in self._logs if name not in found.paths and not self._is_gone(name, now)]:
            self._read_before = [*self._read_before, *self._logs.pop(name).files][-_MOST_READ_BEFORE:]
            del self._seen_at[name]
        for name in found.paths:
            if name not in self._logs:
                self._follow(name)

    def _is_gone(self, name: str, now: float) -> bool:
        """Return whether a file that matched a pattern is gone for now, as while it is rotated."""
        is_wanted = any(fnmatch(name, pattern) for pattern in self._settings.files)
        return is_wanted and not os.path.lexists(name) and now - self._seen_at[name] < _KEEP_GONE_SECONDS

    def _read(self) -> list[Row]:
        """Return the rows of the next lines: a look at each log, which the next batch continues."""
        rows: list[Row] = []
        read = 0
        places = {name: os.path.realpath(name) for name in self._logs}
        while self._to_look_at and read < BYTES_A_BATCH:
            name = self._to_look_at[0]
            log = self._logs[name]
            others = [place for other, place in places.items() if other != name]
            older = partial(self._older, name)
            more = log.read(BYTES_A_BATCH - read, passes_all=self._once, others=others, older=older)
            rows += more.rows
            read += more.read_bytes
            if log.is_at_end:
                self._to_look_at.popleft()
        return rows

    def _older(self, name: str) -> list[File]:
        known = [one for log in self._logs.values() for one in log.files]
        return by_age(self._rotated.get(name, ()), [*known, *self._read_before])

    def _store(self) -> None:
        states = {name: {"log": log.state(), "seen_at": self._seen_at[name]} for name, log in self._logs.items()}
        self._positions.write(states)
        for log in self._logs.values():
            log.has_changed = False

    def _log_reason(self, applied: Sequence[Applied]) -> None:
        """Log why the history could not be updated, once."""
        for one in applied:
            if one.reason != self._reason:
                self._reason = one.reason
                if one.reason is not None:
                    self._log(f"broker-log: {one.reason}")

    def _log_problems(self) -> None:
        """Log the problems that were not there before, and which of them are gone."""
        problems = {name: log.problem for name, log in self._logs.items() if log.problem is not None}
        problems |= dict.fromkeys(self._without_files, "no file matches this pattern yet")
        for name, problem in problems.items():
            if self._problems.get(name) != problem:
                self._log(f"broker-log: {name}: {problem}")
        for name in self._problems:
            if name not in problems and name in self._logs:
                self._log(f"broker-log: {name} is read now")
        self._problems = problems

    def _note_status(self) -> None:
        files = [FollowedFile(pattern, problem=self._problems[pattern]) for pattern in self._without_files]
        for name, log in self._logs.items():
            # Files of a pattern come and go.
            if log.problem is None or not log.is_missing or name in self._settings.files:
                counts = log.counts
                files.append(
                    FollowedFile(
                        name,
                        lines=counts.lines,
                        events=counts.events,
                        unmatched=counts.unmatched,
                        malformed=counts.malformed,
                        unread_bytes=log.unread_bytes,
                        last_line_at=None if log.last_at is None else log.last_at.timestamp(),
                        problem=log.problem,
                    )
                )
        noted, at = self._noted
        if files != noted or time.monotonic() - at >= NOTE_SECONDS:
            self._note(FollowStatus(datetime.now(UTC), self._settings.interval_seconds, tuple(files)))
            self._noted = files, time.monotonic()


def _spans(times: list[datetime]) -> list[tuple[datetime, datetime]]:
    """Return the periods that times are in: a line of long ago must not have all rows since then read."""
    spans: list[tuple[datetime, datetime]] = []
    for at in sorted(times):
        if spans and at - spans[-1][1] <= _GAP:
            spans[-1] = spans[-1][0], at
        else:
            spans.append((at, at))
    return spans if len(spans) <= _MOST_SPANS else [(spans[0][0], spans[-1][1])]


def _summary(batch: int, lines: int, new: int, applied: Sequence[Applied], seconds: float) -> str:
    changed = "".join(f"; {one}" for one in applied if one)
    return f"broker-log batch {batch}: {lines:,} lines read, {new:,} new events{changed}; in {seconds:.1f} s"
