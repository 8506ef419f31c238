"""The job `share-state`: lands each record of `__share_group_state` once, and the deliveries that it tells of.

Where the topic may not be read, coordinators are asked for start offsets and lag instead (`polling`).

Where to read on is known from `share_group_state` alone: rows are appended in one commit, and those of a partition in
order. The changes of a batch are appended before it: those of a batch that was not completed are known by their
offsets, and are not written again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from grouptrail.console.progress import Log
from grouptrail.jobs import SHARE_STATE, JobContext
from grouptrail.kafka.coordinator import SHARE_STATE_TOPIC
from grouptrail.kafka.errors import ClusterError, KafkaDeniedError, KafkaLoginError, TopicMissingError
from grouptrail.kafka.log import LogBounds, Ranges
from grouptrail.kafka.record_ranges import RecordRanges
from grouptrail.memory import release_memory
from grouptrail.share_state import deliveries
from grouptrail.share_state.deliveries import Deliveries
from grouptrail.share_state.poller import SharePoller
from grouptrail.share_state.polling import STATES, SharePolling
from grouptrail.share_state.rows import TABLE, decoded_rows
from grouptrail.storage.checkpoints import Start
from grouptrail.storage.schema import table_schema
from grouptrail.storage.thread_query import IntervalQuery

if TYPE_CHECKING:
    from grouptrail.config.job_settings import ShareStateSettings
    from grouptrail.decode.rows import Row
    from grouptrail.storage.following import Query
    from grouptrail.storage.table import Table
    from grouptrail.storage.warehouse import Warehouse

RECORDS_A_BATCH = 50_000
"""So many records are decoded at a time: their rows take some 100 MB."""

_ROWS = table_schema(TABLE, without=("cluster", "read_at"))
_CHANGES = table_schema(deliveries.TABLE, without=("cluster",))
_FOLDED = (
    *("record_partition", "record_offset", "record_at", "group_id", "topic_id", "partition", "record_type"),
    *("snapshot_epoch", "state_epoch", "start_offset", "state_batches", "reason", "is_tombstone"),
)

# Views of deliveries join them, also where the jobs that write them do not run.
_OF_VIEWS = ("topic_names", "group_configs")

_UNTIL_THEN = (
    "until then the coordinators of share groups are asked for start offsets and lag, and deliveries are not known; "
    "or, without share groups, set share_state.enabled = false"
)

# By then the other jobs have done their first batches, which should not have to share the processors.
_FIRST_AFTER_SECONDS = 5.0


def check(context: JobContext[ShareStateSettings]) -> None:
    """Raise unless the warehouse can be written; the topic need not exist."""
    context.warehouse.check()


def start(context: JobContext[ShareStateSettings]) -> Query:
    """Start the query.

    In: `__share_group_state`, or what coordinators return, and `group_states`; out: `share_group_state`,
    `share_deliveries`, `share_group_offsets`.
    """
    warehouse, settings = context.warehouse, context.settings
    warehouse.ensure((*SHARE_STATE.writes, *_OF_VIEWS, STATES))
    checkpoint = warehouse.checkpoint(SHARE_STATE.name)
    checkpoint.open(())  # it may be older than the table, which says where to read on
    polling = SharePolling(warehouse, SharePoller(settings.admin, context.kafka), context.log)
    topic = RecordRanges(context.kafka, SHARE_STATE_TOPIC)
    landing = Landing(warehouse, topic, polling, max_record_bytes=settings.max_record_bytes, log=context.log)
    return IntervalQuery(
        checkpoint,
        process=landing.process if settings.reads_topic else polling.process,
        once=context.once,
        every_seconds=settings.share_state.interval_seconds,
        first_after_seconds=0 if context.once else _FIRST_AFTER_SECONDS,
    )


def start_after_loss(_context: JobContext[ShareStateSettings]) -> Start:
    """Return no position to start from: the table says where to read on."""
    return {}


class Landing:
    """Reads the new records of the topic and appends them.

    Brokers that do not answer, or a right that is missing, end nothing: the log has one line, and the next batch asks
    again. Without the right `polling` takes over, until the topic has been read to its end again. Without the topic
    there is nothing to do, as no share group has read yet.
    """

    def __init__(
        self, warehouse: Warehouse, topic: RecordRanges, polling: SharePolling, *, max_record_bytes: int, log: Log
    ) -> None:
        self._table, self._deliveries = warehouse.tables((TABLE, deliveries.TABLE))
        self._topic = topic
        self._polling = polling
        self._max_record_bytes = max_record_bytes
        self._log = log
        self._landed: _Landed | None = None
        self._problem: str | None = None

    def process(self, batch: int) -> bool:
        """Land what is new, up to `RECORDS_A_BATCH`, and return whether there is more."""
        started = time.monotonic()
        is_denied = False
        try:
            has_more, problem = self._land(batch, started)
            if not (has_more or problem):
                self._polling.supersede()
        except TopicMissingError:
            has_more, problem = False, None
        except KafkaLoginError as error:
            has_more, problem = False, str(error)
        except KafkaDeniedError as error:
            has_more, problem, is_denied = False, f"{error}; {_UNTIL_THEN}", True
        except ClusterError as error:
            has_more, problem = False, str(error)
        if problem not in (None, self._problem):
            self._log(f"share-state: {problem}")
        self._problem = problem
        if is_denied:
            self._polling.process(batch)
        release_memory(after_seconds=time.monotonic() - started)
        return has_more

    def _land(self, batch: int, started: float) -> tuple[bool, str | None]:
        """Return whether there is more, and what is wrong with the topic, if anything."""
        bounds = self._topic.bounds()
        landed = self._restored(bounds) if self._landed is None else self._landed
        ranges, has_more = ranges_to_read(bounds, landed.next_offsets, most=RECORDS_A_BATCH)
        problem = recreated(bounds, landed.next_offsets)
        if not ranges:
            self._landed = landed
            return False, problem
        rows = decoded_rows(self._topic.read(ranges), self._max_record_bytes)
        self._landed = None  # restored from the tables if an append fails
        if rows:
            self._append_changes([change for row in rows for change in landed.states.add(row)], landed.written_to)
            self._table.append(pa.Table.from_pylist(rows, _ROWS), shared={"read_at": datetime.now(UTC)})
            self._log(f"share-state batch {batch}: {len(rows):,} records in {time.monotonic() - started:.1f} s")
        ends = {partition: end for partition, (_, end) in ranges.items()}
        self._landed = _Landed(landed.next_offsets | ends, landed.written_to, landed.states)
        return has_more, problem

    def _restored(self, bounds: Mapping[int, LogBounds]) -> _Landed:
        """Return what the tables have; fill `share_deliveries` from the records that landed before there was one.

        The state of every partition is in the records that the coordinator has not deleted.
        """
        states, is_new = Deliveries(), not self._deliveries.has_rows()
        log_starts = {partition: log.log_start_offset for partition, log in bounds.items()}
        order = _ordered(None if is_new else log_starts)
        for some in self._table.select_arrow(_FOLDED, order, rows_at_a_time=RECORDS_A_BATCH):
            changes = [change for row in some.to_pylist() for change in states.add(row)]
            if is_new:
                self._append_changes(changes, {})
        return _Landed(next_offsets(self._table), next_offsets(self._deliveries), states)

    def _append_changes(self, changes: list[Row], written_to: Mapping[int, int]) -> None:
        new = [row for row in changes if row["record_offset"] >= written_to.get(row["record_partition"], 0)]
        if new:
            self._deliveries.append(pa.Table.from_pylist(new, _CHANGES))


@dataclass(frozen=True)
class _Landed:
    """The next offset of each partition to land, up to where its changes were written before, and the state after."""

    next_offsets: dict[int, int]
    written_to: Mapping[int, int]
    states: Deliveries


def _ordered(log_starts: Mapping[int, int] | None) -> str:
    order = "ORDER BY record_partition, record_offset"
    if log_starts is None:
        return order
    parts = [f"record_partition = {at} AND record_offset >= {start}" for at, start in sorted(log_starts.items())]
    return f"AND ({' OR '.join(parts) or 'false'}) {order}"


def next_offsets(table: Table) -> dict[int, int]:
    """Return the offset after the newest record that the table has of each partition of the topic."""
    rows = table.select("record_partition, max(record_offset) + 1 AS next_offset", "GROUP BY record_partition")
    return {row["record_partition"]: row["next_offset"] for row in rows}


def ranges_to_read(
    bounds: Mapping[int, LogBounds], positions: Mapping[int, int], *, most: int
) -> tuple[Ranges, bool]:
    """Return the next offsets to read, `most` in all, and whether there are more.

    Share coordinators delete records before the last snapshots: what is gone is passed over.
    """
    ranges: dict[int, tuple[int, int]] = {}
    has_more = False
    for partition, log in bounds.items():
        start = max(positions.get(partition, log.log_start_offset), log.log_start_offset)
        end = min(log.last_stable_offset, start + most)
        has_more |= end < log.last_stable_offset
        if start < end:
            ranges[partition] = start, end
            most -= end - start
    return ranges, has_more


def recreated(bounds: Mapping[int, LogBounds], positions: Mapping[int, int]) -> str | None:
    """Return that the log of a partition ends before what was read of it; None if none does."""
    short = [at for at, log in sorted(bounds.items()) if log.log_end_offset < positions.get(at, 0)]
    if not short:
        return None
    names = ", ".join(f"{SHARE_STATE_TOPIC}-{partition}" for partition in short)
    return (
        f"{names}: the log ends before what was read of it; was the topic deleted and created again? New records "
        "would be taken for old ones: delete the rows of this cluster from share_group_state"
    )
