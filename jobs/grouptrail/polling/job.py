"""The polling job, which runs instead of decode with `source = "admin"`: polls groups, writes changes as records.

Rows are written to the same tables in the same form, marked by `source` and `not_before`. Their offsets are this
job's own: they rise with every record and continue after a restart from those in the tables. After an interrupted
poll the next one writes what is missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from grouptrail.decode.batch import decode_batches
from grouptrail.decode.progress import refuse_other_source, summary
from grouptrail.decode.rows import encode_row
from grouptrail.decode.schema import TABLES
from grouptrail.jobs import POLL, Progress, Start
from grouptrail.kafka.errors import KafkaUnreachableError
from grouptrail.kafka.group import Committed
from grouptrail.kafka.record_schema import RECORD_SCHEMA
from grouptrail.polling.changes import PolledChange, StoredGroup, apply_changes, changes, removal
from grouptrail.polling.poller import Poll, Poller
from grouptrail.spark.streams import query_id, read_ticks, start_query
from grouptrail.storage import tables
from grouptrail.storage.progress import PROGRESS, counted_records, decoded_to, read_ends
from grouptrail.storage.schema import ADMIN, table_schema
from grouptrail.wire.records import decode_record, encode_key, encode_value

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from grouptrail.config import Config

PARTITION = 0
"""The `record_partition` of all polled rows, which come from no partition of the topic."""

_COMMITS = "offset_commits"
_GROUP_TABLES = ("group_metadata", "group_records")


def check(config: Config) -> None:
    """Check that groups can be listed and the warehouse written, before Spark is started."""
    tables.check_warehouse(config)
    poller = Poller(config)
    try:
        found = poller.poll()
    finally:
        poller.close()
    if not found.listed:
        raise KafkaUnreachableError("; ".join(found.problems) or "the cluster has no brokers: start one")


def start(spark: SparkSession, config: Config, *, once: bool, report: Callable[[str], None]) -> StreamingQuery:
    """Start the query. In: the brokers' descriptions of groups; out: the decoded tables and `ingest_progress`."""
    tables.ensure_tables(spark, config, POLL.writes)
    refuse_other_source(spark, config, is_polled=True)
    polling = Polling(spark, config, Poller(config), app=lambda: query_id(spark, config, POLL.name), report=report)
    return start_query(
        read_ticks(spark),
        config,
        POLL.name,
        land=polling.land,
        once=once,
        every_seconds=config.admin.interval_seconds,
    )


def start_after_loss(_spark: SparkSession, _config: Config, _report: Progress) -> Start:
    """Return no position to start from: the first poll continues from the tables."""
    return {}


