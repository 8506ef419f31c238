"""Delta's own API in the JVM: delta-rs does not commit to tables with liquid clustering."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable

from grouptrail.spark.classes import java_class
from grouptrail.storage.layout import COMMITS_A_CHECKPOINT
from grouptrail.storage.reader import READ_ERRORS
from grouptrail.storage.table_log import transaction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Delta removes logs by whole days, and lists all of them for it.
_COMMITS_A_CLEANUP = 1000

_NOTHING: Mapping[str, int] = MappingProxyType({})


def landed(spark: SparkSession, path: str, app: str) -> int:
    """Return the newest `txnVersion` that an app has committed to a table; -1 if there is none."""
    found = _log(spark, path).unsafeVolatileSnapshot().transactions().get(app)
    return int(found.get()) if found.isDefined() else -1


def has_landed(table: DeltaTable, app: str, version: int) -> bool:
    """Return whether an app has committed a `txnVersion` or a later one.

    Uses delta-rs, which reads the log at once; Spark runs a job for it.
    """
    newest = table.transaction_version(app)
    return newest is not None and newest >= version


class Append:
    """An append of files that are already in a table's folder, done once for an `app` and `version`.

    Without an `app` it is always done; `options` are delta-rs's storage options.
    """

    def __init__(
        self, spark: SparkSession, path: str, options: Mapping[str, str], *, app: str | None, version: int
    ) -> None:
        self._spark = spark
        self._path = path
        self._options = dict(options)
        self._transaction = _log(spark, path).startTransaction()
        self._app = app
        self._version = version
        self.is_done = False
        if app is not None:
            self.is_done = has_landed(self._table(), app, version)
            # Delta then rejects the commit if another one of this app comes before it.
            self._transaction.readTxn().addOne(app)

    def commit(self, files: Sequence[str], *, instead_of: Mapping[str, int] = _NOTHING) -> int:
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
        if self._app is not None:
            actions.append(transaction(self._app, self._version))
        modes = self._class("org.apache.spark.sql.streaming.OutputMode")
        mode = modes.Complete() if instead_of else modes.Append()
        nothing = self._class("scala.Option").empty()
        operation = self._class("org.apache.spark.sql.delta.DeltaOperations$StreamingUpdate")(
            mode, self._app or "", self._version, nothing
        )
        action_of = self._class("org.apache.spark.sql.delta.actions.Action").fromJson
        read = self._class("org.apache.spark.api.python.PythonUtils").toSeq([action_of(one) for one in actions])
        version = int(self._transaction.commit(read, operation))
        if version % COMMITS_A_CHECKPOINT == 0:
            with suppress(*READ_ERRORS):  # the rows are in the table all the same
                self._table().create_checkpoint()
        if version % _COMMITS_A_CLEANUP == 0:
            self._remove_old_logs()
        return version

    def _remove_old_logs(self) -> None:
        """Remove what is older than `delta.logRetentionDuration` and than a checkpoint, as Spark's checkpoints do."""
        from py4j.protocol import Py4JJavaError

        log = _log(self._spark, self._path)
        with suppress(Py4JJavaError):
            log.doLogCleanup(log.unsafeVolatileSnapshot(), self._class("scala.Option").empty())

    def _table(self) -> DeltaTable:
        return DeltaTable(self._path, storage_options=self._options)

    def _class(self, name: str) -> Any:
        return java_class(self._spark, name)


def _log(spark: SparkSession, path: str) -> Any:
    # Of this thread: Delta looks for it where it reads the whole log, as after a crash that left no checksum.
    java_class(spark, "org.apache.spark.sql.classic.SparkSession").setActiveSession(spark._jsparkSession)
    return java_class(spark, "org.apache.spark.sql.delta.DeltaLog").forTable(spark._jsparkSession, path)
