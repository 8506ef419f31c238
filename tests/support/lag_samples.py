"""Commits and samples of the logs of one position, of group billing and orders-0, for tests of the lag."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from grouptrail.lag.calculator import LagCalculator, Rules
from grouptrail.lag.positions import COMMITS
from grouptrail.storage.schema import table_schema
from support.small_tables import NOON

LOGS = table_schema("log_offsets")
SECOND = 1_000_000

Row = dict[str, Any]


def at(seconds: float) -> datetime:
    """Return the time this many seconds after noon."""
    return NOON + timedelta(seconds=seconds)


def micros(seconds: float) -> int:
    """Return the time this many seconds after noon in microseconds since 1970."""
    return round(at(seconds).timestamp() * SECOND)


def commit(seconds: float, offset: int | None, **more: Any) -> Row:
    """Return a commit; without an offset, a tombstone. Later records have higher record offsets."""
    where = {"cluster": "c", "group_id": "billing", "topic": "orders", "partition": 0, "record_partition": 7}
    record = {"record_offset": round(seconds * 1000) + 10_000_000, "record_at": at(seconds), "commit_at": at(seconds)}
    return where | record | {"committed_offset": offset, "is_tombstone": offset is None} | more


def log(seconds: float, end: int | None, start: int = 0, **more: Any) -> Row:
    """Return a sample of the log; without an end, its leader did not answer."""
    where = {"cluster": "c", "topic": "orders", "partition": 0, "sampled_at": at(seconds), "asked_at": at(seconds)}
    bounds = {"log_start_offset": start, "last_stable_offset": end, "log_end_offset": end}
    return where | (bounds if end is not None else {"error": "broker 1 did not answer"}) | more


def new_calculator(*commits: Row, rules: Rules | None = None, **how: Any) -> LagCalculator:
    """Return a calculator that knows these commits."""
    calculator = LagCalculator("c", rules or Rules(), **how)
    add_commits(calculator, *commits)
    return calculator


def add_commits(calculator: LagCalculator, *commits: Row) -> None:
    """Add commits, whose order does not matter."""
    calculator.positions.add(pa.Table.from_pylist(list(commits), COMMITS))


def add_sample(calculator: LagCalculator, *logs: Row) -> None:
    """Add the rows of one sample."""
    calculator.add_sample(pa.Table.from_pylist(list(logs), LOGS))


def row_at(calculator: LagCalculator, *logs: Row, **how: Any) -> Row:
    """Add a sample and return the only row of `consumer_lag` at it."""
    add_sample(calculator, *logs)
    [row] = calculator.compute(how.pop("groups", {}), **how).to_pylist()
    return dict(row)
