"""Groups' states, subscriptions and departures, from rows of the history tables. Reads nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

OWNED = pa.schema({"group_id": pa.string(), "topic": pa.string(), "partition": pa.int32()})
"""The columns of a table with the positions that members own."""
NONE_OWNED = OWNED.empty_table()

# The default of the brokers' group.min.session.timeout.ms, below which no session timeout can be.
LEAST_SESSION_SECONDS = 6


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
