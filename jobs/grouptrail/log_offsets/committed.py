"""Which partitions have a committed offset, followed in the table `offset_commits` as it grows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import PyFileSystem

_STORED = pa.schema(
    {
        "cluster": pa.string(),
        "record_offset": pa.int64(),
        "group_id": pa.string(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "is_tombstone": pa.bool_(),
    }
)
_POSITION = ["group_id", "topic", "partition"]
_NEWEST = pa.schema([*map(_STORED.field, _POSITION), ("commit", pa.int64()), ("tombstone", pa.int64())])
_FOLDED_ROWS = 1_000_000


class CommittedPartitions:
    """The partitions that some group of a cluster has committed to and whose last such offset is not deleted.

    `table` is the path of `offset_commits`. Each of its files is read once, some columns of it; those that OPTIMIZE
    has rewritten once more, which changes nothing. Kept is the newest record of each group and partition.
    """

    def __init__(self, table: str, cluster: str) -> None:
        self._table = DeltaTable(table)
        self._files = PyFileSystem(DeltaStorageHandler(self._table.table_uri))
        self._cluster = cluster
        self._read: set[str] = set()
        self._newest = _NEWEST.empty_table()

    def now(self) -> dict[str, list[int]]:
        """Partitions by topic, both ascending."""
        self._table.update_incremental()
        there = set(self._table.get_add_actions()["path"].to_pylist())
        for rows in _large(self._rows(sorted(there - self._read))):
            self._newest = _newest(pa.concat_tables([self._newest, rows]))
        self._read = there
        return self._partitions()

    def _rows(self, files: list[str]) -> Iterator[pa.RecordBatch]:
        """Rows as in `_NEWEST`, of one record each."""
        is_tombstone, offset = pc.field("is_tombstone"), pc.field("record_offset")
        unset = pa.scalar(None, pa.int64())
        columns = {name: pc.field(name) for name in _POSITION} | {
            "commit": pc.if_else(is_tombstone, unset, offset),
            "tombstone": pc.if_else(is_tombstone, offset, unset),
        }
        dataset = ds.dataset(files, _STORED, format="parquet", filesystem=self._files)
        yield from dataset.to_batches(columns=columns, filter=pc.field("cluster") == self._cluster)

    def _partitions(self) -> dict[str, list[int]]:
        # A group's records lie in one partition of the offsets topic: their offsets say which came last.
        commit, tombstone = pc.field("commit"), pc.field("tombstone")
        standing = self._newest.filter(commit.is_valid() & (tombstone.is_null() | (commit > tombstone)))
        found: dict[str, list[int]] = {}
        for row in standing.group_by(["topic", "partition"]).aggregate([]).sort_by(_ascending()).to_pylist():
            found.setdefault(row["topic"], []).append(row["partition"])
        return found


def _ascending() -> list[tuple[str, str]]:
    return [("topic", "ascending"), ("partition", "ascending")]


def _newest(rows: pa.Table) -> pa.Table:
    """One row for each group and partition."""
    newest = rows.group_by(_POSITION).aggregate([("commit", "max"), ("tombstone", "max")])
    return newest.rename_columns(_NEWEST.names).cast(_NEWEST)


def _large(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Joins batches: files are many and small, and folding one costs as much as folding a thousand."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(map(len, waiting)) >= _FOLDED_ROWS:
            yield pa.Table.from_batches(waiting)
            waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting)
