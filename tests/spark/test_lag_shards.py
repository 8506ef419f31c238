"""Lag in shards by tasks of Spark: each sample once, whatever happens to the shards' processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from grouptrail.config import Config
from grouptrail.lag import job, shards
from grouptrail.lag.job import LagWriter
from grouptrail.lag.shards import LagShards
from grouptrail.lag.state import LagState
from grouptrail.memory import KEPT_WITHIN_BATCHES
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.storage.engines import delta_rs
from grouptrail.storage.lineage import with_source
from support.contexts import lag_inputs
from support.lag_cluster import LagCluster, empty_tables, in_order

SHARDS = 3


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return empty_tables(tmp_path / "warehouse", shards=SHARDS)


def processes(config: Config) -> dict[int, int]:
    """Return the PIDs of the shards' processes by the number of the shard."""
    environs = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_text().split("\0")
        except OSError:  # it has ended
            continue
        if shards._PROCESS in command and shards._id(lag_inputs(config)) in command[3]:
            environs[int(command[3].rpartition("-")[2])] = int(process.name)
    return environs


def environment(pid: int) -> dict[str, str]:
    variables = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(setting.split("=", 1) for setting in variables if setting)


def stored(config: Config, name: str) -> pa.Table:
    return DeltaTable(warehouse_of(config).table(name).path).to_pyarrow_table()


@pytest.mark.full
def test_samples_are_written_once_by_processes_that_keep_their_state(
    spark: SparkSession, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where processes are killed, the driver starts again, a commit fails, or a batch is repeated after it."""
    monkeypatch.setattr(job, "_STORE_COMMITTED_EVERY_SECONDS", 0)
    cluster, whole, lines = LagCluster(config, 5), LagState(lag_inputs(config), print), list[str]()

    def new_writer() -> LagWriter:
        lag = LagShards(lag_inputs(config, spark))
        lag.prepare()
        return LagWriter(lag, app=lambda: "app", log=lines.append)

    writer, expected = new_writer(), []
    first = processes(config)
    assert sorted(first) == list(range(SHARDS))
    # Before Arrow is imported; Spark's workers, which start them, return all memory at once.
    assert environment(first[0]).items() >= KEPT_WITHIN_BATCHES.items()
    for batch in range(8):
        rows = cluster.sample(10 * batch)
        expected.append(whole.lag(rows))
        if batch == 2:
            assert processes(config) == first
            os.kill(first[1], signal.SIGKILL)
        if batch == 4:
            writer = new_writer()
        if batch == 5:
            with monkeypatch.context() as patch:
                patch.setattr(delta_rs, "append_files", lambda *_given: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    writer.process(rows, batch)
        writer.process(rows, batch)
        if batch == 6:
            writer.process(rows, batch)
    assert in_order(stored(config, "consumer_lag")) == in_order(pa.concat_tables(expected))
    now = processes(config)
    assert {number for number in now if now[number] == first[number]} == {0, 2}
    key = [("group_id", "ascending"), ("partition", "ascending")]
    commits, source = whole.commits()
    assert stored(config, "committed_offsets").sort_by(key).to_pylist() == commits.sort_by(key).to_pylist()
    newest, decoded = warehouse_of(config).tables(("committed_offsets", "offset_commits"))
    known = with_source(newest.location, decoded.location)
    assert known is not None
    assert known[1].version() == source.version
    counts = job.counts_by_status(expected[-1])
    assert lines[-1].startswith(job.summary(7, counts, 0).partition(" in ")[0])
