"""The vectors written and read back by Kafka's own classes.

Those of the group coordinator are from 4.3.0, those of the share coordinator from 4.4.0, and those of Kafka Streams'
user data from 4.4.0, whose classes write the same bytes in 4.3.0, 4.1.1 and 3.9.1. The classes of 4.2.0 and
4.3.0 write and read the latter alike, and so do those of 4.1.1 where no delivery-complete count is set.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grouptrail.wire.codec import UNKNOWN_TAGS
from grouptrail.wire.layout import Coordinator

READ_IN_PART: dict[str, dict[str, Any]] = {
    "blob/consumer-subscription-v1-without-owned-partitions": {
        "version": 1,
        "data": {"topics": ["orders"], "userData": None},
    }
}
"""What is read of a blob that Kafka's classes refuse, by vector."""


@dataclass(frozen=True)
class Vector:
    """A vector; `blob` names the layout if the value is an embedded blob and there is no key."""

    name: str
    coordinator: Coordinator
    key: bytes | None
    value: bytes | None
    expected: dict[str, Any]

    @property
    def blob(self) -> str | None:
        """Return the name of the blob's layout; None for a record."""
        return self.expected.get("blob")


def _vector(line: str, coordinator: Coordinator) -> Vector:
    data = json.loads(line)
    key, value = (None if data[part] is None else bytes.fromhex(data[part]) for part in ("key_hex", "value_hex"))
    return Vector(data["name"], coordinator, key, value, data["expected"])


def as_kafka_prints(answer: Any) -> Any:
    """Return an answer without unknown tagged fields, which Kafka's classes skip."""
    if isinstance(answer, dict):
        return {name: as_kafka_prints(value) for name, value in answer.items() if name != UNKNOWN_TAGS}
    return [as_kafka_prints(item) for item in answer] if isinstance(answer, list) else answer


def vector_lines(coordinator: Coordinator) -> list[str]:
    """Return the lines of JSON of a coordinator's vectors."""
    file = {"group": "vectors.jsonl", "share": "share-vectors.jsonl"}[coordinator]
    return (Path(__file__).parents[1] / "data" / file).read_text("utf-8").splitlines()


VECTORS = [_vector(line, "group") for line in vector_lines("group")]
RECORDS = [vector for vector in VECTORS if vector.blob is None]
SHARE_RECORDS = [_vector(line, "share") for line in vector_lines("share")]
BLOBS = [vector for vector in VECTORS if vector.blob is not None]
BY_NAME = {vector.name: vector for vector in [*VECTORS, *SHARE_RECORDS]}
