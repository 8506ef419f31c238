"""The decode job: wires the Kafka source, the decoder and the Delta tables into one streaming query."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from grouptrail import contracts, tables
from grouptrail.decode.batch import decode_batches
from grouptrail.decode.progress import batch_progress, landed_by_partition, summary
from grouptrail.decode.schema import COMMITS, RARE_TABLES, RECORD_COLUMNS, TABLES, decoded_ddl, own_columns
from grouptrail.kafka import ClusterError, LogBounds, OffsetsTopic
from grouptrail.streams import batch_end_offsets, query_id, read_offsets_topic, start_query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from grouptrail.config import Config

JOB = "decode"
PROGRESS = "ingest_progress"


def check(config: Config) -> None:
    """Whether the topic can be read at all; raises before Spark is started."""
    with OffsetsTopic(config) as topic:
        topic.partitions()


def start(spark: SparkSession, config: Config, *, once: bool, report: Callable[[str], None]) -> StreamingQuery:
    """Starts the query. In: `__consumer_offsets`; out: the decoded tables and `ingest_progress`."""
    for table in (*TABLES, PROGRESS):
        tables.ensure_table(spark, config, table)
    topic = OffsetsTopic(config)
    records = read_offsets_topic(spark, config, topic.partitions())
    landing = Landing(spark, config, topic, report)
    return start_query(decode(spark, records), config, JOB, land=landing.land, once=once)


def decode(spark: SparkSession, records: DataFrame) -> DataFrame:
    """Records (record_partition, record_offset, record_at, key, value) to rows of `schema.decoded()`.

    One task a core: each of the topic's partitions would otherwise pay for a Python worker of its own.
    """
    return records.coalesce(spark.sparkContext.defaultParallelism).mapInArrow(decode_batches, decoded_ddl())


def rows_of(table: str, decoded: DataFrame, cluster: str) -> DataFrame:
    """One table's rows among the decoded, with its own columns."""
    from pyspark.sql import functions as F

    columns = own_columns(COMMITS).names if table == COMMITS else [f"{table}.*"]
    return decoded.where(F.col("landing_table") == table).select(
        F.lit(cluster).alias("cluster"), *RECORD_COLUMNS, *columns
    )


class Landing:
    """Lands micro-batches: every table, then the progress; each append once, however often a batch is tried."""

    def __init__(
        self, spark: SparkSession, config: Config, topic: OffsetsTopic, report: Callable[[str], None]
    ) -> None:
        self._spark = spark
        self._config = config
        self._topic = topic
        self._report = report

    def land(self, decoded: DataFrame, batch: int) -> None:
        """One micro-batch. The rows are kept while the tables are written, so that Kafka is read once."""
        from pyspark import StorageLevel

        started = time.monotonic()
        app = query_id(self._spark, self._config, JOB)
        decoded = decoded.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            self._append(COMMITS, decoded, app, batch)
            landed = landed_by_partition(decoded)
            for table in RARE_TABLES:
                if any(found.rows[table] for found in landed.values()):
                    self._append(table, decoded, app, batch)
        finally:
            decoded.unpersist()
        progress = list(
            batch_progress(
                landed,
                start=batch_end_offsets(self._spark, self._config, JOB, batch - 1),
                end=batch_end_offsets(self._spark, self._config, JOB, batch),
                bounds=self._bounds(),
            )
        )
        self._append_progress(progress, app, batch)
        self._report(summary(batch, progress, time.monotonic() - started))

    def _append(self, table: str, decoded: DataFrame, app: str, batch: int) -> None:
        rows = rows_of(table, decoded, self._config.cluster)
        tables.append(rows, self._config, table, app=app, version=batch)

    def _append_progress(self, progress: list[dict[str, Any]], app: str, batch: int) -> None:
        shared = {
            "cluster": self._config.cluster,
            "batch_id": batch,
            "query_id": app,
            "landed_at": datetime.now(UTC),
        }
        ddl = contracts.tables()[PROGRESS].ddl()
        rows = self._spark.createDataFrame([{**row, **shared} for row in progress], ddl)
        tables.append(rows.coalesce(1), self._config, PROGRESS, app=app, version=batch)

    def _bounds(self) -> Mapping[int, LogBounds]:
        """Nothing while the broker does not answer: the batch's records are read, and must land."""
        try:
            return self._topic.bounds()
        except ClusterError:
            return {}
