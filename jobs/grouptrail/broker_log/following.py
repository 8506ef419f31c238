"""One log that is followed: its lines, each read once, through rotations and restarts.

No file is held open between two looks: what is read next depends on the stored position and on the files that are
there, after a restart as at any other look.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any

from grouptrail.broker_log.files import BrokerLogError, LineSplitter, MovedError, read_chunks
from grouptrail.broker_log.reading import EventReader, LineCounts, Row
from grouptrail.broker_log.rotation import File, FileId, Position, age, is_moved, rotated_files
from grouptrail.console.progress import Log

_MOST_KNOWN = 100


@dataclass(frozen=True)
class NewRows:
    """The rows of some lines, and how many bytes were read for them."""

    rows: list[Row]
    read_bytes: int


class FollowedLog:
    """A log by the path of the file that it is written to.

    `problem` says why it cannot be read now, as of the last look; `is_missing`: because there is no file.
    `is_at_end`: the last look has read everything that was there. `unread_bytes` are those on disk after what was
    read. `has_changed`: its state may differ from what it was when this was set to false.
    """

    def __init__(self, path: Path, zone: tzinfo, log: Log, *, trusts_clients: bool = False) -> None:
        self.path = path
        self.problem: str | None = None
        self.is_missing = False
        self.is_at_end = True
        self.has_changed = False
        self.unread_bytes: int | None = None
        self.known: list[FileId] = []
        self._position: Position | None = None
        self._reader = EventReader(zone, LineCounts(), trusts_clients=trusts_clients)
        self._log = log
        self._look: Iterator[int] | None = None
        self._is_compressed = False
        self._rows: list[Row] = []
        self._waiting_to = 0
        self._seen: tuple[int, int, int, int] | None = None

    @property
    def counts(self) -> LineCounts:
        """The counts of its lines since it is followed."""
        return self._reader.counts

    @property
    def last_at(self) -> datetime | None:
        """The time of its last line that has one."""
        return self._reader.last_at

    @property
    def files(self) -> Iterator[FileId]:
        """The files that were read, the one that is being read among them."""
        yield from self.known
        if self._position is not None:
            yield self._position.file

    def state(self) -> dict[str, Any]:
        """Return what is needed to resume, as JSON."""
        return {
            "position": None if self._position is None else self._position.as_json(),
            "known": [vars(one) for one in self.known],
            "reader": self._reader.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Resume from a state."""
        self._position = None if state["position"] is None else Position.from_json(state["position"])
        self.known = [FileId(**one) for one in state["known"]]
        self._reader.restore(state["reader"])

    def read(
        self,
        most_bytes: int,
        *,
        passes_all: bool = False,
        others: Collection[str] = (),
        older: Callable[[], list[File]] = list,
    ) -> NewRows:
        """Read the next lines: about `most_bytes`, and less where a look ends (`is_at_end`).

        Rows of the last lines, which the next ones might make doubtful, are returned by the next look, or with
        `passes_all` at the end of this one. `others` are the paths of other logs. `older` returns the rotated files
        to read before the file itself, if nothing has been read yet.
        """
        if self.is_at_end:
            self._waiting_to = self.counts.lines
        if self._look is None:
            self._look = self._read_all(frozenset(others), older)
        self._rows = []
        read = 0
        try:
            for count in self._look:
                read += count
                if read >= most_bytes:
                    if not self._is_compressed:
                        self._look = None  # it may be truncated before the rest is read
                    self.is_at_end = False
                    return NewRows(self._rows, read)
        except MovedError:
            self._seen = None  # the next look finds where it is
        self._look, self.is_at_end = None, True
        waiting = list(self._reader.passed(None if passes_all else self._waiting_to))
        self.has_changed |= bool(waiting)
        return NewRows(self._rows + waiting, read)

    def _read_all(self, others: frozenset[str], older: Callable[[], list[File]]) -> Iterator[int]:
        """Read everything that is there; yield how many bytes were read, now and then."""
        if self._is_as_before():
            return
        try:
            current = File.of(Path(os.path.realpath(self.path)))
        except OSError as error:
            yield from self._read_without_current(error, others)
            return
        self.problem, self.is_missing = None, False
        position = self._position
        if position is None:
            for file in older():
                yield from self._read_file(Position.begin(file), file, current.size, is_complete=True)
            position = Position.begin(current)
        elif not position.is_in(current) or position.file.is_weak:
            yield from self._read_rotated(position, current, others)
            moved = self._position
            assert moved is not None
            position = moved if moved.is_in(current) else Position.begin(current)
        yield from self._read_file(position.moved_to(current), current, 0, is_complete=False)
        self._seen = (current.id.device, current.id.inode, current.size, current.modified_ns)

    def _is_as_before(self) -> bool:
        try:
            now = self.path.stat()
        except OSError:
            return False
        return self._seen == (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns)

    def _read_without_current(self, error: OSError, others: frozenset[str]) -> Iterator[int]:
        """Read the file that the log was rotated to, while there is no new one or it may not be read."""
        self.is_missing = isinstance(error, FileNotFoundError)
        if self.is_missing:
            is_new = self._position is None
            self.problem = (
                "there is no such file yet" if is_new else "the file is gone; it is read on once it is back"
            )
        else:
            self.problem = f"cannot be read ({error.strerror or error}): check its rights"
        self.unread_bytes = None
        self._seen = None
        if self._position is not None and self.is_missing:
            yield from self._read_rotated(self._position, None, others)

    def _read_rotated(self, position: Position, current: File | None, others: frozenset[str]) -> Iterator[int]:
        """Read the rest of the file that was read last, and those between it and the current one.

        While there is no current one, the newest may still be written to.
        """
        read, later = rotated_files(self.path, position, self.known, others)
        may_be_current = current is not None and (position.is_in(current) or is_moved(current, position))
        if current is not None and may_be_current and read is None and not later:
            self._position = position.moved_to(current)
            return
        files = later if read is None else [read, *later]
        if current is None and not files:
            return
        if position.file.is_weak:
            files.sort(key=age)
        if current is not None and read is None and not may_be_current and position.file.head_bytes:
            self._log(
                f"broker-log: {self.path} was replaced or truncated, and no file beside it has its earlier lines: "
                "what was logged after the last look may be missing; rotate less often, or keep one more file"
            )
        if files and files[0] is read:
            begins = [position.moved_to(read), *map(Position.begin, files[1:])]
        else:
            begins = list(map(Position.begin, files))
            self._end_file()
        ahead = sum(file.size for file in files) + (current.size if current is not None else 0)
        for number, (file, begin) in enumerate(zip(files, begins, strict=True), 1):
            ahead -= file.size
            is_complete = current is not None or number < len(files)
            yield from self._read_file(begin, file, ahead, is_complete=is_complete)

    def _read_file(self, begin: Position, file: File, ahead: int, *, is_complete: bool) -> Iterator[int]:
        """Read a file; its last line ends with it if it `is_complete`. `ahead` are the bytes of files after it."""
        lines, read = LineSplitter(is_cut=begin.is_cut), begin.offset
        self._position, self._is_compressed, self.has_changed = begin, file.is_compressed, True
        try:
            for chunk, is_damaged in read_chunks(file.path, begin.offset, file.id.place):
                if chunk is not None:
                    self._add(lines.feed(chunk))
                    read += len(chunk)
                elif is_complete:
                    self._add(lines.end(is_damaged=is_damaged))
                self.has_changed = True
                self._position = replace(begin, offset=read - lines.begun_bytes, is_cut=lines.is_cut)
                self.unread_bytes = ahead + (file.size if file.is_compressed else max(0, file.size - read))
                yield 0 if chunk is None else len(chunk)
        except BrokerLogError as error:
            if is_complete:
                self._log(f"broker-log: {error}")
            else:
                self.problem = str(error)
        self.unread_bytes = ahead + lines.begun_bytes
        if is_complete:
            self._end_file()
            known = [one for one in self.known if one != begin.file]
            self.known = [*known, begin.file][-_MOST_KNOWN:]

    def _add(self, lines: Iterator[tuple[bytes, bool]]) -> None:
        for raw, is_cut in lines:
            self._rows.extend(self._reader.add(raw, is_cut=is_cut))

    def _end_file(self) -> None:
        """Note that nothing more comes of a file: no later line can make its last ones doubtful."""
        self._rows.extend(self._reader.end_of_file())
        self.has_changed = True
