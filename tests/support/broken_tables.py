"""Tables with rows that violate every expectation."""

from __future__ import annotations

from typing import Any

from grouptrail import contracts
from grouptrail.config import Config
from support.small_tables import at, lay

RECORD = {"record_partition": 1, "record_offset": 5}
OWNED = {"topic": "orders", "partition": 0, "member_id": "a", "is_open": False}
PLACE = {"topic": "orders", "partition": 0}
TASK = {"subtopology": "0", "task": 1, "member_id": "a", "role": "active", "is_open": False}
# Of one key: a row that ended before it was last seen, and two of the same time; one lacks what is never null.
OVERLAPPING: list[dict[str, Any]] = [
    {"valid_from": at(0), "valid_to": at(0), "last_seen_at": at(1)},
    {"valid_from": at(-1), "valid_to": at(2), "is_open": None},
    {"valid_from": at(-1), "is_open": False},
]

# Rows that violate every expectation of their table.
BROKEN: dict[str, list[dict[str, Any]]] = {
    "ingest_progress": [
        {"record_partition": 1, "start_offset": 0, "end_offset": 10, "offset_commits": 9, "query_id": None},
        {"record_partition": 1, "start_offset": 90, "end_offset": 80, "log_start_offset": 9, "last_stable_offset": 5},
        {"record_partition": 1, "start_offset": 90, "end_offset": 99, "earliest_record_at": at(0)},
    ],
    "offset_commits": [
        {**RECORD, "key_type": 7, "topic": "orders", "partition": -1},
        {**RECORD, "record_partition": 99, "group_id": None},
        RECORD,
    ],
    "group_metadata": [
        {**RECORD, "group_id": "live", "key_type": 7, "leader": "a", "members": []},
        {**RECORD, "record_partition": 99, "group_id": None},
        RECORD,
    ],
    "group_records": [
        {**RECORD, "key_type": 2, "key_json": "no json"},
        {**RECORD, "record_partition": 99, "group_id": None},
        RECORD,
    ],
    "undecodable_records": [
        {**RECORD, "fault_in": "tail", "reason": "bad luck", "fault_position": -1},
        {**RECORD, "record_partition": 99, "decoder_version": None},
        RECORD,
    ],
    "share_group_state": [
        {**RECORD, "record_type": "odd", "value_version": None, "is_tombstone": False, "start_offset": -1},
        {**RECORD, "reason": "truncated", "fault_in": None, "read_at": None},
    ],
    "share_deliveries": [
        {**RECORD, "first_offset": 5, "last_offset": 4, "delivery_count": 1, "previous_count": 2, "is_first": False},
        {**RECORD, "first_offset": 5, "last_offset": 5, "delivery_count": 1, "previous_count": 0, "is_first": True},
        {**RECORD, "first_offset": 5, "last_offset": 5, "is_first": None},
    ],
    "share_group_offsets": [
        {**PLACE, "polled_at": at(0), "outcome": "odd", "start_offset": -1, "delivery_complete_count": 3},
        {**PLACE, "polled_at": at(0), "outcome": "gone", "changed_at": at(1), "partition": -1},
        {**PLACE, "polled_at": at(0), "outcome": None},
    ],
    "generations": [
        {"record_offset": 1, "generation": 5, "group_kind": "odd", "member_count": 3, "members": [], "skew": -1},
        {
            "record_offset": 2,
            "generation": 4,
            "group_kind": "odd",
            "skipped": 7,
            "started_at": at(2),
            "ended_at": at(1),
        },
        {"record_offset": 2, "generation": 6, "protocol_type": None},
    ],
    "group_states": [
        {"record_offset": 1, "state": "Stable", "group_kind": "classic", "ended_at": at(0)},
        {"record_offset": 2, "state": "Empty", "group_kind": "classic", "started_at": at(1), "ended_at": at(0)},
        {"record_offset": 3, "state": "Asleep", "evidence": "recorded", "not_before": at(1), "started_at": at(0)},
        {"record_offset": 3, "state": "Asleep", "evidence": None},
    ],
    "memberships": [
        {"record_offset": 1, "member_id": "a", "began": "bored", "left_at": at(1)},
        {"record_offset": 2, "member_id": "a", "joined_at": at(0), "left_at": at(-1), "client_id": None},
        {"record_offset": 2, "member_id": "a"},
    ],
    "partition_ownership": [
        {**OWNED, "record_offset": 1, "member_id": "stranger", "owned_from": at(0), "ended": "lost"},
        {**OWNED, "record_offset": 2, "owned_from": at(1), "owned_until": at(0), "client_id": None},
        {**OWNED, "record_offset": 2, "owned_from": at(1), "owned_until": at(2)},
    ],
    "rebalances": [
        {"record_offset": 8, "cause": "unlucky", "from_generation": 3, "to_generation": 2, "partitions_moved": -1},
        {
            "record_offset": 9,
            "at": at(0),
            "previous_at": at(1),
            "seconds_since_previous": -60,
            "duration_ms": 5,
            "certainty": None,
        },
        {"record_offset": 9},
    ],
    "task_assignments": [
        {**TASK, "record_offset": 1, "member_id": "stranger", "assigned_from": at(0), "ended": "lost"},
        {**TASK, "record_offset": 2, "assigned_from": at(1), "assigned_until": at(0), "client_id": None},
        {**TASK, "record_offset": 2, "assigned_from": at(1), "assigned_until": at(2)},
    ],
    "streams_topology": [
        {"record_offset": 1, "usage": "hobby", "partitions": 0, "known_from": None},
        {"record_offset": 2, "known_from": at(1), "known_until": at(0), "is_open": True},
        {"record_offset": 2, "known_from": at(1), "known_until": at(2), "is_open": False},
    ],
    "topic_names": [{"topic_id": "a", "learned_from": "hearsay", "topic": ""}, {"topic_id": "a", "topic": None}],
    "history_positions": [
        {"record_partition": 1, "group_id": "live", "processed_to": 6, "waits": False, "state": None},
        {"record_partition": 1, "group_id": "ahead", "processed_to": 1000},
        {"record_partition": -1, "group_id": ""},
        {"record_partition": -1, "group_id": ""},
    ],
    "log_offsets": [
        {**PLACE, "log_start_offset": 9, "log_end_offset": 5, "topic": None},
        {**PLACE, "error": None},
        {**PLACE, "error": None},
    ],
    "consumer_lag": [
        {
            **PLACE,
            "status": "FINE",
            "lag": 7,
            "log_end_offset": 9,
            "committed_offset": 1,
            "lost_records": -1,
            "readable_lag": 8,
        },
        {**PLACE, "lag": 0, "lag_seconds": 5.0, "lost_records": 3, "log_start_offset": 0, "committed_offset": 0},
        {**PLACE, "status": None},
    ],
    "committed_offsets": [{**PLACE, "committed_offset": 1}, {**PLACE, "record_partition": None}],
    "brokers": [{"port": 0, **row} for row in OVERLAPPING],
    "topics": [{"topic": "orders", "created_at": at(1), **row} for row in OVERLAPPING],
    "topic_partitions": [{**PLACE, "leader": -1, **row} for row in OVERLAPPING],
    "group_configs": [{"group_id": "queue", "name": "share.x", "source": "odd", **row} for row in OVERLAPPING],
    "topic_configs": [{"topic": "orders", **row} for row in OVERLAPPING],
    "coordinators": [{**row, "record_partition": 1, "leader_epoch": 2, "broker_id": None} for row in OVERLAPPING],
    "cluster_info": OVERLAPPING,
    "log_sizes": [{**PLACE, "size_bytes": -1, "log_dir": None}, {**PLACE, "size_bytes": 1}],
}


def lay_broken(config: Config) -> None:
    """Write the rows of `BROKEN`."""
    for table, rows in BROKEN.items():
        lay(config, table, *({"cluster": config.cluster, **row} for row in rows))


def expected_names(table: str) -> set[str]:
    """Return the names of a table's expectations, except those of column types, which Delta enforces."""
    return {"key_unique", "never_null", *(one["meta"]["name"] for one in contracts.expectations()[table])}
