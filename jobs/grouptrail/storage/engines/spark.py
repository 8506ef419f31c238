"""The engine Spark: any number of rows, and any store."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from grouptrail.contracts import Column
from grouptrail.contracts import Table as Contract
from grouptrail.locations import is_uri
from grouptrail.storage.buckets import in_buckets
from grouptrail.storage.damage import require_openable_by_spark
from grouptrail.storage.engines.delta_rs import DeltaRs, create_if_missing
from grouptrail.storage.engines.engine import Once, Rows, TaskRows
from grouptrail.storage.engines.retries import TRIES, lock, one_writer, require_version, with_retries
from grouptrail.storage.errors import TableVersionError
from grouptrail.storage.files import ADDED, with_all_columns, writing
from grouptrail.storage.layout import STATS_COLUMNS, meaning, properties
from grouptrail.storage.location import TableLocation
from grouptrail.storage.reader import supports
from grouptrail.storage.rows import has_columns
from grouptrail.storage.schema import table_schema
from grouptrail.storage.sql import spark_identifier, spark_literal
from grouptrail.storage.unclustering import remove_clustering

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession


class Spark:
    """Does what `engine.Engine` describes, in a session."""

    name = "spark"

    def __init__(self, spark: SparkSession) -> None:
        self.session = spark

    def create(self, table: TableLocation) -> None:
        """Create the table if it does not exist, and add the columns that its contract has gained."""
        with lock(table):  # jobs that start at once need some of the same tables
            _remove_checksum(table)
            there = create_if_missing(table) if supports(table.path) else None
            if there is not None:
                remove_clustering(table, there, self.session)
            if not has_columns(there, table_schema(table.name)):
                self._create_or_alter(table)

    def append(self, table: TableLocation, rows: Rows, once: Once | None) -> None:
        """Append rows, unless `once` has been done: as files that Arrow writes, where delta-rs supports the store."""
        if not takes_files(table):
            self._append_frame(table, rows, once)
            return
        files = partial(_written_by_tasks, rows) if isinstance(rows, TaskRows) else rows
        DeltaRs().append(table, files, once)

    def upsert(self, table: TableLocation, rows: Any, buckets: Collection[int], once: Once) -> None:
        """Replace the open rows of these buckets by those that stay and the new ones.

        The cost depends on the open rows of the buckets, not on the table's size.
        """
        changed = self._whole(rows, table)
        key = list(table.contract.key)
        ours = f"{own_rows(table)} AND {in_buckets(buckets)}"
        there = read_all(self.session, table).where(ours)
        kept = there.join(changed.select(*key), key, "left_anti")
        rewritten = kept.select(*changed.columns).unionByName(changed).repartition("open_bucket")
        _overwrite(rewritten, ours, table, {"txnAppId": once.app, "txnVersion": once.version})

    def update(self, table: TableLocation, rows: pa.Table, version: int) -> None:
        """Merge rows into those with their key that are as they were in `version`."""
        from delta.tables import DeltaTable as JavaTable
        from pyspark.sql import functions as F

        key, columns = list(table.contract.key), [column.name for column in table.contract.columns]
        was = read_all(self.session, table, version).where(own_rows(table))
        was = was.select(*key, F.struct(*columns).alias("was"))
        changed = self._whole(rows.drop(["cluster"]), table).join(was, key)
        there = JavaTable.forPath(self.session, table.path)
        merger = there.alias("there").merge(
            changed.alias("changed"), " AND ".join(f"there.{name} = changed.{name}" for name in key)
        )
        is_same = f"struct({', '.join(f'there.{name}' for name in columns)}) <=> changed.was"
        merger = merger.whenMatchedUpdate(is_same, {name: f"changed.{name}" for name in columns})
        with lock(table):
            require_version(table, there.history(1).collect()[0].version, version)
            merger.execute()

    def replace(self, table: TableLocation, rows: Any) -> None:
        """Replace all rows of the cluster.

        WriteFiles: Spark would read what is replaced, so that delta-rs replaces the files.
        """
        if callable(rows):
            DeltaRs().replace(table, rows)
        else:
            _overwrite(self._whole(rows, table), own_rows(table), table, {})

    def last_version(self, table: TableLocation, app: str) -> int:
        """Return the newest version that an app has written; -1 if there is none."""
        if supports(table.path):
            return DeltaRs().last_version(table, app)
        if not exists(self.session, table):
            return -1
        log, column = f"{table.path}/_delta_log", "txn struct<appId string, version bigint>"
        reading = self.session.read.schema(column)
        commits = reading.option("pathGlobFilter", "*.json").json(log)
        checkpoints = reading.option("pathGlobFilter", "*.checkpoint*.parquet").parquet(log)
        ours = commits.union(checkpoints).where(f"txn.appId = {spark_literal(app)}")
        newest = ours.selectExpr("max(txn.version) AS version").collect()[0].version
        return -1 if newest is None else int(newest)

    def select(self, table: TableLocation, columns: str, rest: str) -> list[dict[str, Any]]:
        """Run a query; the first ones in a session take seconds."""
        query = f"SELECT {columns} FROM {table_in_sql(table)} WHERE {own_rows(table)} {rest}"
        return [row.asDict() for row in self.session.sql(query).collect()]

    def _append_frame(self, table: TableLocation, rows: Rows, once: Once | None) -> None:
        from pyspark.sql import functions as F

        frame = self._frame(rows, table)
        known = table.new_values
        columns = table.contract.columns
        absent = {
            column.name: F.lit(known.get(column.name)).cast(column.type)
            for column in columns
            if column.name not in frame.columns and (column.null_means is not None or column.name in known)
        }
        filled = frame.withColumns(absent).select(*(column.name for column in columns))
        writer = filled.write.format("delta").mode("append")
        if once is not None:
            writer = writer.options(txnAppId=once.app, txnVersion=once.version)
        writer.save(table.path)

    def _frame(self, rows: Any, table: TableLocation) -> DataFrame:
        if isinstance(rows, TaskRows):
            return rows.records.mapInArrow(rows.function, rows.ddl)
        if isinstance(rows, pa.Table):
            return self.session.createDataFrame(with_all_columns(rows, table)).coalesce(1)
        if callable(rows):
            raise TypeError(f"{table.shown}: files can only be written to a store that delta-rs supports")
        frame: DataFrame = rows
        return frame

    def _whole(self, rows: Any, table: TableLocation) -> DataFrame:
        from pyspark.sql import functions as F

        columns = (column.name for column in table.contract.columns)
        return self._frame(rows, table).withColumn("cluster", F.lit(table.cluster)).select(*columns)

    def _create_or_alter(self, table: TableLocation) -> None:
        contract = table.contract
        if not exists(self.session, table):
            settings = ", ".join(f"'{key}' = '{value}'" for key, value in properties(contract).items())
            self.session.sql(
                f"CREATE TABLE IF NOT EXISTS {table_in_sql(table)} ({_columns(contract.columns)}) USING delta "
                f"{_partitions(contract)} COMMENT {spark_literal(contract.about)} TBLPROPERTIES ({settings})"
            )
            return
        with_retries(lambda: self._rename_columns(table), TRIES)
        there = {field.name: field.dataType.simpleString() for field in read_all(self.session, table).schema}
        wanted = {column.name: _simple(column.type) for column in contract.columns}
        differing = [
            f"{column} is {there[column]}, should be {wanted[column]}"
            for column in wanted
            if column in there and there[column] != wanted[column]
        ]
        if differing:
            raise TableVersionError(
                f"table {table.shown} does not fit this version of grouptrail ({'; '.join(differing)}): "
                "use another warehouse, or the version that wrote it"
            )
        missing = [column for column in contract.columns if column.name not in there]
        if missing:
            self.session.sql(f"ALTER TABLE {table_in_sql(table)} ADD COLUMNS ({_columns(missing)})")

    def _rename_columns(self, table: TableLocation) -> None:
        """Write a table anew whose columns had other names in an earlier version: it is small."""
        contract, rows = table.contract, read_all(self.session, table)
        renamed = {column.formerly: column.name for column in contract.columns if column.formerly in rows.columns}
        if not renamed:
            return
        name = table_in_sql(table)
        # It names columns, which must exist.
        self.session.sql(f"ALTER TABLE {name} UNSET TBLPROPERTIES IF EXISTS ('{STATS_COLUMNS}')")
        writer = rows.withColumnsRenamed(renamed).write.format("delta").mode("overwrite")
        writer = writer.option("overwriteSchema", "true")
        if contract.partition_by:
            writer = writer.partitionBy(*contract.partition_by)
        writer.save(table.path)
        stats = properties(contract)[STATS_COLUMNS]
        self.session.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('{STATS_COLUMNS}' = '{stats}')")


def takes_files(table: TableLocation) -> bool:
    """Return whether Arrow writes the table's files: delta-rs knows its store, and it has no partitions."""
    return supports(table.path) and not table.contract.partition_by


