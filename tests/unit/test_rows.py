"""Rows of the decoded tables: which record lands where, and what its columns say."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from grouptrail.decode.rows import Row, decode_row, encode_row, table_of
from grouptrail.decode.schema import own_columns
from grouptrail.wire.blobs import Blob, decode_blob, encode_blob
from grouptrail.wire.codec import UNKNOWN_TAGS
from grouptrail.wire.errors import KINDS
from grouptrail.wire.layout import record_types
from grouptrail.wire.records import Key, Value, encode_key, encode_value
from vectors import BY_NAME, RECORDS, Vector

COMMIT_KEY = encode_key(Key(1, {"group": "billing", "topic": "orders", "partition": 4}))
SUBSCRIPTION = "ConsumerProtocolSubscription"
ASSIGNMENT = "ConsumerProtocolAssignment"
ORDERS = [{"topic": "orders", "partitions": [0, 2]}]


def row_of(name: str, table: str) -> Row:
    """A vector's row, which must be of that table."""
    found, row = decode_row(BY_NAME[name].key, BY_NAME[name].value)
    assert found == table
    return row


def blob(layout: str, version: int, **data: Any) -> bytes:
    """A blob's bytes."""
    return encode_blob(Blob(layout, version, data))


def subscription(user_data: bytes | None) -> bytes:
    """A consumer's subscription to `orders`, with its assignor's user data."""
    return blob(
        SUBSCRIPTION, 3, topics=["orders"], userData=user_data, ownedPartitions=ORDERS, generationId=6, rackId="r"
    )


def classic_group(
    subscription: bytes, assignment: bytes = b"", *, protocol_type: str = "consumer", protocol: str | None = "range"
) -> tuple[bytes, bytes]:
    """A GroupMetadata record with one member."""
    member = {"memberId": "m", "groupInstanceId": "i", "clientId": "c", "clientHost": "/h", "rebalanceTimeout": 9}
    member |= {"sessionTimeout": 8, "subscription": subscription, "assignment": assignment}
    fields = {"protocolType": protocol_type, "generation": 7, "protocol": protocol, "leader": "m"}
    fields |= {"currentStateTimestamp": 1, "members": [member]}
    key = Key(2, {"group": "g"})
    value = encode_value(key, Value(3, fields))
    assert value is not None
    return encode_key(key), value


def member_of(key: bytes, value: bytes) -> dict[str, Any]:
    """The only member of a classic group's record, all of its columns filled as the table's file has them."""
    table, row = decode_row(key, value)
    assert table == "group_metadata"
    assert encode_row(table, row) == (key, value)
    [member] = row["members"]
    return {
        **member,
        **{
            name: dict.fromkeys(field.name for field in own_columns(table).field("members").type.value_type[name].type)
            | member[name]
            for name in ("subscription", "assignment")
            for field in [None]
        },
    }
