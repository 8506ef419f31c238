"""Number partitions and positions, a whole column at a time."""

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


# A partition, a topic or a group has a number below this one, so that two of them make one integer.
_MOST = np.int64(1 << 31)


class _Index:
    """Values numbered in the order in which they were first seen."""

    def __init__(self, type_: pa.DataType) -> None:
        self.values = pa.array([], type_)

    def __len__(self) -> int:
        return len(self.values)

    def of(self, values: pa.Array) -> Ints:
        """Return the numbers of values; new values get the next ones."""
        found = pc.index_in(values, self.values)
        if found.null_count:
            self.values = pa.concat_arrays([self.values, pc.unique(values.filter(pc.is_null(found)))])
            found = pc.index_in(values, self.values)
        return ints(found)


class _Names(_Index):
    def __init__(self) -> None:
        super().__init__(pa.string())

    def of(self, values: Any) -> Ints:
        """Return the numbers of names, each looked up once."""
        encoded = whole(values).dictionary_encode()
        return super().of(encoded.dictionary)[ints(encoded.indices)]

    def ranks(self) -> Ints:
        """Return the place of each name in alphabetical order."""
        return _ranks(np.asarray(pc.sort_indices(self.values)))


class PartitionIndex:
    """Numbers partitions, and positions, which are those of a group in a partition.

    Numbers are compared instead of names: with a million positions that takes a fraction of the time.
    """

    def __init__(self) -> None:
        self._topics, self._groups = _Names(), _Names()
        self._partitions, self._positions = _Index(pa.int64()), _Index(pa.int64())
        self._ranks = np.empty(0, np.int64)

    @property
    def partition_count(self) -> int:
        """How many partitions are known."""
        return len(self._partitions)

    @property
    def position_count(self) -> int:
        """How many positions are known."""
        return len(self._positions)

    def partitions(self, rows: pa.Table) -> Ints:
        """Return the numbers of the partitions of rows. In: topic, partition."""
        return self._partitions.of(pa.array(self._topics.of(rows["topic"]) * _MOST + ints(rows["partition"])))

    def positions(self, rows: pa.Table, partitions: Ints) -> Ints:
        """Return the numbers of the positions of rows, whose `partitions` are known. In: group_id."""
        return self._positions.of(pa.array(self._groups.of(rows["group_id"]) * _MOST + partitions))

    def order(self, positions: Ints) -> Ints:
        """Return the order of positions, given by number, by the names of group and topic, and by partition."""
        if len(self._ranks) != len(self._positions):
            groups, partitions = np.divmod(np.asarray(self._positions.values), _MOST)
            topics, numbers = np.divmod(np.asarray(self._partitions.values)[partitions], _MOST)
            self._ranks = _ranks(np.lexsort((numbers, self._topics.ranks()[topics], self._groups.ranks()[groups])))
        return np.argsort(self._ranks[positions])


def _ranks(order: Ints) -> Ints:
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    return ranks


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
