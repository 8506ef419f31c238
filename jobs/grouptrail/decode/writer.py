"""Write decoded records: a micro-batch's rows to each table, then its progress, each append exactly once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.console.progress import Log
from grouptrail.decode.batch import decode_batches
from grouptrail.decode.progress import batch_progress, summary
from grouptrail.decode.schema import COMMITS, OF_GROUPS, RARE_TABLES, row_ddl
from grouptrail.decode.tasks import (
    BY_TASK,
    BatchReport,
    TaskReport,
    commits_reporting,
    reading,
    rows_of,
    shares,
)
from grouptrail.kafka.errors import ClusterError
from grouptrail.kafka.log import LogBounds, Ranges
from grouptrail.storage.engines.engine import Once, Rows, TaskRows
from grouptrail.storage.files import RowsFunction
from grouptrail.storage.progress import PROGRESS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from grouptrail.kafka.record_ranges import RecordRanges
    from grouptrail.storage.warehouse import Warehouse

# Decoding a record takes about as long as writing so many rows, and its rows take up to so many times its bytes.
_ROWS_A_RECORD = 4
_BYTES_A_BYTE = 8


class DecodeBatchWriter:
    """Writes micro-batches: every table, then the progress, with each append done once, even if a batch is repeated.

    `records` reads the topic, `app` returns the query's id in the tables' transaction logs, `end_offsets` a
    micro-batch's end offsets by partition, `bounds` the current bounds of the topic's logs, `max_record_bytes` the
    limit that a micro-batch was or is to be decoded with. `log` gets one line for each micro-batch.
    """

    def __init__(
        self,
        warehouse: Warehouse,
        *,
        records: RecordRanges,
        app: Callable[[], str],
        end_offsets: Callable[[int], Mapping[int, int]],
        bounds: Callable[[], Mapping[int, LogBounds]],
        max_record_bytes: Callable[[int], int],
        log: Log,
    ) -> None:
        self._warehouse = warehouse
        self._records = records
        self._app = app
        self._end_offsets = end_offsets
        self._bounds = bounds
        self._max_record_bytes = max_record_bytes
        self._log = log

    def write(self, batch: int) -> None:
        """Read, decode and write the records of one micro-batch."""
        started = time.monotonic()
        once = Once(self._app(), batch)
        start, end = self._end_offsets(batch - 1), self._end_offsets(batch)
        ranges = self._ranges(start, end)
        records = self._on_driver(ranges)
        report = write_records(
            in_tasks(self._warehouse.session, self._records, ranges) if records is None else records,
            self._warehouse,
            once,
            max_record_bytes=self._max_record_bytes(batch),
            ranges=ranges,
        )
        progress = list(batch_progress(report.counts, start=start, end=end, bounds=self._known_bounds()))
        append_progress(self._warehouse, progress, once)
        self._log(summary(batch, progress, time.monotonic() - started))

    def _ranges(self, start: Mapping[int, int], end: Mapping[int, int]) -> Ranges:
        """Return the offsets to read; of a partition that is new to the query, all from its log's start."""
        bounds = self._bounds() if end.keys() - start.keys() else {}
        return {
            partition: (start[partition] if partition in start else bounds[partition].log_start_offset, end_offset)
            for partition, end_offset in end.items()
        }

    def _on_driver(self, ranges: Ranges) -> DriverRecords | None:
        """Return the records if the driver has room for them; it reads no more than that."""
        count = sum(end - start for start, end in ranges.values())
        if not self._has_room(count):
            return None
        batches, size = [], 0
        for records in self._records.read(ranges):
            batches.append(records)
            size += records.nbytes
            if not self._has_room(count, size):
                return None
        return DriverRecords(batches)

    def _has_room(self, records: int, size_bytes: int = 0) -> bool:
        engine = self._warehouse.choose(rows=_ROWS_A_RECORD * records, size_bytes=_BYTES_A_BYTE * size_bytes)
        return engine == "delta-rs"

    def _known_bounds(self) -> Mapping[int, LogBounds]:
        """Return no bounds if the broker does not answer: the batch's records are read and must be written."""
        try:
            return self._bounds()
        except ClusterError:
            return {}


class Records(Protocol):
    """Records to decode, wherever they are."""

    def append_commits(self, append: Callable[[Rows], None], max_record_bytes: int) -> BatchReport:
        """Decode all records and append the commits; return counts of all rows and, if they are few, the others."""

    def rare_rows(self, report: BatchReport, max_record_bytes: int) -> Mapping[str, Rows]:
        """Return the rows of each table other than that of commits, for a report of `append_commits`."""


