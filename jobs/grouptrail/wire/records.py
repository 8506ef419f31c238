"""Decode and encode whole records of `__consumer_offsets` and `__share_group_state`: key and value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from grouptrail.wire.codec import key_codec, read_message, write_message
from grouptrail.wire.errors import Undecodable, WireError
from grouptrail.wire.layout import Coordinator, Message, record_types

_TYPE_BYTES = 2


@dataclass(frozen=True, slots=True)
class Key:
    """A record's key: `type` as in `schemas/wire/`, `data` its fields by Kafka's names, `coordinator` its writer."""

    type: int
    data: dict[str, Any]
    coordinator: Coordinator = "group"


@dataclass(frozen=True, slots=True)
class Value:
    """A record's value in one version of its layout."""

    version: int
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Record:
    """A decoded record. Without error and value it is a tombstone; with an error, `key` is set if it was readable."""

    key: Key | None
    value: Value | None
    error: Undecodable | None = None


def decode_record(
    key: bytes | None,
    value: bytes | None,
    *,
    coordinator: Coordinator = "group",
    strict: bool = True,
    max_bytes: int | None = None,
) -> Record:
    """Decode one record that a coordinator wrote; never raises.

    A key or value of more than `max_bytes` is not decoded, because that takes thirty times its size in memory.

    `strict` treats a string that is not UTF-8 as undecodable, so that decoded records can be encoded to the same
    bytes; otherwise such bytes become U+FFFD, as Kafka's own tools print them. Bytes after the last field are
    ignored, as Kafka does.
    """
    if max_bytes is not None and len(key or b"") > max_bytes:
        return Record(None, None, Undecodable("key", "too_large", max_bytes))
    try:
        decoded_key = _decode_key(key, coordinator, strict=strict)
    except WireError as fault:
        return Record(None, None, Undecodable("key", fault.kind, fault.position))
    if value is None:
        return Record(decoded_key, None)
    if max_bytes is not None and len(value) > max_bytes:
        return Record(decoded_key, None, Undecodable("value", "too_large", max_bytes))
    try:
        version, data, _ = read_message(_layout(decoded_key), value, strict=strict)
    except WireError as fault:
        return Record(decoded_key, None, Undecodable("value", fault.kind, fault.position))
    return Record(decoded_key, Value(version, data))


def _decode_key(key: bytes | None, coordinator: Coordinator, *, strict: bool) -> Key:
    if key is None:
        raise WireError("null_not_allowed", 0)
    if len(key) < _TYPE_BYTES:
        raise WireError("truncated", 0)
    type_ = int.from_bytes(key[:_TYPE_BYTES], "big", signed=True)
    message = record_types(coordinator).get(type_)
    if message is None:
        raise WireError("unknown_type", 0)
    data, _ = key_codec(message, strict=strict).read(key, _TYPE_BYTES)
    return Key(type_, data, coordinator)


def _layout(key: Key) -> Message:
    return record_types(key.coordinator)[key.type]


def encode_key(key: Key) -> bytes:
    """Return the bytes of a key."""
    out = bytearray(key.type.to_bytes(_TYPE_BYTES, "big", signed=True))
    key_codec(_layout(key), strict=True).write(key.data, out)
    return bytes(out)


def encode_value(key: Key, value: Value | None) -> bytes | None:
    """Return the bytes of a value of the key's type; None, Kafka's null, for a tombstone."""
    return None if value is None else write_message(_layout(key), value.version, value.data)
