"""Apply what the brokers' log proves to rows that are in the history tables already, also to closed ones.

The history job may write the same tables at the same time: rows are computed and written from one version, and again
from the next one after a conflict. The job applies the events that it finds to the rows that it writes
(`folded_rows`), and calls this if more have come meanwhile, so that rows have them whoever is last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from grouptrail.history.broker_log_conclusions import CAUSE_COLUMNS, ENDING_COLUMNS
from grouptrail.history.broker_log_evidence import CLOCKS, JOIN_PHASE
from grouptrail.history.broker_log_rows import (
    AT,
    EVENTS,
    LEFT_AT,
    LoggedEvents,
    Piece,
    TimedRows,
    differing_rows,
    leavers_of,
    memberships_with_log,
    rebalances_with_log,
)
from grouptrail.history.folded_rows import MEMBERSHIPS, REBALANCES
from grouptrail.history.tasks import POSITIONS, REBUILDING
from grouptrail.query.formats import counted
from grouptrail.storage.engines.retries import with_retries
from grouptrail.storage.rows import has_columns

if TYPE_CHECKING:
    from grouptrail.storage.reader import OpenTable
    from grouptrail.storage.table import Table
    from grouptrail.storage.warehouse import Warehouse

# A history job writes every few seconds, and computing the rows takes less than one.
_TRIES = 30
_LEAVER_COLUMNS = ("group_id", "incarnation", "to_generation", "departed")


@dataclass(frozen=True)
class Updated:
    """How many rows have changed, or the reason why none was looked at; false if none has changed."""

    rebalances: int = 0
    memberships: int = 0
    reason: str | None = None

    def __bool__(self) -> bool:
        return bool(self.rebalances or self.memberships)

    def __str__(self) -> str:
        causes = counted(self.rebalances, "rebalance")
        endings = counted(self.memberships, "ending of a membership", "endings of memberships")
        return self.reason or f"history: {causes} and {endings} updated"


def apply_events(warehouse: Warehouse, first: datetime, last: datetime) -> Updated:
    """Apply all events to the rows that those logged between two times may be about."""
    tables = warehouse.tables((REBALANCES, MEMBERSHIPS))
    reason = None
    if any(table.open() is None for table in tables):
        reason = "there is no history yet: the history job applies the events to the rows that it writes"
    elif not all(has_columns(table.open(), table.schema) for table in tables):
        reason = "the history was written by an earlier version: grouptrail rebuild history applies the events to it"
    elif warehouse.table(POSITIONS).has_rows(f"record_partition = {REBUILDING}"):
        reason = "a rebuild of the history is running or was interrupted: it applies the events"
    return Updated(reason=reason) if reason else update_rows(warehouse, first - CLOCKS, last + JOIN_PHASE)


def update_rows(warehouse: Warehouse, first: datetime, last: datetime) -> Updated:
    """Apply all events to the rows of rebalances and of ends between two times."""
    events = LoggedEvents(warehouse.table(EVENTS))
    rebalances = memberships = 0
    for piece in events.pieces(first, last):
        of_members = TimedRows(warehouse.table(MEMBERSHIPS), LEFT_AT, piece.first, piece.last)
        of_rebalances = TimedRows(warehouse.table(REBALANCES), AT, piece.first, piece.last)
        rebalances += _update_rebalances(_Window(of_rebalances, piece))
        memberships += _update_memberships(_Window(of_members, piece), of_rebalances.table)
    return Updated(rebalances, memberships)


@dataclass(frozen=True)
class _Window:
    """Rows of a table in a time range, of the groups of some events."""

    rows: TimedRows
    events: Piece

    def read(self, opened: OpenTable, columns: Sequence[str]) -> pa.Table:
        schema = pa.schema([self.rows.table.schema.field(name) for name in columns])
        groups = pa.array(list(self.events.by_group), pa.string())
        return pa.concat_tables([schema.empty_table(), *self.rows.read(opened, columns, groups)])


def _update_rebalances(window: _Window) -> int:
    return _update(window, CAUSE_COLUMNS, lambda rows: rebalances_with_log(rows, window.events))


def _update_memberships(window: _Window, rebalances: Table) -> int:
    first, last = window.rows.first - JOIN_PHASE, window.rows.last + JOIN_PHASE
    near = _Window(TimedRows(rebalances, AT, first, last), window.events)

    def concluded(rows: pa.Table) -> pa.Table:
        opened = rebalances.open()
        assert opened is not None
        return memberships_with_log(rows, leavers_of(near.read(opened, _LEAVER_COLUMNS)), window.events)

    return _update(window, ENDING_COLUMNS, concluded)


def _update(window: _Window, columns: tuple[str, ...], concluded: Callable[[pa.Table], pa.Table]) -> int:
    """Update the rows of a window that `concluded` changes in some columns, and return how many."""
    table = window.rows.table

    def update() -> int:
        opened = table.open()
        assert opened is not None
        rows = window.read(opened, table.schema.names)
        changed = differing_rows(rows, concluded(rows), columns)
        if len(changed):
            table.update(changed, opened.version())
        return len(changed)

    return with_retries(update, _TRIES)
