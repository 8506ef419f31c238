"""Apply an operation's records to a group (offsets-topic semantics of Kafka 3.5 to 4.4, both coordinators)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any
from zlib import crc32

from grouptrail.history.group import (
    AWAY_EPOCH,
    Group,
    Kind,
    Member,
    Partition,
    PartitionCount,
    Role,
    Task,
    partitions,
    settled_by_epoch,
)
from grouptrail.history.operations import CLASSIC, Operation, Record

NameOf = Callable[[str], str]
"""Returns the name of a topic id, or the id if it has no known name."""
Body = dict[str, Any]

_PREFIXES: dict[str, Kind] = {"Consumer": "consumer", "Share": "share", "Streams": "streams"}
_STABLE = {"consumer": 0, "share": 0, "streams": 1}
_REVOKING = {"consumer": 1, "streams": 2}
_ROLES: tuple[Role, ...] = ("active", "standby", "warmup")

# The time of the next rebalance in an assignment of Kafka Streams: at once, for tasks that others give up, and none.
_AT_ONCE, _NO_REBALANCE = 0, (1 << 63) - 1

# AssignorError of Kafka Streams, by code.
_ERRORS = {
    1: "INCOMPLETE_SOURCE_TOPIC_METADATA",
    2: "VERSION_PROBING",
    3: "ASSIGNMENT_ERROR",
    4: "SHUTDOWN_REQUESTED",
}


def apply_operation(group: Group, operation: Operation, name_of: NameOf, *, may_miss_records: bool = False) -> Group:
    """Return the group after an operation; `may_miss_records`: compaction may have taken records right before it."""
    read_late_at, leader_epoch, record_offset = group.read_late_at, group.leader_epoch, group.record_offset
    for record in operation:
        before, group = group, _apply(group, record, name_of)
        if may_miss_records and record.type == CLASSIC:
            group = _with_doubt(before, group)
        if record.has_generation:
            read_late_at, leader_epoch, record_offset = record.read_late_at, record.leader_epoch, record.offset
    if group.kind is None:
        return group
    is_polled = any(record.is_polled for record in operation)
    return replace(
        group,
        is_polled=is_polled,
        may_miss_records=may_miss_records,
        read_late_at=read_late_at,
        leader_epoch=leader_epoch,
        record_offset=record_offset,
    )


def kind_of(record_type: str) -> Kind:
    """Return the kind of group that has records of this type."""
    return next((kind for prefix, kind in _PREFIXES.items() if record_type.startswith(prefix)), "classic")


def _apply(group: Group, record: Record, name_of: NameOf) -> Group:
    if record.type == CLASSIC:
        return classic_group(record.body, group) if record.body is not None else _without(group, "classic")
    kind = kind_of(record.type)
    part = record.type.removeprefix(f"{kind.capitalize()}Group")
    read = _GROUP_PARTS.get(part)
    if read is not None:
        if record.body is None:
            return _without_part(group, kind, part)
        return read(_of_kind(group, kind), record.body)
    if part == "RegularExpression" and record.name is not None:
        if record.body is not None:  # after compaction it may be the first of its group
            group = _of_kind(group, kind)
        others = {regex: topics for regex, topics in group.regexes.items() if regex != record.name}
        resolved = {} if record.body is None else {record.name: tuple(record.body["topics"])}
        return replace(group, regexes={**others, **resolved})
    if part in _MEMBER_PARTS and record.name is not None:
        return _with_member(_of_kind(group, kind), part, record, name_of)
    return group


def _without_part(group: Group, kind: Kind, part: str) -> Group:
    if part == "PartitionMetadata" and group.kind == kind:
        return replace(group, partition_counts=None)
    return _without(group, kind) if part == "Metadata" else group


def _of_kind(group: Group, kind: Kind) -> Group:
    lacks_records = group.kind is None and group.lacks_records
    return group if group.kind == kind else Group(kind=kind, protocol_type=kind, lacks_records=lacks_records)


def _without(group: Group, kind: Kind) -> Group:
    return Group() if group.kind == kind else group


# Groups that the broker assigns


def _with_epoch(group: Group, body: Body) -> Group:
    return replace(
        group,
        generation=body["epoch"],
        metadata_hash=body.get("metadataHash", 0),
        validated_topology_epoch=body.get("validatedTopologyEpoch", -1),
        settings=tuple((one["key"], one["value"]) for one in body.get("lastAssignmentConfigs") or ()),
    )


def _with_partition_counts(group: Group, body: Body) -> Group:
    counts = {
        one["topicId"]: PartitionCount(
            one["topicName"], one["numPartitions"], _checksum(one.get("partitionMetadata"))
        )
        for one in body["topics"]
    }
    return replace(group, partition_counts=counts)


def _checksum(racks: list[Body] | None) -> int:
    """Return a checksum of partitions' racks, whatever their order."""
    listed = sorted((one["partition"], sorted(one["racks"])) for one in racks or ())
    return crc32(json.dumps(listed).encode())


