"""Other exporters' metrics about brokers, topics and replicas: what is known, and what is left out."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from grouptrail.config import Config
from grouptrail.exporter.page import ClusterPage
from grouptrail.exporter.text import Family
from grouptrail.kafka.cluster_metadata import CONFIGS_DENIED
from grouptrail.snapshot.cluster_facts import NO_SAMPLE
from grouptrail.snapshot.reader import SnapshotReader
from support.exporter_tables import (
    OPEN,
    cluster_of,
    configured,
    figures,
    lay_cluster,
    lay_everything,
    log_offsets_row,
    now,
)
from support.fake_cluster import DEFAULTS, FakeCluster, log_dir
from support.from_config import snapshot_reader
from support.small_tables import lay

BOTH = "kafka_exporter,kminion"
OWN_TOTALS = ("brokers", "topics", "partitions", "under_replicated_partitions", "leaderless_partitions")


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return configured(tmp_path, also_as=BOTH)


@pytest.fixture
def cluster() -> FakeCluster:
    return cluster_of()


def page(config: Config, reader: SnapshotReader | None = None) -> list[Family]:
    snapshot = (reader or snapshot_reader(config)).read()
    return list(ClusterPage(snapshot, config.exporter).families)


def named(families: list[Family], *prefixes: str) -> set[str]:
    return {family.name for family in families if family.name.startswith(prefixes) and len(family.rows)}


def totals(families: list[Family]) -> list[float | None]:
    return [figures(families, f"kafka_cluster_{name}").get(()) for name in OWN_TOTALS]


def test_topics_replicas_are_those_of_the_last_sample(config: Config, cluster: FakeCluster) -> None:
    """A partition without a leader has no leader's id, and is not led by the preferred replica."""
    cluster.lead("orders", leader_id=2, isr_nodes=[2], offline_replicas=[1])
    cluster.lead("audit", leader_id=-1, isr_nodes=[], error_code=5)
    lay_cluster(config, cluster)
    families = page(config)
    assert figures(families, "kafka_brokers") == {(): 2}
    assert figures(families, "kafka_topic_partitions") == {("orders",): 3, ("__consumer_offsets",): 2, ("audit",): 1}
    leaders = figures(families, "kafka_topic_partition_leader")
    assert (leaders["orders", "0"], leaders["orders", "1"]) == (2, 1)
    assert ("audit", "0") not in leaders
    for name, expected in {
        "leader_is_preferred": (0, 1, 0),
        "replicas": (2, 2, 2),
        "in_sync_replica": (1, 2, 0),
        "under_replicated_partition": (1, 0, 1),
    }.items():
        found = figures(families, f"kafka_topic_partition_{name}")
        assert (found["orders", "0"], found["orders", "1"], found["audit", "0"]) == expected
    assert totals(families) == [2, 3, 6, 2, 1]
    assert figures(families, "kafka_cluster_under_min_isr_partitions") == {(): 1}


def test_brokers_and_cluster_have_the_controller_that_is_known(config: Config, cluster: FakeCluster) -> None:
    cluster.brokers[0].host, cluster.brokers[1].rack = "::1", "b"
    lay_cluster(config, cluster)
    families = page(config)
    assert figures(families, "kafka_broker_info") == {("1", "[::1]:9092"): 1, ("2", "kafka-2:9092"): 1}
    assert figures(families, "kminion_kafka_broker_info") == {
        ("1", "::1", "9092", "", "true"): 1,
        ("2", "kafka-2", "9092", "b", "false"): 1,
    }
    assert figures(families, "kminion_kafka_cluster_info") == {("v4.1", "2", "1", "x"): 1}
    cluster.leader = "DESCRIBE on the cluster is denied"
    lay_cluster(config, cluster, at=now())
    families = page(config)
    assert {labels[-1] for labels in figures(families, "kminion_kafka_broker_info")} == {""}
    assert figures(families, "kminion_kafka_cluster_info") == {("v4.1", "2", "", "x"): 1}


def test_topic_info_has_the_policy_or_says_that_it_is_not_known(config: Config, cluster: FakeCluster) -> None:
    cluster.configs = {"orders": {**DEFAULTS, "cleanup.policy": "compact"}, "audit": CONFIGS_DENIED}
    lay_cluster(config, cluster)
    families = page(config)
    assert figures(families, "kminion_kafka_topic_info") == {
        ("orders", "3", "2", "compact"): 1,
        ("__consumer_offsets", "2", "2", "delete"): 1,
        ("audit", "1", "2", "N/A"): 1,
    }
    assert figures(families, "kafka_cluster_under_min_isr_partitions") == {}


