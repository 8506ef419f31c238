"""Small Delta tables for tests of what is asked of them, of the contracts' columns."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from bench.simulated_groups import lay_rows
from grouptrail.config import Config

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)
HISTORY = ("generations", "group_states", "memberships", "partition_ownership", "rebalances", "ingest_progress")
_SHARED = {"cluster": "default", "group_id": "billing", "incarnation": 1, "record_partition": 9, "is_open": False}


def at(minute: float) -> datetime:
    """Return the time this many minutes after noon of 2026-03-04."""
    return NOON + timedelta(minutes=minute)


def lay(config: Config, table: str, *rows: dict[str, Any]) -> None:
    """Write rows, numbered by their offset if they have none; see `lay_rows` for other defaults."""
    numbered = ({**_SHARED, "record_offset": number, **row} for number, row in enumerate(rows))
    lay_rows(config, table, numbered, moment=at(0))
