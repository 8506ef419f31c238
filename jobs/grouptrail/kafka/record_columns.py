"""The records of record batches as Arrow columns, without a Python object for each record.

kafka-python makes an object of each record, at several times the cost of decoding it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from kafka.errors import CorruptRecordError

from grouptrail.kafka.client_internals import RecordBatch, record_batches, uncompressed_records
from grouptrail.kafka.record_schema import RECORD_SCHEMA

_NOTHING = pa.RecordBatch.from_pylist([], schema=RECORD_SCHEMA)

Ints = npt.NDArray[np.int64]

Record = tuple[int, int, bytes | None, bytes | None, bool, int]
"""A record's offset, timestamp (ms), key, value, whether it was written in a transaction, and its leader's epoch (-1:
not known)."""

_FORMAT = 2
_MOST_VARINT_BYTES = 10
# Within a record, in this order: its key, what is between, its value, and all up to the next record's key.
_PARTS = 4


class Fetched(NamedTuple):
    """Records of one partition (`RECORD_SCHEMA`, perhaps none), and the offset to continue from."""

    records: pa.RecordBatch
    next_offset: int


def fetched(partition: int, offset: int, content: bytes, aborted: Iterable[Any]) -> Fetched:
    """Return the committed records that a broker has returned for a partition from an offset on.

    `content` is in Kafka's record batches, `aborted` the fetch response's `aborted_transactions`. Raises
    CorruptRecordError.
    """
    batches = list(_valid(partition, record_batches(content)))
    if not batches:
        return Fetched(_NOTHING, offset)
    last = batches[-1]
    next_offset = last.next_offset if last.magic == _FORMAT else last.base_offset + 1
    columns = list(columns_of(partition, committed(batches, aborted)))
    # A broker returns whole batches: the first may begin before the offset.
    return Fetched(within(pa.concat_batches(columns), offset) if columns else _NOTHING, next_offset)


def _valid(partition: int, batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        if not batch.validate_crc():
            raise CorruptRecordError(
                f"partition {partition}: the batch at offset {batch.base_offset} has a wrong CRC"
            )
        yield batch


def committed(batches: Iterable[Any], aborted: Iterable[Any]) -> Iterator[Any]:
    """Yield kafka-python's batches without markers and the batches of aborted transactions (KIP-98).

    A transaction counts as aborted from its first offset to its producer's next marker of an abort.
    """
    waiting = deque(sorted(aborted, key=lambda transaction: transaction.first_offset))
    producers = set()
    for batch in batches:
        if batch.magic < _FORMAT:
            yield batch
            continue
        while waiting and waiting[0].first_offset <= batch.last_offset:
            producers.add(waiting.popleft().producer_id)
        if batch.is_control_batch:
            if (marker := next(batch, None)) is not None and marker.abort:
                producers.discard(batch.producer_id)
        elif not (batch.is_transactional and batch.producer_id in producers):
            yield batch


def within(records: pa.RecordBatch, start: int, end: int | None = None) -> pa.RecordBatch:
    """Return the records of one partition that have offsets [start, end); no end: all from the start."""
    offsets = records.column("record_offset").to_numpy()
    first = int(np.searchsorted(offsets, start))
    return records.slice(first, None if end is None else int(np.searchsorted(offsets, end)) - first)


def columns_of(partition: int, batches: Iterable[Any]) -> Iterator[pa.RecordBatch]:
    """Yield the records of kafka-python's batches, in order; out: batches of `RECORD_SCHEMA`.

    Raises CorruptRecordError for a batch whose records do not fit their lengths.
    """
    for magic, some in groupby(batches, lambda batch: batch.magic):
        records = (_current if magic == _FORMAT else _old)(partition, list(some))
        if len(records):
            yield records


def _old(partition: int, batches: list[Any]) -> pa.RecordBatch:
    """Return the records of message formats 0 and 1, which came before Kafka 0.11, transactions and epochs."""
    records = (one for batch in batches for one in batch)
    return of_records(partition, [(one.offset, one.timestamp or 0, one.key, one.value, False, -1) for one in records])


def of_records(partition: int, records: Sequence[Record]) -> pa.RecordBatch:
    """Return records that were read one by one as a batch of `RECORD_SCHEMA`."""
    offsets, times, keys, values, are_transactional, epochs = zip(*records, strict=True) if records else ((),) * 6
    return _batch(
        partition,
        np.array(offsets, np.int64),
        np.array(times, np.int64),
        keys=pa.array(keys, pa.binary()),
        values=pa.array(values, pa.binary()),
        is_transactional=np.array(are_transactional, np.bool_),
        leader_epochs=np.array(epochs, np.int32),
    )


def _current(partition: int, batches: list[Any]) -> pa.RecordBatch:
    """Return the records of message format 2."""
    contents = [uncompressed_records(batch) for batch in batches]
    try:
        return _records(partition, batches, contents)
    except (IndexError, ValueError) as error:
        raise CorruptRecordError(
            f"partition {partition}: a batch from offset {batches[0].base_offset} on has records that do not fit it"
        ) from error


def _spans(content: bytes) -> tuple[Ints, Ints]:
    """Return where each record begins, behind its length, and ends."""
    starts: list[int] = []
    ends: list[int] = []
    at, end = 0, len(content)
    while at < end:
        # The length is a zigzag varint: most often of one or two bytes.
        length = content[at]
        at += 1
        if length >= 0x80:
            length &= 0x7F
            for shift in range(7, 7 * _MOST_VARINT_BYTES, 7):
                octet = content[at]
                at += 1
                length |= (octet & 0x7F) << shift
                if octet < 0x80:
                    break
        if length & 1:
            raise ValueError("a record has a negative length")
        starts.append(at)
        at += length >> 1
        ends.append(at)
    if at != end:
        raise ValueError("the last record is cut off")
    return np.array(starts, np.int64), np.array(ends, np.int64)


def _records(partition: int, batches: list[Any], contents: list[memoryview]) -> pa.RecordBatch:
    content = b"".join(contents)
    starts, ends = _spans(content)
    counts = np.diff(np.searchsorted(starts, np.cumsum([len(one) for one in contents])), prepend=0)
    if counts.tolist() != [batch.records_count for batch in batches]:
        raise ValueError("a batch has another number of records")

    octets = np.frombuffer(content, np.uint8)
    attributes_bytes = 1
    later_ms, at = _varints(octets, starts + attributes_bytes)
    later_offset, at = _varints(octets, at)
    key_length, key_start = _varints(octets, at)
    key_end = key_start + _within(key_length, content)
    value_length, value_start = _varints(octets, key_end)
    value_end = value_start + _within(value_length, content)
    if (value_end > ends).any():
        raise ValueError("a record is longer than its length")

    bounds = np.empty(_PARTS * len(starts) + 1, np.int32)
    for part, part_starts in enumerate((key_start, key_end, value_start, value_end)):
        bounds[part:-1:_PARTS] = part_starts
    bounds[-1] = len(content)
    parts = pa.BinaryArray.from_buffers(
        pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(content)]
    )
    keys = np.arange(0, len(bounds) - 1, _PARTS)

    base_offset = np.array([batch.base_offset for batch in batches], np.int64)
    attributes = np.array([batch.attributes for batch in batches], np.int64).repeat(counts)
    leader_epochs = np.array([batch.leader_epoch for batch in batches], np.int32).repeat(counts)
    is_append_time = attributes & RecordBatch.TIMESTAMP_TYPE_MASK
    first_ms, newest_ms = (
        np.array([getattr(batch, name) for batch in batches], np.int64).repeat(counts)
        for name in ("first_timestamp", "max_timestamp")
    )
    return _batch(
        partition,
        base_offset.repeat(counts) + later_offset,
        np.where(is_append_time, newest_ms, first_ms + later_ms),
        keys=parts.take(pa.array(keys, mask=key_length < 0)),
        values=parts.take(pa.array(keys + 2, mask=value_length < 0)),
        is_transactional=attributes & RecordBatch.TRANSACTIONAL_MASK != 0,
        leader_epochs=leader_epochs,
    )


def _within(lengths: Ints, content: bytes) -> Ints:
    """Return lengths with 0 for that of a null."""
    if (lengths > len(content)).any():
        raise ValueError("a key or value is longer than its batch")
    return np.maximum(lengths, 0)


def _varints(octets: npt.NDArray[np.uint8], at: Ints) -> tuple[Ints, Ints]:
    """Return the zigzag varints at positions, and the positions behind them."""
    octet = octets[at]
    number = (octet & 0x7F).astype(np.uint64)
    at = at + 1
    longer = np.flatnonzero(octet >= 0x80)
    for shift in range(7, 7 * _MOST_VARINT_BYTES, 7):
        if not len(longer):
            break
        octet = octets[at[longer]]
        number[longer] |= (octet & 0x7F).astype(np.uint64) << np.uint64(shift)
        at[longer] += 1
        longer = longer[octet >= 0x80]
    return (number >> np.uint64(1)).astype(np.int64) ^ -(number & np.uint64(1)).astype(np.int64), at


def _batch(
    partition: int,
    offsets: Ints,
    ms: Ints,
    *,
    keys: pa.Array,
    values: pa.Array,
    is_transactional: npt.NDArray[np.bool_],
    leader_epochs: npt.NDArray[np.int32],
) -> pa.RecordBatch:
    times = pa.array(ms * 1000).cast(RECORD_SCHEMA.field("record_at").type)
    where = pa.array(np.full(len(offsets), partition, np.int32))
    epochs = pa.array(leader_epochs, mask=leader_epochs < 0)
    columns = [where, pa.array(offsets), times, keys, values, pa.array(is_transactional), epochs]
    return pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)
