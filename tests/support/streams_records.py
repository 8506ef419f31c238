"""Records of streams groups (KIP-1071) as coordinators write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grouptrail.history.operations import Record
from support.fold_records import streams
from support.group_records import Row

Tasks = Mapping[str, Sequence[int]]
"""Numbers of tasks by subtopology."""


def thread(offset: int, at: int, name: str, **more: Any) -> Record:
    """Return the record of a member: a thread of Kafka Streams."""
    body = {"instanceId": None, "rackId": None, "clientId": f"client-{name}", "clientHost": "/10.0.0.1"}
    body |= {"rebalanceTimeoutMs": 300_000, "topologyEpoch": 0, "processId": f"process-{name}"}
    return streams(offset, at, "MemberMetadata", name, body | {"userEndpoint": None, "clientTags": []} | more)


def group_epoch(offset: int, at: int, number: int, **more: Any) -> Record:
    body = {"epoch": number, "metadataHash": 5, "validatedTopologyEpoch": 0, "lastAssignmentConfigs": []}
    return streams(offset, at, "Metadata", None, body | more)


def target_tasks(offset: int, at: int, name: str, **tasks: Tasks) -> Record:
    """Return a member's target assignment; `tasks` by role: active, standby, warmup."""
    body = {f"{role}Tasks": _listed(tasks.get(role, {})) for role in ("active", "standby", "warmup")}
    return streams(offset, at, "TargetAssignmentMember", name, body)


def assignment_epoch(offset: int, at: int, number: int) -> Record:
    return streams(offset, at, "TargetAssignmentMetadata", None, {"assignmentEpoch": number})


def current_tasks(
    offset: int, at: int, name: str, number: int, *, state: int = 1, previous: int | None = None, **tasks: Tasks
) -> Record:
    """Return a member's current assignment; `tasks` by role, and by role with `_pending` those it has to give up."""
    body: Row = {"memberEpoch": number, "previousMemberEpoch": number if previous is None else previous}
    for role in ("active", "standby", "warmup"):
        body[f"{role}Tasks"] = _listed(tasks.get(role, {}))
        body[f"{role}TasksPendingRevocation"] = _listed(tasks.get(f"{role}_pending", {}))
    return streams(offset, at, "CurrentMemberAssignment", name, body | {"state": state})


def thread_leaves(offset: int, at: int, name: str) -> list[Record]:
    """Return the three tombstones of a member."""
    parts = ("CurrentMemberAssignment", "TargetAssignmentMember", "MemberMetadata")
    return [streams(offset + index, at, part, name, None) for index, part in enumerate(parts)]


def _listed(tasks: Tasks) -> list[Row]:
    return [{"subtopologyId": name, "partitions": list(numbers)} for name, numbers in tasks.items()]
