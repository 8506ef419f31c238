"""Structured streaming: the jobs' sources, and the start of their queries."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from grouptrail.kafka.coordinator import OFFSETS_TOPIC
from grouptrail.spark import hadoop

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from grouptrail.config import Config

stopping = threading.Event()
"""Set while the queries of this process are being stopped: a batch that waits for something ends then."""

# What Spark's Kafka source calls a log's start.
_EARLIEST = -2


def read_offsets_topic(
    spark: SparkSession,
    config: Config,
    partitions: Sequence[int],
    begin: Mapping[int, int] | None = None,
    *,
    group: str,
) -> DataFrame:
    """Plan micro-batches of the topic: first from its start or the offsets `begin`, then from the checkpoint.

    Out: the columns of Spark's Kafka source; committed records only. The rows need not be read: `batch_end_offsets`
    has the range of each batch. Partitions are assigned, so that reading leaves no consumer group behind in the topic
    that is read. Before the first batch Spark's driver requests the committed offsets of `group`, and waits forever
    if no coordinator answers.
    """
    starts = {str(partition): (begin or {}).get(partition, _EARLIEST) for partition in partitions}
    options = {
        **config.spark_kafka_options(),
        "kafka.isolation.level": "read_committed",
        "kafka.group.id": group,
        "assign": json.dumps({OFFSETS_TOPIC: list(partitions)}),
        "failOnDataLoss": "false",
        "startingOffsets": json.dumps({OFFSETS_TOPIC: starts}),
        "maxOffsetsPerTrigger": str(config.decode.max_records_per_batch),
    }
    return spark.readStream.format("kafka").options(**options).load()


def interpret(spark: SparkSession, *, is_small: bool) -> None:
    """Set whether a session interprets its plans: for a batch of few rows compiling them takes longer."""
    spark.conf.set("spark.sql.codegen.wholeStage", str(not is_small).lower())
    spark.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN" if is_small else "FALLBACK")


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
    config: Config,
    job: str,
    *,
    land: Callable[[DataFrame, int], None],
    once: bool,
    every_seconds: float | None = None,
) -> StreamingQuery:
    """Start a job's query; `land` gets each micro-batch and its number, after a failure again with the same number.

    With `once` the query ends after the data that is there now (Trigger.AvailableNow). Otherwise it runs until it is
    stopped, with a micro-batch every `every_seconds` (default: `decode.trigger_seconds`).
    """
    named = rows.writeStream.queryName(f"{config.cluster}/{job}")
    writer = named.foreachBatch(land).option("checkpointLocation", config.checkpoint_path(job))
    if once:
        return writer.trigger(availableNow=True).start()
    seconds = config.decode.trigger_seconds if every_seconds is None else every_seconds
    return writer.trigger(processingTime=f"{seconds} seconds").start()


def batch_end_offsets(spark: SparkSession, config: Config, job: str, batch: int) -> Mapping[int, int]:
    """Return a micro-batch's end offsets by partition from the query's offset log; none for a batch before the first.

    The log (`offsets/<batch>` in the checkpoint) is written before a batch runs: a line with its format, one with
    the batch's settings, then one for each source.
    """
    if batch < 0:
        return {}
    text = read_checkpoint_file(spark, config, job, f"offsets/{batch}")
    by_topic = json.loads(text.splitlines()[2])
    return {int(partition): offset for partition, offset in by_topic[OFFSETS_TOPIC].items()}


def query_id(spark: SparkSession, config: Config, job: str) -> str:
    """Return the query's id, which is kept in its checkpoint."""
    identity: str = json.loads(read_checkpoint_file(spark, config, job, "metadata"))["id"]
    return identity


def read_checkpoint_file(spark: SparkSession, config: Config, job: str, name: str) -> str:
    """Return the text of a file of a job's checkpoint."""
    text = hadoop.read_text(spark, f"{config.checkpoint_path(job)}/{name}")
    if text is None:
        raise FileNotFoundError(f"{config.checkpoint_path(job)}/{name}")
    return text
