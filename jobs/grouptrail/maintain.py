"""Keeps the Delta tables small and fast: joins small files, sorted by each table's clustering columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from grouptrail import contracts
from grouptrail.session import start_session
from grouptrail.tables import table_exists

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from grouptrail.config import Config


def maintain(config: Config, tables: tuple[str, ...] = (), report: Callable[[str], None] = print) -> None:
    """OPTIMIZE and VACUUM (Delta's default retention of 7 days) on the named tables, or on all that are there."""
    spark = start_session(config, "grouptrail-maintain", report)
    try:
        for name in tables or contracts.tables():
            if table_exists(spark, config, name):
                report(_maintain(spark, config.table_path(name), name))
    finally:
        spark.stop()


def _maintain(spark: SparkSession, path: str, name: str) -> str:
    before = _size(spark, path)
    table = contracts.tables()[name]
    sort = f" ZORDER BY ({', '.join(table.cluster_by)})" if table.partition_by else ""
    spark.sql(f"OPTIMIZE delta.`{path}`{sort}").collect()
    spark.sql(f"VACUUM delta.`{path}`").collect()
    after = _size(spark, path)
    return f"{name}: {before[0]} files, {before[1]:,} bytes -> {after[0]} files, {after[1]:,} bytes"


def _size(spark: SparkSession, path: str) -> tuple[int, int]:
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{path}`").first()
    assert detail is not None
    return detail.numFiles, detail.sizeInBytes
