"""`grouptrail ingest-segments`: write the records of log segments that the decoded tables do not have yet.

The rows are the same as those of the decode job. A record is skipped if a decoded table has its partition and offset,
so the command can be repeated.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa

from grouptrail.console.progress import Log, waiting
from grouptrail.decode.progress import refuse_other_source
from grouptrail.decode.schema import TABLES
from grouptrail.decode.sources.segments import MAX_BATCH_BYTES, SegmentsError, SegmentSummary, read_partition
from grouptrail.decode.tasks import ByTask
from grouptrail.decode.writer import TaskRecords, write_records
from grouptrail.kafka.record_columns import Record, of_records
from grouptrail.kafka.record_schema import RECORD_DDL
from grouptrail.storage.engines.engine import Once
from grouptrail.storage.engines.retries import TRIES, with_retries
from grouptrail.storage.progress import PROGRESS, counted_records, in_ranges, read_ends
from grouptrail.storage.schema import SEGMENTS

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import DataFrame, SparkSession

    from grouptrail.storage.warehouse import Warehouse

SUMMARY = "segments"
"""The `query_id` of the row of `ingest_progress` about a partition's segments."""

Folders = list[tuple[int, list[Path]]]
"""Partitions, each with the segments of a replica in order (`segments.partition_folders`)."""

_ROWS_A_BATCH = 10_000
_BYTES_A_BATCH = 16 << 20
_FOLDERS_A_TASK_SLOT = 4
_SMALL_BYTES = 64 << 20


def ingest_segments(
    warehouse: Warehouse, folders: Folders, log: Log, *, max_batch_bytes: int, max_record_bytes: int
) -> None:
    """Write the records of some segments, and log the counts.

    The warehouse has a session. Record batches and records have at most so many bytes to be read and to be decoded.
    Raises SegmentsError at the end if parts of the segments could not be read.
    """
    warehouse.ensure((*TABLES, PROGRESS))
    refuse_other_source(warehouse, is_polled=False)
    partitions = len({partition for partition, _ in folders})
    app, total, done = f"{SUMMARY}-{uuid4()}", Outcome(), 0
    for number, wanted in enumerate(_parts(folders, _folders_at_once(warehouse.session))):
        started = time.monotonic()
        with waiting(f"reading the segments of {len(wanted)} partitions"):
            part = [one for one in folders if one[0] in wanted]
            once = Once(f"{app}-{number}", 0)
            outcome = _ingest(
                warehouse, part, once, max_batch_bytes=max_batch_bytes, max_record_bytes=max_record_bytes
            )
        total.add(outcome)
        done += len(wanted)
        log(
            f"{done} of {partitions} partitions: {outcome.read:,} records read, "
            f"{outcome.written:,} landed in {time.monotonic() - started:.1f} s"
        )
        for line in outcome.remarks:
            log(line)
    log(total.summary())
    if total.written:
        log("next: grouptrail rebuild history, while the history job is stopped")
    if total.faults:
        raise SegmentsError(
            f"{total.faults:,} places could not be read (see above); all else was ingested: find another replica's "
            "copy of these segments and ingest that, too"
        )


def _folders_at_once(spark: SparkSession) -> int:
    return spark.sparkContext.defaultParallelism * _FOLDERS_A_TASK_SLOT


def _parts(folders: Folders, at_once: int) -> Iterator[set[int]]:
    """Yield the partitions to read together: so many, or more as long as their segments are small."""
    sizes: defaultdict[int, int] = defaultdict(int)
    for partition, paths in folders:
        sizes[partition] += sum(path.stat().st_size for path in paths)
    part: set[int] = set()
    for partition in sorted(sizes):
        if len(part) >= at_once and sum(map(sizes.__getitem__, part)) + sizes[partition] > _SMALL_BYTES:
            yield part
            part = set()
        part.add(partition)
    yield part


