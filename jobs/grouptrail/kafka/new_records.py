"""Records of the offsets topic as they are written, for metrics that need not wait for a micro-batch."""

from __future__ import annotations

import time
from typing import Any

import kafka

from grouptrail.kafka.coordinator import OFFSETS_TOPIC
from grouptrail.kafka.offsets_topic import OffsetsTopic

MOST_RECORDS = 5_000

_ENDS_SECONDS = 2.0
_POLL_MS = 50
_POLLS_SECONDS = 0.5
_FETCH = {"fetch_max_wait_ms": 100, "fetch_max_bytes": 4 << 20, "max_partition_fetch_bytes": 256 << 10}


class NewRecords(OffsetsTopic):
    """The newest records of the topic, those of open and aborted transactions left out."""

    _reading: Any = None

    def poll(self) -> list[Any]:
        """Return kafka-python's records written since the last call: at most `MOST_RECORDS`, later ones are skipped.

        The first call, also after a failure, returns none: it finds the ends of the logs.
        """
        with self._explained():
            if self._reading is None:
                self._reading = self._at_the_ends()
            return self._read(self._reading)

    def close(self) -> None:
        """Close the connections; the next call opens new ones."""
        consumer, self._reading = self._reading, None
        if consumer is not None:
            consumer.close()
        super().close()

    def _at_the_ends(self) -> Any:
        partitions = [kafka.TopicPartition(OFFSETS_TOPIC, partition) for partition in self.partitions()]
        consumer = self._consumer(**_FETCH, auto_offset_reset="latest", isolation_level="read_committed")
        consumer.assign(partitions)
        self._seek_to_ends(consumer)
        return consumer

    @staticmethod
    def _seek_to_ends(consumer: Any) -> None:
        consumer.seek_to_end()
        deadline = time.monotonic() + _ENDS_SECONDS
        for partition in consumer.assignment():  # otherwise the ends would be those of a later poll
            consumer.position(partition, timeout_ms=max(0, round(1000 * (deadline - time.monotonic()))))

    def _read(self, consumer: Any) -> list[Any]:
        records: list[Any] = []
        deadline = time.monotonic() + _POLLS_SECONDS
        while time.monotonic() < deadline:
            found = consumer.poll(timeout_ms=_POLL_MS, max_records=MOST_RECORDS - len(records))
            for some in found.values():
                records += some
            if len(records) >= MOST_RECORDS:
                self._seek_to_ends(consumer)
            if not found or len(records) >= MOST_RECORDS:
                break
        return records