class Polling:
    """Polls once for each micro-batch and writes changes; the micro-batch's rows are ignored."""

    def __init__(
        self,
        spark: SparkSession,
        config: Config,
        poller: Poller,
        *,
        app: Callable[[], str],
        report: Callable[[str], None],
    ) -> None:
        self._spark = spark
        self._config = config
        self._poller = poller
        self._app = app
        self._report = report
        self._state: PolledState | None = None
        self._reported: tuple[str, ...] = ()

    def land(self, _tick: DataFrame, batch: int) -> None:
        """Poll once and write changes. Problems with a broker or a group are reported; the next poll asks again."""
        started = time.monotonic()
        if self._state is None:
            self._state = PolledState.read(self._spark, self._config)
        state, self._state = self._state, None  # read again from the tables if this fails halfway
        poll = self._poller.poll()
        found = list(self._changes(state, poll))
        if found or state.has_unrecorded_rows:
            progress = state.append(self._spark, self._config, found, poll.at, app=self._app(), batch=batch)
            self._report(summary(batch, [progress], time.monotonic() - started))
        state.set_polled(poll)
        self._state = state
        self._report_problems(poll)

    def _changes(self, state: PolledState, poll: Poll) -> Iterator[PolledChange]:
        """Yield all changes, those of a group together: they are one operation."""
        for group_id, polled in sorted(poll.groups.items()):
            yield from changes(group_id, state.groups.get(group_id, StoredGroup()), polled)
        for group_id in sorted(state.groups.keys() - poll.groups.keys()):
            if self._poller.is_gone(group_id, poll):
                yield from removal(group_id, state.groups[group_id])

    def _report_problems(self, poll: Poll) -> None:
        """Report problems that the poll before did not have."""
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
            if line not in self._reported:
                self._report(f"poll: {line}")
        self._reported = tuple(lines)


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
    def read(cls, spark: SparkSession, config: Config) -> PolledState:
        """Read the state from the newest row of each key."""
        groups: dict[str, StoredGroup] = {}
        since: dict[str, float] = {}
        recorded_to = decoded_to(read_ends(spark, config)).get(PARTITION, 0)
        orphans = counted_records(spark, config, TABLES, f"record_offset >= {recorded_to}").first()
        for row in tables.read_newest(spark, config, _COMMITS):
            since[row["group_id"]] = max(since.get(row["group_id"], 0.0), row["record_at"].timestamp())
            if not row["is_tombstone"]:
                position = row["topic"], row["partition"]
                epoch = -1 if row["leader_epoch"] is None else row["leader_epoch"]
                committed = Committed(row["committed_offset"], epoch, row["metadata"])
                groups.setdefault(row["group_id"], StoredGroup()).commits[position] = committed
        for table in _GROUP_TABLES:
            for row in tables.read_newest(spark, config, table):
                since[row["group_id"]] = max(since.get(row["group_id"], 0.0), row["record_at"].timestamp())
                if not row["is_tombstone"]:
                    record = decode_record(*encode_row(table, row))
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
        self, spark: SparkSession, config: Config, found: Sequence[PolledChange], at: float, *, app: str, batch: int
    ) -> dict[str, Any]:
        """Write changes, then their row of `ingest_progress`; return that row."""
        first = self._orphans.get("end_offset", self._recorded_to)
        polled_at = datetime.fromtimestamp(int(at * 1000) / 1000, UTC)
        landed = dict.fromkeys(TABLES, 0)
        by_table: dict[str, list[pa.RecordBatch]] = {}
        for table, rows in decode_batches([_records(found, first, polled_at)] if found else []):
            by_table.setdefault(table, []).append(rows)
        for table, batches in by_table.items():
            rows = pa.Table.from_batches(batches)
            landed[table] = len(rows)
            self._append_rows(spark, config, table, rows, found=found, first=first, polled_at=polled_at, app=app)
        progress = self._progress(landed, first + len(found), polled_at if found else None, app, batch)
        tables.append_new(spark, [progress | {"cluster": config.cluster}], config, PROGRESS)
        for change in found:
            apply_changes(self.groups.setdefault(change.group_id, StoredGroup()), [change])
        self._recorded_to, self._orphans = progress["end_offset"], {}
        return progress

    def _append_rows(
        self,
        spark: SparkSession,
        config: Config,
        table: str,
        rows: pa.Table,
        *,
        found: Sequence[PolledChange],
        first: int,
        polled_at: datetime,
        app: str,
    ) -> None:
        offsets = rows["record_offset"].to_pylist()
        since = [self._since.get(found[offset - first].group_id) for offset in offsets]
        micros = [None if time is None else int(time * 1000) * 1000 for time in since]
        times = pa.array(micros, pa.int64()).cast(table_schema(table).field("not_before").type)
        whole = rows.append_column("not_before", times)
        tables.append(
            spark, whole, config, table, same={"source": ADMIN, "read_at": polled_at}, app=app, version=first
        )

    def _progress(
        self, landed: Mapping[str, int], end: int, at: datetime | None, app: str, batch: int
    ) -> dict[str, Any]:
        counts = {table: count + self._orphans.get(table, 0) for table, count in landed.items()}
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


def _records(found: Sequence[PolledChange], first: int, at: datetime) -> pa.RecordBatch:
    keys = [encode_key(change.key) for change in found]
    values = [encode_value(change.key, change.value) for change in found]
    coordinates = {"record_partition": [PARTITION] * len(found), "record_offset": range(first, first + len(found))}
    unknown = {"is_transactional": [None] * len(found)}
    return pa.RecordBatch.from_pydict(
        {**coordinates, "record_at": [at] * len(found), "key": keys, "value": values, **unknown}, schema=RECORD_SCHEMA
    )
