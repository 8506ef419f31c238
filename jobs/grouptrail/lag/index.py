"""Number partitions and positions, a whole column at a time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
_Column = TypeVar("_Column", Ints, Bools)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

MICROS = 1_000_000
"""A second: times are microseconds since 1970."""

UNKNOWN = -1
"""An offset or a time that is not known."""

# A partition, a topic or a group has a number below this one, so that two of them make one integer.
_MOST = np.int64(1 << 31)


class _Index:
    """Values numbered as they were first seen; those seen together, in order, so that neighbours stay neighbours."""

    def __init__(self, type_: pa.DataType) -> None:
        self.values = pa.array([], type_)
        self._last = self.values, np.empty(0, np.int64)

    def __len__(self) -> int:
        return len(self.values)

    def of(self, values: pa.Array) -> Ints:
        """Return the numbers of values; new values get the next ones."""
        if not len(values):
            return np.empty(0, np.int64)
        # Most samples have the positions of the one before, and looking up a million takes a while.
        if not values.equals(self._last[0]):
            numbers = pc.index_in(values, self.values)
            if numbers.null_count:
                new = pc.unique(values.filter(pc.is_null(numbers)))
                self.values = pa.concat_arrays([self.values, new.take(pc.sort_indices(new))])
                numbers = pc.index_in(values, self.values)
            self._last = values, ints(numbers)
        return self._last[1]


class _Names(_Index):
    def __init__(self) -> None:
        super().__init__(pa.string())

    def of(self, values: Any) -> Ints:
        """Return the numbers of names, each looked up once."""
        encoded = whole(values).dictionary_encode()
        return super().of(encoded.dictionary)[ints(encoded.indices)]


class PartitionIndex:
    """Numbers partitions, and positions, which are those of a group in a partition.

    Numbers are compared instead of names: with a million positions that takes a fraction of the time.
    """

    def __init__(self) -> None:
        self._topics, self._groups = _Names(), _Names()
        self._partitions, self._positions = _Index(pa.int64()), _Index(pa.int64())
        self._ranks = np.empty(0, np.int64)
        self._last_order = self._ranks, self._ranks

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

    def known_partitions(self, rows: pa.Table) -> Ints:
        """Return the numbers of the partitions of a few rows; `UNKNOWN` for those that have none."""
        topics = ints(pc.index_in(whole(rows["topic"]).cast(pa.string()), self._topics.values))
        partitions = topics * _MOST + ints(rows["partition"])
        return np.where(topics == UNKNOWN, UNKNOWN, ints(pc.index_in(pa.array(partitions), self._partitions.values)))

    def positions(self, rows: pa.Table, partitions: Ints) -> Ints:
        """Return the numbers of the positions of rows, whose `partitions` are known. In: group_id."""
        return self._positions.of(pa.array(self._groups.of(rows["group_id"]) * _MOST + partitions))

    def groups(self, positions: Ints) -> Ints:
        """Return the numbers of the groups of the positions with these numbers."""
        groups: Ints = np.asarray(self._positions.values)[positions] // _MOST
        return groups

    def names(self, partitions: Ints) -> list[tuple[str, int]]:
        """Return topic and partition of the partitions with these numbers."""
        topics, numbers = np.divmod(np.asarray(self._partitions.values)[partitions], _MOST)
        return list(zip(self._topics.values.take(pa.array(topics)).to_pylist(), numbers.tolist(), strict=True))

    def topics(self, partitions: Ints) -> pa.Array:
        """Return the topics of the partitions with these numbers."""
        return self._topics.values.take(pa.array(np.asarray(self._partitions.values)[partitions] // _MOST))

    def order(self, positions: Ints) -> Ints:
        """Return the order of positions, given by number, by the names of group and topic, and by partition."""
        if len(self._ranks) != len(self._positions):
            groups, partitions = np.divmod(np.asarray(self._positions.values), _MOST)
            topics, numbers = np.divmod(np.asarray(self._partitions.values)[partitions], _MOST)
            self._ranks = _ranks(
                np.lexsort((numbers, ranks(self._topics.values)[topics], ranks(self._groups.values)[groups]))
            )
            self._last_order = self._ranks[:0], self._ranks[:0]
        if not np.array_equal(positions, self._last_order[0]):
            self._last_order = positions, np.argsort(self._ranks[positions])
        return self._last_order[1]


def ranks(names: pa.Array) -> Ints:
    """Return the place of each name in alphabetical order."""
    return _ranks(np.asarray(pc.sort_indices(names)))


def _ranks(order: Ints) -> Ints:
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    return ranks


def whole(column: Any) -> pa.Array:
    """Return a column of a table as one array."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def ints(column: Any, unknown: int = UNKNOWN) -> Ints:
    """Return integers, or the microseconds of timestamps; `unknown` for nulls."""
    column = whole(column)
    # Each call of Arrow's kernels takes longer than reading the rows of a small sample.
    if pa.types.is_timestamp(column.type):
        column = column.view(pa.int64())
    elif column.type != pa.int64():
        column = column.cast(pa.int64())
    return np.asarray(column.fill_null(unknown) if column.null_count else column)


