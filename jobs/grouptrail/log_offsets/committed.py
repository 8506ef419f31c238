"""The partitions that have a committed offset, read from `offset_commits` as it grows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.storage.positions import updated
from grouptrail.storage.rows import AppendedRows, NewFiles
from grouptrail.storage.schema import compact, table_schema
from grouptrail.storage.sources import with_source

_COLUMNS = ("cluster", "record_offset", "group_id", "topic", "partition")
_NEWEST = compact(pa.schema([table_schema("offset_commits").field(name) for name in _COLUMNS]))
_READ = _NEWEST.append(pa.field("is_tombstone", pa.bool_()))


class CommittedPartitions:
    """The partitions for which a group of a cluster has a committed offset that is not deleted.

    `table` is the path of `offset_commits`, `storage` delta-rs's options for it. Only the newest record of each
    group and partition counts, so that duplicate rows do no harm. `newest` is the path of `committed_offsets`, which
    has these records up to a version of `offset_commits`.
    """

    def __init__(
        self, table: str, cluster: str, storage: Mapping[str, str] | None = None, newest: str | None = None
    ) -> None:
        ours = pc.field("cluster") == cluster
        known = None if newest is None else with_source(newest, table, cluster, storage)
        self._newest, after = _READ.empty_table(), None
        if known is not None:
            stored, after = known
            for rows in NewFiles(_NEWEST, ours, storage).rows(stored):
                undeleted = rows.append_column("is_tombstone", pa.array(np.full(len(rows), False)))
                self._newest = updated(self._newest, undeleted)
        # Without rows it is not known that there are none: the lag job may have ended while it replaced them.
        self._rows = AppendedRows(table, _READ, ours, storage, after if len(self._newest) else None)

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
