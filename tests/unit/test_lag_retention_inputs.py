"""Rows of `consumer_lag` by the settings of topics and the sizes of logs that the job `cluster` has written."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from grouptrail.cluster_facts.sample import LOG_SIZES, TABLES
from grouptrail.cluster_facts.sampler import Sampler
from grouptrail.cluster_facts.state import OpenRows
from grouptrail.config import Config
from grouptrail.kafka.cluster_metadata import CONFIGS_DENIED
from grouptrail.lag import retention_inputs
from grouptrail.lag.calculator import LagCalculator
from grouptrail.lag.retention import NO_AGE, NO_LAG, NOT_SAMPLED, NOTHING_UNREAD, Retention
from grouptrail.lag.retention_inputs import RetentionInputs
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.storage.warehouse import Warehouse
from support.fake_cluster import DEFAULTS, FakeCluster, log_dir
from support.lag_samples import Row, commit, log, new_calculator, row_at
from support.noted_samples import note_sample
from unit.test_lag_retention import SETTINGS

FIGURES = ("time_to_loss_seconds", "time_to_loss_most_seconds", "time_to_loss_reason")


def figures(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in FIGURES)


def retained(*commits: Row) -> LagCalculator:
    """Return a calculator of a topic with a retention of 100 s, whose segments are closed after 20 s."""
    calculator = new_calculator(*commits)
    calculator.set_retention(Retention({"orders": SETTINGS}))
    return calculator


def test_time_to_loss_in_a_row_is_between_the_bounds_of_the_records_age() -> None:
    """The first unread record was written between 30 and 40 s before."""
    calculator = retained(commit(-5, 100))
    for seconds, end in ((0, 100), (10, 200)):
        row_at(calculator, log(seconds, end))
    row = row_at(calculator, log(40, 200))
    assert figures(row) == (60.0, 100 + 20 + 300 - 30.0, "retention.ms=100000")


def test_time_to_loss_in_a_row_without_figure_says_why() -> None:
    calculator = new_calculator(commit(-5, 100))
    row_at(calculator, log(0, 100))
    assert figures(row_at(calculator, log(10, 110))) == (None, None, NOT_SAMPLED)
    calculator.set_retention(Retention({"orders": SETTINGS}))
    assert figures(row_at(calculator, log(20, 100))) == (None, None, NOTHING_UNREAD)
    assert figures(row_at(calculator, log(30, None))) == (None, None, NO_LAG)
    older = retained(commit(-5, 100))
    assert figures(row_at(older, log(0, 150))) == (None, None, NO_AGE)


def test_time_to_loss_in_a_row_of_deleted_records_is_that_of_those_left() -> None:
    """Those below the start of the log are gone already."""
    calculator = retained(commit(-5, 100))
    for seconds, end in ((0, 100), (10, 200), (20, 300)):
        row_at(calculator, log(seconds, end))
    row = row_at(calculator, log(40, 300, start=200))
    assert (row["lost_records"], figures(row)[0]) == (100, 70.0)


class Cluster:
    """Tables that the job `cluster` has written of a topic with a retention by time, or by size."""

    def __init__(self, folder: Path, *, retention_bytes: int = -1) -> None:
        self.warehouse: Warehouse = warehouse_of(Config(warehouse=str(folder)))
        self.fake = FakeCluster()
        self.fake.create("orders")
        self.fake.lead("orders", leader_id=1)
        self.fake.configs = {
            "orders": {**DEFAULTS, "retention.ms": "100000", "retention.bytes": str(retention_bytes)}
        }
        self.fake.dirs = {1: [log_dir({"orders": {0: 1000}})]}

    def sample(self, *, ago: timedelta = timedelta(0)) -> None:
        self.warehouse.ensure((*TABLES, LOG_SIZES))
        rows = OpenRows(self.warehouse, lambda: "app")
        sampler = Sampler(self.fake, log_sizes_seconds=1)
        rows.update(sampler.sample(rows.tables))
        sizes, _ = sampler.log_sizes()
        assert sizes is not None
        rows.replace_log_sizes(sizes)
        note_sample(self.warehouse, "cluster", datetime.now(UTC) - ago)


def lagging(inputs: RetentionInputs, calculator: LagCalculator, since: float = 0) -> tuple[Any, ...]:
    """Return the figures of a group that is 100 records behind, the first of them 40 s old at most."""
    assert inputs.refresh(calculator) is None
    rows = [row_at(calculator, log(since + seconds, end)) for seconds, end in ((0, 100), (10, 200), (40, 200))]
    return figures(rows[-1])


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention_inputs, "_EVERY_SECONDS", 0)


@pytest.mark.usefixtures("at_once")
def test_retention_inputs_follow_the_tables_of_the_job_cluster(tmp_path: Path) -> None:
    """Without its tables, and of a stopped job, there are no figures; `--once` takes what is there."""
    cluster, calculator = Cluster(tmp_path), new_calculator(commit(-5, 100))
    inputs = RetentionInputs(cluster.warehouse, once=False)
    assert lagging(inputs, calculator) == (None, None, NOT_SAMPLED)
    cluster.sample()
    assert lagging(inputs, calculator, 100)[::2] == (60.0, "retention.ms=100000")
    fresh = new_calculator(commit(-5, 100))
    assert lagging(inputs, fresh)[::2] == (60.0, "retention.ms=100000")
    cluster.fake.configs = {"orders": CONFIGS_DENIED}
    cluster.sample()
    reason = f"the settings of the topic are not known: {CONFIGS_DENIED}"
    assert lagging(inputs, new_calculator(commit(-5, 100))) == (None, None, reason)
    cluster.fake.configs = {"orders": {**DEFAULTS, "retention.ms": "50000"}}
    cluster.sample(ago=timedelta(hours=1))
    least, _, reason = lagging(inputs, new_calculator(commit(-5, 100)))
    assert least is None
    assert reason.startswith("the settings of the topic are not known: the job cluster last sampled at 20")
    once = RetentionInputs(cluster.warehouse, once=True)
    assert lagging(once, new_calculator(commit(-5, 100)))[::2] == (10.0, "retention.ms=50000")


@pytest.mark.usefixtures("at_once")
def test_retention_inputs_have_sizes_where_retention_has_a_limit_by_size(tmp_path: Path) -> None:
    """200 records of 5 bytes each, of which 100 are unread: at most 1,000 bytes."""
    cluster = Cluster(tmp_path, retention_bytes=1500)
    cluster.sample()
    calculator = new_calculator(commit(-5, 100))
    inputs = RetentionInputs(cluster.warehouse, once=False)
    assert inputs.refresh(calculator) is None
    # The size was read when the log ended at 200.
    sized = {"topic": "orders", "partition": 0, "size_bytes": 1000, "sampled_at": log(10, 0)["sampled_at"]}
    calculator.set_log_sizes(pa.Table.from_pylist([sized]))
    rows = [row_at(calculator, log(seconds, end)) for seconds, end in ((0, 100), (10, 200), (40, 230))]
    # 130 records of at most 10 bytes are behind it, and 3.25 a second come.
    assert figures(rows[-1])[::2] == (round((1500 - 1300) / (10 * 3.25) - 0.0005, 3), "retention.bytes=1500")


def test_retention_inputs_are_read_once_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at each sample."""
    cluster, calculator = Cluster(tmp_path), new_calculator(commit(-5, 100))
    inputs = RetentionInputs(cluster.warehouse, once=False)
    assert lagging(inputs, calculator) == (None, None, NOT_SAMPLED)
    cluster.sample()
    assert lagging(inputs, calculator, 100)[2] == NOT_SAMPLED
    later = time.monotonic() + 61
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert lagging(inputs, calculator, 200)[2] == "retention.ms=100000"


@pytest.mark.usefixtures("at_once")
def test_retention_inputs_tables_that_cannot_be_read_are_one_line_and_no_figure(tmp_path: Path) -> None:
    """The lag is computed all the same."""
    cluster, calculator = Cluster(tmp_path), new_calculator(commit(-5, 100))
    cluster.sample()
    [log_file] = sorted((tmp_path / "topic_configs" / "_delta_log").glob("*1.json"))
    log_file.write_text("{")
    inputs = RetentionInputs(cluster.warehouse, once=False)
    line = inputs.refresh(calculator)
    assert line is not None
    assert line.startswith("lag: settings of topics cannot be read, so that no time to loss is known: ")
    row_at(calculator, log(0, 100))
    assert figures(row_at(calculator, log(10, 110)))[2].endswith("topic_configs cannot be read")
