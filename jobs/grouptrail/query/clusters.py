"""Which clusters a warehouse has rows of, and the one that a command is about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

from arro3.core import DataType

from grouptrail.query.errors import QueryError
from grouptrail.storage import reader
from grouptrail.storage.datafusion import DataFusion
from grouptrail.storage.errors import TableError
from grouptrail.storage.warehouse import Warehouse

# Every batch is in the first one, unless retention has removed it.
_TABLES = ("ingest_progress", "consumer_lag", "group_states", "generations", "offset_commits")
_BOUNDS = ("min.cluster", "max.cluster")


class UnknownClusterError(QueryError):
    """The warehouse has rows of other clusters only: `clusters`."""

    def __init__(self, wanted: str, clusters: Iterable[str]) -> None:
        self.clusters = sorted(clusters)
        names = ", ".join(f'"{name}"' for name in self.clusters)
        super().__init__(f'the warehouse has no cluster "{wanted}": it has {names}; set --cluster')


def stored_cluster(warehouse: Warehouse, *, is_named: bool) -> str:
    """Return the cluster of the warehouse if there are rows of it, or of no cluster at all.

    Unless the settings name a cluster (`is_named`), the only one with rows is returned. Raises UnknownClusterError.
    """
    stored: set[str] = set()
    for clusters in _clusters(warehouse):
        if warehouse.cluster in clusters:
            return warehouse.cluster
        stored |= clusters
    if not stored:
        return warehouse.cluster
    if len(stored) == 1 and not is_named:
        return stored.pop()
    raise UnknownClusterError(warehouse.cluster, stored)


def is_without_tables(warehouse: Warehouse) -> bool:
    """Return whether the warehouse has none of the tables yet; False also for a store that only Spark reads."""
    return warehouse.is_readable_without_spark and not any(True for _ in _clusters(warehouse))


def has_rows(warehouse: Warehouse) -> bool:
    """Return whether the warehouse has rows of its cluster; False also for a store that only Spark reads."""
    return any(warehouse.cluster in clusters for clusters in _clusters(warehouse))


def _clusters(warehouse: Warehouse) -> Iterator[set[str]]:
    """Yield the clusters in one table after the other; commands report tables that cannot be read themselves."""
    if not warehouse.is_readable_without_spark:
        return
    for stored in warehouse.tables(_TABLES):
        with suppress(TableError, *reader.READ_ERRORS):
            if (table := stored.open()) is not None:
                yield _clusters_in(table)


def _clusters_in(table: reader.OpenTable) -> set[str]:
    """Return the clusters in a table: by its files' statistics, or by reading them if a file may have several."""
    files = table.get_add_actions(flatten=True)
    if set(_BOUNDS) <= set(files.column_names):
        least, most = (files[name].cast(DataType.string()).to_pylist() for name in _BOUNDS)
        if least == most and None not in least:
            return set(least)
    rows = DataFusion({"rows": table}, skips_damaged=True).rows("SELECT DISTINCT cluster FROM rows")
    return {name for batch in rows for name in batch["cluster"].cast(DataType.string()).to_pylist()}
