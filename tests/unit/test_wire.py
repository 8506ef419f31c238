"""Records and blobs against the vectors that Kafka's own classes wrote and read back."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.coordinator.assignors.sticky.user_data import StickyAssignorUserData

from grouptrail.wire.blobs import Blob, decode_blob, encode_blob, is_blob
from grouptrail.wire.codec import UNKNOWN_TAGS
from grouptrail.wire.errors import Undecodable
from grouptrail.wire.layout import COORDINATORS, Coordinator, messages, record_types
from grouptrail.wire.records import Key, Record, Value, decode_record, encode_key, encode_value
from grouptrail.wire.text import blob_json, data_json, record_json, values_from_json
from support.wire_vectors import (
    BLOBS,
    BY_NAME,
    READ_IN_PART,
    RECORDS,
    SHARE_RECORDS,
    VECTORS,
    Vector,
    as_kafka_prints,
)

# Vectors whose bytes differ from what Kafka writes for the same values, and why.
NOT_CANONICAL = {
    "offset-commit/v3-trailing-bytes-ignored": "bytes behind the last field of key and value",
    "offset-commit/v3-invalid-utf8-metadata": "invalid UTF-8 is read as U+FFFD",
    "share-snapshot/v0-trailing-bytes-ignored": "bytes behind the last field of key and value",
    "share-snapshot/v0-invalid-utf8-group": "invalid UTF-8 is read as U+FFFD",
    "share-snapshot/v0-delivery-complete-count-default-explicit": "a tagged field with its default",
    "blob/consumer-subscription-v7-read-as-v3": "bytes behind the last field that version 3 has",
}

ALL_RECORDS = [*RECORDS, *SHARE_RECORDS]

COMMIT_KEY = bytes.fromhex("0001000167000174") + bytes(4)
SHARE_PARTITION = {"groupId": "g", "topicId": "mZUf7UXWRQ6iMfibqKwJ3A", "partition": 0}


def expected_of(vector: Vector) -> dict[str, Any]:
    """Return the vector's expected answer in full; `error` without names that only Kafka uses."""
    parts = ("blob", "version", "data") if vector.blob else ("key", "value")
    expected = dict.fromkeys((*parts, "error")) | vector.expected | READ_IN_PART.get(vector.name, {})
    if expected["error"]:
        expected["error"] = {part: expected["error"][part] for part in ("where", "kind")}
    return expected


def answer_to(vector: Vector) -> dict[str, Any]:
    """Return the decoder's answer for a vector."""
    if vector.blob:
        answer = blob_json(decode_blob(vector.blob, vector.value or b"", strict=False))
    else:
        answer = record_json(decode_record(vector.key, vector.value, coordinator=vector.coordinator, strict=False))
    if answer["error"]:
        del answer["error"]["position"]
    return answer


@pytest.mark.parametrize("vector", [*VECTORS, *SHARE_RECORDS], ids=lambda vector: vector.name)
def test_decode_vector_matches_kafka(vector: Vector) -> None:
    """Key, value and version as Kafka's classes read them; where Kafka fails, the same place and kind of error, and
    what READ_IN_PART says."""
    assert as_kafka_prints(answer_to(vector)) == expected_of(vector)


def test_every_record_type_and_blob_has_a_vector() -> None:
    """A layout without a vector fails here."""
    types = {
        (vector.coordinator, vector.expected["key"]["type"]) for vector in ALL_RECORDS if "key" in vector.expected
    }
    assert types == {(coordinator, type_) for coordinator in COORDINATORS for type_ in record_types(coordinator)}
    blobs = {name for name in messages() if is_blob(name)}
    assert {vector.blob for vector in BLOBS} == blobs - {"KafkaPythonStickyUserData"}  # which has a test of its own


@pytest.mark.parametrize(
    "vector", [vector for vector in ALL_RECORDS if "error" not in vector.expected], ids=lambda v: v.name
)
def test_encode_decoded_record_returns_its_bytes(vector: Vector) -> None:
    """Encoding what was decoded gives the key and the value back, but for the vectors named in NOT_CANONICAL."""
    record = decode_record(vector.key, vector.value, coordinator=vector.coordinator, strict=False)
    assert record.key is not None
    same = (encode_key(record.key), encode_value(record.key, record.value)) == (vector.key, vector.value)
    assert same is (vector.name not in NOT_CANONICAL)


