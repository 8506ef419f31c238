"""What Spark's Python workers run, and what each task sends home beside its rows.

A micro-batch is read from Kafka once, though it feeds several tables: nearly all records are offset commits, which
flow through Spark into their table; each task reports its few other rows, and what it counted, to the driver,
which lands them. A task whose other rows are too many for that says so, and they are decoded again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import pyarrow as pa
from pyspark import Accumulator, AccumulatorParam, TaskContext

from grouptrail.decode.batch import decode_batches
from grouptrail.decode.schema import COMMITS, RARE_TABLES, TABLES
from grouptrail.storage.files import Rows

T = TypeVar("T")

MOST_RARE_BYTES = 16 << 20

_NOTHING = np.iinfo(np.int64)


@dataclass
class Landed:
    """The rows of one partition of the topic: how many for each table, the lowest offset among them, and between
    which times (microseconds) they were written."""

    rows: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TABLES, 0))
    first_offset: int = _NOTHING.max
    earliest: int = _NOTHING.max
    latest: int = _NOTHING.min

    def add(self, other: Landed) -> None:
        """Adds other rows of the same partition."""
        for table, count in other.rows.items():
            self.rows[table] += count
        self.first_offset = min(self.first_offset, other.first_offset)
        self.earliest = min(self.earliest, other.earliest)
        self.latest = max(self.latest, other.latest)


@dataclass
class TaskReport:
    """One task's counts by partition of the topic, and its rows for the rare tables.

    `too_many` is set where these were too many to send; `rare` is incomplete then.
    """

    landed: dict[int, Landed] = field(default_factory=dict)
    rare: dict[str, list[pa.RecordBatch]] = field(default_factory=dict)
    rare_bytes: int = 0
    too_many: bool = False

    def count(self, table: str, rows: pa.RecordBatch) -> None:
        """Counts rows that the task has decoded for a table."""
        partitions = rows.column("record_partition").to_numpy()
        offsets = rows.column("record_offset").to_numpy()
        times = rows.column("record_at").cast(pa.int64()).to_numpy()
        for partition in np.unique(partitions).tolist():
            own = partitions == partition
            found = Landed(
                first_offset=int(offsets[own].min()), earliest=int(times[own].min()), latest=int(times[own].max())
            )
            found.rows[table] = int(own.sum())
            self.landed.setdefault(partition, Landed()).add(found)

    def keep(self, table: str, rows: pa.RecordBatch) -> None:
        """Keeps rows of a rare table, as long as the report stays small."""
        self.rare_bytes += rows.nbytes
        self.too_many |= self.rare_bytes > MOST_RARE_BYTES
        if not self.too_many:
            self.rare.setdefault(table, []).append(rows)


Reports = dict[int, TaskReport]


class ByTask(AccumulatorParam[dict[int, T]]):
    """Keeps one report a task: a task that Spark runs twice reports the same twice, and counts once."""

    def zero(self, value: dict[int, T]) -> dict[int, T]:  # noqa: ARG002
        return {}

    def addInPlace(self, value1: dict[int, T], value2: dict[int, T]) -> dict[int, T]:  # noqa: N802
        value1.update(value2)
        return value1


BY_TASK: ByTask[TaskReport] = ByTask()


def commits_reporting(reports: Accumulator[Reports]) -> Rows:
    """For `DataFrame.mapInArrow`: rows of `offset_commits`; of the others the task reports to `reports`."""

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        report = TaskReport()
        for table, decoded in decode_batches(batches):
            report.count(table, decoded)
            if table == COMMITS:
                yield decoded
            else:
                report.keep(table, decoded)
        context = TaskContext.get()
        assert context is not None
        reports.add({context.partitionId(): report})

    return rows


def rows_of(table: str) -> Rows:
    """For `DataFrame.mapInArrow`: the rows of one table."""

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return (decoded for found, decoded in decode_batches(batches) if found == table)

    return rows


@dataclass(frozen=True)
class BatchReport:
    """What all tasks of a micro-batch report together."""

    landed: dict[int, Landed]
    rare: dict[str, pa.Table]
    too_many: bool

    @classmethod
    def of(cls, reports: Reports) -> BatchReport:
        """Adds up the tasks' reports. A partition of the topic is read by one task or by several."""
        landed: dict[int, Landed] = {}
        for report in reports.values():
            for partition, found in report.landed.items():
                landed.setdefault(partition, Landed()).add(found)
        rare = {
            table: pa.Table.from_batches(batches)
            for table in RARE_TABLES
            if (batches := [batch for report in reports.values() for batch in report.rare.get(table, [])])
        }
        return cls(landed, rare, any(report.too_many for report in reports.values()))

    def has(self, table: str) -> bool:
        """Whether the micro-batch has rows for the table."""
        return any(found.rows[table] for found in self.landed.values())
