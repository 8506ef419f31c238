"""Our layouts against the message definitions that lie inside Kafka's own jars. Needs the jars, but no broker."""

from __future__ import annotations

import json
import re
import zipfile
from functools import cache
from importlib.resources import files
from typing import Any

import pytest

from demo import kafka
from grouptrail.wire.layout import Field, Message, Versions, messages, record_types

pytestmark = pytest.mark.broker

NEWEST, FORMER, OLDEST = kafka.VERSIONS
IN_FULL = pytest.mark.full  # the jars of an older release
BLOBS = ("ConsumerProtocolSubscription", "ConsumerProtocolAssignment")
RECORDS = sorted(message.name for message in record_types().values())

# A struct as both sides say it: its fields in order, and its tagged fields by their tag with their default.
Shape = tuple[list[Any], dict[int, Any]]


@cache
def definitions(release: str) -> dict[str, dict[str, Any]]:
    """The message definitions of a release's group coordinator and clients, by name."""
    found = {}
    for jar in ("kafka-group-coordinator", "kafka-clients"):
        with zipfile.ZipFile(kafka.fetch(release) / f"{jar}-{release}.jar") as archive:
            for name in archive.namelist():
                if name.startswith("common/message/") and name.endswith(".json"):
                    text = re.sub(r"^\s*//.*$", "", archive.read(name).decode("utf-8"), flags=re.MULTILINE)
                    found[json.loads(text)["name"]] = json.loads(text)
    return found


def record_names(release: str) -> list[str]:
    """The record types of a release, without the ending of their keys' names."""
    kinds = ("coordinator-key", "data")  # what 3.9 calls them
    named = [name for name, found in definitions(release).items() if found["type"] in kinds]
    return sorted(name.removesuffix("Key") for name in named if name.endswith("Key"))


def shape_of_definition(definition: dict[str, Any], version: int) -> Shape:
    """What a version of a message of Kafka's holds, with all its structs in their places."""
    shared = {struct["name"]: struct["fields"] for struct in definition.get("commonStructs", [])}

    def struct(fields: list[dict[str, Any]]) -> Shape:
        plain: list[Any] = []
        tagged = {}
        for field in fields:
            tag_versions = field.get("taggedVersions")
            if version not in Versions.parse(field.get("versions", tag_versions)):
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
                tagged[field["tag"]] = (*said, field.get("default") or None)
            else:
                plain.append(said)
        return plain, tagged

    return struct(definition["fields"])


def shape_of_layout(message: Message, fields: tuple[Field, ...], version: int) -> Shape:
    """The same of a layout of ours."""
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


def without_later_tags(layout: Any, definition: Any) -> Any:
    """A layout's shape without the tagged fields that an older definition, of the same fields, has not yet."""
    if layout is None or definition is None:
        return layout
    theirs = {field[0]: field[3] for field in definition[0]}
    plain = [(*field[:3], without_later_tags(field[3], theirs.get(field[0]))) for field in layout[0]]
    return plain, {tag: field for tag, field in layout[1].items() if tag in definition[1]}


@pytest.mark.parametrize("name", RECORDS)
def test_record_layout_matches_kafka_message_definition(name: str) -> None:
    """Type, versions and flexible versions; in each version the fields of key and value in order, with name, type,
    nullability, structs and tags. A default is stated where Kafka's is not the type's zero (null reads as that)."""
    layout = messages()[name]
    key, value = definitions(NEWEST)[f"{name}Key"], definitions(NEWEST)[f"{name}Value"]
    assert (key["apiKey"], value["apiKey"]) == (layout.type, layout.type)
    assert (key["validVersions"], key["flexibleVersions"]) == ("0", "none")
    assert shape_of_layout(layout, layout.key, 0) == shape_of_definition(key, 0)
    assert Versions.parse(value["validVersions"]) == layout.versions
    assert_flexible_alike(value, layout)
    for version in versions_of(value):
        assert shape_of_layout(layout, layout.value, version) == shape_of_definition(value, version)


