"""Which records of each partition of the offsets topic have been decoded, by `ingest_progress`.

`progress` are rows of that table in Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.compute import ScalarAggregateOptions

from grouptrail.storage.schema import SEGMENTS
from grouptrail.storage.sql import Value, spark_literal
from grouptrail.storage.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PROGRESS = "ingest_progress"

Ends = Mapping[str | None, Mapping[int, int]]
"""End offsets by `source` and partition."""

RANGE_COLUMNS = (
    *("record_partition", "start_offset", "end_offset", "last_stable_offset", "earliest_record_at"),
    *("latest_record_at", "group_metadata", "group_records", "undecodable_records", "batch_id", "landed_at"),
    *("holes", "lost", "source"),
)


def read_ends(warehouse: Warehouse, *, landed_since: datetime | None = None) -> Ends:
    """Return the end offsets that are recorded, or only those of batches that landed since a time.

    A file takes a third of a millisecond, and a day without OPTIMIZE leaves thousands: those of other times are left
    out by their statistics.
    """
    columns = "source, record_partition, MAX(end_offset) AS end_offset"
    since = "" if landed_since is None else f"AND landed_at >= {warehouse.literal(landed_since)} "
    ends: dict[str | None, dict[int, int]] = {}
    for row in warehouse.table(PROGRESS).select(columns, f"{since}GROUP BY source, record_partition"):
        ends.setdefault(row["source"], {})[row["record_partition"]] = row["end_offset"]
    return ends


def decoded_to(ends: Ends) -> dict[int, int]:
    """Return the end offset by partition."""
    partitions = {partition for of_source in ends.values() for partition in of_source}
    return {at: max(of_source[at] for of_source in ends.values() if at in of_source) for at in sorted(partitions)}


def segment_ends(ends: Ends) -> dict[int, int]:
    """Return the end offsets of partitions that were read from log segments only, not by the decode job."""
    decoded = ends.get(None, {})
    return {partition: end for partition, end in ends.get(SEGMENTS, {}).items() if partition not in decoded}


@dataclass(frozen=True)
class OffsetRanges:
    """Decoded offsets by partition [start, end), and the times of their records.

    `complete_to` is by partition and as for `operations`; `newest_batch` is the decode job's batch number.
    `classic_records`, `group_records` and `undecodable_records`: how many rows of `group_metadata` and of the tables
    of these names they are.
    """

    ranges: dict[int, tuple[int, int]]
    complete_to: dict[int, int]
    earliest: datetime | None
    latest: datetime | None
    classic_records: int
    group_records: int
    undecodable_records: int
    newest_batch: int

    @classmethod
    def of(cls, progress: pa.Table) -> OffsetRanges:
        """Return the ranges in rows of `ingest_progress` with `RANGE_COLUMNS`."""
        rows = progress.sort_by("end_offset")
        last = ScalarAggregateOptions(skip_nulls=False)
        by_partition = rows.group_by("record_partition", use_threads=False).aggregate(
            [("start_offset", "min"), ("end_offset", "last"), ("last_stable_offset", "last", last)]
        )
        ends = [tuple(row.values()) for row in by_partition.to_pylist()]
        batches = rows.select(["landed_at", "batch_id"]).to_pylist()
        return cls(
            ranges={partition: (start, end) for partition, start, end, _ in ends},
            # At the last stable offset every operation is complete.
            complete_to={partition: end + 1 if stable == end else end for partition, _, end, stable in ends},
            earliest=pc.min(rows["earliest_record_at"]).as_py(),
            latest=pc.max(rows["latest_record_at"]).as_py(),
            classic_records=pc.sum(rows["group_metadata"]).as_py() or 0,
            group_records=pc.sum(rows["group_records"]).as_py() or 0,
            undecodable_records=pc.sum(rows["undecodable_records"]).as_py() or 0,
            newest_batch=max(((row["landed_at"], row["batch_id"]) for row in batches), default=(None, -1))[1],
        )

    @property
    def of_groups(self) -> int:
        """How many records of groups there are at most, commits aside."""
        return self.classic_records + self.group_records + self.undecodable_records

    def condition(self, literal: Callable[[Value], str]) -> str:
        """Return an SQL condition on rows of a decoded table: their records are in these ranges."""
        among = in_ranges(self.ranges)
        if self.earliest is None or self.latest is None:
            return among
        # Delta can skip files by time; offsets of different partitions are too far apart for that.
        return f"record_at BETWEEN {literal(self.earliest)} AND {literal(self.latest)} AND ({among})"

    def rows(self, table: DataFrame) -> DataFrame:
        """Return the rows of a decoded table whose records are in these ranges."""
        return table.where(self.condition(spark_literal))


def in_ranges(ranges: dict[int, tuple[int, int]]) -> str:
    """Return an SQL condition: a row's record is in its partition's range of offsets [start, end)."""
    conditions = (
        f"record_partition = {partition} AND record_offset >= {start} AND record_offset < {end}"
        for partition, (start, end) in sorted(ranges.items())
    )
    return " OR ".join(f"({condition})" for condition in conditions) or "false"


def counted_records(warehouse: Warehouse, decoded: Collection[str], where: str) -> DataFrame:
    """Count the records of some decoded tables that match an SQL condition, as `ingest_progress` has them.

    Out: record_partition; for each table, under its name, a count (0 if there is no table); first_offset,
    end_offset, earliest_record_at, latest_record_at.
    """
    from pyspark.sql import functions as F

    frames = [
        table.dataframe()
        .where(where)
        .select("record_partition", "record_offset", "record_at", F.lit(table.name).alias("of"))
        for table in warehouse.tables(decoded)
        if table.exists()
    ]
    counts = (F.count_if(F.col("of") == table).alias(table) for table in decoded)
    rows = reduce(type(frames[0]).unionByName, frames)
    return rows.groupBy("record_partition").agg(
        *counts,
        F.min("record_offset").alias("first_offset"),
        (F.max("record_offset") + 1).alias("end_offset"),
        F.min("record_at").alias("earliest_record_at"),
        F.max("record_at").alias("latest_record_at"),
    )