@dataclass
class Outcome:
    """Counts of the records that were read, and remarks about the segments."""

    read: int = 0
    written: int = 0
    aborted: int = 0
    unfinished: int = 0
    behind: int = 0
    later: int = 0
    faults: int = 0
    remarks: list[str] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        """Add the counts of other partitions."""
        for name in ("read", "written", "aborted", "unfinished", "behind", "later", "faults"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def note(self, partition: int, segments: SegmentSummary) -> None:
        """Add the counts and faults of one partition's segments."""
        self.read += segments.records
        self.aborted += segments.aborted
        self.unfinished += segments.unfinished
        self.faults += len(segments.faults) + segments.more_faults
        self.remarks += [str(fault) for fault in segments.faults]
        if segments.more_faults:
            self.remarks.append(f"partition {partition}: {segments.more_faults:,} more places could not be read")
        if segments.cut_off:
            self.remarks.append(
                f"{segments.cut_off}, as after a crash, or in a copy of a segment that was being written"
            )
        if segments.unfinished:
            self.remarks.append(
                f"partition {partition}: a transaction is unfinished from offset {segments.stable:,} on"
            )

    def summary(self) -> str:
        """Return the counts in one line."""
        before = self.read - self.written - self.behind - self.later
        parts = {
            "had landed before": before,
            "of aborted transactions left out": self.aborted,
            "of unfinished transactions left out": self.unfinished,
            "after the start of one left out": self.behind,
            "after the decode job's position left to it": self.later,
        }
        others = "".join(f", {count:,} {what}" for what, count in parts.items() if count)
        return f"{self.written:,} of {self.read:,} records landed{others}"


def _ingest(
    warehouse: Warehouse, folders: Folders, once: Once, *, max_batch_bytes: int, max_record_bytes: int
) -> Outcome:
    """Write the new records of some partitions, then their rows of `ingest_progress`."""
    from pyspark import StorageLevel

    spark = warehouse.session
    reports: Accumulator[dict[int, SegmentSummary]] = spark.sparkContext.accumulator({}, ByTask())
    records = copies = read_segments(spark, folders, reports, max_batch_bytes).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        copies.count()  # reads them, which fills `reports`
        outcome, summaries = Outcome(), {number: reports.value[number] for number in range(len(folders))}
        for number, (partition, _) in enumerate(folders):
            outcome.note(partition, summaries[number])
        readable = _joined({number: partition for number, (partition, _) in enumerate(folders)}, summaries)
        if not readable:
            return outcome
        decoded = read_ends(warehouse).get(None, {})
        ends = {at: min(one.stable, decoded.get(at, 0 if decoded else one.stable)) for at, one in readable.items()}
        if len(folders) > len({partition for partition, _ in folders}):  # replicas hold the same records
            records = copies.dropDuplicates(["record_partition", "record_offset"])
            outcome.read = records.count()
        outcome.behind = _count_from(records, {at: one.stable for at, one in readable.items()})
        outcome.later = _count_from(records, ends) - outcome.behind
        missing = _without_written(warehouse, records.where(_below(ends)), readable)
        missing = missing.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            outcome.written = missing.count()
            if outcome.written:
                new = TaskRecords(missing)
                write_records(new, warehouse, once, max_record_bytes=max_record_bytes, source=SEGMENTS)
        finally:
            missing.unpersist()
    finally:
        copies.unpersist()
    ranges = {at: (one.start or 0, max(one.start or 0, ends[at])) for at, one in readable.items()}
    filled = {at: span for at, span in ranges.items() if span[0] < span[1]}
    with_retries(lambda: _write_progress(warehouse, filled, readable), TRIES)
    return outcome


def read_segments(
    spark: SparkSession,
    folders: Folders,
    reports: Accumulator[dict[int, SegmentSummary]],
    max_batch_bytes: int = MAX_BATCH_BYTES,
) -> DataFrame:
    """Return the committed records with the columns of the topic's; each task reads some folders.

    The folders must exist where the tasks run. `reports` gets the summary of each folder, by its index in the list.
    """
    places = [(number, partition, [str(path) for path in paths]) for number, (partition, paths) in enumerate(folders)]
    spread = spark.sparkContext.parallelize(places, min(len(places), _folders_at_once(spark)))
    files = spark.createDataFrame(spread, "number int, partition int, files array<string>")

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for place in batch.to_pylist():
                summary = SegmentSummary()
                read = read_partition(map(Path, place["files"]), summary, max_batch_bytes)
                yield from _arrow(place["partition"], read)
                reports.add({place["number"]: summary})

    return files.mapInArrow(rows, RECORD_DDL)


def _arrow(partition: int, records: Iterable[Record]) -> Iterator[pa.RecordBatch]:
    waiting: list[Record] = []
    size = 0
    for record in records:
        waiting.append(record)
        size += len(record[2] or b"") + len(record[3] or b"")
        if len(waiting) == _ROWS_A_BATCH or size >= _BYTES_A_BATCH:
            yield of_records(partition, waiting)
            waiting, size = [], 0
    if waiting:
        yield of_records(partition, waiting)


def _without_written(warehouse: Warehouse, records: DataFrame, partitions: Collection[int]) -> DataFrame:
    """Return the records, all of some partitions, that no decoded table has."""
    coordinates = ["record_partition", "record_offset"]
    ours = f"record_partition IN ({_list(partitions)})"
    # Most often there are none, and Spark takes seconds to find that.
    filled = [table for table in warehouse.tables(TABLES) if table.has_rows(ours)]
    if not filled:
        return records
    written = [table.dataframe().where(ours).select(*coordinates) for table in filled]
    return records.join(reduce(type(records).unionByName, written), coordinates, "left_anti").select(*records.columns)


def _joined(partition_of: Mapping[int, int], summaries: Mapping[int, SegmentSummary]) -> dict[int, SegmentSummary]:
    """Combine the summaries of each partition's replicas; partitions without records are left out."""
    joined: dict[int, SegmentSummary] = {}
    for number, one in summaries.items():
        if one.start is None:
            continue
        both = joined.setdefault(partition_of[number], SegmentSummary(start=one.start))
        both.start = min(both.start or 0, one.start)
        both.end, both.stable = max(both.end, one.end), max(both.stable, one.stable)
    return joined


def _below(ends: Mapping[int, int]) -> str:
    parts = (f"record_partition = {partition} AND record_offset < {end}" for partition, end in ends.items())
    return " OR ".join(f"({part})" for part in parts) or "false"


def _count_from(records: DataFrame, ends: Mapping[int, int]) -> int:
    return records.where(f"NOT ({_below(ends)})").count()


# --- rows of ingest_progress -------------------------------------------------------------------------------


def _write_progress(
    warehouse: Warehouse, ranges: Mapping[int, tuple[int, int]], summaries: Mapping[int, SegmentSummary]
) -> None:
    """Write one row for each partition with new records: about its segments and all batches before.

    A row is computed from what the tables have, so that it is right even after an interrupted ingest.
    """
    table = warehouse.table(PROGRESS)
    progress = table.dataframe().where(f"record_partition IN ({_list(ranges) or '-1'})").collect()
    before: dict[int, list[Any]] = {}
    for row in progress:
        before.setdefault(row.record_partition, []).append(row)
    whole = {at: _extent(before.get(at, []), span) for at, span in ranges.items()}
    within = in_ranges({at: (start, end) for at, (start, end, _) in whole.items()})
    counts = {row.record_partition: row.asDict() for row in counted_records(warehouse, TABLES, within).collect()}
    rows = [_row(at, whole[at], before.get(at, []), counts.get(at, {}), summaries[at]) for at in ranges]
    changed = [row for row in rows if not _is_recorded(before.get(row["record_partition"], []), row)]
    if new := [row for row in changed if row["record_partition"] not in before]:
        table.append_rows(new)
    if old := [row for row in changed if row["record_partition"] in before]:
        theirs = f"record_partition IN ({_list(row['record_partition'] for row in old)})"
        table.replace_where(old, theirs)


def _list(partitions: Iterable[int]) -> str:
    return ", ".join(map(str, partitions))


def _extent(before: Collection[Any], span: tuple[int, int]) -> tuple[int, int, int]:
    """Return the start and end of what was read of a partition, and how many offsets in between were not read."""
    read = sorted([*((row.start_offset + row.lost, row.end_offset) for row in before), span])
    start = min(read[0][0], *(row.start_offset for row in before)) if before else span[0]
    covered, upto = 0, start
    for first, end in read:
        covered += max(0, end - max(first, upto))
        upto = max(upto, end)
    return start, upto, upto - start - covered


def _row(
    partition: int,
    whole: tuple[int, int, int],
    before: Collection[Any],
    counted: Mapping[str, Any],
    summary: SegmentSummary,
) -> dict[str, Any]:
    start, end, lost = whole
    counts = {table: counted.get(table, 0) for table in TABLES}
    newest = max(before, key=lambda row: row.end_offset, default=None)
    if newest is None or newest.end_offset < end:
        log = {"log_start_offset": summary.start, "last_stable_offset": summary.stable, "log_end_offset": summary.end}
    else:
        log = {name: newest[name] for name in ("log_start_offset", "last_stable_offset", "log_end_offset")}
    return {
        "record_partition": partition,
        "batch_id": -1,
        "query_id": SUMMARY,
        "start_offset": start,
        "end_offset": end,
        **counts,
        "holes": end - start - lost - sum(counts.values()),
        "lost": lost,
        "earliest_record_at": counted.get("earliest_record_at"),
        "latest_record_at": counted.get("latest_record_at"),
        **log,
        "landed_at": datetime.now(UTC),
        "source": None if any(row.source is None for row in before) else SEGMENTS,
    }


def _is_recorded(before: Collection[Any], row: Mapping[str, Any]) -> bool:
    """Return whether the rows before add up to the same."""
    if not before:
        return False
    sums = {name: sum(one[name] for one in before) for name in (*TABLES, "holes", "lost")}
    extent = (min(one.start_offset for one in before), max(one.end_offset for one in before))
    return extent == (row["start_offset"], row["end_offset"]) and all(sums[name] == row[name] for name in sums)
