"""Single records, read by offset: for the age of the oldest unread record of a partition."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

import kafka
from kafka import errors as client_errors

from grouptrail.kafka.cluster import Cluster
from grouptrail.kafka.log import FirstRecord, RecordRequest

# Records arrive in batches; only the first record of each partition is needed.
_FIRST_BATCH_BYTES = 64 << 10
_POLL_MS = 100


class RecordReader(Cluster):
    """Reads single records; the principal needs READ on their topics."""

    _denied = "read a topic: grant the principal READ on the topics of lag.exact_groups, or on all of them"

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        self._consumers: dict[bool, Any] = {}

    def first_records(
        self, wanted: Collection[RecordRequest], *, seconds: float
    ) -> dict[RecordRequest, FirstRecord | None]:
        """Return the first record at or after each offset, None where the log ends before one.

        Records that are not found within `seconds` are left out.
        """
        deadline = time.monotonic() + seconds
        found: dict[RecordRequest, FirstRecord | None] = {}
        for is_isolated in (False, True):
            # A consumer has one offset in a partition at a time.
            waiting = [one for one in wanted if one.is_isolated == is_isolated]
            while waiting and time.monotonic() < deadline:
                at = {kafka.TopicPartition(one.topic, one.partition): one for one in waiting}
                found |= self._read(at, deadline, is_isolated=is_isolated)
                waiting = [one for one in waiting if one not in at.values()]
        return found

    def close(self) -> None:
        """Close the connections."""
        for consumer in self._consumers.values():
            consumer.close(autocommit=False)
        self._consumers = {}
        super().close()

    def _read(
        self, at: Mapping[Any, RecordRequest], deadline: float, *, is_isolated: bool
    ) -> dict[RecordRequest, FirstRecord | None]:
        found: dict[RecordRequest, FirstRecord | None] = {}
        try:
            consumer = self._consumer(is_isolated=is_isolated)
            consumer.assign(list(at))
            consumer.resume(*at)
            for partition, wanted in at.items():
                consumer.seek(partition, wanted.offset)
            ends = consumer.end_offsets(list(at))
            while len(found) < len(at) and time.monotonic() < deadline:
                for partition, records in consumer.poll(timeout_ms=_POLL_MS).items():
                    found[at[partition]] = FirstRecord(records[0].offset, records[0].timestamp * 1000)
                    consumer.pause(partition)
                for partition, wanted in at.items():
                    if wanted not in found and consumer.position(partition) >= ends[partition]:
                        found[wanted] = None
        except client_errors.KafkaError as error:
            self.close()
            self._explain(error)
        return found

    def _consumer(self, *, is_isolated: bool) -> Any:
        level = "read_committed" if is_isolated else "read_uncommitted"
        if is_isolated not in self._consumers:
            self._consumers[is_isolated] = self._connected(
                lambda arguments: kafka.KafkaConsumer(
                    **arguments,
                    group_id=None,
                    enable_auto_commit=False,
                    allow_auto_create_topics=False,
                    auto_offset_reset="none",
                    isolation_level=level,
                    max_partition_fetch_bytes=_FIRST_BATCH_BYTES,
                    fetch_max_wait_ms=_POLL_MS,
                )
            )
        return self._consumers[is_isolated]
