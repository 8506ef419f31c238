"""The polling job, which runs instead of decode with `source = "admin"`: polls groups, writes changes as records.

Rows are written to the same tables in the same form, marked by `source` and `not_before`. Their offsets are this
job's own: they rise with every record and continue after a restart from those in the tables. After an interrupted
poll the next one writes what is missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from grouptrail.console.progress import Log
from grouptrail.decode.batch import decode_batches
from grouptrail.decode.progress import refuse_other_source, summary
from grouptrail.decode.rows import encode_row
from grouptrail.decode.schema import TABLES
from grouptrail.jobs import POLL, JobContext
from grouptrail.kafka.errors import KafkaUnreachableError
from grouptrail.kafka.group import Committed
from grouptrail.kafka.record_schema import RECORD_SCHEMA
from grouptrail.polling.changes import PolledChange, StoredGroup, apply_changes, changes, removal
from grouptrail.polling.poller import Poll, Poller
from grouptrail.spark.streams import read_ticks, start_query
from grouptrail.storage.checkpoints import Start
from grouptrail.storage.engines.engine import Once
from grouptrail.storage.progress import PROGRESS, counted_records, decoded_to, read_ends
from grouptrail.storage.schema import ADMIN
from grouptrail.wire.records import decode_record, encode_key, encode_value

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from grouptrail.config.model import AdminConfig
    from grouptrail.storage.following import Query
    from grouptrail.storage.warehouse import Warehouse

PARTITION = 0
"""The `record_partition` of all polled rows, which come from no partition of the topic."""

_COMMITS = "offset_commits"
_GROUP_TABLES = ("group_metadata", "group_records")


def check(context: JobContext[AdminConfig]) -> None:
    """Check that groups can be listed and the warehouse written, before Spark is started."""
    context.warehouse.check()
    with closing(Poller(context.settings, context.kafka)) as poller:
        poll = poller.poll()
    if not poll.listed:
        if poll.denied is not None:
            raise poll.denied
        raise KafkaUnreachableError("; ".join(poll.problems) or "the cluster has no brokers: start one")


def start(context: JobContext[AdminConfig]) -> Query:
    """Start the query. In: the brokers' descriptions of groups; out: the decoded tables and `ingest_progress`."""
    warehouse, settings = context.warehouse, context.settings
    warehouse.ensure(POLL.writes)
    refuse_other_source(warehouse, is_polled=True)
    checkpoint = warehouse.checkpoint(POLL.name)
    polling = Polling(warehouse, Poller(settings, context.kafka), app=checkpoint.query_id, log=context.log)
    return start_query(
        read_ticks(warehouse.session),
        checkpoint.query_name,
        checkpoint.folder,
        process=polling.process,
        once=context.once,
        every_seconds=settings.interval_seconds,
    )


def start_after_loss(_context: JobContext[AdminConfig]) -> Start:
    """Return no position to start from: the first poll continues from the tables."""
    return {}


class Polling:
    """Polls once for each micro-batch and writes changes; the micro-batch's rows are ignored."""

    def __init__(self, warehouse: Warehouse, poller: Poller, *, app: Callable[[], str], log: Log) -> None:
        self._warehouse = warehouse
        self._poller = poller
        self._app = app
        self._log = log
        self._state: PolledState | None = None
        self._problems: tuple[str, ...] = ()

    def process(self, _tick: DataFrame, batch: int) -> None:
        """Poll once and write changes. Problems with a broker or a group are logged; the next poll asks again."""
        started = time.monotonic()
        if self._state is None:
            self._state = PolledState.read(self._warehouse)
        state, self._state = self._state, None  # read again from the tables if this fails halfway
        poll = self._poller.poll()
        new = list(self._changes(state, poll))
        if new or state.has_unrecorded_rows:
            progress = state.append(self._warehouse, new, poll.at, app=self._app(), batch=batch)
            self._log(summary(batch, [progress], time.monotonic() - started))
        state.set_polled(poll)
        self._state = state
        self._log_problems(poll)

    def _changes(self, state: PolledState, poll: Poll) -> Iterator[PolledChange]:
        """Yield all changes, those of a group together: they are one operation."""
        for group_id, polled in sorted(poll.groups.items()):
            yield from changes(group_id, state.groups.get(group_id, StoredGroup()), polled)
        for group_id in sorted(state.groups.keys() - poll.groups.keys()):
            if self._poller.is_gone(group_id, poll):
                yield from removal(group_id, state.groups[group_id])

    def _log_problems(self, poll: Poll) -> None:
        """Log the problems that the poll before did not have."""
        by_problem: dict[str, list[str]] = {}
        for group in poll.groups.values():
            if group.problem:
                by_problem.setdefault(group.problem, []).append(group.group_id)
            elif group.kind not in ("classic", "consumer"):
                by_problem.setdefault(f"members of {group.kind} groups are not polled", []).append(group.group_id)
        lines = [*poll.problems]
        for problem, groups in sorted(by_problem.items()):
            more = f" and {len(groups) - 1:,} more" if len(groups) > 1 else ""
            lines.append(f"{problem}: {sorted(groups)[0]!r}{more}")
        for line in lines:
            if line not in self._problems:
                self._log(f"poll: {line}")
        self._problems = tuple(lines)


