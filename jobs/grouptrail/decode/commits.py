"""The vectorised path: offset commits decoded by numpy over whole Arrow buffers, no Python per record.

It decodes the offset commits that Kafka itself writes. All other records are left to the interpreter (`rows`), which
decodes anything and returns the same rows. Supported are key types 0 and 1 with exactly their fields, a null value or
versions 0 to 4 in the encoding of Kafka's writer, times that fit a timestamp, and strings that are UTF-8.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from grouptrail.decode.schema import COMMITS, own_columns
from grouptrail.decode.times import MAX_MS, MIN_MS

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Octets = npt.NDArray[np.uint8]

_KEY_FIXED_BYTES = 10
_UUID_BYTES = 16
_UUID_TEXT_BYTES = 22
_BASE64 = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", np.uint8)
_PADDING = np.zeros(_UUID_BYTES, np.uint8)


class Slices:
    """The values of a binary column as one buffer, with the start and length of each."""

    def __init__(self, column: pa.Array) -> None:
        _, offsets, data = column.buffers()
        ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
        first, last = int(ends[0]), int(ends[-1])
        content = np.frombuffer(data, np.uint8)[first:last] if data is not None else _PADDING[:0]
        self.data: Octets = np.concatenate([content, _PADDING])
        self.start: Ints = ends[:-1] - first
        self.length: Ints = np.diff(ends)

    def integers(self, form: str, at: Ints) -> Ints:
        """Return the big-endian integers at byte positions.

        A position beyond the buffer reads somewhere inside it, so the caller must check, before or after, that the
        position is within the record.
        """
        width = np.dtype(form).itemsize
        view: npt.NDArray[Any] = np.ndarray(len(self.data) - width + 1, form, self.data, strides=(1,))
        return view[np.clip(at, 0, len(view) - 1)].astype(np.int64)

    def octets(self, at: Ints) -> Ints:
        """Return the single bytes at positions."""
        return self.data.take(at, mode="clip").astype(np.int64)

    def texts(self, start: Ints, length: Ints) -> tuple[pa.Array, Bools | None]:
        """Return strings of the buffer, and which of them are not UTF-8 (None: all are)."""
        ends = np.zeros(len(start) + 1, np.int32)
        np.cumsum(length, out=ends[1:])
        source = np.repeat((start - ends[:-1]).astype(np.int32), length)
        source += np.arange(len(source), dtype=np.int32)
        data = self.data[source]
        strings = pa.StringArray.from_buffers(len(start), pa.py_buffer(ends), pa.py_buffer(data))
        if not len(data) or data.max() < 0x80:
            return strings, None
        try:
            strings.validate(full=True)
        except pa.ArrowInvalid:
            return strings, _not_utf8(strings)
        return strings, None


def _not_utf8(strings: pa.Array) -> Bools:
    """Return which values of a string array are not UTF-8, by a slow check of each one."""
    faulty = np.zeros(len(strings), np.bool_)
    for index, value in enumerate(strings.cast(pa.binary())):
        try:
            value.as_py().decode("utf-8")
        except UnicodeDecodeError:
            faulty[index] = True
    return faulty


@dataclass
class _Key:
    plain: Bools
    type: Ints
    group: pa.Array
    topic: pa.Array
    partition: Ints


@dataclass
class _Value:
    slices: Slices
    null: Bools
    plain: Bools
    version: Ints
    offset: Ints
    leader_epoch: Ints
    metadata_start: Ints
    metadata_length: Ints
    commit_ms: Ints
    expire_ms: Ints
    topic_id_at: Ints
    has_topic_id: Bools


def decode_commits(key: pa.Array, value: pa.Array) -> tuple[Bools, pa.RecordBatch]:
    """Decode the plain offset commits among records.

    In: the keys and values of records, binary. Out: which records were decoded, and the columns of `offset_commits`
    (without those that every decoded row shares) for these, in order.
    """
    # Keys repeat: each is read once. A null key is no more a commit's than an empty one.
    keys = (key.fill_null(b"") if key.null_count else key).dictionary_encode()
    of_key = keys.indices.to_numpy()
    key_fields = _read_keys(Slices(keys.dictionary))
    value_fields = _read_values(Slices(value), _nulls(value))
    plain = key_fields.plain[of_key]
    plain &= value_fields.null | (value_fields.plain & ((key_fields.type[of_key] == 1) | (value_fields.version == 0)))

    while True:
        rows = np.flatnonzero(plain)
        columns, faulty = _columns(rows, of_key[rows], key_fields, value_fields)
        if faulty is None:
            batch = pa.RecordBatch.from_pydict(columns, schema=own_columns(COMMITS))
            return plain, batch
        plain[rows[faulty]] = False


def _nulls(column: pa.Array) -> Bools:
    if not column.null_count:
        return np.zeros(len(column), np.bool_)
    return np.asarray(column.is_null().to_numpy(zero_copy_only=False), np.bool_)


def _read_keys(keys: Slices) -> _Key:
    start, length = keys.start, keys.length
    plain = length >= _KEY_FIXED_BYTES
    type_ = keys.integers(">i2", start)
    group_length = keys.integers(">i2", start + 2)
    plain &= ((type_ == 0) | (type_ == 1)) & (group_length >= 0) & (group_length <= length - _KEY_FIXED_BYTES)
    topic_at = start + 4 + group_length
    topic_length = keys.integers(">i2", topic_at)
    plain &= (topic_length >= 0) & (length == _KEY_FIXED_BYTES + group_length + topic_length)
    group, group_faulty = keys.texts(start + 4, np.where(plain, group_length, 0))
    topic, topic_faulty = keys.texts(topic_at + 2, np.where(plain, topic_length, 0))
    for faulty in (group_faulty, topic_faulty):
        if faulty is not None:
            plain &= ~faulty
    partition = keys.integers(">i4", topic_at + 2 + topic_length)
    return _Key(plain, type_, group, topic, partition)


def _read_values(values: Slices, null: Bools) -> _Value:
    start, length = values.start, values.length
    version = values.integers(">i2", start)
    plain = ~null & (length >= 2) & (version >= 0) & (version <= 4)
    compact = version == 4
    has_epoch = version >= 3
    text_at = start + np.where(has_epoch, 14, 10)
    first, second = values.octets(text_at), values.octets(text_at + 1)
    two_bytes = compact & (first >= 0x80)
    plain &= ~two_bytes | ((second > 0) & (second < 0x80))
    compact_length = np.where(two_bytes, (first & 0x7F) | (second << 7), first) - 1
    text_length = np.where(compact, compact_length, values.integers(">i2", text_at))
    plain &= (text_length >= 0) & (text_length <= length)
    text_start = text_at + np.where(compact, 1 + two_bytes, 2)

    commit_at = text_start + text_length
    commit_ms = values.integers(">i8", commit_at)
    has_expiry = version == 1
    expire_ms = np.where(has_expiry, values.integers(">i8", commit_at + 8), -1)
    tags_at = commit_at + 8
    has_topic_id = compact & (values.octets(tags_at) == 1)
    topic_id_at = tags_at + 3
    end = tags_at + np.where(has_expiry, 8, 0) + compact + np.where(has_topic_id, 2 + _UUID_BYTES, 0)
    plain &= end == start + length
    plain &= ~compact | has_topic_id | (values.octets(tags_at) == 0)
    plain &= ~has_topic_id | (
        (values.integers(">i2", tags_at + 1) == _UUID_BYTES)
        & ((values.integers(">i8", topic_id_at) != 0) | (values.integers(">i8", topic_id_at + 8) != 0))
    )
    for time_ms in (commit_ms, expire_ms):
        plain &= (time_ms >= MIN_MS) & (time_ms <= MAX_MS)
    return _Value(
        slices=values,
        null=null,
        plain=plain,
        version=version,
        offset=values.integers(">i8", start + 2),
        leader_epoch=np.where(has_epoch, values.integers(">i4", start + 10), -1),
        metadata_start=text_start,
        metadata_length=text_length,
        commit_ms=commit_ms,
        expire_ms=expire_ms,
        topic_id_at=topic_id_at,
        has_topic_id=has_topic_id,
    )


def _columns(
    rows: Ints, of_key: npt.NDArray[np.int32], key: _Key, value: _Value
) -> tuple[dict[str, pa.Array], Bools | None]:
    """Return the table's columns for some rows, or which of the rows have a string that is not UTF-8."""
    values, gone = value.slices, value.null[rows]
    metadata_length = np.where(gone, 0, value.metadata_length[rows])
    metadata, faulty = values.texts(value.metadata_start[rows], metadata_length)
    if faulty is not None:
        return {}, faulty
    columns = {
        "group_id": key.group.take(pa.array(of_key)),
        "topic": key.topic.take(pa.array(of_key)),
        "partition": pa.array(key.partition[of_key].astype(np.int32)),
        "committed_offset": pa.array(value.offset[rows], mask=gone),
        "leader_epoch": _unless_unknown(value.leader_epoch[rows], gone, pa.int32()),
        "metadata": _with_nulls(metadata, gone),
        "commit_at": _timestamps(value.commit_ms[rows], gone),
        "expire_at": _timestamps(value.expire_ms[rows], gone),
        "topic_id": _uuids(values, value.topic_id_at[rows], ~gone & value.has_topic_id[rows]),
        "key_type": pa.array(key.type[of_key].astype(np.int16)),
        "value_version": pa.array(value.version[rows].astype(np.int16), mask=gone),
        "is_tombstone": pa.array(gone),
        "verbatim_key": pa.nulls(len(rows), pa.binary()),
        "verbatim_value": pa.nulls(len(rows), pa.binary()),
    }
    return columns, None


