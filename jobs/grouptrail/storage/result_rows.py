"""Rows of a query's result as plain values; timestamps are UTC, and text as ISO 8601; bytes are base64."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any

from arro3.core import Array, DataType, RecordBatch, Schema

Row = Sequence[Any]


def column_names(schema: Schema) -> list[str]:
    """Return the names of the columns; the second of two equal names becomes `name_2`."""
    seen: dict[str, int] = {}
    names = []
    for name in schema.names:
        seen[name] = seen.get(name, 0) + 1
        names.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return names


def rows(batches: Iterable[RecordBatch]) -> Iterator[Row]:
    """Yield rows of str, int, float, bool, list, dict or None; times and durations are text in ISO 8601."""
    for batch in batches:
        yield from zip(*(_values(column) for column in batch.columns), strict=True)


def first_rows(batches: Iterable[RecordBatch], most: int) -> tuple[list[Row], int]:
    """Return at most this many rows, and the number of all rows; the others are counted without being decoded."""
    first: list[Row] = []
    count = 0
    for batch in batches:
        count += batch.num_rows
        if wanted := min(most - len(first), batch.num_rows):
            first += rows([batch.slice(0, wanted)])
    return first, count


def _values(column: Array) -> Iterable[Any]:
    # Python's datetime ends at the year 9999 and needs the machine's time zones.
    if DataType.is_temporal(column.type):
        return column.cast(DataType.string()).to_pylist()
    return map(_plain, column.to_pylist())


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return int(value) if isinstance(value, Decimal) and value == value.to_integral_value() else str(value)
