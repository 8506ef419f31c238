"""Convert records of `__share_group_state` to rows of `share_group_state`, and rows back to the record's bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from grouptrail.decode.rows import Row, fault_columns, unless_unknown
from grouptrail.decode.times import from_time, to_time
from grouptrail.wire.records import Key, Value, decode_record, encode_key, encode_value

TABLE = "share_group_state"

_TYPES = ("snapshot", "update")
_BATCH = {
    "first_offset": "firstOffset",
    "last_offset": "lastOffset",
    "delivery_state": "deliveryState",
    "delivery_count": "deliveryCount",
}
_OF_RECORDS = ("record_partition", "record_offset", "record_at")


def decoded_rows(batches: Iterable[pa.RecordBatch], max_record_bytes: int | None = None) -> list[Row]:
    """Decode every record into a row; no record raises an error.

    In: batches of `RECORD_SCHEMA`. Out: the columns of the table `share_group_state` without `cluster`, `read_at` and
    those that rest on the records before.
    """
    rows: list[Row] = []
    for batch in batches:
        for record in batch.select([*_OF_RECORDS, "key", "value"]).to_pylist():
            key, value = record.pop("key"), record.pop("value")
            rows.append({**record, **decode_row(key, value, max_record_bytes)})
    return rows


def decode_row(key: bytes | None, value: bytes | None, max_bytes: int | None = None) -> Row:
    """Return a record's row, without the columns that say where the record came from; never raises.

    One that cannot be decoded, or whose key or value has more than `max_bytes`, has a `reason`.
    """
    record = decode_record(key, value, coordinator="share", max_bytes=max_bytes)
    row: Row = {**_key_columns(record.key), **_value_columns(record.value), "is_tombstone": value is None}
    if record.error is not None or record.key is None:
        return {**row, **fault_columns(record, key), "verbatim_key": key, "verbatim_value": value}
    row |= {"verbatim_key": None, "verbatim_value": None, "reason": None}
    encoded_key, encoded_value = encode_row(row)
    if encoded_key != key:
        row["verbatim_key"] = key
    if encoded_value != value:
        row["verbatim_value"] = value
    return row


def encode_row(row: Row) -> tuple[bytes | None, bytes | None]:
    """Return the key and value that a row was decoded from, byte for byte."""
    if row["reason"] is not None:
        return row["verbatim_key"], row["verbatim_value"]
    fields = {"groupId": row["group_id"], "topicId": row["topic_id"], "partition": row["partition"]}
    key = Key(_TYPES.index(row["record_type"]), fields, "share")
    encoded_key = encode_key(key) if row["verbatim_key"] is None else row["verbatim_key"]
    if row["verbatim_value"] is not None:
        return encoded_key, row["verbatim_value"]
    return encoded_key, encode_value(key, _value(row))


def _key_columns(key: Key | None) -> Row:
    if key is None:
        return {}
    return {
        "group_id": key.data["groupId"],
        "topic_id": key.data["topicId"],
        "partition": key.data["partition"],
        "record_type": _TYPES[key.type],
        "key_type": key.type,
    }


def _value_columns(value: Value | None) -> Row:
    data = value.data if value else {}
    batches = data.get("stateBatches")
    return {
        "value_version": value.version if value else None,
        "snapshot_epoch": data.get("snapshotEpoch"),
        "state_epoch": data.get("stateEpoch"),
        **{name: unless_unknown(data.get(field)) for name, field in _UNKNOWN_IS_NULL.items()},
        "created_at": to_time(data.get("createTimestamp")),
        "written_at": to_time(data.get("writeTimestamp")),
        "state_batches": None
        if batches is None
        else [{column: batch[field] for column, field in _BATCH.items()} for batch in batches],
    }


_UNKNOWN_IS_NULL = {
    "leader_epoch": "leaderEpoch",
    "start_offset": "startOffset",
    "delivery_complete_count": "deliveryCompleteCount",
}


def _value(row: Row) -> Value | None:
    if row["value_version"] is None:
        return None
    data: dict[str, Any] = {"snapshotEpoch": row["snapshot_epoch"]}
    if row["record_type"] == "snapshot":
        data |= {
            "stateEpoch": row["state_epoch"],
            "createTimestamp": from_time(row["created_at"]),
            "writeTimestamp": from_time(row["written_at"]),
        }
    for name, field in _UNKNOWN_IS_NULL.items():
        data[field] = -1 if row[name] is None else row[name]
    data["stateBatches"] = [
        {field: batch[column] for column, field in _BATCH.items()} for batch in row["state_batches"]
    ]
    return Value(row["value_version"], data)
