"""Sizes of logs as other jobs read them, and what brokers of any release say of them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from grouptrail.cluster_facts.sample import LOG_SIZES, TABLES
from grouptrail.cluster_facts.sampler import Sampler
from grouptrail.cluster_facts.state import OpenRows
from grouptrail.config import Config
from grouptrail.kafka.log_dirs import CLUSTER_DENIED, log_sizes_of
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.storage.log_sizes import read_log_sizes
from support.fake_cluster import FakeCluster, log_dir


def test_log_sizes_are_those_of_leaders(tmp_path: Path) -> None:
    warehouse, cluster = warehouse_of(Config(warehouse=str(tmp_path))), FakeCluster()
    assert read_log_sizes(warehouse) == {}
    cluster.create("orders", 2)
    cluster.create("it's", 1)
    cluster.create("leaderless", 1)
    cluster.lead("orders", leader_id=2)
    cluster.lead("leaderless", leader_id=-1)
    cluster.dirs = {
        1: [
            log_dir({"orders": {0: 1, 1: 2}, "it's": {0: 3}, "leaderless": {0: 9}}),
            log_dir({"orders": {1: 9}}, "/new", is_future=True),
        ],
        2: [log_dir({"orders": {0: 4}})],
    }
    warehouse.ensure((*TABLES, LOG_SIZES))
    rows = OpenRows(warehouse, lambda: "app")
    sampler = Sampler(cluster, log_sizes_seconds=1)
    rows.update(sampler.sample(rows.tables))
    sampled, _ = sampler.log_sizes()
    assert sampled is not None
    rows.replace_log_sizes(sampled)
    sizes = read_log_sizes(warehouse)
    assert {place: size.size_bytes for place, size in sizes.items()} == {
        ("orders", 0): 4, ("orders", 1): 2, ("it's", 0): 3,
    }  # fmt: skip
    assert {size.sampled_at for size in sizes.values()} == set(sampled["sampled_at"].to_pylist())
    assert read_log_sizes(warehouse, ["it's", "never-there"]).keys() == {("it's", 0)}
    assert read_log_sizes(warehouse, []) == {}


def test_log_sizes_of_old_brokers_that_deny_have_no_directories() -> None:
    """Their responses have no error code."""
    assert log_sizes_of(SimpleNamespace(results=[])) == CLUSTER_DENIED
    assert log_sizes_of(SimpleNamespace(error_code=31, results=[])) == CLUSTER_DENIED
    assert log_sizes_of(SimpleNamespace(error_code=-1, results=[])) == "UnknownError"
    empty = log_sizes_of(SimpleNamespace(results=[log_dir({})]))
    assert not isinstance(empty, str)
    assert (len(empty[0]), empty[1]) == (0, {})
