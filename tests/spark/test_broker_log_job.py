"""The job `broker-log` as a query: run once, again, without its checkpoint, and until it is stopped."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from grouptrail.broker_log.events_table import EVENTS
from grouptrail.broker_log.status import read_status
from grouptrail.config import Config
from grouptrail.jobs import BROKER_LOG
from grouptrail.runtime.warehouses import warehouse_of
from support import broker_log_lines as lines
from support.cli_in_process import Cli, succeeded
from support.contexts import context
from support.kafka_clients import await_that

A = "app-17e0bb30-0f94-4806-9276-0ad8e0e4ceea"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "server.log"


@pytest.fixture
def config(config: Config, path: Path) -> Config:
    followed = config.broker_log.model_copy(update={"files": (str(path),), "interval_seconds": 0.05})
    return config.model_copy(update={"broker_log": followed})


def logged(path: Path, second: int) -> None:
    with path.open("a") as file:
        file.write(f"{lines.plain(second, lines.failed('orders', A))}\n")


def seconds(config: Config) -> list[float]:
    rows = warehouse_of(config).table(EVENTS).select("logged_at", "ORDER BY logged_at")
    return [(row["logged_at"] - lines.BEGIN).total_seconds() for row in rows]


def run_once(config: Config, spark: SparkSession) -> list[str]:
    """Run the job once; return its log."""
    said: list[str] = []
    query = BROKER_LOG.start(context(BROKER_LOG, config, spark, said.append, once=True))
    assert query.awaitTermination(60)
    return said


def test_broker_log_job_once_reads_what_is_new_and_all_without_its_checkpoint(
    spark: SparkSession, config: Config, path: Path, cli: Cli
) -> None:
    logged(path, 0)
    written, without_history = run_once(config, spark)
    assert written.startswith("broker-log batch 0: 1 lines read, 1 new events; in")
    assert without_history.startswith("broker-log: there is no history yet")
    assert run_once(config, spark) == []
    path.rename(f"{path}.1")
    logged(path, 10)
    assert run_once(config, spark)[0].startswith("broker-log batch 0: 1 lines read, 1 new events; in")
    status = read_status(warehouse_of(config), BROKER_LOG.name)
    assert status is not None
    assert [(file.lines, file.unread_bytes) for file in status.files] == [(2, 0)]
    shutil.rmtree(warehouse_of(config).checkpoint_path(BROKER_LOG.name))
    assert not any("new events" in line for line in run_once(config, spark))
    assert seconds(config) == [0, 10]
    recovered = cli(config, "recover", "--job", "broker-log", "--set", f"broker_log.files={path}")
    assert "broker-log: the next run begins where its tables end" in succeeded(recovered)
    run_once(config, spark)
    assert seconds(config) == [0, 10]


def test_documented_commands_print_what_the_page_shows(config: Config, path: Path, cli: Cli) -> None:
    """But for the duration; of a broker that does not answer doctor says so, too."""
    shutil.copy(lines.FOLDER / "kafka-4.3.0.log", path)
    page = (Path(__file__).parents[2] / "docs" / "broker-log.md").read_text("utf-8")
    block = page.partition("## Follow the files")[2].partition("```console\n")[2].partition("```")[0]
    block = block.replace("/var/log/kafka/server.log", str(path))
    run, *shown = [part.splitlines() for part in block.split("$ grouptrail ")[1:]]
    printed = succeeded(cli(config, *run[0].split()))
    assert [without_duration(line) for line in run[1:]] == [
        without_duration(line) for line in printed.splitlines() if line.startswith("broker-log")
    ]
    [(command, line)] = shown
    arguments = command.partition(" | ")[0].split()
    doctor = cli(config, *arguments, environ={"GROUPTRAIL_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:1"})
    assert line in doctor.printed.splitlines()


def without_duration(line: str) -> str:
    return re.sub(r"in [\d.]+ s$", "", line)


def test_broker_log_job_follows_until_it_is_stopped_and_resumes(
    spark: SparkSession, config: Config, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grouptrail.broker_log.job._FIRST_AFTER_SECONDS", 0)
    for second in (0, 10):
        query = BROKER_LOG.start(context(BROKER_LOG, config, spark, lambda _: None))
        logged(path, second)
        await_that(lambda second=second: second in seconds(config))
        query.stop()
        assert not query.isActive
        assert query.awaitTermination(1)
    assert seconds(config) == [0, 10]
