"""`kafka_log_offsets`, a data source of Spark: where the logs of partitions begin, are stable and end.

    register(spark)
    spark.read.format("kafka_log_offsets").option("kafka.bootstrap.servers", "kafka-1:9092").load()

Options: `kafka.…`, any setting of Kafka's Java client, as Spark's Kafka source takes them; and which partitions:
- `assign`: those listed, as in `{"orders": [0, 1]}`;
- `committed` and `cluster`: those that groups of that cluster have committed to, by the table `offset_commits` at
  that path; in a stream, those that land there later, too; `storage.…` are delta-rs's options for it;
- none of these: all that the principal may see.

With `held_back`, a topic, also those of its partitions whose last stable offset is behind their end: the others of
this topic have no row. They are asked for in requests that are sent anyway.

Out: the columns of `log_offsets` but the cluster. Each leader is asked by a task of its own. A partition that cannot
be asked of has a row all the same, which says why (`error`). `spark.readStream` gives a sample a trigger, one in all
with Trigger.AvailableNow.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from grouptrail import contracts
from grouptrail.errors import GrouptrailError
from grouptrail.kafka.cluster import Cluster
from grouptrail.kafka.errors import ClusterError, KafkaDeniedError
from grouptrail.kafka.log import LogBounds, PartitionMetadata
from grouptrail.log_offsets.committed import CommittedPartitions
from grouptrail.storage.schema import table_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

FORMAT = "kafka_log_offsets"
TABLE = "log_offsets"

_HELD_BACK = "held_back"
_OPTIONS = ("assign", "committed", "cluster", _HELD_BACK)


class OptionError(GrouptrailError):
    """An option of the data source is wrong."""


def register(spark: SparkSession) -> None:
    """Makes the format known to a session."""
    spark.dataSource.register(LogOffsetsSource)


class LogOffsetsSource(DataSource):
    """The format's entry: what Spark makes of the options."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._request = Request.of(options)

    @classmethod
    def name(cls) -> str:
        """What stands in `format(…)`."""
        return FORMAT

    def schema(self) -> str:
        """As Spark's DDL."""
        return contracts.tables()[TABLE].ddl(without=("cluster",))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Of one sample."""
        return LogOffsetsReader(self._request)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Of a sample a trigger."""
        return LogOffsetsStreamReader(self._request)


class Request:
    """Kafka's settings and delta-rs's options, which may hold secrets, and which partitions are wanted."""

    def __init__(self, settings: dict[str, str], storage: dict[str, str], which: dict[str, str]) -> None:
        self.settings = settings
        self.storage = storage
        self.which = which

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Request:
        """From the options. Raises OptionError, which repeats no value."""
        settings, storage = _under("kafka.", options), _under("storage.", options)
        which = {name: value for name, value in options.items() if not name.startswith(("kafka.", "storage."))}
        unknown = sorted(which.keys() - set(_OPTIONS))
        if unknown:
            raise OptionError(
                f"{FORMAT}: unknown option {unknown[0]}: there are kafka.…, storage.…, {', '.join(_OPTIONS)}"
            )
        if "bootstrap.servers" not in settings:
            raise OptionError(f"{FORMAT}: no option kafka.bootstrap.servers: say where the brokers are")
        if which.keys() - {_HELD_BACK} not in (set(), {"assign"}, {"committed", "cluster"}):
            raise OptionError(f"{FORMAT}: give assign, or committed and cluster, or none of them")
        assigned(which.get("assign", "{}"))
        return cls(settings, storage, which)


def _under(prefix: str, options: Mapping[str, str]) -> dict[str, str]:
    return {name.removeprefix(prefix): value for name, value in options.items() if name.startswith(prefix)}


