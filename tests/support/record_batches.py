"""Record batches of message format 2, built with kafka-python as a producer and a broker would."""

from __future__ import annotations

from collections.abc import Sequence

from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.util import calc_crc32c

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
ABORT, COMMIT = b"\0\0\0\0", b"\0\0\0\1"
NOW = 1_700_000_000_000

Pair = tuple[bytes | None, bytes | None]


def batch(
    first: int, records: Sequence[Pair], *, codec: int = 0, producer: int = -1, append_time: bool = False
) -> bytes:
    """Return a batch with records at offsets from `first` on, a millisecond apart; a producer's are transactional.

    Every second record has a header.
    """
    epoch = 0 if producer >= 0 else -1
    builder = DefaultRecordBatchBuilder(2, codec, producer >= 0, producer, epoch, epoch, 1 << 20)
    for index, (key, value) in enumerate(records):
        builder.append(index, NOW + first + index, key, value, [("header", b"x")] if index % 2 else [])
    built = bytearray(builder.build())
    if append_time:
        built[22] |= 0x08
        seal(built)
    return at(built, first)


def marker(offset: int, producer: int, kind: bytes) -> bytes:
    """Return the control batch that ends a producer's transaction."""
    builder = DefaultRecordBatchBuilder(2, 0, True, producer, 0, -1, 1 << 20)
    builder.append(0, NOW + offset, kind, b"\0\0\0\0\0\0", [])
    built = bytearray(builder.build())
    built[22] |= 0x20
    seal(built)
    return at(built, offset)


def seal(built: bytearray) -> None:
    """Write the CRC of a batch that was changed."""
    built[17:21] = calc_crc32c(memoryview(built)[21:]).to_bytes(4, "big")


def at(built: bytes | bytearray, offset: int) -> bytes:
    """Set the base offset, which the CRC does not cover because brokers write it."""
    return offset.to_bytes(8, "big") + bytes(built[8:])
