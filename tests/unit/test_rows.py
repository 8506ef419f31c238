"""Rows of the decoded tables: which record is in which table, and what its columns say."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from grouptrail.decode.rows import Row, decode_row, encode_row, table_of
from grouptrail.decode.schema import own_columns
from grouptrail.wire.blobs import Blob, decode_blob, encode_blob
from grouptrail.wire.codec import UNKNOWN_TAGS
from grouptrail.wire.errors import KINDS
from grouptrail.wire.layout import record_types
from grouptrail.wire.records import Key, Value, encode_key, encode_value
from support.wire_vectors import BY_NAME, RECORDS, Vector

COMMIT_KEY = encode_key(Key(1, {"group": "billing", "topic": "orders", "partition": 4}))
SUBSCRIPTION = "ConsumerProtocolSubscription"
ASSIGNMENT = "ConsumerProtocolAssignment"
ORDERS = [{"topic": "orders", "partitions": [0, 2]}]


def row_of(name: str, table: str) -> Row:
    """Return a vector's row, which must be of that table."""
    decoded_table, row = decode_row(BY_NAME[name].key, BY_NAME[name].value)
    assert decoded_table == table
    return row


def blob(layout: str, version: int, **data: Any) -> bytes:
    """Return a blob's bytes."""
    return encode_blob(Blob(layout, version, data))


def subscription(user_data: bytes | None) -> bytes:
    """Return a subscription to `orders`, with its assignor's user data."""
    return blob(
        SUBSCRIPTION, 3, topics=["orders"], userData=user_data, ownedPartitions=ORDERS, generationId=6, rackId="r"
    )


def classic_group(
    subscription: bytes, assignment: bytes = b"", *, protocol_type: str = "consumer", protocol: str | None = "range"
) -> tuple[bytes, bytes]:
    """Return a GroupMetadata record with one member."""
    member = {"memberId": "m", "groupInstanceId": "i", "clientId": "c", "clientHost": "/h", "rebalanceTimeout": 9}
    member |= {"sessionTimeout": 8, "subscription": subscription, "assignment": assignment}
    fields = {"protocolType": protocol_type, "generation": 7, "protocol": protocol, "leader": "m"}
    fields |= {"currentStateTimestamp": 1, "members": [member]}
    key = Key(2, {"group": "g"})
    value = encode_value(key, Value(3, fields))
    assert value is not None
    return encode_key(key), value


def member_of(key: bytes, value: bytes) -> dict[str, Any]:
    """Return the only member of a classic group's record, from its table row."""
    table, row = decode_row(key, value)
    assert table == "group_metadata"
    assert encode_row(table, row) == (key, value)
    [stored] = pa.RecordBatch.from_pylist([row], schema=own_columns(table)).to_pylist()
    [member] = stored["members"]
    return dict(member)


def said(columns: dict[str, Any]) -> dict[str, Any]:
    """Return the columns that are not null."""
    return {name: value for name, value in columns.items() if value is not None}


# --- tables -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("type_", sorted(record_types()))
def test_table_of_maps_each_record_type_to_its_table(type_: int) -> None:
    """Offset commits, classic group metadata, and all others."""
    expected = {0: "offset_commits", 1: "offset_commits", 2: "group_metadata"}.get(type_, "group_records")
    assert table_of(type_) == expected


@pytest.mark.parametrize("vector", RECORDS, ids=lambda vector: vector.name)
def test_decode_row_vector_fits_its_schema_and_encodes_back(vector: Vector) -> None:
    """The row has the contract's columns, Arrow accepts its values unchanged, and it restores the bytes."""
    table, row = decode_row(vector.key, vector.value)
    [stored] = pa.RecordBatch.from_pylist([row], schema=own_columns(table)).to_pylist()
    assert set(row) == set(stored)
    plain = [name for name in row if name != "members"]
    assert {name: row[name] for name in plain} == {name: stored[name] for name in plain}
    assert encode_row(table, stored) == (vector.key, vector.value)


@pytest.mark.parametrize("vector", [v for v in RECORDS if v.name.endswith("/tombstone")], ids=lambda v: v.name)
def test_decode_row_tombstone_has_only_key_columns(vector: Vector) -> None:
    """Every column that comes from the value is null."""
    table, row = decode_row(vector.key, vector.value)
    key_columns = {"group_id", "topic", "partition", "record_type", "member_id", "key_json", "key_type"}
    assert row["is_tombstone"] is True
    assert set(said(row)) - key_columns == {"is_tombstone"}
    assert row["group_id"]
    assert table == table_of(row["key_type"])


