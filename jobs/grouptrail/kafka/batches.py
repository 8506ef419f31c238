"""Record batches in the bytes of a log segment: message format 2 with any compression.

If a batch cannot be read, reading continues at the next complete one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from grouptrail.kafka.client_internals import RecordBatch as Batch

__all__ = ["CUT_OFF", "HEAD_BYTES", "OLD_FORMATS", "Batch", "batches", "message_format"]

# A batch begins with its base offset, its length from behind this field, the leader's epoch and the format.
_FRAME = struct.Struct(">qiib")
_BEHIND_LENGTH = struct.calcsize(">qi")
_MAGIC_AT = struct.calcsize(">qii")
_LEAST_BYTES = Batch.HEADER_STRUCT.size
_FORMAT = 2
OLD_FORMATS = (0, 1)

HEAD_BYTES = _FRAME.size
"""Number of bytes that `message_format` needs."""

CUT_OFF = "the batch is cut off"


def message_format(head: bytes) -> int | None:
    """Return the message format of the batch that these bytes begin; None if they begin none."""
    if len(head) < HEAD_BYTES:
        return None
    _, length, _, magic = _FRAME.unpack_from(head)
    return magic if magic == _FORMAT or (magic in OLD_FORMATS and length > 0) else None


def batches(content: memoryview, max_bytes: int) -> Iterator[tuple[int, Batch | str, int]]:
    """Yield the position and size of each complete batch, and of each part between, with the reason.

    Zeros are left out: a broker preallocates space.
    """
    position = 0
    while position < len(content):
        batch = _batch_at(content, position, max_bytes)
        if isinstance(batch, Batch):
            following = position + batch.size_in_bytes
        else:
            following = _next_batch(content, position, max_bytes)
        if isinstance(batch, Batch) or bytes(content[position:following]).strip(b"\0"):
            yield position, batch, following - position
        position = following


def _batch_at(content: memoryview, position: int, max_bytes: int) -> Batch | str:
    """Return the batch that begins at a position, or why there is none."""
    left = len(content) - position
    if left < _FRAME.size:
        return CUT_OFF
    _, length, _, magic = _FRAME.unpack_from(content, position)
    size = _BEHIND_LENGTH + length
    if magic in OLD_FORMATS and 0 < length <= left:
        return f"a batch of message format v{magic}, which brokers wrote before Kafka 0.11"
    if magic != _FORMAT or size < _LEAST_BYTES:
        return "no batch begins here"
    if size > left:
        return CUT_OFF
    if size > max_bytes:
        return f"the batch has {size:,} bytes: raise decode.max_segment_batch_bytes, and ingest these segments again"
    batch = Batch(content[position : position + size])
    return batch if batch.validate_crc() else "the batch is corrupt (wrong CRC)"


def _next_batch(content: memoryview, position: int, max_bytes: int) -> int:
    """Return the position of the next complete batch after one that cannot be read, or the content's end."""
    if len(content) - position >= _FRAME.size:
        behind = position + _BEHIND_LENGTH + max(_FRAME.unpack_from(content, position)[1], 1)
        if behind < len(content) and isinstance(_batch_at(content, behind, max_bytes), Batch):
            return int(behind)
    rest = bytes(content[position:])
    at = rest.find(bytes([_FORMAT]), _MAGIC_AT + 1)
    while at >= 0:
        if isinstance(_batch_at(content, position + at - _MAGIC_AT, max_bytes), Batch):
            return position + at - _MAGIC_AT
        at = rest.find(bytes([_FORMAT]), at + 1)
    return len(content)
