"""Delta's own API in the JVM: delta-rs does not commit to tables with liquid clustering."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
        self._jvm: Any = spark._jvm
        self._transaction = _log(spark, path).startTransaction()
        self._app = app
        self._version = version
        self.is_done = False
        if app is not None:
            self.is_done = has_landed(DeltaTable(path, storage_options=dict(options)), app, version)
            # Delta then rejects the commit if another one of this app comes before it.
            self._transaction.readTxn().addOne(app)

    def commit(self, files: Sequence[str]) -> None:
        """Add files, given by Delta's `add` actions as JSON, to the table."""
        actions = list(files)
        if self._app is not None:
            once = {"appId": self._app, "version": self._version, "lastUpdated": int(time.time() * 1000)}
            actions.append(json.dumps({"txn": once}))
        delta, streaming = self._jvm.org.apache.spark.sql.delta, self._jvm.org.apache.spark.sql.streaming
        operation = getattr(delta, "DeltaOperations$StreamingUpdate")(
            streaming.OutputMode.Append(), self._app or "", self._version, self._jvm.scala.Option.empty()
        )
        read = [delta.actions.Action.fromJson(action) for action in actions]
        self._transaction.commit(self._jvm.PythonUtils.toSeq(read), operation)


def _log(spark: SparkSession, path: str) -> Any:
    jvm: Any = spark._jvm
    return jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, path)