# --- offset commits -----------------------------------------------------------------------------------------


def test_decode_row_commit_has_a_column_for_each_field() -> None:
    """Times are timestamps; the columns restore the bytes, so nothing is kept verbatim."""
    assert row_of("offset-commit/v4-topic-id", "offset_commits") == {
        "group_id": "billing",
        "topic": "orders",
        "partition": 4,
        "committed_offset": 671,
        "leader_epoch": 7,
        "metadata": "m",
        "commit_at": datetime(2026, 11, 21, 6, 42, 15, 411000, UTC),
        "expire_at": None,
        "topic_id": "XbQBMisSTo-zlAi9gS0-Vw",
        "key_type": 1,
        "value_version": 4,
        "is_tombstone": False,
        "verbatim_key": None,
        "verbatim_value": None,
    }


def test_decode_row_commit_v1_expiry_is_a_timestamp() -> None:
    """In the vector it is a week after the commit."""
    row = row_of("offset-commit/v1", "offset_commits")
    assert (row["expire_at"] - row["commit_at"]).days == 7


def test_decode_row_unknown_leader_epoch_is_null() -> None:
    """Kafka writes -1."""
    assert row_of("offset-commit/v3-unicode", "offset_commits")["leader_epoch"] is None


@pytest.mark.parametrize(
    ("name", "table"),
    [("offset-commit/v4-unknown-tags", "offset_commits"), ("group-metadata/v4-unknown-tags", "group_metadata")],
)
def test_decode_row_unknown_tagged_fields_keep_the_value_verbatim(name: str, table: str) -> None:
    """They have no column, so the value's bytes are kept."""
    row = row_of(name, table)
    assert row["verbatim_value"] == BY_NAME[name].value
    assert row["verbatim_key"] is None


def test_decode_row_trailing_bytes_keep_key_and_value_verbatim() -> None:
    """The columns have what Kafka reads."""
    vector = BY_NAME["offset-commit/v3-trailing-bytes-ignored"]
    row = row_of(vector.name, "offset_commits")
    assert (row["verbatim_key"], row["verbatim_value"]) == (vector.key, vector.value)
    assert row["committed_offset"] == 671


def test_decode_row_out_of_range_commit_time_is_null_and_kept_verbatim() -> None:
    """Clients could set it in version 1 of OffsetCommit."""
    value = b"\0\3" + bytes(14) + b"\x7f" + b"\xff" * 7
    table, row = decode_row(COMMIT_KEY, value)
    assert (table, row["commit_at"], row["verbatim_value"]) == ("offset_commits", None, value)


# --- classic groups -----------------------------------------------------------------------------------------


def test_decode_row_classic_group_has_generation_and_members() -> None:
    """Value version 3: a group with assignor range and two members."""
    row = row_of("group-metadata/v3", "group_metadata")
    assert {name: row[name] for name in ("group_id", "protocol_type", "generation", "protocol", "leader")} == {
        "group_id": "billing",
        "protocol_type": "consumer",
        "generation": 3,
        "protocol": "range",
        "leader": "b1-aaaa",
    }
    assert row["state_at"] == datetime(2026, 11, 21, 6, 42, 16, 910000, UTC)
    assert [member["member_id"] for member in row["members"]] == ["b1-aaaa", "b2-bbbb"]
    assert [member["group_instance_id"] for member in row["members"]] == [None, "inst-2"]


def test_decode_row_classic_group_without_members_has_empty_list() -> None:
    """Null members mean a tombstone; the protocol is null while the group is empty."""
    row = row_of("group-metadata/v3-empty", "group_metadata")
    assert (row["members"], row["protocol"], row["leader"]) == ([], None, None)


def test_decode_row_classic_group_v0_missing_fields_are_null() -> None:
    """Version 0 has no state timestamp, rebalance timeout or static members."""
    row = row_of("group-metadata/v0", "group_metadata")
    assert row["state_at"] is None
    assert [said(member)["session_timeout_ms"] for member in row["members"]] == [45000, 45000]
    assert {member["rebalance_timeout_ms"] for member in row["members"]} == {None}


