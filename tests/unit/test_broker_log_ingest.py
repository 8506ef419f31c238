"""`grouptrail ingest-broker-log`: rows of the table, each once, its summary and its errors."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grouptrail.cli import app
from grouptrail.storage.creation import create_table
from grouptrail.storage.warehouse import Warehouse
from support import broker_log_lines as lines

A = "app-17e0bb30-0f94-4806-9276-0ad8e0e4ceea"


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    found = CliRunner().invoke(app, ["ingest-broker-log", *arguments, "--warehouse", str(folder / "warehouse")])
    return found.exit_code, found.output


def rows(folder: Path) -> list[dict[str, object]]:
    return (
        Warehouse(str(folder / "warehouse"), "default").table("broker_log_events").select("*", "ORDER BY logged_at")
    )


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "server.log"
    other = "[2026-11-28 09:00:00,000] INFO started (kafka.server.KafkaServer)"
    path.write_text(f"{lines.plain(0, lines.failed('orders', A), broker=3, partition=7)}\n{other}\n")
    return path


def test_ingest_broker_log_writes_the_events_and_a_summary(tmp_path: Path, log: Path) -> None:
    status, output = run(tmp_path, str(log))
    assert status == 0, output
    assert "1 file: 2 lines read, 1 events, 1 of them new; 0 doubtful, 0 lines unmatched, 0 malformed" in output
    [row] = rows(tmp_path)
    assert {name: row[name] for name in ("cluster", "group_id", "event", "member_id", "broker_id", "logged_at")} == {
        "cluster": "default",
        "group_id": "orders",
        "event": "member_expired",
        "member_id": A,
        "broker_id": 3,
        "logged_at": datetime(2026, 11, 28, 9, 0, 0, tzinfo=UTC),
    }


def test_ingest_broker_log_says_what_becomes_of_the_history(tmp_path: Path, log: Path) -> None:
    assert "there is no history yet: the history job applies the events" in run(tmp_path, str(log))[1]
    for table in Warehouse(str(tmp_path / "warehouse"), "default").tables(("rebalances", "memberships")):
        create_table(table.location)
    _, output = run(tmp_path, str(log))
    assert "history: 0 rebalances and 0 endings of memberships updated" in output
    mark = {"record_partition": -1, "group_id": "", "processed_to": 0, "waits": False, "state": "", "open_bucket": 0}
    positions = Warehouse(str(tmp_path / "warehouse"), "default").table("history_positions")
    create_table(positions.location)
    positions.append_rows([mark])
    assert "a rebuild of the history is running or was interrupted" in run(tmp_path, str(log))[1]


def test_ingest_broker_log_of_the_same_lines_again_adds_nothing(tmp_path: Path, log: Path) -> None:
    rotated = tmp_path / "server.log.1"
    rotated.write_text(log.read_text() * 2)
    run(tmp_path, str(log))
    status, output = run(tmp_path, str(log), str(rotated))
    assert (status, len(rows(tmp_path))) == (0, 1)
    assert "2 files: 6 lines read, 3 events, 0 of them new" in output


def test_ingest_broker_log_takes_times_in_the_given_zone(tmp_path: Path, log: Path) -> None:
    assert run(tmp_path, str(log), "--time-zone", "+02:00")[0] == 0
    assert [row["logged_at"] for row in rows(tmp_path)] == [datetime(2026, 11, 28, 7, 0, 0, tzinfo=UTC)]


def test_ingest_broker_log_with_an_unknown_zone_writes_nothing(tmp_path: Path, log: Path) -> None:
    status, output = run(tmp_path, str(log), "--time-zone", "Mars")
    assert (status, (tmp_path / "warehouse").exists()) == (1, False)
    assert "'Mars' is no time zone" in output


def test_ingest_broker_log_of_a_missing_file_keeps_the_others_and_fails(tmp_path: Path, log: Path) -> None:
    status, output = run(tmp_path, str(tmp_path / "none.log"), str(log))
    assert (status, len(rows(tmp_path))) == (1, 1)
    assert "none.log cannot be read" in output


def test_ingest_broker_log_without_lines_of_a_coordinator_names_the_logger(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("[2026-11-28 09:00:00,000] INFO started (kafka.server.KafkaServer)\n")
    status, output = run(tmp_path, str(path))
    assert status == 0
    assert "set the logger org.apache.kafka.coordinator.group to INFO" in output


def test_ingest_broker_log_drops_times_that_came_twice_and_says_so(tmp_path: Path, log: Path) -> None:
    log.write_text(log.read_text().replace("2026-11-28 09:00:00", "2026-10-25 02:30:00"))
    status, output = run(tmp_path, str(log), "--time-zone", "Europe/Berlin")
    assert (status, rows(tmp_path)) == (0, [])
    assert "2 dropped because clocks were changed then" in output
