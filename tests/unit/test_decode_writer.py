"""Which micro-batches the decode job decodes on the driver."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pyarrow as pa
import pytest

from grouptrail.decode.writer import DecodeBatchWriter
from grouptrail.kafka.log import Ranges
from grouptrail.storage.warehouse import Warehouse

MIB = 1 << 20


class Reader:
    """Yields a batch of bytes for each of some sizes, and counts them."""

    def __init__(self, sizes: list[int]) -> None:
        self._sizes = sizes
        self.read_batches = 0

    def read(self, _ranges: Ranges) -> Iterator[pa.RecordBatch]:
        for size in self._sizes:
            self.read_batches += 1
            yield pa.record_batch({"key": pa.array([bytes(size)], pa.binary())})


@pytest.mark.parametrize(
    ("location", "records", "sizes", "is_on_driver", "read_batches"),
    [
        ("/warehouse", 50_000, [MIB] * 31, True, 31),
        ("/warehouse", 50_001, [MIB], False, 0),
        ("/warehouse", 3, [16 * MIB, 17 * MIB, MIB], False, 2),
        ("hdfs://namenode/warehouse", 3, [MIB], False, 0),
    ],
    ids=["few", "many", "large", "store that only Spark supports"],
)
def test_decode_batch_writer_reads_on_the_driver_what_it_has_room_for(
    location: str, records: int, sizes: list[int], is_on_driver: bool, read_batches: int
) -> None:
    """It stops reading at the limit."""
    session, reader, unused = cast("Any", object()), Reader(sizes), cast("Any", None)
    writer = DecodeBatchWriter(
        Warehouse(location, "test", spark=session),
        records=cast("Any", reader),
        app=unused,
        end_offsets=unused,
        bounds=unused,
        max_record_bytes=unused,
        log=unused,
    )
    assert (writer._on_driver({0: (0, records)}) is not None) is is_on_driver
    assert reader.read_batches == read_batches
