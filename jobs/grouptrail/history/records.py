"""Convert rows of the decoded tables to the fold's input (`tasks.INPUT_DDL`), in Spark or on the driver."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.history.operations import CLASSIC, COMMIT_TOMBSTONE
from grouptrail.history.tasks import INPUT_SCHEMA, STATE_OFFSET
from grouptrail.storage.schema import ADMIN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Compaction never takes records of the newest segment, and 100 MB (offsets.topic.segment.bytes) are not written to a
# partition within a minute.
_SOONEST_COMPACTION_MS = 60_000

_AT = ("record_partition", "group_id", "record_offset", "unix_millis(record_at) AS at")
_POLL = (f"source <=> '{ADMIN}' AS is_polled", "unix_millis(not_before) AS not_before")
_READ = (
    f"IF(unix_millis(read_at) - unix_millis(record_at) > {_SOONEST_COMPACTION_MS}, unix_millis(read_at), null) "
    "AS read_late_at"
)

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
_OF_GROUP = (*_ORIGIN, "read_at")
ORDER = ("record_partition", "group_id", "record_offset")
"""The order of the fold's input."""

COLUMNS = {
    "group_metadata": (*_OF_GROUP, "is_tombstone", *_PLAIN, "state_at", "members"),
    "group_records": (*_OF_GROUP, "record_type", "member_id", "key_json", "value_json"),
    "offset_commits": (*_ORIGIN, "is_tombstone"),
}
"""The columns of each decoded table that `from_rows` needs."""


def _spark_struct(fields: Mapping[str, Any], of: str) -> str:
    values = (
        f"'{name}', {f'{of}.{name}' if inner is None else _spark_struct(inner, f'{of}.{name}')}"
        for name, inner in fields.items()
    )
    return f"named_struct({', '.join(values)})"


def classic_records(group_metadata: DataFrame) -> DataFrame:
    """Return the records in rows of `group_metadata`."""
    plain = ", ".join(f"'{name}', {name}" for name in _PLAIN)
    members = f"transform(members, member -> {_spark_struct(_MEMBER, 'member')})"
    body = f"to_json(named_struct({plain}, 'state_at', unix_millis(state_at), 'members', {members}))"
    return group_metadata.selectExpr(
        *_AT,
        f"'{CLASSIC}' AS type",
        "CAST(null AS string) AS name",
        f"IF(is_tombstone, null, {body}) AS body",
        *_POLL,
        _READ,
    )


def other_records(group_records: DataFrame) -> DataFrame:
    """Return the records in rows of `group_records`."""
    name = f"coalesce(member_id, get_json_object(key_json, '$.{_PATTERN}')) AS name"
    return group_records.selectExpr(*_AT, "record_type AS type", name, "value_json AS body", *_POLL, _READ)


def commit_tombstones(offset_commits: DataFrame) -> DataFrame:
    """Return the tombstones in rows of `offset_commits`, which show whether a removed group had offsets."""
    return offset_commits.where("is_tombstone").selectExpr(
        *_AT,
        f"'{COMMIT_TOMBSTONE}' AS type",
        "CAST(null AS string) AS name",
        "CAST(null AS string) AS body",
        *_POLL,
        "CAST(null AS bigint) AS read_late_at",
    )


def states_of(positions: pa.Table) -> pa.Table:
    """Return the same as `saved_states` from rows of `history_positions`."""
    same = {"record_offset": STATE_OFFSET, "at": 0, "type": "", "is_polled": False}
    known = {"record_partition": positions["record_partition"], "group_id": positions["group_id"]}
    values = known | {"body": positions["state"]}
    return pa.table(
        [
            values.get(one.name, pa.repeat(pa.scalar(same.get(one.name), one.type), len(positions)))
            for one in INPUT_SCHEMA
        ],
        schema=INPUT_SCHEMA,
    )


def saved_states(positions: DataFrame) -> DataFrame:
    """Return rows of `history_positions` as records that sort before those of their groups."""
    return positions.selectExpr(
        "record_partition",
        "group_id",
        f"CAST({STATE_OFFSET} AS bigint) AS record_offset",
        "CAST(0 AS bigint) AS at",
        "'' AS type",
        "CAST(null AS string) AS name",
        "state AS body",
        "false AS is_polled",
        "CAST(null AS bigint) AS not_before",
        "CAST(null AS bigint) AS read_late_at",
    )


def by_group(records: DataFrame, tasks: int) -> DataFrame:
    """Return the records in order, those of a group in one task."""
    return records.repartition(tasks, "record_partition", "group_id").sortWithinPartitions(*ORDER)


def from_rows(table: str, rows: pa.Table) -> pa.Table:
    """Return the same as the functions for Spark from rows of a decoded table that have its `COLUMNS`.

    Rows of `offset_commits` must be tombstones.
    """
    type_ = pa.repeat(COMMIT_TOMBSTONE if table == "offset_commits" else CLASSIC, len(rows))
    name = body = pa.nulls(len(rows), pa.string())
    at = _ms(rows["record_at"])
    read_late_at = pa.nulls(len(rows), pa.int64())
    if "read_at" in rows.column_names:
        read_at = _ms(rows["read_at"])
        is_late = pc.greater(pc.subtract(read_at, at), _SOONEST_COMPACTION_MS)
        read_late_at = pc.if_else(is_late, read_at, None)
    if table == "group_metadata":
        values = rows.set_column(rows.column_names.index("state_at"), "state_at", _ms(rows["state_at"]))
        values = values.select(["is_tombstone", *_PLAIN, "state_at", "members"])
        body = pa.array(map(_classic_body, values.to_pylist()), pa.string())
    elif table == "group_records":
        type_, body = rows["record_type"], rows["value_json"]
        keys = zip(rows["member_id"].to_pylist(), rows["key_json"].to_pylist(), strict=True)
        name = pa.array((json.loads(key).get(_PATTERN) if one is None else one for one, key in keys), pa.string())
    return pa.table(
        {
            **{column: rows[column] for column in ("record_partition", "group_id", "record_offset")},
            "at": at,
            "type": type_,
            "name": name,
            "body": body,
            "is_polled": pc.fill_null(pc.equal(rows["source"], ADMIN), fill_value=False),
            "not_before": _ms(rows["not_before"]),
            "read_late_at": read_late_at,
        }
    )


def _ms(times: pa.ChunkedArray) -> pa.ChunkedArray:
    return times.cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())


def _classic_body(row: Mapping[str, Any]) -> str | None:
    if row["is_tombstone"]:
        return None
    members = row["members"] and [_picked(_MEMBER, member) for member in row["members"]]
    values = {name: row[name] for name in (*_PLAIN, "state_at")} | {"members": members}
    return json.dumps(_without_nulls(values))


def _picked(fields: Mapping[str, Any], struct: Mapping[str, Any] | None) -> dict[str, Any]:
    of = struct or {}
    return {name: of.get(name) if inner is None else _picked(inner, of.get(name)) for name, inner in fields.items()}


def _without_nulls(value: Any) -> Any:
    """Return a value without the fields that are null, as `to_json` writes it."""
    if isinstance(value, dict):
        return {name: _without_nulls(one) for name, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value
