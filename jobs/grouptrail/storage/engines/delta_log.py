"""Delta's own commits, by private classes in the JVM: delta-rs does not commit to tables with liquid clustering."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from grouptrail.spark.classes import java_class
from grouptrail.storage.engines.engine import Once
from grouptrail.storage.layout import COMMITS_A_CHECKPOINT
from grouptrail.storage.location import TableLocation
from grouptrail.storage.reader import READ_ERRORS, existing_table
from grouptrail.storage.table_log import transaction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Delta removes logs by whole days, and lists all of them for it.
_COMMITS_A_CLEANUP = 1000

_NOTHING: Mapping[str, int] = MappingProxyType({})


def last_version(spark: SparkSession, path: str, app: str) -> int:
    """Return the newest `txnVersion` that an app has committed to a table; -1 if there is none."""
    found = _log(spark, path).unsafeVolatileSnapshot().transactions().get(app)
    return int(found.get()) if found.isDefined() else -1


def remove_old_logs(spark: SparkSession, path: str) -> None:
    """Remove what is older than `delta.logRetentionDuration` and than a checkpoint, as Spark's checkpoints do."""
    from py4j.protocol import Py4JJavaError

    log = _log(spark, path)
    with suppress(Py4JJavaError):
        log.doLogCleanup(log.unsafeVolatileSnapshot(), java_class(spark, "scala.Option").empty())


class Commit:
    """A commit of files that are already in a table's folder.

    Delta rejects it if another commit of the same application comes before it.
    """

    def __init__(self, spark: SparkSession, table: TableLocation, once: Once | None) -> None:
        self._spark = spark
        self._table = table
        self._once = once
        self._transaction = _log(spark, table.path).startTransaction()
        if once is not None:
            self._transaction.readTxn().addOne(once.app)

    def write(self, files: Sequence[str], *, instead_of: Mapping[str, int] = _NOTHING) -> int:
        """Add files, given by Delta's `add` actions as JSON, to the table; return its new version.

        `instead_of` are the sizes of files that they replace, by path. Delta then rejects the commit if another one
        replaces one of these before it.
        """
        now = int(time.time() * 1000)
        actions = [
            json.dumps(
                {
                    "remove": {"path": path, "deletionTimestamp": now, "dataChange": True}
                    | {"extendedFileMetadata": True, "partitionValues": {}, "size": size}
                }
            )
            for path, size in instead_of.items()
        ]
        actions += files
        app, number = ("", 0) if self._once is None else (self._once.app, self._once.version)
        if self._once is not None:
            actions.append(transaction(app, number))
        modes = self._class("org.apache.spark.sql.streaming.OutputMode")
        mode = modes.Complete() if instead_of else modes.Append()
        nothing = self._class("scala.Option").empty()
        operation = self._class("org.apache.spark.sql.delta.DeltaOperations$StreamingUpdate")(
            mode, app, number, nothing
        )
        action_of = self._class("org.apache.spark.sql.delta.actions.Action").fromJson
        read = self._class("org.apache.spark.api.python.PythonUtils").toSeq([action_of(one) for one in actions])
        version = int(self._transaction.commit(read, operation))
        if version % COMMITS_A_CHECKPOINT == 0:
            with suppress(*READ_ERRORS):  # the rows are in the table all the same
                existing_table(self._table).create_checkpoint()
        if version % _COMMITS_A_CLEANUP == 0:
            remove_old_logs(self._spark, self._table.path)
        return version

    def _class(self, name: str) -> Any:
        return java_class(self._spark, name)


def _log(spark: SparkSession, path: str) -> Any:
    # Of this thread: Delta looks for it where it reads the whole log, as after a crash that left no checksum.
    java_class(spark, "org.apache.spark.sql.classic.SparkSession").setActiveSession(spark._jsparkSession)
    return java_class(spark, "org.apache.spark.sql.delta.DeltaLog").forTable(spark._jsparkSession, path)