@dataclass(frozen=True)
class DriverRecords:
    """Batches of `RECORD_SCHEMA` on the driver."""

    batches: Iterable[pa.RecordBatch]

    def append_commits(self, append: Callable[[Rows], None], max_record_bytes: int) -> BatchReport:
        """Do what `Records` describes."""
        report, commits = TaskReport(), []
        for table, rows in decode_batches(self.batches, max_record_bytes):
            report.count(table, rows)
            if table == COMMITS:
                commits.append(rows)
            else:
                report.rare.setdefault(table, []).append(rows)
        if commits:
            append(pa.Table.from_batches(commits))
        return BatchReport.of({0: report})

    def rare_rows(self, report: BatchReport, max_record_bytes: int) -> Mapping[str, Rows]:  # noqa: ARG002
        """Do what `Records` describes."""
        return report.rare


@dataclass(frozen=True)
class TaskRecords:
    """Records in Spark: rows with the columns of `RECORD_SCHEMA`, or with what `read` makes these of in the tasks."""

    frame: DataFrame
    read: RowsFunction = iter

    def append_commits(self, append: Callable[[Rows], None], max_record_bytes: int) -> BatchReport:
        """Do what `Records` describes."""
        reports = self.frame.sparkSession.sparkContext.accumulator({}, BY_TASK)
        commits = self._rows(COMMITS, commits_reporting(reports, max_record_bytes))
        append(commits)
        if not reports.value:  # they were written before
            commits.records.mapInArrow(commits.function, commits.ddl).write.format("noop").mode("append").save()
        return BatchReport.of(reports.value)

    def rare_rows(self, report: BatchReport, max_record_bytes: int) -> Mapping[str, Rows]:
        """Do what `Records` describes."""
        if not report.too_many:
            return report.rare
        return {
            table: self._rows(table, rows_of(table, max_record_bytes)) for table in filter(report.has, RARE_TABLES)
        }

    def _rows(self, table: str, decode: RowsFunction) -> TaskRows:
        read = self.read  # without the data frame, which tasks cannot have
        return TaskRows(self.frame, lambda given: decode(read(given)), row_ddl(table))


def in_tasks(spark: SparkSession, reader: RecordRanges, ranges: Ranges) -> TaskRecords:
    """Return the records for tasks to read, one for each core.

    Cores are counted for each batch, as a cluster's executors come and go.
    """
    shared = shares(ranges, spark.sparkContext.defaultParallelism)
    return TaskRecords(spark.range(0, len(shared), numPartitions=len(shared)), reading(reader, shared))


def write_records(
    records: Records,
    warehouse: Warehouse,
    once: Once,
    *,
    max_record_bytes: int,
    source: str | None = None,
    ranges: Ranges | None = None,
) -> BatchReport:
    """Decode records and append each to its table.

    Each append is done once for a `once`, which must always have the same records and the same `max_record_bytes`.
    `source` is the column's value, `ranges` are all offsets that were read, if that is known.
    """

    def append(table: str, rows: Rows, shared: Mapping[str, Any]) -> None:
        warehouse.table(table).append(rows, once, shared=shared)

    shared = {"source": source}
    report = records.append_commits(lambda rows: append(COMMITS, rows, shared), max_record_bytes)
    with_time = {**shared, "read_at": datetime.now(UTC)}
    gapless = _gapless(report, ranges or {})
    for table, rows in records.rare_rows(report, max_record_bytes).items():
        marked = _with_gapless(rows, gapless) if ranges and table in OF_GROUPS else rows
        append(table, marked, with_time if marked is not rows else {**with_time, "is_gapless": None})
    return report


def _gapless(report: BatchReport, ranges: Ranges) -> list[int]:
    """Return the partitions of which every offset has a record."""
    counted = {partition: sum(counts.rows.values()) for partition, counts in report.counts.items()}
    return [partition for partition, (start, end) in ranges.items() if counted.get(partition) == end - start]


def _with_gapless(rows: Rows, partitions: list[int]) -> Rows:
    """Return rows with the column `is_gapless`."""

    def column(some: pa.Table | pa.RecordBatch) -> pa.Array:
        return pc.is_in(some["record_partition"], pa.array(partitions, pa.int32()))

    if isinstance(rows, pa.Table):
        return rows.append_column("is_gapless", column(rows))
    assert isinstance(rows, TaskRows)
    function = rows.function

    def marked(given: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for some in function(given):
            yield pa.RecordBatch.from_arrays([*some.columns, column(some)], names=[*some.schema.names, "is_gapless"])

    return TaskRows(rows.records, marked, f"{rows.ddl}, `is_gapless` boolean")


def append_progress(warehouse: Warehouse, progress: Sequence[Mapping[str, Any]], once: Once) -> None:
    """Append rows of `batch_progress` to `ingest_progress`."""
    shared = {"batch_id": once.version, "query_id": once.app, "landed_at": datetime.now(UTC)}
    warehouse.table(PROGRESS).append_rows(({**row, **shared} for row in progress), once)
