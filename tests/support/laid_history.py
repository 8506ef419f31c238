"""Rows of a folded history, written to the tables without Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from grouptrail.config import Config
from support.history_tables import History
from support.small_tables import lay

_TIMES = {
    "memberships": ("joined_at", "left_at"),
    "rebalances": ("at", "ended_at", "previous_at"),
    "partition_ownership": ("owned_from", "owned_until"),
}


def lay_history(config: Config, history: History, *, read_on: timedelta = timedelta(hours=1)) -> None:
    """Write memberships, rebalances and owners; reading went on for some time after the last of them."""
    last_ms = 0
    for table, times in _TIMES.items():
        rows = [{**row, "handed_over": []} if table == "rebalances" else row for row in history.tables[table]]
        last_ms = max([last_ms, *(row[name] for row in rows for name in times if row[name] is not None)])
        lay(config, table, *({**row, **{name: _time(row[name]) for name in times}} for row in rows))
    lay(config, "ingest_progress", {"landed_at": datetime.fromtimestamp(last_ms / 1000, UTC) + read_on})


def _time(at_ms: int | None) -> Any:
    return None if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC)
