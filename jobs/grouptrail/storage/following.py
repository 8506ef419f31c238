"""Queries of a table's appends: Spark's Delta source, or without it where the table is written in the same process.

Spark needs seconds to plan the first micro-batch of a Delta source, and lists the table at each trigger. `TableQuery`
gets the rows from the memory of the writer (`appends`) instead. Its checkpoint is that of Spark's query: each
continues where the other has ended.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from grouptrail.jobs import Query
from grouptrail.memory import release_memory
from grouptrail.spark import hadoop, object_stores
from grouptrail.spark.streams import interpret, own_session, read_checkpoint_file, start_query
from grouptrail.storage import checkpoints, reader, tables
from grouptrail.storage.appends import Appends
from grouptrail.storage.errors import TableError
from grouptrail.storage.rows import read_rows
from grouptrail.storage.schema import table_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from grouptrail.config import Config

Land = Callable[["SparkSession", pa.Table, int], None]
"""Gets each micro-batch's rows of this cluster and its number, after a failure again with the same number."""

# Spark keeps as many batches in a checkpoint (spark.sql.streaming.minBatchesToRetain).
_BATCHES_KEPT = 100
# The index of Delta's offset before the first file of a version.
_BEFORE_FILES = -1


@dataclass(frozen=True)
class Appended:
    """The appends to a table from a version on; None: first all rows that it has."""

    table: str
    version: int | None = None
    files_a_batch: int = 1000


def follow(
    spark: SparkSession,
    config: Config,
    job: str,
    appended: Appended,
    *,
    land: Land,
    once: bool,
    is_written_here: bool,
    every_seconds: float,
) -> Query:
    """Start a job's query of a table's appends; as `start_query`, but `land` gets rows in Arrow.

    `is_written_here`: the job that appends the rows runs in this process. Its new rows are then processed at once,
    and those of other processes after `every_seconds`.
    """
    if is_written_here and not once and (begun := _Begun.of(spark, config, job, appended)) is not None:
        return TableQuery(spark, config, job, appended, begun, land=land, every_seconds=every_seconds)
    schema = table_schema(appended.table)
    stream = tables.read_appends(
        spark, config, appended.table, files_a_batch=appended.files_a_batch, version=appended.version
    )

    def land_frame(rows: DataFrame, batch: int) -> None:
        session = rows.sparkSession
        interpret(session, is_small=True)  # of few rows
        ours = rows.where(rows["cluster"] == config.cluster).select(*schema.names)
        land(session, ours.toArrow().cast(schema), batch)

    return start_query(stream, config, job, land=land_frame, once=once, every_seconds=every_seconds)


@dataclass(frozen=True)
class _Begun:
    """Where a query continues: its next batch, and the versions from which and before which that reads.

    `start` is None for the first batch of a table, which has all rows before version `end`. `end` is None unless it
    is known: for a first batch, and for one that was begun before (`is_begun`).
    """

    table_id: str
    batch: int
    start: int | None
    end: int | None
    is_begun: bool

    @classmethod
    def of(cls, spark: SparkSession, config: Config, job: str, appended: Appended) -> _Begun | None:
        """Return where to continue; None if only Spark's query can do that."""
        table = reader.open_table(config, appended.table) if object_stores.is_known(config.warehouse) else None
        if table is None:
            return None
        checkpoint = _Checkpoint(spark, config, job)
        table_id, newest = reader.table_id(table), table.version()
        begun, done = checkpoint.newest("offsets"), checkpoint.newest("commits")
        batch, start, end = 0, appended.version, None
        if begun is not None:
            batch = begun + 1 if begun == done else begun
            known = {at: checkpoint.version(at, table_id) for at in (batch - 1, begun) if at >= 0}
            if None in known.values():
                return None
            start, end = known.get(batch - 1, start), known.get(batch)
        if start is None:
            if len(table.file_uris()) > appended.files_a_batch:
                return None
            return cls(table_id, batch, None, newest + 1 if end is None else end, end is not None)
        # A log that does not reach back to the start lacks rows, which Spark's query reports.
        reaches_back = start > newest or Appends(config, appended.table, kept=0).has(start)
        return cls(table_id, batch, start, end, end is not None) if reaches_back else None


