"""Records of classic Kafka Streams groups, with the user data that StreamsPartitionAssignor writes."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from grouptrail.history.operations import Record
from grouptrail.wire.blobs import Blob, encode_blob
from grouptrail.wire.records import Key, Value, encode_key, encode_value
from support import group_records

NO_REBALANCE = (1 << 63) - 1
"""The time of the next rebalance in an assignment that asks for none."""

Numbered = tuple[int, int]
"""A subtopology and a task of it."""


def subscription(
    process: int, endpoint: str = "", *, version: int = 11, disk: Mapping[Numbered, int] | None = None
) -> bytes:
    """Return a subscription's user data; `disk` has the sums of the offsets of the tasks that it has on disk."""
    return encode_blob(
        Blob(
            "StreamsSubscriptionInfo",
            version,
            {
                "latestSupportedVersion": 11,
                "processId": urlsafe_b64encode(UUID(int=process).bytes)[:22].decode(),
                "userEndPoint": endpoint.encode(),
                "prevTasks": [],
                "standbyTasks": [],
                "taskOffsetSums": [_offset_sum(*task, total, version) for task, total in (disk or {}).items()],
                "uniqueField": 1,
                "errorCode": 0,
                "clientTags": [],
            },
        )
    )


def _offset_sum(group: int, number: int, total: int, version: int) -> dict[str, Any]:
    task = {"partition": number, "offsetSum": total}
    return {"topicGroupId": group} | (
        {**task, "namedTopology": None} if version >= 10 else {"partitionToOffsetSum": [task]}
    )


def assignment(
    active: Iterable[Numbered] = (),
    standby: Iterable[Numbered] = (),
    *,
    error: int = 0,
    next_rebalance: int = NO_REBALANCE,
) -> bytes:
    """Return an assignment's user data; `active` has a task once for each of the partitions, in their order."""
    tasks = [_task(*one) for one in active]
    copies = [{**_task(*one), "partitions": [{"topic": "copied", "partition": one[1]}]} for one in standby]
    data = {"commonlySupportedVersion": 11, "activeTasks": tasks, "standbyTasks": copies, "topics": []}
    data |= {"partitionsByHost": [], "standbyPartitionsByHost": []}
    data |= {"errCode": error, "nextRebalanceMs": next_rebalance}
    return encode_blob(Blob("StreamsAssignmentInfo", 11, data))


def _task(group: int, number: int) -> dict[str, Any]:
    return {"topicGroupId": group, "partition": number, "namedTopology": ""}


Members = Mapping[str, tuple[Mapping[str, Sequence[int]], bytes, bytes]]
"""By member id: its partitions by topic, and the user data of its subscription and of its assignment."""


def application(
    offset: int, at: int, generation: int, members: Members, *, topics: Sequence[str] = ("lines", "counts")
) -> Record:
    """Return a GroupMetadata record as the history reads it, of an application that reads these topics."""
    return group_records.as_record(offset, at, *group_metadata(at, generation, members, topics))


def group_metadata(
    at: int, generation: int, members: Members, topics: Sequence[str] = ("lines", "counts")
) -> tuple[bytes, bytes]:
    """Return the key and the value of a GroupMetadata record."""
    listed = []
    for name, (partitions, subscribed, assigned) in members.items():
        parts = [{"topic": topic, "partitions": list(numbers)} for topic, numbers in partitions.items()]
        asks = {"topics": list(topics), "userData": subscribed, "ownedPartitions": [], "generationId": generation - 1}
        has = {"assignedPartitions": parts, "userData": assigned}
        listed.append(
            {
                "memberId": name,
                "groupInstanceId": None,
                "clientId": f"client-{name}",
                "clientHost": "/10.0.0.1",
                "rebalanceTimeout": 60_000,
                "sessionTimeout": 10_000,
                "subscription": encode_blob(Blob("ConsumerProtocolSubscription", 3, {**asks, "rackId": None})),
                "assignment": encode_blob(Blob("ConsumerProtocolAssignment", 3, has)),
            }
        )
    fields = {
        "protocolType": "consumer",
        "generation": generation,
        "protocol": "stream",
        "leader": next(iter(members)),
    }
    key = Key(2, {"group": "billing"})
    value = encode_value(key, Value(3, {**fields, "currentStateTimestamp": at, "members": listed}))
    assert value is not None
    return encode_key(key), value
