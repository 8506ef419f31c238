"""The state, subscriptions and owned partitions of groups, read from the history tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from grouptrail.query.warehouse import Warehouse
from grouptrail.storage.sql import datafusion_literal

if TYPE_CHECKING:
    from grouptrail.config import Config

TABLES = ("group_states", "generations", "memberships", "partition_ownership")
# Each is created by the job that writes it: if it exists, that job has run.
_DECODED = ("group_metadata", "group_records", "history_positions")

# The default of the brokers' group.min.session.timeout.ms, below which no session timeout can be.
LEAST_SESSION_SECONDS = 6

_STATES = """
SELECT group_id, state, started_at, record_partition FROM group_states
WHERE is_open AND ended_at IS NULL AND cluster = {cluster}
"""
_SUBSCRIPTIONS = """
SELECT group_id, member['topics'] AS topics, member['topic_regex'] AS topic_regex
FROM (
  SELECT group_id, unnest(members) AS member FROM generations
  WHERE is_open AND ended_at IS NULL AND cluster = {cluster}
)
"""
_LEAVERS = """
SELECT gone.group_id, gone.ended
FROM memberships AS gone
JOIN group_states AS emptied
  ON emptied.group_id = gone.group_id AND emptied.cluster = gone.cluster
  AND gone.left_at >= emptied.started_at - INTERVAL '1 second'
WHERE gone.cluster = {cluster} AND emptied.is_open AND emptied.ended_at IS NULL AND emptied.state = 'Empty'
"""
_FILLED = """
SELECT group_id, MAX(ended_at) AS filled_at FROM group_states
WHERE state = 'Empty' AND ended_at IS NOT NULL AND cluster = {cluster} GROUP BY group_id
"""
_RETURNING = """
SELECT DISTINCT decoded.group_id
FROM (
  SELECT cluster, group_id, record_offset FROM group_metadata WHERE leader IS NOT NULL
  UNION ALL
  SELECT cluster, group_id, record_offset FROM group_records WHERE member_id IS NOT NULL AND value_json IS NOT NULL
) AS decoded
JOIN history_positions AS history ON history.group_id = decoded.group_id AND history.cluster = decoded.cluster
WHERE decoded.record_offset >= history.told_to AND decoded.cluster = {cluster}
"""
_OWNED = """
SELECT DISTINCT owned.group_id, owned.topic, owned.partition
FROM partition_ownership AS owned
JOIN generations AS now ON now.group_id = owned.group_id AND now.cluster = owned.cluster
WHERE owned.is_open AND owned.owned_until IS NULL AND owned.cluster = {cluster} AND owned.partition >= 0
  AND COALESCE(now.protocol_type, '') IN ('', 'consumer')
  AND now.is_open AND now.ended_at IS NULL AND now.group_kind IN ('classic', 'consumer')
"""

Position = tuple[str, str, int]


@dataclass(frozen=True)
class GroupStatus:
    """A group's newest state in the history.

    `topics`: what its members subscribe to; None where that is not known. `emptied_at`: when its last members left or
    expired; `endings`: how they left. `record_partition`: its partition of the offsets topic. `filled_at`: when it
    last stopped being Empty. `is_returning`: members' records have been decoded that the history has not read yet.
    """

    state: str | None = None
    topics: frozenset[str] | None = None
    emptied_at: datetime | None = None
    endings: frozenset[str] = frozenset()
    record_partition: int | None = None
    filled_at: datetime | None = None
    is_returning: bool = False

    def started_seconds(self, at: datetime) -> float:
        """Return for how long the group has had members again; infinite where that is not known."""
        if self.is_returning:
            return 0.0
        return float("inf") if self.filled_at is None else (at - self.filled_at).total_seconds()

    def ignores(self, topic: str) -> bool:
        """Return whether the group has members, none of which subscribes to the topic."""
        return self.topics is not None and len(self.topics) > 0 and topic not in self.topics

    def left_on_purpose(self, last_commit_at: datetime | None) -> bool:
        """Return whether the members left on purpose, although a leave and an expired session write the same records.

        A member that committed shortly before its end cannot have expired: commits keep its session alive. A commit
        after its end is not its own.
        """
        if self.emptied_at is None or not self.endings:
            return False
        if self.endings == {"left"}:
            return True
        silent = None if last_commit_at is None else (self.emptied_at - last_commit_at).total_seconds()
        was_alive = silent is not None and 0 <= silent < LEAST_SESSION_SECONDS
        return was_alive and self.endings <= {"left", "left_or_expired"}


class GroupStatuses:
    """The states of a cluster's groups, read again when a table has changed."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.by_id: Mapping[str, GroupStatus] = {}
        self.owned: list[Position] = []
        self._versions: dict[str, int] = {}

    def refresh(self) -> None:
        """Read the tables if they have changed; without them there are no groups."""
        warehouse = Warehouse(self._config, (*TABLES, *_DECODED))
        if warehouse.versions == self._versions or not warehouse.versions.keys() >= set(TABLES):
            return
        cluster = datafusion_literal(self._config.cluster)

        def query(text: str) -> list[dict[str, Any]]:
            return warehouse.rows(text.format(cluster=cluster))

        returning = query(_RETURNING) if warehouse.versions.keys() >= set(_DECODED) else []
        self.by_id = statuses(query(_STATES), query(_SUBSCRIPTIONS), query(_LEAVERS), query(_FILLED), returning)
        self.owned = [(row["group_id"], row["topic"], row["partition"]) for row in query(_OWNED)]
        self._versions = warehouse.versions


def statuses(
    states: Iterable[Mapping[str, Any]],
    subscriptions: Iterable[Mapping[str, Any]],
    leavers: Iterable[Mapping[str, Any]],
    filled: Iterable[Mapping[str, Any]],
    returning: Iterable[Mapping[str, Any]],
) -> dict[str, GroupStatus]:
    """Return the groups by id from the rows of the five queries; those without a state are left out."""
    topics: dict[str, set[str] | None] = {}
    for row in subscriptions:
        known = topics.get(row["group_id"], set())
        is_known = known is not None and row["topics"] is not None and not row["topic_regex"]
        topics[row["group_id"]] = known | set(row["topics"]) if known is not None and is_known else None
    endings: dict[str, set[str]] = defaultdict(set)
    for row in leavers:
        endings[row["group_id"]].add(row["ended"])
    filled_at = {row["group_id"]: _time(row["filled_at"]) for row in filled}
    are_returning = {row["group_id"] for row in returning}
    groups = {}
    for row in states:
        found = topics.get(row["group_id"])
        groups[row["group_id"]] = GroupStatus(
            state=row["state"],
            topics=None if found is None else frozenset(found),
            emptied_at=_time(row["started_at"]) if row["state"] == "Empty" else None,
            endings=frozenset(endings.get(row["group_id"], ())),
            record_partition=row["record_partition"],
            filled_at=filled_at.get(row["group_id"]),
            is_returning=row["group_id"] in are_returning,
        )
    return groups


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
