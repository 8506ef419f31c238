"""Samples of a cluster: what brokers answer, and of what a sample says nothing."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from grouptrail.cluster_facts.sample import (
    BROKERS,
    CLUSTER_INFO,
    CONFIGS,
    COORDINATORS,
    GROUP_CONFIGS,
    OBSERVED_SCHEMAS,
    OPEN_SCHEMAS,
    PARTITIONS,
    TABLES,
    TOPICS,
    Sample,
)
from grouptrail.cluster_facts.sampler import CONFIG_SECONDS, CONTROLLER_UNANSWERED, Sampler
from grouptrail.kafka.cluster import DESCRIBE_DENIED
from grouptrail.kafka.cluster_metadata import CONFIGS_DENIED, Setting
from grouptrail.kafka.errors import KafkaUnreachableError
from grouptrail.kafka.leader_epochs import LeaderEpoch
from grouptrail.kafka.log_dirs import CLUSTER_DENIED
from support.fake_cluster import DEFAULTS, FakeCluster, log_dir, partition

LOST = KafkaUnreachableError("kafka-1:9092 no longer answers")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def cluster() -> FakeCluster:
    cluster = FakeCluster()
    cluster.create("orders", 2)
    return cluster


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sampler(cluster: FakeCluster, clock: Clock) -> Sampler:
    return Sampler(cluster, monotonic=clock)


def nothing() -> dict[str, pa.Table]:
    return {name: OPEN_SCHEMAS[name].empty_table() for name in TABLES}


def known(sample: Sample) -> dict[str, pa.Table]:
    """Return the open rows after a first sample, as far as a sampler looks at them."""
    return nothing() | {
        name: pa.Table.from_pylist(observation.rows.to_pylist(), OPEN_SCHEMAS[name])
        for name, observation in sample.tables.items()
    }


def rows(sample: Sample, table: str) -> list[dict[str, Any]]:
    return sample.tables[table].rows.to_pylist()


def test_sample_first_has_rows_of_every_table(cluster: FakeCluster, sampler: Sampler) -> None:
    sample = sampler.sample(nothing())
    assert sample.problems == ()
    assert rows(sample, BROKERS)[0] == {
        "broker_id": 1, "host": "kafka-1", "port": 9092, "rack": None,
        "release_from": "4.1", "release_before": "4.2", "is_controller": True,
    }  # fmt: skip
    [topic] = rows(sample, TOPICS)
    assert (topic["topic"], topic["partition_count"], topic["replication_factor"]) == ("orders", 2, 2)
    assert len(topic["topic_id"]) == 22
    assert [row["partition"] for row in rows(sample, PARTITIONS)] == [0, 1]
    [settings] = rows(sample, CONFIGS)
    assert (settings["retention_ms"], settings["remote_storage_enable"], settings["problem"]) == (
        604_800_000,
        False,
        None,
    )
    assert rows(sample, CLUSTER_INFO) == [
        {"cluster_id": "x", "controller": 1, "features": [{"name": "group.version", "level": 1}], "problem": None}
    ]


def test_sample_partition_without_leader_and_lists_in_order(cluster: FakeCluster, sampler: Sampler) -> None:
    """A missing leader is a fact; the order of replicas in sync is none."""
    cluster.lead(
        "orders", error_code=5, leader_id=-1, replica_nodes=[2, 1], isr_nodes=[2, 1], offline_replicas=[2, 1]
    )
    row = rows(sampler.sample(nothing()), PARTITIONS)[0]
    assert (row["leader"], row["replicas"], row["isr"], row["offline"]) == (None, [2, 1], [1, 2], [1, 2])


@pytest.mark.parametrize("fault", ["topic", "partition", "empty"])
def test_sample_topic_described_in_part_is_unanswered(cluster: FakeCluster, sampler: Sampler, fault: str) -> None:
    first = known(sampler.sample(nothing()))
    if fault == "topic":
        cluster.create("orders", error_code=3)
    elif fault == "partition":
        cluster.lead("orders", error_code=72)
    else:
        cluster.create("orders", 0)
    sample = sampler.sample(first)
    assert [sample.tables[name].rows.num_rows for name in (TOPICS, PARTITIONS, CONFIGS)] == [0, 0, 0]
    assert all("orders" in sample.tables[name].unanswered for name in (TOPICS, PARTITIONS, CONFIGS))
    assert sample.problems[0].startswith("topics keep their last rows: ")


def test_sample_topic_missing_is_gone_only_if_brokers_say_so(cluster: FakeCluster, sampler: Sampler) -> None:
    cluster.create("audit")
    cluster.create("billing")
    first = known(sampler.sample(nothing()))
    del cluster.topics["audit"]
    cluster.hidden = {"billing"}
    denied = f"topics keep their last rows: {DESCRIBE_DENIED}: 'billing'"
    for unanswered in ({"audit", "billing"}, {"billing"}):
        sample = sampler.sample(first)
        assert {*sample.tables[TOPICS].unanswered} == {*sample.tables[PARTITIONS].unanswered} == unanswered
        assert (sample.problems, sample.missing) == ((denied,), {"audit"})
    cluster.failing = {"unlisted": LOST}
    assert set(sampler.sample(first).tables[TOPICS].unanswered) == {"audit", "billing"}


def test_sample_topics_unknown_to_brokers_that_have_just_started_are_not_gone(
    cluster: FakeCluster, sampler: Sampler
) -> None:
    """As brokers with ZooKeeper answered that were started at once: they listed each other, and no topic."""
    first = known(sampler.sample(nothing()))
    topics, cluster.topics = cluster.topics, {}
    assert sampler.sample(first).tables[TOPICS].unanswered.keys() == topics.keys()
    cluster.topics = topics
    assert not sampler.sample(first).tables[TOPICS].unanswered
    cluster.topics = {}
    assert sampler.sample(first).tables[TOPICS].unanswered.keys() == topics.keys()
    after_a_restart = Sampler(cluster, missing=topics)
    assert not after_a_restart.sample(first).tables[TOPICS].unanswered


def test_sample_controller_unknown_says_why(cluster: FakeCluster, sampler: Sampler) -> None:
    cluster.leader = CLUSTER_DENIED
    sample = sampler.sample(nothing())
    assert rows(sample, CLUSTER_INFO)[0]["problem"] == CLUSTER_DENIED
    assert {row["is_controller"] for row in rows(sample, BROKERS)} == {None}
    assert sample.problems == (f"the controller is unknown: {CLUSTER_DENIED}",)


def test_sample_controller_not_answered_is_unknown_and_brokers_are_sampled(
    cluster: FakeCluster, sampler: Sampler
) -> None:
    """As when most controllers are lost: brokers answer what they knew."""
    first = sampler.sample(nothing())
    cluster.failing = {"controller": LOST}
    cluster.lead("orders", leader_id=2, leader_epoch=1)
    sample = sampler.sample(known(first))
    [info] = rows(sample, CLUSTER_INFO)
    assert (info["controller"], info["problem"]) == (None, CONTROLLER_UNANSWERED)
    assert info["features"] == [{"name": "group.version", "level": 1}]
    assert {row["is_controller"] for row in rows(sample, BROKERS)} == {None}
    assert rows(sample, PARTITIONS)[0]["leader"] == 2
    assert sample.problems == (f"the controller is unknown: {CONTROLLER_UNANSWERED}",)


def test_sample_features_not_answered_keep_what_is_known(cluster: FakeCluster, sampler: Sampler) -> None:
    cluster.failing = {"features": LOST}
    sample = sampler.sample(nothing())
    assert CLUSTER_INFO not in sample.tables
    assert sample.problems == (f"feature levels: {LOST}",)
    cluster.failing = {}
    first = sampler.sample(known(sample))
    cluster.failing, cluster.leader = {"features": LOST}, 2
    [info] = rows(sampler.sample(known(first)), CLUSTER_INFO)
    assert (info["controller"], info["features"]) == (2, [{"name": "group.version", "level": 1}])


def test_sample_broker_that_does_not_answer_keeps_its_release(cluster: FakeCluster, sampler: Sampler) -> None:
    silent = cluster.announced.pop(2)
    first = sampler.sample(nothing())
    assert first.problems == ("brokers are listed and do not answer: 2",)
    assert [row["release_from"] for row in rows(first, BROKERS)] == ["4.1", None]
    cluster.announced = {2: silent}
    second = sampler.sample(known(first))
    assert [row["release_from"] for row in rows(second, BROKERS)] == ["4.1", "4.3"]
    cluster.failing = {"releases": LOST}
    third = sampler.sample(known(second))
    assert rows(third, BROKERS) == rows(second, BROKERS)
    assert third.problems == (f"releases of brokers: {LOST}",)


def test_sample_times_frame_the_requests_of_each_table(cluster: FakeCluster) -> None:
    """What is asked for later is not said to have been so when the sample began."""
    seconds = iter(range(100))
    sample = Sampler(cluster, now=lambda: datetime.fromtimestamp(next(seconds), UTC)).sample(nothing())
    times = {name: (one.asked_at.timestamp(), one.at.timestamp()) for name, one in sample.tables.items()}
    assert all(asked_at < at for asked_at, at in times.values())
    assert times[TOPICS] == times[PARTITIONS]
    assert times[CONFIGS][0] >= times[TOPICS][1]


def test_sample_settings_are_read_when_new_and_every_ten_minutes(
    cluster: FakeCluster, sampler: Sampler, clock: Clock
) -> None:
    first = known(sampler.sample(nothing()))
    cluster.create("audit")
    second = sampler.sample(first)
    assert (rows(second, CONFIGS)[0]["topic"], second.tables[CONFIGS].is_whole) == ("audit", False)
    assert set(second.tables[CONFIGS].unanswered) == {"orders"}
    both = known(sampler.sample(nothing()))
    clock.now = CONFIG_SECONDS - 1
    assert not rows(sampler.sample(both), CONFIGS)
    cluster.create("orders", 2)  # again, with another id
    sampler.sample(both)
    clock.now = CONFIG_SECONDS
    assert sampler.sample(both).tables[CONFIGS].is_whole
    assert cluster.asked == [["orders"], ["audit"], ["audit", "orders"], ["orders"], ["audit", "orders"]]


def test_sample_settings_denied_say_so_and_other_errors_say_nothing(cluster: FakeCluster, sampler: Sampler) -> None:
    for name in ("audit", "billing", "gone"):
        cluster.create(name)
    cluster.configs = {"audit": CONFIGS_DENIED, "billing": "NotControllerError", "gone": None}
    sample = sampler.sample(nothing())
    by_topic = {row["topic"]: row for row in rows(sample, CONFIGS)}
    assert by_topic.keys() == {"audit", "orders"}
    assert (by_topic["audit"]["problem"], by_topic["audit"]["retention_ms"]) == (CONFIGS_DENIED, None)
    assert set(sample.tables[CONFIGS].unanswered) == {"billing", "gone"}
    assert sample.problems == (
        f"settings of topics are unknown: {CONFIGS_DENIED}: 'audit'",
        "settings of topics are unknown: NotControllerError: 'billing'",
    )


def test_sample_settings_not_answered_are_asked_again(cluster: FakeCluster, sampler: Sampler) -> None:
    cluster.failing = {"topic_configs": LOST}
    sample = sampler.sample(nothing())
    assert (set(sample.tables[CONFIGS].unanswered), sample.tables[CONFIGS].is_whole) == ({"orders"}, False)
    assert sample.problems == (f"settings of topics: {LOST}",)
    cluster.failing = {}
    assert sampler.sample(known(sample)).tables[CONFIGS].is_whole


def test_sample_settings_that_brokers_lack_are_null(cluster: FakeCluster, sampler: Sampler) -> None:
    cluster.configs = {"orders": {key: value for key, value in DEFAULTS.items() if not key.startswith("local.")}}
    [settings] = rows(sampler.sample(nothing()), CONFIGS)
    assert (settings["local_retention_ms"], settings["problem"]) == (None, None)
    cluster.configs = {"orders": {**DEFAULTS, "segment.ms": None, "retention.ms": "a week"}}
    [settings] = rows(sampler.sample(nothing()), CONFIGS)
    assert (settings["retention_ms"], settings["retention_bytes"]) == (None, -1)
    assert settings["problem"] == "brokers do not name retention.ms, segment.ms"


def test_sample_no_broker_answers_raises(cluster: FakeCluster, sampler: Sampler) -> None:
    cluster.down = LOST
    with pytest.raises(KafkaUnreachableError):
        sampler.sample(nothing())


def test_metadata_old_brokers_lack_ids_and_epochs(cluster: FakeCluster, sampler: Sampler) -> None:
    old = partition(0)
    del old.leader_epoch, old.offline_replicas
    cluster.create("orders")
    topic = cluster.topics["orders"]
    cluster.topics["orders"] = type(topic)(None, (old,))
    sample = sampler.sample(nothing())
    assert rows(sample, TOPICS)[0]["topic_id"] is None
    assert (rows(sample, PARTITIONS)[0]["leader_epoch"], rows(sample, PARTITIONS)[0]["offline"]) == (None, [])


OFFSETS_0 = ("__consumer_offsets", 0)


def coordinated(epoch: int, first_offset: int, broker: int | None = 1) -> dict[str, Any]:
    row = {"record_partition": 0, "leader_epoch": epoch, "broker_id": broker, "first_offset": first_offset}
    return {name: row[name] for name in OBSERVED_SCHEMAS[COORDINATORS].names}


def test_sample_has_the_epochs_of_coordinators_and_asks_for_new_ones_only(
    cluster: FakeCluster, sampler: Sampler
) -> None:
    cluster.create(OFFSETS_0[0], is_internal=True)
    cluster.epochs[OFFSETS_0] = [LeaderEpoch(0, 0), LeaderEpoch(2, 10), LeaderEpoch(3, 25), LeaderEpoch(6, 40)]
    cluster.lead(OFFSETS_0[0], leader_epoch=2)
    first = sampler.sample(nothing())
    assert rows(first, COORDINATORS) == [coordinated(2, 10)]
    assert first.tables[COORDINATORS].past.to_pylist() == [coordinated(0, 0, None)]
    second = sampler.sample(known(first))
    assert (rows(second, COORDINATORS), len(cluster.asked_epochs)) == ([coordinated(2, 10)], 1)
    cluster.lead(OFFSETS_0[0], leader_epoch=6, leader_id=2)
    third = sampler.sample(known(second))
    assert rows(third, COORDINATORS) == [coordinated(6, 40, 2)]
    assert third.tables[COORDINATORS].past.to_pylist() == [coordinated(3, 25, None)]
    assert cluster.asked_epochs[-1] == (2, {OFFSETS_0: 6}, {OFFSETS_0: 2})


@pytest.mark.parametrize("fault", ["LEADER_NOT_AVAILABLE", LOST])
def test_sample_coordinator_that_does_not_answer_keeps_its_row(
    cluster: FakeCluster, sampler: Sampler, fault: str | Exception
) -> None:
    cluster.create(OFFSETS_0[0])
    first = sampler.sample(nothing())
    cluster.lead(OFFSETS_0[0], leader_epoch=1, leader_id=2)
    if isinstance(fault, str):
        cluster.epochs[OFFSETS_0] = fault
    else:
        cluster.failing["leader_epochs"] = fault
    second = sampler.sample(known(first))
    assert (rows(second, COORDINATORS), second.tables[COORDINATORS].unanswered) == ([], {0})
    [problem] = second.problems
    assert problem == f"epochs of coordinators are unknown: {fault}: '__consumer_offsets-0'"
    cluster.epochs, cluster.failing = {}, {}
    assert rows(sampler.sample(known(first)), COORDINATORS) == [coordinated(1, 0, 2)]


def test_sample_coordinator_without_a_leader_keeps_its_row(cluster: FakeCluster, sampler: Sampler) -> None:
    cluster.create(OFFSETS_0[0])
    first = sampler.sample(nothing())
    cluster.lead(OFFSETS_0[0], leader_epoch=1, leader_id=-1)
    second = sampler.sample(known(first))
    assert (rows(second, COORDINATORS), len(cluster.asked_epochs)) == ([], 1)
    assert second.tables[COORDINATORS].unanswered == {0}


def sizes(sampler: Sampler) -> tuple[list[tuple[Any, ...]] | None, tuple[str, ...]]:
    """Sample, and return the rows of sizes and the problems."""
    sampler.sample(nothing())
    table, problems = sampler.log_sizes()
    columns = ("topic", "partition", "broker_id", "log_dir", "is_future", "size_bytes")
    there = None if table is None else sorted(tuple(row[name] for name in columns) for row in table.to_pylist())
    return there, problems


def test_log_sizes_are_read_when_due(cluster: FakeCluster, clock: Clock) -> None:
    sampler = Sampler(cluster, log_sizes_seconds=300, monotonic=clock)
    expected = [("orders", partition, broker, "/data", False, 100) for partition in (0, 1) for broker in (1, 2)]
    assert sizes(sampler) == (expected, ())
    clock.now = 299
    assert sizes(sampler) == (None, ())
    clock.now = 300
    assert sizes(sampler) == (expected, ())
    assert sizes(Sampler(cluster)) == (None, ())


def test_log_sizes_of_future_replicas_and_of_several_directories(cluster: FakeCluster) -> None:
    cluster.brokers.pop()
    cluster.dirs[1] = [
        log_dir({"orders": {1: 5}}, "/a"),
        log_dir({"orders": {1: 3}}, "/b", is_future=True),
        log_dir({}, "/c", error_code=56),
    ]
    assert sizes(Sampler(cluster, log_sizes_seconds=1)) == (
        [("orders", 1, 1, "/a", False, 5), ("orders", 1, 1, "/b", True, 3)],
        ("sizes of logs are unknown: KafkaStorageError: '/c of broker 1'",),
    )


def test_log_sizes_denied_are_none_and_the_reason_stays(cluster: FakeCluster, clock: Clock) -> None:
    sampler = Sampler(cluster, log_sizes_seconds=300, monotonic=clock)
    cluster.denied_sizes = True
    reasons = (f"sizes of logs are unknown: {CLUSTER_DENIED}: 'broker 1' and 1 more",)
    assert sizes(sampler) == ([], reasons)
    assert sizes(sampler) == (None, reasons)
    clock.now, cluster.denied_sizes = 300, False
    assert sizes(sampler)[1] == ()


def test_log_sizes_not_answered_are_missing_and_the_others_are_there(cluster: FakeCluster, clock: Clock) -> None:
    sampler = Sampler(cluster, log_sizes_seconds=300, monotonic=clock)
    cluster.failing = {"log_sizes of 1": LOST}
    some, problems = sizes(sampler)
    assert some is not None
    assert [row[2] for row in some] == [2, 2]
    assert problems == (f"sizes of logs are unknown: {LOST}: 'broker 1'",)
    clock.now, cluster.failing = 300, {"log_sizes": LOST}
    assert sizes(sampler)[0] is None
    clock.now, cluster.failing = 600, {}
    del cluster.announced[1]
    assert sizes(sampler)[1] == ("sizes of logs are unknown: it did not answer: 'broker 1'",)
    clock.now, cluster.failing = 900, {"releases": LOST}
    assert sizes(sampler)[0] is None, "brokers that do not answer are not waited for again"


def test_settings_of_groups_are_read_of_share_and_streams_groups_when_one_is_new_and_every_ten_minutes(
    cluster: FakeCluster, clock: Clock
) -> None:
    kinds = {"billing": "consumer", "queue": "share"}

    def groups_of(wanted: Collection[str]) -> dict[str, str]:
        return {group: kind for group, kind in kinds.items() if kind in wanted}

    sampler = Sampler(cluster, groups_of=groups_of, monotonic=clock)
    lock = Setting("share.record.lock.duration.ms", "30000", 5)
    limit = Setting("share.delivery.count.limit", "3", 8)
    cluster.group_settings["queue"] = [lock, limit, Setting("consumer.session.timeout.ms", "45000", 5)]
    cluster.group_settings["app"] = [Setting("streams.num.standby.replicas", "1", 4)]
    first = sampler.sample(nothing())
    assert [tuple(row.values()) for row in rows(first, GROUP_CONFIGS)] == [
        ("queue", "share.record.lock.duration.ms", "30000", "default"),
        ("queue", "share.delivery.count.limit", "3", "group"),
    ]
    assert GROUP_CONFIGS not in sampler.sample(known(first)).tables
    kinds["app"] = "streams"
    again = sampler.sample(known(first))
    assert [row["group_id"] for row in rows(again, GROUP_CONFIGS)] == ["app", "queue", "queue"]
    clock.now += CONFIG_SECONDS
    del kinds["queue"]
    last = sampler.sample(known(again))
    assert [(row["name"], row["source"]) for row in rows(last, GROUP_CONFIGS)] == [
        ("streams.num.standby.replicas", "broker")
    ]
    assert cluster.asked_groups == [["queue"], ["app", "queue"], ["app"]]


def test_settings_of_groups_that_are_denied_keep_their_last_rows(cluster: FakeCluster, clock: Clock) -> None:
    sampler = Sampler(cluster, groups_of=lambda _: {"queue": "share", "other": "share"}, monotonic=clock)
    cluster.group_settings["queue"] = [Setting("share.delivery.count.limit", "3", 8)]
    cluster.group_settings["other"] = CONFIGS_DENIED
    first = sampler.sample(nothing())
    assert first.problems == ("settings of groups are unknown: DESCRIBE_CONFIGS is denied: 'other'",)
    assert first.tables[GROUP_CONFIGS].unanswered == set()
    cluster.group_settings["queue"] = CONFIGS_DENIED
    clock.now += CONFIG_SECONDS
    second = sampler.sample(known(first))
    assert (rows(second, GROUP_CONFIGS), second.tables[GROUP_CONFIGS].unanswered) == ([], {"queue"})
    clock.now += CONFIG_SECONDS
    cluster.failing["group_configs"] = LOST
    third = sampler.sample(known(first))
    assert GROUP_CONFIGS not in third.tables
    assert third.problems == (f"settings of groups: {LOST}",)