def test_decode_row_member_has_ids_host_and_timeouts() -> None:
    """Timeouts are in milliseconds; the host is as Java prints it."""
    member = member_of(*classic_group(subscription(b"")))
    assert {name: member[name] for name in member if name not in ("subscription", "assignment")} == {
        "member_id": "m",
        "group_instance_id": "i",
        "client_id": "c",
        "client_host": "/h",
        "rebalance_timeout_ms": 9,
        "session_timeout_ms": 8,
    }


def test_decode_row_consumer_member_has_subscription_and_assignment() -> None:
    """Each with its version; user data as bytes."""
    assigned = blob(ASSIGNMENT, 1, assignedPartitions=ORDERS, userData=b"\3")
    member = member_of(*classic_group(subscription(b"\1"), assigned))
    assert said(member["subscription"]) == {
        "layout": SUBSCRIPTION,
        "version": 3,
        "topics": ["orders"],
        "user_data": b"\1",
        "owned_partitions": ORDERS,
        "generation_id": 6,
        "rack_id": "r",
    }
    assert said(member["assignment"]) == {
        "layout": ASSIGNMENT,
        "version": 1,
        "partitions": ORDERS,
        "user_data": b"\3",
    }


def test_decode_row_sticky_user_data_gives_previous_partitions() -> None:
    """Version 1 of the sticky assignor's user data has a generation, version 0 has none."""
    before = [{"topic": "payments", "partitions": [1]}, {"topic": "orders", "partitions": [0, 3]}]
    for layout, generation in ((1, 12), (0, None)):
        user_data = BY_NAME[f"blob/sticky-user-data-v{layout}"].value
        columns = member_of(*classic_group(subscription(user_data), protocol="sticky"))["subscription"]
        assert columns["previous_partitions"] == before
        assert columns["previous_generation"] == generation
        assert columns["user_data"] == user_data


def test_decode_row_cooperative_sticky_user_data_gives_previous_generation() -> None:
    """The previous partitions are the owned ones of the subscription."""
    user_data = BY_NAME["blob/cooperative-sticky-user-data"].value
    columns = member_of(*classic_group(subscription(user_data), protocol="cooperative-sticky"))["subscription"]
    assert (columns["previous_generation"], columns["previous_partitions"]) == (12, None)
    assert columns["owned_partitions"] == ORDERS


@pytest.mark.parametrize(
    ("protocol", "user_data"),
    [("range", b"\0\0\0\x0c"), ("sticky", b"\0\0"), ("sticky", b""), ("sticky", None), (None, b"\0\0\0\x0c")],
)
def test_decode_row_other_or_unreadable_user_data_stays_bytes(protocol: str | None, user_data: bytes | None) -> None:
    """User data of another assignor, undecodable, empty or null: the subscription is decoded without it."""
    columns = member_of(*classic_group(subscription(user_data), protocol=protocol))["subscription"]
    assert columns["previous_partitions"] is None
    assert columns["previous_generation"] is None
    assert (columns["topics"], columns["user_data"], columns["error"]) == (["orders"], user_data, None)


def test_decode_row_connect_worker_blobs_become_json() -> None:
    """JSON with Kafka's field names, including the allocation inside the metadata."""
    metadata = BY_NAME["blob/connect-metadata-v2-allocation"]
    assigned = BY_NAME["blob/connect-assignment-v1-revoked-delay"]
    assert metadata.value is not None
    assert assigned.value is not None
    group = classic_group(metadata.value, assigned.value, protocol_type="connect", protocol="sessioned")
    member = member_of(*group)
    for columns, vector in ((member["subscription"], metadata), (member["assignment"], assigned)):
        assert set(said(columns)) == {"layout", "version", "connect"}
        assert (columns["layout"], columns["version"]) == (vector.expected["blob"], vector.expected["version"])
        assert json.loads(columns["connect"]) == vector.expected["data"]


def test_decode_row_unknown_protocol_type_blobs_stay_bytes() -> None:
    """For example the Schema Registry's: there is no layout and no error."""
    columns = member_of(*classic_group(b'{"host":"a"}', b"{}", protocol_type="sr", protocol="v0"))
    assert said(columns["subscription"]) == {"verbatim": b'{"host":"a"}'}
    assert said(columns["assignment"]) == {"verbatim": b"{}"}


