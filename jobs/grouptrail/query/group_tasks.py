"""The subtopologies and tasks of a Kafka Streams application, for `grouptrail show group` and the group's page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from grouptrail import contracts
from grouptrail.jobs import CLUSTER
from grouptrail.query.formats import counted, to_the_second
from grouptrail.query.views import expand
from grouptrail.storage.last_sample import read_last_sample
from grouptrail.storage.sql import datafusion_literal
from grouptrail.storage.sql_snapshot import SqlSnapshot

Row = dict[str, Any]

TABLES = ("task_assignments", "streams_topology", "consumer_lag")
"""That tasks and their lag are read from."""

SAMPLED = "topics"
"""The table that shows which topics are there."""

NOT_READY = "NotReady"
"""The state of a streams group whose topology lacks topics, or has topics that do not fit."""

HEADINGS = {"active": "active tasks", "standby": "standby tasks", "warmup": "warm-up tasks"}
"""By role."""

USES = {
    "reads": ("source", "source_pattern", "repartition_source"),
    "writes": ("repartition_sink",),
    "state in": ("changelog",),
}
"""What a subtopology does with topics, and the usages in `streams_topology` that mean it."""

# Nobody but the application writes to a repartition_sink, which another subtopology needs as repartition_source.
_REQUIRED = ("source", "repartition_source", "changelog")

_NOTHING_MISSING = (
    "samples of the cluster show all topics that it needs: their numbers of partitions may not fit (those of topics "
    "that are joined must be equal), or internal topics have just been created"
)

_TOPOLOGY = """
SELECT subtopology, topic, usage, partitions, replication_factor
FROM streams_topology
WHERE cluster = :cluster AND group_id = :group
  AND known_from <= :time AND (known_until IS NULL OR :time < known_until)
ORDER BY subtopology, usage, topic
"""
# All topics, the newest row of each last.
_SAMPLED = """
SELECT topic, partition_count, last_seen_at, deleted_at, coalesce(deleted_at <= :time, FALSE) AS is_deleted
FROM topics
WHERE cluster = :cluster AND valid_from <= :time
ORDER BY valid_from
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


def unready_topics(
    tables: SqlSnapshot, topology: list[Row], ask: Callable[[str], list[Row]], *, since: datetime
) -> Row:
    """Return which topics make a topology unusable that has not been ready `since` a time, by samples of the cluster.

    `topics` has `topic`, `subtopologies` that need it, `problem` and its `certainty`: recorded, or likely where no
    sample shows the topic, and where none was taken since. `note` says that, or why nothing is found; or None.
    """
    sampled = {row["topic"]: row for row in ask(_SAMPLED)} if SAMPLED in tables.versions else {}
    if not sampled:
        return {"topics": [], "note": "which topics are missing is not known: no sample of the job cluster shows any"}
    needed: dict[str, list[Row]] = {}
    for row in topology:
        if row["usage"] in _REQUIRED:
            needed.setdefault(row["topic"], []).append(row)
    there = {topic: row["partition_count"] for topic, row in sampled.items() if not row["is_deleted"]}
    found = [
        {"topic": topic, "subtopologies": sorted({row["subtopology"] for row in rows}), **problem}
        for topic, rows in sorted(needed.items())
        if (problem := _problem_of(sampled.get(topic), _demanded(rows[0], topology, there))) is not None
    ]
    last = read_last_sample(tables.warehouse, CLUSTER.name)
    if last is not None and last.at >= since:
        return {"topics": found, "note": None if found else _NOTHING_MISSING}
    until = "" if last is None else f" until {to_the_second(last.at.isoformat())} UTC"
    note = f"this is by samples of the cluster{until}: none is known to be taken since it is not ready"
    return {"topics": [{**row, "certainty": "likely"} for row in found], "note": note}


def _problem_of(sampled: Row | None, demanded: int | None) -> Row | None:
    if sampled is None:
        missing = "missing: no sample of the cluster shows it, or DESCRIBE on it is denied"
        return {"problem": missing, "certainty": "likely"}
    if sampled["is_deleted"]:
        between = f"between {to_the_second(sampled['last_seen_at'])} and {to_the_second(sampled['deleted_at'])} UTC"
        return {"problem": f"missing: deleted {between}", "certainty": "recorded"}
    count = sampled["partition_count"]
    if demanded not in (None, count):
        return {"problem": f"has {counted(count, 'partition')}, and {demanded} are expected", "certainty": "recorded"}
    return None


def _demanded(needed: Row, topology: list[Row], there: Mapping[str, int]) -> int | None:
    """Return how many partitions a topic must have, with those that are `there`; None if that is not known.

    A changelog has as many as the largest topic that its subtopology reads (ChangelogTopics), a repartition topic as
    the largest that a subtopology reads that writes to it (RepartitionTopics). If it is read together with others, it
    may have to have as many as they have: whether they are joined is not in the table.
    """
    fixed: int | None = needed["partitions"]
    if fixed is not None or needed["usage"] == "source":
        return fixed
    if needed["usage"] == "changelog":
        return _largest([there.get(row["topic"]) for row in _read_by(needed["subtopology"], topology)])
    if len(_read_by(needed["subtopology"], topology)) > 1:
        return None
    sinks = [row for row in topology if row["topic"] == needed["topic"] and row["usage"] == "repartition_sink"]
    read = [row for sink in sinks for row in _read_by(sink["subtopology"], topology)]
    # Brokers refuse a topology with a loop, which would have no end here.
    if any(row["usage"] == "repartition_source" and row["partitions"] is None for row in read):
        return None
    return _largest([there.get(row["topic"]) if row["usage"] == "source" else row["partitions"] for row in read])


def _read_by(subtopology: str, topology: list[Row]) -> list[Row]:
    return [row for row in topology if row["subtopology"] == subtopology and row["usage"] in USES["reads"]]


def _largest(counts: list[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return max(known) if known and len(known) == len(counts) else None


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