class PolledState:
    """The polled groups as the tables have them, and when each was last polled.

    `recorded_to` is the end offset of `ingest_progress`, `orphans` counts the rows of each table beyond it
    (`counted_records`; empty if there are none).
    """

    def __init__(
        self, groups: dict[str, StoredGroup], since: dict[str, float], recorded_to: int, orphans: dict[str, Any]
    ) -> None:
        self.groups = groups
        self._since = since
        self._recorded_to = recorded_to
        self._orphans = orphans

    @classmethod
    def read(cls, warehouse: Warehouse) -> PolledState:
        """Read the state from the newest row of each key."""
        groups: dict[str, StoredGroup] = {}
        since: dict[str, float] = {}
        recorded_to = decoded_to(read_ends(warehouse)).get(PARTITION, 0)
        orphans = counted_records(warehouse, TABLES, f"record_offset >= {recorded_to}").first()
        for row in warehouse.table(_COMMITS).newest():
            since[row["group_id"]] = max(since.get(row["group_id"], 0.0), row["record_at"].timestamp())
            if not row["is_tombstone"]:
                position = row["topic"], row["partition"]
                epoch = -1 if row["leader_epoch"] is None else row["leader_epoch"]
                committed = Committed(row["committed_offset"], epoch, row["metadata"])
                groups.setdefault(row["group_id"], StoredGroup()).commits[position] = committed
        for table in warehouse.tables(_GROUP_TABLES):
            for row in table.newest():
                since[row["group_id"]] = max(since.get(row["group_id"], 0.0), row["record_at"].timestamp())
                if not row["is_tombstone"]:
                    record = decode_record(*encode_row(table.name, row))
                    assert record.key is not None
                    part = (record.key.type, record.key.data.get("memberId", ""))
                    assert record.value is not None
                    groups.setdefault(row["group_id"], StoredGroup()).parts[part] = record.value.data
        return cls(groups, since, recorded_to, orphans.asDict() if orphans else {})

    @property
    def has_unrecorded_rows(self) -> bool:
        """Whether the tables have rows that `ingest_progress` does not count yet."""
        return bool(self._orphans)

    def set_polled(self, poll: Poll) -> None:
        """Remember the poll's time: later changes of its groups happened after it."""
        for group_id, polled in poll.groups.items():
            has_members = polled.described is not None or polled.kind not in ("classic", "consumer")
            if polled.commits is not None and has_members:
                self._since[group_id] = poll.at
                self.groups.setdefault(group_id, StoredGroup())

    def append(
        self, warehouse: Warehouse, new: Sequence[PolledChange], at: float, *, app: str, batch: int
    ) -> dict[str, Any]:
        """Write changes, then their row of `ingest_progress`; return that row."""
        first = self._orphans.get("end_offset", self._recorded_to)
        polled_at = datetime.fromtimestamp(int(at * 1000) / 1000, UTC)
        counts = dict.fromkeys(TABLES, 0)
        by_table: dict[str, list[pa.RecordBatch]] = {}
        for name, decoded in decode_batches([_records(new, first, polled_at)] if new else []):
            by_table.setdefault(name, []).append(decoded)
        once, shared = Once(app, first), {"source": ADMIN, "read_at": polled_at}
        for table in warehouse.tables(by_table):
            rows = pa.Table.from_batches(by_table[table.name])
            counts[table.name] = len(rows)
            groups = [new[offset - first].group_id for offset in rows["record_offset"].to_pylist()]
            not_before = self._polled_before(groups).cast(table.schema.field("not_before").type)
            table.append(rows.append_column("not_before", not_before), once, shared=shared)
        progress = self._progress(counts, first + len(new), polled_at if new else None, app, batch)
        warehouse.table(PROGRESS).append_rows([progress])
        for change in new:
            apply_changes(self.groups.setdefault(change.group_id, StoredGroup()), [change])
        self._recorded_to, self._orphans = progress["end_offset"], {}
        return progress

    def _polled_before(self, groups: Sequence[str]) -> pa.Array:
        """Return when each group was polled last (microseconds); null if that is not known."""
        times = [self._since.get(group_id) for group_id in groups]
        return pa.array([None if time is None else int(time * 1000) * 1000 for time in times], pa.int64())

    def _progress(
        self, written: Mapping[str, int], end: int, at: datetime | None, app: str, batch: int
    ) -> dict[str, Any]:
        counts = {table: count + self._orphans.get(table, 0) for table, count in written.items()}
        known = (self._orphans.get(name) for name in ("earliest_record_at", "latest_record_at"))
        times = [time.astimezone(UTC) for time in (*known, at) if time is not None]
        return {
            "record_partition": PARTITION,
            "batch_id": batch,
            "query_id": app,
            "start_offset": self._recorded_to,
            "end_offset": end,
            **counts,
            "holes": end - self._recorded_to - sum(counts.values()),
            "lost": 0,
            "earliest_record_at": min(times, default=None),
            "latest_record_at": max(times, default=None),
            "log_start_offset": None,
            "last_stable_offset": end,
            "log_end_offset": end,
            "landed_at": datetime.now(UTC),
            "source": ADMIN,
        }


def _records(new: Sequence[PolledChange], first: int, at: datetime) -> pa.RecordBatch:
    keys = [encode_key(change.key) for change in new]
    values = [encode_value(change.key, change.value) for change in new]
    coordinates = {"record_partition": [PARTITION] * len(new), "record_offset": range(first, first + len(new))}
    unknown = dict.fromkeys(("is_transactional", "partition_leader_epoch"), [None] * len(new))
    return pa.RecordBatch.from_pydict(
        {**coordinates, "record_at": [at] * len(new), "key": keys, "value": values, **unknown}, schema=RECORD_SCHEMA
    )
