"""Groups as their coordinators describe them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grouptrail.kafka.group import Committed, PolledGroup
from grouptrail.wire.blobs import Blob, encode_blob

ORDERS = "6f726465-7273-6f72-6465-72736f726465"
AT_5 = {("orders", 0): Committed(5, -1, "")}


def member(name: str, *partitions: int) -> dict[str, Any]:
    """Return a member of a classic group with the fields of DescribeGroups."""
    subscription = {"topics": ["orders"], "userData": None}
    assigned = {"assignedPartitions": [{"topic": "orders", "partitions": list(partitions)}], "userData": None}
    return {
        "member_id": name,
        "group_instance_id": None,
        "client_id": "client",
        "client_host": "/10.0.0.1",
        "member_metadata": encode_blob(Blob("ConsumerProtocolSubscription", 0, subscription)),
        "member_assignment": encode_blob(Blob("ConsumerProtocolAssignment", 0, assigned)),
    }


def classic_group(state: str, *members: dict[str, Any], commits: Any = None) -> PolledGroup:
    described = {"group_state": state, "protocol_type": "consumer", "protocol_data": "range", "members": members}
    return PolledGroup("billing", "classic", "consumer", state, described, commits)


def consumer_group(
    epoch: int, members: Mapping[str, Sequence[int]], *, target: Sequence[int] | None = None
) -> PolledGroup:
    """Return a KIP-848 group; `target` is the target assignment, if it differs from the current one."""

    def topics(partitions: Sequence[int]) -> dict[str, Any]:
        return {"topic_partitions": [{"topic_id": ORDERS, "topic_name": "orders", "partitions": list(partitions)}]}

    described = {
        "group_state": "Stable",
        "group_epoch": epoch,
        "assignment_epoch": epoch,
        "assignor_name": "uniform",
        "members": [
            {
                "member_id": name,
                "instance_id": None,
                "rack_id": None,
                "member_epoch": epoch,
                "client_id": "client",
                "client_host": "/10.0.0.1",
                "subscribed_topic_names": ["orders"],
                "subscribed_topic_regex": "",
                "assignment": topics(partitions),
                "target_assignment": topics(partitions if target is None else target),
            }
            for name, partitions in members.items()
        ],
    }
    return PolledGroup("billing", "consumer", "consumer", "Stable", described, {})
