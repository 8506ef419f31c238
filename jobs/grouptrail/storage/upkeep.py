"""Delete rows of a table or move them, compact and sort its files, and remove those of old versions, with Spark."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from grouptrail.storage.engines.spark import overwriting, table_in_sql
from grouptrail.storage.reader import supports
from grouptrail.storage.sorting import can_sort, sort_new_files
from grouptrail.storage.sql import spark_literal
from grouptrail.storage.table import Table
from grouptrail.storage.table_log import remove_old_logs, table_folder
from grouptrail.storage.unclustering import remove_clustering

if TYPE_CHECKING:
    from delta.tables import DeltaMergeBuilder
    from pyspark.sql import DataFrame

_TIME = "record_at"


def size(table: Table) -> tuple[int, int]:
    """Return a table's number of files and their size in bytes."""
    detail = _sql(table, "DESCRIBE DETAIL").first()
    assert detail is not None
    return detail.numFiles, detail.sizeInBytes


def delete(table: Table, where: str, stays: DataFrame | None) -> None:
    """Delete the rows that match an SQL condition, except those in `stays`, in one commit."""
    if stays is None:
        _sql(table, "DELETE FROM", f"WHERE {where}").collect()
    else:
        overwriting(stays, where).save(table.path)


def optimize(table: Table) -> None:
    """Compact and sort a table's files; of a history table, only those with closed rows.

    The history job continuously rewrites the files with open rows and would fail if they were removed.
    """
    columns = {column.name: column for column in table.contract.columns}
    if not table.contract.partition_by:
        _sort(table)
    elif columns["open_bucket"].null_means:
        sort = ", ".join(table.contract.cluster_by)
        _sql(table, "OPTIMIZE", f"WHERE open_bucket IS NULL ZORDER BY ({sort})").collect()


def _sort(table: Table) -> None:
    there = table.open() if supports(table.path) else None
    if there is not None:
        remove_clustering(table.location, there, table.session)
    if there is not None and can_sort(there):
        sort_new_files(table.location)
    else:
        _sql(table, "OPTIMIZE").collect()


def vacuum(table: Table) -> None:
    """Remove the files, and the logs, that no version within the table's retention needs."""
    _sql(table, "VACUUM").collect()
    if (there := table.open() if supports(table.path) else None) is not None:
        remove_old_logs(there, table_folder(table.path, table.location.options))


def move(rows: Sequence[tuple[Table, DataFrame]], *, source: Table) -> None:
    """Insert rows of records of one cluster into tables, and delete those with the same key from another one.

    They are inserted first, unless a target has their key: after an interruption it can be repeated.
    """
    for target, inserted in rows:
        _merger(target, inserted).whenNotMatchedInsertAll().execute()
    keys = [inserted.select(*source.contract.key, _TIME) for _, inserted in rows]
    _merger(source, reduce(lambda some, others: some.union(others), keys)).whenMatchedDelete().execute()


def _merger(table: Table, rows: DataFrame) -> DeltaMergeBuilder:
    from delta.tables import DeltaTable as JavaTable
    from pyspark.sql import functions as F

    same = [f"there.{column} = row.{column}" for column in table.contract.key]
    # A record has the same time in each table: files of other times need not be read.
    bounds = [bound(_TIME).cast("string") for bound in (F.min, F.max)]
    first, last = rows.select(*bounds).collect()[0]
    if first is not None:
        same.append(f"there.{_TIME} BETWEEN TIMESTAMP '{first}' AND TIMESTAMP '{last}'")
    there = JavaTable.forPath(rows.sparkSession, table.path)
    return there.alias("there").merge(rows.alias("row"), " AND ".join(same))


def register(table: Table, catalog_name: str) -> str | None:
    """Create a table of Spark's catalog, given by its quoted name, at the table's location.

    Return the location of a table that has this name already, None if it is the same one.
    """
    spark = table.session
    spark.sql(f"CREATE TABLE IF NOT EXISTS {catalog_name} USING delta LOCATION {spark_literal(table.path)}")
    described = spark.sql(f"DESCRIBE TABLE EXTENDED {catalog_name}").collect()
    if {row.data_type for row in described if row.col_name == "Location"} & {table.path, f"file:{table.path}"}:
        return None
    # This knows every spelling of a location, but reads the table's whole log.
    registered, here = (
        spark.sql(f"DESCRIBE DETAIL {one}").collect()[0].location
        for one in (catalog_name, table_in_sql(table.location))
    )
    return None if registered == here else registered


def _sql(table: Table, verb: str, rest: str = "") -> DataFrame:
    return table.session.sql(f"{verb} {table_in_sql(table.location)} {rest}")
