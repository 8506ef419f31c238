"""Records of groups as coordinators write them, for tests of what may be concluded from them.

A classic member has the broker's default timeouts and subscribes to `orders` unless a test says otherwise. In the
tests' citations GMM is group-coordinator's GroupMetadataManager.java, 3.x core's coordinator/group/*.scala.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from grouptrail.history.operations import Record
from support import group_records
from support.group_records import Row, Rows

HOUR, DAY = 3_600_000, 86_400_000


def member(topics: Mapping[str, Iterable[int]], **more: Any) -> Row:
    """Return a member of a classic group that is assigned `topics` ({topic: partitions})."""
    listed = [{"topic": topic, "partitions": list(numbers)} for topic, numbers in topics.items()]
    assignment = {"layout": "ConsumerProtocolAssignment", "version": 3, "partitions": listed}
    return {"assignment": assignment, "subscription": subscription("orders"), **more}


def subscription(*topics: str, owned: Mapping[str, Iterable[int]] | None = None, generation: int = -1) -> Row:
    had = [{"topic": topic, "partitions": list(numbers)} for topic, numbers in (owned or {}).items()]
    return {"topics": list(topics), "owned_partitions": had, "generation_id": generation}


def classic(
    offset: int,
    at: int,
    generation: int,
    members: Mapping[str, Any],
    *,
    state_at: int | None = None,
    protocol: str = "range",
) -> Record:
    """Return a GroupMetadata record; a member is its assignment or a result of `member`."""
    timeouts = {"session_timeout_ms": 45_000, "rebalance_timeout_ms": 300_000}
    whole = {
        name: {"client_id": f"client-{name}", **timeouts, **(one if "assignment" in one else member(one))}
        for name, one in members.items()
    }
    return group_records.classic(offset, at, generation, whole, state_at=state_at, protocol=protocol)


def commit_tombstone(offset: int, at: int) -> Record:
    return Record(offset, at, "OffsetCommit", None, None)


def consumer(offset: int, at: int, part: str, name: str | None, body: Row | None) -> Record:
    """Return a record of a KIP-848 group."""
    return Record(offset, at, f"ConsumerGroup{part}", name, body)


def joins(offset: int, at: int, name: str, **more: Any) -> Record:
    """Return a KIP-848 member's metadata record."""
    body = {"instanceId": None, "clientId": "client", "clientHost": "/10.0.0.1", "rackId": None}
    body |= {"subscribedTopicNames": ["orders"], "rebalanceTimeoutMs": 1_000, "serverAssignor": ""}
    return consumer(offset, at, "MemberMetadata", name, body | more)


def leaves(offset: int, at: int, name: str) -> list[Record]:
    """Return the three tombstones of a KIP-848 member."""
    parts = ("CurrentMemberAssignment", "TargetAssignmentMember", "MemberMetadata")
    return [consumer(offset + index, at, part, name, None) for index, part in enumerate(parts)]


def epoch(offset: int, at: int, number: int, **more: Any) -> Record:
    return consumer(offset, at, "Metadata", None, {"epoch": number, "metadataHash": 1} | more)


def regex(offset: int, at: int, pattern: str, *topics: str) -> Record:
    body = {"topics": list(topics), "version": 1, "timestamp": at}
    return consumer(offset, at, "RegularExpression", pattern, body)


def target(offset: int, at: int, name: str, numbers: Sequence[int], topic_id: str = "T") -> Record:
    topics = [{"topicId": topic_id, "partitions": list(numbers)}]
    return consumer(offset, at, "TargetAssignmentMember", name, {"topicPartitions": topics})


def target_epoch(offset: int, at: int, number: int) -> Record:
    return consumer(offset, at, "TargetAssignmentMetadata", None, {"assignmentEpoch": number})


def current(
    offset: int,
    at: int,
    name: str,
    number: int,
    numbers: Sequence[int],
    *,
    state: int = 0,
    previous: int | None = None,
    pending: tuple[Sequence[int], str] | None = None,
    topic_id: str = "T",
) -> Record:
    """Return a KIP-848 member's current assignment; `pending`: partitions that it has to give up, and their topic
    id."""

    def topics(some: Sequence[int], its_id: str) -> list[Row]:
        return [{"topicId": its_id, "partitions": list(some)}] if some else []

    body = {
        "memberEpoch": number,
        "previousMemberEpoch": number if previous is None else previous,
        "state": state,
        "assignedPartitions": topics(numbers, topic_id),
        "partitionsPendingRevocation": topics(*(pending or ((), ""))),
    }
    return consumer(offset, at, "CurrentMemberAssignment", name, body)


def first_epoch(*numbers: int, at: int = 1_000) -> list[Record]:
    """Return the records of a KIP-848 group in epoch 2, whose first member `a` has got these partitions."""
    records = [joins(0, at, "a"), epoch(1, at, 2), target(2, at, "a", numbers), target_epoch(3, at, 2)]
    return [*records, current(4, at, "a", 2, numbers, previous=0)]


def at_once(records: Sequence[Record]) -> list[Record]:
    """Return the records as read when they were written."""
    return [record._replace(read_at_once=True) for record in records]


def streams(offset: int, at: int, part: str, name: str | None, body: Row | None) -> Record:
    """Return a record of a streams group (KIP-1071)."""
    return Record(offset, at, f"StreamsGroup{part}", name, body)


def states(rows: Rows) -> list[tuple[Any, ...]]:
    """Return the group's states except PreparingRebalance: state, evidence, beginning and end."""
    listed = [row for row in rows["group_states"] if row["state"] != "PreparingRebalance"]
    return [(row["state"], row["evidence"], row["started_at"], row["ended_at"]) for row in listed]


def last(rows: Rows, table: str = "rebalances") -> Row:
    """Return the newest row of a table."""
    return rows[table][-1]
