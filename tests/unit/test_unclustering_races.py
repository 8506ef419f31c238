"""Processes that find the clustered tables of version 0.1: the clustering is removed once, and no row is lost."""

from __future__ import annotations

import random
import time
from contextlib import suppress
from pathlib import Path

import pytest
from deltalake import DeltaTable

from grouptrail import contracts
from grouptrail.config import Config
from grouptrail.storage import reader
from grouptrail.storage.errors import NeedsSparkError, TableError
from grouptrail.storage.table import Table
from grouptrail.storage.table_log import log_file
from grouptrail.storage.warehouse import Warehouse
from support.frozen_warehouse import thaw
from support.racing_writers import TABLE, ensure_and_append, started, table_at, wait

BATCHES, ROWS = 10, 3


@pytest.fixture
def table(tmp_path: Path) -> Table:
    thaw(Config(warehouse=str(tmp_path)))
    table = table_at(str(tmp_path), {})
    assert is_clustered(table)
    return table


def is_clustered(table: Table) -> bool:
    return reader.is_clustered(DeltaTable(table.path))


def offsets(table: Table) -> list[int]:
    """Return the offsets of the rows of `racing_writers`."""
    rows = DeltaTable(table.path).to_pyarrow_table()
    return sorted(row["log_end_offset"] for row in rows.to_pylist() if row["topic"] != "orders")


def unclustered_in(table: Table) -> list[int]:
    history = DeltaTable(table.path).history()
    return [one["version"] for one in history if one["operation"] == "DROP FEATURE"]


def test_unclustering_by_several_processes_is_done_once_and_rows_are_appended(table: Table) -> None:
    before, version = len(DeltaTable(table.path).to_pyarrow_table()), DeltaTable(table.path).version()
    wait(*(started(table.path.removesuffix(f"/{TABLE}"), {}, "ensure", 0, BATCHES, ROWS) for _ in range(4)))
    assert not is_clustered(table)
    assert unclustered_in(table) == [version + 1]
    assert offsets(table) == list(range(BATCHES * ROWS))
    assert len(DeltaTable(table.path).to_pyarrow_table()) == before + BATCHES * ROWS


def test_unclustering_killed_at_any_time_is_done_once_by_the_next_start(table: Table) -> None:
    choose, version = random.Random(9), DeltaTable(table.path).version()
    for _ in range(5):
        process = started(table.path.removesuffix(f"/{TABLE}"), {}, "ensure", 0, BATCHES, ROWS)
        end = time.monotonic() + 0.5 + choose.random()
        while time.monotonic() < end:
            DeltaTable(table.path).to_pyarrow_table()
        process.kill()
        process.wait()
    ensure_and_append(table, 0, BATCHES, ROWS)
    assert unclustered_in(table) == [version + 1]
    assert offsets(table) == list(range(BATCHES * ROWS))


def test_tables_of_version_0_1_keep_rows_files_and_id_without_a_session(tmp_path: Path) -> None:
    thaw(Config(warehouse=str(tmp_path)))
    of_0_1 = [table for table in Warehouse(str(tmp_path), "test").tables(contracts.tables()) if table.exists()]
    assert len(of_0_1) == 16
    for table in of_0_1:
        contract, before = contracts.tables()[table.name], DeltaTable(table.path)
        assert reader.is_clustered(before) is not bool(contract.partition_by)
        with suppress(NeedsSparkError):  # of a table that lacks columns, or has others
            table.ensure()
        after = DeltaTable(table.path)
        assert not reader.is_clustered(after)
        assert after.version() == before.version() + (not contract.partition_by)
        assert (reader.table_id(after), after.file_uris()) == (reader.table_id(before), before.file_uris())
        assert after.schema() == before.schema()
        commit, like_any = Path(table.path, log_file(after.version())), tmp_path / "file"
        like_any.touch()
        assert commit.stat().st_mode == like_any.stat().st_mode or contract.partition_by


def test_unclustering_where_the_log_cannot_be_written_is_one_line(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "hardlink_to", refused)
    files = sorted(Path(table.path, "_delta_log").iterdir())
    with pytest.raises(TableError, match=r"\.json cannot be written \(Permission denied\): check the access rights"):
        table.ensure()
    assert sorted(Path(table.path, "_delta_log").iterdir()) == files
