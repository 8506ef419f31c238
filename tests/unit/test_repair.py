"""grouptrail repair: it finds damaged files, and takes out of the tables what cannot be restored."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from grouptrail.config import Config
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.storage.damage import damage_of
from grouptrail.storage.table import Table
from support.cli_in_process import run_cli
from support.exporter_tables import configured, lag_row
from support.sample_groups import billing
from support.small_tables import lay


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """`consumer_lag` in three files, of which the last two are damaged: one is short, one is wrong within."""
    config = configured(tmp_path)
    for numbers in (range(2), range(2, 4), range(4, 7)):
        lay(config, "consumer_lag", *(lag_row(number) for number in numbers))
    truncated, zeros = files(config)[1:]
    truncated.write_bytes(truncated.read_bytes()[:50])
    content = zeros.read_bytes()
    zeros.write_bytes(bytes(len(content) - 600) + content[-600:])
    return config


def table(config: Config) -> Table:
    return warehouse_of(config).table("consumer_lag")


def files(config: Config) -> list[Path]:
    return sorted(Path(table(config).path).glob("*.parquet"), key=lambda file: file.stat().st_mtime_ns)


def partitions(config: Config) -> list[int]:
    return sorted(row["partition"] for row in table(config).select("*"))


def test_repair_names_damaged_files_and_their_rows_and_changes_nothing(config: Config) -> None:
    version = table(config).open().version()
    finished = run_cli(config, "repair", "--format", "csv")
    assert finished.returncode == 1
    assert f"consumer_lag,{files(config)[1].name},2," in finished.printed
    assert f"consumer_lag,{files(config)[2].name},3," in finished.printed
    assert "grouptrail: 2 files are damaged: restore them from a backup, or take them out" in finished.printed
    assert table(config).open().version() == version


def test_repair_drop_takes_the_files_out_of_the_table_and_keeps_them_in_the_folder(config: Config) -> None:
    there = files(config)
    finished = run_cli(config, "repair", "--drop")
    assert finished.returncode == 0, finished.printed
    assert "consumer_lag: 2 files are no longer part of it" in finished.printed
    assert partitions(config) == [0, 1]
    assert files(config) == there
    assert damage_of(table(config).path) == []
    lay(config, "consumer_lag", lag_row(9))
    assert partitions(config) == [0, 1, 9]


def test_repair_after_the_files_were_dropped_finds_nothing(config: Config) -> None:
    run_cli(config, "repair", "--drop")
    finished = run_cli(config, "repair")
    assert (finished.returncode, finished.printed.strip()) == (0, "no file is damaged")


def test_repair_other_table_is_left_alone(config: Config) -> None:
    assert run_cli(config, "repair", "topic_names").printed.strip() == "no file is damaged"


def test_repair_drop_file_outside_the_folder_is_taken_out_of_the_table(config: Config) -> None:
    log = max((Path(table(config).path) / "_delta_log").glob("*.json"))
    log.write_text(log.read_text().replace(f'"path":"{files(config)[2].name}"', '"path":"../../other.parquet"'))
    assert run_cli(config, "repair", "--drop").returncode == 0
    assert partitions(config) == [0, 1]


def test_repair_log_that_cannot_be_read_is_named_and_other_tables_are_repaired(config: Config) -> None:
    lay(config, "topic_names", {"topic_id": "a", "topic": "orders", "learned_from": "commit"})
    log = next((Path(warehouse_of(config).location) / "topic_names" / "_delta_log").glob("*.json"))
    log.write_bytes(b"\0\xff")
    finished = run_cli(config, "repair", "--drop")
    assert finished.returncode == 1
    assert "the log of topic_names cannot be read: restore the folder from a backup" in finished.printed
    assert partitions(config) == [0, 1]


def test_repair_drop_from_a_partitioned_history_table_asks_for_a_rebuild(tmp_path: Path) -> None:
    config = configured(tmp_path)
    billing(config)
    states = warehouse_of(config).table("group_states")
    file = next(Path(states.path).glob("**/*.parquet"))
    file.write_bytes(b"")
    finished = run_cli(config, "repair", "group_states", "--drop")
    assert finished.returncode == 0
    assert "run grouptrail rebuild history" in finished.printed
    assert file.name not in {Path(path).name for path in states.open().get_add_actions()["path"].to_pylist()}


def test_repair_table_without_statistics_lists_files_with_an_unknown_number_of_rows(config: Config) -> None:
    for log in (Path(table(config).path) / "_delta_log").glob("*.json"):
        log.write_text(re.sub(r',"stats":"(?:\\.|[^"\\])*"', "", log.read_text()))
    finished = run_cli(config, "repair", "--format", "csv")
    assert finished.returncode == 1
    assert f"consumer_lag,{files(config)[1].name},," in finished.printed
