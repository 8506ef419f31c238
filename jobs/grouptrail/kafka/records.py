"""Single records, read by offset: for the age of the oldest unread record of a partition."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any

import kafka
from kafka import errors as client_errors

from grouptrail.kafka.cluster import DESCRIBE_DENIED, Cluster, offsets_at
from grouptrail.kafka.log import FirstRecord, RecordRequest

# Records arrive in batches; only the first record of each partition is needed.
_FIRST_BATCH_BYTES = 64 << 10
_POLL_MS = 100
_LOG_APPEND_TIME = 1


class RecordReader(Cluster):
    """Reads single records; the principal needs READ on their topics."""

    _denied = "read a topic: grant the principal READ on the topics of lag.exact_groups, or on all of them"

    def __init__(self, settings: Mapping[str, str], deadline_seconds: float) -> None:
        super().__init__(settings, deadline_seconds)
        # The lag of all other groups waits for these records.
        self._limit_requests(deadline_seconds)
        self._readers: dict[bool, Any] = {}

    def first_records(self, wanted: Collection[RecordRequest]) -> dict[RecordRequest, FirstRecord | None]:
        """Return the first record at or after each offset, None where the log ends before one.

        Left out are records of partitions that do not exist or have no leader, and those that are not found within
        the deadline.
        """
        deadline = time.monotonic() + self._deadline_seconds
        first_records: dict[RecordRequest, FirstRecord | None] = {}
        for is_isolated in (False, True):
            # A consumer has one offset in a partition at a time.
            waiting = [one for one in wanted if one.is_isolated == is_isolated]
            while waiting and time.monotonic() < deadline:
                at = {kafka.TopicPartition(one.topic, one.partition): one for one in waiting}
                first_records |= self._read(at, deadline, is_isolated=is_isolated)
                waiting = [one for one in waiting if one not in at.values()]
        return first_records

    def close(self) -> None:
        """Close the connections."""
        for consumer in self._readers.values():
            consumer.close()
        self._readers = {}
        super().close()

    def _read(
        self, at: Mapping[Any, RecordRequest], deadline: float, *, is_isolated: bool
    ) -> dict[RecordRequest, FirstRecord | None]:
        first_records: dict[RecordRequest, FirstRecord | None] = {}
        ends = self._log_ends(at, is_isolated=is_isolated)
        for partition, end in ends.items():
            if at[partition].offset >= end:
                first_records[at[partition]] = None
        reading = {partition: end for partition, end in ends.items() if at[partition] not in first_records}
        if not reading:
            return first_records
        consumer = self._reader(is_isolated=is_isolated)
        with self._explained():
            consumer.assign(list(reading))
            consumer.resume(*reading)
            for partition in reading:
                consumer.seek(partition, at[partition].offset)
            return first_records | self._poll(consumer, at, reading, deadline)

    @staticmethod
    def _poll(
        consumer: Any, at: Mapping[Any, RecordRequest], ends: Mapping[Any, int], deadline: float
    ) -> dict[RecordRequest, FirstRecord | None]:
        """Return the first record of each partition, None where there is none before its end."""
        first_records: dict[RecordRequest, FirstRecord | None] = {}
        while len(first_records) < len(ends) and time.monotonic() < deadline:
            for partition, records in consumer.poll(timeout_ms=_POLL_MS).items():
                first = records[0]
                is_append_time = first.timestamp_type == _LOG_APPEND_TIME
                first_records[at[partition]] = FirstRecord(first.offset, first.timestamp * 1000, is_append_time)
                consumer.pause(partition)
            for partition, end in ends.items():
                if at[partition] not in first_records and consumer.position(partition) >= end:
                    first_records[at[partition]] = None
        return first_records

    def _log_ends(self, at: Mapping[Any, RecordRequest], *, is_isolated: bool) -> dict[Any, int]:
        """Return the log end offsets of those partitions that have a leader.

        Not with the consumer's `end_offsets`: it raises KeyError for a topic that is not in its metadata yet, and
        for one that does not exist it waits until its deadline.
        """
        topics: dict[str, list[int]] = defaultdict(list)
        for topic, partition in at:
            topics[topic].append(partition)
        led_by: dict[int, list[Any]] = defaultdict(list)
        for metadata in self.partition_metadata(topics):
            if metadata.leader is not None:
                led_by[metadata.leader].append(kafka.TopicPartition(metadata.topic, metadata.partition))
            elif metadata.error == DESCRIBE_DENIED:
                self._explain(client_errors.TopicAuthorizationFailedError())
        level = kafka.IsolationLevel.READ_COMMITTED if is_isolated else kafka.IsolationLevel.READ_UNCOMMITTED
        ends: dict[Any, int] = {}
        for leader, partitions in led_by.items():
            answer = self._ask(offsets_at(leader, dict.fromkeys(partitions, kafka.OffsetSpec.LATEST), level))
            ends |= {kafka.TopicPartition(*place): offset for place, (code, offset, _) in answer.items() if not code}
        return ends

    def _reader(self, *, is_isolated: bool) -> Any:
        if is_isolated not in self._readers:
            self._readers[is_isolated] = self._consumer(
                auto_offset_reset="none",
                isolation_level="read_committed" if is_isolated else "read_uncommitted",
                max_partition_fetch_bytes=_FIRST_BATCH_BYTES,
                fetch_max_wait_ms=_POLL_MS,
                # kafka-python never returns the rest of a partition that is paused with a part of its records read.
                max_poll_records=sys.maxsize,
            )
        return self._readers[is_isolated]
