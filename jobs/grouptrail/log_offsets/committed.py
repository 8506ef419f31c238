"""The partitions that have a committed offset, read from `offset_commits` as it grows."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.storage.reader import AppendedRows

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


class CommittedPartitions:
    """The partitions for which a group of a cluster has a committed offset that is not deleted.

    `table` is the path of `offset_commits`, `storage` delta-rs's options for it. Only the newest record of each
    group and partition counts, so that duplicate rows do no harm.
    """

    def __init__(self, table: str, cluster: str, storage: Mapping[str, str] | None = None) -> None:
        self._rows = AppendedRows(table, _STORED, pc.field("cluster") == cluster, storage)
        self._newest = _NEWEST.empty_table()

    def partitions(self) -> dict[str, list[int]]:
        """Read the new rows and return the partitions by topic, both ascending."""
        for rows in self._rows.fresh():
            self._newest = _newest(pa.concat_tables([self._newest, _by_kind(rows)]))
        # A group's records are in one partition of the offsets topic, so that their offsets give the order.
        commit, tombstone = pc.field("commit"), pc.field("tombstone")
        undeleted = self._newest.filter(commit.is_valid() & (tombstone.is_null() | (commit > tombstone)))
        found: dict[str, list[int]] = {}
        for row in undeleted.group_by(["topic", "partition"]).aggregate([]).sort_by(_ascending()).to_pylist():
            found.setdefault(row["topic"], []).append(row["partition"])
        return found


def _ascending() -> list[tuple[str, str]]:
    return [("topic", "ascending"), ("partition", "ascending")]


def _by_kind(rows: pa.Table) -> pa.Table:
    """Return rows of `_NEWEST`, one for each record."""
    is_tombstone, offset = rows["is_tombstone"], rows["record_offset"]
    unset = pa.scalar(None, pa.int64())
    kinds = [pc.if_else(is_tombstone, unset, offset), pc.if_else(is_tombstone, offset, unset)]
    return pa.table([*(rows[name] for name in _POSITION), *kinds], schema=_NEWEST)


def _newest(rows: pa.Table) -> pa.Table:
    """Return one row for each group and partition."""
    newest = rows.group_by(_POSITION).aggregate([("commit", "max"), ("tombstone", "max")])
    return newest.rename_columns(_NEWEST.names).cast(_NEWEST)
