"""The partitions to sample: those with a committed offset, and those that a member of a group owns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.query import owned
from grouptrail.storage.positions import updated
from grouptrail.storage.reader import open_all, query_engine
from grouptrail.storage.rows import AppendedRows, NewFiles
from grouptrail.storage.schema import compact, table_schema
from grouptrail.storage.sources import with_source
from grouptrail.storage.sql import datafusion_literal

_COLUMNS = ("cluster", "record_offset", "group_id", "topic", "partition")
_NEWEST = compact(pa.schema([table_schema("offset_commits").field(name) for name in _COLUMNS]))
_READ = _NEWEST.append(pa.field("is_tombstone", pa.bool_()))


class OwnedPartitions:
    """The partitions that members own, read again when the history has changed. `warehouse` has the tables."""

    def __init__(self, warehouse: str, cluster: str, storage: Mapping[str, str] | None = None) -> None:
        self._paths = {name: f"{warehouse}/{name}" for name in owned.TABLES}
        self._query = owned.OWNED.format(cluster=datafusion_literal(cluster), shard="record_partition >= 0")
        self._storage = storage
        self._versions: dict[str, int] = {}
        self._found: dict[str, list[int]] = {}

    def partitions(self) -> dict[str, list[int]]:
        """Return the partitions by topic, both ascending; none while there is no history."""
        tables = open_all(self._paths, self._storage)
        versions = {name: table.version() for name, table in tables.items()}
        if tables and versions != self._versions:
            rows = pa.table(query_engine(tables).execute(self._query))
            places = set(zip(rows["topic"].to_pylist(), rows["partition"].to_pylist(), strict=True))
            self._found, self._versions = _by_topic(places), versions
        return self._found


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
        return _by_topic(zip(undeleted["topic"].to_pylist(), undeleted["partition"].to_pylist(), strict=True))


def merged(one: Mapping[str, list[int]], other: Mapping[str, list[int]]) -> dict[str, list[int]]:
    """Return the partitions of both, by topic, both ascending."""
    topics = sorted(one.keys() | other.keys())
    return {topic: sorted({*one.get(topic, ()), *other.get(topic, ())}) for topic in topics}


def _by_topic(places: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, partition in sorted(places):
        found.setdefault(topic, []).append(partition)
    return found
