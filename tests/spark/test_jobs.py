"""A job takes one entry in the registry and one module: the command line, the runner and `recover` then know it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from grouptrail import jobs
from grouptrail.config import Config
from grouptrail.runtime import pipeline, recover
from grouptrail.storage import tables
from support.cli_in_process import Cli, succeeded

pytestmark = pytest.mark.spark

COUNT_JOB = '''
"""Counts the commits of each batch."""

from grouptrail.spark.streams import start_query
from grouptrail.storage import tables


def check(config):
    tables.check_warehouse(config)


def start(spark, config, *, once, report):
    tables.ensure_table(spark, config, "offset_commits")
    commits = tables.read_appends(spark, config, "offset_commits")
    count = lambda rows, batch: report(f"count batch {batch}: {rows.count()} commits")
    return start_query(commits, config, "count", land=count, once=once)


def start_after_loss(spark, config, report):
    return {}
'''


def test_fifth_job_in_the_registry_is_run_and_recovered(
    spark: SparkSession, config: Config, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "count_commits"
    folder.mkdir()
    (folder / "job.py").write_text(COUNT_JOB)
    monkeypatch.syspath_prepend(tmp_path)
    count = jobs.ModuleJob(
        "count", "counts commits", reads=("offset_commits",), writes=(), module="count_commits.job"
    )
    with_count = (*jobs.JOBS, count)
    for module in (jobs, pipeline, recover):
        monkeypatch.setattr(module, "JOBS", with_count)
    tables.ensure_table(spark, config, "offset_commits")
    commit = {"cluster": config.cluster, "record_partition": 0, "record_offset": 1, "group_id": "billing"}
    tables.append_new(spark, [commit], config, "offset_commits")
    assert "count batch 0: 1 commits" in succeeded(cli(config, "run", "--job", "count", "--once"))
    assert "not one of decode, log-offsets, history, lag, count" in cli(config, "run", "--job", "cuont").printed
    assert "count: the next run begins where its tables end" in succeeded(cli(config, "recover", "--job", "count"))