def test_decode_row_empty_assignment_is_not_an_error() -> None:
    """It means that the leader assigned nothing, as an empty list with a version does."""
    nothing = member_of(*classic_group(subscription(None), b""))["assignment"]
    assert said(nothing) == {"layout": ASSIGNMENT, "verbatim": b""}
    listed = member_of(*classic_group(subscription(None), blob(ASSIGNMENT, 0, assignedPartitions=[], userData=b"")))
    assert said(listed["assignment"]) == {"layout": ASSIGNMENT, "version": 0, "partitions": [], "user_data": b""}


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", "truncated"),
        (b"\xff\xff", "unknown_version"),
        (b"\0\0\x7f\xff\xff\xff", "length_exceeds_input"),
        (b"\0\0\0\0\0\1\0\1\xff\xff\xff\xff\xff", "not_utf8"),
    ],
)
def test_decode_row_undecodable_subscription_keeps_the_member_and_the_reason(content: bytes, error: str) -> None:
    """The blob's bytes and the reason are kept; group, generation and member are known."""
    member = member_of(*classic_group(content))
    assert member["member_id"] == "m"
    assert said(member["subscription"]) == {"layout": SUBSCRIPTION, "verbatim": content, "error": error}


KAFKA_GO = b64decode("AAEAAAACAANnbzQAA2dvN/////8=")
"""Written by kafka-go 0.4.51: version 1 without the owned partitions."""


def test_decode_row_subscription_of_kafka_go_has_its_topics_and_the_reason() -> None:
    subscribed = member_of(*classic_group(KAFKA_GO))["subscription"]
    known = {"layout": SUBSCRIPTION, "version": 1, "topics": ["go4", "go7"]}
    assert said(subscribed) == {**known, "verbatim": KAFKA_GO, "error": "truncated_tail"}


def test_decode_row_subscription_of_kafka_go_encodes_back_to_its_bytes() -> None:
    record = classic_group(KAFKA_GO)
    assert encode_row(*decode_row(*record)) == record


def test_decode_row_subscription_with_trailing_bytes_is_decoded_and_kept_verbatim() -> None:
    content = BY_NAME["blob/consumer-subscription-v7-read-as-v3"].value
    assert content is not None
    columns = member_of(*classic_group(content))["subscription"]
    assert (columns["version"], columns["topics"], columns["generation_id"]) == (7, ["orders"], 4)
    assert (columns["verbatim"], columns["error"]) == (content, None)


# --- other groups -------------------------------------------------------------------------------------------

EPOCHS = {
    "consumer-group-metadata/hash": 2,
    "consumer-group-target-assignment-metadata/timestamp": "assignmentEpoch",
    "consumer-group-current-assignment/epochs": 5,
    "consumer-group-member-metadata/classic-present": None,
    "consumer-group-regular-expression/value": None,
    "share-group-metadata/value": "epoch",
    "streams-group-metadata/tags": 2,
    "streams-group-current-assignment/value": 3,
}


@pytest.mark.parametrize(("name", "epoch"), EPOCHS.items())
def test_decode_row_epoch_column_holds_the_record_types_own_epoch(name: str, epoch: int | str | None) -> None:
    """The epoch of the group, of the assignment or of the member."""
    value = BY_NAME[name].expected["value"]["data"]
    assert row_of(name, "group_records")["epoch"] == (value[epoch] if isinstance(epoch, str) else epoch)


@pytest.mark.parametrize(
    "vector",
    [vector for vector in RECORDS if vector.expected.get("key", {"type": 0})["type"] > 2],
    ids=lambda v: v.name,
)
def test_decode_row_group_record_has_key_and_value_in_kafka_json(vector: Vector) -> None:
    """With the record type's name and the member id."""
    if "error" in vector.expected:
        assert decode_row(vector.key, vector.value)[0] == "undecodable_records"
        return
    row = row_of(vector.name, "group_records")
    key, value = vector.expected["key"], vector.expected["value"]
    assert row["record_type"] == record_types()[key["type"]].name
    assert json.loads(row["key_json"]) == key["data"]
    assert row["group_id"] == key["data"]["groupId"]
    assert row["member_id"] == key["data"].get("memberId")
    assert (row["value_json"] and json.loads(row["value_json"])) == (value and value["data"])


