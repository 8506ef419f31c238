"""What is asked of Delta itself, in the JVM: delta-rs commits to no table that Delta clusters."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def landed(spark: SparkSession, path: str, app: str) -> int:
    """The newest version that an app has written to a table; -1 where there is none."""
    found = _log(spark, path).unsafeVolatileSnapshot().transactions().get(app)
    return int(found.get()) if found.isDefined() else -1


class Append:
    """An append of files that were written beside a table, once for an `app` and a `version` (always, without)."""

    def __init__(self, spark: SparkSession, path: str, app: str | None, version: int) -> None:
        self._jvm: Any = spark._jvm
        self._transaction = _log(spark, path).startTransaction()
        self._app = app
        self._version = version
        self.is_done = app is not None and self._transaction.txnVersion(app) >= version

    def commit(self, files: Sequence[str]) -> None:
        """Makes files, given by Delta's `add` actions as JSON, the table's."""
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
