"""Number names, a whole column at a time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

UNKNOWN = -1
"""An offset or a time that is not known."""


class Index:
    """Names numbered in the order in which they were first seen."""

    def __init__(self) -> None:
        self.names = pa.array([], pa.string())

    def __len__(self) -> int:
        return len(self.names)

    def of(self, names: pa.Array) -> Ints:
        """Return the numbers of names; new names get the next ones."""
        found = pc.index_in(names, self.names)
        if found.null_count:
            self.names = pa.concat_arrays([self.names, pc.unique(names.filter(pc.is_null(found)))])
            found = pc.index_in(names, self.names)
        return ints(found)


def partition_names(topics: Any, partitions: Any) -> pa.Array:
    """Return `topic/partition`, which is unambiguous: a topic's name has no slash."""
    return whole(pc.binary_join_element_wise(topics, pc.cast(partitions, pa.string()), "/"))


def position_names(topics: Any, partitions: Any, groups: Any) -> pa.Array:
    """Return `topic/partition/group`."""
    return whole(pc.binary_join_element_wise(partition_names(topics, partitions), whole(groups), "/"))


def whole(column: Any) -> pa.Array:
    """Return a column of a table as one array."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def ints(column: Any, unknown: int = UNKNOWN) -> Ints:
    """Return integers, or the microseconds of timestamps; `unknown` for nulls."""
    if pa.types.is_timestamp(column.type):
        column = pc.cast(column, pa.int64())
    return np.asarray(pc.fill_null(pc.cast(whole(column), pa.int64()), unknown))


def moment(micros: int) -> datetime:
    """Return the time of a number of microseconds since 1970."""
    return _EPOCH + timedelta(microseconds=micros)


def at_numbers(column: Ints, numbers: Ints) -> Ints:
    """Return a column's values at these numbers; `UNKNOWN` for numbers past its end, which were added later."""
    missing = int(numbers.max(initial=-1)) + 1 - len(column)
    return (np.concatenate([column, np.full(missing, UNKNOWN)]) if missing > 0 else column)[numbers]
