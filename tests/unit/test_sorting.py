"""Sorting the files of a table that is appended to: the same rows, in few files, and nobody takes them for new."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from grouptrail.storage import sorting
from grouptrail.storage.engines.engine import Once
from grouptrail.storage.errors import TableError
from grouptrail.storage.rows_by_version import RowsByVersion
from grouptrail.storage.table import Table
from grouptrail.storage.warehouse import Warehouse

AT = datetime(2026, 11, 1, 12, tzinfo=UTC)


@pytest.fixture
def warehouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Warehouse:
    """A warehouse whose runs have four rows."""
    monkeypatch.setattr(sorting, "_ROWS_A_RUN", 4)
    return Warehouse(str(tmp_path), "test")


@pytest.fixture
def table(warehouse: Warehouse) -> Table:
    table = warehouse.table("log_offsets")
    table.ensure()
    return table


def append(table: Table, *topics: str) -> None:
    """Append a file with a row for each topic."""
    table.append_rows([{"topic": topic, "partition": 0, "asked_at": AT, "sampled_at": AT} for topic in topics])


def rows(table: Table) -> list[dict[str, Any]]:
    found = DeltaTable(table.path).to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: (row["cluster"], row["topic"]))


def files(table: Table) -> dict[str, list[str]]:
    """Return the topics in each file, in their order, by its name; `part` files aside it is sorted."""
    paths = DeltaTable(table.path).get_add_actions()["path"].to_pylist()
    return {path: pq.read_table(Path(table.path, path))["topic"].to_pylist() for path in sorted(paths)}


def test_sort_new_files_writes_runs_and_sorts_the_rest_again_with_new_rows(table: Table) -> None:
    append(table, "d", "b", "a")
    append(table, "c")
    append(table, "e")
    before = rows(table)
    sorting.sort_new_files(table.location)
    assert rows(table) == before
    rest, run = sorted(files(table).items())
    assert (rest[0][:5], rest[1]) == ("rest-", ["e"])
    assert (run[0][:4], run[1]) == ("run-", ["a", "b", "c", "d"])
    version = DeltaTable(table.path).version()
    sorting.sort_new_files(table.location)
    assert DeltaTable(table.path).version() == version  # nothing is new
    append(table, "a")
    sorting.sort_new_files(table.location)
    assert sorted(files(table).values()) == [["a", "b", "c", "d"], ["a", "e"]]
    assert run[0] in files(table)


def test_sort_new_files_of_a_table_without_rows_does_nothing(table: Table) -> None:
    sorting.sort_new_files(table.location)
    assert DeltaTable(table.path).version() == 0


def test_sort_new_files_writes_a_file_for_each_cluster(warehouse: Warehouse, table: Table) -> None:
    other = warehouse.of_cluster("another").table(table.name)
    append(table, "b")
    append(other, "c")
    append(table, "a")
    sorting.sort_new_files(table.location)
    assert sorted(files(table).values()) == [["a", "b"], ["c"]]
    assert [row["cluster"] for row in rows(table)] == ["another", "test", "test"]


def test_sort_new_files_splits_a_large_file(table: Table) -> None:
    append(table, *"jihgfedcba")
    sorting.sort_new_files(table.location)
    assert sorted(topic for topics in files(table).values() for topic in topics) == list("abcdefghij")
    assert all(topics == sorted(topics) for topics in files(table).values())


def test_sort_new_files_leaves_a_rest_that_new_rows_have_no_room_beside(table: Table) -> None:
    append(table, "b")
    append(table, "a")
    sorting._ROWS_A_RUN = 5
    sorting.sort_new_files(table.location)
    [rest] = files(table)
    append(table, *"fedc")
    sorting.sort_new_files(table.location)
    assert sorted(files(table).values()) == [["a", "b"], ["c", "d", "e", "f"]]
    assert rest in files(table)


def test_sort_new_files_takes_large_files_for_runs(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rows that are large, a run has few."""
    monkeypatch.setattr(sorting, "_FILE_BYTES_A_RUN", 10_000)
    for topic in "dcba":
        append(table, topic)
    sorting.sort_new_files(table.location)
    assert [name[:4] for name in files(table)] == ["run-"] * len(files(table))
    assert sorted(topic for topics in files(table).values() for topic in topics) == list("abcd")


