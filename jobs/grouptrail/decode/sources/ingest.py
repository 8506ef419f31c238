"""`grouptrail ingest-segments`: write the records of log segments that the decoded tables do not have yet.

The rows are the same as those of the decode job. A record is skipped if a decoded table has its partition and offset,
so the command can be repeated.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

import pyarrow as pa

from grouptrail.console.progress import print_now, waiting
from grouptrail.decode.progress import refuse_other_source
from grouptrail.decode.schema import TABLES
from grouptrail.decode.sources.segments import (
    MAX_BATCH_BYTES,
    SegmentRecord,
    SegmentsError,
    SegmentSummary,
    partition_folders,
    read_partition,
)
from grouptrail.decode.tasks import ByTask
from grouptrail.decode.writer import land_records
from grouptrail.kafka.record_schema import RECORD_DDL, RECORD_SCHEMA
from grouptrail.spark.session import session
from grouptrail.storage import tables
from grouptrail.storage.progress import PROGRESS, counted_records, in_ranges, read_ends
from grouptrail.storage.schema import SEGMENTS

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import DataFrame, SparkSession

    from grouptrail.config import Config

SUMMARY = "segments"
"""The `query_id` of the row of `ingest_progress` about a partition's segments."""

Folders = list[tuple[int, list[Path]]]
Report = Callable[[str], None]

_ROWS_A_BATCH = 10_000
_BYTES_A_BATCH = 16 << 20
_FOLDERS_A_TASK_SLOT = 4
_SMALL_BYTES = 64 << 20


def ingest_segments(config: Config, folder: Path, report: Report = print_now) -> None:
    """Write the records of the segments below a folder, and report the counts.

    Raises SegmentsError if there are none, and at the end if parts of them could not be read.
    """
    folders = partition_folders(folder)
    tables.check_warehouse(config)
    with session(config, "grouptrail-ingest-segments", report, is_varied=True) as spark:
        ingest(spark, config, folders, report)


