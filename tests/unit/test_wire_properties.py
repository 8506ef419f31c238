"""What holds for any bytes, and for any values that a layout allows."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from grouptrail.decode.members import member_row, member_values
from grouptrail.decode.rows import decode_row, encode_row
from grouptrail.decode.schema import TABLES, own_columns
from grouptrail.wire.blobs import Blob, decode_blob, encode_blob, is_blob
from grouptrail.wire.codec import UNKNOWN_TAGS
from grouptrail.wire.errors import KINDS
from grouptrail.wire.layout import COORDINATORS, Coordinator, Message, messages, record_types
from grouptrail.wire.records import Record, Value, decode_record, encode_key, encode_value
from grouptrail.wire.text import record_json
from support import strategies
from support.strategies import MANY

SUBSCRIPTION = "ConsumerProtocolSubscription"
BLOB_NAMES = sorted(name for name in messages() if is_blob(name))
RECORD_LAYOUTS = [message for coordinator in COORDINATORS for message in record_types(coordinator).values()]
RECORD_VERSIONS = [
    pytest.param(message, version, id=f"{message.name}-{version}")
    for message in RECORD_LAYOUTS
    for version in strategies.versions(message)
]
FLEXIBLE_RECORD_VERSIONS = [one for one in RECORD_VERSIONS if strategies.is_flexible(*one.values)]
BLOB_VERSIONS = [(name, version) for name in BLOB_NAMES for version in strategies.versions(messages()[name])]

Bytes = bytes | None


def holds_or_says_why(key: Bytes, value: Bytes, *, coordinator: Coordinator = "group", strict: bool) -> None:
    """Assert that a record has a key and no error, or an error of a known kind at a position inside its bytes."""
    record = decode_record(key, value, coordinator=coordinator, strict=strict)
    if record.error is None:
        assert record.key is not None
        assert (record.value is None) is (value is None)
        return
    assert record.error.kind in KINDS
    assert record.value is None
    assert (record.key is None) is (record.error.where == "key")
    at_fault = key if record.error.where == "key" else value
    assert 0 <= record.error.position <= len(at_fault or b"")


@MANY
@given(st.none() | st.binary(), st.none() | st.binary(), st.sampled_from(COORDINATORS), st.booleans())
def test_decode_record_any_bytes_gives_a_record_or_an_error(
    key: Bytes, value: Bytes, coordinator: Coordinator, strict: bool
) -> None:
    """Nothing is raised; an error has a kind and a position."""
    holds_or_says_why(key, value, coordinator=coordinator, strict=strict)


@MANY
@given(st.sampled_from(RECORD_LAYOUTS), st.integers(0, 5), st.binary(), st.binary(), st.booleans())
def test_decode_record_any_bytes_after_known_type_gives_a_record_or_an_error(
    message: Message, version: int, key: bytes, value: bytes, strict: bool
) -> None:
    """Random bytes after a valid type and version."""
    assert message.type is not None
    prefixes = message.type.to_bytes(2, "big"), version.to_bytes(2, "big")
    holds_or_says_why(prefixes[0] + key, prefixes[1] + value, coordinator=message.coordinator, strict=strict)


@MANY
@given(strategies.mutated_records(), st.booleans())
def test_decode_record_mutated_vector_gives_a_record_or_an_error(record: tuple[Bytes, Bytes], strict: bool) -> None:
    """Vectors with flipped bits, removed or inserted bytes, or wrong lengths."""
    holds_or_says_why(*record, strict=strict)


@MANY
@given(strategies.mutated_records(strategies.SHARE_STATE_RECORDS), st.booleans())
def test_decode_record_mutated_share_state_vector_gives_a_record_or_an_error(
    record: tuple[Bytes, Bytes], strict: bool
) -> None:
    holds_or_says_why(*record, coordinator="share", strict=strict)


@MANY
@given(st.sampled_from(BLOB_NAMES), st.binary() | st.binary().map(lambda rest: b"\0\1" + rest), st.booleans())
def test_decode_blob_any_bytes_gives_a_blob_or_an_error(name: str, content: bytes, strict: bool) -> None:
    """Nothing is raised; an error has a kind and a position."""
    blob = decode_blob(name, content, strict=strict)
    assert (blob.data is not None) is (blob.version is not None)
    assert (blob.error is None) is (blob.data is not None) or messages()[name].readable_in_part
    if blob.error is not None:
        assert blob.error.kind in KINDS
        assert 0 <= blob.error.position <= len(content)


@MANY
@given(strategies.mutated_blobs())
def test_decode_blob_mutated_vector_gives_a_blob_or_an_error(blob: tuple[str, bytes]) -> None:
    name, content = blob
    error = decode_blob(name, content).error
    assert error is None or (error.kind in KINDS and 0 <= error.position <= len(content))


@pytest.mark.parametrize(("message", "version"), RECORD_VERSIONS)
@given(data=st.data())
def test_record_values_round_trip_through_bytes(message: Message, version: int, data: st.DataObject) -> None:
    """Any values that a layout allows, including unknown tagged fields."""
    key = data.draw(strategies.keys(message))
    value = Value(version, data.draw(strategies.data(message, version)))
    record = decode_record(encode_key(key), encode_value(key, value), coordinator=message.coordinator)
    assert record == Record(key, value)


@pytest.mark.parametrize(("message", "version"), FLEXIBLE_RECORD_VERSIONS)
@given(data=st.data())
def test_record_json_shows_every_unknown_tag(message: Message, version: int, data: st.DataObject) -> None:
    """In any struct, with their bytes; the record encodes back to its own bytes."""
    key = data.draw(strategies.keys(message))
    said = data.draw(strategies.data(message, version, with_unknown_tags=True))
    record_key, record_value = encode_key(key), encode_value(key, Value(version, said))
    record = decode_record(record_key, record_value, coordinator=message.coordinator)
    shown = list(unknown_tags(record_json(record)["value"]["data"]))
    assert shown == [
        (path, {tag: b64encode(raw).decode() for tag, raw in tags.items()}) for path, tags in unknown_tags(said)
    ]
    assert shown
    assert record.key is not None
    assert (encode_key(record.key), encode_value(record.key, record.value)) == (record_key, record_value)
    if message.coordinator == "group":
        _, row = decode_row(record_key, record_value)
        if "value_json" in row:
            assert sorted(unknown_tags(json.loads(row["value_json"]))) == sorted(shown)


def unknown_tags(data: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the path and the unknown tags of each struct that has some."""
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for name, value in sorted(inner):
        if name == UNKNOWN_TAGS:
            yield path, value
        else:
            yield from unknown_tags(value, f"{path}/{name}")


