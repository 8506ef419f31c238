"""`kafka_log_offsets`, a Spark data source: start, last stable and end offset of partitions' logs.

    register(spark)
    spark.read.format("kafka_log_offsets").option("kafka.bootstrap.servers", "kafka-1:9092").load()

Options: `kafka.…`, any setting of Kafka's Java client as in Spark's Kafka source, and the choice of partitions:
- `assign`: the listed ones, such as `{"orders": [0, 1]}`;
- `committed` and `cluster`: those that groups of that cluster have committed to, read from the table
  `offset_commits` at that path; a stream follows the table; `storage.…` are delta-rs's options for it, and `newest`
  is the path of `committed_offsets`, so that old commits need not be read; with `warehouse`, the folder of the
  tables, also those that members own by the history;
- none of these: all partitions that the principal may describe; with `all_topics` (`true`) beside `committed` both.

With `held_back`, the name of a topic, also the partitions of that topic whose last stable offset is below their end;
its other partitions have no row. No additional requests are needed for them.

The columns are those of `log_offsets` without the cluster. One task queries each leader. A partition without an
answer has a row with the reason in `error`. `spark.readStream` gives one sample a trigger, and a single one with
Trigger.AvailableNow.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from grouptrail import contracts
from grouptrail.errors import GrouptrailError
from grouptrail.kafka.cluster import Cluster
from grouptrail.kafka.errors import (
    ClusterError,
    KafkaDeniedError,
    KafkaLoginError,
    LoginServerError,
    why_unanswered,
)
from grouptrail.kafka.log import LogBounds, PartitionMetadata
from grouptrail.log_offsets.committed import CommittedPartitions, OwnedPartitions, SharedPartitions, merged
from grouptrail.spark.streams import stopping
from grouptrail.storage.location import TableLocation
from grouptrail.storage.schema import table_schema
from grouptrail.storage.table import Table
from grouptrail.storage.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

FORMAT = "kafka_log_offsets"
OFFSET = "asked_at_ms"
"""The only field of the stream's offsets."""
TABLE = "log_offsets"

_HELD_BACK = "held_back"
_MOST_LEADERS_AT_ONCE = 32
_LOOK_EVERY_SECONDS = 0.5
_ALL_TOPICS = "all_topics"
_OPTIONS = ("assign", "committed", "newest", "warehouse", "cluster", _HELD_BACK, _ALL_TOPICS)


class OptionError(GrouptrailError):
    """An option of the data source is wrong."""


def register(spark: SparkSession) -> None:
    """Register the format with a session."""
    spark.dataSource.register(LogOffsetsSource)


