"""What an engine does with a table, and what it is given to write."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import pyarrow as pa

from grouptrail.storage.files import RowsFunction
from grouptrail.storage.location import TableLocation

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame

WriteFiles = Callable[[TableLocation], Iterable[str]]
"""Writes files of a table; returns Delta's `add` actions of them, and others to commit with them, as JSON."""


@dataclass(frozen=True)
class Once:
    """A write that is done once, however often it is tried: an application and its version (Delta's `txn` action)."""

    app: str
    version: int

    def is_done_in(self, table: DeltaTable) -> bool:
        """Return whether a table's log has this write, or a later one of its application; Spark runs a job for it."""
        newest = table.transaction_version(self.app)
        return newest is not None and newest >= self.version


@dataclass(frozen=True)
class TaskRows:
    """Rows that Spark's tasks compute from `records` by `function`, with the columns `ddl`."""

    records: DataFrame
    function: RowsFunction
    ddl: str


Rows: TypeAlias = "pa.Table | TaskRows | WriteFiles"
"""Rows to append: on the driver, computed by tasks, or written to files by the caller."""


class Engine(Protocol):
    """Reads and writes tables. `rows` to write have the contract's columns; `cluster` is added."""

    name: str

    def create(self, table: TableLocation) -> None:
        """Create the table if it does not exist, and add the columns that its contract has gained."""

    def append(self, table: TableLocation, rows: Rows, once: Once | None) -> None:
        """Append rows, unless `once` has been done. Rows that are not on the driver are only computed if needed."""

    def upsert(self, table: TableLocation, rows: Any, buckets: Collection[int], once: Once) -> None:
        """Write rows (Arrow or DataFrame) of these `buckets` in place of open rows with their key, in one commit."""

    def update(self, table: TableLocation, rows: pa.Table, version: int) -> None:
        """Write rows in place of those with their key, open or not, which were read from a version, in one commit.

        Raises a conflict (`retries.is_conflict`) if the table has changed since.
        """

    def replace(self, table: TableLocation, rows: Any) -> None:
        """Replace all rows of the cluster by rows (Arrow, DataFrame or WriteFiles)."""

    def last_version(self, table: TableLocation, app: str) -> int:
        """Return the newest version that an app has written (`Once`); -1 if there is none."""

    def select(self, table: TableLocation, columns: str, rest: str) -> list[dict[str, Any]]:
        """Return rows of the cluster: `columns` (SQL) and the `rest` of the query after its WHERE condition."""