@pytest.mark.parametrize(
    "vector", [vector for vector in BLOBS if "error" not in vector.expected], ids=lambda v: v.name
)
def test_encode_decoded_blob_returns_its_bytes(vector: Vector) -> None:
    """Encoding a decoded blob gives its bytes back, but for the vectors named in NOT_CANONICAL."""
    assert vector.blob is not None
    assert vector.value is not None
    same = encode_blob(decode_blob(vector.blob, vector.value)) == vector.value
    assert same is (vector.name not in NOT_CANONICAL)


@pytest.mark.parametrize(
    "vector", [vector for vector in ALL_RECORDS if vector.expected.get("value")], ids=lambda v: v.name
)
def test_values_from_json_restores_the_decoded_values(vector: Vector) -> None:
    """`values_from_json` undoes `data_json`: bytes, UUIDs and nested structs included."""
    record = decode_record(vector.key, vector.value, coordinator=vector.coordinator, strict=False)
    assert record.key is not None
    assert record.value is not None
    message = record_types(vector.coordinator)[record.key.type]
    data = record.value.data
    assert values_from_json(message, message.value, data_json(data)) == data


def test_decode_record_unknown_tags_are_kept_and_shown_in_json() -> None:
    """By their number, beside the known fields; as base64 in JSON."""
    vector = BY_NAME["offset-commit/v4-unknown-tags"]
    record = decode_record(vector.key, vector.value)
    assert record.value is not None
    assert record.value.data[UNKNOWN_TAGS] == {"5": b"\1\2\3", "200": b""}
    assert record_json(record)["value"]["data"][UNKNOWN_TAGS] == {"5": "AQID", "200": ""}


def test_decode_record_unknown_tags_are_kept_in_nested_structs() -> None:
    """One tag of the group and one of its second member, each in its own struct."""
    vector = BY_NAME["group-metadata/v4-unknown-tags"]
    record = decode_record(vector.key, vector.value)
    assert record.value is not None
    data = record.value.data
    tags = [struct.get(UNKNOWN_TAGS) for struct in (data, *data["members"])]
    assert tags == [{"0": b"\t"}, None, {"3": b"\7\7"}]


@pytest.mark.parametrize(
    ("name", "tags", "tags_of_batches"),
    [
        ("share-snapshot/v0-unknown-tags", {"5": b"\1\2\3", "200": b""}, [None, {"1": b"\7\7"}]),
        ("share-update/v0-unknown-tags", {"9": b"\t"}, [{"0": b"\1"}]),
        ("share-update/v0-delivery-complete-count-and-unknown-tag", {"3": b"\1"}, []),
    ],
)
def test_decode_record_share_state_unknown_tags_are_kept(
    name: str, tags: dict[str, bytes], tags_of_batches: list[dict[str, bytes] | None]
) -> None:
    """Those of the record, and those of each of its batches."""
    vector = BY_NAME[name]
    record = decode_record(vector.key, vector.value, coordinator="share")
    assert record.value is not None
    data = record.value.data
    assert data[UNKNOWN_TAGS] == tags
    assert [batch.get(UNKNOWN_TAGS) for batch in data["stateBatches"]] == tags_of_batches


@pytest.mark.parametrize(
    ("coordinator", "name"), [("share", "offset-commit/v3"), ("group", "share-snapshot/v0-batches")]
)
def test_decode_record_of_the_other_coordinator_is_not_taken_for_an_own_one(
    coordinator: Coordinator, name: str
) -> None:
    """Both write types 0 and 1; only the topic tells which is meant."""
    vector = BY_NAME[name]
    assert decode_record(vector.key, vector.value, coordinator=coordinator).error is not None
    own = decode_record(vector.key, vector.value, coordinator=vector.coordinator)
    assert own.error is None
    assert own.key is not None
    assert own.key.coordinator == vector.coordinator


