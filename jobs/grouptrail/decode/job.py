"""The decode job: one streaming query of the Kafka source, the decoder and the Delta tables.

Spark's Kafka source plans the micro-batches; their records are read by `kafka.record_ranges`, straight into Arrow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from grouptrail.decode import incomplete_batch, limits
from grouptrail.decode.progress import refuse_other_source
from grouptrail.decode.writer import DecodeBatchWriter
from grouptrail.jobs import DECODE, Progress, Start
from grouptrail.kafka.offsets_topic import OffsetsTopic
from grouptrail.kafka.record_ranges import RecordRanges
from grouptrail.spark.streams import batch_end_offsets, query_id, read_offsets_topic, start_query
from grouptrail.storage import checkpoints, tables
from grouptrail.storage.progress import decoded_to, read_ends, segment_ends

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from grouptrail.config import Config

# A denied read fails at once; a log may have nothing left to read after compaction.
_FIRST_READ_SECONDS = 2.0


def check(config: Config) -> None:
    """Check that the topic can be read and the warehouse written, before Spark is started."""
    tables.check_warehouse(config)
    with OffsetsTopic(config.kafka_settings()) as topic:
        bounds = topic.bounds()
        filled = (partition for partition, log in bounds.items() if log.last_stable_offset > log.log_start_offset)
        if (partition := next(filled, None)) is not None:
            topic.count_readable(partition, bounds[partition].log_start_offset, seconds=_FIRST_READ_SECONDS)
        topic.answering_group()


def start(spark: SparkSession, config: Config, *, once: bool, report: Callable[[str], None]) -> StreamingQuery:
    """Start the query. In: `__consumer_offsets`; out: the decoded tables and `ingest_progress`."""
    tables.ensure_tables(spark, config, DECODE.writes)
    refuse_other_source(spark, config, is_polled=False)
    begun = checkpoints.begin(spark, config, DECODE.name, DECODE.writes).get("offsets", {})
    begin = {int(at): offset for at, offset in begun.items()}
    if not checkpoints.has_finished_batch(spark, config, DECODE.name):
        # What was read from log segments, or before `recover`, is not read again.
        begin = segment_ends(read_ends(spark, config)) | begin
    topic = RecordRanges(config.kafka_settings())
    planned = read_offsets_topic(spark, config, topic.partitions(), begin, group=topic.answering_group())
    writer = DecodeBatchWriter(
        spark,
        config,
        records=topic,
        app=lambda: query_id(spark, config, DECODE.name),
        end_offsets=lambda batch: batch_end_offsets(spark, config, DECODE.name, batch) if batch >= 0 else begin,
        bounds=topic.bounds,
        report=report,
        max_record_bytes=limits.begin(spark, config),
    )
    return start_query(planned, config, DECODE.name, land=lambda _, batch: writer.land(batch), once=once)


def start_after_loss(spark: SparkSession, config: Config, report: Progress) -> Start:
    """Return the offsets that have been decoded, after a batch that was interrupted has been completed."""
    known = incomplete_batch.complete(spark, config, decoded_to(read_ends(spark, config)), report)
    return {"offsets": {str(partition): offset for partition, offset in known.items()}}
