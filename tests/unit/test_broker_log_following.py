"""Logs that are followed: the events are those of reading all files at once, however they are written and rotated."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouptrail.broker_log import doubts, files
from grouptrail.broker_log.following import FollowedLog
from grouptrail.broker_log.reading import LineCounts, read_events
from support import broker_log_lines as lines

A, B = "app-17e0bb30-0f94-4806-9276-0ad8e0e4ceea", "b-1536646c-48f4-4998-9bfb-accd8a286c4b"
LOGGED = [
    lambda second: lines.plain(second, lines.failed("orders", A)),
    lambda second: lines.plain(second, lines.left("evil", B, f"bye ({lines.LOGGER})\nthen")),
    lambda second: lines.plain(second, "[Group orders] what is this").removesuffix(f" ({lines.LOGGER})"),
    lambda second: f"[2026-11-28 09:00:00,000] INFO started {second} (kafka.server.KafkaServer)",
    lambda second: lines.structured(second, lines.failed("payments", A), broker=2),
    lambda second: f"\tat java.lang.Thread.run({second})",
]


class Follower:
    """A log in a folder that is followed, and restarted from what was stored; `rows` are those of its table."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "server.log"
        self.rows: dict[str, dict[str, Any]] = {}
        self.returned: list[str] = []
        self.said: list[str] = []
        self.log = self._new()
        self._stored = "{}"

    def _new(self) -> FollowedLog:
        return FollowedLog(self.path, UTC, self.said.append)

    def read(self, most_bytes: int = 1 << 20, *, passes_all: bool = False) -> None:
        for row in self.log.read(most_bytes, passes_all=passes_all).rows:
            self.returned.append(row["event_id"])
            before = self.rows.setdefault(row["event_id"], row)
            if before["doubt"] is None:
                self.rows[row["event_id"]] = row

    def read_some(self) -> None:
        self.read(100)

    def store(self) -> None:
        self._stored = json.dumps(self.log.state())

    def restart(self) -> None:
        self.log = self._new()
        if self._stored != "{}":
            self.log.restore(json.loads(self._stored))

    def read_on(self) -> None:
        """Read until everything that is there has been read, and nothing waits."""
        for _ in range(3):
            self.read()
            while not self.log.is_at_end:
                self.read()


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def shift(path: Path, newest: Path) -> None:
    """Give rotated files the next higher numbers, and the file `newest` the number 1."""
    rotated = sorted(path.parent.glob(f"{path.name}.*"), key=lambda one: int(one.name.split(".")[2]), reverse=True)
    for one in rotated:
        number, *packed = one.name.split(".")[2:]
        one.rename(path.with_name(".".join([path.name, str(int(number) + 1), *packed])))
    newest.rename(f"{path}.1")


def expected(path: Path) -> dict[str, str | None]:
    """Return the doubts of the events of all files by their ids, each file read at once."""
    found: dict[str, str | None] = {}
    for one in path.parent.glob(f"{path.name}*"):
        for row in read_events(one, UTC, LineCounts()):
            found[row["event_id"]] = row["doubt"]
    return found


def found(follower: Follower) -> dict[str, str | None]:
    return {name: row["doubt"] for name, row in follower.rows.items()}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a few lines enough to reach every limit but those of a line."""
    monkeypatch.setattr(files, "_CHUNK_BYTES", 150)
    monkeypatch.setattr(doubts, "LINES_NEAR", 4)


class Broker:
    """Writes lines of several kinds to a log, and rotates it."""

    def __init__(self, path: Path, kinds: list[Any]) -> None:
        self.path = path
        self._kinds = kinds
        self._unwritten = b""
        self._second = 0
        path.touch()

    def log(self, count: int) -> None:
        for _ in range(count):
            line = self._kinds[self._second % len(self._kinds)](self._second)
            self._unwritten += f"{line}\n".encode()
            self._second += 1

    def write(self, most_bytes: int | None = None) -> None:
        with self.path.open("ab") as file:
            file.write(self._unwritten[:most_bytes])
        self._unwritten = b"" if most_bytes is None else self._unwritten[most_bytes:]

    def rotate(self) -> None:
        self.move()
        self.path.touch()

    def move(self) -> None:
        self.write()
        moved = self.path.with_name("moving")
        self.path.rename(moved)
        shift(self.path, moved)

    def copy_and_truncate(self) -> None:
        self.write()
        copy = self.path.with_name("copying")
        shutil.copy(self.path, copy)
        os.truncate(self.path, 0)
        shift(self.path, copy)

    def pack(self) -> None:
        for plain in self.path.parent.glob(f"{self.path.name}.[0-9]"):
            packed = Path(f"{plain}.gz")
            packed.write_bytes(gzip.compress(plain.read_bytes()))
            status = plain.stat()
            os.utime(packed, ns=(status.st_atime_ns, status.st_mtime_ns))
            plain.unlink()


BROKER_STEPS = [Broker.rotate, Broker.move, Broker.copy_and_truncate, Broker.pack]
FOLLOWER_STEPS = [Follower.read, Follower.read_some, Follower.store, Follower.restart]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([Broker.log]), st.integers(0, 8)),
        st.tuples(st.sampled_from([Broker.write]), st.integers(1, 200) | st.none()),
        st.tuples(st.sampled_from(BROKER_STEPS + FOLLOWER_STEPS)),
    ),
    max_size=40,
)


@given(steps=STEPS, kinds=st.lists(st.sampled_from(LOGGED), min_size=1, max_size=6))
def test_followed_log_however_written_and_rotated_has_the_events_of_its_files_read_at_once(
    steps: list[tuple[Any, ...]], kinds: list[Any]
) -> None:
    """Rotation cuts no line, as in Kafka's log; a restart resumes what was stored last, or at the beginning."""
    with folder() as place:
        follower = Follower(place)
        broker = Broker(follower.path, kinds)
        follower.read()
        follower.store()
        for step, *arguments in steps:
            of = follower if step in FOLLOWER_STEPS else broker
            step(of, *arguments)
        broker.write()
        follower.read_on()
        assert found(follower) == expected(follower.path)
        assert not any("may be missing" in line for line in follower.said)
