"""Decoded records as JSON, in the form of Kafka's own console formatters, and back.

UUIDs are Kafka's 22 characters, bytes standard base64, integers numbers. A tagged field with its default is omitted.
Unlike Kafka's formatters it also shows unknown tagged fields: under `UNKNOWN_TAGS`, by their tags.
"""

from __future__ import annotations

import base64
from typing import Any

from grouptrail.wire.blobs import Blob
from grouptrail.wire.codec import UNKNOWN_TAGS
from grouptrail.wire.errors import Undecodable
from grouptrail.wire.layout import Field, Message
from grouptrail.wire.records import Record


def record_json(record: Record) -> dict[str, Any]:
    """Return `{"key": {"type", "data"}, "value": {"version", "data"} or null, "error": null or {…}}`."""
    key, value = record.key, record.value
    return {
        "key": None if key is None else {"type": key.type, "data": data_json(key.data)},
        "value": None if value is None else {"version": value.version, "data": data_json(value.data)},
        "error": _error_json(record.error),
    }


def blob_json(blob: Blob) -> dict[str, Any]:
    """Return `{"blob", "version", "data", "error"}`."""
    data = None if blob.data is None else data_json(blob.data)
    return {"blob": blob.name, "version": blob.version, "data": data, "error": _error_json(blob.error)}


def _error_json(error: Undecodable | None) -> dict[str, Any] | None:
    if error is None:
        return None
    return {"where": error.where, "kind": error.kind, "position": error.position}


def data_json(data: Any) -> Any:
    """Return a decoded value with types that JSON supports."""
    if isinstance(data, dict):
        return {name: data_json(value) for name, value in data.items()}
    if isinstance(data, list):
        return [data_json(item) for item in data]
    return base64.b64encode(data).decode("ascii") if isinstance(data, bytes) else data


def values_from_json(message: Message, fields: tuple[Field, ...], data: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a struct from their JSON: the inverse of `data_json`."""
    values = {field.name: _from_json(message, field, data[field.name]) for field in fields if field.name in data}
    if UNKNOWN_TAGS in data:
        values[UNKNOWN_TAGS] = {tag: base64.b64decode(raw) for tag, raw in data[UNKNOWN_TAGS].items()}
    return values


def _from_json(message: Message, field: Field, value: Any) -> Any:
    if value is None:
        return None
    if field.is_list:
        return [_item_from_json(message, field, item) for item in value]
    return _item_from_json(message, field, value)


def _item_from_json(message: Message, field: Field, value: Any) -> Any:
    if field.type == "bytes":
        return base64.b64decode(value)
    if field.type in message.structs:
        return values_from_json(message, message.structs[field.type], value)
    return value
