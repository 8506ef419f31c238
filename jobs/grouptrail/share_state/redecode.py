"""`grouptrail redecode`: decode the rows of `share_group_state` that have a `reason` again, e.g. after an upgrade."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from grouptrail.console.progress import Log
from grouptrail.share_state import deliveries
from grouptrail.share_state.deliveries import Deliveries
from grouptrail.share_state.rows import TABLE, decode_row
from grouptrail.storage.positions import CAME_BACK
from grouptrail.storage.schema import table_schema

if TYPE_CHECKING:
    from grouptrail.decode.rows import Row
    from grouptrail.storage.warehouse import Warehouse

_ROWS = table_schema(TABLE, without=("cluster",))
_CHANGES = table_schema(deliveries.TABLE, without=("cluster",))
_KEPT = ("record_partition", "record_offset", "record_at", "read_at")
_ROWS_AT_A_TIME = 50_000


def redecode_share_state(warehouse: Warehouse, max_record_bytes: int, log: Log) -> None:
    """Decode what can be decoded now, recompute the deliveries from there on, and log how many records these are.

    Only records of the warehouse's cluster are decoded. The job `share-state` must not run meanwhile. The rows are
    replaced last, so an interrupted run can be repeated.
    """
    table, changes = warehouse.tables((TABLE, deliveries.TABLE))
    if not table.exists() or not table.has_rows("reason IS NOT NULL"):
        return
    warehouse.ensure((TABLE, deliveries.TABLE))
    refold = _Refold(max_record_bytes)
    order = "ORDER BY record_partition, record_offset"
    parts = [
        pa.Table.from_pylist([refold.add(row) for row in some.to_pylist()], _ROWS)
        for some in table.select_arrow(_ROWS.names, order, rows_at_a_time=_ROWS_AT_A_TIME)
    ]
    if refold.decoded:
        kept = [
            row
            for some in changes.select_arrow(_CHANGES.names, rows_at_a_time=_ROWS_AT_A_TIME)
            for row in some.to_pylist()
            if not refold.is_changed(row)
        ]
        changes.replace(pa.Table.from_pylist([*kept, *refold.changes], _CHANGES))
        table.replace(pa.concat_tables(parts))
    log(f"{refold.decoded:,} records of share groups decoded, {refold.undecodable:,} still undecodable")


class _Refold:
    """Folds all rows. In each partition of the topic, results change from the first row on that decodes now; those
    before it stay as they are, also where records before them have been deleted since."""

    def __init__(self, max_record_bytes: int) -> None:
        self._max_record_bytes = max_record_bytes
        self._states = Deliveries()
        self._changed_from: dict[int, int] = {}
        self.changes: list[Row] = []
        self.decoded = self.undecodable = 0

    def add(self, row: Row) -> Row:
        """Add the next row of `share_group_state`; return it as it is now."""
        figures = {name: row[name] for name in CAME_BACK}
        if row["reason"] is not None:
            kept = {name: row[name] for name in _KEPT}
            row = kept | decode_row(row["verbatim_key"], row["verbatim_value"], self._max_record_bytes)
            if row["reason"] is None:
                self.decoded += 1
                self._changed_from.setdefault(row["record_partition"], row["record_offset"])
            else:
                self.undecodable += 1
        changes = self._states.add(row)
        if not self.is_changed(row):
            return row | figures
        self.changes += changes
        return row

    def is_changed(self, row: Row) -> bool:
        """Return whether the results of a row rest on one that was decoded now."""
        first = self._changed_from.get(row["record_partition"])
        return first is not None and row["record_offset"] >= first