def exists(spark: SparkSession, table: TableLocation) -> bool:
    """Return whether there is a Delta table."""
    from delta.tables import DeltaTable as JavaTable

    return bool(JavaTable.isDeltaTable(spark, table.path))


def read_all(spark: SparkSession, table: TableLocation, version: int | None = None) -> DataFrame:
    """Return the rows of all clusters, of the newest version or an earlier one. Raises DamagedFileError."""
    require_openable_by_spark(table, version)
    reading = spark.read.format("delta")
    if version is not None:
        reading = reading.option("versionAsOf", version)
    return reading.load(table.path)


def overwriting(rows: DataFrame, where: str) -> DataFrameWriter:
    """Return a writer that replaces the rows that match an SQL condition, in one commit."""
    return rows.write.format("delta").mode("overwrite").option("replaceWhere", where)


def table_in_sql(table: TableLocation) -> str:
    """Return the table's name in Spark's SQL."""
    return f"delta.{spark_identifier(table.path)}"


def own_rows(table: TableLocation) -> str:
    """Return the condition (SQL) on rows of the cluster."""
    return f"cluster = {spark_literal(table.cluster)}"


def _overwrite(rows: DataFrame, where: str, table: TableLocation, options: Mapping[str, str | int]) -> None:
    writer = overwriting(rows, where).options(**options)
    one_writer(lambda: writer.save(table.path), table)


def _written_by_tasks(rows: TaskRows, table: TableLocation) -> list[str]:
    files = rows.records.mapInArrow(writing(rows.function, table), ADDED).collect()
    return [file.added for file in files]


def _remove_checksum(table: TableLocation) -> None:
    """Remove the checksum of `_last_checkpoint` that an older grouptrail wrote for Hadoop.

    That file is now replaced without its checksum, and Spark would try to read it for three seconds.
    """
    if not is_uri(table.path):
        Path(table.path, "_delta_log", "._last_checkpoint.crc").unlink(missing_ok=True)


def _partitions(contract: Contract) -> str:
    return f"PARTITIONED BY ({', '.join(contract.partition_by)})" if contract.partition_by else ""


def _columns(columns: tuple[Column, ...] | list[Column]) -> str:
    return ", ".join(f"`{column.name}` {column.type} COMMENT {spark_literal(meaning(column))}" for column in columns)


def _simple(ddl: str) -> str:
    """Return a contract's type as `DataType.simpleString` spells it."""
    return re.sub(r"\s+", "", ddl)
