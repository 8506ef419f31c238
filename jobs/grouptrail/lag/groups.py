"""What the history tables tell of the groups whose lag is judged: their state, and what they subscribe to."""

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

# No session is shorter than the brokers' group.min.session.timeout.ms; its default.
_LEAST_SESSION_SECONDS = 6

_STATES = """
SELECT group_id, state, started_at FROM group_states WHERE is_open AND ended_at IS NULL AND cluster = {cluster}
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
class Group:
    """A group as the history has it.

    `topics`: what its members subscribe to; None where that cannot be told. `emptied_at`: when its last members left,
    or expired; `endings` says which, member by member.
    """

    state: str | None = None
    topics: frozenset[str] | None = None
    emptied_at: datetime | None = None
    endings: frozenset[str] = frozenset()

    def ignores(self, topic: str) -> bool:
        """Whether it has members, and none of them subscribes to the topic."""
        return self.topics is not None and len(self.topics) > 0 and topic not in self.topics

    def left_by_itself(self, last_commit_at: datetime | None) -> bool:
        """Whether its members went on purpose; a leave and an expired session write the same records.

        A member that committed shortly before cannot have expired: committing keeps its session alive. A commit after
        its end is none of its own.
        """
        if self.emptied_at is None or not self.endings:
            return False
        if self.endings == {"left"}:
            return True
        silent = None if last_commit_at is None else (self.emptied_at - last_commit_at).total_seconds()
        was_alive = silent is not None and 0 <= silent < _LEAST_SESSION_SECONDS
        return was_alive and self.endings <= {"left", "left_or_expired"}


class Groups:
    """The groups of a cluster, read again when a table has changed."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.by_id: Mapping[str, Group] = {}
        self.owned: list[Position] = []
        self._versions: dict[str, int] = {}

    def refresh(self) -> None:
        """Reads the tables as they are; what is not there yet tells nothing."""
        warehouse = Warehouse(self._config, TABLES)
        if warehouse.versions == self._versions or len(warehouse.versions) < len(TABLES):
            return
        cluster = datafusion_literal(self._config.cluster)

        def ask(text: str) -> list[dict[str, Any]]:
            return warehouse.rows(text.format(cluster=cluster))

        self.by_id = told(ask(_STATES), ask(_SUBSCRIPTIONS), ask(_LEAVERS))
        self.owned = [(row["group_id"], row["topic"], row["partition"]) for row in ask(_OWNED)]
        self._versions = warehouse.versions


def told(
    states: Iterable[Mapping[str, Any]],
    subscriptions: Iterable[Mapping[str, Any]],
    leavers: Iterable[Mapping[str, Any]],
) -> dict[str, Group]:
    """Groups by id, from the rows of the three questions; where nothing is told of a group, it is not there."""
    topics: dict[str, set[str] | None] = {}
    for row in subscriptions:
        known = topics.get(row["group_id"], set())
        is_told = known is not None and row["topics"] is not None and not row["topic_regex"]
        topics[row["group_id"]] = known | set(row["topics"]) if known is not None and is_told else None
    endings: dict[str, set[str]] = defaultdict(set)
    for row in leavers:
        endings[row["group_id"]].add(row["ended"])
    groups = {}
    for row in states:
        found = topics.get(row["group_id"])
        groups[row["group_id"]] = Group(
            state=row["state"],
            topics=None if found is None else frozenset(found),
            emptied_at=_time(row["started_at"]) if row["state"] == "Empty" else None,
            endings=frozenset(endings.get(row["group_id"], ())),
        )
    return groups


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