@pytest.mark.parametrize(("name", "version"), BLOB_VERSIONS)
@given(data=st.data())
def test_blob_values_round_trip_through_bytes(name: str, version: int, data: st.DataObject) -> None:
    """Any values that a blob's layout allows."""
    blob = Blob(name, version, data.draw(strategies.data(messages()[name], version)))
    assert decode_blob(name, encode_blob(blob)) == blob


@pytest.mark.parametrize("name", [name for name in BLOB_NAMES if messages()[name].newer_as_highest])
@given(data=st.data(), version=st.integers(4, 32767))
def test_decode_blob_newer_version_reads_as_the_highest_known(name: str, data: st.DataObject, version: int) -> None:
    """It keeps its own version number, also when encoded again."""
    highest = messages()[name].versions.last
    assert highest is not None
    blob = Blob(name, version, data.draw(strategies.data(messages()[name], highest)))
    assert decode_blob(name, encode_blob(blob)) == blob


@MANY
@given(version=st.sampled_from(strategies.versions(messages()[SUBSCRIPTION])), data=st.data())
def test_decode_blob_subscription_cut_after_its_topics_has_them(version: int, data: st.DataObject) -> None:
    """Wherever it is cut; the row has the topics, the reason and the bytes."""
    values = data.draw(strategies.data(messages()[SUBSCRIPTION], version))
    whole = encode_blob(Blob(SUBSCRIPTION, version, values))
    topics = 6 + sum(2 + len(topic.encode()) for topic in values["topics"])
    cut = whole[: data.draw(st.integers(topics, len(whole) - 1))]
    blob = decode_blob(SUBSCRIPTION, cut)
    assert blob.error is not None
    assert blob.data is not None
    assert (blob.version, blob.data["topics"]) == (version, values["topics"])
    assert blob.data.items() <= values.items()
    row = member_row({"subscription": cut, "assignment": b""}, protocol_type="consumer", protocol="range")
    columns = row["subscription"]
    assert (columns["topics"], columns["error"], columns["verbatim"]) == (values["topics"], blob.error.kind, cut)
    assert member_values(row)["subscription"] == cut


@MANY
@given(strategies.ANY_RECORDS)
@example((None, None))
@example((None, b""))
@example((b"", None))
def test_decode_row_any_record_encodes_back_to_its_bytes(record: tuple[Bytes, Bytes]) -> None:
    """Decodable or not, a record becomes a row of one table, which restores the same bytes."""
    table, row = decode_row(*record)
    assert table in TABLES
    assert set(row) == set(own_columns(table).names)
    assert encode_row(table, row) == record


@MANY
@given(strategies.mutated_records())
def test_decode_row_mutated_vector_encodes_back_to_its_bytes(record: tuple[Bytes, Bytes]) -> None:
    assert encode_row(*decode_row(*record)) == record
