"""The decoding tasks in Spark's Python workers, and the counts that each reports to the driver.

Each task reads a share of a micro-batch's records from Kafka once, though they feed several tables. Nearly all
records are offset commits, which the task writes to their table. It reports its few other rows and its counts to the
driver, which writes them. If a task has too many other rows for that, it sets `too_many`, and they are read and
decoded again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa
from pyspark import Accumulator, AccumulatorParam, TaskContext

from grouptrail.decode.batch import decode_batches
from grouptrail.decode.schema import COMMITS, RARE_TABLES, TABLES
from grouptrail.kafka.log import Ranges
from grouptrail.storage.files import RowsFunction

if TYPE_CHECKING:
    from grouptrail.kafka.record_ranges import RecordRanges

T = TypeVar("T")

MOST_RARE_BYTES = 16 << 20

_NOTHING = np.iinfo(np.int64)


@dataclass
class PartitionCounts:
    """Counts of one partition's rows: by table, with their lowest offset and range of times (microseconds)."""

    rows: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TABLES, 0))
    first_offset: int = _NOTHING.max
    earliest: int = _NOTHING.max
    latest: int = _NOTHING.min

    def add(self, other: PartitionCounts) -> None:
        """Add the counts of other rows of the same partition."""
        for table, count in other.rows.items():
            self.rows[table] += count
        self.first_offset = min(self.first_offset, other.first_offset)
        self.earliest = min(self.earliest, other.earliest)
        self.latest = max(self.latest, other.latest)


@dataclass
class TaskReport:
    """One task's counts by partition of the topic, and its rows of the rare tables.

    If `too_many` is set, these were too many to send, and `rare` is incomplete.
    """

    counts: dict[int, PartitionCounts] = field(default_factory=dict)
    rare: dict[str, list[pa.RecordBatch]] = field(default_factory=dict)
    rare_bytes: int = 0
    too_many: bool = False

    def count(self, table: str, rows: pa.RecordBatch) -> None:
        """Count rows that the task has decoded for a table."""
        partitions = rows.column("record_partition").to_numpy()
        offsets = rows.column("record_offset").to_numpy()
        times = rows.column("record_at").cast(pa.int64()).to_numpy()
        for partition in np.unique(partitions).tolist():
            own = partitions == partition
            counts = PartitionCounts(
                first_offset=int(offsets[own].min()), earliest=int(times[own].min()), latest=int(times[own].max())
            )
            counts.rows[table] = int(own.sum())
            self.counts.setdefault(partition, PartitionCounts()).add(counts)

    def keep(self, table: str, rows: pa.RecordBatch) -> None:
        """Keep rows of a rare table while the report is small."""
        self.rare_bytes += rows.nbytes
        self.too_many |= self.rare_bytes > MOST_RARE_BYTES
        if not self.too_many:
            self.rare.setdefault(table, []).append(rows)


Reports = dict[int, TaskReport]


class ByTask(AccumulatorParam[dict[int, T]]):
    """An accumulator of one report for each task: a task that Spark runs twice counts once."""

    def zero(self, value: dict[int, T]) -> dict[int, T]:  # noqa: ARG002
        return {}

    def addInPlace(self, value1: dict[int, T], value2: dict[int, T]) -> dict[int, T]:  # noqa: N802
        value1.update(value2)
        return value1


BY_TASK: ByTask[TaskReport] = ByTask()


def shares(ranges: Ranges, count: int) -> list[dict[int, tuple[int, int]]]:
    """Divide ranges of offsets by partition into at most `count` shares of nearly the same size."""
    total = sum(end - start for start, end in ranges.values())
    parts: list[dict[int, tuple[int, int]]] = [{}]
    left = most = -(-total // count)
    for partition, (start, end) in sorted(ranges.items()):
        at = start
        while at < end:
            if not left:
                parts.append({})
                left = most
            upto = min(end, at + left)
            parts[-1][partition] = (at, upto)
            left -= upto - at
            at = upto
    return parts


def reading(reader: RecordRanges, shared: Sequence[Ranges]) -> RowsFunction:
    """Return a function for `DataFrame.mapInArrow` that reads the share of each number it gets."""

    def records(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with reader:
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    yield from reader.read(shared[number])

    return records


def commits_reporting(reports: Accumulator[Reports], max_record_bytes: int) -> RowsFunction:
    """Return a function for `DataFrame.mapInArrow` that yields rows of `offset_commits` and reports the others."""

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        report = TaskReport()
        for table, decoded in decode_batches(batches, max_record_bytes):
            report.count(table, decoded)
            if table == COMMITS:
                yield decoded
            else:
                report.keep(table, decoded)
        context = TaskContext.get()
        assert context is not None
        reports.add({context.partitionId(): report})

    return rows


def rows_of(table: str, max_record_bytes: int) -> RowsFunction:
    """Return a function for `DataFrame.mapInArrow` that yields the rows of one table."""

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return (decoded for name, decoded in decode_batches(batches, max_record_bytes) if name == table)

    return rows


PACKED_DDL = "table string, rows bigint, packed binary"


def packed(max_record_bytes: int) -> RowsFunction:
    """Return a function for `DataFrame.mapInArrow` that yields rows of all tables, many in each of `PACKED_DDL`."""

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        compressed = pa.ipc.IpcWriteOptions(compression="zstd")
        for table, decoded in decode_batches(batches, max_record_bytes):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, decoded.schema, options=compressed) as stream:
                stream.write(decoded)
            yield pa.RecordBatch.from_pydict(
                {"table": [table], "rows": [len(decoded)], "packed": [sink.getvalue().to_pybytes()]}
            )

    return rows


def unpacked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows in those of `PACKED_DDL`, which are all of one table: a function for `DataFrame.mapInArrow`."""
    for batch in batches:
        for rows in batch.column("packed"):
            yield from pa.ipc.open_stream(rows.as_buffer())


@dataclass(frozen=True)
class BatchReport:
    """The combined reports of all tasks of a micro-batch."""

    counts: dict[int, PartitionCounts]
    rare: dict[str, pa.Table]
    too_many: bool

    @classmethod
    def of(cls, reports: Reports) -> BatchReport:
        """Combine the tasks' reports; a partition of the topic may be read by several tasks."""
        counts: dict[int, PartitionCounts] = {}
        for report in reports.values():
            for partition, of_task in report.counts.items():
                counts.setdefault(partition, PartitionCounts()).add(of_task)
        rare = {
            table: pa.Table.from_batches(batches)
            for table in RARE_TABLES
            if (batches := [batch for report in reports.values() for batch in report.rare.get(table, [])])
        }
        return cls(counts, rare, any(report.too_many for report in reports.values()))

    def has(self, table: str) -> bool:
        """Return whether the micro-batch has rows of the table."""
        return any(counted.rows[table] for counted in self.counts.values())