def ingest(spark: SparkSession, config: Config, folders: Folders, report: Report) -> None:
    """Do `ingest_segments` in an existing session."""
    tables.ensure_tables(spark, config, (*TABLES, PROGRESS))
    refuse_other_source(spark, config, is_polled=False)
    partitions = len({partition for partition, _ in folders})
    app, total, done = f"{SUMMARY}-{uuid4()}", Outcome(), 0
    for number, wanted in enumerate(_parts(folders, _folders_at_once(spark))):
        started = time.monotonic()
        with waiting(f"reading the segments of {len(wanted)} partitions"):
            outcome = _ingest(spark, config, [one for one in folders if one[0] in wanted], f"{app}-{number}")
        total.add(outcome)
        done += len(wanted)
        report(
            f"{done} of {partitions} partitions: {outcome.read:,} records read, "
            f"{outcome.landed:,} landed in {time.monotonic() - started:.1f} s"
        )
        for line in outcome.remarks:
            report(line)
    report(total.summary())
    if total.landed:
        report("next: grouptrail rebuild history, while the history job is stopped")
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
    landed: int = 0
    aborted: int = 0
    unfinished: int = 0
    behind: int = 0
    later: int = 0
    faults: int = 0
    remarks: list[str] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        """Add the counts of other partitions."""
        for name in ("read", "landed", "aborted", "unfinished", "behind", "later", "faults"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def note(self, partition: int, found: SegmentSummary) -> None:
        """Add the counts and faults of one partition's segments."""
        self.read += found.records
        self.aborted += found.aborted
        self.unfinished += found.unfinished
        self.faults += len(found.faults) + found.more_faults
        self.remarks += [str(fault) for fault in found.faults]
        if found.more_faults:
            self.remarks.append(f"partition {partition}: {found.more_faults:,} more places could not be read")
        if found.cut_off:
            self.remarks.append(
                f"{found.cut_off}, as after a crash, or in a copy of a segment that was being written"
            )
        if found.unfinished:
            self.remarks.append(f"partition {partition}: a transaction is unfinished from offset {found.stable:,} on")

    def summary(self) -> str:
        """Return the counts in one line."""
        before = self.read - self.landed - self.behind - self.later
        parts = {
            "had landed before": before,
            "of aborted transactions left out": self.aborted,
            "of unfinished transactions left out": self.unfinished,
            "after the start of one left out": self.behind,
            "after the decode job's position left to it": self.later,
        }
        others = "".join(f", {count:,} {what}" for what, count in parts.items() if count)
        return f"{self.landed:,} of {self.read:,} records landed{others}"


def _ingest(spark: SparkSession, config: Config, folders: Folders, app: str) -> Outcome:
    """Write the new records of some partitions, then their rows of `ingest_progress`."""
    from pyspark import StorageLevel

    reports: Accumulator[dict[int, SegmentSummary]] = spark.sparkContext.accumulator({}, ByTask())
    records = copies = read_segments(spark, folders, reports, config.decode.max_segment_batch_bytes).persist(
        StorageLevel.MEMORY_AND_DISK
    )
    try:
        copies.count()  # reads them, which fills `reports`
        outcome, found = Outcome(), {number: reports.value[number] for number in range(len(folders))}
        for number, (partition, _) in enumerate(folders):
            outcome.note(partition, found[number])
        readable = _joined({number: partition for number, (partition, _) in enumerate(folders)}, found)
        if not readable:
            return outcome
        decoded = read_ends(spark, config).get(None, {})
        ends = {at: min(one.stable, decoded.get(at, 0 if decoded else one.stable)) for at, one in readable.items()}
        if len(folders) > len({partition for partition, _ in folders}):  # replicas hold the same records
            records = copies.dropDuplicates(["record_partition", "record_offset"])
            outcome.read = records.count()
        outcome.behind = _count_from(records, {at: one.stable for at, one in readable.items()})
        outcome.later = _count_from(records, ends) - outcome.behind
        fresh = without_landed(config, records.where(_below(ends)), readable)
        fresh = fresh.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            outcome.landed = fresh.count()
            if outcome.landed:
                land_records(fresh, config, app=app, batch=0, source=SEGMENTS)
        finally:
            fresh.unpersist()
    finally:
        copies.unpersist()
    ranges = {at: (one.start or 0, max(one.start or 0, ends[at])) for at, one in readable.items()}
    filled = {at: span for at, span in ranges.items() if span[0] < span[1]}
    tables.with_retries(lambda: _write_progress(spark, config, filled, readable), tables.TRIES)
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
                found = SegmentSummary()
                read = read_partition(map(Path, place["files"]), found, max_batch_bytes)
                yield from _arrow(place["partition"], read)
                reports.add({place["number"]: found})

    return files.mapInArrow(rows, RECORD_DDL)


def _arrow(partition: int, records: Iterable[SegmentRecord]) -> Iterator[pa.RecordBatch]:
    waiting: list[SegmentRecord] = []
    size = 0

    def batch() -> pa.RecordBatch:
        offsets, times, keys, values, are_transactional = zip(*waiting, strict=True)
        micros = pa.array([time * 1000 for time in times], pa.int64()).cast(RECORD_SCHEMA.field("record_at").type)
        columns = [pa.array([partition] * len(offsets), pa.int32()), pa.array(offsets, pa.int64()), micros]
        columns += [
            pa.array(keys, pa.binary()),
            pa.array(values, pa.binary()),
            pa.array(are_transactional, pa.bool_()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)

    for record in records:
        waiting.append(record)
        size += len(record[2] or b"") + len(record[3] or b"")
        if len(waiting) == _ROWS_A_BATCH or size >= _BYTES_A_BATCH:
            yield batch()
            waiting, size = [], 0
    if waiting:
        yield batch()


def without_landed(config: Config, records: DataFrame, partitions: Collection[int]) -> DataFrame:
    """Return the records, all of some partitions, that no decoded table has."""
    at = ["record_partition", "record_offset"]
    spark, ours = records.sparkSession, f"record_partition IN ({', '.join(map(str, partitions))})"
    # Most often nothing has landed, and Spark takes seconds to find that.
    filled = [table for table in TABLES if tables.has_rows(spark, config, table, ours)]
    if not filled:
        return records
    landed = [tables.read(spark, config, table).where(ours).select(*at) for table in filled]
    return records.join(reduce(type(records).unionByName, landed), at, "left_anti").select(*records.columns)


def _joined(partition_of: Mapping[int, int], found: Mapping[int, SegmentSummary]) -> dict[int, SegmentSummary]:
    """Combine the summaries of each partition's replicas; partitions without records are left out."""
    joined: dict[int, SegmentSummary] = {}
    for number, one in found.items():
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


class _Row(Protocol):
    """A row of `ingest_progress`, with the columns that `_extent` reads."""

    start_offset: int
    end_offset: int
    lost: int


def _write_progress(
    spark: SparkSession, config: Config, ranges: Mapping[int, tuple[int, int]], found: Mapping[int, SegmentSummary]
) -> None:
    """Write one row for each partition with new records: about its segments and all batches before.

    A row is computed from what the tables have, so that it is right even after an interrupted ingest.
    """
    progress = tables.read(spark, config, PROGRESS).where(f"record_partition IN ({_list(ranges) or '-1'})").collect()
    before: dict[int, list[Any]] = {}
    for row in progress:
        before.setdefault(row.record_partition, []).append(row)
    whole = {at: _extent(before.get(at, []), span) for at, span in ranges.items()}
    within = in_ranges({at: (start, end) for at, (start, end, _) in whole.items()})
    landed = {row.record_partition: row.asDict() for row in counted_records(spark, config, TABLES, within).collect()}
    rows = [_row(at, whole[at], before.get(at, []), landed.get(at, {}), found[at]) for at in ranges]
    changed = [
        {**row, "cluster": config.cluster}
        for row in rows
        if not _is_recorded(before.get(row["record_partition"], []), row)
    ]
    if new := [row for row in changed if row["record_partition"] not in before]:
        tables.append_new(spark, new, config, PROGRESS)
    if old := [row for row in changed if row["record_partition"] in before]:
        theirs = f"record_partition IN ({_list(row['record_partition'] for row in old)})"
        tables.replace_where(spark, old, theirs, config, PROGRESS)


def _list(partitions: Iterable[int]) -> str:
    return ", ".join(map(str, partitions))


def _extent(before: Collection[_Row], span: tuple[int, int]) -> tuple[int, int, int]:
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
    landed: Mapping[str, Any],
    found: SegmentSummary,
) -> dict[str, Any]:
    start, end, lost = whole
    counts = {table: landed.get(table, 0) for table in TABLES}
    newest = max(before, key=lambda row: row.end_offset, default=None)
    if newest is None or newest.end_offset < end:
        log = {"log_start_offset": found.start, "last_stable_offset": found.stable, "log_end_offset": found.end}
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
        "earliest_record_at": landed.get("earliest_record_at"),
        "latest_record_at": landed.get("latest_record_at"),
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
