"""What the job `cluster` writes: only changes, also after a restart or a failure, and nothing that is not known."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from grouptrail.cluster_facts.job import OUTDATED, Sampling
from grouptrail.cluster_facts.sample import (
    BROKERS,
    CLUSTER_INFO,
    CONFIGS,
    COORDINATORS,
    LOG_SIZES,
    OBSERVED_SCHEMAS,
    PARTITIONS,
    TABLES,
    TOPICS,
)
from grouptrail.cluster_facts.sampler import CONFIG_SECONDS, Sampler
from grouptrail.config import Config
from grouptrail.kafka.errors import KafkaUnreachableError
from grouptrail.kafka.leader_epochs import LeaderEpoch
from grouptrail.quality import check
from grouptrail.quality.snapshot import take
from grouptrail.runtime.warehouses import warehouse_of
from support import landed
from support.fake_cluster import DEFAULTS, FakeCluster


class Job:
    """The job on a fake cluster, sampled once a minute; `lines` is its log."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.cluster = FakeCluster()
        self.lines: list[str] = []
        self.minutes = 0
        warehouse_of(config).ensure((*TABLES, LOG_SIZES))
        self.restart()

    def restart(self) -> None:
        """Begin with nothing but the tables."""
        sampler = Sampler(self.cluster, log_sizes_seconds=300, monotonic=lambda: 60.0 * self.minutes)
        self._sampling = Sampling(warehouse_of(self.config), sampler, app=lambda: "app", log=self.lines.append)

    def sample(self) -> None:
        self.minutes += 1
        self._sampling.process(batch=self.minutes)

    def versions(self) -> list[int]:
        return [opened.version() for table in warehouse_of(self.config).tables(TABLES) if (opened := table.open())]

    def valid(self, table: str) -> list[dict[str, Any]]:
        """Return the open rows by their topic, without their times."""
        rows = [row for row in landed.rows(self.config, table) if row["is_open"]]
        kept = [{name: row[name] for name in OBSERVED_SCHEMAS[table].names} for row in rows]
        return sorted(
            kept, key=lambda row: (row.get("topic") or "", row.get("partition") or row.get("broker_id") or 0)
        )


def assert_expected(config: Config) -> None:
    """Assert that the tables are as `grouptrail check` expects them."""
    warehouse = warehouse_of(config)
    snapshot = take(warehouse, patience_seconds=0)
    results = check.run_with_delta_rs(
        warehouse, TABLES, snapshot, start_spark=lambda: pytest.fail("Spark was started")
    )
    assert [(one.table, failed) for one in results for failed in one.failures] == []
    assert {one.table for one in results} == set(TABLES)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    job = Job(Config(warehouse=str(tmp_path)))
    job.cluster.create("orders", 2)
    job.cluster.create("audit")
    return job


def test_sampling_first_sample_is_written_and_the_same_again_is_not(job: Job) -> None:
    job.sample()
    versions = job.versions()
    assert [row["topic"] for row in job.valid(TOPICS)] == ["audit", "orders"]
    assert {row["created_at"] for row in landed.rows(job.config, TOPICS)} == {None}
    assert len(job.valid(PARTITIONS)) == 3
    assert len(job.valid(CONFIGS)) == len(job.valid(BROKERS)) == 2
    assert job.valid(CLUSTER_INFO)[0]["controller"] == 1
    [line] = job.lines
    assert line.startswith(
        "cluster batch 1: brokers -0 +2, topics -0 +2, topic_partitions -0 +3, topic_configs -0 +2"
    )
    job.sample()
    job.restart()
    job.sample()
    assert (job.versions(), len(job.lines)) == (versions, 1)


