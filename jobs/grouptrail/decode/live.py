"""Offset commits as they are written: the metrics show them before their micro-batch is in the tables."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

import pyarrow as pa

from grouptrail.console.progress import Log
from grouptrail.decode.batch import decode_batches
from grouptrail.decode.schema import COMMITS, row_schema
from grouptrail.kafka.errors import ClusterError
from grouptrail.kafka.new_records import NewRecords

PAUSE_SECONDS = 30.0


class LiveCommits:
    """The newest commits of a cluster. May be used by several threads.

    Only the tables have every commit: from here come at most 5,000 at a time, and none while no broker answers.
    `kafka` are the settings of Kafka's client, `log` gets a line when no broker answers.
    """

    def __init__(self, kafka: Mapping[str, str], max_record_bytes: int, log: Log) -> None:
        self._max_record_bytes = max_record_bytes
        self._log = log
        self._records = NewRecords(kafka)
        self._next_try = 0.0
        self._failure = ""
        self._reading = threading.Lock()

    def fresh(self) -> pa.Table:
        """Return the commits since the last call, as rows of `offset_commits` (`schema.row_schema`)."""
        with self._reading:
            if time.monotonic() < self._next_try:
                return _NONE
            try:
                records = self._records.poll()
            except ClusterError as error:
                self._next_try = time.monotonic() + PAUSE_SECONDS
                if str(error) != self._failure:
                    self._failure = str(error)
                    self._log(f"metrics: commits are shown only once they are in the tables: {error}")
                return _NONE
        decoded = decode_batches(records.to_batches(), self._max_record_bytes)
        return pa.Table.from_batches([rows for table, rows in decoded if table == COMMITS], row_schema(COMMITS))

    def close(self) -> None:
        """Close the connections."""
        with self._reading:
            self._records.close()


_NONE = row_schema(COMMITS).empty_table()
