"""Ranges of offsets of a coordinators' topic, read as Arrow batches.

kafka-python's consumer makes an object of each record, and waits between the reads of ranges that are small.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
from kafka import errors as client_errors

from grouptrail.kafka import client_internals
from grouptrail.kafka.coordinator_topic import CoordinatorTopic
from grouptrail.kafka.errors import ClusterError, KafkaDeniedError
from grouptrail.kafka.log import LogBounds, Ranges
from grouptrail.kafka.record_columns import Fetched, fetched, within

_PAUSE_SECONDS = 0.5
_REMOVED_AFTER_SECONDS = 10.0
_GIVEN_UP_AFTER_SECONDS = 60.0


class FetchLimits(NamedTuple):
    """How much of a partition and in all a broker is to return at a time, and how long it waits for a record."""

    partition_bytes: int
    max_bytes: int
    wait_ms: int


@dataclass
class Progress:
    """How far the ranges have been read: the next offset and the end of each partition that is not done.

    `moved_at` is when something was last read, `fault` what went wrong in the newest round of requests and may pass.
    """

    position: dict[int, int]
    end: dict[int, int]
    moved_at: float = field(default_factory=time.monotonic)
    fault: client_errors.KafkaError | ClusterError | None = None

    def move(self, partition: int, offset: int) -> None:
        """Continue at an offset; the broker returns other partitions first next time."""
        if offset > self.position[partition]:
            self.moved_at = time.monotonic()
        self.position[partition] = offset
        end = self.end.pop(partition, offset)
        if offset < end:
            self.end[partition] = end

    @property
    def stalled_seconds(self) -> float:
        """The seconds since reading last moved on, or since it began."""
        return time.monotonic() - self.moved_at

    def raise_after_a_minute(self) -> None:
        """Raise the fault if it has lasted so long that waiting is no use."""
        if self.fault is not None and self.stalled_seconds > _GIVEN_UP_AFTER_SECONDS:
            raise self.fault


@contextmanager
def _noted(progress: Progress) -> Iterator[None]:
    """Note an error as the newest fault instead of raising it, unless a right is missing: that does not pass."""
    try:
        yield
    except KafkaDeniedError:
        raise
    except ClusterError as error:
        progress.fault = error


class RecordRanges(CoordinatorTopic):
    """Reads committed records of the topic. When it is pickled, its settings are: the copy connects by itself."""

    _limits = FetchLimits(partition_bytes=512 << 10, max_bytes=4 << 20, wait_ms=500)
    _leaders: Mapping[int, int] | None = None

    def read(self, ranges: Ranges) -> Iterator[pa.RecordBatch]:
        """Yield the records of some ranges, those of a partition in order; out: batches of `RECORD_SCHEMA`.

        Left out are records that retention, or the unclean election of a leader, has removed. Brokers may be away for
        a minute. Raises ClusterError.
        """
        filled = {at: span for at, span in ranges.items() if span[0] < span[1]}
        progress = Progress(
            {at: start for at, (start, _) in filled.items()}, {at: end for at, (_, end) in filled.items()}
        )
        with self._explained():
            sent = self._send(progress)
            while progress.end:
                ends, received = dict(progress.end), self._receive(sent, progress)
                for partition, one in received.items():
                    progress.move(partition, one.next_offset)
                if not received:
                    self._wait(progress)
                sent = self._send(progress)  # the brokers answer while these are decoded
                for partition, one in received.items():
                    if len(records := within(one.records, 0, ends[partition])):
                        yield records

    def _send(self, progress: Progress) -> dict[int, Any]:
        """Request the next records from each partition's leader; return the futures of their answers."""
        offsets: dict[int, dict[int, int]] = defaultdict(dict)
        progress.fault = None
        sent: dict[int, Any] = {}
        with _noted(progress):
            for partition in progress.end:
                if (leader := self._leader(partition)) is not None:
                    offsets[leader][partition] = progress.position[partition]
                else:
                    progress.fault = client_errors.LeaderNotAvailableError()
            if offsets:
                requests = {
                    leader: client_internals.fetch_request(self.topic, of_leader, **self._limits._asdict())
                    for leader, of_leader in offsets.items()
                }
                sent = self._ask(lambda admin: client_internals.send_to_nodes(admin, requests))
        if progress.fault is not None:
            self._leaders = None
        return sent

    def _leader(self, partition: int) -> int | None:
        if self._leaders is None:
            partitions = self.partition_metadata({self.topic: None})
            self._leaders = {one.partition: one.leader for one in partitions if one.leader is not None}
        return self._leaders.get(partition)

    def _receive(self, sent: Mapping[int, Any], progress: Progress) -> dict[int, Fetched]:
        """Wait for the answers; return what can be read. Faults that may pass are noted in `progress`."""
        received: dict[int, Fetched] = {}
        removed = False
        futures = sent.values()
        for answer in self._ask(lambda admin: client_internals.wait_for_responses(admin, futures)) if sent else ():
            if isinstance(answer, Exception):
                self._note(answer, progress)
                continue
            for one in (partition for topic in answer.responses for partition in topic.partitions):
                partition, error = one.partition_index, client_errors.for_code(one.error_code)
                if error is client_errors.OffsetOutOfRangeError:
                    removed = True
                elif one.error_code:
                    self._note(error(), progress)
                elif one.records:
                    position = progress.position[partition]
                    received[partition] = fetched(partition, position, one.records, one.aborted_transactions or ())
        if removed:
            # Retention has removed what was to be read: continue at the logs' starts.
            for partition, log in self._bounds_of(progress).items():
                progress.move(partition, max(progress.position[partition], log.log_start_offset))
        return received

    def _note(self, error: Exception, progress: Progress) -> None:
        if not isinstance(error, client_errors.KafkaError) or not error.retriable:
            raise error
        progress.fault, self._leaders = error, None

    def _wait(self, progress: Progress) -> None:
        """Wait before asking again, or end what cannot be read any more.

        A replica that lacks the newest records may become the leader; its log then ends before them. For a moment
        that also seems so after any election.
        """
        progress.raise_after_a_minute()
        if progress.fault is None and progress.stalled_seconds > _REMOVED_AFTER_SECONDS:
            for partition, log in self._bounds_of(progress).items():
                if log.last_stable_offset <= progress.position[partition]:
                    progress.move(partition, progress.end[partition])
        if progress.end and progress.stalled_seconds > _GIVEN_UP_AFTER_SECONDS:
            raise ClusterError(
                f"{self._servers} returns no records of {self.topic}, partitions "
                f"{', '.join(map(str, sorted(progress.end)))}, although it has them: see the brokers' log"
            )
        time.sleep(_PAUSE_SECONDS)

    def _bounds_of(self, progress: Progress) -> dict[int, LogBounds]:
        """Return the bounds of the partitions that are not done; none if a broker does not answer."""
        with _noted(progress):
            bounds = self.bounds()
            return {partition: bounds[partition] for partition in progress.end}
        return {}