class LogOffsetsSource(DataSource):
    """The data source, as Spark creates it from the options."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._request = Request.of(options)

    @classmethod
    def name(cls) -> str:
        """Return the name to give to `format(…)`."""
        return FORMAT

    def schema(self) -> str:
        """Return the columns as Spark DDL."""
        return contracts.tables()[TABLE].ddl(without=("cluster",))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of one sample."""
        return LogOffsetsReader(self._request)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a reader of one sample a trigger."""
        return LogOffsetsStreamReader(self._request)


@dataclass(frozen=True)
class Request:
    """Kafka's settings and delta-rs's options, both of which may hold secrets, and the choice of partitions."""

    settings: dict[str, str] = field(repr=False)
    storage: dict[str, str] = field(repr=False)
    which: dict[str, str]

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Request:
        """Parse the options. Raises OptionError, whose text contains no value."""
        settings, storage = _under("kafka.", options), _under("storage.", options)
        which = {name: value for name, value in options.items() if not name.startswith(("kafka.", "storage."))}
        unknown = sorted(which.keys() - set(_OPTIONS))
        if unknown:
            raise OptionError(
                f"{FORMAT}: unknown option {unknown[0]}: valid options are kafka.…, storage.…, {', '.join(_OPTIONS)}"
            )
        if "bootstrap.servers" not in settings:
            raise OptionError(f"{FORMAT}: the option kafka.bootstrap.servers is missing: add it")
        if which.keys() - {_HELD_BACK, _ALL_TOPICS, "newest", "warehouse"} not in (
            set(),
            {"assign"},
            {"committed", "cluster"},
        ):
            raise OptionError(f"{FORMAT}: give assign, or committed and cluster, or none of them")
        assigned(which.get("assign", "{}"))
        return cls(settings, storage, which)

    def table(self, name: str, option: str) -> Table:
        """Return the table at the path in an option."""
        return Table(TableLocation(name, self.which[option], self.storage, self.which["cluster"]), None)


def _under(prefix: str, options: Mapping[str, str]) -> dict[str, str]:
    return {name.removeprefix(prefix): value for name, value in options.items() if name.startswith(prefix)}


def assigned(text: str) -> dict[str, list[int]]:
    """Return the partitions by topic in the option `assign`. Raises OptionError."""
    try:
        partitions_of = json.loads(text)
        return {
            str(topic): [int(partition) for partition in partitions] for topic, partitions in partitions_of.items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise OptionError(f'{FORMAT}: check assign: it must look like {{"orders": [0, 1]}}') from error


@dataclass(frozen=True)
class LeaderTask(InputPartition):
    """The partitions that one task queries from their leader; those without a leader share a task without a server.

    Of the topic `held_back` only partitions that an open transaction holds back, or that have an error, get a row.
    """

    leader: int | None
    server: str | None
    places: tuple[PartitionMetadata, ...]
    held_back: str | None = None


Selection = Mapping[str, Collection[int] | None]
"""Partitions by topic; None: all partitions of the topic."""


class Planner:
    """Assigns partitions to tasks; keeps its connection and the last metadata from one sample to the next."""

    def __init__(self, request: Request) -> None:
        self._cluster = Cluster(request.settings)
        self._assigned = assigned(request.which["assign"]) if "assign" in request.which else None
        self._committed = (
            CommittedPartitions(
                request.table("offset_commits", "committed"),
                request.table("committed_offsets", "newest") if "newest" in request.which else None,
            )
            if "committed" in request.which
            else None
        )
        self._more: list[OwnedPartitions | SharedPartitions] = []
        if "warehouse" in request.which:
            warehouse = Warehouse(request.which["warehouse"], request.which["cluster"], request.storage)
            self._more = [OwnedPartitions(warehouse), SharedPartitions(warehouse)]
        self._held_back = request.which.get(_HELD_BACK)
        self._samples_all = request.which.get(_ALL_TOPICS) == "true"
        self._known: list[PartitionMetadata] = []

    def plan(self) -> list[LeaderTask]:
        """Return the tasks, at least one: Spark replaces an empty list by a dummy task."""
        wanted = self._wanted()
        if self._samples_all and wanted is not None:
            return by_leader(self._all_places(wanted))
        if wanted is None or self._held_back is None or self._held_back in wanted:
            return by_leader(self._places(wanted))
        tasks = by_leader(self._places({**wanted, self._held_back: None}))
        return [replace(task, held_back=self._held_back) for task in tasks]

    def has_partitions(self) -> bool:
        """Return whether there are partitions to sample, as far as that is known without a broker."""
        return self._samples_all or self._committed is None or bool(self._wanted())

    def close(self) -> None:
        """Close the connection."""
        self._cluster.close()

    def _wanted(self) -> Selection | None:
        if self._committed is None:
            return self._assigned
        wanted = self._committed.partitions()
        for more in self._more:
            wanted = merged(wanted, more.partitions())
        return wanted

    def _all_places(self, wanted: Selection) -> list[PartitionMetadata]:
        """Return all partitions, and why the wanted ones among the others have no leader."""
        every = self._places(None)
        there = {(place.topic, place.partition) for place in every}
        missing = {
            topic: left
            for topic, partitions in wanted.items()
            if (left := [one for one in partitions or () if (topic, one) not in there])
        }
        return [*every, *self._places_of(missing)] if missing else every

    def _places(self, wanted: Selection | None) -> list[PartitionMetadata]:
        """Return the partitions with their leaders; if no broker answers, the last known ones with the reason."""
        if wanted is not None:
            return self._places_of(wanted)
        try:
            self._known = self._cluster.partition_metadata(None)
        except ClusterError as error:
            return [
                PartitionMetadata(known.topic, known.partition, known.topic_id, error=_unanswered(error))
                for known in self._known
            ]
        return self._known

    def _places_of(self, wanted: Selection) -> list[PartitionMetadata]:
        """Return the wanted partitions with their leaders, or with the reason why they are not known."""
        try:
            return self._cluster.partition_metadata(wanted)
        except ClusterError as error:
            return [
                PartitionMetadata(topic, partition, error=_unanswered(error))
                for topic in wanted
                for partition in wanted[topic] or ()
            ]


def _unanswered(error: ClusterError) -> str:
    if isinstance(error, (KafkaLoginError, LoginServerError)):
        return "no broker got a valid login"
    return "the brokers refuse this principal" if isinstance(error, KafkaDeniedError) else "no broker answered"


def by_leader(places: Iterable[PartitionMetadata]) -> list[LeaderTask]:
    """Return one task for each leader, and one for the partitions without a leader."""
    with_leader = sorted((place for place in places if place.leader is not None), key=_leader)
    tasks = [LeaderTask(*leader, tuple(led)) for leader, led in groupby(with_leader, _leader)]
    leaderless = tuple(place for place in places if place.leader is None)
    return [*tasks, LeaderTask(None, None, leaderless)] if leaderless or not tasks else tasks


def _leader(place: PartitionMetadata) -> tuple[Any, Any]:
    return place.leader, place.server


def sample(settings: Mapping[str, str], task: LeaderTask) -> pa.RecordBatch:
    """Return a task's rows: the offsets that the leader returned, or why there are none."""
    answers: Mapping[tuple[str, int], LogBounds | str] = {}
    failure = None
    asked_at = datetime.now(UTC)
    if task.leader is not None:
        try:
            with Cluster({**settings, "bootstrap.servers": str(task.server)}) as broker:
                answers = broker.log_bounds(task.leader, [(place.topic, place.partition) for place in task.places])
        except ClusterError as error:
            failure = f"broker {task.leader} {why_unanswered(error)}"
    times = {"asked_at": asked_at, "sampled_at": datetime.now(UTC)}
    places = [place for place in task.places if place.topic != task.held_back or not _is_stable(answers, place)]
    return _rows([replace(place, error=place.error or failure) for place in places], answers, times)


