"""The interpreter: turn a layout into codecs that read and write Kafka's encodings.

A codec reads at a position and returns the value and the position after it; it raises only `WireError`. Values are
plain Python: int, str (also for UUIDs, in Kafka's text form), bytes, list, dict by field name. Encodings follow
Kafka's message protocol (KIP-482 for flexible versions): offsets-topic keys and old versions are fixed-length,
flexible ones use compact lengths and end every struct with tagged fields.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from struct import Struct, error
from typing import Any, Protocol

from grouptrail.wire.errors import WireError
from grouptrail.wire.layout import Field, Message, messages

UNKNOWN_TAGS = "_unknownTaggedFields"
_MAX_STRING = 32767


class Codec(Protocol):
    """Reads and writes one type. `zero` is the value of an absent tagged field of the type."""

    @property
    def zero(self) -> Any: ...

    def read(self, data: bytes, at: int) -> tuple[Any, int]: ...

    def write(self, value: Any, out: bytearray) -> None: ...


class Fixed:
    """A big-endian integer."""

    zero = 0

    def __init__(self, form: str) -> None:
        self.form = form
        self._struct = Struct(">" + form)
        self._size = self._struct.size

    def read(self, data: bytes, at: int) -> tuple[int, int]:
        try:
            return self._struct.unpack_from(data, at)[0], at + self._size
        except error:
            raise WireError("truncated", at) from None

    def write(self, value: int, out: bytearray) -> None:
        out += self._struct.pack(value)


_INTEGERS: dict[str, Fixed] = {
    "int8": Fixed("b"),
    "int16": Fixed("h"),
    "uint16": Fixed("H"),
    "int32": Fixed("i"),
    "int64": Fixed("q"),
}


class Uuid:
    """16 bytes, as Kafka prints them: URL-safe base64 without padding."""

    zero = "A" * 22

    def read(self, data: bytes, at: int) -> tuple[str, int]:
        if len(data) - at < 16:
            raise WireError("truncated", at)
        return base64.urlsafe_b64encode(data[at : at + 16])[:22].decode("ascii"), at + 16

    def write(self, value: str, out: bytearray) -> None:
        out += base64.urlsafe_b64decode(value + "==")


class Varint:
    """An unsigned varint of at most 32 bits; Kafka reads it into a signed int, so it may come out negative."""

    zero = 0

    def read(self, data: bytes, at: int) -> tuple[int, int]:
        value = 0
        for index in range(5):
            if at + index >= len(data):
                raise WireError("truncated", at)
            byte = data[at + index]
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                value &= 0xFFFFFFFF
                return value - (1 << 32) if value >> 31 else value, at + index + 1
        raise WireError("bad_varint", at)

    def write(self, value: int, out: bytearray) -> None:
        value &= 0xFFFFFFFF
        while value > 0x7F:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        out.append(value)


_VARINT = Varint()


class Length:
    """The length before a string, bytes or list; negative means null. Compact ones store length + 1."""

    def __init__(self, *, compact: bool, width: str, nullable: bool) -> None:
        self._codec: Varint | Fixed = _VARINT if compact else _INTEGERS[width]
        self._shift = 1 if compact else 0
        self._nullable = nullable

    def read(self, data: bytes, at: int) -> tuple[int, int]:
        length, start = self._codec.read(data, at)
        length -= self._shift
        if length < 0 and not self._nullable:
            raise WireError("null_not_allowed", at)
        if length > len(data) - start:
            raise WireError("length_exceeds_input", at)
        return length, start

    def write(self, length: int, out: bytearray) -> None:
        self._codec.write(length + self._shift, out)


class Text:
    """A UTF-8 string. `strict` rejects bytes that are not UTF-8; otherwise they become U+FFFD, as in Java."""

    zero = ""

    def __init__(self, *, compact: bool, nullable: bool, strict: bool) -> None:
        self._length = Length(compact=compact, width="int16", nullable=nullable)
        self._strict = strict

    def read(self, data: bytes, at: int) -> tuple[str | None, int]:
        length, start = self._length.read(data, at)
        if length < 0:
            return None, start
        if length > _MAX_STRING:
            raise WireError("length_not_allowed", at)
        end = start + length
        try:
            return data[start:end].decode("utf-8", "strict" if self._strict else "replace"), end
        except UnicodeDecodeError as fault:
            raise WireError("not_utf8", start + fault.start) from None

    def write(self, value: str | None, out: bytearray) -> None:
        if value is None:
            return self._length.write(-1, out)
        encoded = value.encode("utf-8")
        self._length.write(len(encoded), out)
        out += encoded
        return None


class Utf16:
    """A string as UTF-16, big-endian, after the number of its code units, as Kafka Streams writes a topology's name.

    Unpaired surrogates, which Java allows and UTF-8 does not, are an error.
    """

    zero = ""

    def __init__(self) -> None:
        self._length = Length(compact=False, width="int32", nullable=False)

    def read(self, data: bytes, at: int) -> tuple[str, int]:
        units, start = self._length.read(data, at)
        end = start + 2 * units
        if end > len(data):
            raise WireError("length_exceeds_input", at)
        try:
            return data[start:end].decode("utf-16-be"), end
        except UnicodeDecodeError as fault:
            raise WireError("not_utf8", start + fault.start) from None

    def write(self, value: str, out: bytearray) -> None:
        encoded = value.encode("utf-16-be")
        self._length.write(len(encoded) // 2, out)
        out += encoded


_PLAIN: dict[str, Codec] = {**_INTEGERS, "uuid": Uuid(), "utf16": Utf16()}


class Octets:
    """Bytes."""

    zero = b""

    def __init__(self, *, compact: bool, nullable: bool) -> None:
        self._length = Length(compact=compact, width="int32", nullable=nullable)

    def read(self, data: bytes, at: int) -> tuple[bytes | None, int]:
        length, start = self._length.read(data, at)
        if length < 0:
            return None, start
        return data[start : start + length], start + length

    def write(self, value: bytes | None, out: bytearray) -> None:
        self._length.write(-1 if value is None else len(value), out)
        out += value or b""


class Embedded:
    """A versioned blob inside bytes, e.g. a Connect worker's allocation: `{"version": …, "data": {…}}`."""

    zero = None

    def __init__(self, message: Message, *, strict: bool) -> None:
        self._octets = Octets(compact=False, nullable=True)
        self._message = message
        self._strict = strict

    def read(self, data: bytes, at: int) -> tuple[dict[str, Any] | None, int]:
        content, end = self._octets.read(data, at)
        if content is None:
            return None, end
        try:
            version, values, _ = read_message(self._message, content, strict=self._strict)
        except WireError as fault:
            raise WireError(fault.kind, end - len(content) + fault.position) from None
        return {"version": version, "data": values}, end

    def write(self, value: dict[str, Any] | None, out: bytearray) -> None:
        self._octets.write(
            None if value is None else write_message(self._message, value["version"], value["data"]), out
        )


