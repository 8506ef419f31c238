"""What a stop of a broker would do, predicted and then seen: judged by Kafka's tools, producers and commits."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from grouptrail.query.what_if import describe_loss
from grouptrail.runtime.warehouses import warehouse_of
from servers.kafka import Broker
from servers.kafka_cluster import KafkaCluster
from support.cluster_job import Job
from support.exporter_tables import OPEN
from support.from_config import SAMPLE_SECONDS
from support.kafka_clients import PATIENCE_SECONDS, await_that
from support.kafka_versions import EVERY_VERSION
from support.landed import config_of
from support.small_tables import lay

Place = tuple[str, int]

GROUPS = [f"group-{number}" for number in range(6)]
STOPPED = 3
PROPERTIES = {"offsets.topic.num.partitions": "3", "offsets.topic.replication.factor": "3"}
OFFSETS = "__consumer_offsets"
# The coordinator waits for the replicas, and its client may not. Before the first commit it is not there yet.
REFUSED = (
    *(KafkaError._TIMED_OUT, KafkaError.REQUEST_TIMED_OUT, KafkaError.NOT_ENOUGH_REPLICAS),
    *(KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.NOT_COORDINATOR),
)
PRODUCED = ("orders", "strict", "pairs", "single")
TOPICS = [
    NewTopic("orders", 3, replica_assignment=[[1, 2, 3], [2, 3, 1], [3, 1, 2]]),
    NewTopic("strict", 2, replica_assignment=[[1, 2, 3], [3, 1, 2]], config={"min.insync.replicas": "3"}),
    NewTopic("pairs", 3, replica_assignment=[[1, 2], [2, 3], [3, 1]]),
    # Of one replica, where the brokers' min.insync.replicas is 2: more than there are counts as one.
    NewTopic("single", 3, replica_assignment=[[1], [2], [3]]),
]


def done(ask: Callable[[], dict[Any, Future[Any]]]) -> None:
    """Ask, and wait for all answers; once more if librdkafka replaced its connection meanwhile."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            for answer in ask().values():
                answer.result(PATIENCE_SECONDS)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:  # asked for the second time
                return
            if error.args[0].code() != KafkaError._DESTROY_BROKER or time.monotonic() > deadline:
                raise
        else:
            return


