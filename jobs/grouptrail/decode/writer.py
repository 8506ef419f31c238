"""Write decoded records: a micro-batch's rows to each table, then its progress, each append exactly once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from grouptrail.decode.batch import decode_batches
from grouptrail.decode.progress import batch_progress, summary
from grouptrail.decode.schema import COMMITS, RARE_TABLES, row_ddl, row_schema
from grouptrail.decode.tasks import (
    BY_TASK,
    BatchReport,
    RecordReader,
    TaskReport,
    commits_reporting,
    reading,
    rows_of,
    shares,
)
from grouptrail.kafka.errors import ClusterError
from grouptrail.kafka.log import LogBounds, Ranges
from grouptrail.storage import tables
from grouptrail.storage.files import Rows
from grouptrail.storage.progress import PROGRESS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from grouptrail.config import Config

# So many records and bytes are decoded on the driver: a Spark job takes longer than that.
_FEW_RECORDS = 50_000
_FEW_BYTES = 32 << 20


class DecodeBatchWriter:
    """Writes micro-batches: every table, then the progress, with each append done once, even if a batch is repeated.

    `records` reads the topic, `app` returns the query's id in the tables' transaction logs, `end_offsets` a
    micro-batch's end offsets by partition, `bounds` the current bounds of the topic's logs, `max_record_bytes` the
    limit that a micro-batch was or is to be decoded with (default: the configured one).
    """

    def __init__(
        self,
        spark: SparkSession,
        config: Config,
        *,
        records: RecordReader,
        app: Callable[[], str],
        end_offsets: Callable[[int], Mapping[int, int]],
        bounds: Callable[[], Mapping[int, LogBounds]],
        report: Callable[[str], None],
        max_record_bytes: Callable[[int], int | None] = lambda _batch: None,
    ) -> None:
        self._spark = spark
        self._config = config
        self._records = records
        self._app = app
        self._end_offsets = end_offsets
        self._bounds = bounds
        self._report = report
        self._max_record_bytes = max_record_bytes

    def land(self, batch: int) -> None:
        """Read, decode and write the records of one micro-batch."""
        started = time.monotonic()
        app, most = self._app(), self._max_record_bytes(batch)
        start, end = self._end_offsets(batch - 1), self._end_offsets(batch)
        ranges = self._ranges(start, end)
        if (records := self._few(ranges)) is not None:
            found = land_few(self._spark, records, self._config, app=app, batch=batch, max_record_bytes=most)
        else:
            tasks, read = in_tasks(self._spark, self._records, ranges)
            found = land_records(tasks, self._config, app=app, batch=batch, max_record_bytes=most, read=read)
        progress = list(batch_progress(found.landed, start=start, end=end, bounds=self._known_bounds()))
        append_progress(self._spark, self._config, progress, app=app, batch=batch)
        self._report(summary(batch, progress, time.monotonic() - started))

    def _ranges(self, start: Mapping[int, int], end: Mapping[int, int]) -> Ranges:
        """Return the offsets to read; of a partition that is new to the query, all from its log's start."""
        bounds = self._bounds() if end.keys() - start.keys() else {}
        return {
            partition: (start[partition] if partition in start else bounds[partition].log_start_offset, end_offset)
            for partition, end_offset in end.items()
        }

    def _few(self, ranges: Ranges) -> list[pa.RecordBatch] | None:
        """Return the records if they are few."""
        if sum(end - start for start, end in ranges.values()) > _FEW_RECORDS:
            return None
        found, size = [], 0
        for records in self._records.read(ranges):
            found.append(records)
            size += records.nbytes
            if size > _FEW_BYTES:
                return None
        return found

    def _known_bounds(self) -> Mapping[int, LogBounds]:
        """Return no bounds if the broker does not answer: the batch's records are read and must be written."""
        try:
            return self._bounds()
        except ClusterError:
            return {}


def in_tasks(spark: SparkSession, reader: RecordReader, ranges: Ranges) -> tuple[DataFrame, Rows]:
    """Return a row for each task, one per core, and the function that reads the task's share of the records.

    Cores are counted for each batch, as a cluster's executors come and go.
    """
    shared = shares(ranges, spark.sparkContext.defaultParallelism)
    return spark.range(0, len(shared), numPartitions=len(shared)), reading(reader, shared)


def append_progress(
    spark: SparkSession, config: Config, progress: Sequence[Mapping[str, Any]], *, app: str, batch: int
) -> None:
    """Append rows of `batch_progress` to `ingest_progress`."""
    shared = {"batch_id": batch, "query_id": app, "landed_at": datetime.now(UTC)}
    rows = pa.Table.from_pylist([{**row, **shared} for row in progress], row_schema(PROGRESS))
    tables.append(spark, rows, config, PROGRESS, app=app, version=batch)


def land_few(
    spark: SparkSession,
    records: Iterable[pa.RecordBatch],
    config: Config,
    *,
    app: str,
    batch: int,
    max_record_bytes: int | None = None,
) -> BatchReport:
    """Do `land_records` on the driver."""
    report, commits = TaskReport(), []
    for table, rows in decode_batches(records, max_record_bytes or config.decode.max_record_bytes):
        report.count(table, rows)
        if table == COMMITS:
            commits.append(rows)
        else:
            report.rare.setdefault(table, []).append(rows)
    same: dict[str, Any] = {"source": None}
    if commits:
        tables.append(spark, pa.Table.from_batches(commits), config, COMMITS, same=same, app=app, version=batch)
    found = BatchReport.of({0: report})
    _append_rare(spark, found, config, same=same, app=app, batch=batch)
    return found


def land_records(
    records: DataFrame,
    config: Config,
    *,
    app: str,
    batch: int,
    source: str | None = None,
    max_record_bytes: int | None = None,
    read: Rows = iter,
) -> BatchReport:
    """Decode records and append each to its table.

    In: the columns of `RECORD_SCHEMA`, or what `read` makes these of in the tasks. Each append is done once for an
    `app` and a `batch`, which must always have the same records and the same `max_record_bytes` (default: the
    configured one). `source` is the column's value.
    """
    most = max_record_bytes or config.decode.max_record_bytes
    spark = records.sparkSession
    same: dict[str, Any] = {"source": source}
    reports = spark.sparkContext.accumulator({}, BY_TASK)
    reported = commits_reporting(reports, most)

    def append_made(table: str, rows: Rows) -> None:
        tables.append_made(
            records, lambda given: rows(read(given)), row_ddl(table), config, table, same=same, app=app, version=batch
        )

    append_made(COMMITS, reported)
    if not reports.value:  # they were written before
        rows = records.mapInArrow(lambda given: reported(read(given)), row_ddl(COMMITS))
        rows.write.format("noop").mode("append").save()
    found = BatchReport.of(reports.value)
    if found.too_many:
        for table in filter(found.has, RARE_TABLES):
            append_made(table, rows_of(table, most))
    else:
        _append_rare(spark, found, config, same=same, app=app, batch=batch)
    return found


def _append_rare(
    spark: SparkSession, found: BatchReport, config: Config, *, same: Mapping[str, Any], app: str, batch: int
) -> None:
    read_at = {"read_at": datetime.now(UTC)}
    for table, rows in found.rare.items():
        tables.append(spark, rows, config, table, same={**same, **read_at}, app=app, version=batch)
