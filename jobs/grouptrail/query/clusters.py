"""Which clusters a warehouse has rows of, and the one that a command is about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from arro3.core import DataType

from grouptrail.query.errors import QueryError
from grouptrail.spark import object_stores
from grouptrail.storage import reader
from grouptrail.storage.errors import TableError

if TYPE_CHECKING:
    from grouptrail.config import Config

# Every batch is in the first one, unless retention has removed it.
_TABLES = ("ingest_progress", "consumer_lag", "group_states", "generations", "offset_commits")
_BOUNDS = ("min.cluster", "max.cluster")


class UnknownClusterError(QueryError):
    """The warehouse has rows of other clusters only."""


def with_stored_cluster(config: Config) -> Config:
    """Return the configuration if the warehouse has its cluster, or no cluster at all.

    If none is configured, the only one in the warehouse is taken. Raises UnknownClusterError.
    """
    stored: set[str] = set()
    for found in _clusters(config):
        if config.cluster in found:
            return config
        stored |= found
    if not stored:
        return config
    if len(stored) == 1 and "cluster" not in config.model_fields_set:
        return config.model_copy(update={"cluster": stored.pop()})
    names = ", ".join(f'"{name}"' for name in sorted(stored))
    raise UnknownClusterError(f'the warehouse has no cluster "{config.cluster}": it has {names}; set --cluster')


def _clusters(config: Config) -> Iterator[set[str]]:
    """Yield the clusters in one table after the other; commands report tables that cannot be read themselves."""
    if not object_stores.is_known(config.warehouse):  # only Spark can read it
        return
    for name in _TABLES:
        with suppress(TableError, *reader.READ_ERRORS):
            if (table := reader.open_table(config, name)) is not None:
                yield _clusters_in(table)


def _clusters_in(table: reader.OpenTable) -> set[str]:
    """Return the clusters in a table: by its files' statistics, or by reading them if a file may have several."""
    files = table.get_add_actions(flatten=True)
    if set(_BOUNDS) <= set(files.column_names):
        least, most = (files[name].cast(DataType.string()).to_pylist() for name in _BOUNDS)
        if least == most and None not in least:
            return set(least)
    rows = reader.query_engine({"rows": table}).execute("SELECT DISTINCT cluster FROM rows")
    return {name for batch in rows for name in batch["cluster"].cast(DataType.string()).to_pylist()}
