"""Changes of groups between two polls, as the records that a coordinator would have written.

Pure functions, without brokers, tables or a clock. Start at `changes`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from grouptrail.kafka.group import Committed, PolledGroup
from grouptrail.kafka.log import topic_id_text
from grouptrail.wire.records import Key, Value, decode_record, encode_key, encode_value

Position = tuple[str, int]
Part = tuple[int, str]
"""A record of a group other than a commit: its type, and its member id or an empty string."""
Data = dict[str, Any]

COMMIT, CLASSIC = 1, 2
EPOCH, MEMBER, ASSIGNMENT_EPOCH, TARGET, CURRENT = 3, 5, 6, 7, 8
_VERSIONS = {COMMIT: 3, CLASSIC: 3, EPOCH: 0, MEMBER: 0, ASSIGNMENT_EPOCH: 0, TARGET: 0, CURRENT: 0}

# The order of coordinators: members before the group's epoch; tombstones in the reverse order.
_ORDER = (CLASSIC, MEMBER, EPOCH, TARGET, ASSIGNMENT_EPOCH, CURRENT)
_SETTLED = ("Stable", "Empty")
_STABLE, _UNRELEASED = 0, 3
_UNKNOWN_MS = -1


@dataclass
class StoredGroup:
    """A group as the tables have it: its commits and its records' fields."""

    commits: dict[Position, Committed] = field(default_factory=dict)
    parts: dict[Part, Data] = field(default_factory=dict)


class PolledChange(NamedTuple):
    """A change of a polled group as a record; `value` None is a tombstone."""

    group_id: str
    key: Key
    value: Value | None


def changes(group_id: str, stored: StoredGroup, polled: PolledGroup) -> list[PolledChange]:
    """Return the records that lead from a stored group to the polled one; none if nothing has changed.

    Parts that the poll did not return, and a classic group during a rebalance, stay as they are stored.
    """
    changed = []
    if polled.described is not None:
        wanted = _parts(stored, polled)
        if wanted is not None:
            changed += _between(group_id, stored.parts, wanted)
    if polled.commits is not None:
        changed += [
            PolledChange(group_id, _commit_key(group_id, *position), _commit_value(polled.commits[position]))
            for position in sorted(polled.commits)
            if stored.commits.get(position) != polled.commits[position]
        ]
        gone = stored.commits.keys() - polled.commits.keys()
        changed += [PolledChange(group_id, _commit_key(group_id, *position), None) for position in sorted(gone)]
    return changed


def removal(group_id: str, stored: StoredGroup) -> list[PolledChange]:
    """Return the tombstones of a deleted group, those of its offsets first."""
    removed = [PolledChange(group_id, _commit_key(group_id, *position), None) for position in sorted(stored.commits)]
    return removed + _between(group_id, stored.parts, {})


def apply_changes(stored: StoredGroup, changed: Collection[PolledChange]) -> None:
    """Update a stored group by changes that have been written."""
    for change in changed:
        data = change.key.data
        if change.key.type == COMMIT:
            position = (data["topic"], data["partition"])
            if change.value is None:
                stored.commits.pop(position, None)
            else:
                value = change.value.data
                stored.commits[position] = Committed(value["offset"], value["leaderEpoch"], value["metadata"])
        else:
            part = (change.key.type, data.get("memberId", ""))
            if change.value is None:
                stored.parts.pop(part, None)
            else:
                stored.parts[part] = change.value.data


def _between(group_id: str, before: Mapping[Part, Data], wanted: Mapping[Part, Data]) -> list[PolledChange]:
    gone = sorted(before.keys() - wanted.keys(), key=lambda part: (-_ORDER.index(part[0]), part[1]))
    new = [part for part in wanted if before.get(part) != wanted[part]]
    new.sort(key=lambda part: (_ORDER.index(part[0]), part[1]))
    values = [PolledChange(group_id, _key(group_id, part), Value(_VERSIONS[part[0]], wanted[part])) for part in new]
    return [PolledChange(group_id, _key(group_id, part), None) for part in gone] + values


def _key(group_id: str, part: Part) -> Key:
    type_, member_id = part
    if type_ == CLASSIC:
        return Key(type_, {"group": group_id})
    return Key(type_, {"groupId": group_id} | ({"memberId": member_id} if member_id else {}))


