"""Records of the offsets topic without a broker, as the decode job reads them."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle

from grouptrail.kafka.record_schema import RECORD_SCHEMA

Record = tuple[int, int, datetime, bytes | None, bytes | None]
"""A record's partition, offset, time, key and value."""


# Spark's workers cannot import the tests' modules.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class RecordsInMemory:
    """Reads ranges of some records.

    `transactional` are the partitions and offsets of those that were written in a transaction.
    """

    def __init__(self, records: Sequence[Record], transactional: Collection[tuple[int, int]] = ()) -> None:
        names = RECORD_SCHEMA.names
        self._records = pa.Table.from_pylist(
            [
                {**dict(zip(names, record, strict=False)), "is_transactional": record[:2] in transactional}
                for record in sorted(records, key=lambda one: one[:2])
            ],
            RECORD_SCHEMA,
        )

    def __enter__(self) -> RecordsInMemory:
        return self

    def __exit__(self, *_: object) -> None: ...

    def read(self, ranges: Mapping[int, tuple[int, int]]) -> Iterator[pa.RecordBatch]:
        """Yield the records of some ranges of offsets by partition, a few at a time."""
        wanted: list[Any] = [
            ranges.get(partition, (0, 0))[0] <= offset < ranges.get(partition, (0, 0))[1]
            for partition, offset in zip(
                self._records["record_partition"].to_pylist(), self._records["record_offset"].to_pylist(), strict=True
            )
        ]
        yield from self._records.filter(pa.array(wanted, pa.bool_())).to_batches(max_chunksize=5)
