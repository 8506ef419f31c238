"""The layouts of `schemas/wire/` as objects.

A field is one line, `name type [versions] [tag N] [= default]`: `[]` before the type is a list, `?` after it
means nullable, `3+` and `1` are the versions of the message that have it (default: all), and the default of a tagged
field is the value of an absent one (if not given: the type's own zero).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args

from grouptrail import contracts

Coordinator = Literal["group", "share"]
"""The writer of a record: group coordinators write `__consumer_offsets`, share coordinators `__share_group_state`.

Each numbers its record types from 0."""

COORDINATORS: tuple[Coordinator, ...] = get_args(Coordinator)

_FIELD = re.compile(
    r"(?P<name>[\w-]+) (?P<list>\[\])?(?P<type>\w+)(?P<null>\?)?"
    r"(?: (?P<versions>\d+(?:\+|-\d+)?))?(?: tag (?P<tag>\d+))?(?: = (?P<default>-?\d+))?"
)


@dataclass(frozen=True)
class Versions:
    """A closed range of versions; `last` None means all later ones."""

    first: int
    last: int | None

    @classmethod
    def parse(cls, text: str) -> Versions:
        """Parse `3+`, `1` or `0-4`."""
        if text.endswith("+"):
            return cls(int(text[:-1]), None)
        first, _, last = text.partition("-")
        return cls(int(first), int(last or first))

    def __contains__(self, version: int) -> bool:
        return self.first <= version and (self.last is None or version <= self.last)


@dataclass(frozen=True)
class Field:
    """One field of a message or struct."""

    name: str
    type: str
    is_list: bool
    nullable: bool
    versions: Versions
    tag: int | None
    default: int | None

    @classmethod
    def parse(cls, line: str) -> Field:
        """Parse one field line of a layout file."""
        match = _FIELD.fullmatch(line)
        if match is None:
            raise ValueError(f"schemas/wire: not a field: {line!r}")
        return cls(
            name=match["name"],
            type=match["type"],
            is_list=match["list"] is not None,
            nullable=match["null"] is not None,
            versions=Versions.parse(match["versions"] or "0+"),
            tag=None if match["tag"] is None else int(match["tag"]),
            default=None if match["default"] is None else int(match["default"]),
        )


@dataclass(frozen=True, eq=False)
class Message:
    """A record type (with `type` and `key`) or an embedded blob (without).

    `prefix` is the type of the version before the fields; None for a blob that has none.
    """

    name: str
    coordinator: Coordinator
    type: int | None
    key: tuple[Field, ...]
    versions: Versions
    flexible: Versions | None
    value: tuple[Field, ...]
    structs: Mapping[str, tuple[Field, ...]]
    prefix: str | None
    newer_as_highest: bool
    missing_tail_as_null: bool
    empty_allowed: bool
    readable_in_part: bool

    def read_as(self, version: int) -> int | None:
        """Return the version whose layout reads this one; None if there is none."""
        if version in self.versions:
            return version
        return self.versions.last if self.newer_as_highest and version >= 0 else None


def _fields(lines: list[str]) -> tuple[Field, ...]:
    return tuple(map(Field.parse, lines))


def _message(name: str, data: Mapping[str, Any]) -> Message:
    return Message(
        name=name,
        coordinator=data.get("coordinator", "group"),
        type=data.get("type"),
        key=_fields(data.get("key", [])),
        versions=Versions.parse(data["versions"]),
        flexible=Versions.parse(data["flexible"]) if "flexible" in data else None,
        value=_fields(data["value"]),
        structs={name: _fields(lines) for name, lines in data.get("structs", {}).items()},
        prefix=None if data.get("prefix") == "none" else data.get("prefix", "int16"),
        newer_as_highest="newer" in data,
        missing_tail_as_null="missing tail" in data,
        empty_allowed="empty" in data,
        readable_in_part="malformed" in data,
    )


@cache
def messages() -> Mapping[str, Message]:
    """Return every layout by its name."""
    return {name: _message(name, data) for name, data in contracts.wire_layouts().items()}


@cache
def record_types(coordinator: Coordinator = "group") -> Mapping[int, Message]:
    """Return the layouts of a coordinator's records by the type in their key."""
    own = (message for message in messages().values() if message.coordinator == coordinator)
    return {message.type: message for message in own if message.type is not None}
