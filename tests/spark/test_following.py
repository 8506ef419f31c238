"""Queries of a table's appends: Spark's and grouptrail's own continue each other's checkpoints."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from grouptrail.runtime.running import JobFailedError, any_runs, failure
from grouptrail.storage.engines.spark import Spark, table_in_sql
from grouptrail.storage.errors import TableError
from grouptrail.storage.following import Appends, Query, TableQuery, _Place, follow
from grouptrail.storage.rows_by_version import RowsByVersion
from grouptrail.storage.schema import table_schema
from grouptrail.storage.warehouse import Warehouse
from support.deadlines import until

JOB, TABLE = "copy", "log_offsets"


class Copy:
    """A job that copies the offsets of rows; it fails in batches of the numbers in `failing`, once they have rows."""

    def __init__(self, warehouse: Warehouse, *, files_a_batch: int = 20) -> None:
        warehouse.table(TABLE).ensure()
        self.batches: dict[int, list[int]] = {}
        self.failing: set[int] = set()
        self._checkpoint = warehouse.checkpoint(JOB)
        self._appends = Appends(warehouse.table(TABLE).location, files_a_batch=files_a_batch)

    def process(self, rows: pa.Table, batch: int) -> None:
        offsets = sorted(rows["log_end_offset"].to_pylist())
        known = self.batches.setdefault(batch, offsets)
        assert known == offsets, "a batch was repeated with other rows"
        if batch in self.failing:
            raise TableError("the store is away: wait")

    @property
    def offsets(self) -> list[int]:
        """The offsets in the order of the batches, which must have no holes."""
        assert sorted(self.batches) == list(range(len(self.batches)))
        return [offset for _, offsets in sorted(self.batches.items()) for offset in offsets]

    def run_alone(self) -> None:
        """Process what is there by Spark's query."""
        query = self._follow(once=True)
        assert not isinstance(query, TableQuery)
        query.awaitTermination()

    @contextmanager
    def beside_the_writer(self) -> Iterator[TableQuery]:
        """Run beside the job that writes the table."""
        query = self._follow(once=False)
        assert isinstance(query, TableQuery)
        try:
            yield query
        finally:
            query.stop()
            assert not query.isActive

    def _follow(self, *, once: bool) -> Query:
        how = {"process": self.process, "once": once, "is_written_here": not once, "every_seconds": 0.1}
        return follow(self._appends, self._checkpoint, **how)


def append(warehouse: Warehouse, *offsets: int, elsewhere: bool = False) -> None:
    """Append rows as the log-offsets job does, or as another process."""
    for offset in offsets:
        row = {"topic": "orders", "partition": 0, "log_end_offset": offset, "sampled_at": None, "asked_at": None}
        rows = pa.Table.from_pylist([row], pa.schema([table_schema(TABLE).field(name) for name in row]))
        table = warehouse.table(TABLE)
        if elsewhere:
            Spark(warehouse.session)._append_frame(table.location, rows, None)
        else:
            table.append(rows)


def test_following_each_query_continues_where_the_other_was_stopped_or_failed(
    spark: SparkSession, warehouse: Warehouse
) -> None:
    """In a random order, also after rows were deleted and files rewritten: each row is in one batch, in order."""
    choose = random.Random(3)
    copy, numbers = Copy(warehouse), count()
    written: list[int] = []
    name = table_in_sql(warehouse.table(TABLE).location)

    def write() -> None:
        offsets = [next(numbers) for _ in range(choose.randint(1, 4))]
        written.extend(offsets)
        append(warehouse, *offsets, elsewhere=choose.random() < 0.3)

    for turn in range(12):
        write()
        if turn in {3, 7}:
            spark.sql(
                f"DELETE FROM {table_in_sql(warehouse.table(TABLE).location)} WHERE log_end_offset = {turn - 3}"
            )
        if turn in {4, 8}:
            spark.sql(f"OPTIMIZE {name}")
        fails, alone = turn % 3 == 2, choose.random() < 0.4
        copy.failing = {len(copy.batches)} if fails else set()
        if alone and fails:
            with pytest.raises(StreamingQueryException, match="the store is away"):
                copy.run_alone()
        elif alone:
            copy.run_alone()
        else:
            with copy.beside_the_writer() as query:
                write()
                until(lambda: len(copy.offsets) == len(written) or not query.isActive)
                assert query.isActive is not fails
    copy.failing = set()
    copy.run_alone()
    assert copy.offsets == written