class ListOf:
    """A list of one type."""

    def __init__(self, item: Codec, *, compact: bool, nullable: bool) -> None:
        self._length = Length(compact=compact, width="int32", nullable=nullable)
        self._item = item

    @property
    def zero(self) -> list[Any]:
        return []

    def read(self, data: bytes, at: int) -> tuple[list[Any] | None, int]:
        count, at = self._length.read(data, at)
        if count < 0:
            return None, at
        if isinstance(self._item, StructOf) and self._item.packed is not None:
            end = at + count * self._item.packed.size
            if end <= len(data):
                return [self._item.named(values) for values in self._item.packed.iter_unpack(data[at:end])], end
        items = []
        for _ in range(count):
            item, at = self._item.read(data, at)
            items.append(item)
        return items, at

    def write(self, value: list[Any] | None, out: bytearray) -> None:
        self._length.write(-1 if value is None else len(value), out)
        for item in value or ():
            self._item.write(item, out)


class NullableStruct:
    """A nullable struct after its presence marker: an int8, or a varint if the field is tagged."""

    def __init__(self, struct: StructOf, *, tagged: bool) -> None:
        self._struct = struct
        self._marker: Varint | Fixed = _VARINT if tagged else _INTEGERS["int8"]
        self._null = 0 if tagged else -1

    @property
    def zero(self) -> dict[str, Any]:
        return self._struct.zero

    def read(self, data: bytes, at: int) -> tuple[dict[str, Any] | None, int]:
        marker, at = self._marker.read(data, at)
        return (None, at) if marker <= self._null else self._struct.read(data, at)

    def write(self, value: dict[str, Any] | None, out: bytearray) -> None:
        self._marker.write(self._null if value is None else 1, out)
        if value is not None:
            self._struct.write(value, out)


