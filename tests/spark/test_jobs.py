"""A job takes one entry in the registry and one module: the command line, the runner and `recover` then know it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.sql import SparkSession

from grouptrail import jobs
from grouptrail.config import Config
from grouptrail.runtime import pipeline, restarts
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.storage.checkpoints import CheckpointGoneError
from support.cli_in_process import Cli, succeeded
from support.deadlines import scaled

COUNT_JOB = '''
"""Counts the commits of each batch."""

def check(context):
    context.warehouse.check()


def start(context):
    commits, checkpoint = context.warehouse.table("offset_commits"), context.warehouse.checkpoint("count")
    commits.ensure()
    count = lambda rows, batch: context.log(f"count batch {batch}: {len(rows)} commits")
    return commits.follow(checkpoint, process=count, once=context.once, is_written_here=False, every_seconds=1)


def start_after_loss(context):
    return {}
'''


def test_new_job_in_the_registry_is_run_and_recovered(
    spark: SparkSession, config: Config, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "count_commits"
    folder.mkdir()
    (folder / "job.py").write_text(COUNT_JOB)
    monkeypatch.syspath_prepend(tmp_path)
    count = jobs.Job("count", "counts commits", reads=("offset_commits",), writes=(), module="count_commits.job")
    monkeypatch.setattr(jobs, "JOBS", (*jobs.JOBS, count))
    table = warehouse_of(config, spark).table("offset_commits")
    table.ensure()
    table.append_rows([{"record_partition": 0, "record_offset": 1, "group_id": "billing"}])
    assert "count batch 0: 1 commits" in succeeded(cli(config, "run", "--job", "count", "--once"))
    assert (
        "not one of decode, log-offsets, cluster, share-state, broker-log, history, lag, count"
        in cli(config, "run", "--job", "cuont").printed
    )
    assert "count: the next run begins where its tables end" in succeeded(cli(config, "recover", "--job", "count"))


TICKING_JOB = '''
"""Counts ticks; `faults` has what its next batches raise."""

from grouptrail.spark.streams import read_ticks, start_query

batches, faults = [], []


def check(context):
    pass


def start(context):
    checkpoint = context.warehouse.checkpoint(__package__)

    def process(rows, batch):
        if faults:
            raise faults.pop(0)
        batches.append((batch, rows.count()))

    of_query = (checkpoint.query_name, checkpoint.folder)
    ticks = read_ticks(checkpoint.spark)
    return start_query(ticks, *of_query, process=process, once=context.once, every_seconds=0.1)


def start_after_loss(context):
    return {}
'''


def test_run_job_whose_batch_fails_resumes_its_checkpoint_while_another_continues(
    spark: SparkSession, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With real queries: one that fails three times repeats its batch, the other one never starts again."""
    for name in ("shaky", "steady"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
        (tmp_path / name / "job.py").write_text(TICKING_JOB)
    monkeypatch.syspath_prepend(tmp_path)
    shaky, steady = (import_module(f"{name}.job") for name in ("shaky", "steady"))
    shaky.faults += [RuntimeError("Python worker failed to connect back."), KeyError("x"), OSError("SlowDown")]
    monkeypatch.setattr(restarts, "FIRST_PAUSE_SECONDS", 0.2)
    monkeypatch.setattr(restarts, "LONGEST_PAUSE_SECONDS", 0.2)
    both = [jobs.Job(name, "ticks", reads=(), writes=(), module=f"{name}.job") for name in ("shaky", "steady")]
    printed: list[str] = []
    cluster = pipeline._Cluster(config, both, printed.append)
    signals: list[int] = []
    deadline = time.monotonic() + scaled(120)
    seen: list[int] = []

    def pause(seconds: float) -> None:
        time.sleep(seconds)
        assert time.monotonic() < deadline, printed
        if len(shaky.batches) >= 3:
            seen.append(len(steady.batches))
            signals.append(signal.SIGTERM)

    monkeypatch.setattr(pipeline, "time", SimpleNamespace(sleep=pause))
    pipeline._run_on(spark, [cluster], None, signals, printed.append)
    cluster.release()
    assert [batch for batch, _ in shaky.batches] == list(range(len(shaky.batches)))
    assert [batch for batch, _ in steady.batches] == list(range(len(steady.batches)))
    assert seen[0] >= 3
    assert [line.partition(":")[2].partition(";")[0] for line in printed if "restarting it" in line] == [
        " Python worker failed to connect back: run grouptrail doctor",
        " KeyError: 'x': run grouptrail doctor",
        " OSError: SlowDown: run grouptrail doctor",
    ]
    assert printed.count("job shaky: restarted") == 3
    assert not [line for line in printed if line.startswith("job steady")]


def test_run_restart_waits_while_the_checkpoint_is_gone(
    spark: SparkSession, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an unmount: a query without its checkpoint would begin from the start."""
    (tmp_path / "mounted").mkdir()
    (tmp_path / "mounted" / "__init__.py").touch()
    (tmp_path / "mounted" / "job.py").write_text(TICKING_JOB)
    monkeypatch.syspath_prepend(tmp_path)
    job = import_module("mounted.job")
    run = pipeline._JobRun(jobs.Job("mounted", "ticks", reads=(), writes=(), module="mounted.job"))
    monkeypatch.setattr(restarts, "FIRST_PAUSE_SECONDS", 0.0)
    deadline = time.monotonic() + scaled(120)

    def until(is_reached: Callable[[], bool]) -> None:
        while not is_reached():
            assert time.monotonic() < deadline
            run.check()
            if run.is_due:
                run.start(spark, config, print, None)

    until(lambda: len(job.batches) >= 2)
    assert run.query is not None
    run.query.stop()
    run.put_off()
    folder = Path(warehouse_of(config).checkpoint_path("mounted"))
    away = folder.rename(folder.with_name("unmounted"))
    with pytest.raises(CheckpointGoneError, match=r"checkpoint .*mounted is gone: mount or restore"):
        run.start(spark, config, print, None)
    assert not folder.exists()
    run.put_off()
    away.rename(folder)
    count = len(job.batches)
    until(lambda: len(job.batches) > count)
    run.query.stop()
    assert sorted({batch for batch, _ in job.batches}) == list(range(job.batches[-1][0] + 1))