@pytest.mark.parametrize(
    ("key", "version", "name", "default"),
    [
        (Key(1, {"group": "g", "topic": "t", "partition": 0}), 4, "topicId", "A" * 22),
        (Key(3, {"groupId": "g"}), 0, "metadataHash", 0),
        (
            Key(5, {"groupId": "g", "memberId": "m"}),
            0,
            "classicMemberMetadata",
            {"sessionTimeoutMs": 0, "supportedProtocols": []},
        ),
        (Key(17, {"groupId": "g"}), 0, "validatedTopologyEpoch", -1),
        (Key(17, {"groupId": "g"}), 0, "lastAssignmentConfigs", []),
        (Key(17, {"groupId": "g"}), 0, "storedDescriptionTopologyEpoch", -1),
        (Key(17, {"groupId": "g"}), 0, "failedDescriptionTopologyEpoch", -1),
        (Key(0, SHARE_PARTITION, "share"), 0, "deliveryCompleteCount", -1),
        (Key(1, SHARE_PARTITION, "share"), 0, "deliveryCompleteCount", -1),
    ],
)
def test_decode_record_tagged_field_with_its_default_reads_as_absent(
    key: Key, version: int, name: str, default: Any
) -> None:
    """Kafka does not write defaults, and its JSON omits them."""
    records = [v for v in ALL_RECORDS if v.coordinator == key.coordinator and v.expected.get("value")]
    vector = next(v for v in records if v.expected["key"]["type"] == key.type)
    plain = decode_record(vector.key, vector.value, coordinator=key.coordinator).value
    assert plain is not None
    data = {field: value for field, value in plain.data.items() if field != name} | {"leaderEpoch": 1}
    said, absent = (
        decode_record(encode_key(key), encode_value(key, Value(version, fields)), coordinator=key.coordinator)
        for fields in (data | {name: default}, data)
    )
    assert said == absent
    assert said.value is not None
    assert name not in said.value.data


@pytest.mark.parametrize("tag", [1, 127, 128, (1 << 31) - 1, -1, -(1 << 31)])
def test_encode_value_unknown_tag_of_any_number_decodes_back(tag: int) -> None:
    """Kafka reads a tag's number as a signed int, so it may be negative."""
    value = Value(0, {"epoch": 1, UNKNOWN_TAGS: {str(tag): b"x"}})
    key = Key(3, {"groupId": "g"})
    assert decode_record(encode_key(key), encode_value(key, value)) == Record(key, value)


@pytest.mark.parametrize(
    ("key", "value", "where", "kind", "position"),
    [
        (None, None, "key", "null_not_allowed", 0),
        (b"", b"", "key", "truncated", 0),
        (b"\0", None, "key", "truncated", 0),
        (b"\0\1", None, "key", "truncated", 2),
        (b"\0\1\0\1g\0\1t\0\0\0", None, "key", "truncated", 8),
        (b"\0\2\0\2g", None, "key", "length_exceeds_input", 2),
        (b"\0\2\0\2g\xff", None, "key", "not_utf8", 5),
        (b"\0\2\0\3\xed\xa0\x80", None, "key", "not_utf8", 4),
        (COMMIT_KEY, b"\0", "value", "truncated", 0),
        (COMMIT_KEY, b"\0\5", "value", "unknown_version", 0),
        (COMMIT_KEY, b"\0\3" + bytes(8), "value", "truncated", 10),
        (COMMIT_KEY, b"\0\3" + bytes(12) + b"\x7f\xff", "value", "length_exceeds_input", 14),
        (COMMIT_KEY, b"\0\3" + bytes(12) + b"\xff\xff" + bytes(8), "value", "null_not_allowed", 14),
        (
            COMMIT_KEY,
            b"\0\4" + bytes(12) + b"\1" + bytes(8) + b"\1\0\x0f" + bytes(16),
            "value",
            "tag_size_mismatch",
            26,
        ),
        (COMMIT_KEY, b"\0\4" + bytes(12) + b"\1" + bytes(8) + b"\1\1\2x", "value", "length_exceeds_input", 25),
        (
            COMMIT_KEY,
            b"\0\4" + bytes(12) + b"\1" + bytes(8) + b"\1\0\x11" + bytes(17),
            "value",
            "tag_size_mismatch",
            26,
        ),
        (
            COMMIT_KEY,
            b"\0\4" + bytes(12) + b"\1" + bytes(8) + b"\1\1\xff\xff\xff\xff\x0f",
            "value",
            "length_exceeds_input",
            25,
        ),
        (COMMIT_KEY, b"\0\4" + bytes(12) + b"\xff" * 5, "value", "bad_varint", 14),
        (COMMIT_KEY, b"\0\4" + bytes(12) + b"\xff\xff\xff\xff\x0f" + bytes(9), "value", "null_not_allowed", 14),
        (COMMIT_KEY, b"\0\4" + bytes(12) + b"\xff\xff\xff\xff\x7f" + bytes(9), "value", "null_not_allowed", 14),
        (COMMIT_KEY, b"\0\4" + bytes(12) + b"\x81\x80\2" + b"m" * 32768, "value", "length_not_allowed", 14),
    ],
)
def test_decode_record_error_has_its_kind_and_position(
    key: bytes | None, value: bytes | None, where: Any, kind: str, position: int
) -> None:
    """`position` is the start of the field that could not be decoded, counted from the start of key or value."""
    assert decode_record(key, value).error == Undecodable(where, kind, position)


