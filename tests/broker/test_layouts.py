"""The record layouts, compared with the message definitions in Kafka's own jars. Needs the jars, but no broker."""

from __future__ import annotations

import json
import re
import zipfile
from importlib.resources import files
from typing import Any

import pytest

import layouts
from grouptrail.wire.layout import Message, Versions, messages
from layouts import (
    definitions,
    difference,
    is_flexible,
    record_layouts,
    record_names,
    shape_of_definition,
    shape_of_layout,
    versions_of,
)
from servers import kafka

NEWEST, BEFORE, *FORMER, OLDEST = kafka.VERSIONS
IN_FULL = pytest.mark.full  # the jars of an older release
BLOBS = ("ConsumerProtocolSubscription", "ConsumerProtocolAssignment")
RECORDS = sorted(record_layouts())


def without_later_tags(layout: Any, definition: Any) -> Any:
    """Return a layout's shape without the tagged fields that an older definition with otherwise equal fields
    lacks."""
    if layout is None or definition is None:
        return layout
    theirs = {field[0]: field[3] for field in definition[0]}
    plain = [(*field[:3], without_later_tags(field[3], theirs.get(field[0]))) for field in layout[0]]
    return plain, {tag: field for tag, field in layout[1].items() if tag in definition[1]}


def test_layouts_are_those_of_the_newest_release_of_the_tests() -> None:
    assert layouts.NEWEST == NEWEST


def test_record_layouts_are_exactly_those_kafka_defines() -> None:
    """Type, versions and flexible versions; in each version the fields of key and value in order, with name, type,
    nullability, structs and tags. A default is stated where Kafka's is not the type's zero (null reads as that)."""
    assert difference(NEWEST) == []


def test_layout_difference_release_before_lacks_the_tags_of_the_newest() -> None:
    """The output of `make layouts KAFKA=4.3.0` has the two fields of KIP-1331."""
    changed = [line for line in difference(BEFORE) if line[0] in "+-" and line[:3] not in ("+++", "---")]
    assert changed == [
        "-  storedDescriptionTopologyEpoch int32 tag 2 = -1",
        "-  failedDescriptionTopologyEpoch int32 tag 3 = -1",
    ]


@pytest.mark.parametrize("name", BLOBS)
@pytest.mark.parametrize(
    "release", [NEWEST, BEFORE, *(pytest.param(older, marks=IN_FULL) for older in (*FORMER, OLDEST))]
)
def test_consumer_protocol_layout_matches_kafka_message_definition(release: str, name: str) -> None:
    """The blobs that consumers exchange, the same in all releases; never flexible."""
    definition, layout = definitions(release)[name], messages()[name]
    assert Versions.parse(definition["validVersions"]) == layout.versions
    assert_flexible_alike(definition, layout)
    for version in versions_of(definition):
        assert shape_of_layout(layout, layout.value, version) == shape_of_definition(definition, version)


@pytest.mark.parametrize(
    "release", [NEWEST, *(pytest.param(older, marks=IN_FULL) for older in (BEFORE, *FORMER, OLDEST))]
)
def test_streams_subscription_layout_matches_kafka_message_definition(release: str) -> None:
    """What classic Kafka Streams members write; its version is the first field, an int32."""
    with zipfile.ZipFile(kafka.fetch_streams(release) / f"kafka-streams-{release}.jar") as jar:
        text = jar.read("common/message/SubscriptionInfoData.json").decode()
    text = re.sub(r"(^|\s)//.*$", "", text, flags=re.MULTILINE)
    definition, layout = json.loads(re.sub(r"/\*.*?\*/", "", text)), messages()["StreamsSubscriptionInfo"]
    assert Versions.parse(definition["validVersions"]) == layout.versions
    assert_flexible_alike(definition, layout)
    for version in versions_of(definition):
        (prefix, *fields), tagged = shape_of_definition(definition, version)
        assert prefix[:2] == ("version", layout.prefix)
        assert shape_of_layout(layout, layout.value, version) == (fields, tagged)


@pytest.mark.parametrize("release", [NEWEST, BEFORE, *(pytest.param(former, marks=IN_FULL) for former in FORMER)])
def test_record_layouts_are_exactly_the_record_types_kafka_defines(release: str) -> None:
    """Every key that group and share coordinators of 4.1 to 4.4 define has a layout, and there are no others."""
    assert record_names(release) == RECORDS


@IN_FULL
def test_record_layouts_kafka_3_9_lack_only_record_type_9() -> None:
    """It belongs to the early access of share groups in 3.9, and no later release has it."""
    assert set(record_names(OLDEST)) - set(RECORDS) == {"ShareGroupPartitionMetadata"}
    assert definitions(OLDEST)["ShareGroupPartitionMetadataKey"]["validVersions"] == "9"


@pytest.mark.parametrize(
    ("release", "early_access"),
    [
        (BEFORE, set()),
        *(pytest.param(former, set(), marks=IN_FULL) for former in FORMER),
        pytest.param(OLDEST, {"ShareGroupMetadata"}, marks=IN_FULL),
    ],
)
def test_record_layouts_older_release_differs_only_in_tagged_fields(release: str, early_access: set[str]) -> None:
    """Older records can therefore be read with today's layouts.

    The exception is ShareGroupMetadata of 3.9's early access, which has no metadataHash and is too short.
    """
    differing = {name for name in record_names(release) if name in RECORDS and not is_read_as_it_is(release, name)}
    assert differing == early_access


def is_read_as_it_is(release: str, name: str) -> bool:
    """Return whether today's layout without newer tagged fields equals that of an older release."""
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


def assert_flexible_alike(definition: dict[str, Any], layout: Message) -> None:
    """Assert that each version is flexible in both the definition and the layout, or in neither."""
    for version in versions_of(definition):
        assert is_flexible(definition, version) is (layout.flexible is not None and version in layout.flexible)


@pytest.mark.parametrize("of", ["Request", "Response"])
@pytest.mark.parametrize("request_name", ["ConsumerGroupDescribe", "DescribeShareGroupOffsets"])
@pytest.mark.parametrize("version", [0, 1])
def test_schema_of_our_own_request_matches_kafka_message_definition(request_name: str, of: str, version: int) -> None:
    """kafka-python does not have these requests."""
    name = f"{request_name}{of}"
    ours = json.loads((files("grouptrail.kafka") / f"{name}.json").read_text("utf-8"))
    theirs = definitions(NEWEST)[name]
    assert [ours[key] for key in ("apiKey", "validVersions", "flexibleVersions")] == [
        theirs[key] for key in ("apiKey", "validVersions", "flexibleVersions")
    ]
    assert shape_of_definition(ours, version) == shape_of_definition(theirs, version)