def assigned(text: str) -> dict[str, list[int]]:
    """Partitions by topic, from the option `assign`. Raises OptionError."""
    try:
        found = json.loads(text)
        return {str(topic): [int(partition) for partition in partitions] for topic, partitions in found.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise OptionError(f'{FORMAT}: assign is not as in {{"orders": [0, 1]}}: correct it') from error


@dataclass(frozen=True)
class Asked(InputPartition):
    """What one task asks of one broker; those places that none leads come together, without a server.

    Of the topic `held_back` only partitions that an open transaction holds back, or that have an error, are sampled.
    """

    leader: int | None
    server: str | None
    places: tuple[PartitionMetadata, ...]
    held_back: str | None = None


Wanted = Mapping[str, Collection[int] | None]
"""Partitions by topic; None: all of them."""


class Planner:
    """Finds who is to be asked; keeps its connection, and what it knows, from one sample to the next."""

    def __init__(self, request: Request) -> None:
        self._cluster = Cluster(request.settings)
        self._assigned = assigned(request.which["assign"]) if "assign" in request.which else None
        self._committed = (
            CommittedPartitions(request.which["committed"], request.which["cluster"], request.storage)
            if "committed" in request.which
            else None
        )
        self._held_back = request.which.get(_HELD_BACK)
        self._seen: list[PartitionMetadata] = []

    def plan(self) -> list[Asked]:
        """At least one: Spark takes none for one that it made itself."""
        wanted: Wanted | None = self._committed.now() if self._committed else self._assigned
        if wanted is None or self._held_back is None or self._held_back in wanted:
            return by_leader(self._places(wanted))
        asked = by_leader(self._places({**wanted, self._held_back: None}))
        return [replace(one, held_back=self._held_back) for one in asked]

    def close(self) -> None:
        """Closes the connection."""
        self._cluster.close()

    def _places(self, wanted: Wanted | None) -> list[PartitionMetadata]:
        """Where no broker answers, all that is wanted, or was there the last time, with the reason."""
        try:
            self._seen = self._cluster.partition_metadata(wanted)
        except ClusterError as error:
            reason = (
                "the brokers refuse this principal" if isinstance(error, KafkaDeniedError) else "no broker answered"
            )
            if wanted is None:
                return [
                    PartitionMetadata(seen.topic, seen.partition, seen.topic_id, error=reason) for seen in self._seen
                ]
            return [
                PartitionMetadata(topic, partition, error=reason)
                for topic in wanted
                for partition in wanted[topic] or ()
            ]
        return self._seen


def by_leader(places: Iterable[PartitionMetadata]) -> list[Asked]:
    """One for each leader, and one for the places without."""
    with_leader = sorted((place for place in places if place.leader is not None), key=_leader)
    asked = [Asked(*leader, tuple(led)) for leader, led in groupby(with_leader, _leader)]
    unled = tuple(place for place in places if place.leader is None)
    return [*asked, Asked(None, None, unled)] if unled or not asked else asked


def _leader(place: PartitionMetadata) -> tuple[Any, Any]:
    return place.leader, place.server


def sample(settings: Mapping[str, str], asked: Asked) -> pa.RecordBatch:
    """The rows of a task: what its broker told, or why it did not."""
    told: Mapping[tuple[str, int], LogBounds | str] = {}
    silence = None
    asked_at = datetime.now(UTC)
    if asked.leader is not None:
        try:
            with Cluster({**settings, "bootstrap.servers": str(asked.server)}) as broker:
                told = broker.log_bounds(asked.leader, [(place.topic, place.partition) for place in asked.places])
        except ClusterError as error:
            reason = "refuses this principal" if isinstance(error, KafkaDeniedError) else "did not answer"
            silence = f"broker {asked.leader} {reason}"
    times = {"asked_at": asked_at, "sampled_at": datetime.now(UTC)}
    places = [place for place in asked.places if place.topic != asked.held_back or not _is_stable(told, place)]
    return _rows([replace(place, error=place.error or silence) for place in places], told, times)


def _is_stable(told: Mapping[tuple[str, int], LogBounds | str], place: PartitionMetadata) -> bool:
    found = told.get((place.topic, place.partition))
    return isinstance(found, LogBounds) and found.last_stable_offset == found.log_end_offset


def _rows(
    places: list[PartitionMetadata], told: Mapping[tuple[str, int], LogBounds | str], times: Mapping[str, datetime]
) -> pa.RecordBatch:
    rows = []
    for place in places:
        found = told.get((place.topic, place.partition), place.error)
        bounds = vars(found) if isinstance(found, LogBounds) else {"error": found}
        of = {"topic": place.topic, "partition": place.partition, "topic_id": place.topic_id}
        rows.append({**of, **times, **bounds})
    return pa.RecordBatch.from_pylist(rows, table_schema(TABLE, without=("cluster",)))


class LogOffsetsReader(DataSourceReader):
    """One sample."""

    def __init__(self, request: Request) -> None:
        self._request = request

    def partitions(self) -> list[Asked]:
        """On the driver: whom to ask."""
        planner = Planner(self._request)
        try:
            return planner.plan()
        finally:
            planner.close()

    def read(self, partition: Asked) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """On an executor: asks one broker."""
        yield sample(self._request.settings, partition)


class LogOffsetsStreamReader(DataSourceStreamReader):
    """A sample a trigger: its offset is the time, which has always moved on."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._planner: Planner | None = None  # made where it plans: a connection cannot be sent to executors

    def initialOffset(self) -> dict[str, int]:
        """Before any sample."""
        return {"asked_at_ms": 0}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]  # takes what there is, whatever the limit
        """Now."""
        return {"asked_at_ms": time.time_ns() // 1_000_000}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Asked]:
        """On the driver: whom to ask. A batch that is run again asks again: the past cannot be asked."""
        if self._planner is None:
            self._planner = Planner(self._request)
        return self._planner.plan()

    def read(self, partition: Asked) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """On an executor: asks one broker."""
        yield sample(self._request.settings, partition)

    def stop(self) -> None:
        """Closes the driver's connection."""
        if self._planner is not None:
            self._planner.close()