@pytest.mark.parametrize("restarts", [False, True])
def test_sampling_each_change_ends_a_row_and_begins_another(job: Job, restarts: bool) -> None:
    """Also those that happened while the job did not run."""
    job.sample()
    first_leader = job.valid(PARTITIONS)[0]
    if restarts:
        job.restart()
    else:
        job.sample()
    job.cluster.lead("audit", leader_id=2, leader_epoch=1, isr_nodes=[2])
    job.cluster.create("orders", 2)
    job.cluster.create("billing")
    job.cluster.brokers.pop()
    job.cluster.levels = None
    job.minutes += round(CONFIG_SECONDS / 60)
    job.cluster.configs["audit"] = {**DEFAULTS, "retention.ms": "1000"}
    job.sample()
    ended = {name: [row for row in landed.rows(job.config, name) if not row["is_open"]] for name in TABLES}
    assert {name: len(rows) for name, rows in ended.items() if rows} == {
        BROKERS: 1, TOPICS: 1, PARTITIONS: 1, CONFIGS: 1, CLUSTER_INFO: 1,
    }  # fmt: skip
    [led] = ended[PARTITIONS]
    assert {name: led[name] for name in first_leader} == first_leader
    assert (led["last_seen_at"] == led["valid_from"]) is restarts
    assert led["last_seen_at"] < led["valid_to"]
    [recreated] = ended[TOPICS]
    assert (recreated["topic"], recreated["deleted_at"]) == ("orders", recreated["valid_to"])
    created = {row["topic"]: row["created_at"] for row in landed.rows(job.config, TOPICS) if row["is_open"]}
    assert created == {"audit": None, "billing": led["valid_to"], "orders": led["valid_to"]}
    assert (job.valid(CONFIGS)[0]["retention_ms"], job.valid(CLUSTER_INFO)[0]["features"]) == (1000, None)
    assert_expected(job.config)


def test_sampling_coordinators_have_a_row_for_each_epoch(job: Job) -> None:
    """Also epochs that were over before a sample showed them: their brokers and times are unknown."""
    topic = "__consumer_offsets"
    job.cluster.create(topic)
    job.cluster.epochs[topic, 0] = [LeaderEpoch(epoch, 10 * epoch) for epoch in (0, 1, 4, 5)]
    for epoch, leader in ((1, 1), (1, 1), (5, 2)):
        job.cluster.lead(topic, leader_epoch=epoch, leader_id=leader)
        job.sample()
        job.restart()
    rows = sorted(landed.rows(job.config, COORDINATORS), key=lambda row: row["leader_epoch"])
    assert [(row["leader_epoch"], row["first_offset"], row["broker_id"], row["is_open"]) for row in rows] == [
        (0, 0, None, False), (1, 10, 1, False), (4, 40, None, False), (5, 50, 2, True),
    ]  # fmt: skip
    zero, one, four, five = rows
    assert (zero["valid_from"], zero["valid_to"]) == (None, one["valid_from"])
    assert one["valid_to"] == four["valid_to"] == five["valid_from"] > one["valid_from"]
    assert_expected(job.config)


@pytest.mark.parametrize("fault", ["no answer", "no leader", "hidden"])
def test_sampling_coordinator_that_was_not_answered_was_not_seen(job: Job, fault: str) -> None:
    """Its row stays until another epoch is answered; the sample in between did not show it."""
    topic = "__consumer_offsets"
    job.cluster.create(topic)
    job.sample()
    job.cluster.lead(topic, leader_epoch=1, leader_id=-1 if fault == "no leader" else 2)
    job.cluster.hidden = {topic} if fault == "hidden" else set()
    job.cluster.epochs = {(topic, 0): "not available"} if fault == "no answer" else {}
    job.sample()
    assert [row["leader_epoch"] for row in job.valid(COORDINATORS)] == [0]
    job.cluster.lead(topic, leader_epoch=1, leader_id=2)
    job.cluster.hidden, job.cluster.epochs = set(), {}
    job.sample()
    [ended] = [row for row in landed.rows(job.config, COORDINATORS) if not row["is_open"]]
    assert ended["last_seen_at"] == ended["valid_from"] < ended["valid_to"]
    assert [row["broker_id"] for row in job.valid(COORDINATORS)] == [2]
    assert_expected(job.config)


def test_sampling_topic_hidden_for_a_while_has_one_row(job: Job) -> None:
    job.sample()
    versions = job.versions()
    job.cluster.hidden = {"orders"}
    job.sample()
    job.sample()
    assert job.lines[1:] == ["cluster: topics keep their last rows: DESCRIBE is denied: 'orders'"]
    job.cluster.hidden = set()
    job.sample()
    assert job.versions() == versions
    seen_from = datetime.now(UTC)
    job.sample()
    seen_to = datetime.now(UTC)
    del job.cluster.topics["orders"]
    job.sample()
    assert job.versions() == versions
    job.sample()
    [gone] = [row for row in landed.rows(job.config, TOPICS) if not row["is_open"]]
    assert gone["deleted_at"] == gone["valid_to"]
    assert seen_from <= gone["last_seen_at"] <= seen_to, "not of the sample that missed it first"
    assert [len(job.valid(name)) for name in (TOPICS, PARTITIONS, CONFIGS)] == [1, 1, 1]


