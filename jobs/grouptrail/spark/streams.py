"""Structured streaming: the jobs' sources, and the start of their queries."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from grouptrail.kafka.coordinator import OFFSETS_TOPIC
from grouptrail.spark.kafka_login import prepare_login

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

stopping = threading.Event()
"""Set while the queries of this process are being stopped: a batch that waits for something ends then."""

# What Spark's Kafka source calls a log's start.
_EARLIEST = -2


def read_offsets_topic(
    spark: SparkSession,
    kafka: Mapping[str, str],
    partitions: Sequence[int],
    first_offsets: Mapping[int, int] | None = None,
    *,
    group: str,
    max_records_per_batch: int,
) -> DataFrame:
    """Plan micro-batches of the topic: first from its start or the `first_offsets`, then from the checkpoint.

    `kafka` are settings of Kafka's client. Out: the columns of Spark's Kafka source; committed records only. The rows
    need not be read: the checkpoint has the range of each batch. Partitions are assigned, so that reading leaves no
    consumer group behind in the topic that is read. Before the first batch Spark's driver requests the committed
    offsets of `group`, and waits forever if no coordinator answers.
    """
    from grouptrail.kafka.java_client import java_settings

    java = java_settings(kafka, is_local=str(spark.sparkContext.master).startswith("local"))
    prepare_login(spark, java)
    starts = {str(partition): (first_offsets or {}).get(partition, _EARLIEST) for partition in partitions}
    options = {
        **kafka_options(java),
        "kafka.isolation.level": "read_committed",
        "kafka.group.id": group,
        "assign": json.dumps({OFFSETS_TOPIC: list(partitions)}),
        "failOnDataLoss": "false",
        "startingOffsets": json.dumps({OFFSETS_TOPIC: starts}),
        "maxOffsetsPerTrigger": str(max_records_per_batch),
    }
    return spark.readStream.format("kafka").options(**options).load()


def kafka_options(settings: Mapping[str, str]) -> dict[str, str]:
    """Return settings of Kafka's client as options of a source of Spark's, secrets in clear."""
    return {f"kafka.{name}": value for name, value in settings.items()}


def interpret(spark: SparkSession) -> None:
    """Let a session interpret its plans: for batches of few rows compiling them takes longer."""
    spark.conf.set("spark.sql.codegen.wholeStage", "false")
    spark.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")


def own_session(spark: SparkSession) -> SparkSession:
    """Return a session with settings of its own, as Spark makes one for each query."""
    from pyspark.sql import SparkSession

    return SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())


def read_log_offsets(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """Read the bounds of partitions' logs as a stream, one sample for each trigger.

    `options` are those of `log_offsets.source`, which must be registered.
    """
    return spark.readStream.format("kafka_log_offsets").options(**options).load()


def read_ticks(spark: SparkSession) -> DataFrame:
    """Read one row for each micro-batch, one in all with Trigger.AvailableNow: for jobs that poll."""
    return spark.readStream.format("rate-micro-batch").options(rowsPerBatch=1, numPartitions=1).load()


def start_query(
    rows: DataFrame,
    name: str,
    checkpoint: str,
    *,
    process: Callable[[DataFrame, int], None],
    once: bool,
    every_seconds: float,
) -> StreamingQuery:
    """Start a query with a checkpoint's folder.

    `process` gets each micro-batch and its number, after a failure again with the same number. With `once` the query
    ends after the data that is there now (Trigger.AvailableNow). Otherwise it runs until it is stopped, with a
    micro-batch every `every_seconds`.
    """
    writer = rows.writeStream.queryName(name).foreachBatch(process).option("checkpointLocation", checkpoint)
    if once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{every_seconds} seconds").start()