@dataclass(frozen=True)
class Tagged:
    """A known tagged field: Kafka omits it from both bytes and JSON if it has its default."""

    name: str
    codec: Codec
    default: Any


class StructOf:
    """Fields in order, then tagged fields in flexible versions. Unknown tags are kept under `UNKNOWN_TAGS`.

    `packed` reads all fields at once if they are integers alone, and there are no tags; a list has thousands of them.
    """

    def __init__(
        self,
        fields: Sequence[tuple[str, Codec]],
        tagged: dict[int, Tagged],
        *,
        flexible: bool,
        tail_from: int | None,
        tail_as_null: bool,
    ) -> None:
        self._fields = tuple(fields)
        self._tagged = tagged
        self._flexible = flexible
        self._tail_from = len(self._fields) if tail_from is None else tail_from
        self._tail_as_null = tail_as_null
        self._names = tuple(name for name, _ in self._fields)
        integers = [codec for _, codec in self._fields if isinstance(codec, Fixed)]
        is_packed = bool(integers) and len(integers) == len(self._fields) and not flexible and tail_from is None
        self.packed = Struct(">" + "".join(codec.form for codec in integers)) if is_packed else None

    def named(self, values: Sequence[Any]) -> dict[str, Any]:
        """Return the fields of a packed struct."""
        return dict(zip(self._names, values, strict=True))

    @property
    def zero(self) -> dict[str, Any]:
        return {name: codec.zero for name, codec in self._fields}

    def read(self, data: bytes, at: int) -> tuple[dict[str, Any], int]:
        values: dict[str, Any] = {}
        for index, (name, codec) in enumerate(self._fields):
            if index >= self._tail_from and at == len(data):
                if not self._tail_as_null:
                    raise WireError("truncated_tail", at)
                values[name] = 0 if codec.zero == 0 else None
            else:
                values[name], at = codec.read(data, at)
        return self._read_tags(values, data, at) if self._flexible else (values, at)

    def read_before_fault(self, data: bytes, at: int) -> dict[str, Any]:
        """Return the fields before the first one that cannot be read."""
        values: dict[str, Any] = {}
        with suppress(WireError):
            for name, codec in self._fields:
                values[name], at = codec.read(data, at)
        return values

    def _read_tags(self, values: dict[str, Any], data: bytes, at: int) -> tuple[dict[str, Any], int]:
        count, at = _VARINT.read(data, at)
        for _ in range(count):
            tag, at = _VARINT.read(data, at)
            size, start = _VARINT.read(data, at)
            known = self._tagged.get(tag)
            if known is not None:
                values[known.name], at = known.codec.read(data, start)
                if at - start != size:
                    raise WireError("tag_size_mismatch", start)
            else:
                if not 0 <= size <= len(data) - start:
                    raise WireError("length_exceeds_input", at)
                at = start + size
                values.setdefault(UNKNOWN_TAGS, {})[str(tag)] = data[start:at]
        for known in self._tagged.values():
            if known.name in values and values[known.name] == known.default:
                del values[known.name]
        return values, at

    def write(self, value: dict[str, Any], out: bytearray) -> None:
        for name, codec in self._fields:
            codec.write(value[name], out)
        if self._flexible:
            self._write_tags(value, out)

    def _write_tags(self, value: dict[str, Any], out: bytearray) -> None:
        payloads: dict[int, bytes] = {int(tag): raw for tag, raw in value.get(UNKNOWN_TAGS, {}).items()}
        for tag, known in self._tagged.items():
            if known.name in value:
                payload = bytearray()
                known.codec.write(value[known.name], payload)
                payloads[tag] = bytes(payload)
        _VARINT.write(len(payloads), out)
        for tag, raw in sorted(payloads.items()):
            _VARINT.write(tag, out)
            _VARINT.write(len(raw), out)
            out += raw


