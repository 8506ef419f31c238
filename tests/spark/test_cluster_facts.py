"""The job `cluster` as a query: sampled once, run again, recovered, with the views on its tables."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from grouptrail.cluster_facts import job
from grouptrail.cluster_facts.sample import PARTITIONS, TABLES, TOPICS
from grouptrail.cluster_facts.sampler import Sampler
from grouptrail.config import Config
from grouptrail.jobs import CLUSTER
from grouptrail.kafka.errors import ClusterError
from grouptrail.query.spark.engine import SparkEngine
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.storage.checkpoints import CheckpointError
from grouptrail.storage.engines.choice import EngineName
from grouptrail.storage.last_sample import read_last_sample
from support import landed
from support.cli_in_process import Cli, succeeded
from support.contexts import context
from support.fake_cluster import FakeCluster
from support.queries import asked


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    cluster = FakeCluster()
    cluster.create("orders", 2)
    monkeypatch.setattr(job, "ClusterDescription", lambda *_arguments: cluster)
    return cluster


def sample(config: Config, spark: SparkSession) -> list[str]:
    """Run the job once; return its log."""
    lines: list[str] = []
    query = CLUSTER.start(context(CLUSTER, config, spark, lines.append, once=True))
    assert query.awaitTermination(60)
    return lines


def versions(config: Config) -> list[int]:
    return [opened.version() for table in warehouse_of(config).tables(TABLES) if (opened := table.open())]


def test_cluster_job_once_writes_changes_and_resumes_without_its_checkpoint(
    spark: SparkSession, config: Config, cluster: FakeCluster, cli: Cli
) -> None:
    [line] = sample(config, spark)
    assert line.startswith("cluster batch 0: brokers -0 +2, topics -0 +1, topic_partitions -0 +2")
    before = versions(config)
    assert sample(config, spark) == []
    checkpoint = Path(warehouse_of(config).checkpoint_path("cluster"))
    shutil.rmtree(checkpoint)
    assert "nothing to do" in succeeded(cli(config, "recover"))
    assert sample(config, spark) == []
    assert versions(config) == before
    (checkpoint / "metadata").write_text("{")
    with pytest.raises(CheckpointError, match="run grouptrail recover"):
        sample(config, spark)
    assert "cluster: the next run begins where its tables end" in succeeded(cli(config, "recover"))
    cluster.lead("orders", leader_id=2, leader_epoch=1, isr_nodes=[2])
    [line] = sample(config, spark)
    assert line.startswith("cluster batch 0: topic_partitions -1 +1 in")


def test_cluster_job_notes_the_time_of_each_answered_sample_also_if_nothing_changed(
    spark: SparkSession, config: Config, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    warehouse = warehouse_of(config)
    assert read_last_sample(warehouse, "cluster") is None
    sample(config, spark)
    first = read_last_sample(warehouse, "cluster")
    assert first is not None
    assert first.interval_seconds == config.cluster_facts.interval_seconds
    assert not first.is_stale(first.at + timedelta(seconds=first.interval_seconds))
    assert first.is_stale(first.at + timedelta(seconds=4 * first.interval_seconds + 60))
    before = versions(config)
    sample(config, spark)
    second = read_last_sample(warehouse, "cluster")
    assert second is not None
    assert second.at > first.at
    assert versions(config) == before

    def unanswered() -> None:
        raise ClusterError("no broker answers")

    monkeypatch.setattr(cluster, "metadata", unanswered)
    assert sample(config, spark) == ["cluster: no broker answers"]
    assert read_last_sample(warehouse, "cluster") == second
    Path(warehouse.checkpoint_path("cluster"), "last_sample.json").write_text("{")
    assert read_last_sample(warehouse, "cluster") is None


def test_cluster_job_once_second_run_that_misses_a_topic_takes_it_for_deleted(
    spark: SparkSession, config: Config, cluster: FakeCluster
) -> None:
    sample(config, spark)
    del cluster.topics["orders"]
    assert sample(config, spark) == []
    [line] = sample(config, spark)
    assert line.startswith("cluster batch 0: topics -1 +0, topic_partitions -2 +0")


@pytest.mark.parametrize("only", ["spark", "delta-rs"])
def test_cluster_job_each_engine_writes_the_same_rows(
    spark: SparkSession, config: Config, cluster: FakeCluster, only: EngineName
) -> None:
    warehouse = replace(warehouse_of(config, spark), only=only)
    warehouse.ensure(TABLES)
    sampling = job.Sampling(warehouse, Sampler(cluster), app=lambda: "app", log=print)
    sampling.process(batch=0)
    cluster.lead("orders", leader_id=2, leader_epoch=1, isr_nodes=[2])
    cluster.create("audit")
    sampling.process(batch=1)
    rows: list[dict[str, Any]] = landed.rows(config, PARTITIONS)
    assert sorted((row["topic"], row["partition"], row["leader_epoch"], row["is_open"]) for row in rows) == [
        ("audit", 0, 0, True),
        ("orders", 0, 0, False),
        ("orders", 0, 1, True),
        ("orders", 1, 0, True),
    ]
    assert len(landed.rows(config, TOPICS)) == 2


def test_views_of_the_cluster_agree_on_both_engines(
    spark: SparkSession, config: Config, cluster: FakeCluster
) -> None:
    sample(config, spark)
    cluster.lead("orders", leader_id=-1, error_code=5, leader_epoch=1, isr_nodes=[])
    sample(config, spark)
    for query in (
        "SELECT topic, partition_count, retention_ms FROM topics_at(now())",
        "SELECT topic, partition, leader, host FROM leaders_at(now()) ORDER BY partition",
        "SELECT partition, isr, is_below_min_isr FROM under_replicated(now())",
        "SELECT * FROM what_if_broker(1, now()) ORDER BY partition",
    ):
        rows = asked(config, query)
        assert rows
        assert rows == asked(config, query, SparkEngine(warehouse_of(config, spark)))
    assert asked(config, "SELECT partition FROM under_replicated(now())") == [{"partition": 0}]