def _unless_unknown(numbers: Ints, gone: Bools, type_: pa.DataType) -> pa.Array:
    return pa.array(numbers, mask=gone | (numbers == -1)).cast(type_)


def _timestamps(times_ms: Ints, gone: Bools) -> pa.Array:
    mask = gone | (times_ms == -1)
    return pa.array(np.where(mask, 0, times_ms) * 1000, mask=mask).cast(pa.timestamp("us", tz="UTC"))


def _with_nulls(strings: pa.Array, null: Bools) -> pa.Array:
    if not null.any():
        return strings
    _, offsets, data = strings.buffers()
    validity = pa.py_buffer(np.packbits(~null, bitorder="little"))
    return pa.StringArray.from_buffers(len(strings), offsets, data, validity, int(null.sum()))


def _uuids(values: Slices, at: Ints, present: Bools) -> pa.Array:
    """Return Kafka's text of the UUID at each position, if present. Topics are few, so each is encoded once."""
    here = at[present]
    if not len(here):
        return pa.nulls(len(at), pa.string())
    content = np.empty(len(here), "V16")
    windows: npt.NDArray[Any] = np.ndarray(len(values.data) - _UUID_BYTES + 1, "V16", values.data, strides=(1,))
    content[:] = windows[here]
    uuids = pa.FixedSizeBinaryArray.from_buffers(pa.binary(_UUID_BYTES), len(here), [None, pa.py_buffer(content)])
    encoded = uuids.dictionary_encode()
    distinct = np.frombuffer(encoded.dictionary.buffers()[1], np.uint8)[: len(encoded.dictionary) * _UUID_BYTES]
    indices = np.zeros(len(at), np.int32)
    indices[present] = encoded.indices.to_numpy()
    return _uuid_texts(distinct.reshape(-1, _UUID_BYTES)).take(pa.array(indices, mask=~present))


def _uuid_texts(uuids: Octets) -> pa.Array:
    """Return URL-safe base64 without padding of rows of 16 bytes."""
    padded = np.zeros((len(uuids), 18), np.uint8)
    padded[:, :_UUID_BYTES] = uuids
    triples = padded.reshape(len(uuids), 6, 3)
    a, b, c = triples[:, :, 0], triples[:, :, 1], triples[:, :, 2]
    sextets = np.stack([a >> 2, (a & 3) << 4 | b >> 4, (b & 15) << 2 | c >> 6, c & 63], axis=2)
    text = np.ascontiguousarray(_BASE64[sextets].reshape(len(uuids), 24)[:, :_UUID_TEXT_BYTES])
    ends = np.arange(len(uuids) + 1, dtype=np.int32) * _UUID_TEXT_BYTES
    return pa.StringArray.from_buffers(len(uuids), pa.py_buffer(ends), pa.py_buffer(text))