def _is_stable(answers: Mapping[tuple[str, int], LogBounds | str], place: PartitionMetadata) -> bool:
    answer = answers.get((place.topic, place.partition))
    return isinstance(answer, LogBounds) and answer.last_stable_offset == answer.log_end_offset


def _rows(
    places: list[PartitionMetadata], answers: Mapping[tuple[str, int], LogBounds | str], times: Mapping[str, datetime]
) -> pa.RecordBatch:
    rows = []
    for place in places:
        answer = answers.get((place.topic, place.partition), place.error)
        bounds = vars(answer) if isinstance(answer, LogBounds) else {"error": answer}
        of = {"topic": place.topic, "partition": place.partition, "topic_id": place.topic_id}
        rows.append({**of, **times, **bounds})
    return pa.RecordBatch.from_pylist(rows, table_schema(TABLE, without=("cluster",)))


class Sampler:
    """Takes samples in this process; keeps its connection from one to the next."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """`options` are those of the data source."""
        self._request = Request.of(options)
        self._planner = Planner(self._request)

    def await_partitions(self, seconds: float) -> None:
        """Wait at most that long until there are partitions to sample, or the queries are being stopped."""
        deadline = time.monotonic() + seconds
        while not self._planner.has_partitions() and time.monotonic() < deadline:
            if stopping.wait(_LOOK_EVERY_SECONDS):
                break

    def sample(self) -> pa.Table:
        """Return the rows of one sample; all leaders are queried at once."""
        tasks = self._planner.plan()
        with ThreadPoolExecutor(_MOST_LEADERS_AT_ONCE) as pool:
            return pa.Table.from_batches(list(pool.map(partial(sample, self._request.settings), tasks)))


class LogOffsetsReader(DataSourceReader):
    """Reads one sample."""

    def __init__(self, request: Request) -> None:
        self._request = request

    def partitions(self) -> list[LeaderTask]:
        """Plan the tasks, on the driver."""
        planner = Planner(self._request)
        try:
            return planner.plan()
        finally:
            planner.close()

    def read(self, partition: LeaderTask) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """Query one broker, on an executor."""
        yield sample(self._request.settings, partition)


class LogOffsetsStreamReader(DataSourceStreamReader):
    """Reads one sample a trigger: the stream's offset is the time, which always advances."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._planner: Planner | None = None  # created on the driver: it cannot be sent to executors

    def initialOffset(self) -> dict[str, int]:
        """Return the offset before any sample."""
        return {OFFSET: 0}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]  # Spark's limit does not apply to a sample
        """Return the current time as the offset."""
        return {OFFSET: time.time_ns() // 1_000_000}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[LeaderTask]:
        """Plan the tasks, on the driver. A batch that is retried samples again: past offsets cannot be queried."""
        if self._planner is None:
            self._planner = Planner(self._request)
        return self._planner.plan()

    def read(self, partition: LeaderTask) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """Query one broker, on an executor."""
        yield sample(self._request.settings, partition)

    def stop(self) -> None:
        """Close the driver's connection."""
        if self._planner is not None:
            self._planner.close()
