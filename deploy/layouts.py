"""`python -m layouts [KAFKA]`: compare the record layouts in `schemas/wire/` with those of a Kafka release.

Kafka's jars contain the definitions of its messages as JSON. Prints added (+) and removed (-) fields by record type
and version. Exit status: 0 no differences, 1 differences, 2 the jars could not be downloaded.
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from collections.abc import Iterator, Sequence
from difflib import unified_diff
from functools import cache, partial
from pathlib import Path
from typing import Any

from grouptrail.console.progress import Log
from grouptrail.errors import GrouptrailError
from grouptrail.spark.jars import fetch_jars, silent
from grouptrail.spark.java import cache_folder
from grouptrail.wire.layout import Field, Message, Versions, messages

NEWEST = "4.4.0"
"""The release that the layouts are derived from; its broker may be newer than those of the tests."""

Definition = dict[str, Any]

# A struct in the form that both sides are converted to: its fields in order, and its tagged fields by tag with their
# default. A field is its name, its type, whether it may be null, and its own struct.
Shape = tuple[list[Any], dict[int, Any]]


def fetch(release: str = NEWEST, log: Log = silent) -> Path:
    """Return the folder with the jars that define a release's messages; download them unless the broker is there."""
    broker = cache_folder() / "kafka" / release
    if broker.is_dir():
        return broker
    jars = tuple(f"org.apache.kafka:{jar}:{release}" for jar in _jars(release))
    return fetch_jars(f"kafka-definitions/{release}", alone=jars, log=log)


def _jars(release: str) -> tuple[str, ...]:
    """Return the names of the jars with message definitions; Kafka 3 has no share coordinator."""
    jars = ("kafka-group-coordinator", "kafka-clients")
    return jars if release.startswith("3.") else (*jars, "kafka-share-coordinator")


@cache
def definitions(release: str = NEWEST) -> dict[str, Definition]:
    """Return the message definitions of a release's group and share coordinators and clients, by name."""
    documents = {}
    for jar in _jars(release):
        with zipfile.ZipFile(fetch(release) / f"{jar}-{release}.jar") as archive:
            for name in archive.namelist():
                if name.startswith("common/message/") and name.endswith(".json"):
                    text = re.sub(r"^\s*//.*$", "", archive.read(name).decode("utf-8"), flags=re.MULTILINE)
                    documents[json.loads(text)["name"]] = json.loads(text)
    return documents


def record_names(release: str = NEWEST) -> list[str]:
    """Return the names of a release's record types, without the suffix `Key`."""
    kinds = ("coordinator-key", "data")  # what 3.9 calls them
    named = [name for name, document in definitions(release).items() if document["type"] in kinds]
    return sorted(name.removesuffix("Key") for name in named if name.endswith("Key"))


def record_layouts() -> dict[str, Message]:
    """Return the layouts of all record types by their name."""
    return {name: message for name, message in messages().items() if message.type is not None}


def shape_of_definition(definition: Definition, version: int) -> Shape:
    """Return the fields of one version of a Kafka message, with its structs nested."""
    shared = {struct["name"]: struct["fields"] for struct in definition.get("commonStructs", [])}

    def struct(fields: list[dict[str, Any]]) -> Shape:
        plain: list[Any] = []
        tagged = {}
        for field in fields:
            tag_versions = field.get("taggedVersions")
            if version not in Versions.parse(field.get("versions") or field["taggedVersions"]):
                continue
            type_ = field["type"].removeprefix("[]")
            inner = field.get("fields") or shared.get(type_)
            said = (
                field["name"][0].lower() + field["name"][1:],
                "[]" * field["type"].startswith("[]") + ("struct" if inner else type_),
                "nullableVersions" in field and version in Versions.parse(field["nullableVersions"]),
                struct(inner) if inner else None,
            )
            if tag_versions is not None and version in Versions.parse(tag_versions):
                tagged[field["tag"]] = (*said, _default(field))
            else:
                plain.append(said)
        return plain, tagged

    return struct(definition["fields"])


