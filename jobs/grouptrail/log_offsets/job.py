"""The log-offsets job: queries the brokers for the log offsets of the partitions that groups commit to."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from grouptrail.jobs import LOG_OFFSETS, Progress, Start, reads_offsets_topic
from grouptrail.kafka.cluster import Cluster
from grouptrail.kafka.coordinator import OFFSETS_TOPIC
from grouptrail.kafka.log import GONE
from grouptrail.spark.streams import query_id, read_log_offsets, read_ticks, start_query
from grouptrail.storage import checkpoints, tables

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from grouptrail.config import Config
    from grouptrail.log_offsets.source import Sampler

NO_ANSWER = ". Lag is unknown until a broker answers: check that the brokers run, or run grouptrail doctor"
TABLE = "log_offsets"
COMMITS = "offset_commits"


def check(config: Config) -> None:
    """Raise unless a broker answers and the warehouse can be written; runs before Spark is started."""
    tables.check_warehouse(config)
    with Cluster(config.kafka_settings()) as cluster:
        cluster.brokers()


def start_after_loss(_spark: SparkSession, _config: Config, _report: Progress) -> Start:
    """Return no position to start from: every sample is a new one."""
    return {}


def start(spark: SparkSession, config: Config, *, once: bool, report: Callable[[str], None]) -> StreamingQuery:
    """Start the query, which samples the partitions of commits and of members, and writes `log_offsets`.

    On a cluster executors query the brokers. In a local session the driver does, without the data source, for which
    Spark runs several Python processes.
    """
    from grouptrail.log_offsets import source

    tables.ensure_tables(spark, config, (COMMITS, TABLE))
    checkpoints.begin(spark, config, LOG_OFFSETS.name, LOG_OFFSETS.writes)
    is_local = str(spark.sparkContext.master).startswith("local")
    offsets = checkpoints.newest_offsets(spark, config, LOG_OFFSETS.name)
    if offsets is not None and is_local == (source.OFFSET in offsets):
        # Of the other source. Nothing is lost: every sample is a new one.
        checkpoints.put_aside(spark, config, LOG_OFFSETS.name)
        checkpoints.write_start(spark, config, LOG_OFFSETS.name, {})
    if is_local:
        triggers, sampler = read_ticks(spark), source.Sampler(options(config))
    else:
        source.register(spark)
        triggers, sampler = read_log_offsets(spark, options(config)), None
    sampling = Sampling(
        config,
        sampler,
        app=lambda: query_id(spark, config, LOG_OFFSETS.name),
        report=report,
        wait_seconds=0 if once else config.log_offsets.interval_seconds,
    )
    return start_query(
        triggers,
        config,
        LOG_OFFSETS.name,
        land=sampling.land,
        once=once,
        every_seconds=config.log_offsets.interval_seconds,
    )


def options(config: Config) -> dict[str, str]:
    """Return the data source's options; those of Kafka and of the store may hold secrets."""
    return {**config.spark_kafka_options(), **which_partitions(config)}


def which_partitions(config: Config) -> dict[str, str]:
    """Return the data source's options for the partitions that the configuration selects."""
    if config.log_offsets.all_topics:
        return {}
    storage = {f"storage.{name}": value for name, value in config.storage_options().items()}
    held_back = {"held_back": OFFSETS_TOPIC} if reads_offsets_topic(config.source) else {}
    tables = {"committed": config.table_path(COMMITS), "newest": config.table_path("committed_offsets")}
    return {**tables, "warehouse": config.warehouse, "cluster": config.cluster, **held_back, **storage}


class Sampling:
    """Writes each sample exactly once, also when a batch is retried, and reports changes of the errors in it.

    `sampler` takes the samples; without it they are the micro-batches' rows. Before the first commit a sample waits
    for one for `wait_seconds`: the lag of a new warehouse is then known as soon as its commits are.
    """

    def __init__(
        self,
        config: Config,
        sampler: Sampler | None,
        *,
        app: Callable[[], str],
        report: Callable[[str], None],
        wait_seconds: float = 0,
    ) -> None:
        self._config = config
        self._sampler = sampler
        self._app = app
        self._report = report
        self._wait_seconds = wait_seconds
        self._reported: Mapping[str | None, int] | None = None

    def land(self, rows: DataFrame, batch: int) -> None:
        """Write one sample."""
        started = time.monotonic()
        sample = rows.toArrow() if self._sampler is None else self._sample(self._sampler)
        sample = sample.sort_by([("topic", "ascending"), ("partition", "ascending")])
        tables.append(rows.sparkSession, sample, self._config, TABLE, app=self._app(), version=batch)
        # Rows of the offsets topic come and go with every transaction: they are not worth a line.
        found = Counter(row["error"] for row in sample.to_pylist() if row["topic"] != OFFSETS_TOPIC)
        if found != self._reported:
            self._reported = found
            self._report(summary(batch, found, time.monotonic() - started))

    def _sample(self, sampler: Sampler) -> pa.Table:
        sampler.await_partitions(self._wait_seconds)
        return sampler.sample()


def summary(batch: int, found: Mapping[str | None, int], seconds: float) -> str:
    """Return the log line of a batch: its partitions and their errors; `found` counts partitions by error."""
    faults = sorted(((count, error) for error, count in found.items() if error), reverse=True)
    wrong = "".join(f"; {count:,} {error}" for count, error in faults)
    if found and not found.keys() & {None, *GONE}:
        wrong += NO_ANSWER
    return f"log-offsets batch {batch}: {sum(found.values()):,} partitions in {seconds:.1f} s{wrong}"
