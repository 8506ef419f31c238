"""Delete rows of a table, compact and sort its files, and remove those of old versions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grouptrail.contracts import tables
from grouptrail.storage.tables import overwriting, table_in_sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from grouptrail.config import Config


def size(spark: SparkSession, config: Config, name: str) -> tuple[int, int]:
    """Return a table's number of files and their size in bytes."""
    detail = spark.sql(f"DESCRIBE DETAIL {table_in_sql(config, name)}").first()
    assert detail is not None
    return detail.numFiles, detail.sizeInBytes


def delete(spark: SparkSession, config: Config, name: str, where: str, stays: DataFrame | None) -> None:
    """Delete the rows that match an SQL condition, except those in `stays`, in one commit."""
    if stays is None:
        spark.sql(f"DELETE FROM {table_in_sql(config, name)} WHERE {where}").collect()
    else:
        overwriting(stays, where).save(config.table_path(name))


def optimize(spark: SparkSession, config: Config, name: str) -> None:
    """Compact and sort a table's files; of a history table, only those with closed rows.

    The history job continuously rewrites the files with open rows and would fail if they were removed.
    """
    table = tables()[name]
    columns = {column.name: column for column in table.columns}
    if not table.partition_by:
        spark.sql(f"OPTIMIZE {table_in_sql(config, name)}").collect()
    elif columns["open_bucket"].null_means:
        sort = ", ".join(table.cluster_by)
        where = "WHERE open_bucket IS NULL"
        spark.sql(f"OPTIMIZE {table_in_sql(config, name)} {where} ZORDER BY ({sort})").collect()


def vacuum(spark: SparkSession, config: Config, name: str) -> None:
    """Remove the files that no version within the table's retention needs."""
    spark.sql(f"VACUUM {table_in_sql(config, name)}").collect()
