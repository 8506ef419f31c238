"""Complete a batch that was interrupted and whose checkpoint is lost: write its missing rows."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from functools import reduce
from typing import TYPE_CHECKING

from grouptrail.decode.job import append_progress, land_records
from grouptrail.decode.progress import batch_progress
from grouptrail.decode.schema import RECORD_COLUMNS, TABLES
from grouptrail.decode.tasks import PartitionCounts
from grouptrail.kafka.offsets_topic import OffsetsTopic
from grouptrail.spark.streams import read_offsets_range
from grouptrail.storage import tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from grouptrail.config import Config

_COORDINATES = ["record_partition", "record_offset"]


def complete(
    spark: SparkSession, config: Config, known: Mapping[int, int], report: Callable[[str], None]
) -> dict[int, int]:
    """Read the topic again from the known positions to the last row beyond them, and write the rows that are missing.

    Then appends to `ingest_progress` and returns the new positions. After an interruption it can be run again.
    """
    written = _beyond(spark, config, known)
    ends = {row["record_partition"]: row["max(record_offset)"] + 1 for row in _newest(written)}
    if not ends:
        return dict(known)
    app = f"recover-{uuid.uuid4()}"
    with OffsetsTopic(config) as topic:
        group, bounds = topic.answering_group(), topic.bounds()
    ranges = {at: (known.get(at), end) for at, end in ends.items()}
    records = read_offsets_range(spark, config, ranges, group=group)
    missing = records.join(written.select(_COORDINATES), _COORDINATES, "left_anti").select(*records.columns).persist()
    try:
        count = missing.count()
        land_records(missing, config, app=app, batch=0)
    finally:
        missing.unpersist()
    counts = _counts(_beyond(spark, config, known))
    progress = list(batch_progress(counts, start=known, end=ends, bounds=bounds))
    append_progress(spark, config, progress, app=app, batch=0)
    report(f"decode: a batch was interrupted: {count:,} of its records were missing and have been written")
    return {**known, **ends}


def _beyond(spark: SparkSession, config: Config, known: Mapping[int, int]) -> DataFrame:
    """Return rows (`RECORD_COLUMNS`, and `of`, their table) at or after the known positions."""
    from pyspark.sql import functions as F

    positions = spark.createDataFrame(list(known.items()), "record_partition int, known_to bigint")

    def of(table: str) -> DataFrame:
        rows = tables.read(spark, config, table).select(*RECORD_COLUMNS, F.lit(table).alias("of"))
        rows = rows.join(F.broadcast(positions), "record_partition", "left")
        return rows.where("known_to IS NULL OR record_offset >= known_to")

    return reduce(lambda rows, more: rows.unionByName(more), map(of, TABLES))


def _newest(rows: DataFrame) -> list[dict[str, int]]:
    return [row.asDict() for row in rows.groupBy("record_partition").agg({"record_offset": "max"}).collect()]


def _counts(rows: DataFrame) -> dict[int, PartitionCounts]:
    """Return what a batch's tasks would have reported of rows as in `_beyond`."""
    from pyspark.sql import functions as F

    found: dict[int, PartitionCounts] = {}
    counted = rows.groupBy("record_partition", "of").agg(
        F.count("*").alias("count"),
        F.min("record_offset").alias("first"),
        F.unix_micros(F.min("record_at")).alias("earliest"),
        F.unix_micros(F.max("record_at")).alias("latest"),
    )
    for row in counted.collect():
        part = PartitionCounts(first_offset=row["first"], earliest=row.earliest, latest=row.latest)
        part.rows[row.of] = row["count"]
        found.setdefault(row.record_partition, PartitionCounts()).add(part)
    return found
