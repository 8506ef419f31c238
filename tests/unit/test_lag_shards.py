"""Lag in shards: together they have the rows of one, and the process of each survives what can happen to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from grouptrail.config import Config
from grouptrail.lag import shards
from grouptrail.lag.shard import Commits, Samples, Shard, ShardError, WrittenLag
from grouptrail.lag.state import LagState
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.storage.schema import table_schema
from support.contexts import lag_inputs
from support.kafka_clients import await_that
from support.lag_cluster import LagCluster, empty_tables, in_order, store_commits

LAG = table_schema("consumer_lag")


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return empty_tables(tmp_path / "warehouse")


def state_of(config: Config, shard: Shard) -> LagState:
    return LagState(lag_inputs(config), print, shard)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in (1, 2))])
def test_lag_of_all_shards_is_that_of_one_state_also_after_a_restart_of_some(config: Config, seed: int) -> None:
    """States, owned positions without a commit, rates and verdicts are those of all samples."""
    cluster, count = LagCluster(config, seed), 3
    whole = LagState(lag_inputs(config), print)
    parts = [state_of(config, Shard(number, count)) for number in range(count)]
    for sample in range(12):
        rows = cluster.sample(10 * sample)
        if sample in (4, 9):
            parts[sample % count] = state_of(config, Shard(sample % count, count))
        expected = whole.lag(rows)
        shares = [part.lag(rows) for part in parts]
        assert in_order(pa.concat_tables(shares)) == in_order(expected)
        assert all(len(share) for share in shares)
        write_deltalake(warehouse_of(config).table("consumer_lag").path, expected, mode="append")
        if sample == 6:
            tables, sources = zip(*(part.commits() for part in parts), strict=True)
            commits, (of_whole, _) = pa.concat_tables(tables), whole.commits()
            key = [("group_id", "ascending"), ("partition", "ascending")]
            assert commits.sort_by(key).to_pylist() == of_whole.sort_by(key).to_pylist()
            store_commits(config, commits, *sources)


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[bytes]]:
    """Stands for the executor's: with it the shards' processes end."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


