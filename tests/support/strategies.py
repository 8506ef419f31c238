"""Hypothesis strategies for records and blobs, made from the layouts themselves."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from grouptrail.wire.codec import UNKNOWN_TAGS
from grouptrail.wire.layout import Field, Message, messages, record_types
from grouptrail.wire.records import Key, Value, encode_key, encode_value
from support.wire_vectors import BLOBS, RECORDS, SHARE_RECORDS

Bytes = bytes | None

# For tests without parameters; parametrized tests use the profile's number of examples for each parameter.
MANY = settings(max_examples=5 * settings().max_examples)

_ENDS = {
    "int8": (-(1 << 7), (1 << 7) - 1),
    "int16": (-(1 << 15), (1 << 15) - 1),
    "uint16": (0, (1 << 16) - 1),
    "int32": (-(1 << 31), (1 << 31) - 1),
    "int64": (-(1 << 63), (1 << 63) - 1),
}
_ZEROS: dict[str, Any] = {"uuid": "A" * 22, "string": "", "bytes": b""}
UUIDS = st.binary(min_size=16, max_size=16).map(lambda raw: base64.urlsafe_b64encode(raw)[:22].decode("ascii"))
_LENGTHS = st.sampled_from(
    (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x7f\xff", b"\xff\xff", b"\x80\x80\x80", b"\0\0")
)


def is_flexible(message: Message, version: int) -> bool:
    """Return whether a version's structs end with tagged fields."""
    return message.flexible is not None and version in message.flexible


def versions(message: Message) -> list[int]:
    """Return every version that a message's layout has."""
    assert message.versions.last is not None
    return list(range(message.versions.first, message.versions.last + 1))


def struct(
    message: Message, fields: Sequence[Field], version: int, *, flexible: bool, with_unknown_tags: bool = False
) -> SearchStrategy[dict[str, Any]]:
    """Draw values of a struct as the decoder returns them: tagged fields with their default are omitted."""
    here = [field for field in fields if version in field.versions]
    plain = {field.name: _values(message, field, version) for field in here if field.tag is None}
    if not flexible:
        return st.fixed_dictionaries(plain)
    tagged = [field for field in here if field.tag is not None]
    unknown = st.dictionaries(
        st.integers(-(1 << 31), (1 << 31) - 1)
        .filter(lambda tag: tag not in {field.tag for field in tagged})
        .map(str),
        st.binary(max_size=40),
        min_size=1,
        max_size=3,
    )
    optional: dict[str, SearchStrategy[Any]] = {}
    (plain if with_unknown_tags else optional)[UNKNOWN_TAGS] = unknown
    for field in tagged:
        optional[field.name] = _but(_values(message, field, version), _default(message, field, version))
    return st.fixed_dictionaries(plain, optional=optional)


def _but(values: SearchStrategy[Any], default: Any) -> SearchStrategy[Any]:
    return values.filter(lambda value: bool(value != default))


def _values(message: Message, field: Field, version: int) -> SearchStrategy[Any]:
    values = _one(message, field, version)
    if field.is_list:
        values = st.lists(values, max_size=3)
    return st.none() | values if field.nullable else values


def _one(message: Message, field: Field, version: int) -> SearchStrategy[Any]:
    if field.type in _ENDS:
        low, high = _ENDS[field.type]
        return st.integers(low, high) | st.sampled_from([low, high, 0, max(low, -1)])
    if field.type == "uuid":
        return UUIDS
    if field.type in ("string", "utf16"):
        return st.text(max_size=12) | st.just("x" * 200)
    if field.type == "bytes":
        return st.binary(max_size=40)
    if field.type in message.structs:
        return struct(message, message.structs[field.type], version, flexible=is_flexible(message, version))
    inner = messages()[field.type]
    return st.sampled_from(versions(inner)).flatmap(
        lambda own: struct(inner, inner.value, own, flexible=False).map(lambda data: {"version": own, "data": data})
    )


