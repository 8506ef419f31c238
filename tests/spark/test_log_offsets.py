"""Samples through Spark where no broker answers: the format, one sample a run, each landed once."""

from __future__ import annotations

import queue
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from grouptrail import contracts
from grouptrail.config import Config
from grouptrail.jobs import LOG_OFFSETS
from grouptrail.log_offsets import job
from grouptrail.log_offsets.source import FORMAT, Sampler, register
from grouptrail.runtime.running import stopped_at_exit
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.spark import streams
from grouptrail.spark.jars import silent
from grouptrail.spark.streams import read_log_offsets, start_query
from grouptrail.storage.table import Table
from grouptrail.storage.warehouse import Warehouse
from support import deadlines, landed
from support.contexts import context
from support.kafka_clients import await_that

NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
SILENCE = "no broker answered"


@pytest.fixture
def nowhere() -> Iterator[str]:
    """A server that refuses connections for as long as the test runs."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@pytest.fixture
def config(config: Config, nowhere: str) -> Config:
    return config.model_copy(update={"kafka": {"bootstrap.servers": nowhere}})


def partition_errors(rows: list[Any]) -> list[tuple[str, int, str]]:
    return sorted((row["topic"], row["partition"], row["error"]) for row in rows)


def test_log_offsets_source_batch_read_without_broker_returns_error_rows(spark: SparkSession, nowhere: str) -> None:
    """The format's name and options are enough; a broker that does not answer gives rows with an error."""
    register(spark)
    options = {"kafka.bootstrap.servers": nowhere, "assign": '{"orders": [1, 0]}'}
    rows = spark.read.format(FORMAT).options(**options).load()
    assert rows.columns == [column.name for column in contracts.tables()["log_offsets"].columns[1:]]
    assert partition_errors(rows.collect()) == [("orders", 0, SILENCE), ("orders", 1, SILENCE)]
    assert spark.read.format(FORMAT).options(**{**options, "assign": "{}"}).load().collect() == []


def test_log_offsets_source_secret_option_is_not_in_plan_or_error(spark: SparkSession, nowhere: str) -> None:
    """Neither the query plan nor the error about an unknown option contains it."""
    register(spark)
    reader = spark.read.format(FORMAT).options(**{"kafka.bootstrap.servers": nowhere, "assign": "{}"})
    reader = reader.option("kafka.ssl.key.password", "hunter2")
    plans = reader.load()._jdf.queryExecution().toString()
    assert FORMAT in plans
    assert "hunter2" not in plans
    with pytest.raises(Exception, match="unknown option asign") as caught:
        reader.option("asign", "{}").load()
    assert "hunter2" not in str(caught.value)


def test_log_offsets_job_once_samples_each_committed_partition(spark: SparkSession, config: Config) -> None:
    """Without commits the job ends at once; the next run samples the partitions of commits landed since."""
    assert run_once(spark, config) == ["log-offsets batch 0: 0 partitions"]
    assert landed.rows(config, "log_offsets") == []
    commit(spark, config, ("orders", 1), ("orders", 0), ("payments", 3))
    assert run_once(spark, config) == [f"log-offsets batch 1: 3 partitions; 3 {SILENCE}{job.NO_ANSWER}"]
    rows = landed.rows(config, "log_offsets")
    assert partition_errors(rows) == [("orders", 0, SILENCE), ("orders", 1, SILENCE), ("payments", 3, SILENCE)]
    assert {row["cluster"] for row in rows} == {"test"}


def test_log_offsets_job_checkpoint_of_the_data_source_is_put_aside(
    spark: SparkSession, config: Config, warehouse: Warehouse
) -> None:
    """Version 0.1, and any cluster, sample by the data source: its offsets are not those of a local session."""
    warehouse.ensure(("log_offsets", "offset_commits"))
    commit(spark, config, ("orders", 0))
    register(spark)
    sampling = job.Sampling(
        warehouse.table("log_offsets"), None, app=warehouse.checkpoint("log-offsets").query_id, log=silent
    )
    samples = read_log_offsets(spark, job.options(context(LOG_OFFSETS, config)))
    checkpoint = warehouse.checkpoint("log-offsets")
    of_query = (checkpoint.query_name, checkpoint.folder)
    query = start_query(samples, *of_query, process=sampling.process, once=True, every_seconds=1)
    assert query.awaitTermination(120)
    assert partition_errors(landed.rows(config, "log_offsets")) == [("orders", 0, SILENCE)]
    assert run_once(spark, config) == [f"log-offsets batch 0: 1 partitions; 1 {SILENCE}{job.NO_ANSWER}"]
    assert run_once(spark, config) == [f"log-offsets batch 1: 1 partitions; 1 {SILENCE}{job.NO_ANSWER}"]
    assert partition_errors(landed.rows(config, "log_offsets")) == [("orders", 0, SILENCE)] * 3
    folders = [path.name for path in Path(warehouse_of(config).checkpoint_path("log-offsets")).parent.iterdir()]
    assert sorted(name.partition(".aside-")[0] for name in folders) == ["log-offsets", "log-offsets"]