def _commit_key(group_id: str, topic: str, partition: int) -> Key:
    return Key(COMMIT, {"group": group_id, "topic": topic, "partition": partition})


def _commit_value(committed: Committed) -> Value:
    fields = {"offset": committed.offset, "leaderEpoch": committed.leader_epoch, "metadata": committed.metadata}
    return Value(_VERSIONS[COMMIT], fields | {"commitTimestamp": _UNKNOWN_MS})


def _parts(stored: StoredGroup, polled: PolledGroup) -> dict[Part, Data] | None:
    """Return the records that the described group would have; None if it is between two assignments."""
    assert polled.described is not None
    if polled.kind == "consumer":
        return {part: _as_read(part, data) for part, data in _consumer_parts(polled.described).items()}
    if not polled.protocol_type:  # it only commits, and has no record of its own
        return {}
    if polled.described["group_state"] not in _SETTLED:
        return None
    return _classic_parts(stored.parts.get((CLASSIC, "")), polled.described)


def _classic_parts(before: Data | None, described: Mapping[str, Any]) -> dict[Part, Data]:
    """Return a classic group's record: descriptions have no leader or timeouts, and generations are counted."""
    part = (CLASSIC, "")
    data = {
        "protocolType": described["protocol_type"],
        "generation": before["generation"] if before else 1,
        "protocol": described["protocol_data"] or None,
        "leader": None,
        "currentStateTimestamp": _UNKNOWN_MS,
        "members": [
            {
                "memberId": member["member_id"],
                "groupInstanceId": member["group_instance_id"],
                "clientId": member["client_id"],
                "clientHost": member["client_host"],
                "rebalanceTimeout": _UNKNOWN_MS,
                "sessionTimeout": _UNKNOWN_MS,
                "subscription": member["member_metadata"],
                "assignment": member["member_assignment"],
            }
            for member in sorted(described["members"], key=lambda member: str(member["member_id"]))
        ],
    }
    wanted = _as_read(part, data)
    if before is not None and wanted != before:
        wanted["generation"] += 1
    return {part: wanted}


def _consumer_parts(described: Mapping[str, Any]) -> dict[Part, Data]:
    epoch = described["assignment_epoch"]
    parts: dict[Part, Data] = {
        (EPOCH, ""): {"epoch": described["group_epoch"]},
        (ASSIGNMENT_EPOCH, ""): {"assignmentEpoch": epoch},
    }
    for member in described["members"]:
        name = member["member_id"]
        assigned, target = (_topics(member[of]) for of in ("assignment", "target_assignment"))
        is_stable = member["member_epoch"] == epoch and assigned == target
        parts[MEMBER, name] = {
            "instanceId": member["instance_id"],
            "rackId": member["rack_id"],
            "clientId": member["client_id"],
            "clientHost": member["client_host"],
            "subscribedTopicNames": sorted(member["subscribed_topic_names"]),
            "subscribedTopicRegex": member["subscribed_topic_regex"] or None,
            "rebalanceTimeoutMs": _UNKNOWN_MS,
            "serverAssignor": described["assignor_name"] or None,
        }
        parts[TARGET, name] = {"topicPartitions": target}
        parts[CURRENT, name] = {
            "memberEpoch": member["member_epoch"],
            "previousMemberEpoch": member["member_epoch"],
            "state": _STABLE if is_stable else _UNRELEASED,
            "assignedPartitions": assigned,
            "partitionsPendingRevocation": [],
        }
    return parts


def _topics(assignment: Mapping[str, Any]) -> list[Data]:
    topics = [
        {"topicId": topic_id_text(one["topic_id"]), "partitions": sorted(one["partitions"])}
        for one in assignment["topic_partitions"]
    ]
    return sorted(topics, key=lambda one: str(one["topicId"]))


def _as_read(part: Part, data: Data) -> Data:
    """Return the fields as they are decoded from their bytes, so that they can be compared with stored ones."""
    key = _key("", part)
    read = decode_record(encode_key(key), encode_value(key, Value(_VERSIONS[part[0]], data)))
    assert read.value is not None, read.error
    return read.value.data