_GROUP_PARTS: dict[str, Callable[[Group, Body], Group]] = {
    "Metadata": _with_epoch,
    "PartitionMetadata": _with_partition_counts,
    "TargetAssignmentMetadata": lambda group, body: replace(group, assignment_epoch=body["assignmentEpoch"]),
    "Topology": lambda group, body: replace(group, topology_epoch=body["epoch"]),
}


def _with_member(group: Group, part: str, record: Record, name_of: NameOf) -> Group:
    assert record.name is not None
    members, fragments = dict(group.members), dict(group.fragments)
    if part == "MemberMetadata" and record.body is None:
        gone = members.pop(record.name, None)
        fragments.pop(record.name, None)
        settled = _settled(group, gone, None)
        return group if gone is None else replace(group, members=members, fragments=fragments, settled=settled)
    home = members if record.name in members or part == "MemberMetadata" else fragments
    known = members.get(record.name) or fragments.pop(record.name, None) or Member(record.name)
    home[record.name] = changed = _MEMBER_PARTS[part](known, record, group, name_of)
    if home is fragments and record.body is None:
        del fragments[record.name]
    settled = _settled(group, group.members.get(record.name), members.get(record.name))
    has_tasks = group.has_tasks or (
        group.kind == "streams" and part == "TargetAssignmentMember" and bool(changed.target)
    )
    topic_ids = _topic_ids(group, record.body, name_of) if part == "TargetAssignmentMember" else group.topic_ids
    return replace(
        group, members=members, fragments=fragments, settled=settled, has_tasks=has_tasks, topic_ids=topic_ids
    )


def _topic_ids(group: Group, body: Body | None, name_of: NameOf) -> Mapping[str, str]:
    ids = {name_of(part["topicId"]): part["topicId"] for part in (body or {}).get("topicPartitions") or ()}
    return group.topic_ids if ids.items() <= group.topic_ids.items() else {**group.topic_ids, **ids}


def _settled(group: Group, old: Member | None, new: Member | None) -> Counter[int | None]:
    settled = Counter(group.settled)
    settled.subtract(settled_by_epoch([old] if old else ()))
    settled.update(settled_by_epoch([new] if new else ()))
    return +settled


def _with_description(member: Member, record: Record, _group: Group, _name_of: NameOf) -> Member:
    body = record.body or {}
    return replace(
        member,
        instance_id=body.get("instanceId") or None,
        client_id=body["clientId"],
        client_host=body["clientHost"],
        rack=body.get("rackId") or None,
        topics=tuple(sorted(body.get("subscribedTopicNames", ()))),
        topic_regex=body.get("subscribedTopicRegex") or None,
        rebalance_timeout_ms=body.get("rebalanceTimeoutMs"),
        session_timeout_ms=(body.get("classicMemberMetadata") or {}).get("sessionTimeoutMs"),
        assignor=body.get("serverAssignor") or None,
        process_id=body.get("processId"),
        endpoint=_endpoint(body.get("userEndpoint")),
        topology_epoch=body.get("topologyEpoch"),
    )


def _endpoint(body: Body | None) -> str | None:
    if body is None:
        return None
    host = f"[{body['host']}]" if ":" in body["host"] else body["host"]
    return f"{host}:{body['port']}"


