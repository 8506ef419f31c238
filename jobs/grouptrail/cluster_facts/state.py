"""What is valid by the tables, and how changed rows are written. A restarted job has no other state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.cluster_facts.changes import TableChanges, compare, is_outdated
from grouptrail.cluster_facts.sample import (
    CLUSTER_INFO,
    LOG_SIZES,
    OPEN_SCHEMAS,
    PARTITIONS,
    TABLES,
    TOPICS,
    LastSeen,
    Observation,
    Sample,
)
from grouptrail.storage.buckets import OPEN_BUCKETS, in_buckets
from grouptrail.storage.engines.engine import Once
from grouptrail.storage.files import write
from grouptrail.storage.warehouse import Warehouse

_ROWS_AT_A_TIME = 65_536
# A merge rewrites the open rows of its buckets, and takes a kilobyte for each.
_OPEN_ROWS_A_MERGE = 20_000
_BARELY_LATER = timedelta(milliseconds=1)


class OpenRows:
    """The open rows of each table, in memory and in the warehouse."""

    def __init__(self, warehouse: Warehouse, app: Callable[[], str]) -> None:
        """Read them; `app` returns the application of the writes (`Once`)."""
        self._warehouse = warehouse
        self._app = app()
        self._versions = {table.name: table.last_version(self._app) for table in warehouse.tables(TABLES)}
        self._last: dict[str, LastSeen] = {}
        self.tables = {name: _read(warehouse, name) for name in TABLES}
        self._newest = {name: pc.max(rows["valid_from"]).as_py() for name, rows in self.tables.items()}
        # After an interrupted first sample the next one is the first: `cluster_info` is written last.
        self._is_first = not any(table.has_rows() for table in warehouse.tables((TOPICS, CLUSTER_INFO)))

    def is_outdated(self, sample: Sample) -> bool:
        """Return whether a sample is older than what is known."""
        topics, partitions = sample.tables[TOPICS].rows, sample.tables[PARTITIONS].rows
        return is_outdated(self.tables[TOPICS], self.tables[PARTITIONS], topics, partitions)

    def update(self, sample: Sample) -> dict[str, tuple[int, int]]:
        """Write what a sample changes; return by table how many rows ended and how many began.

        After an error these rows have to be read again.
        """
        counts = {}
        for name, seen in _in_order(sample):
            at = self._later(name, seen.at)
            changed = compare(
                name, self.tables[name], seen, at=at, last=self._last.get(name), is_first=self._is_first
            )
            if len(changed.rows):
                self._write(name, changed)
                counts[name] = changed.ended, changed.began
            self.tables[name] = changed.open_rows
            if seen.is_whole:
                before = self._last.get(name)
                before = before and LastSeen(before.at, before.unanswered)
                self._last[name] = LastSeen(seen.asked_at, seen.unanswered, before)
            self._newest[name] = at
        self._is_first = False
        return counts

    def _later(self, name: str, at: datetime) -> datetime:
        """Return the time of a table's new rows, after that of the last ones also if the clock was set back."""
        newest = self._newest[name]
        return at if newest is None else max(at, newest + _BARELY_LATER)

    def replace_log_sizes(self, rows: pa.Table) -> None:
        """Replace the cluster's rows of `log_sizes`."""
        table = self._warehouse.table(LOG_SIZES)
        if len(rows) or table.has_rows():
            table.replace(lambda location: write(rows.to_batches(), location))

    def _write(self, name: str, changed: TableChanges) -> None:
        table = self._warehouse.table(name)
        for rows, buckets in changed.parts(_OPEN_ROWS_A_MERGE):
            self._versions[name] += 1
            once = Once(self._app, self._versions[name])
            if buckets:
                table.upsert(rows, buckets, once)
            else:
                table.append(rows, once)


def _in_order(sample: Sample) -> Iterator[tuple[str, Observation]]:
    return ((name, sample.tables[name]) for name in TABLES if name in sample.tables)


def _read(warehouse: Warehouse, name: str) -> pa.Table:
    schema = OPEN_SCHEMAS[name]
    are_open = f"AND {in_buckets(range(OPEN_BUCKETS))}"
    parts = warehouse.table(name).select_arrow(schema.names, are_open, rows_at_a_time=_ROWS_AT_A_TIME)
    return pa.concat_tables([schema.empty_table(), *parts]).combine_chunks()