def set_min_isr(admin: AdminClient, topic: str, least: int) -> None:
    entry = ConfigEntry("min.insync.replicas", str(least), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    done(lambda: admin.incremental_alter_configs([resource]))


def partitions(admin: AdminClient) -> dict[Place, tuple[int, list[int], list[int]]]:
    """Return leader, replicas and replicas in sync of every partition."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            topics = admin.list_topics(timeout=5).topics
            break
        except KafkaException:  # it asked the broker that has just been stopped
            assert time.monotonic() < deadline
    return {
        (name, number): (at.leader, at.replicas, sorted(at.isrs))
        for name, topic in topics.items()
        for number, at in topic.partitions.items()
    }


def listed_by_kafka(broker: Broker, *filters: str) -> set[Place]:
    """Return the partitions that Kafka's topics command lists with a filter."""
    described = broker.tool(
        *("org.apache.kafka.tools.TopicCommand", "--describe", "--bootstrap-server", broker.bootstrap, *filters)
    ).stdout
    return {(name, int(number)) for name, number in re.findall(r"Topic: (\S+)\s+Partition: (\d+)", described)}


def coordinators(broker: Broker) -> dict[str, int]:
    """Return the coordinator of each group by Kafka's consumer groups command."""
    described = broker.tool(
        *("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", "--describe", "--state"),
        *("--all-groups", "--bootstrap-server", broker.bootstrap),
    ).stdout
    return {name: int(node) for name, node in re.findall(r"^(group-\d)\s+\S+ +\((\d+)\)", described, re.M)}


def commits(bootstrap: str, group: str, offset: int) -> bool:
    """Return whether an offset of a group can be committed, by a client that has not known its coordinator."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    commit = ConsumerGroupTopicPartitions(group, [TopicPartition("orders", 0, offset)])
    try:
        done(lambda: admin.alter_consumer_group_offsets([commit], request_timeout=5))
    except KafkaException as error:
        if error.args[0].code() not in REFUSED:
            raise
        return False
    return True


def produced(bootstrap: str) -> dict[Place, KafkaError | None]:
    """Return what becomes of a record with acks=all in each partition of the topics."""
    outcomes: dict[Place, KafkaError | None] = {}
    settings = {"bootstrap.servers": bootstrap, "acks": "all", "retries": 0, "message.timeout.ms": 5000}
    producer = Producer({**settings, "allow.auto.create.topics": False})
    for topic in TOPICS:
        for number in range(topic.num_partitions):
            producer.produce(
                *(topic.topic, b"record"),
                partition=number,
                on_delivery=lambda error, record: outcomes.update({(record.topic(), record.partition()): error}),
            )
    assert producer.flush(PATIENCE_SECONDS) == 0
    return outcomes


@pytest.mark.parametrize("version", EVERY_VERSION)
def test_what_if_broker_predicts_what_a_stop_does(version: str, tmp_path: Path) -> None:
    with KafkaCluster(tmp_path / "kafka", version=version, properties=PROPERTIES) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        await_that(lambda: len(admin.list_topics(timeout=PATIENCE_SECONDS).brokers) == len(cluster.brokers))
        for topic in TOPICS:
            done(lambda topic=topic: admin.create_topics([topic]))  # type: ignore[misc]
        await_that(lambda: all(commits(cluster.bootstrap, group, 1) for group in GROUPS))
        set_min_isr(admin, OFFSETS, 3)
        await_that(lambda: all(len(isr) == len(replicas) for _, replicas, isr in partitions(admin).values()))
        assert set(produced(cluster.bootstrap).values()) == {None}
        stays, before = cluster.brokers[0], coordinators(cluster.brokers[0])

        job = Job(config_of(cluster.bootstrap, tmp_path / "warehouse"))
        job.sample()
        job.cluster.close()
        states = ({**OPEN, "cluster": "test", "group_id": group, "state": "Empty"} for group in GROUPS)
        lay(job.config, "group_states", *states)
        loss = describe_loss(warehouse_of(job.config), [STOPPED], sample_seconds=SAMPLE_SECONDS)

        cluster.brokers[STOPPED - 1].kill()
        await_that(
            lambda: all(
                leader != STOPPED and (STOPPED not in isr or leader < 0)
                for leader, _, isr in partitions(admin).values()
            )
        )
        by_effect = {
            name: {place(row) for row in loss["partitions"] if row["effect"] == name} for name in loss["counts"]
        }
        assert loss["verdict"] == "unsafe"
        assert by_effect["offline"] == {("single", 2)} == listed_by_kafka(stays, "--unavailable-partitions")
        assert by_effect["below_min_isr"] == {
            *(("strict", number) for number in (0, 1)),
            *(("pairs", number) for number in (1, 2)),
            *((OFFSETS, number) for number in range(3)),
        }
        # Kafka's command counts a partition of one replica, which its brokers accept.
        assert by_effect["below_min_isr"] == {
            at for at in listed_by_kafka(stays, "--under-min-isr-partitions") if at[0] != "single"
        }
        assert {place(row): row["isr_left"] for row in loss["partitions"] if row["effect"] != "offline"} == {
            at: isr
            for at, (leader, replicas, isr) in partitions(admin).items()
            if leader >= 0 and STOPPED in replicas
        }
        outcomes = produced(cluster.bootstrap)
        refused = {at for at, error in outcomes.items() if error and error.code() == KafkaError.NOT_ENOUGH_REPLICAS}
        failed = {at for at, error in outcomes.items() if error} - refused
        assert refused == {at for at in by_effect["below_min_isr"] if at[0] in PRODUCED}
        assert failed == by_effect["offline"]

        moved = {name for name, node in coordinators(stays).items() if node != before[name]}
        by_group = {group["group_id"]: group for group in loss["groups"]}
        assert {name for name, group in by_group.items() if group["is_coordinated_there"]} == moved
        assert moved == {name for name, node in before.items() if node == STOPPED} != set()
        assert {name for name, group in by_group.items() if "cannot_commit" in group["consequences"]} == set(GROUPS)
        stayed = set(GROUPS) - moved
        assert not any(commits(cluster.bootstrap, min(groups), 2) for groups in (moved, stayed))
        set_min_isr(admin, OFFSETS, 2)
        await_that(lambda: all(commits(cluster.bootstrap, group, 3) for group in GROUPS))


def place(row: dict[str, Any]) -> Place:
    return row["topic"], row["partition"]
