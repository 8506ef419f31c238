"""What the tables of the job `cluster` have about retention: the settings of topics, and the sizes of logs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from grouptrail.errors import one_line
from grouptrail.jobs import CLUSTER
from grouptrail.lag.retention import NO_SETTINGS, NOT_SAMPLED, Retention
from grouptrail.storage.errors import TableError
from grouptrail.storage.last_sample import read_last_sample
from grouptrail.storage.log_sizes import read_log_sizes
from grouptrail.storage.reader import READ_ERRORS
from grouptrail.storage.schema import columns_of
from grouptrail.storage.topic_settings import TopicSettings, read_topic_settings

if TYPE_CHECKING:
    from grouptrail.lag.calculator import LagCalculator
    from grouptrail.storage.warehouse import Warehouse

_EVERY_SECONDS = 60.0
_CONFIGS, _SIZES = "topic_configs", "log_sizes"
_SIZE_ROWS = columns_of(_SIZES, ("topic", "partition", "size_bytes", "sampled_at"))


class RetentionInputs:
    """Reads the settings of topics and the sizes of logs once a minute, where they have changed.

    With `once` they are those of the last sample, however old; otherwise the job `cluster` has to run.
    """

    def __init__(self, warehouse: Warehouse, *, once: bool) -> None:
        self._warehouse = warehouse
        self._once = once
        self._due = 0.0
        self._of: LagCalculator | None = None
        self._read: Mapping[str, object] = {}
        self._silent_before: str | None = None
        self._settings: Mapping[str, TopicSettings] = {}

    def refresh(self, calculator: LagCalculator) -> str | None:
        """Give a calculator what is new; return a log line if the tables cannot be read."""
        if calculator is self._of and time.monotonic() < self._due:
            return None
        if calculator is not self._of:
            self._of, self._read = calculator, {}
        self._due = time.monotonic() + _EVERY_SECONDS
        try:
            self._set_settings(calculator)
            self._set_sizes(calculator)
        except (*READ_ERRORS, TableError) as error:
            self._read = {}
            calculator.set_retention(Retention({}, f"{NO_SETTINGS}: {_CONFIGS} cannot be read"))
            return f"lag: settings of topics cannot be read, so that no time to loss is known: {one_line(error)}"
        return None

    def _set_settings(self, calculator: LagCalculator) -> None:
        silent, is_new = self._silent(), self._is_new(_CONFIGS)
        if is_new:
            self._settings = read_topic_settings(self._warehouse)
        if is_new or silent != self._silent_before:
            self._silent_before = silent
            calculator.set_retention(Retention(self._settings) if silent is None else Retention({}, silent))

    def _silent(self) -> str | None:
        """Return why the settings may no longer be in force; None if they are."""
        if self._once:
            return None
        last = read_last_sample(self._warehouse, CLUSTER.name)
        if last is None:
            return NOT_SAMPLED
        return (
            f"{NO_SETTINGS}: the job cluster last sampled at {last.at:%Y-%m-%d %H:%M} UTC"
            if last.is_stale()
            else None
        )

    def _set_sizes(self, calculator: LagCalculator) -> None:
        limited = [
            topic
            for topic, its in self._settings.items()
            if its.retention_bytes is not None and its.retention_bytes >= 0 and not its.remote_storage_enable
        ]
        if not limited or not self._is_new(_SIZES):
            return
        sizes = read_log_sizes(self._warehouse, limited)
        rows = [
            {"topic": topic, "partition": partition, **size._asdict()} for (topic, partition), size in sizes.items()
        ]
        calculator.set_log_sizes(pa.Table.from_pylist(rows, _SIZE_ROWS))

    def _is_new(self, table: str) -> bool:
        """Return whether a table has another version than when it was last read."""
        newest = self._warehouse.table(table).newest_commit()
        is_new = table not in self._read or self._read[table] != newest
        self._read = {**self._read, table: newest}
        return is_new
