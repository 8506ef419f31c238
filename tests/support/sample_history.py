"""A warehouse with rows for every view, a query for each view, and the expected results."""

from __future__ import annotations

from typing import Any

from grouptrail.config import Config
from support.small_tables import at, lay

Rows = list[dict[str, Any]]

# A window that includes these rows of 2026-03-04; views look back from the current time.
EVER = "4000 weeks"


_NO_COMMIT = "topics without a commit or a sample of this partition"
_NO_STANDBY_LAG = (
    "no offset of a standby or warm-up task is recorded: how far it is behind its changelogs is not known"
)
_OFFSET_SUM_ALONE = (
    "only offset_sum is recorded: which changelogs the task has, and how far it has come since, is not known"
)
_NO_TOPICS = "the topics of the subtopology are not known"


def lay_sample_history(config: Config) -> None:
    """Write every row for the configured cluster and for another one."""
    for table, listed in _ROWS.items():
        lay(config, table, *({"cluster": config.cluster, **row} for row in listed))
        lay(config, table, *({**row, "cluster": "other"} for row in listed))


def _lag(group: str, partition: int, minute: float, status: str, lag: int | None, **more: Any) -> dict[str, Any]:
    row = {"group_id": group, "topic": "orders", "partition": partition, "sampled_at": at(minute), "status": status}
    seconds = None if lag is None else lag / 10
    return {**row, "lag": lag, "lag_seconds": seconds, "status_reason": f"because {status}", **more}


def _commit(group: str, offset: int, record: int, minute: float, **more: Any) -> dict[str, Any]:
    where = {"group_id": group, "topic": "orders", "partition": 0, "record_offset": record, "record_at": at(minute)}
    return {**where, "committed_offset": offset, "metadata": "", "is_tombstone": False, **more}


def _owner(member: str, partition: int, since: float, until: float | None, record: int) -> dict[str, Any]:
    owned = {"topic": "orders", "partition": partition, "member_id": member, "client_id": f"client-{member}"}
    ended = None if until is None else at(until)
    return {**owned, "owned_from": at(since), "owned_until": ended, "record_offset": record}


def _task(role: str, task: int, member: str, since: float, until: float | None) -> dict[str, Any]:
    client = {"member_id": member, "client_id": f"client-{member}", "client_host": "/10.0.0.1"}
    process = {"process_id": f"process-{member}", "endpoint": f"{member}:8080"}
    assigned = {"assigned_from": at(since), "assigned_until": None if until is None else at(until)}
    named = {"subtopology": "0", "task": task, "role": role, "is_open": until is None}
    return {**named, **client, **process, **assigned}


def _member(member: str, since: float, until: float | None, **more: Any) -> dict[str, Any]:
    known = {"member_id": member, "client_id": "client", "client_host": "/10.0.0.1", "began": "joined"}
    return {**known, "joined_at": at(since), "left_at": None if until is None else at(until), **more}


def _generation(group: str, number: int, since: float, **more: Any) -> dict[str, Any]:
    known = {"group_id": group, "generation": number, "group_kind": "classic", "protocol_type": "consumer"}
    return {**known, "started_at": at(since), "record_offset": 100 + number, **more}


def _rebalance(minute: float, cause: str, moved: int = 0) -> dict[str, Any]:
    certainty = "likely" if cause == "member_left" else "recorded"
    return {"to_generation": 1, "at": at(minute), "cause": cause, "certainty": certainty, "partitions_moved": moved}


def _state(group: str, state: str, since: float, until: float | None, **more: Any) -> dict[str, Any]:
    ended = None if until is None else at(until)
    return {"group_id": group, "state": state, "started_at": at(since), "ended_at": ended, **more}


def _progress(partition: int, commits: int, others: int, minute: float) -> dict[str, Any]:
    counts = {"offset_commits": commits, "group_metadata": others, "undecodable_records": 1}
    return {"record_partition": partition, "landed_at": at(minute), **counts}


def _led(
    partition: int, leader: int | None, isr: list[int], since: float, until: float | None = None
) -> dict[str, Any]:
    replicas = {
        "leader_epoch": 3,
        "replicas": [1, 2],
        "isr": isr,
        "offline": [node for node in (1, 2) if node not in isr],
    }
    times = {"valid_from": at(since), "valid_to": None if until is None else at(until)}
    return {"topic": "orders", "partition": partition, "leader": leader, **replicas, **times}


