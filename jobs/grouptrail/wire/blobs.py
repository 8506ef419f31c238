"""The blobs that group protocols put inside records: subscriptions, assignments and assignors' user data.

The group's protocol type and protocol decide which field contains which blob (ConsumerProtocol of KIP-429 and
KIP-881, the sticky assignors' user data, Connect's protocol of KIP-415); all others are opaque.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from grouptrail.wire.codec import read_before_fault, read_message, value_codec, write_message
from grouptrail.wire.errors import Undecodable, WireError
from grouptrail.wire.layout import Message, messages

SUBSCRIPTIONS = {"consumer": "ConsumerProtocolSubscription", "connect": "ConnectProtocolMetadata"}
ASSIGNMENTS = {"consumer": "ConsumerProtocolAssignment", "connect": "ConnectProtocolAssignment"}
USER_DATA = {
    "sticky": ("StickyAssignorUserData", "KafkaPythonStickyUserData"),
    "cooperative-sticky": ("CooperativeStickyAssignorUserData",),
}


@dataclass(frozen=True, slots=True)
class Blob:
    """A decoded blob.

    With an error there is neither version nor data, but for a layout that is read in part: then `data` has the fields
    before the one that cannot be read, at least the first.
    """

    name: str
    version: int | None = None
    data: dict[str, Any] | None = None
    error: Undecodable | None = None


def is_blob(name: str) -> bool:
    """Return whether a layout of that name exists and is a blob."""
    return name in messages() and messages()[name].type is None


def decode_blob(name: str, content: bytes, *, strict: bool = True) -> Blob:
    """Decode a blob by the name of its layout; never raises, except for unknown names (see `is_blob`)."""
    message = messages()[name]
    if not content and message.empty_allowed:
        return Blob(name, error=Undecodable("blob", "empty", 0))
    try:
        if message.prefix is not None:
            version, data, _ = read_message(message, content, strict=strict)
        else:
            version, data = _read_unprefixed(message, content, strict=strict)
    except WireError as fault:
        error = Undecodable("blob", fault.kind, fault.position)
        if message.readable_in_part:
            return _read_in_part(message, content, error, strict=strict)
        return Blob(name, error=error)
    return Blob(name, version, data)


def _read_in_part(message: Message, content: bytes, error: Undecodable, *, strict: bool) -> Blob:
    """Return what can be read of a malformed blob."""
    with suppress(WireError):
        version, data = read_before_fault(message, content, strict=strict)
        if data:
            return Blob(message.name, version, data, error)
    return Blob(message.name, error=error)


def _read_unprefixed(message: Message, content: bytes, *, strict: bool) -> tuple[int, dict[str, Any]]:
    """Read sticky user data, which has no version: the newest layout that fits is used."""
    version = message.versions.last or 0
    while True:
        try:
            data, _ = value_codec(message, version, strict=strict).read(content, 0)
        except WireError as fault:
            if version == 0 or fault.kind not in ("truncated", "truncated_tail"):
                raise
            version -= 1
        else:
            return version, data


def encode_blob(blob: Blob) -> bytes:
    """Return the bytes of a blob without error."""
    if blob.version is None or blob.data is None:
        raise ValueError(f"{blob.name}: an undecodable blob has no encoding")
    message = messages()[blob.name]
    if message.prefix is not None:
        return write_message(message, blob.version, blob.data)
    out = bytearray()
    value_codec(message, blob.version, strict=True).write(blob.data, out)
    return bytes(out)