def test_log_offsets_job_new_warehouse_samples_as_soon_as_a_commit_is_there(
    spark: SparkSession, config: Config
) -> None:
    """The job does not wait for its next interval, here an hour, and a stop ends its wait."""
    slow = config.model_copy(
        update={"log_offsets": config.log_offsets.model_copy(update={"interval_seconds": 3600.0})}
    )
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    streams.stopping.clear()
    query = job.start(context(LOG_OFFSETS, slow, spark, lines.put))
    try:
        await_that(lambda: query.status["isTriggerActive"], deadlines.scaled(60))
        commit(spark, slow, ("orders", 0))
        assert lines.get(timeout=deadlines.scaled(60)).startswith("log-offsets batch 0: 1 partitions")
    finally:
        streams.stopping.set()
        query.stop()


def test_log_offsets_job_wait_for_the_first_commit_ends_with_the_queries(
    spark: SparkSession, config: Config, warehouse: Warehouse
) -> None:
    warehouse.ensure(("log_offsets", "offset_commits"))
    sampler = Sampler(job.options(context(LOG_OFFSETS, config)))
    with stopped_at_exit(spark, [], silent):
        threads = ThreadPoolExecutor(1)
        waiting = threads.submit(sampler.await_partitions, 3600.0)
    waiting.result(deadlines.scaled(60))
    threads.shutdown()


def run_once(spark: SparkSession, config: Config) -> list[str]:
    """Return the lines that the job reports, without durations."""
    lines: list[str] = []
    query = job.start(context(LOG_OFFSETS, config, spark, lines.append, once=True))
    assert query.awaitTermination(120)
    return [before + after[after.find(" s") + 2 :] for before, _, after in (line.partition(" in ") for line in lines)]


def commit(spark: SparkSession, config: Config, *partitions: tuple[str, int]) -> None:
    """Commits of one group, as the decode job would have landed them."""
    columns = contracts.tables()["offset_commits"].columns
    row = dict.fromkeys((column.name for column in columns), None)
    row |= {"record_at": NOON, "group_id": "g", "is_tombstone": False}
    rows = [
        row | {"record_partition": 0, "record_offset": offset, "topic": topic, "partition": partition}
        for offset, (topic, partition) in enumerate(partitions)
    ]
    warehouse_of(config, spark).table("offset_commits").append_rows(rows)


@pytest.fixture
def sample(spark: SparkSession) -> DataFrame:
    """One partition with offsets, one whose broker did not answer."""
    times = (NOON, NOON)
    rows = [("orders", 0, 1, 7, 5, "id", *times, None), ("orders", 1, None, None, None, None, *times, SILENCE)]
    return spark.createDataFrame(rows, contracts.tables()["log_offsets"].ddl(without=("cluster",)))


def test_log_offsets_job_sample_retried_lands_once(
    config: Config, warehouse: Warehouse, sample: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the job died before its append or after it."""
    warehouse.table("log_offsets").ensure()
    sampling = job.Sampling(warehouse.table("log_offsets"), None, app=lambda: "query", log=silent)

    def dies(*_: Any, **__: Any) -> None:
        raise RuntimeError("killed here")

    with monkeypatch.context() as patch:
        patch.setattr(Table, "append", dies)
        with pytest.raises(RuntimeError, match="killed here"):
            sampling.process(sample, 0)
    assert landed.rows(config, "log_offsets") == []
    for _ in range(2):
        sampling.process(sample, 0)
    assert partition_errors(landed.rows(config, "log_offsets")) == [("orders", 0, None), ("orders", 1, SILENCE)]
    sampling.process(sample, 1)
    assert len(landed.rows(config, "log_offsets")) == 4


def test_log_offsets_job_unchanged_sample_is_not_logged_again(warehouse: Warehouse, sample: DataFrame) -> None:
    """A repeated line every ten seconds would hide the lines that differ."""
    warehouse.table("log_offsets").ensure()
    lines: list[str] = []
    sampling = job.Sampling(warehouse.table("log_offsets"), None, app=lambda: "query", log=lines.append)
    for batch, rows in enumerate([sample, sample, sample.where("partition = 0"), sample]):
        sampling.process(rows, batch)
    assert [line.partition(" partitions")[0] for line in lines] == [
        "log-offsets batch 0: 2",
        "log-offsets batch 2: 1",
        "log-offsets batch 3: 2",
    ]