def _coordinated(epoch: int, broker: int | None, since: float | None, until: float | None = None) -> dict[str, Any]:
    times = {"valid_from": None if since is None else at(since), "valid_to": None if until is None else at(until)}
    return {"record_partition": 9, "leader_epoch": epoch, "broker_id": broker, "first_offset": 10 * epoch, **times}


def _delivered(offsets: tuple[int, int], state: str, count: int, before: int | None, minute: float) -> dict[str, Any]:
    place = {"record_partition": 3, "record_offset": int(minute * 100), "record_at": at(minute), "partition": 0}
    first, last = offsets
    what = {"first_offset": first, "last_offset": last, "delivery_state": state, "delivery_count": count}
    again = None if before is None else (last - first + 1) * max(0, count - max(before, 1))
    known = {"previous_count": before, "redeliveries": again, "records": last - first + 1, "is_first": before is None}
    return {"group_id": "queue", "topic_id": "b3JkZXJzb3JkZXJzb3JkZQ", **place, **what, **known}


_ROWS: dict[str, Rows] = {
    "topic_names": [
        {"topic_id": "b3JkZXJzb3JkZXJzb3JkZQ", "topic": "orders", "learned_from": "broker", "learned_at": at(0)},
    ],
    "group_configs": [
        {"group_id": "queue", "name": "share.delivery.count.limit", "value": limit, "source": "group"}
        | {"valid_from": at(since), "valid_to": None if until is None else at(until)}
        for limit, since, until in (("3", 0.5, 2), ("5", 2, None))
    ],
    "share_deliveries": [
        _delivered((0, 1), "archived", 4, None, 0),
        _delivered((2, 9), "acknowledged", 1, 0, 0.1),
        _delivered((10, 12), "available", 1, 0, 0.2),
        _delivered((10, 11), "acknowledged", 2, 1, 0.3),
        _delivered((12, 12), "archived", 3, 1, 1),
        _delivered((13, 13), "archived", 1, 0, 1.1),
    ],
    "consumer_lag": [
        _lag("billing", 0, 0, "OK", 0),
        _lag("billing", 0, 2, "WARN", 50, committed_offset=100, log_end_offset=150),
        _lag("billing", 1, 2, "STALL", 20),
        _lag("billing", 2, 2, "STALL", 30),
        _lag("audit", 0, 2.1, "OK", 0),
        _lag("audit", 1, 2.1, "UNKNOWN", None, problem="broker 2 did not answer"),
        _lag("replay", 0, 2, "REWIND", 5),
        _lag("deleted", 0, 1, "REWIND", 5),
        *(
            _lag("losing", 5, minute, "STOP", 90, committed_offset=10, log_start_offset=start, lost_records=lost)
            | {"time_to_loss_seconds": seconds, "time_to_loss_reason": "retention.ms=60000"}
            for minute, start, lost, seconds in (
                (-3, 0, 0, 61.0),
                (-2, 0, 0, 1.0),
                (-1, 30, 20, 0.0),
                (-0.5, 30, 20, 5.0),
                (-0.2, 45, 35, 0.0),
            )
        ),
    ],
    "offset_commits": [
        _commit("billing", 10, 1, 0),
        _commit("billing", 20, 2, 1),
        _commit("billing", 15, 3, 2, metadata="again"),
        _commit("billing", 30, 4, 3),
        _commit("billing", 7, 5, 3, partition=1),
        _commit("replay", 900, 6, 0),
        _commit("replay", 100, 7, 1),
        _commit("replay", 950, 8, 2),
        _commit("audit", 1, 9, 1),
        _commit("audit", 0, 10, 2, committed_offset=None, metadata=None, is_tombstone=True),
    ],
    "committed_offsets": [
        _commit("billing", 30, 4, 3),
        _commit("billing", 7, 5, 3, partition=1),
        _commit("replay", 950, 8, 2),
        _commit("gone", 5, 11, 8),
    ],
    "generations": [
        _generation("billing", 1, 0, ended_at=at(5), member_count=1),
        _generation(
            "billing", 2, 5, member_count=2, partition_count=3, skew=1, protocol="range", is_assignors_own=False
        ),
        _generation("silent", 7, 1, member_count=1, protocol="range", is_assignors_own=True),
        _generation("connect", 1, 1, member_count=1, protocol_type="connect", protocol="sessioned"),
        _generation("gone", 4, 0, ended_at=at(9), member_count=1),
    ],
    "group_states": [
        _state("billing", "Stable", 0, None, generation=1),
        _state("replay", "Stable", 0, 0.5),
        _state("replay", "Empty", 0.5, None, record_offset=5),
        _state("gone", "Stable", 0, 9),
        _state("gone", "Dead", 9, None, note="deleted"),
        _state("again", "Dead", 1, None, note="deleted"),
        _state("again", "Stable", 2, None, incarnation=2),
    ],
    "memberships": [
        _member("a", 0, 1, ended="expired"),
        _member("b", 1.5, 2, ended="left"),
        _member("c", 2, None),
        _member("d", 0, None, client_id="steady"),
        _member("e", 0, 4, group_id="gone", client_id="gone", instance_id="i-1", ended="replaced"),
        _member("f", 4, 8, group_id="gone", client_id="gone", instance_id="i-1", ended="group_ended"),
        *(
            row
            for minute, client in ((-20, "g"), (-19, "h"))
            for row in (
                _member(f"{client}-1", -60, minute, group_id="deployed", client_id=client, ended="left"),
                _member(f"{client}-2", minute + 0.5, None, group_id="deployed", client_id=client),
            )
        ),
    ],
    "partition_ownership": [
        _owner("a", 0, 0, 1, 1),
        _owner("b", 0, 1.5, 2, 2),
        _owner("c", 0, 2, None, 3),
        _owner("d", 1, 0, None, 4),
        _owner("d", 2, 0, 1, 5),
        _owner("d", 2, 1, 2, 6),
    ],
    "task_assignments": [
        _task("active", 0, "a", 0, 1),
        _task("active", 0, "c", 2, None),
        _task("standby", 0, "d", 0, None),
        {**_task("standby", 1, "c", 2, None), "offset_sum": 40, "offset_sum_at": at(1)},
        _task("active", 1, "d", 0, None),
        {**_task("active", 7, "d", 0, None), "subtopology": "1"},
        {**_task("active", 0, "w", 0, None), "group_id": "connect", "subtopology": "sink"},
    ],
    "streams_topology": [
        {
            "subtopology": "0",
            "topic": topic,
            "usage": usage,
            "topology_epoch": 0,
            "record_offset": 1,
            "known_from": at(0),
            "known_until": until and at(until),
            "is_open": until is None,
        }
        for topic, usage, until in (
            ("orders", "source", None),
            ("billing-by-key-repartition", "repartition_source", None),
            ("billing-totals-changelog", "changelog", None),
            ("earlier", "source", 1),
        )
    ],
    "rebalances": [
        _rebalance(0, "group_started"),
        _rebalance(1, "member_joined", 2),
        _rebalance(2, "member_joined", 1),
        _rebalance(3, "member_left", 1),
        _rebalance(70, "member_left", 4),
    ],
    "brokers": [
        {"broker_id": 1, "host": "kafka-1", "port": 9092, "rack": "a", "is_controller": True, "valid_from": at(0)},
        {"broker_id": 2, "host": "kafka-2", "port": 9092, "valid_from": at(0), "valid_to": at(5)},
    ],
    "topics": [
        {
            "topic": "orders",
            "topic_id": "old",
            "partition_count": 1,
            "replication_factor": 2,
            "is_internal": False,
            "valid_from": at(0),
            "valid_to": at(2),
            "deleted_at": at(2),
        },
        {
            "topic": "orders",
            "topic_id": "new",
            "partition_count": 3,
            "replication_factor": 2,
            "is_internal": False,
            "valid_from": at(2),
            "created_at": at(2),
        },
    ],
    "topic_partitions": [
        _led(0, 2, [1, 2], 2, 5),
        _led(0, 1, [1], 5),
        _led(1, 2, [2], 2, 5),
        _led(1, None, [], 5),
        _led(2, 1, [1, 2], 2),
    ],
    "topic_configs": [
        {
            "topic": "orders",
            "cleanup_policy": "delete",
            "retention_ms": 1000,
            "retention_bytes": -1,
            "min_insync_replicas": 1,
            "valid_from": at(2),
        },
    ],
    "coordinators": [
        _coordinated(2, None, None, 0),
        _coordinated(3, 2, 0, 5),
        _coordinated(5, 1, 5),
    ],
    "cluster_info": [{"cluster_id": "x", "controller": 1, "valid_from": at(0)}],
    "log_sizes": [
        {
            "topic": "orders",
            "partition": 2,
            "broker_id": 1,
            "log_dir": "/data",
            "is_future": False,
            "size_bytes": 100,
        },
    ],
    "ingest_progress": [_progress(3, 50, 5, 0), _progress(3, 20, 3, 1), _progress(7, 19, 0, 2)],
}

