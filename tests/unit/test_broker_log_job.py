"""The job `broker-log` without a session: what it writes, applies, stores and says, look by look."""

from __future__ import annotations

import gzip
import os
import tracemalloc
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from grouptrail.broker_log import job
from grouptrail.broker_log.doubts import NEAR_INCOMPLETE
from grouptrail.broker_log.events_table import EVENTS, write_events
from grouptrail.broker_log.job import Following, NoFilesError, Positions
from grouptrail.broker_log.status import FollowedFile, FollowStatus, read_status, write_status
from grouptrail.config import Config
from grouptrail.history.broker_log_update import Updated
from grouptrail.jobs import BROKER_LOG
from grouptrail.runtime.warehouses import warehouse_of
from support import broker_log_lines as lines
from support.broker_log_lines import at
from support.contexts import context

A = "app-17e0bb30-0f94-4806-9276-0ad8e0e4ceea"


class Folder:
    """The folder of a checkpoint, without Spark."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)

    def text(self, name: str) -> str | None:
        file = self.path / name
        return file.read_text() if file.exists() else None

    def write_text(self, name: str, text: str) -> None:
        (self.path / name).write_text(text)


class Job:
    """The job, which looks when a test wants it to; `said` is its log, `applied` what it applied to the history."""

    def __init__(self, folder: Path, *files: str, once: bool = True, **settings: Any) -> None:
        self.config = Config(
            warehouse=str(folder / "warehouse"),
            broker_log={"files": [str(folder / file) for file in files], **settings},  # type: ignore[arg-type]
        )
        self.warehouse = warehouse_of(self.config)
        self.warehouse.table(EVENTS).ensure()
        self.folder = Folder(Path(self.warehouse.checkpoint_path(BROKER_LOG.name)))
        self.said: list[str] = []
        self.applied: list[tuple[datetime, datetime]] = []
        self.result = Updated()
        self.notes: list[FollowStatus] = []
        self._once = once
        self.restart()

    def restart(self) -> None:
        self.following = Following(
            self.warehouse,
            self.config.broker_log,
            Positions(self.folder),
            apply=self._apply,
            log=self.said.append,
            note=self.notes.append,
            once=self._once,
        )

    def _apply(self, first: datetime, last: datetime) -> Updated:
        self.applied.append((first, last))
        return self.result

    def look(self) -> None:
        batch = 0
        while self.following.process(batch):
            batch += 1

    def rows(self) -> list[dict[str, Any]]:
        return self.warehouse.table(EVENTS).select("*", "ORDER BY logged_at")

    def seconds(self) -> list[float]:
        return [(row["logged_at"] - lines.BEGIN).total_seconds() for row in self.rows()]

    @property
    def files(self) -> Mapping[str, FollowedFile]:
        return {Path(file.path).name: file for file in self.notes[-1].files}


def logged(path: Path, *seconds: float, end: str = "\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        for second in seconds:
            file.write(f"{lines.plain(second, lines.failed('orders', A))}{end}")


def test_following_writes_and_applies_the_events_of_new_lines_once(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    logged(path, 0, 10)
    follower = Job(tmp_path, "server.log")
    follower.look()
    follower.look()
    assert (follower.seconds(), follower.applied) == ([0, 10], [(at(0), at(10))])
    assert follower.said[0].startswith("broker-log batch 0: 2 lines read, 2 new events; in ")
    logged(path, 20)
    follower.restart()
    follower.look()
    assert (follower.seconds(), follower.applied[1:]) == ([0, 10, 20], [(at(20), at(20))])
    assert len(follower.said) == 2


def test_following_killed_before_it_stored_its_positions_writes_nothing_twice_and_applies_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged(tmp_path / "server.log", 0, 10)
    follower = Job(tmp_path, "server.log")

    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    write = Positions.write
    monkeypatch.setattr(Positions, "write", kill)
    with pytest.raises(KeyboardInterrupt):
        follower.look()
    monkeypatch.setattr(Positions, "write", write)
    follower.restart()
    follower.look()
    assert follower.seconds() == [0, 10]
    assert follower.applied == [(at(0), at(10))] * 2


def test_positions_written_in_part_are_those_before(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "checkpoint")
    positions = Positions(folder)
    positions.write({"a": 1})
    positions.write({"a": 2})
    newest = max(folder.path.iterdir(), key=lambda file: file.read_text())
    newest.write_text(newest.read_text()[:10])
    again = Positions(folder)
    assert again.read() == {"a": 1}
    again.write({"a": 3})
    assert Positions(folder).read() == {"a": 3}


def test_following_of_half_a_line_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    logged(path, 0, end="")
    follower = Job(tmp_path, "server.log")
    follower.look()
    assert follower.rows() == []
    assert follower.files["server.log"].unread_bytes == path.stat().st_size
    with path.open("a") as file:
        file.write("\n")
    follower.look()
    assert follower.seconds() == [0]


def test_following_passes_on_the_last_lines_when_nothing_came_after_them_by_the_next_look(tmp_path: Path) -> None:
    logged(tmp_path / "server.log", 0)
    follower = Job(tmp_path, "server.log", once=False)
    follower.look()
    assert follower.rows() == []
    follower.restart()
    follower.look()
    assert follower.seconds() == [0]


def test_doubt_that_a_later_look_finds_is_written_into_the_row_and_applied(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    logged(path, 0)
    follower = Job(tmp_path, "server.log")
    follower.look()
    assert [row["doubt"] for row in follower.rows()] == [None]
    path.open("a").write("and more of this message\n")
    follower.look()
    assert [row["doubt"] for row in follower.rows()] == [NEAR_INCOMPLETE]
    assert follower.applied == [(at(0), at(0))] * 2
    assert follower.files["server.log"].events == 1


def test_following_of_several_logs_reads_each_and_all_names_of_a_file_once(tmp_path: Path) -> None:
    logged(tmp_path / "1" / "server.log", 0)
    logged(tmp_path / "2" / "server.log", 10)
    (tmp_path / "3").symlink_to(tmp_path / "2")
    follower = Job(tmp_path, "*/server.log")
    follower.look()
    assert follower.seconds() == [0, 10]
    assert [file.lines for file in follower.notes[-1].files] == [1, 1]


def test_following_reads_a_file_of_several_brokers_by_turns(tmp_path: Path) -> None:
    path = tmp_path / "all.log"
    for second, broker in ((10, 1), (3, 2), (11, 1), (4, 2)):
        path.open("a").write(f"{lines.plain(second, lines.failed('orders', A), broker=broker)}\n")
    follower = Job(tmp_path, "all.log")
    follower.look()
    assert [(row["broker_id"], row["doubt"]) for row in follower.rows()] == [
        (2, None),
        (2, None),
        (1, None),
        (1, None),
    ]


def test_following_with_a_pattern_that_rotated_files_match_reads_them_first_and_once(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    logged(path, 0)
    path.rename(tmp_path / "server.log.2")
    logged(path, 10)
    path.rename(tmp_path / "server.log.1")
    logged(path, 20)
    for number, name in enumerate(("server.log.2", "server.log.1", "server.log")):
        os.utime(tmp_path / name, (number, number))
    follower = Job(tmp_path, "server.log*")
    follower.look()
    assert (follower.seconds(), list(follower.files)) == ([0, 10, 20], ["server.log"])
    (tmp_path / "server.log.3.gz").write_bytes(gzip.compress((tmp_path / "server.log.2").read_bytes()))
    (tmp_path / "server.log.1").rename(tmp_path / "server.log.2")
    path.rename(tmp_path / "server.log.1")
    logged(path, 30)
    follower.look()
    assert (follower.seconds(), follower.files["server.log"].lines) == ([0, 10, 20, 30], 4)


def test_following_while_it_was_down_reads_all_files_that_came_since(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    logged(path, 0, 1, 2, 3)
    follower = Job(tmp_path, "server.log")
    follower.look()
    logged(path, 10)
    (tmp_path / "server.log.2.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    logged(path, 20)
    path.rename(tmp_path / "server.log.1")
    logged(path, 30)
    follower.restart()
    follower.look()
    assert follower.seconds() == [0, 1, 2, 3, 10, 20, 30]
    assert follower.files["server.log"].lines == 7


def test_following_of_a_link_that_leads_elsewhere_reads_the_file_before_to_its_end(tmp_path: Path) -> None:
    """As in /var/log/containers, when a container is started again."""
    logged(tmp_path / "pod" / "0.log", 0)
    link = tmp_path / "container.log"
    link.symlink_to(tmp_path / "pod" / "0.log")
    follower = Job(tmp_path, "container.log")
    follower.look()
    logged(tmp_path / "pod" / "0.log", 10)
    logged(tmp_path / "pod" / "1.log", 20)
    link.unlink()
    link.symlink_to(tmp_path / "pod" / "1.log")
    follower.look()
    assert (follower.seconds(), len(follower.said)) == ([0, 10, 20], 2)


def test_following_of_a_file_whose_rest_is_gone_says_so_once(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    logged(path, 0)
    follower = Job(tmp_path, "server.log")
    follower.look()
    path.write_text("")
    logged(path, 10)
    follower.look()
    follower.look()
    assert follower.seconds() == [0, 10]
    assert [line for line in follower.said if "was replaced or truncated" in line] == [follower.said[1]]
    assert str(path) in follower.said[1]


def test_following_of_files_that_are_not_there_says_so_once_and_reads_them_later(tmp_path: Path) -> None:
    follower = Job(tmp_path, "1/server.log", "2/*.log")
    follower.look()
    follower.look()
    assert follower.said == [
        f"broker-log: {tmp_path}/1/server.log: there is no such file yet",
        f"broker-log: {tmp_path}/2/*.log: no file matches this pattern yet",
    ]
    assert {name: file.problem is None for name, file in follower.files.items()} == {
        "*.log": False,
        "server.log": False,
    }
    logged(tmp_path / "1" / "server.log", 0)
    logged(tmp_path / "2" / "a.log", 10)
    follower.look()
    assert follower.seconds() == [0, 10]
    assert follower.said[-1] == f"broker-log: {tmp_path}/1/server.log is read now"
    (tmp_path / "1" / "server.log").unlink()
    (tmp_path / "2" / "a.log").unlink()
    logged(tmp_path / "2" / "b.log", 20)
    follower.look()
    assert list(follower.files) == ["server.log", "b.log"], "files of a pattern come and go"
    assert follower.files["server.log"].problem is not None


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_following_of_what_is_no_file_does_not_wait_for_it(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "server.log"
    if kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    follower = Job(tmp_path, "server.log")
    follower.look()
    follower.look()
    [line] = follower.said
    assert line.startswith(f"broker-log: {path}: cannot be read (")
    assert follower.files["server.log"].unread_bytes is None


def test_following_of_a_file_that_may_not_be_read_reads_it_once_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root every file can be read."""
    path = tmp_path / "server.log"
    logged(path, 0)
    follower = Job(tmp_path, "server.log")

    def deny(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as denied:
        denied.setattr("grouptrail.broker_log.rotation.open_regular", deny)
        follower.look()
        follower.look()
    assert follower.said == [f"broker-log: {path}: cannot be read (Permission denied): check its rights"]
    follower.look()
    assert follower.seconds() == [0]


def test_following_forgets_a_file_that_the_settings_no_longer_name(tmp_path: Path) -> None:
    logged(tmp_path / "a.log", 0)
    logged(tmp_path / "b.log", 10)
    Job(tmp_path, "a.log", "b.log").look()
    follower = Job(tmp_path, "b.log")
    follower.look()
    assert list(follower.files) == ["b.log"]


def test_following_applies_lines_of_long_ago_apart_from_others(tmp_path: Path) -> None:
    logged(tmp_path / "server.log", 0, -500_000, 1)
    follower = Job(tmp_path, "server.log")
    follower.look()
    assert follower.applied == [(at(-500_000), at(-500_000)), (at(0), at(1))]


def test_following_says_what_changed_and_once_why_nothing_can(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    follower = Job(tmp_path, "server.log")
    follower.result = Updated(reason="there is no history yet: wait")
    for second in (0, 10):
        logged(path, second)
        follower.look()
    follower.result = Updated(rebalances=1)
    logged(path, 20)
    follower.look()
    assert [line for line in follower.said if "history" in line] == [
        "broker-log: there is no history yet: wait",
        follower.said[-1],
    ]
    assert "1 new events; history: 1 rebalance and 0 endings of memberships updated; in" in follower.said[-1]


def test_following_holds_no_more_than_a_batch_of_a_large_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "BYTES_A_BATCH", 300_000)
    path = tmp_path / "server.log"
    other = f"{'x' * 200} (kafka.server.KafkaServer)\n" * 5_000
    for second in range(20):
        path.open("a").write(other)
        logged(path, second)
    follower = Job(tmp_path, "server.log")
    follower.look()
    tracemalloc.start()
    try:
        with path.open("a") as file:
            for _ in range(4):
                file.write(other)
        follower.look()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert follower.seconds() == list(range(20))
    assert peak < 4 << 20
    assert follower.files["server.log"].unread_bytes == 0


def test_write_events_of_two_that_read_the_same_lines_at_once_are_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = Job(tmp_path, "server.log")
    rows = lines.events_of(tmp_path, [lines.plain(second, lines.failed("orders", A)) for second in (0, 10)])
    table = type(follower.warehouse.table(EVENTS))
    append = table.append_rows
    others = [rows[:1], rows]

    def after_another(self: Any, *arguments: Any) -> None:
        if others:
            monkeypatch.setattr(table, "append_rows", append)
            write_events(follower.warehouse, others.pop(0))
            monkeypatch.setattr(table, "append_rows", after_another)
        append(self, *arguments)

    monkeypatch.setattr(table, "append_rows", after_another)
    assert write_events(follower.warehouse, rows) == 2
    assert follower.seconds() == [0, 10]


def test_check_without_files_names_the_setting(tmp_path: Path) -> None:
    config = Config(warehouse=str(tmp_path / "warehouse"))
    with pytest.raises(NoFilesError, match="set broker_log"):
        BROKER_LOG.check(context(BROKER_LOG, config))


def test_status_is_what_was_noted_until_it_is_too_old(tmp_path: Path) -> None:
    follower = Job(tmp_path, "server.log")
    file = FollowedFile("/logs/server.log", 3, 2, 1, 0, 5, 10.0, "it is gone")
    noted = FollowStatus(at(0), 5, (file,))
    assert read_status(follower.warehouse, BROKER_LOG.name) is None
    write_status(follower.folder, noted)  # type: ignore[arg-type]
    assert read_status(follower.warehouse, BROKER_LOG.name) == noted
    assert not noted.is_stale(at(100))
    assert noted.is_stale(at(0) + timedelta(minutes=3))
    (follower.folder.path / "followed_files.json").write_text("{")
    assert read_status(follower.warehouse, BROKER_LOG.name) is None
