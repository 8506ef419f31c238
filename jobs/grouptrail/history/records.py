"""Convert rows of the decoded tables and saved states to the fold's input (`tasks.INPUT_DDL`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.history.arrow_json import json_objects, to_json
from grouptrail.history.operations import CLASSIC, COMMIT_TOMBSTONE, UNREADABLE
from grouptrail.history.tasks import CHECKS, INPUT_SCHEMA, POSITIONS, STATE_OFFSET
from grouptrail.storage.files import RowsFunction
from grouptrail.storage.schema import ADMIN
from grouptrail.wire.streams import PROTOCOL, streams_json

# Compaction never takes records of the newest segment, and 100 MB (offsets.topic.segment.bytes) are not written to a
# partition within a minute.
_SOONEST_COMPACTION_MS = 60_000

# The fields of a classic group's record that the fold needs, without raw bytes; a dict has the fields of a struct.
_MEMBER: Mapping[str, Any] = {
    **dict.fromkeys(("member_id", "group_instance_id", "client_id", "client_host")),
    **dict.fromkeys(("rebalance_timeout_ms", "session_timeout_ms")),
    "subscription": {
        **dict.fromkeys(("topics", "owned_partitions", "generation_id", "rack_id")),
        **dict.fromkeys(("previous_partitions", "previous_generation", "connect", "error")),
    },
    "assignment": dict.fromkeys(("layout", "version", "partitions", "connect", "error")),
}
_PLAIN = ("protocol_type", "generation", "protocol", "leader")
_PATTERN = "regularExpression"

_ORIGIN = ("record_partition", "group_id", "record_offset", "record_at", "source", "not_before")
_OF_GROUP = (*_ORIGIN, "read_at", "is_gapless", "partition_leader_epoch")
ORDER = ("record_partition", "group_id", "record_offset")
"""The order of the fold's input."""

COLUMNS = {
    "group_metadata": (*_OF_GROUP, "is_tombstone", *_PLAIN, "state_at", "members", "streams"),
    "group_records": (*_OF_GROUP, "record_type", "member_id", "key_json", "value_json"),
    "offset_commits": _ORIGIN,
    "undecodable_records": _ORIGIN,
    CHECKS: ("record_partition", "group_id", "record_offset", "group_kind", "checked_at"),
    POSITIONS: ("record_partition", "group_id", "state"),
}
"""The columns of each table that `converter` needs."""


def converter(table: str) -> RowsFunction:
    """Return a function for `DataFrame.mapInArrow` that converts rows with the `COLUMNS` of a table.

    Rows of `offset_commits` must be tombstones, which show whether a removed group had offsets; those of
    `undecodable_records` must be of groups' records, those of `tombstone_checks` of groups that are gone. Rows of
    `history_positions` are saved states, which sort before the records of their groups.
    """
    converters: dict[str, Callable[[pa.RecordBatch], dict[str, pa.Array]]] = {
        "group_metadata": _classic_records,
        "group_records": _other_records,
        "offset_commits": partial(_without_body, COMMIT_TOMBSTONE),
        "undecodable_records": partial(_without_body, UNREADABLE),
        CHECKS: _missed_tombstones,
        POSITIONS: _saved_states,
    }
    convert = converters[table]

    def converted(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for rows in batches:
            values = convert(rows)
            arrays = [
                values.get(field.name, pa.nulls(len(rows), field.type)).cast(field.type) for field in INPUT_SCHEMA
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=INPUT_SCHEMA)

    return converted


def _classic_records(rows: pa.RecordBatch) -> dict[str, pa.Array]:
    fields = {name: to_json(rows[name]) for name in _PLAIN}
    fields |= {"state_at": to_json(_ms(rows["state_at"])), "members": to_json(rows["members"], _MEMBER)}
    fields["streams"] = _streams(rows)
    bodies = json_objects(fields, len(rows))
    return {
        **_of_group(rows),
        "type": pa.repeat(CLASSIC, len(rows)),
        "body": pc.if_else(rows["is_tombstone"], None, bodies),
    }


def _streams(rows: pa.RecordBatch) -> pa.StringArray:
    """Return the column `streams`, also of rows that an earlier grouptrail has written without it."""
    said = rows["streams"]
    is_missing = pc.and_(pc.equal(rows["protocol"], PROTOCOL), pc.is_null(said))
    if not pc.any(is_missing).as_py():
        return said
    members = rows["members"].filter(is_missing).to_pylist()
    return pc.replace_with_mask(
        said, pc.fill_null(is_missing, fill_value=False), pa.array(map(streams_json, members))
    )


def _other_records(rows: pa.RecordBatch) -> dict[str, pa.Array]:
    members, keys = rows["member_id"].to_pylist(), rows["key_json"].to_pylist()
    names = (
        json.loads(key).get(_PATTERN) if member is None else member for member, key in zip(members, keys, strict=True)
    )
    return {
        **_of_group(rows),
        "type": rows["record_type"],
        "name": pa.array(names, pa.string()),
        "body": rows["value_json"],
    }


def _without_body(type_: str, rows: pa.RecordBatch) -> dict[str, pa.Array]:
    return {**_of_any(rows), "type": pa.repeat(type_, len(rows))}


def _missed_tombstones(rows: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return the tombstones of groups that their coordinators no longer had, as found by a poll after a stop."""
    is_classic = pc.equal(rows["group_kind"], "classic")
    checked_at = _ms(rows["checked_at"])
    return {
        **{name: rows[name] for name in ("record_partition", "group_id", "record_offset")},
        "at": checked_at,
        "type": pc.if_else(is_classic, CLASSIC, "ConsumerGroupMetadata"),
        "is_polled": pa.repeat(pa.scalar(value=True), len(rows)),
        "read_late_at": checked_at,
        "read_at_once": pa.repeat(pa.scalar(value=False), len(rows)),
    }


def _saved_states(rows: pa.RecordBatch) -> dict[str, pa.Array]:
    return {
        **{name: rows[name] for name in ("record_partition", "group_id")},
        "record_offset": pa.repeat(STATE_OFFSET, len(rows)),
        "at": pa.repeat(0, len(rows)),
        "type": pa.repeat("", len(rows)),
        "body": rows["state"],
        "is_polled": pa.repeat(pa.scalar(value=False), len(rows)),
    }


def _of_group(rows: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return the columns that records of groups have in common."""
    read_at = _ms(rows["read_at"])
    is_old = pc.greater(pc.subtract(read_at, _ms(rows["record_at"])), _SOONEST_COMPACTION_MS)
    is_late = pc.and_(is_old, pc.invert(pc.fill_null(rows["is_gapless"], fill_value=False)))
    return {
        **_of_any(rows),
        "read_late_at": pc.if_else(is_late, read_at, None),
        "read_at_once": pc.fill_null(pc.invert(is_late), fill_value=False),
        "leader_epoch": rows["partition_leader_epoch"],
    }


def _of_any(rows: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return the columns that all records have in common."""
    return {
        **{name: rows[name] for name in ("record_partition", "group_id", "record_offset")},
        "at": _ms(rows["record_at"]),
        "is_polled": pc.fill_null(pc.equal(rows["source"], ADMIN), fill_value=False),
        "not_before": _ms(rows["not_before"]),
    }


def _ms(times: pa.Array) -> pa.Array:
    return times.cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
