"""The subtopologies and tasks of a Kafka Streams application, for `grouptrail show group` and the group's page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from grouptrail import contracts
from grouptrail.query.views import expand
from grouptrail.storage.sql import datafusion_literal
from grouptrail.storage.sql_snapshot import SqlSnapshot

Row = dict[str, Any]

TABLES = ("task_assignments", "streams_topology", "consumer_lag")

HEADINGS = {"active": "active tasks", "standby": "standby tasks", "warmup": "warm-up tasks"}
"""By role."""

USES = {
    "reads": ("source", "source_pattern", "repartition_source"),
    "writes": ("repartition_sink",),
    "state in": ("changelog",),
}
"""What a subtopology does with topics, and the usages in `streams_topology` that mean it."""

_TOPOLOGY = """
SELECT subtopology, topic, usage, partitions, replication_factor
FROM streams_topology
WHERE cluster = :cluster AND group_id = :group
  AND known_from <= :time AND (known_until IS NULL OR :time < known_until)
ORDER BY subtopology, usage, topic
"""
_LAG = """
SELECT subtopology, task, role, member_id, client_id, endpoint, lag, max_lag_seconds, topics_without_lag,
  offset_sum, offset_sum_at, problem
FROM task_lag
WHERE group_id = {group}
ORDER BY role, lag DESC NULLS LAST, subtopology, task
"""


def add_tasks(tables: SqlSnapshot, members: list[Row], ask: Callable[[str], list[Row]]) -> None:
    """Add `tasks` to each member, numbers by role and subtopology, and the `process_id` and `endpoint` of its client.

    They are empty, or None, for clients that have none.
    """
    known = ask(contracts.views()["tasks_at"].sql) if "task_assignments" in tables.versions else []
    by_member: dict[str, dict[str, dict[str, list[int]]]] = {}
    processes = {row["member_id"]: (row["process_id"], row["endpoint"]) for row in known}
    for row in sorted(known, key=lambda row: (row["subtopology"], row["task"])):
        roles = by_member.setdefault(row["member_id"], {})
        roles.setdefault(row["role"], {}).setdefault(row["subtopology"], []).append(row["task"])
    for member in members:
        member["tasks"] = by_member.get(member["member_id"], {})
        member["process_id"], member["endpoint"] = processes.get(member["member_id"], (None, None))


def topology_at(tables: SqlSnapshot, ask: Callable[[str], list[Row]]) -> list[Row]:
    """Return the topics of each subtopology and their usage; none for groups that are no application."""
    return ask(_TOPOLOGY) if "streams_topology" in tables.versions else []


def task_lag(tables: SqlSnapshot, group_id: str, at: datetime | None) -> list[Row]:
    """Return the tasks with their lag now, active ones first, those with the most lag first; none at another time."""
    if at is not None or not set(TABLES) <= tables.versions.keys():
        return []
    query = expand(_LAG.format(group=datafusion_literal(group_id)), tables.warehouse.cluster)
    return tables.rows(query.text)


def task_name(row: Row) -> str:
    """Return the id of a task as Kafka Streams writes it, such as `1_3`."""
    return f"{row['subtopology']}_{row['task']}"


def roles_of(protocol_type: str | None, tasks_of_members: Iterable[Mapping[str, object]]) -> dict[str, str]:
    """Return the roles of members' tasks with their headings; none of Connect, whose tasks are what it owns."""
    held = {role for tasks in tasks_of_members for role in tasks}
    return {} if protocol_type == "connect" else {role: heading for role, heading in HEADINGS.items() if role in held}
