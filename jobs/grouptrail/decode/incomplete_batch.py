"""Complete a batch that was interrupted and whose checkpoint is lost: write its missing rows."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING

from grouptrail.console.progress import Log
from grouptrail.decode.progress import batch_progress
from grouptrail.decode.schema import TABLES
from grouptrail.decode.tasks import PartitionCounts
from grouptrail.decode.writer import TaskRecords, append_progress, in_tasks, write_records
from grouptrail.kafka.record_ranges import RecordRanges
from grouptrail.kafka.record_schema import RECORD_DDL
from grouptrail.storage.engines.engine import Once
from grouptrail.storage.progress import counted_records

if TYPE_CHECKING:
    from grouptrail.storage.warehouse import Warehouse

_COORDINATES = ["record_partition", "record_offset"]


def complete(
    warehouse: Warehouse, kafka: Mapping[str, str], known: Mapping[int, int], *, max_record_bytes: int, log: Log
) -> dict[int, int]:
    """Read the topic again from the known positions to the last row beyond them, and write the rows that are missing.

    Then appends to `ingest_progress` and returns the new positions. After an interruption it can be run again.
    """
    beyond = (
        " AND ".join(f"(record_partition <> {at} OR record_offset >= {to})" for at, to in known.items()) or "true"
    )
    ends = {row.record_partition: row.end_offset for row in counted_records(warehouse, TABLES, beyond).collect()}
    if not ends:
        return dict(known)
    once = Once(f"recover-{uuid.uuid4()}", 0)
    with RecordRanges(kafka) as topic:
        bounds = topic.bounds()
        ranges = {at: (known.get(at, bounds[at].log_start_offset), end) for at, end in ends.items()}
        shared = in_tasks(warehouse.session, topic, ranges)
    records = shared.frame.mapInArrow(shared.read, RECORD_DDL)
    written = (table.dataframe().where(beyond).select(_COORDINATES) for table in warehouse.tables(TABLES))
    missing = records.join(reduce(type(records).unionByName, written), _COORDINATES, "left_anti")
    missing = missing.select(*records.columns).persist()
    try:
        count = missing.count()
        write_records(TaskRecords(missing), warehouse, once, max_record_bytes=max_record_bytes)
    finally:
        missing.unpersist()
    progress = list(batch_progress(_counts(warehouse, beyond), start=known, end=ends, bounds=bounds))
    append_progress(warehouse, progress, once)
    log(f"decode: a batch was interrupted: {count:,} of its records were missing and have been written")
    return {**known, **ends}


def _counts(warehouse: Warehouse, where: str) -> dict[int, PartitionCounts]:
    """Return, by partition, what a batch's tasks would have reported of these rows."""
    return {
        row.record_partition: PartitionCounts(
            {table: row[table] for table in TABLES},
            row.first_offset,
            *(round(time.timestamp() * 1_000_000) for time in (row.earliest_record_at, row.latest_record_at)),
        )
        for row in counted_records(warehouse, TABLES, where).collect()
    }
