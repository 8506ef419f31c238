"""Following a Delta table without Spark: new rows, and files that OPTIMIZE has rewritten."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from grouptrail.config import Config
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.storage import rows as storage_rows
from grouptrail.storage.rows import NewRows
from support import small_tables

COLUMNS = pa.schema({"record_offset": pa.int64(), "topic": pa.string(), "cluster": pa.string()})


def offsets(rows: NewRows) -> list[int]:
    return sorted(offset for part in rows.fresh() for offset in part["record_offset"].to_pylist())


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(warehouse=str(tmp_path), cluster="c")


@pytest.fixture
def rows(config: Config) -> NewRows:
    """The rows of a table that has one."""
    add(config, 1)
    return warehouse_of(config).table("offset_commits").new_rows(COLUMNS)


def add(config: Config, offset: int, cluster: str = "c") -> None:
    small_tables.lay(config, "offset_commits", {"record_offset": offset, "cluster": cluster})


def table(config: Config) -> DeltaTable:
    return DeltaTable(warehouse_of(config).table("offset_commits").path)


def test_new_rows_returns_each_files_rows_once(config: Config, rows: NewRows) -> None:
    """Only files that were added are read, and of them only the requested rows."""
    add(config, 9, "d")
    assert offsets(rows) == [1]
    for offset in (2, 3):
        add(config, offset)
    assert offsets(rows) == [2, 3]
    assert offsets(rows) == []


@pytest.mark.parametrize("at_a_time", [1, 2, 3])
def test_new_rows_of_more_files_than_are_open_at_a_time_come_once_and_together(
    config: Config, rows: NewRows, monkeypatch: pytest.MonkeyPatch, at_a_time: int
) -> None:
    monkeypatch.setattr(storage_rows, "_FILES_AT_A_TIME", at_a_time)
    for offset in (2, 3):
        add(config, offset)
    [part] = rows.fresh()
    assert sorted(part["record_offset"].to_pylist()) == [1, 2, 3]
    assert offsets(rows) == []


def test_new_rows_reads_no_file_that_optimize_made_of_known_ones(config: Config, rows: NewRows) -> None:
    """Also after several runs of OPTIMIZE, and with new rows between them."""
    add(config, 2)
    assert offsets(rows) == [1, 2]
    table(config).optimize.compact()
    assert offsets(rows) == []
    add(config, 3)
    assert offsets(rows) == [3]
    table(config).optimize.compact()
    add(config, 4)
    table(config).optimize.z_order(["record_offset"])
    assert offsets(rows) == [1, 2, 3, 4]  # the second run arranged a file that was not read
    table(config).optimize.z_order(["topic"])
    assert offsets(rows) == []


def test_new_rows_file_that_was_not_read_before_optimize_is_read(config: Config, rows: NewRows) -> None:
    assert offsets(rows) == [1]
    add(config, 2)
    table(config).optimize.compact()
    assert offsets(rows) == [1, 2]


def test_new_rows_after_a_deletion_reads_what_was_rewritten(config: Config, rows: NewRows) -> None:
    add(config, 2)
    table(config).optimize.compact()
    assert offsets(rows) == [1, 2]
    table(config).delete("record_offset = 1")
    assert offsets(rows) == [2]


def test_new_rows_commit_of_optimize_is_not_in_the_log_any_more_reads_its_files(
    config: Config, rows: NewRows
) -> None:
    add(config, 2)
    assert offsets(rows) == [1, 2]
    table(config).optimize.compact()
    newest = table(config)
    newest.create_checkpoint()
    (Path(warehouse_of(config).table("offset_commits").path) / "_delta_log" / f"{newest.version():020}.json").unlink()
    assert offsets(rows) == [1, 2]
