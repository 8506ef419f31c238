"""A consistent snapshot of the tables, taken between two batches of the jobs that write them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from grouptrail import contracts
from grouptrail.errors import first_cause
from grouptrail.jobs import DECODE, HISTORY
from grouptrail.storage.reader import READ_ERRORS, Commit
from grouptrail.storage.table import Table
from grouptrail.storage.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The table that a batch writes last: all tables that the batch writes.
_WRITTEN_LAST = {"history_positions": HISTORY.writes, "ingest_progress": DECODE.writes}

_LOOK_EVERY_SECONDS = 0.5

# Delta reads a table's log for each query: tables up to this size are cached in memory instead.
_KEPT_BYTES = 32 << 20


@dataclass(frozen=True)
class Snapshot:
    """The version of each readable table, and the error of each existing table that cannot be read."""

    versions: dict[str, Commit]
    unreadable: dict[str, str] = field(default_factory=dict)


def take(warehouse: Warehouse, *, patience_seconds: float) -> Snapshot:
    """Return a snapshot in which no table is in the middle of a batch.

    If a batch takes longer than `patience_seconds`, or was interrupted as long ago, return the current versions.
    """
    deadline = time.monotonic() + patience_seconds
    names = [*_WRITTEN_LAST, *(name for name in contracts.tables() if name not in _WRITTEN_LAST)]
    while True:
        commits = {one.name: commit for one in warehouse.tables(names) if (commit := _newest(one)) is not None}
        versions = {name: commit for name, commit in commits.items() if isinstance(commit, Commit)}
        written_at_ms = max((versions[name].written_at_ms for name in tables_being_written(versions)), default=0)
        if time.time() - written_at_ms / 1000 >= patience_seconds or time.monotonic() >= deadline:
            return Snapshot(versions, {name: why for name, why in commits.items() if isinstance(why, str)})
        time.sleep(_LOOK_EVERY_SECONDS)


def tables_being_written(commits: dict[str, Commit]) -> list[str]:
    """Return the tables that were written after the table that their batch writes last."""
    return [
        name
        for last, others in _WRITTEN_LAST.items()
        if last in commits
        for name in others
        if name in commits and commits[name].written_at_ms > commits[last].written_at_ms
    ]


def _newest(table: Table) -> Commit | str | None:
    """Return the newest commit, the error if the table cannot be read, or None if there is no table."""
    try:
        return table.newest_commit()
    except READ_ERRORS as error:
        return first_cause(error)


@contextmanager
def views(warehouse: Warehouse, taken: Snapshot) -> Iterator[tuple[dict[str, DataFrame], dict[str, str]]]:
    """Create a temporary view of every readable table with this cluster's rows, and return the views and the errors.

    A missing table has no rows, and a column that an older table lacks is null.
    """
    made: dict[str, DataFrame] = {}
    unreadable = dict(taken.unreadable)
    try:
        for table in warehouse.tables([name for name in contracts.tables() if name not in taken.unreadable]):
            try:
                made[table.name] = _view(table, taken.versions.get(table.name))
            except Exception as error:  # Spark may support fewer Delta features than delta-rs
                unreadable[table.name] = first_cause(error)
        yield made, unreadable
    finally:
        for name, rows in made.items():
            rows.unpersist()
            warehouse.session.catalog.dropTempView(name)


def _view(table: Table, commit: Commit | None) -> DataFrame:
    from pyspark.sql import functions as F

    if commit is None:
        rows = table.session.createDataFrame([], table.contract.ddl())
    else:
        rows = table.dataframe(commit.version)
        lacking = (column for column in table.contract.columns if column.name in commit.lacking)
        rows = rows.withColumns({column.name: F.lit(None).cast(column.type) for column in lacking})
    if commit is not None and commit.size_bytes < _KEPT_BYTES:
        rows = rows.persist()
    rows.createOrReplaceTempView(table.name)
    return rows
