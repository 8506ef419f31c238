"""`grouptrail redecode`: decode the records of `undecodable_records` again, e.g. after an upgrade."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grouptrail.console.progress import Log
from grouptrail.decode.schema import COMMITS, RECORD_COLUMNS, TABLES, row_ddl
from grouptrail.decode.tasks import rows_of
from grouptrail.errors import GrouptrailError
from grouptrail.storage.upkeep import move

if TYPE_CHECKING:
    from grouptrail.storage.warehouse import Warehouse

UNDECODABLE = "undecodable_records"


class NothingToDecodeError(GrouptrailError):
    """There is no table of undecodable records."""


def redecode(warehouse: Warehouse, max_record_bytes: int, log: Log) -> None:
    """Move records that can be decoded now from `undecodable_records` to the other decoded tables, and log how many.

    The warehouse has a session. Records of all clusters are moved.
    """
    table = warehouse.table(UNDECODABLE)
    if not table.exists():
        raise NothingToDecodeError(
            f"there is no table {table.location.shown}: check --warehouse, or run the decode job first"
        )
    table.ensure()
    origins = table.all_clusters().select("cluster", "source").distinct().collect()
    moved = sum(_redecode(warehouse, row.cluster, row.source, max_record_bytes) for row in origins)
    log(f"{moved:,} records decoded, {table.all_clusters().count():,} still undecodable")


def _redecode(warehouse: Warehouse, cluster: str, source: str | None, max_record_bytes: int) -> int:
    """Move one cluster's records of one source; return how many.

    Rows are added to their new table by key before they are deleted, so an interrupted run can be repeated.
    """
    from pyspark.sql import functions as F

    undecodable = warehouse.table(UNDECODABLE)
    records = (
        undecodable.all_clusters()
        .where((F.col("cluster") == cluster) & F.col("source").eqNullSafe(F.lit(source)))
        # Not kept with undecodable records.
        .withColumns(
            {"is_transactional": F.lit(None).cast("boolean"), "partition_leader_epoch": F.lit(None).cast("int")}
        )
        .select(*RECORD_COLUMNS, F.col("record_key").alias("key"), F.col("record_value").alias("value"))
    )
    moved = 0
    for table in warehouse.tables([name for name in TABLES if name != UNDECODABLE]):
        origin = {"cluster": F.lit(cluster), "source": F.lit(source).cast("string")}
        origin["not_before"] = F.lit(None).cast("timestamp")  # only polled rows have one, and they are decodable
        if table.name != COMMITS:
            origin |= {"read_at": F.current_timestamp(), "is_gapless": F.lit(None).cast("boolean")}
        decoded = (
            records.mapInArrow(rows_of(table.name, max_record_bytes), row_ddl(table.name))
            .withColumns(origin)
            .persist()
        )
        if count := decoded.count():
            table.ensure()
            move(decoded, source=undecodable, target=table)
        moved += count
        decoded.unpersist()
    return moved