def _with_target(member: Member, record: Record, _group: Group, name_of: NameOf) -> Member:
    if record.body is None:
        return replace(member, target=None)
    return replace(member, target=_assigned(record.body, ("topicPartitions", "activeTasks"), name_of))


def _with_current(member: Member, record: Record, group: Group, name_of: NameOf) -> Member:
    body = record.body
    if body is None:
        return replace(
            member,
            owned=frozenset(),
            epoch=None,
            previous_epoch=None,
            is_settled=False,
            unrevoked_since=None,
            away_since=None,
            tasks=member.tasks and frozenset(),
        )
    kind = group.kind or "consumer"
    pending = ("partitionsPendingRevocation", "activeTasksPendingRevocation")
    revoking = body["state"] == _REVOKING.get(kind)
    return replace(
        member,
        epoch=body["memberEpoch"],
        previous_epoch=body.get("previousMemberEpoch"),
        is_settled=body["state"] == _STABLE[kind] and body["memberEpoch"] != AWAY_EPOCH,
        owned=_assigned(body, ("assignedPartitions", "activeTasks"), name_of) | _assigned(body, pending, name_of),
        unrevoked_since=record.at if revoking else None,
        away_since=(member.away_since or record.at) if body["memberEpoch"] == AWAY_EPOCH else None,
        tasks=_streams_tasks(body) if kind == "streams" else None,
    )


_MEMBER_PARTS: dict[str, Callable[[Member, Record, Group, NameOf], Member]] = {
    "MemberMetadata": _with_description,
    "TargetAssignmentMember": _with_target,
    "CurrentMemberAssignment": _with_current,
}


def _assigned(body: Body, fields: tuple[str, ...], name_of: NameOf) -> frozenset[Partition]:
    """Return the partitions of a consumer or share group, or the tasks of a streams group."""
    return partitions(
        (name_of(part["topicId"]) if "topicId" in part else part["subtopologyId"], part["partitions"])
        for field in fields
        for part in body.get(field) or ()
    )


def _streams_tasks(body: Body) -> frozenset[Task]:
    """Return the tasks of a member of a streams group, with those that it has been asked to give up."""
    return frozenset(
        Task(role, part["subtopologyId"], number)
        for role in _ROLES
        for field in (f"{role}Tasks", f"{role}TasksPendingRevocation")
        for part in body.get(field) or ()
        for number in part["partitions"]
    )


# Classic groups


def _with_doubt(before: Group, after: Group) -> Group:
    """Return the group of a generation's record that a static member's return may have written in its place."""
    is_new = before.kind != "classic" or before.generation != after.generation
    has_static = any(member.instance_id for member in after.members.values())
    return replace(after, may_be_restart=True, join_ended_at=None) if is_new and has_static else after


def classic_group(body: Body, before: Group) -> Group:
    """Return the group that a GroupMetadata value describes; Connect's assignments are differences to `before`."""
    had, streams = before.members if before.kind == "classic" else {}, body.get("streams", {})
    members = [
        _classic_member(member, streams.get(member["member_id"]), had.get(member["member_id"]))
        for member in body.get("members", ())
    ]
    is_same_generation = before.kind == "classic" and before.generation == body["generation"]
    return Group(
        kind="classic",
        protocol_type=body["protocol_type"],
        protocol=body.get("protocol"),
        leader=body.get("leader"),
        generation=body["generation"],
        state_at=body.get("state_at"),
        join_ended_at=before.join_ended_at if is_same_generation else body.get("state_at"),
        members={member.member_id: member for member in members},
        keeps_back=any(_delay_ms(member.get("assignment", {})) for member in body.get("members", ())),
    )


def _classic_member(body: Body, streams: Body | None, before: Member | None) -> Member:
    subscription, assignment = body.get("subscription", {}), body.get("assignment", {})
    owned = _classic_owned(subscription, assignment, before)
    claimed = subscription.get("owned_partitions") or subscription.get("previous_partitions") or ()
    return Member(
        member_id=body["member_id"],
        instance_id=body.get("group_instance_id"),
        client_id=body["client_id"],
        client_host=body["client_host"],
        rack=subscription.get("rack_id"),
        topics=_subscribed(subscription),
        session_timeout_ms=body.get("session_timeout_ms"),
        rebalance_timeout_ms=body.get("rebalance_timeout_ms"),
        owned=owned,
        claimed=partitions((part["topic"], part["partitions"]) for part in claimed),
        claimed_generation=subscription.get("previous_generation", subscription.get("generation_id", -1)),
        **(_of_streams(streams) if streams else _of_connect(subscription, assignment, owned)),
    )