class Process:
    """The process of a shard, as a task of Spark asks it."""

    def __init__(self, config: Config, parent: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
        self._config = config
        self._parent = parent
        self._last = ""
        self.location = warehouse_of(config).table("consumer_lag").location
        popen = subprocess.Popen
        self.started: list[subprocess.Popen[bytes]] = []

        def noting(*given: Any, **how: Any) -> subprocess.Popen[bytes]:
            self.started.append(popen(*given, **how))
            return self.started[-1]

        monkeypatch.setattr(shards.subprocess, "Popen", noting)

    def ask(self, request: Samples | Commits | None) -> Any:
        return shards.ask(lag_inputs(self._config), Shard(0, 2), request, parent=self._parent.pid)

    def lag(self, rows: pa.Table, request: str) -> tuple[pa.Table, Mapping[str, int]]:
        """Return the rows of the files that it writes for a sample, and its counts."""
        answer = self.ask(Samples(rows, self.location, request, after=self._last))
        assert isinstance(answer, WrittenLag)
        self._last = request
        paths = [json.loads(file)["add"]["path"] for file in answer.files]
        read = [pq.read_table(f"{self.location.path}/{path}", partitioning=None) for path in paths]
        return pa.concat_tables([LAG.empty_table(), *(table.cast(LAG) for table in read)]), answer.counts


@pytest.fixture
def process(config: Config, parent: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> Process:
    return Process(config, parent, monkeypatch)


def test_process_keeps_its_state_and_a_new_one_restores_it_from_the_tables(config: Config, process: Process) -> None:
    """After kill -9, and after a batch that it did not see, the rows are those of a state that has seen all."""
    cluster, shard = LagCluster(config, 1), state_of(config, Shard(0, 2))
    process.ask(None)
    for sample in range(8):
        rows = cluster.sample(10 * sample)
        if sample == 3:
            process.started[-1].kill()
            process.started[-1].wait()
        expected = shard.lag(rows)
        if sample != 5:
            computed, counts = process.lag(rows, str(sample))
            assert in_order(computed) == in_order(expected)
            assert sum(counts.values()) == len(expected)
        else:
            process._last = "another process has answered"
        write_deltalake(warehouse_of(config).table("consumer_lag").path, expected, mode="append")
    assert len(process.started) == 2


def test_process_asked_again_for_the_same_sample_gives_the_same_rows(config: Config, process: Process) -> None:
    """As by a task that Spark repeats, after an executor did not deliver its answer."""
    cluster = LagCluster(config, 2)
    for sample in range(3):
        rows = cluster.sample(10 * sample)
        last = process._last
        first, _ = process.lag(rows, str(sample))
        process._last = last
        again, _ = process.lag(rows, str(sample))
        assert in_order(again) == in_order(first)
        write_deltalake(warehouse_of(config).table("consumer_lag").path, again, mode="append")


def test_process_writes_the_newest_commits(config: Config, process: Process) -> None:
    rows = LagCluster(config, 3).sample(0)
    assert process.ask(Samples(rows, process.location, "1", after="")).has_new_commits
    location = warehouse_of(config).table("committed_offsets").location
    written = process.ask(Commits(location))
    [file] = written.files
    stored = pq.read_table(f"{location.path}/{json.loads(file)['add']['path']}", partitioning=None)
    expected, source = state_of(config, Shard(0, 2)).commits()
    assert written.source == source
    assert len(stored) == len(expected) > 0
    assert set(stored["record_partition"].to_pylist()) == {0, 2, 4}


def test_process_ends_with_its_parent(process: Process, parent: subprocess.Popen[bytes]) -> None:
    process.ask(None)
    assert process.started[-1].poll() is None
    parent.kill()
    parent.wait()
    await_that(lambda: process.started[-1].poll() == 0)
    assert not [file for file in shards._folder().iterdir() if f"-{parent.pid}-" in file.name]


def test_failure_of_a_process_is_one_line_that_names_the_shard(config: Config, process: Process) -> None:
    """And the next request gets an answer."""
    rows = LagCluster(config, 4).sample(0)
    logs = Path(warehouse_of(config).table("offset_commits").path, "_delta_log")
    logs.rename(logs.with_name("gone"))
    with pytest.raises(ShardError, match=r"^the process of lag shard 1 of 2: [^\n]+$"):
        process.ask(Samples(rows, process.location, "1", after=""))
    logs.with_name("gone").rename(logs)
    computed, _ = process.lag(rows, "1")
    assert len(computed)


def test_process_that_cannot_start_is_reported(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_PROCESS", "grouptrail.no_such_module")
    with pytest.raises(ShardError, match="lag shard 1 of 2 did not start"):
        process.ask(None)


def test_process_that_is_killed_while_it_computes_is_replaced_once(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second one that ends, too, is reported: it may have too little memory."""
    process.ask(None)
    connect = shards._connection

    def killed(*given: Any) -> Any:
        connection = connect(*given)
        process.started[-1].kill()
        process.started[-1].wait()
        return connection

    with monkeypatch.context() as patch:
        patch.setattr(shards, "_connection", killed)
        with pytest.raises(ShardError, match=r"lag shard 1 of 2 ended: see the executor's log"):
            process.ask(None)
    assert len(process.started) == 2
    process.ask(None)
    assert len(process.started) == 3


def test_folder_of_sockets_that_others_may_open_is_refused(
    tmp_path: Path, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards.tempfile, "gettempdir", lambda: str(tmp_path))
    Path(tmp_path, f"grouptrail-lag-{os.getuid()}").mkdir()
    Path(tmp_path, f"grouptrail-lag-{os.getuid()}").chmod(0o755)
    with pytest.raises(ShardError, match="is open to other users: remove it, or set TMPDIR"):
        process.ask(None)
