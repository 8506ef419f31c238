"""Micro-batches of the offsets topic's records, for tests that carry them through decoding and history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from grouptrail.wire.blobs import Blob, encode_blob
from grouptrail.wire.records import Key, Value, encode_key, encode_value

NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
Raw = tuple[bytes, bytes | None]


def metadata(group: str, generation: int, members: Mapping[str, Sequence[int]]) -> Raw:
    """Return a GroupMetadata record of consumers of `orders` with the round-robin assignor."""
    listed = [
        {
            "memberId": name,
            "clientId": "client",
            "clientHost": "/10.0.0.1",
            "rebalanceTimeout": 60_000,
            "sessionTimeout": 45_000,
            "subscription": encode_blob(
                Blob("ConsumerProtocolSubscription", 0, {"topics": ["orders"], "userData": None})
            ),
            "assignment": encode_blob(Blob("ConsumerProtocolAssignment", 0, _orders(partitions))),
        }
        for name, partitions in members.items()
    ]
    value = {
        "protocolType": "consumer",
        "generation": generation,
        "protocol": "roundrobin" if members else None,
        "leader": next(iter(members), None),
        "members": listed,
    }
    key = Key(2, {"group": group})
    return encode_key(key), encode_value(key, Value(1, value))


def _orders(partitions: Sequence[int]) -> dict[str, Any]:
    return {"assignedPartitions": [{"topic": "orders", "partitions": list(partitions)}], "userData": None}


def gone(group: str) -> Raw:
    return encode_key(Key(2, {"group": group})), None


def commit(group: str, partition: int, offset: int) -> Raw:
    key = Key(1, {"group": group, "topic": "orders", "partition": partition})
    value = {"offset": offset, "leaderEpoch": -1, "metadata": "", "commitTimestamp": 0}
    return encode_key(key), encode_value(key, Value(3, value))


# Micro-batches of a log of one partition, whose records are ten seconds apart.
BATCHES: list[list[Raw]] = [
    [metadata("billing", 1, {"a": [0, 1, 2, 3]}), commit("billing", 1, 100)],
    [
        metadata("audit", 1, {"x": [0, 1]}),
        commit("billing", 1, 150),
        metadata("billing", 2, {"a": [0, 2], "b": [1, 3]}),
    ],
    [
        metadata("audit", 2, {"x": [0], "y": [1]}),
        metadata("billing", 3, {"b": [0, 1, 2, 3]}),
        metadata("audit", 3, {}),
    ],
    [gone("audit"), metadata("billing", 4, {"b": [0, 2], "c": [1, 3]}), metadata("audit", 1, {"z": [0, 1]})],
]
