"""Write decoded records: a micro-batch's rows to each table, then its progress, each append exactly once."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from grouptrail.decode.progress import batch_progress, summary
from grouptrail.decode.schema import COMMITS, RARE_TABLES, row_ddl, row_schema
from grouptrail.decode.tasks import BY_TASK, BatchReport, commits_reporting, rows_of
from grouptrail.kafka.errors import ClusterError
from grouptrail.kafka.log import LogBounds
from grouptrail.spark.streams import interpret
from grouptrail.storage import tables
from grouptrail.storage.files import Rows
from grouptrail.storage.progress import PROGRESS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from grouptrail.config import Config

# By default Spark computes a batch's size after each record, which takes longer than all other work on the record.
# So few of the largest records that Kafka accepts by default, 1 MB, are at most 1 GB together.
_BATCHES = {
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1024",
}

_FEW_RECORDS = 50_000


def in_few_tasks(spark: SparkSession, records: DataFrame, *, is_small: bool) -> DataFrame:
    """Return the records in one task per core, those of a small batch in one; each task needs a Python worker.

    Cores are counted for each batch, as a cluster's executors come and go.
    """
    return records.coalesce(1 if is_small else spark.sparkContext.defaultParallelism)


class DecodeBatchWriter:
    """Writes micro-batches: every table, then the progress, with each append done once, even if a batch is repeated.

    `app` returns the query's id in the tables' transaction logs, `end_offsets` a micro-batch's end offsets by
    partition, `bounds` the current bounds of the topic's logs, `max_record_bytes` the limit that a micro-batch was or
    is to be decoded with (default: the configured one).
    """

    def __init__(
        self,
        spark: SparkSession,
        config: Config,
        *,
        app: Callable[[], str],
        end_offsets: Callable[[int], Mapping[int, int]],
        bounds: Callable[[], Mapping[int, LogBounds]],
        report: Callable[[str], None],
        max_record_bytes: Callable[[int], int | None] = lambda _batch: None,
    ) -> None:
        self._spark = spark
        self._config = config
        self._app = app
        self._end_offsets = end_offsets
        self._bounds = bounds
        self._report = report
        self._max_record_bytes = max_record_bytes

    def land(self, records: DataFrame, batch: int) -> None:
        """Write one micro-batch of records (record_partition, record_offset, record_at, key, value)."""
        started = time.monotonic()
        app = self._app()
        start, end = self._end_offsets(batch - 1), self._end_offsets(batch)
        set_batches(records.sparkSession)
        most = sum(offset - start.get(partition, 0) for partition, offset in end.items())
        is_small = most < _FEW_RECORDS
        interpret(records.sparkSession, is_small=is_small)
        found = land_records(
            in_few_tasks(self._spark, records, is_small=is_small),
            self._config,
            app=app,
            batch=batch,
            max_record_bytes=self._max_record_bytes(batch),
        )
        progress = list(
            batch_progress(
                found.landed,
                start=start,
                end=end,
                bounds=self._known_bounds(),
            )
        )
        append_progress(self._spark, self._config, progress, app=app, batch=batch)
        self._report(summary(batch, progress, time.monotonic() - started))

    def _known_bounds(self) -> Mapping[int, LogBounds]:
        """Return no bounds if the broker does not answer: the batch's records are read and must be written."""
        try:
            return self._bounds()
        except ClusterError:
            return {}


def set_batches(spark: SparkSession) -> None:
    """Set how many records Spark passes to a decoding task at a time."""
    for name, value in _BATCHES.items():
        spark.conf.set(name, value)


def append_progress(
    spark: SparkSession, config: Config, progress: Sequence[Mapping[str, Any]], *, app: str, batch: int
) -> None:
    """Append rows of `batch_progress` to `ingest_progress`."""
    shared = {"batch_id": batch, "query_id": app, "landed_at": datetime.now(UTC)}
    rows = pa.Table.from_pylist([{**row, **shared} for row in progress], row_schema(PROGRESS))
    tables.append(spark, rows, config, PROGRESS, app=app, version=batch)


def land_records(
    records: DataFrame,
    config: Config,
    *,
    app: str,
    batch: int,
    source: str | None = None,
    max_record_bytes: int | None = None,
) -> BatchReport:
    """Decode records (record_partition, record_offset, record_at, key, value) and append each to its table.

    Each append is done once for an `app` and a `batch`, which must always have the same records and the same
    `max_record_bytes` (default: the configured one). `source` is the column's value.
    """
    most = max_record_bytes or config.decode.max_record_bytes
    spark = records.sparkSession
    same: dict[str, Any] = {"source": source}
    reports = spark.sparkContext.accumulator({}, BY_TASK)

    def append_made(table: str, rows: Rows) -> None:
        tables.append_made(records, rows, row_ddl(table), config, table, same=same, app=app, version=batch)

    append_made(COMMITS, commits_reporting(reports, most))
    if not reports.value:  # they were written before
        rows = records.mapInArrow(commits_reporting(reports, most), row_ddl(COMMITS))
        rows.write.format("noop").mode("append").save()
    same["read_at"] = datetime.now(UTC)
    found = BatchReport.of(reports.value)
    for table in RARE_TABLES:
        if found.too_many and found.has(table):
            append_made(table, rows_of(table, most))
        elif found.has(table):
            tables.append(spark, found.rare[table], config, table, same=same, app=app, version=batch)
    return found