def test_sort_new_files_keeps_every_column_and_value(warehouse: Warehouse) -> None:
    """Also those that only a later version's contract has."""
    table = warehouse.table("group_metadata")
    table.ensure()
    DeltaTable(table.path).alter.add_columns([Field("later", PrimitiveType("string"))])
    member = dict.fromkeys(name.name for name in table.schema.field("members").type.value_type)
    shared = {"record_at": AT, "read_at": AT, "record_partition": 1, "is_tombstone": False, "generation": 2}
    for number, members in enumerate(([], None, [member | {"member_id": "m"}, member])):
        table.append_rows([{**shared, "group_id": f"g{-number}", "record_offset": number, "members": members}])
    rows = [{**dict.fromkeys(table.schema.names), "cluster": "test", "group_id": "g", "later": "kept"}]
    schema = table.schema.append(pa.field("later", pa.string()))
    write_deltalake(table.path, pa.Table.from_pylist(rows, schema), mode="append")
    before = DeltaTable(table.path).to_pyarrow_table().to_pylist()
    sorting.sort_new_files(table.location)
    assert sorted(DeltaTable(table.path).to_pyarrow_table().to_pylist(), key=str) == sorted(before, key=str)
    assert len(DeltaTable(table.path).file_uris()) == 1
    assert [row["later"] for row in before if row["later"]] == ["kept"]


def test_sort_new_files_is_no_news_to_readers(table: Table) -> None:
    append(table, "b")
    news = table.new_rows(pa.schema({"topic": pa.string(), "cluster": pa.string()}))
    assert [len(part) for part in news.fresh()] == [1]
    written = table.newest_commit()
    append(table, "a")
    assert [len(part) for part in news.fresh()] == [1]
    appended = table.newest_commit()
    sorting.sort_new_files(table.location)
    assert list(news.fresh()) == []
    sorted_ = table.newest_commit()
    assert written is not None
    assert appended is not None
    assert sorted_ is not None
    assert sorted_.version == appended.version + 1
    assert sorted_.written_at_ms == appended.written_at_ms >= written.written_at_ms
    assert sorted_.rows == appended.rows == 2
    with RowsByVersion(table.location, kept=0) as versions:
        assert [len(found) for found in map(versions.rows, range(4)) if found is not None] == [0, 1, 1, 0]


def test_sort_new_files_leaves_files_that_another_writer_has_replaced(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that were deleted meanwhile do not come back, and none are there twice."""
    append(table, "a", "b")
    append(table, "c")
    commit = sorting._commit

    def beaten(*given: Any) -> None:
        monkeypatch.setattr(sorting, "_commit", commit)
        DeltaTable(table.path).delete("topic = 'a'")
        commit(*given)

    monkeypatch.setattr(sorting, "_commit", beaten)
    sorting.sort_new_files(table.location)
    assert [row["topic"] for row in rows(table)] == ["b", "c"]
    assert not any(name.startswith(("run-", "rest-")) for name in files(table))
    sorting.sort_new_files(table.location)
    assert list(files(table).values()) == [["b", "c"]]


def test_sort_new_files_beside_appends_is_committed_after_them(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    append(table, "b")
    append(table, "a")
    commit, beaten = sorting.commit, []

    def beaten_twice(*given: Any, **how: Any) -> int:
        if len(beaten) < 2:
            beaten.append(append(table, "c"))
        return commit(*given, **how)

    monkeypatch.setattr(sorting, "commit", beaten_twice)
    sorting.sort_new_files(table.location)
    assert sorted(files(table).values()) == [["a", "b"], ["c"], ["c"]]


def test_sort_new_files_with_other_rows_than_the_log_says_is_refused(table: Table) -> None:
    append(table, "b")
    append(table, "a", "c")
    few, many = sorted(Path(table.path).glob("part-*"), key=lambda path: path.stat().st_size)
    few.write_bytes(many.read_bytes())
    with pytest.raises(TableError, match="its files have 4 rows, which is not what its log says"):
        sorting.sort_new_files(table.location)


def test_append_after_sorting_is_done_once(table: Table) -> None:
    one = pa.Table.from_pylist([{"topic": "a", "partition": 0, "asked_at": AT, "sampled_at": AT}])
    table.append(one, Once("job", 0))
    append(table, "b")
    sorting.sort_new_files(table.location)
    table.append(one, Once("job", 0))
    assert [row["topic"] for row in rows(table)] == ["a", "b"]
