"""Rows of the history tables in Arrow: read line by line, changed in some columns, compared with the row before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def lines(rows: pa.Table, names: Iterable[str]) -> Iterator[tuple[Any, ...]]:
    """Return some columns of each row."""
    return zip(*(rows[name].to_pylist() for name in names), strict=True)


def with_values(rows: pa.Table, columns: Mapping[str, Sequence[Any] | pa.Array]) -> pa.Table:
    """Return rows with other values in some columns, whose types stay."""
    for name, values in columns.items():
        field = rows.schema.field(name)
        column = values if isinstance(values, pa.Array) else pa.array(values, field.type)
        rows = rows.set_column(rows.column_names.index(name), field, column)
    return rows


def with_rows(
    rows: pa.Table, numbers: Sequence[int] | npt.NDArray[np.int_], columns: Mapping[str, Sequence[Any]]
) -> pa.Table:
    """Return rows of which those with some numbers have other values in some columns."""
    order = np.arange(len(rows))
    order[numbers] = len(rows) + np.arange(len(numbers))
    for name, values in columns.items():
        other = pa.array(values, rows[name].type)
        column = pa.chunked_array([*rows[name].chunks, other], other.type).combine_chunks()
        rows = with_values(rows, {name: column.take(pa.array(order))})
    return rows


def equals_before(columns: Iterable[pa.Array]) -> npt.NDArray[np.bool_]:
    """Return for each row whether it has these values in common with the one before."""
    codes = [column.dictionary_encode().indices.to_numpy(zero_copy_only=False) for column in columns]
    equal = np.ones(len(codes[0]), np.bool_)
    equal[:1] = False
    for code in codes:
        equal[1:] &= code[1:] == code[:-1]
    return equal