def _default(field: dict[str, Any]) -> int | None:
    """Return the default of a tagged field, which Kafka writes as a number or as text; None for the type's zero."""
    default = field.get("default")
    return None if default in (None, "null") else int(default) or None


def shape_of_layout(message: Message, fields: tuple[Field, ...], version: int) -> Shape:
    """Return the fields of one version of a layout in `schemas/wire/`, in the same form."""
    plain: list[Any] = []
    tagged = {}
    for field in fields:
        if version not in field.versions:
            continue
        inner = message.structs.get(field.type)
        said = (
            field.name,
            "[]" * field.is_list + ("struct" if inner else field.type),
            field.nullable,
            shape_of_layout(message, inner, version) if inner else None,
        )
        if field.tag is not None:
            tagged[field.tag] = (*said, field.default)
        else:
            plain.append(said)
    return plain, tagged


def versions_of(definition: Definition) -> range:
    """Return all versions of a definition."""
    return _range(Versions.parse(definition["validVersions"]))


def is_flexible(definition: Definition, version: int) -> bool:
    """Return whether a version of a definition ends its structs with tagged fields."""
    flexible = definition["flexibleVersions"]
    return flexible != "none" and version in Versions.parse(flexible)


def difference(release: str = NEWEST) -> list[str]:
    """Return a unified diff from the layouts to a release's record types; it is empty if they are the same."""
    ours = {name: list(_lines_of_layout(message)) for name, message in record_layouts().items()}
    theirs = {name: list(_lines_of_definition(release, name)) for name in record_names(release)}
    return [
        line
        for name in sorted(ours.keys() | theirs.keys())
        for line in unified_diff(
            ours.get(name, []), theirs.get(name, []), f"schemas/wire {name}", f"Kafka {release} {name}", lineterm=""
        )
    ]


def _range(versions: Versions) -> range:
    assert versions.last is not None
    return range(versions.first, versions.last + 1)


def _lines_of_layout(message: Message) -> Iterator[str]:
    yield f"type {message.type}"
    yield "key"
    yield from _lines_of_shape(shape_of_layout(message, message.key, 0))
    for version in _range(message.versions):
        flexible = message.flexible is not None and version in message.flexible
        yield f"version {version}{' flexible' * flexible}"
        yield from _lines_of_shape(shape_of_layout(message, message.value, version))


def _lines_of_definition(release: str, name: str) -> Iterator[str]:
    key, value = definitions(release)[f"{name}Key"], definitions(release)[f"{name}Value"]
    yield f"type {key.get('apiKey', versions_of(key)[-1])}"  # up to 4.0 the type was the key's version
    yield "key"
    yield from _lines_of_shape(shape_of_definition(key, versions_of(key)[-1]))
    for version in versions_of(value):
        yield f"version {version}{' flexible' * is_flexible(value, version)}"
        yield from _lines_of_shape(shape_of_definition(value, version))


def _lines_of_shape(shape: Shape, indent: str = "  ") -> Iterator[str]:
    plain, tagged = shape
    fields = [(field, "") for field in plain]
    for tag, (*field, default) in sorted(tagged.items()):
        fields.append((field, f" tag {tag}" + ("" if default is None else f" = {default}")))
    for (name, type_, is_nullable, inner), ending in fields:
        yield f"{indent}{name} {type_}{'?' * is_nullable}{ending}"
        if inner is not None:
            yield from _lines_of_shape(inner, f"{indent}  ")


def main(arguments: Sequence[str]) -> int:
    release = arguments[0] if arguments else NEWEST
    try:
        fetch(release, partial(print, file=sys.stderr, flush=True))
    except GrouptrailError as error:
        print(f"layouts: {error}", file=sys.stderr)
        return 2
    lines = difference(release)
    print("\n".join(lines) or f"schemas/wire matches the {len(record_layouts())} record types of Kafka {release}")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
