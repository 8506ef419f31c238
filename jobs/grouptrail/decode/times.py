"""Kafka's millisecond times as table columns."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

UNKNOWN_MS = -1
MIN_MS = -62_135_596_800_000  # 0001-01-01
MAX_MS = 253_402_300_799_999  # 9999-12-31T23:59:59.999

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_time(time_ms: int | None) -> datetime | None:
    """Return Kafka's time; None if it is unknown (-1) or outside the range of timestamp columns."""
    if time_ms is None or time_ms == UNKNOWN_MS or not MIN_MS <= time_ms <= MAX_MS:
        return None
    return _EPOCH + timedelta(milliseconds=time_ms)


def from_time(time: datetime | None) -> int:
    """Return milliseconds, -1 for None: the inverse of `to_time`."""
    return UNKNOWN_MS if time is None else round((time - _EPOCH) / timedelta(milliseconds=1))
