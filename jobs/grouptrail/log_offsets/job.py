"""The log-offsets job: queries the brokers for the log offsets of the partitions that groups commit to."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from grouptrail.console.progress import Log
from grouptrail.jobs import LOG_OFFSETS, JobContext
from grouptrail.kafka.cluster import Cluster
from grouptrail.kafka.coordinator import OFFSETS_TOPIC
from grouptrail.kafka.log import GONE
from grouptrail.spark.streams import kafka_options, read_log_offsets, read_ticks, start_query
from grouptrail.storage.checkpoints import Start
from grouptrail.storage.engines.engine import Once
from grouptrail.storage.table import Table
from grouptrail.storage.warehouse import Warehouse

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from grouptrail.config.job_settings import LogOffsetsSettings
    from grouptrail.log_offsets.source import Sampler

NO_ANSWER = ". Lag is unknown until a broker answers: check that the brokers run, or run grouptrail doctor"
TABLE = "log_offsets"
COMMITS = "offset_commits"


def check(context: JobContext[LogOffsetsSettings]) -> None:
    """Raise unless a broker answers and the warehouse can be written; runs before Spark is started."""
    context.warehouse.check()
    with Cluster(context.kafka) as cluster:
        cluster.brokers()


def start_after_loss(_context: JobContext[LogOffsetsSettings]) -> Start:
    """Return no position to start from: every sample is a new one."""
    return {}


def start(context: JobContext[LogOffsetsSettings]) -> StreamingQuery:
    """Start the query, which samples the partitions of commits and of members, and writes `log_offsets`.

    On a cluster executors query the brokers. In a local session the driver does, without the data source, for which
    Spark runs several Python processes.
    """
    from grouptrail.log_offsets import source

    warehouse, settings = context.warehouse, context.settings
    spark, checkpoint = warehouse.session, warehouse.checkpoint(LOG_OFFSETS.name)
    warehouse.ensure((COMMITS, TABLE))
    checkpoint.open(warehouse.tables(LOG_OFFSETS.writes))
    is_local = str(spark.sparkContext.master).startswith("local")
    offsets = checkpoint.newest_offsets()
    if offsets is not None and is_local == (source.OFFSET in offsets):
        # Of the other source. Nothing is lost: every sample is a new one.
        checkpoint.put_aside()
        checkpoint.write_start({})
    if is_local:
        triggers, sampler = read_ticks(spark), source.Sampler(options(context))
    else:
        source.register(spark)
        triggers, sampler = read_log_offsets(spark, options(context)), None
    interval = settings.log_offsets.interval_seconds
    sampling = Sampling(
        warehouse.table(TABLE),
        sampler,
        app=checkpoint.query_id,
        log=context.log,
        wait_seconds=0 if context.once else interval,
    )
    return start_query(
        triggers,
        checkpoint.query_name,
        checkpoint.folder,
        process=sampling.process,
        once=context.once,
        every_seconds=interval,
    )


def options(context: JobContext[LogOffsetsSettings]) -> dict[str, str]:
    """Return the data source's options; those of Kafka and of the store may hold secrets."""
    return kafka_options(context.kafka) | which_partitions(context.warehouse, context.settings)


def which_partitions(warehouse: Warehouse, settings: LogOffsetsSettings) -> dict[str, str]:
    """Return the data source's options for the partitions to sample."""
    storage = {f"storage.{name}": value for name, value in warehouse.options.items()}
    more = {"held_back": OFFSETS_TOPIC} if settings.reads_topic else {}
    if settings.all_topics:
        more = {"all_topics": "true"}
    tables = {"committed": warehouse.table(COMMITS).path, "newest": warehouse.table("committed_offsets").path}
    return {**tables, "warehouse": warehouse.location, "cluster": warehouse.cluster, **more, **storage}


class Sampling:
    """Writes each sample exactly once, also when a batch is retried, and reports changes of the errors in it.

    `sampler` takes the samples; without it they are the micro-batches' rows. Before the first commit a sample waits
    for one for `wait_seconds`: the lag of a new warehouse is then known as soon as its commits are.
    """

    def __init__(
        self,
        table: Table,
        sampler: Sampler | None,
        *,
        app: Callable[[], str],
        log: Log,
        wait_seconds: float = 0,
    ) -> None:
        self._table = table
        self._sampler = sampler
        self._app = app
        self._log = log
        self._wait_seconds = wait_seconds
        self._logged: Mapping[str | None, int] | None = None

    def process(self, rows: DataFrame, batch: int) -> None:
        """Write one sample."""
        started = time.monotonic()
        sample = rows.toArrow() if self._sampler is None else self._sample(self._sampler)
        sample = sample.sort_by([("topic", "ascending"), ("partition", "ascending")])
        self._table.append(sample, Once(self._app(), batch))
        # Rows of the offsets topic come and go with every transaction: they are not worth a line.
        errors = Counter(row["error"] for row in sample.to_pylist() if row["topic"] != OFFSETS_TOPIC)
        if errors != self._logged:
            self._logged = errors
            self._log(summary(batch, errors, time.monotonic() - started))

    def _sample(self, sampler: Sampler) -> pa.Table:
        sampler.await_partitions(self._wait_seconds)
        return sampler.sample()


def summary(batch: int, errors: Mapping[str | None, int], seconds: float) -> str:
    """Return the log line of a batch: its partitions and their errors; `errors` counts partitions by error."""
    faults = sorted(((count, error) for error, count in errors.items() if error), reverse=True)
    wrong = "".join(f"; {count:,} {error}" for count, error in faults)
    if errors and not errors.keys() & {None, *GONE}:
        wrong += NO_ANSWER
    return f"log-offsets batch {batch}: {sum(errors.values()):,} partitions in {seconds:.1f} s{wrong}"