def test_sampling_brokers_do_not_answer_says_so_once_and_goes_on(job: Job) -> None:
    job.sample()
    versions = job.versions()
    job.cluster.down = KafkaUnreachableError("kafka-1:9092 no longer answers: check that its brokers run")
    job.sample()
    job.sample()
    assert job.lines[1:] == ["cluster: kafka-1:9092 no longer answers: check that its brokers run"]
    job.cluster.down = None
    job.sample()
    assert job.versions() == versions


def test_sampling_outdated_broker_changes_nothing_unless_it_stays_so(job: Job) -> None:
    job.cluster.lead("audit", leader_id=2, leader_epoch=7)
    job.sample()
    versions = job.versions()
    job.cluster.lead("audit", leader_id=1, leader_epoch=6)
    for _ in range(5):
        job.sample()
    assert (job.versions(), job.lines[1:]) == (versions, [OUTDATED])
    job.sample()
    assert job.valid(PARTITIONS)[0]["leader_epoch"] == 6


@pytest.mark.parametrize("fails_at", [TOPICS, PARTITIONS, CLUSTER_INFO])
@pytest.mark.parametrize("is_first", [False, True])
def test_sampling_write_fails_next_sample_writes_what_is_missing(job: Job, fails_at: str, is_first: bool) -> None:
    if not is_first:
        job.sample()
        job.restart()
    job.cluster.lead("audit", leader_epoch=1)
    job.cluster.leader = 2
    job.cluster.create("orders", 3)
    with landed.dying_before(fails_at):
        job.sample()
    job.sample()
    versions = job.versions()
    job.restart()
    job.sample()
    assert job.versions() == versions
    assert [row["leader_epoch"] for row in job.valid(PARTITIONS)] == [1, 0, 0, 0]
    assert job.valid(CLUSTER_INFO)[0]["controller"] == 2
    rows = landed.rows(job.config, PARTITIONS)
    assert len(rows) == len({(row["topic"], row["partition"], row["valid_from"]) for row in rows})
    for name, expected in ((TOPICS, 0 if is_first else 1), (PARTITIONS, 0 if is_first else 1)):
        assert sum(not row["is_open"] for row in landed.rows(job.config, name)) == expected


def test_sampling_other_clusters_rows_stay(job: Job, tmp_path: Path) -> None:
    job.sample()
    other = Job(Config(warehouse=str(tmp_path), cluster="other"))
    other.cluster.create("payments")
    other.sample()
    other.cluster.lead("payments", leader_epoch=1)
    other.sample()
    assert [row["topic"] for row in other.valid(TOPICS)] == ["payments"]
    assert len(job.valid(PARTITIONS)) == 3
    job.restart()
    versions = job.versions()
    job.sample()
    assert job.versions() == versions


def test_sampling_sizes_of_logs_are_those_of_the_newest_sample(job: Job, tmp_path: Path) -> None:
    other = Job(Config(warehouse=str(tmp_path), cluster="other"))
    other.cluster.create("payments")
    other.sample()
    job.sample()
    assert len(landed.rows(job.config, LOG_SIZES)) == 6
    del job.cluster.topics["orders"]
    job.sample()
    assert len(landed.rows(job.config, LOG_SIZES)) == 6
    job.minutes += 5
    job.sample()
    sizes = landed.rows(job.config, LOG_SIZES)
    assert sorted((row["topic"], row["broker_id"], row["size_bytes"]) for row in sizes) == [
        ("audit", 1, 100),
        ("audit", 2, 100),
    ]
    job.minutes += 5
    job.cluster.denied_sizes = True
    job.sample()
    assert landed.rows(job.config, LOG_SIZES) == []
    assert len(landed.rows(other.config, LOG_SIZES)) == 2
    warehouse = warehouse_of(job.config)
    version = warehouse.table(LOG_SIZES).open().version()  # type: ignore[union-attr]
    job.minutes += 5
    job.sample()
    assert warehouse.table(LOG_SIZES).open().version() == version  # type: ignore[union-attr]
    assert job.lines[-1].startswith("cluster: sizes of logs are unknown: DESCRIBE on the cluster is denied")
