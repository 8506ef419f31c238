"""Rows of `streams_topology`: the topics of each subtopology."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from grouptrail.history.changes import Change
from grouptrail.history.generation_rows import origin
from grouptrail.history.reading import subtopology_of
from grouptrail.history.rows import TopologyRow, Values
from grouptrail.history.state import FoldState
from grouptrail.wire.streams import PROTOCOL

RECORD = "StreamsGroupTopology"


def update_topology(state: FoldState, change: Change) -> None:
    """Replace the rows by those of a new topology, if an operation has one."""
    if change.is_conversion:
        end_topology(state, change.at)
    if change.after.kind == "classic":
        _update_sources(state, change)
        return
    record = next((record for record in change.operation if record.type == RECORD), None)
    if record is None:
        return
    end_topology(state, change.at)
    _begin(state, change, _used(record.body or {}))


def end_topology(state: FoldState, at: int) -> None:
    """End the rows of the newest topology at a time (ms)."""
    _end(state, state.rows.topology, at)


def _begin(state: FoldState, change: Change, used: Iterable[Values]) -> None:
    for one in used:
        row = TopologyRow(**origin(state, change.operation), **one, known_from=change.at)
        state.rows.topology.append(row)
        state.rows.mark(row)


def _end(state: FoldState, rows: list[TopologyRow], at: int) -> None:
    for row in rows:
        state.rows.close(row, known_until=max(at, row.known_from))
    state.rows.topology = [row for row in state.rows.topology if row not in rows]


def _update_sources(state: FoldState, change: Change) -> None:
    """Update the rows of a classic application, whose records show a topic only while its partitions are assigned.

    A topic is a source of one subtopology: it ends where another has it, or no member subscribes to it any more.
    """
    if not change.after.members:
        return
    sources = {topic: part for record in change.operation for topic, part in _sources(record.body or {})}
    subscribed = [member.topics for member in change.after.members.values()]
    named = None if None in subscribed else {topic for topics in subscribed for topic in topics or ()}
    over = [
        row
        for row in state.rows.topology
        if change.after.protocol != PROTOCOL
        or sources.get(row.topic, row.subtopology) != row.subtopology
        or (named is not None and row.topic not in named)
    ]
    _end(state, over, change.at)
    known = {row.topic for row in state.rows.topology}
    _begin(
        state,
        change,
        (
            {
                "topology_epoch": None,
                "subtopology": part,
                "topic": topic,
                "usage": "source",
                "partitions": None,
                "replication_factor": None,
            }
            for topic, part in sorted(sources.items())
            if topic not in known
        ),
    )


def _sources(body: Values) -> Iterator[tuple[str, str]]:
    """Yield the topic and the subtopology of each assigned partition of a classic application.

    The active tasks are in the order of the partitions by topic and number, a task once for each of its partitions
    (StreamsPartitionAssignor.getActiveTasks, in all versions).
    """
    streams = body.get("streams", {})
    for member in body.get("members", ()) if streams else ():
        tasks = ((streams.get(member["member_id"]) or {}).get("assignment") or {}).get("activeTasks", ())
        listed = member.get("assignment", {}).get("partitions") or ()
        places = sorted((part["topic"], number) for part in listed for number in part["partitions"])
        # A task has the number of its partitions; applications before 3.0 may group them differently.
        if [number for _, number in places] == [task["partition"] for task in tasks]:
            yield from ((topic, subtopology_of(task)) for (topic, _), task in zip(places, tasks, strict=True))


def _used(body: Values) -> Iterator[Values]:
    """Yield each topic that a topology uses; a topic is once in a subtopology for each usage."""
    for part in body.get("subtopologies", ()):
        for usage, field in (
            ("source", "sourceTopics"),
            ("source_pattern", "sourceTopicRegex"),
            ("repartition_source", "repartitionSourceTopics"),
            ("repartition_sink", "repartitionSinkTopics"),
            ("changelog", "stateChangelogTopics"),
        ):
            topics = {one if isinstance(one, str) else one["name"]: one for one in part[field]}
            for topic, one in topics.items():
                info = {} if isinstance(one, str) else one
                yield {
                    "topology_epoch": body["epoch"],
                    "subtopology": part["subtopologyId"],
                    "topic": topic,
                    "usage": usage,
                    # Not fixed: 0, and a replication factor of -1, the default of Kafka Streams.
                    "partitions": info.get("partitions") or None,
                    "replication_factor": max(info.get("replicationFactor", 0), 0) or None,
                }