def test_log_sizes_of_topics_are_sums_of_all_replicas_or_none(config: Config, cluster: FakeCluster) -> None:
    cluster.dirs[2] = [log_dir({"orders": {0: 1, 1: 2}, "audit": {0: 5}})]
    lay_cluster(config, cluster)
    families = page(config)
    assert figures(families, "kminion_kafka_topic_log_dir_size_total_bytes") == {("audit",): 105}
    assert figures(families, "kminion_kafka_broker_log_dir_size_total_bytes") == {
        ("1", "kafka-1", "9092", ""): 600,
        ("2", "kafka-2", "9092", ""): 8,
    }
    cluster.lead("orders", offline_replicas=[1])
    cluster.denied_sizes = True
    lay_cluster(config, cluster, at=now())
    assert not named(page(config), "kminion_kafka_topic_log_dir", "kminion_kafka_broker_log_dir")


def test_watermarks_are_of_all_sampled_partitions_and_sums_of_whole_topics(
    config: Config, cluster: FakeCluster
) -> None:
    """Also of topics that no group reads; a partition that did not answer has no series, and its topic no sum."""
    lay_cluster(config, cluster)
    rows = [log_offsets_row("orders", 0), log_offsets_row("orders", 1, None), log_offsets_row("orders", 2)]
    older = log_offsets_row("audit", end=50, sampled_at=now() - timedelta(seconds=9))
    held_back = log_offsets_row("__consumer_offsets", 1)
    lay(config, "log_offsets", *rows, older, log_offsets_row("audit", end=70), held_back)
    families = page(config)
    assert figures(families, "kafka_topic_partition_current_offset") == {
        ("orders", "0"): 100, ("orders", "2"): 100, ("audit", "0"): 70,
    }  # fmt: skip
    assert figures(families, "kminion_kafka_topic_partition_low_water_mark")["audit", "0"] == 10
    assert figures(families, "kminion_kafka_topic_high_water_mark_sum") == {("audit",): 70}
    lay(config, "log_offsets", log_offsets_row("__consumer_offsets", 0))
    whole = figures(page(config), "kminion_kafka_topic_high_water_mark_sum")
    assert whole == {("audit",): 70, ("__consumer_offsets",): 200}


def test_members_of_a_topic_and_those_without_a_partition(config: Config, cluster: FakeCluster) -> None:
    """Connect's tasks are no partitions; of a group in a rebalance it is not known who will own nothing."""
    lay_cluster(config, cluster)
    for name, state, kind in (("steady", "Stable", "consumer"), ("moving", "PreparingRebalance", "consumer")):
        lay(config, "group_states", {**OPEN, "group_id": name, "state": state})
        lay(config, "generations", {**OPEN, "group_id": name, "member_count": 4, "protocol_type": kind})
        owners = (("orders", 0, "a"), ("orders", 1, "b"), ("orders", 2, "b"), ("audit", 0, "a"))
        rows = [{"topic": topic, "partition": number, "member_id": member} for topic, number, member in owners]
        lay(config, "partition_ownership", *({**OPEN, "group_id": name, **row} for row in rows))
    lay(config, "group_states", {**OPEN, "group_id": "sink", "state": "Stable"})
    lay(config, "generations", {**OPEN, "group_id": "sink", "member_count": 1, "protocol_type": "connect"})
    connector = {"group_id": "sink", "topic": "connector", "partition": 0, "member_id": "c"}
    lay(config, "partition_ownership", {**OPEN, **connector})
    families = page(config)
    members = figures(families, "kminion_kafka_consumer_group_topic_members")
    assert members == {
        (name, topic): count for name in ("steady", "moving") for topic, count in (("orders", 2), ("audit", 1))
    }
    assigned = figures(families, "kminion_kafka_consumer_group_topic_assigned_partitions")
    assert (assigned["steady", "orders"], assigned["steady", "audit"]) == (3, 1)
    assert figures(families, "kminion_kafka_consumer_group_empty_members") == {("steady",): 2}
    info = figures(families, "kminion_kafka_consumer_group_info")
    assert {labels[0]: value for labels, value in info.items()} == {"steady": 1, "moving": 0, "sink": 1}