@dataclass(frozen=True)
class _Builder:
    """Builds the codecs of one message in one version."""

    message: Message
    version: int
    flexible: bool
    strict: bool

    def struct(self, fields: Sequence[Field], *, is_body: bool = False) -> StructOf:
        here = [field for field in fields if self.version in field.versions]
        plain = [field for field in here if field.tag is None]
        is_blob_body = is_body and self.message.type is None
        later = [index for index, field in enumerate(plain) if field.versions.first > 0]
        return StructOf(
            [(field.name, self.field(field)) for field in plain],
            {field.tag: self.tagged(field) for field in here if field.tag is not None},
            flexible=self.flexible,
            tail_from=later[0] if is_blob_body and later else None,
            tail_as_null=self.message.missing_tail_as_null,
        )

    def tagged(self, field: Field) -> Tagged:
        codec = self.field(field)
        return Tagged(field.name, codec, codec.zero if field.default is None else field.default)

    def field(self, field: Field) -> Codec:
        if field.is_list:
            return ListOf(self.type(field, nullable=False), compact=self.flexible, nullable=field.nullable)
        return self.type(field, nullable=field.nullable)

    def type(self, field: Field, *, nullable: bool) -> Codec:
        if field.type in _PLAIN:
            return _PLAIN[field.type]
        if field.type == "string":
            return Text(compact=self.flexible, nullable=nullable, strict=self.strict)
        if field.type == "bytes":
            return Octets(compact=self.flexible, nullable=nullable)
        if field.type in self.message.structs:
            struct = self.struct(self.message.structs[field.type])
            return NullableStruct(struct, tagged=field.tag is not None) if nullable else struct
        return Embedded(messages()[field.type], strict=self.strict)


@cache
def key_codec(message: Message, *, strict: bool) -> StructOf:
    """Return the codec of a record type's key, after the type."""
    return _Builder(message, 0, flexible=False, strict=strict).struct(message.key)


@cache
def value_codec(message: Message, version: int, *, strict: bool) -> StructOf:
    """Return the codec of a value or blob in one version, after the version."""
    flexible = message.flexible is not None and version in message.flexible
    return _Builder(message, version, flexible, strict).struct(message.value, is_body=True)


def read_message(message: Message, data: bytes, *, strict: bool) -> tuple[int, dict[str, Any], int]:
    """Read a version-prefixed value or blob: return its version, its fields and the position after them."""
    version, codec, at = _read_version(message, data, strict=strict)
    values, at = codec.read(data, at)
    return version, values, at


def read_before_fault(message: Message, data: bytes, *, strict: bool) -> tuple[int, dict[str, Any]]:
    """Read a version-prefixed blob that is malformed: return its version and the fields before the first bad one."""
    version, codec, at = _read_version(message, data, strict=strict)
    return version, codec.read_before_fault(data, at)


def _read_version(message: Message, data: bytes, *, strict: bool) -> tuple[int, StructOf, int]:
    version, at = _version_codec(message).read(data, 0)
    layout_version = message.read_as(version)
    if layout_version is None:
        raise WireError("unknown_version", 0)
    return version, value_codec(message, layout_version, strict=strict), at


def _version_codec(message: Message) -> Fixed:
    return _INTEGERS[message.prefix or "int16"]


def write_message(message: Message, version: int, values: dict[str, Any]) -> bytes:
    """Return the bytes of a value or blob: the inverse of `read_message`."""
    layout_version = message.read_as(version)
    if layout_version is None:
        raise ValueError(f"{message.name} has no version {version}")
    out = bytearray()
    _version_codec(message).write(version, out)
    value_codec(message, layout_version, strict=True).write(values, out)
    return bytes(out)