def test_following_rows_of_this_process_are_not_read_from_files(warehouse: Warehouse) -> None:
    warehouse.table(TABLE).ensure()
    with RowsByVersion(warehouse.table(TABLE).location, kept=2) as appends:
        append(warehouse, 1, 2, 3)
        for file in Path(warehouse.table(TABLE).path).glob("*.parquet"):
            file.unlink()
        assert appends.news.is_set()
        assert [rows["log_end_offset"].to_pylist() for rows in map(appends.rows, (2, 3)) if rows] == [[2], [3]]
        assert appends.rows(4) is None
        with pytest.raises(FileNotFoundError):  # more than two are not kept
            appends.rows(1)


def test_following_first_batch_has_the_rows_that_are_there(warehouse: Warehouse) -> None:
    copy = Copy(warehouse)
    append(warehouse, 1, 2)
    with copy.beside_the_writer():
        until(lambda: copy.offsets == [1, 2])
        append(warehouse, 3)
        until(lambda: copy.offsets == [1, 2, 3])
    assert copy.batches == {0: [1, 2], 1: [3]}


def test_following_a_start_that_only_sparks_query_can_read_is_left_to_it(warehouse: Warehouse) -> None:
    """A checkpoint within a version, of another table, or before what the log still has."""
    copy, checkpoint = Copy(warehouse, files_a_batch=2), warehouse.checkpoint(JOB)
    table = warehouse.table(TABLE).location
    append(warehouse, 1, 2, 3, 4, 5)
    assert _Place.of(checkpoint, Appends(table, files_a_batch=2)) is None  # too many files at once
    assert _Place.of(checkpoint, Appends(table, version=3)) is not None
    copy.run_alone()
    assert copy.offsets == [1, 2, 3, 4, 5]
    assert _Place.of(checkpoint, Appends(table)) is not None
    offsets = Path(warehouse.checkpoint_path(JOB), "offsets", "2")
    offsets.with_name(".2.crc").unlink(missing_ok=True)
    text = offsets.read_text()
    for differing in ('"index":1', '"reservoirId":"another"', '"isStartingVersion":true'):
        name = differing.split(":")[0]
        offsets.write_text(re.sub(name + ":[^,}]*", differing, text))
        assert _Place.of(checkpoint, Appends(table)) is None, differing
    offsets.write_text(text)
    append(warehouse, 6, 7)
    assert _Place.of(checkpoint, Appends(table)) is not None
    DeltaTable(warehouse.table(TABLE).path).create_checkpoint()
    Path(warehouse.table(TABLE).path, "_delta_log", f"{6:020}.json").unlink()
    assert _Place.of(checkpoint, Appends(table)) is None


def test_following_failed_batch_ends_the_query_with_the_errors_own_line(warehouse: Warehouse) -> None:
    copy = Copy(warehouse)
    copy.failing = {0}
    append(warehouse, 1)
    with copy.beside_the_writer() as query:
        until(lambda: not query.isActive)
        assert str(failure(query)) == "the store is away: wait"
        assert query.status == {"isTriggerActive": False}
        with pytest.raises(JobFailedError, match="the store is away: wait"):
            any_runs([query])


def test_following_table_that_is_deleted_ends_the_query(warehouse: Warehouse) -> None:
    """A new table in its place would have the same versions again."""
    copy = Copy(warehouse)
    append(warehouse, 1)
    with copy.beside_the_writer() as query:
        until(lambda: copy.offsets == [1])
        shutil.rmtree(warehouse.table(TABLE).path)
        until(lambda: not query.isActive)
        assert re.search("log_offsets was deleted or replaced .*: restore it", str(failure(query)))
