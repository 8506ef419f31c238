"""The partitions that have a committed offset, read from `offset_commits` as it grows."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.storage.positions import updated
from grouptrail.storage.rows import AppendedRows
from grouptrail.storage.schema import compact, table_schema

_COLUMNS = ("cluster", "record_offset", "group_id", "topic", "partition", "is_tombstone")
_STORED = compact(pa.schema([table_schema("offset_commits").field(name) for name in _COLUMNS]))


class CommittedPartitions:
    """The partitions for which a group of a cluster has a committed offset that is not deleted.

    `table` is the path of `offset_commits`, `storage` delta-rs's options for it. Only the newest record of each
    group and partition counts, so that duplicate rows do no harm.
    """

    def __init__(self, table: str, cluster: str, storage: Mapping[str, str] | None = None) -> None:
        self._rows = AppendedRows(table, _STORED, pc.field("cluster") == cluster, storage)
        self._newest = _STORED.empty_table()

    def partitions(self) -> dict[str, list[int]]:
        """Read the new rows and return the partitions by topic, both ascending."""
        for rows in self._rows.fresh():
            self._newest = updated(self._newest, rows)
        undeleted = self._newest.filter(~pc.field("is_tombstone")).group_by(["topic", "partition"]).aggregate([])
        found: dict[str, list[int]] = {}
        places = zip(undeleted["topic"].to_pylist(), undeleted["partition"].to_pylist(), strict=True)
        for topic, partition in sorted(places):
            found.setdefault(topic, []).append(partition)
        return found
