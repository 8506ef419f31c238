"""Convert rows of the decoded tables to the fold's input (`tasks.INPUT_DDL`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grouptrail.history.operations import CLASSIC, COMMIT_TOMBSTONE
from grouptrail.history.tasks import STATE_OFFSET
from grouptrail.storage.schema import ADMIN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_AT = ("record_partition", "group_id", "record_offset", "unix_millis(record_at) AS at")
_POLL = (f"source <=> '{ADMIN}' AS is_polled", "unix_millis(not_before) AS not_before")

# The fields of a classic group's record that the fold needs, without raw bytes.
_MEMBER = """named_struct(
    'member_id', member.member_id, 'group_instance_id', member.group_instance_id, 'client_id', member.client_id,
    'client_host', member.client_host, 'rebalance_timeout_ms', member.rebalance_timeout_ms,
    'session_timeout_ms', member.session_timeout_ms,
    'subscription', named_struct(
        'topics', member.subscription.topics, 'owned_partitions', member.subscription.owned_partitions,
        'generation_id', member.subscription.generation_id, 'rack_id', member.subscription.rack_id,
        'previous_partitions', member.subscription.previous_partitions,
        'previous_generation', member.subscription.previous_generation, 'connect', member.subscription.connect,
        'error', member.subscription.error),
    'assignment', named_struct(
        'layout', member.assignment.layout, 'version', member.assignment.version,
        'partitions', member.assignment.partitions, 'connect', member.assignment.connect,
        'error', member.assignment.error))"""
_CLASSIC_BODY = f"""to_json(named_struct(
    'protocol_type', protocol_type, 'generation', generation, 'protocol', protocol, 'leader', leader,
    'state_at', unix_millis(state_at), 'members', transform(members, member -> {_MEMBER})))"""


def classic_records(group_metadata: DataFrame) -> DataFrame:
    """Return the records in rows of `group_metadata`."""
    return group_metadata.selectExpr(
        *_AT,
        f"'{CLASSIC}' AS type",
        "CAST(null AS string) AS name",
        f"IF(is_tombstone, null, {_CLASSIC_BODY}) AS body",
        *_POLL,
    )


def other_records(group_records: DataFrame) -> DataFrame:
    """Return the records in rows of `group_records`."""
    name = "coalesce(member_id, get_json_object(key_json, '$.regularExpression')) AS name"
    return group_records.selectExpr(*_AT, "record_type AS type", name, "value_json AS body", *_POLL)


def commit_tombstones(offset_commits: DataFrame) -> DataFrame:
    """Return the tombstones in rows of `offset_commits`, which show whether a removed group had offsets."""
    return offset_commits.where("is_tombstone").selectExpr(
        *_AT, f"'{COMMIT_TOMBSTONE}' AS type", "CAST(null AS string) AS name", "CAST(null AS string) AS body", *_POLL
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
    )


def by_group(records: DataFrame, tasks: int) -> DataFrame:
    """Return the records in order, those of a group in one task."""
    order = ("record_partition", "group_id", "record_offset")
    return records.repartition(tasks, "record_partition", "group_id").sortWithinPartitions(*order)
