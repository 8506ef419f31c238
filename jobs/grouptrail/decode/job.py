"""The decode job: wires the Kafka source, the decoder and the Delta tables into one streaming query."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from grouptrail import contracts, tables
from grouptrail.decode.progress import batch_progress, summary
from grouptrail.decode.schema import COMMITS, RARE_TABLES, TABLES, row_ddl
from grouptrail.decode.tasks import BY_TASK, BatchReport, commits_reporting, rows_of
from grouptrail.kafka import ClusterError, LogBounds, OffsetsTopic
from grouptrail.streams import batch_end_offsets, query_id, read_offsets_topic, start_query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from grouptrail.config import Config

JOB = "decode"
PROGRESS = "ingest_progress"

# A denied read is told at once; one that finds only what compaction left of a log may find nothing.
_FIRST_READ_SECONDS = 2.0


def check(config: Config) -> None:
    """Whether the topic can be read, and the warehouse written; raises before Spark is started."""
    tables.check_warehouse(config)
    with OffsetsTopic(config) as topic:
        bounds = topic.bounds()
        filled = (partition for partition, log in bounds.items() if log.last_stable_offset > log.log_start_offset)
        if (partition := next(filled, None)) is not None:
            topic.read_some(partition, bounds[partition].log_start_offset, seconds=_FIRST_READ_SECONDS)
        topic.answering_group()


def start(spark: SparkSession, config: Config, *, once: bool, report: Callable[[str], None]) -> StreamingQuery:
    """Starts the query. In: `__consumer_offsets`; out: the decoded tables and `ingest_progress`."""
    for table in (*TABLES, PROGRESS):
        tables.ensure_table(spark, config, table)
    topic = OffsetsTopic(config)
    records = read_offsets_topic(spark, config, topic.partitions(), group=topic.answering_group())
    landing = Landing(
        spark,
        config,
        app=lambda: query_id(spark, config, JOB),
        end_offsets=lambda batch: batch_end_offsets(spark, config, JOB, batch),
        bounds=topic.bounds,
        report=report,
    )
    return start_query(one_task_a_core(spark, records), config, JOB, land=landing.land, once=once)


def one_task_a_core(spark: SparkSession, records: DataFrame) -> DataFrame:
    """Fewer, larger tasks: each of the topic's partitions would otherwise pay for a Python worker of its own."""
    return records.coalesce(spark.sparkContext.defaultParallelism)


class Landing:
    """Lands micro-batches: every table, then the progress; each append once, however often a batch is tried.

    `app` names the query in the tables' transaction log, `end_offsets` says where a micro-batch ends in each
    partition, `bounds` what the broker says of the topic's logs now.
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
    ) -> None:
        self._spark = spark
        self._config = config
        self._app = app
        self._end_offsets = end_offsets
        self._bounds = bounds
        self._report = report

    def land(self, records: DataFrame, batch: int) -> None:
        """One micro-batch of records (record_partition, record_offset, record_at, key, value)."""
        started = time.monotonic()
        app = self._app()
        reports = self._spark.sparkContext.accumulator({}, BY_TASK)
        commits = records.mapInArrow(commits_reporting(reports), row_ddl(COMMITS))
        self._append(COMMITS, commits, app, batch)
        if not reports.value:
            # Delta passes over an append it has already seen, without running its tasks: no task has reported.
            commits.write.format("noop").mode("append").save()
        found = BatchReport.of(reports.value)
        for table in RARE_TABLES:
            if found.has(table):
                self._append(table, self._rare_rows(table, found, records), app, batch)
        progress = list(
            batch_progress(
                found.landed,
                start=self._end_offsets(batch - 1),
                end=self._end_offsets(batch),
                bounds=self._known_bounds(),
            )
        )
        self._append_progress(progress, app, batch)
        self._report(summary(batch, progress, time.monotonic() - started))

    def _rare_rows(self, table: str, found: BatchReport, records: DataFrame) -> DataFrame:
        if found.too_many:
            return records.mapInArrow(rows_of(table), row_ddl(table))
        return self._spark.createDataFrame(found.rare[table], row_ddl(table)).coalesce(1)

    def _append(self, table: str, rows: DataFrame, app: str, batch: int) -> None:
        from pyspark.sql import functions as F

        rows = rows.withColumn("cluster", F.lit(self._config.cluster))
        tables.append(rows, self._config, table, app=app, version=batch)

    def _append_progress(self, progress: list[dict[str, Any]], app: str, batch: int) -> None:
        shared = {"batch_id": batch, "query_id": app, "landed_at": datetime.now(UTC)}
        ddl = contracts.tables()[PROGRESS].ddl(without=("cluster",))
        rows = self._spark.createDataFrame([{**row, **shared} for row in progress], ddl)
        self._append(PROGRESS, rows.coalesce(1), app, batch)

    def _known_bounds(self) -> Mapping[int, LogBounds]:
        """Nothing while the broker does not answer: the batch's records are read, and must land."""
        try:
            return self._bounds()
        except ClusterError:
            return {}
