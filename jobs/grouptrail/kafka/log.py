"""Plain types for partitions' logs: leaders, offset bounds, single records. This module imports no Kafka client."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

NO_TOPIC, TOPIC_DELETED, NO_PARTITION = GONE = ("no such topic", "topic deleted", "no such partition")
"""What brokers answer about partitions that are no longer there."""


@dataclass(frozen=True)
class LogBounds:
    """A partition's log: offsets `[log_start_offset, last_stable_offset)` can be read under read_committed."""

    log_start_offset: int
    last_stable_offset: int
    log_end_offset: int


@dataclass(frozen=True)
class PartitionMetadata:
    """The leader of a partition: broker `leader` at `server` (`host:port`), or in `error` why there is none.

    `leader_epoch` rises with each election; None if the broker does not say.
    """

    topic: str
    partition: int
    topic_id: str | None = None
    leader: int | None = None
    server: str | None = None
    error: str | None = None
    leader_epoch: int | None = None


Ranges = Mapping[int, tuple[int, int]]
"""Offsets [start, end) by partition."""


class RecordRequest(NamedTuple):
    """An offset to read from; `is_isolated`: only committed records count, as under read_committed."""

    topic: str
    partition: int
    offset: int
    is_isolated: bool = False


@dataclass(frozen=True)
class FirstRecord:
    """A record's offset and its timestamp (microseconds): its producer's, or with `is_append_time` the broker's."""

    offset: int
    written_at: int
    is_append_time: bool = False


LARGEST_TIMESTAMP = -3
"""Asks for the record with the largest timestamp, instead of a timestamp (KIP-734, Kafka 3.0)."""


class RecordTimestamp(NamedTuple):
    """A record's offset and its own timestamp (milliseconds)."""

    offset: int
    timestamp_ms: int


def topic_id_text(topic_id: Any) -> str:
    """Return a topic id as Kafka prints it."""
    return urlsafe_b64encode(UUID(str(topic_id)).bytes).decode().rstrip("=")
