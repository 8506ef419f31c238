"""Write events to `broker_log_events`, each once, whoever reads the same lines at the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from grouptrail.storage.engines.engine import Once
from grouptrail.storage.engines.retries import with_retries

if TYPE_CHECKING:
    from grouptrail.broker_log.reading import Row
    from grouptrail.storage.table import Table
    from grouptrail.storage.warehouse import Warehouse

EVENTS = "broker_log_events"

# All that append to the table note the same application: who has not seen the last append does not append.
_APP = "broker-log"
_TRIES = 30


def write_events(warehouse: Warehouse, rows: Sequence[Row]) -> int:
    """Append the rows that the table does not have, and return how many; the table must exist.

    A doubt about an event is kept whichever reading found it: rows that the table has without it get it.
    """
    table = warehouse.table(EVENTS)
    first, last = (warehouse.literal(bound(row["logged_at"] for row in rows)) for bound in (min, max))
    by_id: dict[str, Row] = {}
    for row in rows:
        before = by_id.get(row["event_id"])
        by_id[row["event_id"]] = row if before is None or before["doubt"] is None else before

    def known() -> Mapping[str, str | None]:
        written = table.select("event_id, doubt", f"AND logged_at BETWEEN {first} AND {last}")
        return {row["event_id"]: row["doubt"] for row in written}

    count = _append(table, f"{_APP}-{warehouse.cluster}", by_id, known)
    with_retries(lambda: _note_doubts(table, by_id, known), _TRIES)
    return count


def _append(table: Table, app: str, rows: Mapping[str, Row], known: Any) -> int:
    """Append until all rows are there: an append that another one came before is not done."""
    count = None
    while True:
        version = table.last_version(app)
        written = known()
        new = [row for event_id, row in rows.items() if event_id not in written]
        count = len(new) if count is None else count
        if not new:
            return count
        table.append_rows(new, Once(app, version + 1))


def _note_doubts(table: Table, rows: Mapping[str, Row], known: Any) -> None:
    if all(row["doubt"] is None for row in rows.values()):
        return
    opened = table.open()
    assert opened is not None
    changed = [
        {**rows[event_id], "cluster": table.cluster}
        for event_id, doubt in known().items()
        if doubt is None and event_id in rows and rows[event_id]["doubt"] is not None
    ]
    if changed:
        table.update(pa.Table.from_pylist(changed, table.schema), opened.version())
