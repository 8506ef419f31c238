"""Several processes append to one table: each batch is in it once, whoever is beaten or killed."""

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
from support.racing_writers import append_batches, batch, started, table_at, wait

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


def test_append_processes_killed_at_any_time_leave_each_batch_once(store: Store) -> None:
    """What is started again after a kill repeats all batches."""
    table, choose = table_at(*store), random.Random(5)
    table.ensure()
    for _ in range(4):
        process = started(*store, "append", 0, BATCHES, ROWS)
        known, deadline = table.last_version("job"), time.monotonic() + 60
        while table.last_version("job") < min(known + choose.randint(1, 5), BATCHES - 1):
            assert time.monotonic() < deadline
        process.kill()
        process.wait()
    append_batches(table, 0, BATCHES, ROWS)
    assert offsets(table) == list(range(BATCHES * ROWS))


def test_append_to_a_table_opened_before_another_commit_is_retried_or_recognised(tmp_path: Path) -> None:
    """By its application's version, or without one by its files: the answer of a store may have been lost."""
    table = table_at(str(tmp_path), {})
    table.ensure()
    before = table.open()
    assert before is not None
    append_batches(table, 0, 2, ROWS)
    files = {number: list(write(batch(table, number, ROWS).to_batches(), table.location)) for number in (1, 2)}
    assert commits.append_files(table.location, before, files[1], Once("job-log_offsets", 1)) is None
    assert commits.append_files(table.location, before, files[2], None) == 3
    assert commits.append_files(table.location, before, files[2], None) is None
    assert offsets(table) == list(range(3 * ROWS))
