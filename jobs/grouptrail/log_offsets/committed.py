"""The partitions to sample: with a committed offset, with an owner in a group, or with the state of a share group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.query import owned
from grouptrail.storage.datafusion import DataFusion
from grouptrail.storage.lineage import with_source
from grouptrail.storage.positions import updated
from grouptrail.storage.schema import compact, table_schema
from grouptrail.storage.share_progress import TABLES as SHARE_TABLES
from grouptrail.storage.share_progress import ShareProgress
from grouptrail.storage.sql import datafusion_literal
from grouptrail.storage.table import Table
from grouptrail.storage.warehouse import Warehouse

_COLUMNS = ("cluster", "record_offset", "group_id", "topic", "partition")
_NEWEST = compact(pa.schema([table_schema("offset_commits").field(name) for name in _COLUMNS]))
_READ = _NEWEST.append(pa.field("is_tombstone", pa.bool_()))


class OwnedPartitions:
    """The partitions that members own, read again when the history has changed."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._tables = warehouse.tables(owned.TABLES)
        self._query = owned.OWNED.format(cluster=datafusion_literal(warehouse.cluster), shard="record_partition >= 0")
        self._versions: dict[str, int] = {}
        self._partitions: dict[str, list[int]] = {}

    def partitions(self) -> dict[str, list[int]]:
        """Return the partitions by topic, both ascending; none while there is no history."""
        tables = {table.name: opened for table in self._tables if (opened := table.open()) is not None}
        versions = {name: table.version() for name, table in tables.items()}
        if len(tables) == len(self._tables) and versions != self._versions:
            rows = pa.table(DataFusion(tables, self._tables[0].location.options).rows(self._query))
            places = set(zip(rows["topic"].to_pylist(), rows["partition"].to_pylist(), strict=True))
            self._partitions, self._versions = _by_topic(places), versions
        return self._partitions


class SharedPartitions:
    """The partitions in which share groups have a state."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        self._progress: ShareProgress | None = None

    def partitions(self) -> dict[str, list[int]]:
        """Read what is new and return the partitions by topic, both ascending; none while there are no tables."""
        if self._progress is None:
            if any(table.open() is None for table in self._warehouse.tables(SHARE_TABLES)):
                return {}
            self._progress = ShareProgress(self._warehouse)
        self._progress.fresh()
        return self._progress.partitions()


class CommittedPartitions:
    """The partitions for which a group of the cluster has a committed offset that is not deleted.

    `commits` is `offset_commits`. Only the newest record of each group and partition counts, so that duplicate rows
    do no harm. `newest` is `committed_offsets`, which has these records up to a version of `offset_commits`.
    """

    def __init__(self, commits: Table, newest: Table | None = None) -> None:
        known = None if newest is None else with_source(newest.location, commits.location)
        self._newest, after = _READ.empty_table(), None
        if newest is not None and known is not None:
            stored, after = known
            for rows in newest.read(_NEWEST, opened=stored):
                undeleted = rows.append_column("is_tombstone", pa.array(np.full(len(rows), False)))
                self._newest = updated(self._newest, undeleted)
        # Without rows it is not known that there are none: the lag job may have ended while it replaced them.
        self._rows = commits.new_rows(_READ, after=after if len(self._newest) else None)

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
    partitions: dict[str, list[int]] = {}
    for topic, partition in sorted(places):
        partitions.setdefault(topic, []).append(partition)
    return partitions
