"""Queries of a table's appends: Spark's Delta source, or without it where the table is written in the same process.

Spark needs seconds to plan the first micro-batch of a Delta source, and lists the table at each trigger. `TableQuery`
gets the rows from the memory of the writer (`rows_by_version`) instead. Its checkpoint is that of Spark's query: each
continues where the other has ended.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from grouptrail.memory import release_memory
from grouptrail.spark import hadoop
from grouptrail.spark.streams import interpret, start_query
from grouptrail.storage import reader
from grouptrail.storage.checkpoints import Checkpoint
from grouptrail.storage.damage import require_openable_by_spark
from grouptrail.storage.errors import TableError
from grouptrail.storage.location import TableLocation
from grouptrail.storage.rows import read_rows
from grouptrail.storage.rows_by_version import RowsByVersion
from grouptrail.storage.schema import table_schema
from grouptrail.storage.thread_query import ThreadQuery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Process = Callable[[pa.Table, int], None]
"""Gets each micro-batch's rows of this cluster and its number, after a failure again with the same number."""

# Spark keeps as many batches in a checkpoint (spark.sql.streaming.minBatchesToRetain).
_BATCHES_KEPT = 100
# The index of Delta's offset before the first file of a version.
_BEFORE_FILES = -1


class Query(Protocol):
    """A job's query: what is used of Spark's `StreamingQuery`."""

    @property
    def isActive(self) -> bool: ...  # noqa: N802

    @property
    def status(self) -> Mapping[str, Any]: ...

    @property
    def lastProgress(self) -> Mapping[str, Any] | None: ...  # noqa: N802

    def stop(self) -> None: ...

    def awaitTermination(self, timeout: int | None = None) -> bool | None: ...  # noqa: N802


@dataclass(frozen=True)
class Appends:
    """The appends to a table from a version on; None: first all rows that it has."""

    table: TableLocation
    version: int | None = None
    files_a_batch: int = 1000


def follow(
    appends: Appends,
    checkpoint: Checkpoint,
    *,
    process: Process,
    once: bool,
    is_written_here: bool,
    every_seconds: float,
) -> Query:
    """Start a job's query of a table's appends.

    `is_written_here`: the job that appends the rows runs in this process. Its new rows are then processed at once,
    and those of other processes after `every_seconds`. With `once` the query ends after the rows that are there now.
    """
    if is_written_here and not once and (place := _Place.of(checkpoint, appends)) is not None:
        return TableQuery(appends, checkpoint, place, process=process, every_seconds=every_seconds)
    table = appends.table
    schema = table_schema(table.name)
    require_openable_by_spark(table)
    reading = checkpoint.spark.readStream.format("delta").option("maxFilesPerTrigger", appends.files_a_batch)
    if appends.version is not None:
        reading = reading.option("startingVersion", appends.version)
    # Commits that delete or rewrite rows are skipped.
    stream = reading.option("skipChangeCommits", "true").load(table.path)

    def process_frame(rows: DataFrame, batch: int) -> None:
        interpret(rows.sparkSession)
        ours = rows.where(rows["cluster"] == table.cluster).select(*schema.names)
        process(ours.toArrow().cast(schema), batch)

    return start_query(
        stream,
        checkpoint.query_name,
        checkpoint.folder,
        process=process_frame,
        once=once,
        every_seconds=every_seconds,
    )


@dataclass(frozen=True)
class _Place:
    """Where a query continues: its next batch, and the versions from which and before which that reads.

    `start` is None for the first batch of a table, which has all rows before version `end`. `end` is None unless it
    is known: for a first batch, and for one that was started before (`is_started`).
    """

    table_id: str
    batch: int
    start: int | None
    end: int | None
    is_started: bool

    @classmethod
    def of(cls, checkpoint: Checkpoint, appends: Appends) -> _Place | None:
        """Return where to continue; None if only Spark's query can do that."""
        table = reader.open_table(appends.table) if reader.supports(appends.table.path) else None
        if table is None:
            return None
        table_id, newest = reader.table_id(table), table.version()
        started, done = checkpoint.newest("offsets"), checkpoint.newest("commits")
        batch, start, end = 0, appends.version, None
        if started is not None:
            batch = started + 1 if started == done else started
            known = {at: _version(checkpoint, at, table_id) for at in (batch - 1, started) if at >= 0}
            if None in known.values():
                return None
            start, end = known.get(batch - 1, start), known.get(batch)
        if start is None:
            if len(table.file_uris()) > appends.files_a_batch:
                return None
            return cls(table_id, batch, None, newest + 1 if end is None else end, end is not None)
        # A log that does not reach back to the start lacks rows, which Spark's query reports.
        reaches_back = start > newest or RowsByVersion(appends.table, kept=0).has(start)
        return cls(table_id, batch, start, end, end is not None) if reaches_back else None


