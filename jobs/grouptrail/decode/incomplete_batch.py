"""Complete a batch that was interrupted and whose checkpoint is lost: write its missing rows."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from functools import reduce
from typing import TYPE_CHECKING

from grouptrail.decode.progress import batch_progress
from grouptrail.decode.schema import TABLES
from grouptrail.decode.tasks import PartitionCounts
from grouptrail.decode.writer import append_progress, in_tasks, land_records
from grouptrail.kafka.record_ranges import RecordRanges
from grouptrail.kafka.record_schema import RECORD_DDL
from grouptrail.storage import tables
from grouptrail.storage.progress import counted_records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from grouptrail.config import Config

_COORDINATES = ["record_partition", "record_offset"]


def complete(
    spark: SparkSession, config: Config, known: Mapping[int, int], report: Callable[[str], None]
) -> dict[int, int]:
    """Read the topic again from the known positions to the last row beyond them, and write the rows that are missing.

    Then appends to `ingest_progress` and returns the new positions. After an interruption it can be run again.
    """
    beyond = (
        " AND ".join(f"(record_partition <> {at} OR record_offset >= {to})" for at, to in known.items()) or "true"
    )
    ends = {row.record_partition: row.end_offset for row in counted_records(spark, config, TABLES, beyond).collect()}
    if not ends:
        return dict(known)
    app = f"recover-{uuid.uuid4()}"
    with RecordRanges(config.kafka_settings()) as topic:
        bounds = topic.bounds()
        ranges = {at: (known.get(at, bounds[at].log_start_offset), end) for at, end in ends.items()}
        tasks, read = in_tasks(spark, topic, ranges)
    records = tasks.mapInArrow(read, RECORD_DDL)
    written = (tables.read(spark, config, table).where(beyond).select(_COORDINATES) for table in TABLES)
    missing = records.join(reduce(type(records).unionByName, written), _COORDINATES, "left_anti")
    missing = missing.select(*records.columns).persist()
    try:
        count = missing.count()
        land_records(missing, config, app=app, batch=0)
    finally:
        missing.unpersist()
    counts = _counts(spark, config, beyond)
    progress = list(batch_progress(counts, start=known, end=ends, bounds=bounds))
    append_progress(spark, config, progress, app=app, batch=0)
    report(f"decode: a batch was interrupted: {count:,} of its records were missing and have been written")
    return {**known, **ends}


def _counts(spark: SparkSession, config: Config, where: str) -> dict[int, PartitionCounts]:
    """Return, by partition, what a batch's tasks would have reported of these rows."""
    return {
        row.record_partition: PartitionCounts(
            {table: row[table] for table in TABLES},
            row.first_offset,
            *(round(time.timestamp() * 1_000_000) for time in (row.earliest_record_at, row.latest_record_at)),
        )
        for row in counted_records(spark, config, TABLES, where).collect()
    }
