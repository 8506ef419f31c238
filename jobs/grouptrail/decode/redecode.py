"""`grouptrail redecode`: decode the records of `undecodable_records` again, e.g. after an upgrade."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from grouptrail.console.progress import print_now
from grouptrail.decode.schema import COMMITS, RECORD_COLUMNS, TABLES, row_ddl
from grouptrail.decode.tasks import rows_of
from grouptrail.errors import GrouptrailError
from grouptrail.spark.session import session
from grouptrail.storage.tables import ensure_table, move, read_all, table_exists

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from grouptrail.config import Config

UNDECODABLE = "undecodable_records"


class NothingToDecodeError(GrouptrailError):
    """There is no table of undecodable records."""


def redecode(config: Config, report: Callable[[str], None] = print_now) -> None:
    """Move records that can be decoded now from `undecodable_records` to the other decoded tables, and report it."""
    with session(config, "grouptrail-redecode", report, is_varied=True) as spark:
        if not table_exists(spark, config, UNDECODABLE):
            raise NothingToDecodeError(
                f"there is no table {config.table_path(UNDECODABLE)}: check --warehouse, or run the decode job first"
            )
        ensure_table(spark, config, UNDECODABLE)
        origins = read_all(spark, config, UNDECODABLE).select("cluster", "source").distinct().collect()
        moved = sum(_redecode(spark, config, row.cluster, row.source) for row in origins)
        left = read_all(spark, config, UNDECODABLE).count()
        report(f"{moved:,} records decoded, {left:,} still undecodable")


def _redecode(spark: SparkSession, config: Config, cluster: str, source: str | None) -> int:
    """Move one cluster's records of one source; return how many.

    Rows are added to their new table by key before they are deleted, so an interrupted run can be repeated.
    """
    from pyspark.sql import functions as F

    records = (
        read_all(spark, config, UNDECODABLE)
        .where((F.col("cluster") == cluster) & F.col("source").eqNullSafe(F.lit(source)))
        .withColumn("is_transactional", F.lit(None).cast("boolean"))  # not kept with undecodable records
        .select(*RECORD_COLUMNS, F.col("record_key").alias("key"), F.col("record_value").alias("value"))
    )
    moved = 0
    for table in TABLES:
        if table == UNDECODABLE:
            continue
        origin = {"cluster": F.lit(cluster), "source": F.lit(source).cast("string")}
        origin["not_before"] = F.lit(None).cast("timestamp")  # only polled rows have one, and they are decodable
        if table != COMMITS:
            origin["read_at"] = F.current_timestamp()
        decoded = (
            records.mapInArrow(rows_of(table, config.decode.max_record_bytes), row_ddl(table))
            .withColumns(origin)
            .persist()
        )
        if count := decoded.count():
            ensure_table(spark, config, table)
            move(decoded, config, source=UNDECODABLE, target=table)
        moved += count
        decoded.unpersist()
    return moved