def _version(checkpoint: Checkpoint, batch: int, table_id: str) -> int | None:
    """Return the version that a batch ends before; None if it ends within a version, or in another table."""
    _, offset = _read_batch(checkpoint, batch)
    if (offset["index"], offset["isStartingVersion"], offset["reservoirId"]) != (_BEFORE_FILES, False, table_id):
        return None
    return int(offset["reservoirVersion"])


def _read_batch(checkpoint: Checkpoint, batch: int) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return a batch's settings and the offset of its source, as Spark writes them."""
    _, settings, offset = checkpoint.read(f"offsets/{batch}").splitlines()
    return json.loads(settings), json.loads(offset)


class _BatchLog:
    """Writes the batches of a query of a Delta source to its checkpoint, in Spark's format."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        checkpoint.ensure_query_id()

    def start(self, batch: int, end: int, table_id: str) -> None:
        """Note up to which version a batch reads."""
        offset = {"sourceVersion": 1, "reservoirId": table_id, "reservoirVersion": end}
        offset |= {"index": _BEFORE_FILES, "isStartingVersion": False}
        # Spark requires this setting, and takes another value for a change of a stateful query's partitions.
        same = "spark.sql.shuffle.partitions"
        conf = (
            _read_batch(self._checkpoint, batch - 1)[0]["conf"]
            if batch
            else {same: self._checkpoint.spark.conf.get(same)}
        )
        settings = {"batchWatermarkMs": 0, "batchTimestampMs": round(time.time() * 1000), "conf": conf}
        self._write(f"offsets/{batch}", "v1", json.dumps(settings), json.dumps(offset))

    def commit(self, batch: int) -> None:
        """Note that a batch is done, and remove old ones."""
        self._write(f"commits/{batch}", "v1", json.dumps({"nextBatchWatermarkMs": 0}))
        for log in ("offsets", "commits"):
            hadoop.delete(self._checkpoint.spark, f"{self._checkpoint.folder}/{log}/{batch - _BATCHES_KEPT}")

    def _write(self, name: str, *lines: str) -> None:
        hadoop.write_whole(self._checkpoint.spark, f"{self._checkpoint.folder}/{name}", "\n".join(lines))


class TableQuery(ThreadQuery):
    """A query of a table's appends, whose rows it gets from memory where this process has written them."""

    def __init__(
        self, appends: Appends, checkpoint: Checkpoint, place: _Place, *, process: Process, every_seconds: float
    ) -> None:
        super().__init__(checkpoint.query_name)
        self._appends = appends
        self._spark = checkpoint.spark
        self._process = process
        self._every_seconds = every_seconds
        self._log = _BatchLog(checkpoint)
        self._at = place
        self._rows = RowsByVersion(appends.table, kept=appends.files_a_batch)
        self._thread.start()

    def stop(self) -> None:
        """Stop after the current batch."""
        self._stopped.set()
        self._rows.news.set()
        super().stop()

    def _next_batch(self) -> int:
        return self._at.batch

    def _process_batches(self) -> None:
        with self._rows:
            while not self._stopped.is_set():
                while not self._stopped.is_set() and self._process_next():
                    pass
                self._rows.news.wait(self._every_seconds)
                self._rows.news.clear()

    def _process_next(self) -> bool:
        """Process the next versions; return whether there were any."""
        at = self._at
        rows, end = self._read(at)
        if end == at.start:
            return False
        batch = at.batch
        if len(rows) or at.is_started:
            self._is_processing = True
            if not at.is_started:
                self._log.start(batch, end, at.table_id)
            self._spark.sparkContext.setJobDescription(f"{self._thread.name} batch {batch}")
            self._process(rows, batch)
            self._log.commit(batch)
            release_memory()
            batch += 1
        self._at = _Place(at.table_id, batch, end, None, is_started=False)
        self._is_processing = False
        return True

    def _read(self, at: _Place) -> tuple[pa.Table, int]:
        """Return the rows of the next micro-batch, and the version before which it ends."""
        schema = table_schema(self._appends.table.name)
        batches = [schema.empty_table()]
        if at.start is None:
            assert at.end is not None
            opened = reader.open_table(self._appends.table, at.end - 1)
            batches += read_rows(self._appends.table, schema, None, opened)
            return pa.concat_tables(batches), at.end
        version = at.start
        most = version + self._appends.files_a_batch if at.end is None else at.end
        while version < most and (rows := self._rows.rows(version)) is not None:
            batches.append(rows)
            version += 1
        if len(batches) == 1 and not self._rows.has(version - 1):
            path = self._appends.table.shown
            raise TableError(f"{path} was deleted or replaced while its appends were read: restore it")
        return pa.concat_tables(batches), version
