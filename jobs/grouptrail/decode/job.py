"""The decode job: one streaming query of the Kafka source, the decoder and the Delta tables.

Spark's Kafka source plans the micro-batches; their records are read by `kafka.record_ranges`, straight into Arrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grouptrail.decode import incomplete_batch, limits
from grouptrail.decode.progress import refuse_other_source
from grouptrail.decode.writer import DecodeBatchWriter
from grouptrail.jobs import DECODE, JobContext
from grouptrail.kafka.offsets_topic import OffsetsTopic
from grouptrail.kafka.record_ranges import RecordRanges
from grouptrail.spark.streams import read_offsets_topic, start_query
from grouptrail.storage.checkpoints import Start
from grouptrail.storage.progress import decoded_to, read_ends, segment_ends

if TYPE_CHECKING:
    from grouptrail.config.model import DecodeConfig
    from grouptrail.storage.following import Query

# A denied read fails at once; a log may have nothing left to read after compaction.
_FIRST_READ_SECONDS = 2.0


def check(context: JobContext[DecodeConfig]) -> None:
    """Check that the topic can be read and the warehouse written, before Spark is started."""
    context.warehouse.check()
    with OffsetsTopic(context.kafka) as topic:
        bounds = topic.bounds()
        filled = (partition for partition, log in bounds.items() if log.last_stable_offset > log.log_start_offset)
        if (partition := next(filled, None)) is not None:
            topic.count_readable(partition, bounds[partition].log_start_offset, seconds=_FIRST_READ_SECONDS)
        topic.answering_group()


def start(context: JobContext[DecodeConfig]) -> Query:
    """Start the query. In: `__consumer_offsets`; out: the decoded tables and `ingest_progress`."""
    warehouse, settings = context.warehouse, context.settings
    warehouse.ensure(DECODE.writes)
    refuse_other_source(warehouse, is_polled=False)
    checkpoint = warehouse.checkpoint(DECODE.name)
    recovered = checkpoint.open(warehouse.tables(DECODE.writes)).get("offsets", {})
    first_offsets = {int(at): offset for at, offset in recovered.items()}
    if not checkpoint.has_finished_batch():
        # What was read from log segments, or before `recover`, is not read again.
        first_offsets = segment_ends(read_ends(warehouse)) | first_offsets
    with OffsetsTopic(context.kafka) as offsets_topic:
        group = offsets_topic.answering_group()
    topic = RecordRanges(context.kafka)
    planned = read_offsets_topic(
        warehouse.session,
        context.kafka,
        topic.partitions(),
        first_offsets,
        group=group,
        max_records_per_batch=settings.max_records_per_batch,
    )
    writer = DecodeBatchWriter(
        warehouse,
        records=topic,
        app=checkpoint.query_id,
        end_offsets=lambda batch: checkpoint.end_offsets(batch) if batch >= 0 else first_offsets,
        bounds=topic.bounds,
        max_record_bytes=limits.apply(checkpoint, settings.max_record_bytes),
        log=context.log,
    )
    return start_query(
        planned,
        checkpoint.query_name,
        checkpoint.folder,
        process=lambda _, batch: writer.write(batch),
        once=context.once,
        every_seconds=settings.trigger_seconds,
    )


def start_after_loss(context: JobContext[DecodeConfig]) -> Start:
    """Return the offsets that have been decoded, after a batch that was interrupted has been completed."""
    ends = incomplete_batch.complete(
        context.warehouse,
        context.kafka,
        decoded_to(read_ends(context.warehouse)),
        max_record_bytes=context.settings.max_record_bytes,
        log=context.log,
    )
    return {"offsets": {str(partition): offset for partition, offset in ends.items()}}
