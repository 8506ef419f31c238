"""Errors of bytes that cannot be decoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Where = Literal["key", "value", "blob"]

KINDS = {
    "truncated": "the input ends inside a fixed-size field or a varint",
    "truncated_tail": "an embedded blob ends exactly before a field that its version should have",
    "empty": "an embedded blob of length zero, which assignors write for a member with no partitions",
    "unknown_type": "the key's type is none that this version of grouptrail knows",
    "unknown_version": "the value's version is none that this version of grouptrail knows",
    "null_not_allowed": "null, or a negative length, where the field may not be null",
    "length_exceeds_input": "a length or count larger than the bytes that are left",
    "length_not_allowed": "a string longer than the 32767 bytes that Kafka allows",
    "bad_varint": "a varint of more than five bytes",
    "tag_size_mismatch": "a known tagged field that is not as long as its size says",
    "too_large": "a key or value of more bytes than the configured limit",
    "not_utf8": "a string that is not UTF-8, which a text column could not give back",
}


class WireError(Exception):
    """Raised inside a codec, and caught where a whole key, value or blob is decoded."""

    def __init__(self, kind: str, position: int) -> None:
        super().__init__(kind, position)
        self.kind = kind
        self.position = position


@dataclass(frozen=True, slots=True)
class Undecodable:
    """Why bytes cannot be decoded: `kind` is one of `KINDS`, `position` the byte where reading stopped."""

    where: Where
    kind: str
    position: int
