"""Queries of the rules of retention: by delta-rs, which needs no JVM, or by Spark, which also deletes."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Protocol

from grouptrail import contracts
from grouptrail.query.views import DELTA_RS, SPARK, Dialect
from grouptrail.storage import upkeep
from grouptrail.storage.engines.spark import table_in_sql
from grouptrail.storage.reader import pruned_files, table_size
from grouptrail.storage.sql_snapshot import SqlSnapshot
from grouptrail.storage.warehouse import Warehouse

Row = dict[str, Any]


class Queries(Protocol):
    """Runs SQL over the tables of a warehouse."""

    dialect: Dialect
    warehouse: Warehouse

    def exists(self, name: str) -> bool:
        """Return whether the warehouse has the table."""

    def table(self, name: str) -> str:
        """Return the table's name in this engine's SQL."""

    def rows(self, sql: str) -> list[Row]:
        """Return the rows of a query."""

    def size_bytes(self, name: str) -> int:
        """Return the size of a table's files."""

    def files(self, name: str, where: str) -> int:
        """Return how many files of a table may have rows that match a condition."""


class DeltaRsQueries:
    """Reads the tables as they were when they were first needed."""

    dialect = DELTA_RS

    def __init__(self, warehouse: Warehouse) -> None:
        self.warehouse = warehouse

    @cached_property
    def _tables(self) -> SqlSnapshot:
        return SqlSnapshot(self.warehouse, contracts.tables())

    def exists(self, name: str) -> bool:
        return name in self._tables.versions

    def table(self, name: str) -> str:
        return name

    def rows(self, sql: str) -> list[Row]:
        return self._tables.rows(sql)

    def size_bytes(self, name: str) -> int:
        table = self.warehouse.table(name).open()
        return 0 if table is None else table_size(table, None).size_bytes

    def files(self, name: str, where: str) -> int:
        """See `Queries`. The files' statistics answer it, without a scan."""
        table = self.warehouse.table(name).open()
        return 0 if table is None else pruned_files(table, where)


class SparkQueries:
    """Reads the tables in a Spark session."""

    dialect = SPARK

    def __init__(self, warehouse: Warehouse) -> None:
        self.warehouse = warehouse

    def exists(self, name: str) -> bool:
        return self.warehouse.table(name).exists()

    def table(self, name: str) -> str:
        """See `Queries`. A dry run does not rename the columns of a table that an earlier version has written."""
        table = self.warehouse.table(name)
        formerly = {column.formerly: column.name for column in contracts.tables()[name].columns if column.formerly}
        if not formerly:
            return table_in_sql(table.location)
        view = f"{name}_renamed"
        table.all_clusters().withColumnsRenamed(formerly).createOrReplaceTempView(view)
        return view

    def rows(self, sql: str) -> list[Row]:
        return [row.asDict() for row in self.warehouse.session.sql(sql).collect()]

    def size_bytes(self, name: str) -> int:
        return upkeep.size(self.warehouse.table(name))[1]

    def files(self, name: str, where: str) -> int:
        rows = self.warehouse.table(name).all_clusters().where(where)
        return rows.select("_metadata.file_path").distinct().count()