@pytest.mark.parametrize("why", ["no job", "stale", "never finished"])
def test_topics_without_a_recent_sample_have_no_series_and_a_reason(
    config: Config, cluster: FakeCluster, why: str
) -> None:
    lay_everything(config)
    if why == "stale":
        lay_cluster(config, cluster, at=now() - timedelta(minutes=5))
    elif why == "no job":
        for file in Path(config.warehouse).rglob("last_sample.json"):
            file.unlink()
    else:
        for file in Path(config.warehouse).rglob("last_sample.json"):
            file.write_text("{")
    reader = snapshot_reader(config)
    problem = reader.read().facts.problem
    families = page(config, reader)
    prefixes = ("kafka_broker", "kafka_topic_partition", "kafka_cluster", "kminion_kafka_broker")
    assert not named(families, *prefixes, "kminion_kafka_cluster", "kminion_kafka_topic_info")
    assert problem is not None
    assert (
        problem.startswith("brokers, topics and replicas are not known: ") if why == "stale" else problem == NO_SAMPLE
    )
    info = figures(families, "kminion_kafka_consumer_group_info")
    assert info == {("billing", "range", "consumer", "Stable", ""): 1}
    lay_cluster(config, cluster)
    assert named(page(config, reader), "kafka_broker_info")


def test_topics_are_read_again_only_after_another_sample(config: Config, cluster: FakeCluster) -> None:
    lay_cluster(config, cluster)
    reader = snapshot_reader(config)
    first = reader.read().facts
    assert reader.read().facts.partitions is first.partitions
    cluster.create("more", 4)
    lay_cluster(config, cluster, at=now())
    assert len(reader.read().facts.partitions) == len(first.partitions) + 4


def test_own_page_has_the_totals_and_no_series_of_topics(tmp_path: Path, cluster: FakeCluster) -> None:
    config = configured(tmp_path)
    lay_cluster(config, cluster)
    snapshot = snapshot_reader(config).read()
    assert (len(snapshot.facts.partitions), len(snapshot.logs)) == (0, 0)
    families = list(ClusterPage(snapshot, config.exporter).families)
    assert totals(families) == [2, 3, 6, 0, 0]
    assert not named(families, "kafka_topic", "kafka_broker", "kminion")


def test_topics_patterns_apply(tmp_path: Path, cluster: FakeCluster) -> None:
    config = configured(tmp_path, also_as="kafka_exporter", deny_topics="_*,audit")
    lay_cluster(config, cluster)
    families = page(config)
    assert {topic for topic, _ in figures(families, "kafka_topic_partition_replicas")} == {"orders"}
    assert figures(families, "kafka_topic_partitions") == {("orders",): 3}
    assert figures(families, "grouptrail_series_dropped") == {("pattern",): 2 + 5 * 3, ("budget",): 0}


@pytest.mark.parametrize(("granularity", "has_topics"), [("topic", True), ("group", False)])
def test_topics_granularity_applies(tmp_path: Path, cluster: FakeCluster, granularity: str, has_topics: bool) -> None:
    config = configured(tmp_path, also_as=BOTH, granularity=granularity)
    lay_cluster(config, cluster)
    families = page(config)
    assert named(families, "kafka_broker_info")
    assert bool(named(families, "kminion_kafka_topic_info", "kafka_topic_partitions")) is has_topics
    assert not named(families, "kafka_topic_partition_")


def test_topics_budget_serves_whole_families_the_coarsest_first(tmp_path: Path) -> None:
    config = configured(tmp_path, also_as="kafka_exporter", series_budget=80)
    lay_cluster(config, cluster_of(orders=30))
    families = page(config)
    assert named(families, "kafka_broker", "kafka_topic") == {
        "kafka_brokers", "kafka_broker_info", "kafka_topic_partitions", "kafka_topic_partition_leader",
        "kafka_topic_partition_leader_is_preferred",
    }  # fmt: skip
    assert figures(families, "grouptrail_series_dropped") == {("pattern",): 0, ("budget",): 3 * 33}


def test_topics_long_and_hostile_names_stay_label_values(tmp_path: Path) -> None:
    config = configured(tmp_path, also_as="kafka_exporter", label_bytes=64)
    cluster = FakeCluster()
    cluster.create("t" * 249)
    cluster.brokers[0].host = "a\x1b[31m"
    lay_cluster(config, cluster)
    families = page(config)
    [(topic, _)] = figures(families, "kafka_topic_partition_leader")
    assert (len(topic), topic[31]) == (64, "~")
    assert all("\x1b" not in address for _, address in figures(families, "kafka_broker_info"))