def _of_streams(said: Body) -> Body:
    """Return what a member of a Kafka Streams application says of itself and is told, in its user data."""
    subscription, assignment = said["subscription"] or {}, said["assignment"] or {}
    next_at = assignment.get("nextRebalanceMs", _NO_REBALANCE)
    return {
        "tasks": _classic_tasks(assignment) if "activeTasks" in assignment else None,
        "process_id": subscription.get("processId"),
        "endpoint": subscription.get("userEndPoint") or None,
        "rejoins_at": next_at if _AT_ONCE < next_at < _NO_REBALANCE else None,
    }


def _classic_tasks(assignment: Body) -> frozenset[Task]:
    listed: tuple[tuple[Role, list[Body]], ...] = (
        ("active", assignment["activeTasks"]),
        ("standby", assignment["standbyTasks"]),
    )
    return frozenset(Task(role, subtopology_of(task), task["partition"]) for role, tasks in listed for task in tasks)


def subtopology_of(task: Body) -> str:
    """Return a subtopology as `TaskId` prints it: after the name of its topology, if that has one."""
    name, number = task.get("namedTopology"), task["topicGroupId"]
    return f"{name}__{number}" if name else str(number)


def assignor_error(operation: Operation) -> str | None:
    """Return the error that the leader of a Kafka Streams application assigned instead of tasks."""
    said = [one for record in operation for one in ((record.body or {}).get("streams") or {}).values()]
    code = next((code for one in said if (code := (one["assignment"] or {}).get("errCode", 0))), None)
    return None if code is None else _ERRORS.get(code, f"error {code}")


def _of_connect(subscription: Body, assignment: Body, owned: frozenset[Partition] | None) -> Body:
    """Return the tasks and the URL of a Connect worker; nothing of other clients."""
    if "connect" not in subscription and "connect" not in assignment:
        return {}
    return {
        "tasks": owned and frozenset(Task("active", *task) for task in owned),
        "endpoint": json.loads(subscription.get("connect") or "{}").get("url") or None,
    }


def _subscribed(subscription: Body) -> tuple[str, ...] | None:
    """Return the topics of a subscription; None if not even they could be read."""
    if "error" in subscription and "topics" not in subscription:
        return None
    return tuple(sorted(set(subscription.get("topics") or ())))


def _classic_owned(subscription: Body, assignment: Body, before: Member | None) -> frozenset[Partition] | None:
    if "layout" not in assignment or "error" in assignment:
        return None
    if "connect" in assignment:
        return _connect_owned(subscription, assignment, before)
    return partitions((part["topic"], part["partitions"]) for part in assignment.get("partitions", ()))


def _connect_owned(subscription: Body, assignment: Body, before: Member | None) -> frozenset[Partition] | None:
    """Return the tasks of a Connect worker.

    From version 1 on an assignment holds what to start and to stop; what the worker has is in its subscription.
    """
    changes = json.loads(assignment["connect"])
    given = _tasks(changes.get("assignment"))
    if assignment.get("version", 0) == 0:
        return given
    if "connect" in subscription:
        # Null is nothing: a worker that lost its coordinator or missed an assignment rejoins without any task.
        allocation = json.loads(subscription["connect"]).get("allocation")
        had = _tasks(allocation["data"]["assignment"]) if allocation else frozenset()
    else:
        had = (before.owned if before else None) or frozenset()
    return (had | given) - _tasks(changes.get("revoked"))


def _delay_ms(assignment: Body) -> int:
    """Return for how long (ms) a Connect leader still waits for a lost worker."""
    delay: int = json.loads(assignment.get("connect") or "{}").get("delay", 0)
    return delay


def _tasks(connectors: Iterable[Body] | None) -> frozenset[Partition]:
    return partitions((part["connector"], part["tasks"]) for part in connectors or ())