def test_decode_row_group_record_unknown_tags_are_base64_in_the_json() -> None:
    """Nothing needs to be kept verbatim then."""
    key = Key(3, {"groupId": "g"})
    value = Value(0, {"epoch": 1, UNKNOWN_TAGS: {"9": b"new"}})
    _, row = decode_row(encode_key(key), encode_value(key, value))
    assert json.loads(row["value_json"]) == {"epoch": 1, "_unknownTaggedFields": {"9": "bmV3"}}
    assert row["verbatim_value"] is None


@pytest.mark.parametrize("tag", [b"\xff\xff\xff\xff\x0f", b"\x80\x80\x80\x80\x08"])
def test_decode_row_negative_unknown_tag_encodes_back(tag: bytes) -> None:
    """Kafka reads a 32-bit varint as a negative number."""
    key, value = b"\0\3\0\1g", b"\0\0\0\0\0\1\1" + tag + b"\1x"
    assert encode_row(*decode_row(key, value)) == (key, value)


# --- undecodable records ------------------------------------------------------------------------------------


def test_decode_row_undecodable_record_keeps_its_bytes_and_the_reason() -> None:
    """Group and type are known if the key could be decoded."""
    table, row = decode_row(COMMIT_KEY, b"\0\5x")
    assert table == "undecodable_records"
    assert row.pop("decoder_version") == version("grouptrail")
    assert row == {
        "record_key": COMMIT_KEY,
        "record_value": b"\0\5x",
        "key_type": 1,
        "group_id": "billing",
        "fault_in": "value",
        "reason": "unknown_version",
        "fault_position": 0,
    }


@pytest.mark.parametrize(
    ("key", "key_type"), [(None, None), (b"", None), (b"\0", None), (b"\0\1", 1), (b"\xff\xff", -1), (b"\0\x18g", 24)]
)
def test_decode_row_undecodable_key_has_at_most_its_type(key: bytes | None, key_type: int | None) -> None:
    """The type may be an unknown one."""
    _, row = decode_row(key, None)
    assert (row["key_type"], row["group_id"], row["fault_in"]) == (key_type, None, "key")
    assert encode_row("undecodable_records", row) == (key, None)


# One input for each kind of error: a record's key and value, or a blob's layout and bytes.
TOO_LARGE = 1_000_000
FAULTS: dict[str, tuple[bytes | None, bytes | None] | tuple[str, bytes]] = {
    "truncated": (COMMIT_KEY, b""),
    "truncated_tail": (SUBSCRIPTION, bytes.fromhex("0001 00000000 ffffffff")),
    "empty": (ASSIGNMENT, b""),
    "unknown_type": (b"\0\x09\0\1g", None),
    "unknown_version": (COMMIT_KEY, b"\0\5"),
    "null_not_allowed": (None, None),
    "length_exceeds_input": (b"\0\2\x7f\xff", None),
    "length_not_allowed": (COMMIT_KEY, b"\0\4" + bytes(12) + b"\x81\x80\2" + b"m" * 32768),
    "bad_varint": (COMMIT_KEY, b"\0\4" + bytes(12) + b"\xff" * 5),
    "tag_size_mismatch": (b"\0\3\0\1g", b"\0\0" + bytes(4) + b"\1\0\7" + bytes(8)),
    "too_large": (COMMIT_KEY, bytes(TOO_LARGE + 1)),
    "not_utf8": (b"\0\2\0\1\xff", None),
}


@pytest.mark.parametrize("kind", KINDS)
def test_decode_example_of_each_error_kind_gives_that_kind(kind: str) -> None:
    """Every kind of error must have an example here."""
    first, second = FAULTS[kind]
    if isinstance(first, str):
        error = decode_blob(first, second or b"").error
        assert error is not None
        assert error.kind == kind
    else:
        assert decode_row(first, second, TOO_LARGE)[1]["reason"] == kind


def test_docs_explain_every_error_kind() -> None:
    """`docs/undecodable.md` has a heading for each reason, and for no other."""
    text = (Path(__file__).parents[2] / "docs" / "undecodable.md").read_text("utf-8")
    assert sorted(re.findall(r"^### `(\w+)`$", text, re.MULTILINE)) == sorted(KINDS)
