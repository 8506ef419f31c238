"""`grouptrail redecode`: decode the records of `undecodable_records` again, e.g. after an upgrade."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grouptrail.console.progress import Log
from grouptrail.decode.schema import COMMITS, RECORD_COLUMNS, row_ddl
from grouptrail.decode.tasks import PACKED_DDL, packed, unpacked
from grouptrail.errors import GrouptrailError
from grouptrail.storage.upkeep import move

if TYPE_CHECKING:
    from grouptrail.storage.warehouse import Warehouse

UNDECODABLE = "undecodable_records"

# Each part is decoded, added and deleted before the next one: a run that is cut off keeps what it has moved. There
# are few, as the table of undecodable records is written anew for each.
_LEAST_RECORDS = 500_000
_MOST_PARTS = 20


class NothingToDecodeError(GrouptrailError):
    """There is no table of undecodable records."""


def redecode(warehouse: Warehouse, max_record_bytes: int, log: Log) -> None:
    """Move records that can be decoded now from `undecodable_records` to the other decoded tables, and log how many.

    The warehouse has a session. Records of all clusters are moved.
    """
    from pyspark.sql import functions as F

    table = warehouse.table(UNDECODABLE)
    if not table.exists():
        raise NothingToDecodeError(
            f"there is no table {table.location.shown}: check --warehouse, or run the decode job first"
        )
    table.ensure()
    origins = table.all_clusters().groupBy("cluster", "source").agg(F.count("*").alias("records")).collect()
    total = sum(origin.records for origin in origins)
    log(f"decoding {total:,} records again")
    read = moved = 0
    for origin in origins:
        parts = max(1, min(_MOST_PARTS, origin.records // _LEAST_RECORDS))
        for part in range(parts):
            moved += _redecode(warehouse, origin.cluster, origin.source, (part, parts), max_record_bytes)
            read += origin.records * (part + 1) // parts - origin.records * part // parts
            log(f"{read:,} of {total:,} records read, {moved:,} moved")
    log(f"{moved:,} records decoded, {table.all_clusters().count():,} still undecodable")


def _redecode(
    warehouse: Warehouse, cluster: str, source: str | None, part: tuple[int, int], max_record_bytes: int
) -> int:
    """Move one cluster's records of one source, or a part of them (its number, of how many); return how many.

    Rows are added to their new table by key before they are deleted, so an interrupted run can be repeated.
    """
    from pyspark.sql import functions as F

    undecodable = warehouse.table(UNDECODABLE)
    number, parts = part
    records = (
        undecodable.all_clusters()
        .where((F.col("cluster") == cluster) & F.col("source").eqNullSafe(F.lit(source)))
        .where(F.pmod(F.hash("record_partition", "record_offset"), F.lit(parts)) == number)
        # Not kept with undecodable records.
        .withColumns(
            {"is_transactional": F.lit(None).cast("boolean"), "partition_leader_epoch": F.lit(None).cast("int")}
        )
        .select(*RECORD_COLUMNS, F.col("record_key").alias("key"), F.col("record_value").alias("value"))
    )
    # Most of the time is spent here: it is done once for all tables.
    decoded = records.mapInArrow(packed(max_record_bytes), PACKED_DDL).where(F.col("table") != UNDECODABLE).persist()
    try:
        counts = {row.table: row.rows for row in decoded.groupBy("table").agg(F.sum("rows").alias("rows")).collect()}
        moved = []
        for name in counts:
            target = warehouse.table(name)
            target.ensure()
            origin = {"cluster": F.lit(cluster), "source": F.lit(source).cast("string")}
            origin["not_before"] = F.lit(None).cast("timestamp")  # only polled rows have one, and they are decodable
            if name != COMMITS:
                origin |= {"read_at": F.current_timestamp(), "is_gapless": F.lit(None).cast("boolean")}
            rows = decoded.where(F.col("table") == name).mapInArrow(unpacked, row_ddl(name))
            moved.append((target, rows.withColumns(origin)))
        if moved:
            move(moved, source=undecodable)
    finally:
        decoded.unpersist()
    return sum(counts.values())