@pytest.mark.parametrize("name", BLOBS)
@pytest.mark.parametrize("release", [NEWEST, *(pytest.param(older, marks=IN_FULL) for older in (FORMER, OLDEST))])
def test_consumer_protocol_layout_matches_kafka_message_definition(release: str, name: str) -> None:
    """The blobs that consumers exchange, the same in all three releases; never flexible."""
    definition, layout = definitions(release)[name], messages()[name]
    assert Versions.parse(definition["validVersions"]) == layout.versions
    assert_flexible_alike(definition, layout)
    for version in versions_of(definition):
        assert shape_of_layout(layout, layout.value, version) == shape_of_definition(definition, version)


@pytest.mark.parametrize("release", [NEWEST, pytest.param(FORMER, marks=IN_FULL)])
def test_record_layouts_are_exactly_the_record_types_kafka_defines(release: str) -> None:
    """Every key that the coordinator of 4.1 and 4.3 defines has a layout, and no layout is of its own making."""
    assert record_names(release) == RECORDS


@IN_FULL
def test_record_layouts_kafka_3_9_lack_only_record_type_9() -> None:
    """Of 3.9's early-access share groups: the only type that no later release has."""
    assert set(record_names(OLDEST)) - set(RECORDS) == {"ShareGroupPartitionMetadata"}
    assert definitions(OLDEST)["ShareGroupPartitionMetadataKey"]["validVersions"] == "9"


@IN_FULL
@pytest.mark.parametrize(("release", "early_access"), [(FORMER, set()), (OLDEST, {"ShareGroupMetadata"})])
def test_record_layouts_older_release_differs_only_in_tagged_fields(release: str, early_access: set[str]) -> None:
    """So its records are read as they are. But for the early access of share groups in 3.9: ShareGroupMetadata then
    had no metadataHash, and is too short for today's layout."""
    differing = {name for name in record_names(release) if name in RECORDS and not is_read_as_it_is(release, name)}
    assert differing == early_access


def is_read_as_it_is(release: str, name: str) -> bool:
    """Whether today's layout, without tagged fields that are newer, is an older release's own."""
    layout = messages()[name]
    key, value = definitions(release)[f"{name}Key"], definitions(release)[f"{name}Value"]
    assert layout.type in ([key["apiKey"]] if "apiKey" in key else versions_of(key))  # 3.9: the type as key's version
    assert shape_of_layout(layout, layout.key, 0) == shape_of_definition(key, versions_of(key)[0])
    assert_flexible_alike(value, layout)
    shapes = [
        (shape_of_layout(layout, layout.value, version), shape_of_definition(value, version))
        for version in versions_of(value)
    ]
    return all(without_later_tags(ours, theirs) == theirs for ours, theirs in shapes)


def versions_of(definition: dict[str, Any]) -> list[int]:
    """All of a definition's versions."""
    valid = Versions.parse(definition["validVersions"])
    assert valid.last is not None
    return list(range(valid.first, valid.last + 1))


def assert_flexible_alike(definition: dict[str, Any], layout: Message) -> None:
    """Each version of the definition is flexible in both or in neither."""
    for version in versions_of(definition):
        theirs = definition["flexibleVersions"] != "none" and version in Versions.parse(
            definition["flexibleVersions"]
        )
        assert theirs is (layout.flexible is not None and version in layout.flexible)


@pytest.mark.parametrize("name", ["ConsumerGroupDescribeRequest", "ConsumerGroupDescribeResponse"])
@pytest.mark.parametrize("version", [0, 1])
def test_consumer_group_describe_schema_matches_kafka_message_definition(name: str, version: int) -> None:
    """Which kafka-python lacks."""
    ours = json.loads((files("grouptrail.kafka") / f"{name}.json").read_text("utf-8"))
    theirs = definitions(NEWEST)[name]
    assert [ours[key] for key in ("apiKey", "validVersions", "flexibleVersions")] == [
        theirs[key] for key in ("apiKey", "validVersions", "flexibleVersions")
    ]
    assert shape_of_definition(ours, version) == shape_of_definition(theirs, version)
