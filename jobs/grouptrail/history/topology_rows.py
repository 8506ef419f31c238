"""Rows of `streams_topology`: the topics of each subtopology."""

from __future__ import annotations

from collections.abc import Iterator

from grouptrail.history.changes import Change
from grouptrail.history.generation_rows import origin
from grouptrail.history.rows import TopologyRow, Values
from grouptrail.history.state import FoldState

RECORD = "StreamsGroupTopology"


def update_topology(state: FoldState, change: Change) -> None:
    """Replace the rows by those of a new topology, if an operation has one."""
    record = next((record for record in change.operation if record.type == RECORD), None)
    if record is None:
        return
    end_topology(state, change.at)
    for used in _used(record.body or {}):
        row = TopologyRow(**origin(state, change.operation), **used, known_from=change.at)
        state.rows.topology.append(row)
        state.rows.mark(row)


def end_topology(state: FoldState, at: int) -> None:
    """End the rows of the newest topology at a time (ms)."""
    for row in state.rows.topology:
        state.rows.close(row, known_until=max(at, row.known_from))
    state.rows.topology = []


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
