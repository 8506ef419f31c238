"""Engines that evaluate the rules of retention: delta-rs, which needs no JVM, or Spark, which also deletes."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from grouptrail import contracts
from grouptrail.query.views import DELTA_RS, SPARK, Dialect
from grouptrail.query.warehouse import Warehouse
from grouptrail.storage import upkeep
from grouptrail.storage.reader import open_table, pruned_files, table_size
from grouptrail.storage.tables import read_all, table_exists, table_in_sql

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from grouptrail.config import Config

Row = dict[str, Any]


class Source(Protocol):
    """Runs SQL over the tables of a warehouse."""

    dialect: Dialect

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


class DeltaRsSource:
    """Reads the tables as they were when they were first needed."""

    dialect = DELTA_RS

    def __init__(self, config: Config) -> None:
        self._config = config

    @cached_property
    def _warehouse(self) -> Warehouse:
        return Warehouse(self._config, contracts.tables())

    def exists(self, name: str) -> bool:
        return name in self._warehouse.versions

    def table(self, name: str) -> str:
        return name

    def rows(self, sql: str) -> list[Row]:
        return self._warehouse.rows(sql)

    def size_bytes(self, name: str) -> int:
        table = open_table(self._config, name)
        return 0 if table is None else table_size(table, None).size_bytes

    def files(self, name: str, where: str) -> int:
        """See `Source`. The files' statistics answer it, without a scan."""
        table = open_table(self._config, name)
        return 0 if table is None else pruned_files(table, where)


class SparkSource:
    """Reads the tables in a Spark session."""

    dialect = SPARK

    def __init__(self, spark: SparkSession, config: Config) -> None:
        self.spark = spark
        self._config = config

    def exists(self, name: str) -> bool:
        return table_exists(self.spark, self._config, name)

    def table(self, name: str) -> str:
        return table_in_sql(self._config, name)

    def rows(self, sql: str) -> list[Row]:
        return [row.asDict() for row in self.spark.sql(sql).collect()]

    def size_bytes(self, name: str) -> int:
        return upkeep.size(self.spark, self._config, name)[1]

    def files(self, name: str, where: str) -> int:
        rows = read_all(self.spark, self._config, name).where(where)
        return rows.select("_metadata.file_path").distinct().count()
