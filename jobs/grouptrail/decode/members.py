"""Convert a classic group's members to rows and back, with the blobs that group protocols put into them."""

from __future__ import annotations

import json
from typing import Any

from grouptrail.wire.blobs import ASSIGNMENTS, SUBSCRIPTIONS, USER_DATA, Blob, decode_blob, encode_blob
from grouptrail.wire.text import data_json

Row = dict[str, Any]

_PLAIN_COLUMNS = (
    ("memberId", "member_id"),
    ("groupInstanceId", "group_instance_id"),
    ("clientId", "client_id"),
    ("clientHost", "client_host"),
    ("rebalanceTimeout", "rebalance_timeout_ms"),
    ("sessionTimeout", "session_timeout_ms"),
)
_SUBSCRIPTION = {
    "topics": "topics",
    "userData": "user_data",
    "ownedPartitions": "owned_partitions",
    "generationId": "generation_id",
    "rackId": "rack_id",
}
_ASSIGNMENT = {"assignedPartitions": "partitions", "userData": "user_data"}
_CONSUMER_COLUMNS = {"ConsumerProtocolSubscription": _SUBSCRIPTION, "ConsumerProtocolAssignment": _ASSIGNMENT}


def member_row(member: dict[str, Any], *, protocol_type: str, protocol: str | None) -> Row:
    """Return a member of a GroupMetadata value as an element of the column `members`."""
    subscription = _blob_row(SUBSCRIPTIONS.get(protocol_type), member["subscription"])
    previous = _sticky(protocol, subscription.get("user_data"))
    return {
        **{column: member.get(name) for name, column in _PLAIN_COLUMNS},
        "subscription": {
            **subscription,
            "previous_partitions": previous.get("previous_assignment"),
            "previous_generation": previous.get("generation"),
        },
        "assignment": _blob_row(ASSIGNMENTS.get(protocol_type), member["assignment"]),
    }


def member_values(row: Row) -> dict[str, Any]:
    """Return the member of a row: the inverse of `member_row`."""
    return {
        **{name: row[column] for name, column in _PLAIN_COLUMNS},
        "subscription": _blob_bytes(row["subscription"]),
        "assignment": _blob_bytes(row["assignment"]),
    }


def _blob_row(layout: str | None, content: bytes) -> Row:
    """Return a blob's columns; `verbatim` has its bytes if the other columns do not encode to the same ones."""
    if layout is None:
        return {"layout": None, "verbatim": content}
    blob = decode_blob(layout, content)
    row: Row = {"layout": layout, "version": blob.version, "verbatim": None}
    if blob.error is not None:
        row["error"] = None if blob.error.kind == "empty" else blob.error.kind
        row["verbatim"] = content
    if blob.data is None:
        return row
    if layout in _CONSUMER_COLUMNS:
        row.update({column: blob.data.get(name) for name, column in _CONSUMER_COLUMNS[layout].items()})
    else:
        row["connect"] = json.dumps(data_json(blob.data), ensure_ascii=False, separators=(",", ":"))
    if row["verbatim"] is None and _blob_bytes(row) != content:
        row["verbatim"] = content
    return row


def _blob_bytes(row: Row) -> bytes:
    if row["verbatim"] is not None:
        content: bytes = row["verbatim"]
        return content
    if row["layout"] in _CONSUMER_COLUMNS:
        data = {name: row.get(column) for name, column in _CONSUMER_COLUMNS[row["layout"]].items()}
    else:
        data = json.loads(row["connect"])
    return encode_blob(Blob(row["layout"], row["version"], data))


def _sticky(protocol: str | None, user_data: bytes | None) -> dict[str, Any]:
    """Return the decoded user data of a sticky assignor; empty if there is none or it cannot be read."""
    for layout in USER_DATA.get(protocol or "", ()) if user_data else ():
        if (data := decode_blob(layout, user_data or b"").data) is not None:
            return data
    return {}
