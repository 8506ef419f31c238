"""The progress of the decode job by partition: rows written, holes and lost records of each micro-batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from grouptrail.decode.schema import TABLES
from grouptrail.decode.times import to_time
from grouptrail.errors import GrouptrailError
from grouptrail.storage.progress import PROGRESS
from grouptrail.storage.schema import ADMIN

if TYPE_CHECKING:
    from grouptrail.decode.tasks import PartitionCounts
    from grouptrail.kafka.log import LogBounds
    from grouptrail.storage.warehouse import Warehouse


def batch_progress(
    counts: Mapping[int, PartitionCounts],
    *,
    start: Mapping[int, int],
    end: Mapping[int, int],
    bounds: Mapping[int, LogBounds],
) -> Iterator[dict[str, Any]]:
    """Yield the rows of `ingest_progress` of one batch, for partitions that are new or have new offsets.

    `counts` are the batch's rows by partition, `start` and `end` its offset range (a partition that is new to the
    query has no start: it begins at its log's start), `bounds` the current bounds of the log (empty if the broker
    does not answer). Raises BatchError for a batch with more rows than offsets, before any later job sees it.
    """
    for partition, end_offset in sorted(end.items()):
        log = bounds.get(partition)
        counted = counts.get(partition)
        rows = counted.rows if counted else dict.fromkeys(TABLES, 0)
        first_read = counted.first_offset if counted else end_offset
        log_start = log.log_start_offset if log else 0
        start_offset = start.get(partition, min(log_start, first_read))
        if partition in start and end_offset == start_offset and counted is None:
            continue
        lost = max(0, min(log_start, first_read) - start_offset)
        holes = end_offset - start_offset - lost - sum(rows.values())
        if holes < 0:
            raise BatchError(
                f"partition {partition} has {sum(rows.values()):,} rows for offsets {start_offset:,} to "
                f"{end_offset:,}: was its topic deleted and created again, or are its checkpoint or tables "
                "copies? Run grouptrail check"
            )
        yield {
            "record_partition": partition,
            "start_offset": start_offset,
            "end_offset": end_offset,
            **rows,
            "holes": holes,
            "lost": lost,
            "earliest_record_at": to_time(counted.earliest // 1000) if counted else None,
            "latest_record_at": to_time(counted.latest // 1000) if counted else None,
            "log_start_offset": log.log_start_offset if log else None,
            "last_stable_offset": log.last_stable_offset if log else None,
            "log_end_offset": log.log_end_offset if log else None,
        }


def summary(batch: int, progress: list[dict[str, Any]], seconds: float) -> str:
    """Return one line of output about a batch that was written."""
    rows = {table: sum(row[table] for row in progress) for table in TABLES}
    total = sum(rows.values())
    lost = sum(row["lost"] for row in progress)
    parts = [f"{count:,} {table.replace('_', ' ')}" for table, count in rows.items() if count]
    holes = sum(row["holes"] for row in progress)
    if holes:
        parts.append(f"{holes:,} holes")
    if lost:
        parts.append(f"{lost:,} LOST: retention removed them before they were read")
    return f"batch {batch}: {total:,} records in {seconds:.1f} s ({', '.join(parts) or 'nothing new'})"


class BatchError(GrouptrailError):
    """A batch has more rows than offsets: rows were written twice, or read from another topic."""


class SourceChangedError(GrouptrailError):
    """The tables have rows of this cluster from another source, whose offsets differ."""


def refuse_other_source(warehouse: Warehouse, *, is_polled: bool) -> None:
    """Raise SourceChangedError if the cluster was polled and its topic is to be read, or the other way round.

    One row is enough: because of this check a cluster never has both.
    """
    rows = warehouse.table(PROGRESS).select("source", "LIMIT 1")
    if any((row["source"] == ADMIN) != is_polled for row in rows):
        had, wanted = ("read from the topic", "polled") if is_polled else ("polled", "read")
        raise SourceChangedError(
            f"cluster {warehouse.cluster} was {had} before, and cannot be {wanted} into the same rows: give it "
            "another name (cluster = ...), or another warehouse and checkpoints"
        )