class _Checkpoint:
    """The checkpoint of a query of a Delta source, in Spark's format."""

    def __init__(self, spark: SparkSession, config: Config, job: str) -> None:
        self._spark = spark
        self._config = config
        self._job = job
        self._folder = config.checkpoint_path(job)

    def newest(self, log: str) -> int | None:
        """Return the newest batch in one of its logs, `offsets` or `commits`."""
        return checkpoints.newest(self._spark, f"{self._folder}/{log}")

    def version(self, batch: int, table_id: str) -> int | None:
        """Return the version that a batch ends before; None if it ends within a version, or in another table."""
        _, offset = self._read(batch)
        if (offset["index"], offset["isStartingVersion"], offset["reservoirId"]) != (_BEFORE_FILES, False, table_id):
            return None
        return int(offset["reservoirVersion"])

    def create(self) -> None:
        """Give a new query its id."""
        if hadoop.read_text(self._spark, f"{self._folder}/metadata") is None:
            self._write("metadata", json.dumps({"id": str(uuid.uuid4())}))

    def begin(self, batch: int, end: int, table_id: str) -> None:
        """Write down up to which version a batch reads."""
        offset = {"sourceVersion": 1, "reservoirId": table_id, "reservoirVersion": end}
        offset |= {"index": _BEFORE_FILES, "isStartingVersion": False}
        # Spark requires this setting, and takes another value for a change of a stateful query's partitions.
        same = "spark.sql.shuffle.partitions"
        conf = self._read(batch - 1)[0]["conf"] if batch else {same: self._spark.conf.get(same)}
        settings = {"batchWatermarkMs": 0, "batchTimestampMs": round(time.time() * 1000), "conf": conf}
        self._write(f"offsets/{batch}", "v1", json.dumps(settings), json.dumps(offset))

    def commit(self, batch: int) -> None:
        """Write down that a batch is done, and remove old ones."""
        self._write(f"commits/{batch}", "v1", json.dumps({"nextBatchWatermarkMs": 0}))
        for log in ("offsets", "commits"):
            hadoop.delete(self._spark, f"{self._folder}/{log}/{batch - _BATCHES_KEPT}")

    def _read(self, batch: int) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Return a batch's settings and the offset of its source."""
        text = read_checkpoint_file(self._spark, self._config, self._job, f"offsets/{batch}")
        _, settings, offset = text.splitlines()
        return json.loads(settings), json.loads(offset)

    def _write(self, name: str, *lines: str) -> None:
        hadoop.write_whole(self._spark, f"{self._folder}/{name}", "\n".join(lines))


class TableQuery:
    """A query that runs in a thread until it is stopped; its methods and properties are those of Spark's queries."""

    def __init__(
        self,
        spark: SparkSession,
        config: Config,
        job: str,
        appended: Appended,
        begun: _Begun,
        *,
        land: Land,
        every_seconds: float,
    ) -> None:
        self._spark = own_session(spark)
        interpret(self._spark, is_small=True)
        self._config = config
        self._appended = appended
        self._land = land
        self._every_seconds = every_seconds
        self._checkpoint = _Checkpoint(spark, config, job)
        self._checkpoint.create()
        self._at = begun
        self._appends = Appends(config, appended.table, kept=appended.files_a_batch)
        self._stopped = threading.Event()
        self._fault: Exception | None = None
        self._lands = False
        self._thread = threading.Thread(target=self._run, name=f"{config.cluster}/{job}", daemon=True)
        self._thread.start()

    @property
    def isActive(self) -> bool:  # noqa: N802
        """Whether it has neither been stopped nor failed."""
        return self._thread.is_alive()

    @property
    def status(self) -> dict[str, Any]:
        """Whether a batch is being processed."""
        return {"isTriggerActive": self._lands}

    @property
    def lastProgress(self) -> dict[str, Any]:  # noqa: N802
        """The number of the last batch."""
        return {"batchId": self._at.batch - 1, "timestamp": ""}

    def stop(self) -> None:
        """Stop after the current batch."""
        self._stopped.set()
        self._appends.news.set()
        self._thread.join()

    def awaitTermination(self, timeout: float | None = None) -> bool | None:  # noqa: N802
        """Wait until it ends; return whether it has. Raises what a batch has raised."""
        self._thread.join(timeout)
        if self._fault is not None:
            raise self._fault
        return None if timeout is None else not self._thread.is_alive()

    def _run(self) -> None:
        try:
            with self._appends:
                while not self._stopped.is_set():
                    while not self._stopped.is_set() and self._process():
                        pass
                    self._appends.news.wait(self._every_seconds)
                    self._appends.news.clear()
        except Exception as fault:
            self._fault = fault
        finally:
            self._lands = False

    def _process(self) -> bool:
        """Process the next versions; return whether there were any."""
        at = self._at
        rows, end = self._read(at)
        if end == at.start:
            return False
        batch = at.batch
        if len(rows) or at.is_begun:
            self._lands = True
            if not at.is_begun:
                self._checkpoint.begin(batch, end, at.table_id)
            self._spark.sparkContext.setJobDescription(f"{self._thread.name} batch {batch}")
            self._land(self._spark, rows, batch)
            self._checkpoint.commit(batch)
            release_memory()
            batch += 1
        self._at = _Begun(at.table_id, batch, end, None, is_begun=False)
        self._lands = False
        return True

    def _read(self, at: _Begun) -> tuple[pa.Table, int]:
        """Return the rows of the next micro-batch, and the version before which it ends."""
        schema = table_schema(self._appended.table)
        found = [schema.empty_table()]
        if at.start is None:
            assert at.end is not None
            found += read_rows(self._config, self._appended.table, schema, version=at.end - 1)
            return pa.concat_tables(found), at.end
        version = at.start
        most = version + self._appended.files_a_batch if at.end is None else at.end
        while version < most and (rows := self._appends.rows(version)) is not None:
            found.append(rows)
            version += 1
        if len(found) == 1 and not self._appends.has(version - 1):
            path = self._config.table_path(self._appended.table)
            raise TableError(f"{path} was deleted or replaced while its appends were read: restore it")
        return pa.concat_tables(found), version
