"""Groups' states, subscriptions and departures, from rows of the history tables. Reads nothing."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from grouptrail.lag.verdict import Thresholds

OWNED = pa.schema({"group_id": pa.string(), "topic": pa.string(), "partition": pa.int32()})
"""The columns of a table with the positions that members own."""
NONE_OWNED = OWNED.empty_table()
OWNED_SINCE = OWNED.append(pa.field("owned_since", pa.timestamp("us", tz="UTC")))
"""The same, with the time of the group's last assignment of the partition."""

LAST_OWNERS = pa.schema(
    [
        *OWNED,
        pa.field("member_id", pa.string()),
        pa.field("has_left", pa.bool_()),
        pa.field("joined_at", pa.timestamp("us", tz="UTC")),
        pa.field("session_ms", pa.int64()),
        pa.field("poll_ms", pa.int64()),
    ]
)
"""The last owners of the positions of Empty groups.

`has_left`: the history shows that the member was gone sooner than its session could have expired. `joined_at`: when
it joined first. Only a classic member that may have left has `session_ms`, its session timeout, and `poll_ms`, after
which one that does not poll leaves.
"""
NO_LAST_OWNERS = LAST_OWNERS.empty_table()

HABITUAL_PAUSES = 3
"""Pauses that a group has come back from so many times are its habit."""
_LONGER_THAN_PAUSES = 1.5


@dataclass(frozen=True)
class GroupStatus:
    """A group's newest state in the history.

    `topics`: what its members subscribe to; None where that is not known. `emptied_at`: when its last members left or
    expired; `endings`: how they left. `emptied_offset`: that record's, in `record_partition` of the offsets topic.
    `filled_at`: when it last stopped being Empty. `is_returning`: members' records have been decoded that the history
    has not read yet, the newest written at `returning_at`. `pauses`: how often it has come back after it was Empty,
    at most the last ones, of which the longest took `longest_pause_seconds`, and `HABITUAL_PAUSES` have reached
    `habitual_pause_seconds`. `known_since`: when its history begins.
    """

    state: str | None = None
    topics: frozenset[str] | None = None
    emptied_at: datetime | None = None
    endings: frozenset[str] = frozenset()
    record_partition: int | None = None
    filled_at: datetime | None = None
    is_returning: bool = False
    emptied_offset: int | None = None
    pauses: int = 0
    longest_pause_seconds: float = 0
    habitual_pause_seconds: float = 0
    known_since: datetime | None = None
    returning_at: datetime | None = None
    assigned_at: datetime | None = None

    def started_seconds(self, at: datetime) -> float:
        """Return for how long the group has had members again; infinite where that is not known."""
        if self.is_returning:
            return 0.0 if self.returning_at is None else max((at - self.returning_at).total_seconds(), 0.0)
        return float("inf") if self.filled_at is None else (at - self.filled_at).total_seconds()

    def ignores(self, topic: str) -> bool:
        """Return whether the group has members, none of which subscribes to the topic."""
        return self.topics is not None and len(self.topics) > 0 and topic not in self.topics

    def may_be_away_seconds(self, thresholds: Thresholds) -> float:
        """Return for how long members that left on purpose may stay away while records wait.

        A group that has paused before may pause for clearly longer than it did; one that was there for long without
        any pause, for `stop_seconds`. The others' history is too short.
        """
        known_seconds = 0.0
        if self.known_since is not None and self.emptied_at is not None:
            known_seconds = (self.emptied_at - self.known_since).total_seconds()
        if self.pauses < HABITUAL_PAUSES and known_seconds < thresholds.empty_seconds:
            return thresholds.empty_seconds
        return max(thresholds.stop_seconds, _LONGER_THAN_PAUSES * self.longest_pause_seconds)

    @property
    def may_pause_seconds(self) -> float:
        """For how long the group may pause by habit after it had read all; 0 without such a habit."""
        return _LONGER_THAN_PAUSES * self.habitual_pause_seconds if self.pauses >= HABITUAL_PAUSES else 0.0


def statuses(
    states: Iterable[Mapping[str, Any]],
    subscriptions: Iterable[Mapping[str, Any]],
    leavers: Iterable[Mapping[str, Any]],
    *,
    filled: Iterable[Mapping[str, Any]],
    pauses: Iterable[Mapping[str, Any]],
    returning: Iterable[Mapping[str, Any]],
    assigned_at: Mapping[str, datetime],
    resolved: Iterable[Mapping[str, Any]],
) -> dict[str, GroupStatus]:
    """Return the groups by id from the rows of the queries of `groups`; those without a state are left out."""
    topics_of = {
        (row["group_id"], json.loads(row["key_json"])["regularExpression"]): set(
            json.loads(row["value_json"])["topics"]
        )
        for row in resolved
    }
    topics: dict[str, set[str] | None] = {}
    for row in subscriptions:
        group, pattern = row["group_id"], row["topic_regex"]
        parts = (topics.get(group, set()), row["topics"], topics_of.get((group, pattern)) if pattern else ())
        known = [part for part in parts if part is not None]
        topics[group] = set().union(*known) if len(known) == len(parts) else None
    endings: dict[str, set[str]] = defaultdict(set)
    for row in leavers:
        endings[row["group_id"]].add(row["ended"])
    filled_at = {row["group_id"]: datetime.fromisoformat(row["filled_at"]) for row in filled}
    past = {row["group_id"]: row for row in pauses}
    returning_at = {row["group_id"]: datetime.fromisoformat(row["returning_at"]) for row in returning}
    groups = {}
    for row in states:
        subscribed = topics.get(row["group_id"])
        before = past.get(row["group_id"], {})
        pauses_of = sorted(before.get("seconds") or (), reverse=True)
        is_empty = row["state"] == "Empty"
        groups[row["group_id"]] = GroupStatus(
            state=row["state"],
            topics=None if subscribed is None else frozenset(subscribed),
            emptied_at=datetime.fromisoformat(row["started_at"]) if is_empty else None,
            endings=frozenset(endings.get(row["group_id"], ())),
            record_partition=row["record_partition"],
            filled_at=filled_at.get(row["group_id"]),
            is_returning=row["group_id"] in returning_at,
            emptied_offset=row["record_offset"] if is_empty else None,
            pauses=len(pauses_of),
            longest_pause_seconds=max(pauses_of, default=0.0),
            habitual_pause_seconds=pauses_of[HABITUAL_PAUSES - 1] if len(pauses_of) >= HABITUAL_PAUSES else 0.0,
            returning_at=returning_at.get(row["group_id"]),
            assigned_at=assigned_at.get(row["group_id"]),
            known_since=datetime.fromisoformat(before["known_since"]) if before else None,
        )
    return groups
