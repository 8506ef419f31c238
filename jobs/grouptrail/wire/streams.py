"""The user data of classic Kafka Streams members: their tasks, processes and endpoints.

StreamsPartitionAssignor puts them into subscriptions and assignments; their layouts are SubscriptionInfo and
AssignmentInfo, versions 1 to 11 (Kafka 0.10 to 4.4).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from grouptrail.wire.blobs import decode_blob
from grouptrail.wire.text import data_json

PROTOCOL = "stream"
"""The name of StreamsPartitionAssignor, which is a classic group's protocol."""

_SUBSCRIPTION = "StreamsSubscriptionInfo"
_ASSIGNMENT = "StreamsAssignmentInfo"

# Each member's assignment repeats who has which partition in the whole group.
_OF_ALL_MEMBERS = ("topics", "partitionsByHost", "standbyPartitionsByHost")


def streams_json(members: Iterable[Mapping[str, Any]]) -> str:
    """Return what the members' user data say, as the column `streams` of `group_metadata` has it.

    `members` are elements of the column `members`. The JSON has, by member id, `subscription` and `assignment` with
    Kafka's field names and `version`; null without user data; only `error`, and `version` if that is a newer one,
    where it cannot be read.
    """
    said = {
        member["member_id"]: {
            "subscription": _subscription((member["subscription"] or {}).get("user_data")),
            "assignment": _decoded(_ASSIGNMENT, (member["assignment"] or {}).get("user_data")),
        }
        for member in members
    }
    return json.dumps(said, ensure_ascii=False, separators=(",", ":"))


def _subscription(user_data: bytes | None) -> dict[str, Any] | None:
    said = _decoded(_SUBSCRIPTION, user_data)
    if said is None or "error" in said:
        return said
    said["processId"] = str(UUID(bytes=base64.urlsafe_b64decode(said["processId"] + "==")))
    if "userEndPoint" in said:
        said["userEndPoint"] = _text(said["userEndPoint"])
    if "clientTags" in said:
        said["clientTags"] = {_text(tag["key"]): _text(tag["value"]) for tag in said["clientTags"]}
    return said


def _decoded(layout: str, user_data: bytes | None) -> dict[str, Any] | None:
    if not user_data:
        return None
    blob = decode_blob(layout, user_data)
    if blob.data is not None:
        own = {name: value for name, value in blob.data.items() if name not in _OF_ALL_MEMBERS}
        return {"version": blob.version, **data_json(own)}
    assert blob.error is not None
    if blob.error.kind == "unknown_version":
        return {"version": int.from_bytes(user_data[:4], "big", signed=True), "error": blob.error.kind}
    return {"error": blob.error.kind}


def _text(content: str) -> str:
    return base64.b64decode(content).decode("utf-8", "replace")