_ABSENT = dict.fromkeys(
    (
        *("time_to_loss_seconds", "time_to_loss_most_seconds", "time_to_loss_reason"),
        *("awaiting_redelivery", "most_deliveries", "most_delivered_offset", "lag_error"),
    )
)
_NO_CHANGE: dict[str, Any] = {
    **dict.fromkeys(
        ("status_then", "status", "severity_then", "severity", "lag_then", "lag", "members_then", "members")
    ),
    "rebalances": 0,
    "new_at": None,
    "vanished_at": None,
}
_NO_LAG: dict[str, Any] = dict.fromkeys(
    (
        "committed_offset",
        "log_end_offset",
        "lost_records",
        "lag_seconds_method",
        "lag_seconds_error",
        "consume_rate",
        "produce_rate",
        "catch_up_seconds",
    )
)

# By view: a query and its expected rows.
LAID = frozenset(_ROWS)
"""The tables that have rows."""

ASKED: dict[str, tuple[str, Rows]] = {
    "assignors_in_use": (
        "SELECT * FROM assignors_in_use ORDER BY assignor",
        [
            {
                "group_kind": "classic", "assignor": "range", "groups": 2, "members": 3, "partitions": 3,
                "worst_skew": 1, "groups_assigned_otherwise": 1,
            },
            {
                "group_kind": "classic", "assignor": "sessioned", "groups": 1, "members": 1, "partitions": None,
                "worst_skew": None, "groups_assigned_otherwise": 0,
            },
        ],
    ),
    "commits_per_second": (
        f"SELECT * FROM commits_per_second('{EVER}') ORDER BY group_id",
        [
            {
                "group_id": group, "commits": commits, "commits_per_second": commits / (4000 * 7 * 86_400),
                "partitions": partitions, "last_commit_at": f"2026-03-04T12:0{minute}:00Z",
            }
            for group, commits, partitions, minute in (("audit", 1, 1, 1), ("billing", 5, 2, 3), ("replay", 3, 1, 2))
        ],
    ),
    "current_lag": (
        "SELECT * FROM current_lag() WHERE group_id = 'billing' AND partition = 0 OR lag IS NULL ORDER BY group_id",
        [
            {
                "group_id": "audit", "topic": "orders", "partition": 1, "sampled_at": "2026-03-04T12:02:06Z",
                **_NO_LAG, "lag": None, "lag_seconds": None, "status": "UNKNOWN",
                "status_reason": "because UNKNOWN", "group_state": None, "problem": "broker 2 did not answer",
                **_ABSENT,
            },
            {
                "group_id": "billing", "topic": "orders", "partition": 0, "sampled_at": "2026-03-04T12:02:00Z",
                **_NO_LAG, "committed_offset": 100, "log_end_offset": 150, "lag": 50, "lag_seconds": 5.0,
                "status": "WARN", "status_reason": "because WARN", "group_state": None, "problem": None,
                **_ABSENT,
            },
        ],
    ),
    "data_losses": (
        f"SELECT * FROM data_losses('{EVER}') ORDER BY lost_by",
        [
            {
                "group_id": "losing", "topic": "orders", "partition": 5, "lost_after": "2026-03-04T11:58:00Z",
                "lost_by": "2026-03-04T11:59:00Z", "lost_records": 20, "first_offset": 10, "log_start_offset": 30,
                "time_to_loss_seconds": 1.0, "time_to_loss_reason": "retention.ms=60000",
            },
            {
                "group_id": "losing", "topic": "orders", "partition": 5, "lost_after": "2026-03-04T11:59:30Z",
                "lost_by": "2026-03-04T11:59:48Z", "lost_records": 15, "first_offset": 30, "log_start_offset": 45,
                "time_to_loss_seconds": 5.0, "time_to_loss_reason": "retention.ms=60000",
            },
        ],
    ),
    "dormant_groups": (
        "SELECT * FROM dormant_groups('1 minute') ORDER BY group_id",
        [
            {
                "group_id": "billing", "last_commit_at": "2026-03-04T12:03:00Z", "partitions": 2,
                "state": "Stable", "in_state_since": "2026-03-04T12:00:00Z",
            },
            {
                "group_id": "replay", "last_commit_at": "2026-03-04T12:02:00Z", "partitions": 1,
                "state": "Empty", "in_state_since": "2026-03-04T12:00:30Z",
            },
        ],
    ),
    "flapping_members": (
        f"SELECT * FROM flapping_members('{EVER}')",
        [
            {
                "group_id": "billing", "client_id": "client", "client_host": "/10.0.0.1", "instance_id": None,
                "joins": 3, "expired": 1, "first_joined_at": "2026-03-04T12:00:00Z",
                "last_joined_at": "2026-03-04T12:02:00Z", "shortest_stay_seconds": 30.0,
            }
        ],
    ),
    "group_changes": (
        "SELECT * FROM group_changes('2026-03-04T12:00:10Z') ORDER BY group_id",
        [
            _NO_CHANGE | {
                "group_id": "audit", "status": "UNKNOWN", "severity": 3, "lag": 0, "members_then": 0,
                "new_at": "2026-03-04T12:01:00Z",
            },
            _NO_CHANGE | {
                "group_id": "billing", "status_then": "OK", "status": "STALL", "severity_then": 1, "severity": 6,
                "lag_then": 0, "lag": 100, "members_then": 2, "members": 2, "rebalances": 4,
            },
            _NO_CHANGE | {"group_id": "connect", "members_then": 0, "new_at": "2026-03-04T12:01:00Z"},
            _NO_CHANGE | {
                "group_id": "gone", "members_then": 1, "members": 0, "vanished_at": "2026-03-04T12:09:00Z",
            },
            _NO_CHANGE | {"group_id": "silent", "members_then": 0, "new_at": "2026-03-04T12:01:00Z"},
        ],
    ),
    "group_timeline": (
        "SELECT step, event, what FROM group_timeline('gone') ORDER BY step",
        [
            {"step": 1, "event": "generation", "what": "classic, 1 members, unknown partitions"},
            {"step": 2, "event": "member joined", "what": "e (instance i-1) from /10.0.0.1: joined"},
            {"step": 3, "event": "state", "what": "Stable ()"},
            {"step": 4, "event": "member joined", "what": "f (instance i-1) from /10.0.0.1: joined"},
            {"step": 5, "event": "member left", "what": "e (instance i-1): replaced"},
            {"step": 6, "event": "member left", "what": "f (instance i-1): group_ended"},
            {"step": 7, "event": "state", "what": "Dead (); deleted"},
        ],
    ),
    "groups_never_committing": (
        "SELECT * FROM groups_never_committing",
        [
            {
                "group_id": "silent", "group_kind": "classic", "member_count": 1, "partition_count": None,
                "seen_since": "2026-03-04T12:01:00Z", "generation": 7,
            }
        ],
    ),
    "hottest_offsets_partitions": (
        f"SELECT * FROM hottest_offsets_partitions('{EVER}') ORDER BY records DESC",
        [
            {
                "record_partition": 3, "records": 80, "share": 0.8, "offset_commits": 70, "undecodable_records": 2,
                "last_landed_at": "2026-03-04T12:01:00Z",
            },
            {
                "record_partition": 7, "records": 20, "share": 0.2, "offset_commits": 19, "undecodable_records": 1,
                "last_landed_at": "2026-03-04T12:02:00Z",
            },
        ],
    ),
    "lag_around": (
        "SELECT sampled_at, partition, lag, status FROM lag_around('billing', '2026-03-04T11:59:30Z', '90 seconds')",
        [{"sampled_at": "2026-03-04T12:00:00Z", "partition": 0, "lag": 0, "status": "OK"}],
    ),
    "coordinators_at": (
        "SELECT record_partition, broker_id, host, leader_epoch, first_offset "
        "FROM coordinators_at('2026-03-04T12:04:00Z')",
        [{"record_partition": 9, "broker_id": 2, "host": "kafka-2", "leader_epoch": 3, "first_offset": 30}],
    ),
    "leaders_at": (
        "SELECT topic, partition, leader, host, rack, leader_epoch, valid_from, valid_to "
        "FROM leaders_at('2026-03-04T12:06:00Z') WHERE partition < 2 ORDER BY partition",
        [
            {
                "topic": "orders", "partition": partition, "leader": leader, "host": host, "rack": rack,
                "leader_epoch": 3, "valid_from": "2026-03-04T12:05:00Z", "valid_to": None,
            }
            for partition, leader, host, rack in ((0, 1, "kafka-1", "a"), (1, None, None, None))
        ],
    ),
    "members_at": (
        "SELECT member_id, instance_id, left_at FROM members_at('gone', '2026-03-04T12:04:00Z')",
        [{"member_id": "f", "instance_id": "i-1", "left_at": "2026-03-04T12:08:00Z"}],
    ),
    "offsets_as_of": (
        "SELECT * FROM offsets_as_of('billing', '2026-03-04T12:02:30Z')",
        [
            {
                "topic": "orders", "partition": 0, "committed_offset": 15, "committed_at": "2026-03-04T12:02:00Z",
                "leader_epoch": None, "metadata": "again",
            }
        ],
    ),
    "owners_at": (
        "SELECT partition, member_id, client_host, generation FROM owners_at('billing', '2026-03-04T12:01:30Z') "
        "ORDER BY partition",
        [
            {"partition": 0, "member_id": "b", "client_host": "/10.0.0.1", "generation": 1},
            {"partition": 1, "member_id": "d", "client_host": "/10.0.0.1", "generation": 1},
            {"partition": 2, "member_id": "d", "client_host": "/10.0.0.1", "generation": 1},
        ],
    ),
    "partitions_moved_most": (
        f"SELECT * FROM partitions_moved_most('{EVER}')",
        [
            {
                "group_id": "billing", "topic": "orders", "partition": 0, "moves": 2, "owners": 3,
                "last_moved_at": "2026-03-04T12:02:00Z",
            }
        ],
    ),
    "rebalance_storms": (
        "SELECT * FROM rebalance_storms('5 minutes')",
        [
            {
                "group_id": "billing", "began_at": "2026-03-04T12:00:00Z", "ended_at": "2026-03-04T12:03:00Z",
                "rebalances": 4, "main_cause": "member_joined", "main_cause_rebalances": 2,
            }
        ],
    ),
    "rebalances_by_cause": (
        "SELECT * FROM rebalances_by_cause('2026-03-04') ORDER BY cause",
        [
            {"group_id": "billing", "cause": cause, "rebalances": count}
            for cause, count in (("group_started", 1), ("member_joined", 2), ("member_left", 2))
        ],
    ),
    "deliveries_by_minute": (
        f"SELECT * FROM deliveries_by_minute('{EVER}') ORDER BY minute",
        [
            {
                "minute": f"2026-03-04T12:0{minute}:00Z", "group_id": "queue", "topic": "orders", "partition": 0,
                "acknowledged": acknowledged, "came_back": came_back, "archived": archived, "redeliveries": again,
            }
            for minute, acknowledged, came_back, archived, again in ((0, 10, 3, 0, 2), (1, 0, 0, 2, 2))
        ],
    ),
    "poison_records": (
        f"SELECT * FROM poison_records(2, '{EVER}') ORDER BY first_offset",
        [
            {
                "archived_at": archived_at, "group_id": "queue", "topic": "orders", "partition": 0,
                "first_offset": first, "last_offset": last, "records": last - first + 1, "deliveries": deliveries,
                "delivery_limit": limit, "is_first": is_first,
            }
            for archived_at, first, last, deliveries, limit, is_first in (
                ("2026-03-04T12:00:00Z", 0, 1, 4, None, True), ("2026-03-04T12:01:00Z", 12, 12, 3, 3, False),
            )
        ],
    ),
    "rebalances_by_hour": (
        "SELECT * FROM rebalances_by_hour('2026-03-04') ORDER BY hour, cause",
        [
            {
                "hour": f"2026-03-04T{hour}:00:00Z", "group_id": "billing", "cause": cause, "rebalances": count,
                "partitions_moved": moved,
            }
            for hour, cause, count, moved in (
                (12, "group_started", 1, 0), (12, "member_joined", 2, 3), (12, "member_left", 1, 1),
                (13, "member_left", 1, 4),
            )
        ],
    ),
    "resets": (
        f"SELECT * FROM resets('{EVER}') ORDER BY group_id, at",
        [
            {
                "group_id": "billing", "topic": "orders", "partition": 0, "at": "2026-03-04T12:02:00Z",
                "kind": "rewind", "before_offset": 20, "after_offset": 15, "moved_by": -5,
                "owner_member_id": "c", "owner_client_id": "client-c", "group_state": "Stable", "metadata": "again",
            },
            *(
                {
                    "group_id": "replay", "topic": "orders", "partition": 0, "at": f"2026-03-04T12:0{minute}:00Z",
                    "kind": kind, "before_offset": before, "after_offset": after, "moved_by": after - before,
                    "owner_member_id": None, "owner_client_id": None, "group_state": "Empty", "metadata": "",
                }
                for minute, kind, before, after in ((1, "rewind", 900, 100), (2, "jump", 100, 950))
            ),
        ],
    ),
    "rollouts": (
        "SELECT * FROM rollouts",
        [
            {
                "group_id": "deployed", "incarnation": 1, "started_at": "2026-03-04T11:40:00Z",
                "ended_at": "2026-03-04T11:41:30Z", "way": "rolling", "members": 2, "of_members": 2,
                "is_static": False, "evidence": "client_id_and_host", "certainty": "likely", "rebalances": 0,
                "first_generation": None, "last_generation": None, "seconds_without_owner": None,
                "longest_without_owner_seconds": None,
            }
        ],
    ),
    "static_members": (
        "SELECT * FROM static_members",
        [
            {
                "group_id": "gone", "instance_id": "i-1", "member_id": "f", "client_id": "gone",
                "client_host": "/10.0.0.1", "joined_at": "2026-03-04T12:04:00Z", "left_at": "2026-03-04T12:08:00Z",
                "ended": "group_ended", "member_ids": 2,
            }
        ],
    ),
    "task_lag": (
        "SELECT subtopology, task, role, member_id, endpoint, lag, max_lag_seconds, topics, topics_without_lag, "
        "offset_sum, offset_sum_at, sampled_at, problem FROM task_lag ORDER BY task, role",
        [
            {
                "subtopology": name, "task": task, "role": role, "member_id": member, "endpoint": f"{member}:8080",
                "lag": lag, "max_lag_seconds": seconds, "topics": topics, "topics_without_lag": without,
                "offset_sum": None if total is None else 40, "offset_sum_at": total, "sampled_at": sampled_at,
                "problem": problem,
            }
            for name, task, role, member, lag, seconds, topics, without, total, sampled_at, problem in (
                ("0", 0, "active", "c", 50, 5.0, 2, 1, None, "2026-03-04T12:02:00Z", _NO_COMMIT),
                ("0", 0, "standby", "d", None, None, 2, None, None, None, _NO_STANDBY_LAG),
                ("0", 1, "active", "d", 20, 2.0, 2, 1, None, "2026-03-04T12:02:00Z", _NO_COMMIT),
                ("0", 1, "standby", "c", None, None, 2, None, "2026-03-04T12:01:00Z", None, _OFFSET_SUM_ALONE),
                ("1", 7, "active", "d", None, None, 0, 0, None, None, _NO_TOPICS),
            )
        ],
    ),
    "tasks_at": (
        "SELECT task, role, member_id, process_id, assigned_until FROM tasks_at('billing', '2026-03-04T12:00:30Z') "
        "ORDER BY task, role",
        [
            {
                "task": task, "role": role, "member_id": member, "process_id": f"process-{member}",
                "assigned_until": until,
            }
            for task, role, member, until in (
                (0, "active", "a", "2026-03-04T12:01:00Z"), (0, "standby", "d", None), (1, "active", "d", None),
                (7, "active", "d", None),
            )
        ],
    ),
    "time_without_owner": (
        f"SELECT partition, gaps, longest_seconds > 30 longer, seconds_without_owner = 30 half, without_owner_since "
        f"FROM time_without_owner('{EVER}') ORDER BY partition",
        [
            {"partition": 0, "gaps": 1, "longer": False, "half": True, "without_owner_since": None},
            {"partition": 2, "gaps": 1, "longer": True, "half": False, "without_owner_since": "2026-03-04T12:02:00Z"},
        ],
    ),
    "topics_at": (
        "SELECT * FROM topics_at('2026-03-04T12:01:00Z') UNION ALL SELECT * FROM topics_at('2026-03-04T12:02:00Z') "
        "ORDER BY partition_count",
        [
            {
                "topic": "orders", "topic_id": topic_id, "partition_count": count, "replication_factor": 2,
                "is_internal": False, "cleanup_policy": policy, "retention_ms": retention, "retention_bytes": size,
                "min_insync_replicas": least, "problem": None, "created_at": created, "deleted_at": deleted,
            }
            for topic_id, count, policy, retention, size, least, created, deleted in (
                ("old", 1, None, None, None, None, None, "2026-03-04T12:02:00Z"),
                ("new", 3, "delete", 1000, -1, 1, "2026-03-04T12:02:00Z", None),
            )
        ],
    ),
    "under_replicated": (
        "SELECT topic, partition, leader, min_insync_replicas, is_below_min_isr, valid_from "
        "FROM under_replicated('2026-03-04T12:06:00Z') ORDER BY partition",
        [
            {
                "topic": "orders", "partition": partition, "leader": leader, "min_insync_replicas": 1,
                "is_below_min_isr": leader is None, "valid_from": "2026-03-04T12:05:00Z",
            }
            for partition, leader in ((0, 1), (1, None))
        ],
    ),
    "vanished_groups": (
        "SELECT * FROM vanished_groups",
        [
            {
                "group_id": "gone", "vanished_at": "2026-03-04T12:09:00Z", "note": "deleted",
                "last_member_at": "2026-03-04T12:08:00Z", "last_generation": 4,
            }
        ],
    ),
    "what_if_broker": (
        "SELECT topic, partition, effect, is_led, leader, cardinality(isr_left) AS isr_left, min_insync_replicas, "
        "problem FROM what_if_broker(1, '2026-03-04T12:06:00Z') ORDER BY partition",
        [
            {
                "topic": "orders", "partition": partition, "effect": effect, "is_led": leader == 1, "leader": leader,
                "isr_left": left, "min_insync_replicas": 1, "problem": None,
            }
            for partition, effect, leader, left in (
                (0, "offline", 1, 0),
                (1, "offline_already", None, 0),
                (2, "leader_moves", 1, 1),
            )
        ],
    ),
    "worst_groups": (
        "SELECT * FROM worst_groups ORDER BY severity DESC",
        [
            {
                "group_id": "replay", "status": "REWIND", "severity": 7, "topic": "orders", "partition": 0,
                "status_reason": "because REWIND", "partitions_with_it": 1, "partitions": 1, "lag": 5,
                "max_lag_seconds": 0.5, "sampled_at": "2026-03-04T12:02:00Z",
            },
            {
                "group_id": "billing", "status": "STALL", "severity": 6, "topic": "orders", "partition": 2,
                "status_reason": "because STALL", "partitions_with_it": 2, "partitions": 3, "lag": 100,
                "max_lag_seconds": 5.0, "sampled_at": "2026-03-04T12:02:00Z",
            },
            {
                "group_id": "audit", "status": "UNKNOWN", "severity": 3, "topic": "orders", "partition": 1,
                "status_reason": "because UNKNOWN", "partitions_with_it": 1, "partitions": 2, "lag": 0,
                "max_lag_seconds": 0.0, "sampled_at": "2026-03-04T12:02:06Z",
            },
        ],
    ),
}  # fmt: skip
