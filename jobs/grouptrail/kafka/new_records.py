"""Records of the offsets topic as they are written, for metrics that need not wait for a micro-batch."""

from __future__ import annotations

import sys
import time

import pyarrow as pa

from grouptrail.kafka.record_ranges import FetchLimits, Progress, RecordRanges
from grouptrail.kafka.record_schema import RECORD_SCHEMA

MOST_RECORDS = 5_000


class NewRecords(RecordRanges):
    """The newest records of the topic, those of open and aborted transactions left out."""

    _limits = FetchLimits(partition_bytes=256 << 10, max_bytes=4 << 20, wait_ms=50)
    _progress: Progress | None = None

    def poll(self) -> pa.Table:
        """Return the records written since the last call (`RECORD_SCHEMA`): at most `MOST_RECORDS`, later ones are
        skipped.

        The first call, also after a failure, returns none: it finds the ends of the logs. Brokers may be away for a
        minute.
        """
        progress, self._progress = self._progress, None
        records = RECORD_SCHEMA.empty_table()
        if progress is not None:
            with self._explained():
                received = self._receive(self._send(progress), progress)
                progress.raise_after_a_minute()
                if progress.fault is None:
                    progress.moved_at = time.monotonic()
            for partition, one in received.items():
                progress.move(partition, one.next_offset)
            records = pa.Table.from_batches([one.records for one in received.values()], RECORD_SCHEMA)
        if progress is None or len(records) >= MOST_RECORDS:
            ends = {partition: bounds.last_stable_offset for partition, bounds in self.bounds().items()}
            progress = Progress(ends, dict.fromkeys(ends, sys.maxsize))
        self._progress = progress
        return records.slice(0, MOST_RECORDS)