def floats(column: Any) -> Floats:
    """Return floating-point numbers; NaN for nulls."""
    column = whole(column)
    return np.asarray(column.fill_null(np.nan) if column.null_count else column, np.float64)


def moment(micros: int) -> datetime:
    """Return the time of a number of microseconds since 1970."""
    return _EPOCH + timedelta(microseconds=micros)


def micros(moment: datetime) -> int:
    """Return the microseconds of a time since 1970."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def at_numbers(column: Ints, numbers: Ints) -> Ints:
    """Return a column's values at these numbers; `UNKNOWN` for numbers past its end, which were added later."""
    if int(numbers.max(initial=-1)) < len(column):
        return column[numbers]
    values = np.full(len(numbers), UNKNOWN)
    is_known = numbers < len(column)
    values[is_known] = column[numbers[is_known]]
    return values


def lengthened(column: _Column, count: int) -> _Column:
    """Return a column with at least this many values: itself, or a longer one that ends with `UNKNOWN` or False."""
    missing = count - len(column)
    if missing <= 0:
        return column
    return np.concatenate([column, np.full(missing, False if column.dtype == np.bool_ else UNKNOWN)])


class Texts:
    """A text for each entry, or none. Most entries share one of a few, so that only the others are written out."""

    def __init__(self, count: int) -> None:
        self._number = np.full(count, UNKNOWN, np.int32)
        self._shared: dict[str, int] = {}
        self._parts: list[pa.Array] = []
        self._length = 0

    def set(self, entries: Ints, texts: str | pa.Array) -> None:
        """Set the text that entries share, or the text of each."""
        if not len(entries):
            return
        if not isinstance(texts, str):
            self._number[entries] = self._added(whole(texts)) + np.arange(len(texts))
            return
        if texts not in self._shared:
            self._shared[texts] = self._added(pa.array([texts]))
        self._number[entries] = self._shared[texts]

    @property
    def is_set(self) -> Bools:
        """Which entries have a text."""
        is_set: Bools = self._number != UNKNOWN
        return is_set

    def array(self) -> pa.Array:
        """Return the texts, null where there is none."""
        return self._texts().take(self._numbers())

    def codes(self) -> pa.Array:
        """Return the texts as dictionary codes; all of them must be shared ones."""
        return pa.DictionaryArray.from_arrays(self._numbers(), self._texts())

    def _added(self, texts: pa.Array) -> int:
        """Add texts and return the number of the first."""
        first = self._length
        self._parts.append(texts)
        self._length += len(texts)
        return first

    def _texts(self) -> pa.Array:
        return pa.concat_arrays([pa.array([], pa.string()), *self._parts])

    def _numbers(self) -> pa.Array:
        return pa.array(self._number, mask=self._number == UNKNOWN)


def sentences(*parts: str | pa.Array | Ints | Floats) -> pa.Array:
    """Return a text for each entry, of texts that all share or of each, and of numbers, rounded to whole ones."""
    columns = [
        part if isinstance(part, str | pa.Array) else pc.cast(pa.array(_rounded(part)), pa.string()) for part in parts
    ]
    return pc.binary_join_element_wise(*columns, "")


def _rounded(numbers: Ints | Floats) -> Ints:
    # Offsets above 2^53 are no floating-point numbers.
    rounded = np.rint(numbers) if numbers.dtype == np.float64 else numbers
    return rounded.astype(np.int64)


def nulls(count: int) -> pa.Array:
    """Return no text for each entry."""
    return pa.nulls(count, pa.string())


def valid(column: Any) -> Bools:
    """Return where a column has a value."""
    is_valid: Bools = np.asarray(whole(pc.is_valid(column)), bool)
    return is_valid