def _default(message: Message, field: Field, version: int) -> Any:
    """Return the value of an absent tagged field in Kafka's generated classes."""
    if field.default is not None:
        return field.default
    if field.is_list:
        return []
    if field.type in message.structs:
        inner = [part for part in message.structs[field.type] if version in part.versions and part.tag is None]
        return {part.name: _default(message, part, version) for part in inner}
    return _ZEROS.get(field.type, 0)


def data(message: Message, version: int, *, with_unknown_tags: bool = False) -> SearchStrategy[dict[str, Any]]:
    """Draw values of a record's value or of a blob in one version; `with_unknown_tags`: in its outermost struct."""
    flexible = is_flexible(message, version)
    return struct(message, message.value, version, flexible=flexible, with_unknown_tags=with_unknown_tags)


def keys(message: Message) -> SearchStrategy[Key]:
    """Draw keys of a record type."""
    assert message.type is not None
    type_ = message.type
    fields = struct(message, message.key, 0, flexible=False)
    return fields.map(lambda data: Key(type_, data, message.coordinator))


@st.composite
def encoded_records(draw: DrawFn, types: Sequence[int] | None = None) -> tuple[bytes, Bytes]:
    """Draw the bytes of a decodable record or of its tombstone."""
    message = record_types()[draw(st.sampled_from(sorted(record_types()) if types is None else types))]
    key = draw(keys(message))
    version = draw(st.none() | st.sampled_from(versions(message)))
    value = None if version is None else Value(version, draw(data(message, version)))
    return encode_key(key), encode_value(key, value)


def mutated(original: bytes) -> SearchStrategy[bytes]:
    """Draw the bytes with some flipped, cut, inserted or overwritten by a wrong length."""
    return st.lists(_changes(), min_size=1, max_size=3).map(lambda changes: _changed(original, changes))


def _changes() -> SearchStrategy[tuple[str, int, bytes]]:
    places = st.integers(0, 1 << 16)
    return st.one_of(
        st.tuples(st.just("flip"), places, st.integers(0, 7).map(lambda bit: bytes([1 << bit]))),
        st.tuples(st.just("cut"), places, st.just(b"")),
        st.tuples(st.just("insert"), places, st.binary(min_size=1, max_size=4)),
        st.tuples(st.just("overwrite"), places, _LENGTHS | st.binary(min_size=1, max_size=4)),
    )


def _changed(original: bytes, changes: list[tuple[str, int, bytes]]) -> bytes:
    content = bytearray(original)
    for how, place, raw in changes:
        at = place % (len(content) + 1)
        if how == "flip" and at < len(content):
            content[at] ^= raw[0]
        elif how == "cut":
            del content[at:]
        elif how == "insert":
            content[at:at] = raw
        elif how == "overwrite":
            content[at : at + len(raw)] = raw
    return bytes(content)


@st.composite
def mutated_records(draw: DrawFn, source: SearchStrategy[tuple[Bytes, Bytes]] | None = None) -> tuple[Bytes, Bytes]:
    """Draw a record, by default one of the vectors, with its key, its value or both altered."""
    vectors = st.sampled_from([(vector.key, vector.value) for vector in RECORDS])
    key, value = draw(vectors if source is None else source)
    part = draw(st.sampled_from(("key", "value", "value", "both")))
    if key is not None and part != "value":
        key = draw(mutated(key))
    if value is not None and part != "key":
        value = draw(mutated(value))
    return key, value


SHARE_STATE_RECORDS = st.sampled_from([(vector.key, vector.value) for vector in SHARE_RECORDS])

ANY_RECORDS: SearchStrategy[tuple[Bytes, Bytes]] = st.one_of(
    st.tuples(st.none() | st.binary(max_size=60), st.none() | st.binary(max_size=120)),
    st.sampled_from([(vector.key, vector.value) for vector in RECORDS]),
    encoded_records(),
    mutated_records(),
    mutated_records(encoded_records()),
)


@st.composite
def mutated_blobs(draw: DrawFn) -> tuple[str, bytes]:
    """Draw the name of a layout and the altered bytes of one of its vectors."""
    vector = draw(st.sampled_from(BLOBS))
    assert vector.blob is not None
    assert vector.value is not None
    return vector.blob, draw(mutated(vector.value))
