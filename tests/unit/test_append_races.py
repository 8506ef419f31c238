"""Several processes append to one table and sort it: each batch is in it once, whoever is beaten or killed."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from grouptrail.storage.engines import commits
from grouptrail.storage.engines.engine import Once
from grouptrail.storage.files import write
from grouptrail.storage.table import Table
from servers.object_store import BUCKET, object_store
from support.deadlines import scaled
from support.racing_writers import append_batches, batch, sort_until, started, table_at, wait

Store = tuple[str, dict[str, str]]

BATCHES, ROWS = 25, 3


@pytest.fixture(params=["folder", pytest.param("S3", marks=pytest.mark.full)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "folder":
        yield str(tmp_path / "warehouse"), {}
    else:
        with object_store(tmp_path) as options:
            yield f"s3://{BUCKET}/warehouse", options


def offsets(table: Table) -> list[int]:
    rows = DeltaTable(table.path, storage_options=dict(table.location.options)).to_pyarrow_table()
    return sorted(rows["log_end_offset"].to_pylist())


def test_append_same_batches_by_three_processes_are_done_once(store: Store) -> None:
    table = table_at(*store)
    table.ensure()
    wait(*(started(*store, "append", 0, BATCHES, ROWS) for _ in range(3)))
    assert offsets(table) == list(range(BATCHES * ROWS))
    assert table.last_version("job") == BATCHES - 1


@pytest.mark.parametrize("kills", [2, pytest.param(4, marks=pytest.mark.full)])
def test_append_processes_killed_at_any_time_leave_each_batch_once(store: Store, kills: int) -> None:
    """What is started again after a kill repeats all batches."""
    table, choose = table_at(*store), random.Random(5)
    table.ensure()
    for _ in range(kills):
        process = started(*store, "append", 0, BATCHES, ROWS)
        known, deadline = table.last_version("job"), time.monotonic() + scaled(60)
        while table.last_version("job") < min(known + choose.randint(1, 5), BATCHES - 1):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.kill()
        process.wait()
    append_batches(table, 0, BATCHES, ROWS)
    assert offsets(table) == list(range(BATCHES * ROWS))


def test_sorting_beside_appends_and_another_sorting_keeps_each_row_once(store: Store) -> None:
    table = table_at(*store)
    table.ensure()
    writers = [started(*store, "append", 0, BATCHES, ROWS) for _ in range(2)]
    wait(*writers, *(started(*store, "sort", BATCHES - 1) for _ in range(2)))
    assert offsets(table) == list(range(BATCHES * ROWS))
    assert len(files(table)) < BATCHES


@pytest.mark.parametrize("kills", [2, pytest.param(6, marks=pytest.mark.full)])
def test_sorting_killed_at_any_time_keeps_each_row_once(store: Store, kills: int) -> None:
    """It is killed before, while and after it commits; files that it has written belong to no version then."""
    table, choose = table_at(*store), random.Random(7)
    table.ensure()
    appended, sorted_by_killed = 0, 0
    for _ in range(kills):
        append_batches(table, appended, appended + 5, ROWS)
        appended += 5
        before, stop_at = files(table), choose.random()
        process = started(*store, "sort", 1_000_000)
        deadline = time.monotonic() + scaled(60)
        while files(table) == before:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        end = time.monotonic() + stop_at / 10
        while time.monotonic() < end:
            append_batches(table, appended, appended + 1, ROWS)
            appended += 1
        process.kill()
        process.wait()
        sorted_by_killed += any(one.startswith("rest-") for one in files(table) - before)
        assert offsets(table) == list(range(appended * ROWS))
    assert sorted_by_killed or kills == 2  # so few may all come at another time
    sort_until(table, 0)
    assert offsets(table) == list(range(appended * ROWS))


def files(table: Table) -> set[str]:
    opened = table.open()
    assert opened is not None
    return set(opened.get_add_actions()["path"].to_pylist())


def test_append_to_a_table_opened_before_another_commit_is_retried_or_recognised(tmp_path: Path) -> None:
    """By its application's version, or without one by its files: the answer of a store may have been lost."""
    table = table_at(str(tmp_path), {})
    table.ensure()
    before = table.open()
    assert before is not None
    append_batches(table, 0, 2, ROWS)
    written = {number: list(write(batch(table, number, ROWS).to_batches(), table.location)) for number in (1, 2)}
    assert commits.append_files(table.location, before, written[1], Once("job-log_offsets", 1)) is None
    assert commits.append_files(table.location, before, written[2], None) == 3
    assert commits.append_files(table.location, before, written[2], None) is None
    assert offsets(table) == list(range(3 * ROWS))
