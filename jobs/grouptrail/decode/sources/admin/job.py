"""The decode job where `source = "admin"`: polls the groups, and lands what has changed as the topic's records.

Rows come to the same tables in the same form, marked by `source` and `not_before`. Their offsets are this job's own:
they rise with every record and go on after a restart from what has landed, so that whatever a poll was broken off by,
the next one lands what is missing.
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
from grouptrail.decode.schema import RECORD_SCHEMA, TABLES
from grouptrail.decode.sources.admin.changes import Change, Known, changes, removal, taken
from grouptrail.decode.sources.admin.poller import Poll, Poller
from grouptrail.jobs import DECODE
from grouptrail.kafka.errors import KafkaUnreachableError
from grouptrail.kafka.group import Committed
from grouptrail.spark.streams import query_id, read_ticks, start_query
from grouptrail.storage import tables
from grouptrail.storage.schema import ADMIN, table_schema
from grouptrail.wire.records import decode_record, encode_key, encode_value

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from grouptrail.config import Config

PROGRESS = "ingest_progress"
PARTITION = 0
"""Polled rows come from no partition of the topic: they all have this one."""

_COMMITS = "offset_commits"
_GROUP_TABLES = ("group_metadata", "group_records")


def check(config: Config) -> None:
    """Whether groups are told, and the warehouse can be written; raises before Spark is started."""
    tables.check_warehouse(config)
    poller = Poller(config)
    try:
        found = poller.poll()
    finally:
        poller.close()
    if not found.listed:
        raise KafkaUnreachableError("; ".join(found.problems) or "the cluster has no brokers: start one")


def start(spark: SparkSession, config: Config, *, once: bool, report: Callable[[str], None]) -> StreamingQuery:
    """Starts the query. In: what the brokers tell of groups; out: the decoded tables and `ingest_progress`."""
    tables.ensure_tables(spark, config, DECODE.writes)
    refuse_other_source(tables.read(spark, config, PROGRESS), config.cluster, is_polled=True)
    polling = Polling(spark, config, Poller(config), app=lambda: query_id(spark, config, DECODE.name), report=report)
    return start_query(
        read_ticks(spark),
        config,
        DECODE.name,
        land=polling.land,
        once=once,
        every_seconds=config.admin.interval_seconds,
    )


class Polling:
    """Polls once a micro-batch, and lands what has changed; its rows do not matter."""

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
        self._landed: Landed | None = None
        self._told: tuple[str, ...] = ()

    def land(self, _tick: DataFrame, batch: int) -> None:
        """One poll. What it cannot be told of a broker or a group is told on screen, and asked again at the next."""
        started = time.monotonic()
        if self._landed is None:
            self._landed = Landed.read(self._spark, self._config)
        landed, self._landed = self._landed, None  # read anew where this fails halfway
        poll = self._poller.poll()
        found = list(self._changes(landed, poll))
        if found or landed.is_untold:
            progress = landed.append(self._spark, self._config, found, poll.at, app=self._app(), batch=batch)
            self._report(summary(batch, [progress], time.monotonic() - started))
        landed.asked(poll)
        self._landed = landed
        self._tell(poll)

    def _changes(self, landed: Landed, poll: Poll) -> Iterator[Change]:
        """Those of a group come one after the other: they are one operation."""
        for group_id, seen in sorted(poll.groups.items()):
            yield from changes(group_id, landed.groups.get(group_id, Known()), seen)
        for group_id in sorted(landed.groups.keys() - poll.groups.keys()):
            if self._poller.is_gone(group_id, poll):
                yield from removal(group_id, landed.groups[group_id])

    def _tell(self, poll: Poll) -> None:
        """What is wrong, where it differs from what was wrong before."""
        by_problem: dict[str, list[str]] = {}
        for group in poll.groups.values():
            if group.problem:
                by_problem.setdefault(group.problem, []).append(group.group_id)
            elif group.kind not in ("classic", "consumer"):
                by_problem.setdefault(f"members of {group.kind} groups are not polled", []).append(group.group_id)
        told = [*poll.problems]
        for problem, groups in sorted(by_problem.items()):
            more = f" and {len(groups) - 1:,} more" if len(groups) > 1 else ""
            told.append(f"{problem}: {sorted(groups)[0]!r}{more}")
        for line in told:
            if line not in self._told:
                self._report(f"poll: {line}")
        self._told = tuple(told)


class Landed:
    """What the tables have of polled groups: what stands, up to which offset, and since when each group is known."""

    def __init__(
        self, groups: dict[str, Known], since: dict[str, float], told_to: int, orphans: dict[str, Any]
    ) -> None:
        self.groups = groups
        self._since = since
        self._told_to = told_to
        self._orphans = orphans

    @classmethod
    def read(cls, spark: SparkSession, config: Config) -> Landed:
        """From the newest row of each key; rows that no row of `ingest_progress` tells of wait to be told."""
        from pyspark.sql import functions as F

        groups: dict[str, Known] = {}
        since: dict[str, float] = {}
        told_to = tables.read(spark, config, PROGRESS).agg(F.max("end_offset").alias("end")).collect()[0].end or 0
        orphans: dict[str, Any] = {}
        for table in TABLES:
            rows = tables.read(spark, config, table)
            untold = rows.where(F.col("record_offset") >= told_to)
            ends = F.count("*").alias("rows"), F.max("record_offset").alias("end")
            times = F.min("record_at").alias("earliest"), F.max("record_at").alias("latest")
            orphans[table] = untold.agg(*ends, *times).collect()[0]
        for row in _newest(tables.read(spark, config, _COMMITS), ("group_id", "topic", "partition")):
            since[row["group_id"]] = max(since.get(row["group_id"], 0.0), row["record_at"].timestamp())
            if not row["is_tombstone"]:
                place = row["topic"], row["partition"]
                epoch = -1 if row["leader_epoch"] is None else row["leader_epoch"]
                told = Committed(row["committed_offset"], epoch, row["metadata"])
                groups.setdefault(row["group_id"], Known()).commits[place] = told
        for table, key in zip(_GROUP_TABLES, (("group_id",), ("record_type", "key_json")), strict=True):
            for row in _newest(tables.read(spark, config, table), key):
                since[row["group_id"]] = max(since.get(row["group_id"], 0.0), row["record_at"].timestamp())
                if not row["is_tombstone"]:
                    record = decode_record(*encode_row(table, row))
                    assert record.key is not None
                    part = (record.key.type, record.key.data.get("memberId", ""))
                    assert record.value is not None
                    groups.setdefault(row["group_id"], Known()).parts[part] = record.value.data
        return cls(groups, since, told_to, orphans)

    @property
    def is_untold(self) -> bool:
        """Whether rows have landed that no row of `ingest_progress` tells of."""
        return any(found.rows for found in self._orphans.values())

    def asked(self, poll: Poll) -> None:
        """From now on what changes of these groups has changed since then."""
        for group_id, seen in poll.groups.items():
            if seen.commits is not None and (seen.described is not None or seen.kind not in ("classic", "consumer")):
                self._since[group_id] = poll.at
                self.groups.setdefault(group_id, Known())

    def append(
        self, spark: SparkSession, config: Config, found: Sequence[Change], at: float, *, app: str, batch: int
    ) -> dict[str, Any]:
        """Lands changes, then the row of `ingest_progress` that tells of them, which it gives back."""
        first = max([self._told_to, *(one.end + 1 for one in self._orphans.values() if one.end is not None)])
        polled_at = datetime.fromtimestamp(int(at * 1000) / 1000, UTC)
        landed = dict.fromkeys(TABLES, 0)
        by_table: dict[str, list[pa.RecordBatch]] = {}
        for table, rows in decode_batches([_records(found, first, polled_at)] if found else []):
            by_table.setdefault(table, []).append(rows)
        for table, batches in by_table.items():
            rows = pa.Table.from_batches(batches)
            landed[table] = len(rows)
            self._append_rows(spark, config, table, rows, found=found, first=first, app=app)
        progress = self._progress(landed, first + len(found), polled_at if found else None, app, batch)
        tables.append_new(spark, [progress | {"cluster": config.cluster}], config, PROGRESS)
        for change in found:
            taken(self.groups.setdefault(change.group_id, Known()), [change])
        self._told_to, self._orphans = progress["end_offset"], {}
        return progress

    def _append_rows(
        self,
        spark: SparkSession,
        config: Config,
        table: str,
        rows: pa.Table,
        *,
        found: Sequence[Change],
        first: int,
        app: str,
    ) -> None:
        offsets = rows["record_offset"].to_pylist()
        since = [self._since.get(found[offset - first].group_id) for offset in offsets]
        micros = [None if time is None else int(time * 1000) * 1000 for time in since]
        times = pa.array(micros, pa.int64()).cast(table_schema(table).field("not_before").type)
        whole = rows.append_column("not_before", times)
        tables.append(spark, whole, config, table, source=ADMIN, app=app, version=first)

    def _progress(
        self, landed: Mapping[str, int], end: int, at: datetime | None, app: str, batch: int
    ) -> dict[str, Any]:
        orphans = {table: one for table, one in self._orphans.items() if one.rows}
        counts = {table: count + (orphans[table].rows if table in orphans else 0) for table, count in landed.items()}
        times = [one.earliest for one in orphans.values()] + [one.latest for one in orphans.values()]
        times = [time.astimezone(UTC) for time in times] + ([at] if at else [])
        return {
            "record_partition": PARTITION,
            "batch_id": batch,
            "query_id": app,
            "start_offset": self._told_to,
            "end_offset": end,
            **counts,
            "holes": end - self._told_to - sum(counts.values()),
            "lost": 0,
            "earliest_record_at": min(times, default=None),
            "latest_record_at": max(times, default=None),
            "log_start_offset": None,
            "last_stable_offset": end,
            "log_end_offset": end,
            "landed_at": datetime.now(UTC),
            "source": ADMIN,
        }


def _records(found: Sequence[Change], first: int, at: datetime) -> pa.RecordBatch:
    keys = [encode_key(change.key) for change in found]
    values = [encode_value(change.key, change.value) for change in found]
    places = {"record_partition": [PARTITION] * len(found), "record_offset": range(first, first + len(found))}
    return pa.RecordBatch.from_pydict(
        {**places, "record_at": [at] * len(found), "key": keys, "value": values}, schema=RECORD_SCHEMA
    )


def _newest(rows: DataFrame, key: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Of the rows of each key the last."""
    from pyspark.sql import functions as F

    whole = F.struct(*rows.columns)
    newest = rows.groupBy(*key).agg(F.max_by(whole, "record_offset").alias("row")).select("row.*")
    found: list[dict[str, Any]] = newest.toArrow().to_pylist()
    yield from found
