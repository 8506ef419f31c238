"""The interpreter: convert any record to a row of exactly one decoded table, and rows back to the record's bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from grouptrail.decode.members import member_row, member_values
from grouptrail.decode.times import from_time, to_time
from grouptrail.wire.layout import record_types
from grouptrail.wire.records import Key, Record, Value, decode_record, encode_key, encode_value
from grouptrail.wire.streams import PROTOCOL, streams_json
from grouptrail.wire.text import data_json, values_from_json

Row = dict[str, Any]

_COMMIT_TYPES = (0, 1)
_GROUP_METADATA_TYPE = 2
_EPOCHS = ("epoch", "assignmentEpoch", "memberEpoch")
_DECODER_VERSION = version("grouptrail")


def decode_row(key: bytes | None, value: bytes | None, max_bytes: int | None = None) -> tuple[str, Row]:
    """Return a record's table and its row, without the columns that say where the record came from.

    Never raises: a record that cannot be decoded, or whose key or value has more than `max_bytes`, is a row of
    `undecodable_records`. Keys and values that the columns do not encode to the same bytes are kept in `verbatim_key`
    and `verbatim_value`.
    """
    record = decode_record(key, value, max_bytes=max_bytes)
    if record.key is None or key is None or record.error is not None:
        return "undecodable_records", _undecodable_row(record, key, value)
    table = table_of(record.key.type)
    row = {
        **_ROWS[table](record.key, record.value),
        "key_type": record.key.type,
        "value_version": record.value.version if record.value else None,
        "is_tombstone": value is None,
        "verbatim_key": None,
        "verbatim_value": None,
    }
    encoded_key, encoded_value = encode_row(table, row)
    if encoded_key != key:
        row["verbatim_key"] = key
    if encoded_value != value:
        row["verbatim_value"] = value
    return table, row


def table_of(key_type: int) -> str:
    """Return the table that has the records of a type."""
    if key_type in _COMMIT_TYPES:
        return "offset_commits"
    return "group_metadata" if key_type == _GROUP_METADATA_TYPE else "group_records"


def encode_row(table: str, row: Row) -> tuple[bytes | None, bytes | None]:
    """Return the key and value that a row of a decoded table was decoded from, byte for byte."""
    if table == "undecodable_records":
        return row["record_key"], row["record_value"]
    key, value = _RECORDS[table](row)
    encoded_key = encode_key(key) if row["verbatim_key"] is None else row["verbatim_key"]
    encoded_value = encode_value(key, value) if row["verbatim_value"] is None else row["verbatim_value"]
    return encoded_key, encoded_value


def _undecodable_row(record: Record, key: bytes | None, value: bytes | None) -> Row:
    return {
        "record_key": key,
        "record_value": value,
        "group_id": _group_of(record.key) if record.key else None,
        **fault_columns(record, key),
        "decoder_version": _DECODER_VERSION,
    }


def fault_columns(record: Record, key: bytes | None) -> Row:
    """Return the columns that say why a record was not decoded, and the type in its key."""
    assert record.error is not None
    return {
        "key_type": int.from_bytes(key[:2], "big", signed=True) if key is not None and len(key) > 1 else None,
        "fault_in": record.error.where,
        "reason": record.error.kind,
        "fault_position": record.error.position,
    }


def _group_of(key: Key) -> str:
    group: str = key.data["group"] if "group" in key.data else key.data["groupId"]
    return group


def unless_unknown(number: int | None) -> int | None:
    """Return a number of a record; None for Kafka's -1, which means that it is not known."""
    return None if number == -1 else number


def _commit_row(key: Key, value: Value | None) -> Row:
    data = value.data if value else {}
    return {
        "group_id": key.data["group"],
        "topic": key.data["topic"],
        "partition": key.data["partition"],
        "committed_offset": data.get("offset"),
        "leader_epoch": unless_unknown(data.get("leaderEpoch")),
        "metadata": data.get("metadata"),
        "commit_at": to_time(data.get("commitTimestamp")),
        "expire_at": to_time(data.get("expireTimestamp")),
        "topic_id": data.get("topicId"),
    }


def _commit_record(row: Row) -> tuple[Key, Value | None]:
    fields = {"group": row["group_id"], "topic": row["topic"], "partition": row["partition"]}
    key = Key(row["key_type"], fields)
    if row["value_version"] is None:
        return key, None
    data = {
        "offset": row["committed_offset"],
        "leaderEpoch": -1 if row["leader_epoch"] is None else row["leader_epoch"],
        "metadata": row["metadata"],
        "commitTimestamp": from_time(row["commit_at"]),
        "expireTimestamp": from_time(row["expire_at"]),
    }
    if row["topic_id"] is not None:
        data["topicId"] = row["topic_id"]
    return key, Value(row["value_version"], data)


def _group_metadata_row(key: Key, value: Value | None) -> Row:
    data = value.data if value else {}
    members = data.get("members")
    rows = None
    if members is not None:
        about = {"protocol_type": data["protocolType"], "protocol": data["protocol"]}
        rows = [member_row(member, **about) for member in members]
    return {
        "group_id": key.data["group"],
        "protocol_type": data.get("protocolType"),
        "generation": data.get("generation"),
        "protocol": data.get("protocol"),
        "leader": data.get("leader"),
        "state_at": to_time(data.get("currentStateTimestamp")),
        "members": rows,
        "streams": streams_json(rows) if rows and data["protocol"] == PROTOCOL else None,
    }


def _group_metadata_record(row: Row) -> tuple[Key, Value | None]:
    key = Key(row["key_type"], {"group": row["group_id"]})
    if row["value_version"] is None:
        return key, None
    data = {
        "protocolType": row["protocol_type"],
        "generation": row["generation"],
        "protocol": row["protocol"],
        "leader": row["leader"],
        "currentStateTimestamp": from_time(row["state_at"]),
        "members": [member_values(member) for member in row["members"]],
    }
    return key, Value(row["value_version"], data)


def _group_record_row(key: Key, value: Value | None) -> Row:
    data = value.data if value else {}
    return {
        "group_id": _group_of(key),
        "record_type": record_types()[key.type].name,
        "member_id": key.data.get("memberId"),
        "epoch": next((data[name] for name in _EPOCHS if name in data), None),
        "key_json": _json(key.data),
        "value_json": _json(value.data) if value else None,
    }


def _group_record_record(row: Row) -> tuple[Key, Value | None]:
    message = record_types()[row["key_type"]]
    key = Key(row["key_type"], values_from_json(message, message.key, json.loads(row["key_json"])))
    if row["value_version"] is None:
        return key, None
    data = values_from_json(message, message.value, json.loads(row["value_json"]))
    return key, Value(row["value_version"], data)


def _json(data: dict[str, Any]) -> str:
    return json.dumps(data_json(data), ensure_ascii=False, separators=(",", ":"))


_ROWS: dict[str, Callable[[Key, Value | None], Row]] = {
    "offset_commits": _commit_row,
    "group_metadata": _group_metadata_row,
    "group_records": _group_record_row,
}
_RECORDS: dict[str, Callable[[Row], tuple[Key, Value | None]]] = {
    "offset_commits": _commit_record,
    "group_metadata": _group_metadata_record,
    "group_records": _group_record_record,
}
