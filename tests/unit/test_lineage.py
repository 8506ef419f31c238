"""After a start, rows of `offset_commits` that were read before are not read again: here their files are gone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from grouptrail.config import Config
from grouptrail.lag.state import LagState
from grouptrail.log_offsets.committed import CommittedPartitions
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.snapshot.totals import Totals
from grouptrail.storage.lineage import SavedRows, SourceVersion, noted, with_source
from grouptrail.storage.reader import OpenTable, table_id
from support import small_tables
from support.contexts import lag_inputs
from support.lag_cluster import empty_tables, store_commits

COMMITS, COMMITTED = "offset_commits", "committed_offsets"
SOURCE = SourceVersion("a table", 3)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return empty_tables(tmp_path / "warehouse")


def commit(config: Config, record_offset: int, topic: str, offset: int | None, **more: Any) -> None:
    row = {"topic": topic, "partition": 0, "record_offset": record_offset, "committed_offset": offset}
    at = small_tables.NOON + timedelta(seconds=record_offset)
    times = {"record_at": at, "commit_at": at}
    small_tables.lay(config, COMMITS, row | times | {"is_tombstone": offset is None} | more)


def lose_files(config: Config) -> None:
    """Remove all files with rows of `offset_commits`, so that reading one fails."""
    for file in Path(warehouse_of(config).table(COMMITS).path).glob("*.parquet"):
        file.unlink()


def positions(config: Config) -> dict[str, int]:
    """Return the newest committed offset by topic, as a new lag job knows it."""
    rows, _ = LagState(lag_inputs(config), print).commits()
    return dict(zip(rows["topic"].to_pylist(), rows["committed_offset"].to_pylist(), strict=True))


def partitions(config: Config) -> dict[str, list[int]]:
    commits, newest = warehouse_of(config).tables((COMMITS, COMMITTED))
    return CommittedPartitions(commits, newest).partitions()


def stored_source(config: Config) -> tuple[OpenTable, OpenTable] | None:
    newest, commits = warehouse_of(config).tables((COMMITTED, COMMITS))
    return with_source(newest.location, commits.location)


def totals(config: Config) -> Totals:
    values = {"count": ("!is_tombstone", "sum")}
    return Totals(warehouse_of(config), COMMITS, position="record_offset", keys=("record_partition",), values=values)


def counted(of: Totals, config: Config) -> list[int]:
    counts: list[int] = of.now(DeltaTable(warehouse_of(config).table(COMMITS).path))["count"].to_pylist()
    return counts


def test_jobs_read_only_what_was_committed_since_the_newest_commits_were_stored(config: Config) -> None:
    """Also a deletion since then, and one that was stored."""
    for number, topic in enumerate(("orders", "invoices", "old", "gone")):
        commit(config, number, topic, 10 + number)
    commit(config, 5, "old", None)
    store_commits(config, *LagState(lag_inputs(config), print).commits())
    lose_files(config)
    assert positions(config) == {"orders": 10, "invoices": 11, "gone": 13}
    commit(config, 7, "orders", 20)
    commit(config, 8, "gone", None)
    commit(config, 9, "new", 1)
    assert positions(config) == {"orders": 20, "invoices": 11, "new": 1}
    assert partitions(config) == {"invoices": [0], "new": [0], "orders": [0]}


def test_jobs_read_no_file_that_optimize_made_of_what_was_stored(config: Config) -> None:
    commit(config, 1, "orders", 10)
    commit(config, 2, "orders", 20)
    store_commits(config, *LagState(lag_inputs(config), print).commits())
    DeltaTable(warehouse_of(config).table(COMMITS).path).optimize.compact()
    lose_files(config)
    commit(config, 3, "invoices", 30)
    assert positions(config) == {"orders": 20, "invoices": 30}
    assert partitions(config) == {"invoices": [0], "orders": [0]}


def recreate(config: Config) -> None:
    for file in Path(warehouse_of(config).table(COMMITS).path, "_delta_log").iterdir():
        file.unlink()
    small_tables.lay(config, COMMITS)


def lose_log(config: Config) -> None:
    """Remove all commits before the newest one from the log."""
    DeltaTable(warehouse_of(config).table(COMMITS).path).create_checkpoint()
    *old, _ = sorted(Path(warehouse_of(config).table(COMMITS).path, "_delta_log").glob("*.json"))
    for file in old:
        file.unlink()


@pytest.mark.parametrize("change", [recreate, lose_log])
def test_jobs_read_all_again_if_it_is_not_known_what_was_stored(
    config: Config, change: Callable[[Config], None]
) -> None:
    """In a table that was created again, or whose log no longer has that version."""
    commit(config, 1, "orders", 10)
    store_commits(config, *LagState(lag_inputs(config), print).commits())
    commit(config, 2, "orders", 11)
    change(config)
    commit(config, 3, "orders", 30)
    assert stored_source(config) is None
    assert positions(config) == {"orders": 30}
    assert partitions(config) == {"orders": [0]}


def test_jobs_read_all_again_if_the_stored_commits_were_deleted_and_not_yet_written(config: Config) -> None:
    """In a table whose files have rows of several clusters these are two commits."""
    commit(config, 1, "orders", 10)
    store_commits(config, *LagState(lag_inputs(config), print).commits())
    DeltaTable(warehouse_of(config).table(COMMITTED).path).delete("cluster = 'default'")
    assert stored_source(config)
    assert positions(config) == {"orders": 10}
    assert partitions(config) == {"orders": [0]}


def test_jobs_of_each_cluster_know_what_that_cluster_has_stored(config: Config) -> None:
    commit(config, 1, "orders", 10)
    store_commits(config, *LagState(lag_inputs(config), print).commits())
    other = config.model_copy(update={"cluster": "other"})
    commit(other, 2, "theirs", 7, cluster="other")
    assert positions(other) == {"theirs": 7}
    assert partitions(other) == {"theirs": [0]}
    assert positions(config) == {"orders": 10}


def test_appended_rows_counts_what_an_earlier_version_has_as_read(config: Config) -> None:
    commit(config, 1, "orders", 10)
    table = DeltaTable(warehouse_of(config).table(COMMITS).path)
    commit(config, 2, "orders", 20)
    columns = pa.schema({"record_offset": pa.int64(), "cluster": pa.string()})
    rows = warehouse_of(config).table(COMMITS).new_rows(columns, after=table)
    assert rows.read_to.version == -1
    assert [part["record_offset"].to_pylist() for part in rows.fresh()] == [[2]]
    assert rows.read_to == (table_id(table), table.version() + 1)


def test_noted_source_is_the_oldest_of_several_of_one_table() -> None:
    [action] = noted([SOURCE, SourceVersion("a table", 2)], "c")
    assert '"version": 2' in action
    assert noted([SOURCE, SourceVersion("another", 2)], "c") == []


def test_totals_continue_after_a_start_without_reading_what_they_counted(config: Config) -> None:
    """Rows since then are counted once, and deleted rows stay counted."""
    for number in range(4):
        commit(config, number, "orders", 10)
    assert counted(totals(config), config) == [4]
    lose_files(config)
    assert counted(totals(config), config) == [4]
    commit(config, 7, "orders", None)
    commit(config, 8, "orders", 20)
    assert counted(totals(config), config) == [5]


def test_totals_whose_version_left_the_log_count_no_row_twice(config: Config) -> None:
    commit(config, 1, "orders", 10)
    assert counted(totals(config), config) == [1]
    commit(config, 2, "orders", 20)
    lose_log(config)
    assert counted(totals(config), config) == [2]


@pytest.mark.parametrize("fault", ["another table", "a later version", "no table", "other columns", "a broken file"])
def test_totals_are_counted_anew_if_the_saved_ones_do_not_fit(config: Config, fault: str) -> None:
    commit(config, 1, "orders", 10)
    first = totals(config)
    assert counted(first, config) == [1]
    table = DeltaTable(warehouse_of(config).table(COMMITS).path)
    columns = first.now(table).schema
    saved = SavedRows(warehouse_of(config).checkpoint_path("metrics"), {}, COMMITS, columns)
    rows, _ = saved.read(of=table) or pytest.fail("nothing is saved")
    wrong = rows.set_column(rows.column_names.index("count"), "count", pa.array([70], pa.int64()))
    if fault == "another table":
        saved.write(wrong, of=DeltaTable(warehouse_of(config).table(COMMITTED).path))
    elif fault == "a later version":
        commit(config, 2, "orders", 20)
        later = DeltaTable(warehouse_of(config).table(COMMITS).path)
        saved.write(wrong, of=later)
        Path(warehouse_of(config).table(COMMITS).path, "_delta_log", f"{later.version():020}.json").unlink()
    elif fault == "other columns":
        saved.write(wrong.drop_columns("position"), of=table)
    else:
        [file] = Path(warehouse_of(config).checkpoint_path("metrics")).glob("*.parquet")
        file.write_bytes(b"PAR1") if fault == "a broken file" else file.unlink()
    assert counted(totals(config), config) == [1]


def test_totals_are_served_where_nothing_can_be_saved(config: Config) -> None:
    Path(warehouse_of(config).checkpoint_path("metrics")).parent.mkdir(parents=True)
    Path(warehouse_of(config).checkpoint_path("metrics")).write_text("not a folder")
    commit(config, 1, "orders", 10)
    assert counted(totals(config), config) == [1]