def test_decode_record_undecodable_value_keeps_the_key() -> None:
    """An undecodable record then still has a group."""
    assert decode_record(COMMIT_KEY, b"").key == Key(1, {"group": "g", "topic": "t", "partition": 0})


def test_decode_record_invalid_utf8_is_an_error_only_if_strict() -> None:
    """Strict decoding can restore the bytes; otherwise invalid bytes become U+FFFD, as in Kafka's tools."""
    vector = BY_NAME["offset-commit/v3-invalid-utf8-metadata"]
    assert decode_record(vector.key, vector.value, strict=True).error == Undecodable("value", "not_utf8", 17)
    lenient = decode_record(vector.key, vector.value, strict=False)
    assert lenient.value is not None
    assert lenient.value.data["metadata"] == "a\ufffdb"


def test_decode_blob_error_in_nested_allocation_has_its_position_in_the_whole_blob() -> None:
    """A Connect worker's allocation is a blob inside a blob; positions count from the outer one's start."""
    metadata = bytes.fromhex("0001 0001 75 000000000000002a 00000002 ffff")
    assert decode_blob("ConnectProtocolMetadata", metadata).error == Undecodable("blob", "unknown_version", 17)


def test_decode_blob_malformed_assignment_is_not_read_in_part() -> None:
    """Its member did not read it either."""
    content = encode_blob(Blob("ConsumerProtocolAssignment", 0, {"assignedPartitions": [], "userData": b"x"}))
    blob = decode_blob("ConsumerProtocolAssignment", content[:-1])
    assert (blob.version, blob.data) == (None, None)


def test_decode_blob_connect_missing_tail_reads_as_null_or_zero() -> None:
    """Connect's own classes tolerate fields that are missing at the end of version 1 and 2."""
    until_url = bytes.fromhex("0001 0000 0001 6c 0001 75 000000000000002a")
    blob = decode_blob("ConnectProtocolAssignment", until_url)
    assert blob.error is None
    assert blob.data is not None
    assert [blob.data[name] for name in ("config-offset", "assignment", "revoked", "delay")] == [42, None, None, 0]


@pytest.mark.parametrize("rest", range(4))
def test_decode_blob_sticky_user_data_too_short_for_a_generation_is_version_0(rest: int) -> None:
    """The blob has no version field; a generation would be four more bytes after the partitions."""
    vector = BY_NAME["blob/sticky-user-data-v0"]
    assert vector.value is not None
    blob = decode_blob("StickyAssignorUserData", vector.value + bytes(rest))
    assert (blob.version, blob.data and data_json(blob.data)) == (0, vector.expected["data"])


def test_decode_blob_kafka_python_sticky_user_data_is_an_error_in_the_java_layout() -> None:
    """kafka-python writes a version first, which Java's layout reads as a count of 65,536 topics."""
    content = StickyAssignorUserData([("seven", [0, 3])], 4).encode()
    assert decode_blob("StickyAssignorUserData", content).error is not None
    data = decode_blob("KafkaPythonStickyUserData", content).data
    assert data == {"previous_assignment": [{"topic": "seven", "partitions": [0, 3]}], "generation": 4}


def test_encode_blob_without_data_raises() -> None:
    """The caller has lost the bytes and must notice."""
    with pytest.raises(ValueError, match="ConsumerProtocolAssignment"):
        encode_blob(Blob("ConsumerProtocolAssignment"))


def test_encode_value_unknown_version_raises() -> None:
    """Only versions with a layout can be written."""
    with pytest.raises(ValueError, match="OffsetCommit has no version 5"):
        encode_value(Key(1, {}), Value(5, {}))
