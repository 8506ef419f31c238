"""The job `cluster` on a real Kafka, compared with other clients' description of the cluster."""

from __future__ import annotations

import contextlib
import json
import re
import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)
from confluent_kafka.admin import (
    ResourceType as ConfigResourceType,
)
from kafka import KafkaAdminClient
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourceType,
)

from grouptrail.cluster_facts import sampler as of_sampler
from grouptrail.cluster_facts.sample import (
    BROKERS,
    CLUSTER_INFO,
    CONFIGS,
    COORDINATORS,
    LOG_SIZES,
    PARTITIONS,
    TABLES,
    TOPICS,
)
from grouptrail.config import Config, load_config
from grouptrail.kafka.cluster import DESCRIBE_DENIED
from grouptrail.kafka.cluster_metadata import CONFIGS_DENIED, MIGRATING
from grouptrail.kafka.coordinator import coordinator_partition
from grouptrail.kafka.log_dirs import CLUSTER_DENIED
from grouptrail.runtime.warehouses import warehouse_of
from servers.kafka import Broker
from servers.kafka_cluster import KafkaCluster
from servers.zookeeper import CONTROLLER, KafkaWithZooKeeper
from support import landed
from support.cluster_job import Job
from support.kafka_clients import PATIENCE_SECONDS, as_reader, await_that
from support.kafka_versions import EVERY_VERSION
from support.landed import config_of
from support.queries import asked

COORDINATORS_NOW = "SELECT record_partition, broker_id FROM coordinators_at(now())"
URL_SAFE = str.maketrans("+/", "-_")  # base64 as Kafka prints it, of librdkafka's


@pytest.fixture
def admin(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


@pytest.fixture
def topic(admin: AdminClient) -> Iterator[str]:
    name = f"orders-{uuid.uuid4().hex[:8]}"
    create(admin, name)
    yield name
    if name in admin.list_topics(timeout=PATIENCE_SECONDS).topics:
        delete(admin, name)


def done(answers: dict[Any, Future[Any]]) -> None:
    for answer in answers.values():
        answer.result(PATIENCE_SECONDS)


def create(admin: AdminClient, name: str) -> None:
    done(admin.create_topics([NewTopic(name, 3, 1, config={"retention.ms": "3600000"})]))
    await_that(lambda: name in admin.list_topics(timeout=PATIENCE_SECONDS).topics)


def create_orders(admin: AdminClient, partitions: int) -> None:
    """Create the topic with three replicas. librdkafka drops a request to a broker whose id it learns just then."""

    def is_there() -> bool:
        with contextlib.suppress(KafkaException):
            done(admin.create_topics([NewTopic("orders", partitions, 3)]))
        return "orders" in admin.list_topics(timeout=PATIENCE_SECONDS).topics

    await_that(is_there)


def delete(admin: AdminClient, name: str) -> None:
    done(admin.delete_topics([name]))
    await_that(lambda: name not in admin.list_topics(timeout=PATIENCE_SECONDS).topics)


def revoke(broker: Broker, user: str, topic: str) -> None:
    on = ResourcePattern(ResourceType.TOPIC, topic, ACLResourcePatternType.LITERAL)
    right = ACL(f"User:{user}", "*", ACLOperation.DESCRIBE, ACLPermissionType.ALLOW, on)
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as admin:
        admin.delete_acls([right])


@pytest.fixture
def job(config: Config, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    """The job, which reads all settings with each sample."""
    monkeypatch.setattr(of_sampler, "CONFIG_SECONDS", 0)
    job = Job(config)
    yield job
    job.cluster.close()


def test_cluster_job_tables_match_librdkafka(job: Job, admin: AdminClient, topic: str) -> None:
    job.sample()
    described = admin.describe_cluster().result(PATIENCE_SECONDS)
    assert {(row["broker_id"], row["host"], row["port"], row["rack"]) for row in job.valid(BROKERS)} == {
        (node.id, node.host, node.port, node.rack) for node in described.nodes
    }
    [info] = job.valid(CLUSTER_INFO)
    assert (info["cluster_id"], info["problem"]) == (described.cluster_id, None)
    assert {"metadata.version", "group.version"} <= {feature["name"] for feature in info["features"]}
    listed = admin.list_topics(timeout=PATIENCE_SECONDS).topics
    topics = admin.describe_topics(TopicCollection(list(listed)))
    expected = {name: answer.result(PATIENCE_SECONDS) for name, answer in topics.items()}
    assert {
        row["topic"]: (row["topic_id"], row["partition_count"], row["is_internal"]) for row in job.valid(TOPICS)
    } == {
        name: (str(one.topic_id).translate(URL_SAFE).rstrip("="), len(one.partitions), one.is_internal)
        for name, one in expected.items()
    }
    assert sorted(
        (row["topic"], row["partition"], row["leader"], *row["replicas"], *row["isr"])
        for row in job.valid(PARTITIONS)
    ) == sorted(
        (name, at.id, at.leader.id, *(node.id for node in at.replicas), *(node.id for node in at.isr))
        for name, one in expected.items()
        for at in one.partitions
    )
    for row in job.valid(CONFIGS):
        resource = ConfigResource(ConfigResourceType.TOPIC, row["topic"])
        settings = admin.describe_configs([resource])[resource].result(PATIENCE_SECONDS)
        for key, column in of_sampler.COLUMN_OF.items():
            value = row[column]
            assert (str(value).lower() if isinstance(value, bool) else str(value)) == settings[key].value, key
    assert job.lines[0].startswith("cluster batch 0: brokers -0 +1")


@pytest.mark.parametrize("version", EVERY_VERSION)
def test_cluster_job_names_the_release_the_feature_levels_and_the_sizes_of_logs(version: str, tmp_path: Path) -> None:
    with Broker(tmp_path / "kafka", version=version) as broker:
        create(AdminClient({"bootstrap.servers": broker.bootstrap}), "orders")
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce("orders", b"a record")
        producer.flush(PATIENCE_SECONDS)
        job = Job(config_of(broker.bootstrap, tmp_path / "warehouse"))
        job.sample()
        [broker_row], [info] = job.valid(BROKERS), job.valid(CLUSTER_INFO)
        described = broker.tool(
            "org.apache.kafka.tools.FeatureCommand", "--bootstrap-server", broker.bootstrap, "describe"
        ).stdout
        sizes = broker.tool(
            "org.apache.kafka.tools.LogDirsCommand", "--bootstrap-server", broker.bootstrap, "--describe"
        ).stdout.splitlines()[-1]
        job.cluster.close()
    assert {(row["topic"], row["partition"]): row["size_bytes"] for row in landed.rows(job.config, LOG_SIZES)} == {
        (name, int(number)): one["size"]
        for folder in json.loads(sizes)["brokers"][0]["logDirs"]
        for one in folder["partitions"]
        for name, _, number in [one["partition"].rpartition("-")]
    }
    # The newest release that kafka-python knows is 4.3.
    assert broker_row["release_from"] == min(version.rpartition(".")[0], "4.3")
    assert broker_row["release_before"] is None or broker_row["release_before"] > broker_row["release_from"]
    assert broker_row["is_controller"] is True
    levels = {feature["name"]: feature["level"] for feature in info["features"]}
    assert levels["metadata.version"] > 0
    # Kafka's tool also lists features whose level is 0, and names some levels.
    listed = dict(re.findall(r"Feature: (\S+).*FinalizedVersionLevel: (\S+)", described))
    assert {name for name, level in listed.items() if level != "0"} == levels.keys()
    assert all(listed[name] == str(level) for name, level in levels.items() if listed[name].isdigit())
    assert job.lines == [line for line in job.lines if line.startswith("cluster batch 0: ")]


@pytest.mark.parametrize("version", EVERY_VERSION)
def test_cluster_job_three_brokers_lose_one_and_then_their_quorum(version: str, tmp_path: Path) -> None:
    with KafkaCluster(
        tmp_path / "kafka", version=version, properties={"offsets.topic.num.partitions": "3"}
    ) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})

        def described() -> list[tuple[int, int, list[int], list[int]]]:
            partitions = admin.list_topics("orders", timeout=PATIENCE_SECONDS).topics["orders"].partitions
            return sorted((at.id, at.leader, at.replicas, sorted(at.isrs)) for at in partitions.values())

        create_orders(admin, 3)
        await_that(lambda: [len(isr) for *_, isr in described()] == [3, 3, 3])
        job = Job(config_of(cluster.bootstrap, tmp_path / "warehouse"))

        def sampled(view: str) -> list[tuple[int, int, list[int], list[int]]]:
            query = f"SELECT partition, leader, replicas, isr FROM {view} WHERE topic = 'orders' ORDER BY partition"
            return [tuple(row.values()) for row in asked(job.config, query)]  # type: ignore[misc]

        def sampled_as_described(view: str) -> bool:
            job.sample()
            return sampled(view) == described()

        await_that(lambda: sampled_as_described("leaders_at(now())"))
        before, at = described(), datetime.now(UTC)
        assert sampled("under_replicated(now())") == []
        [controller] = {row["controller"] for row in job.valid(CLUSTER_INFO)}
        lost = next(leader for _, leader, *_ in before)
        cluster.brokers[lost - 1].kill()
        await_that(lambda: all(leader != lost and lost not in isr for _, leader, _, isr in described()))
        await_that(lambda: sampled_as_described("under_replicated(now())"))
        assert sampled("leaders_at(now())") == described() != before
        assert sampled(f"leaders_at('{at.isoformat()}')") == before
        await_that(lambda: job.sample() or lost not in {row["broker_id"] for row in job.valid(BROKERS)})
        [info] = job.valid(CLUSTER_INFO)
        assert info["controller"] not in (None, lost)
        assert (info["controller"] == controller) or controller == lost
        leads, led = info["controller"], sampled("leaders_at(now())")
        cluster.brokers[leads - 1].kill()
        await_that(lambda: job.sample() or job.valid(CLUSTER_INFO)[0]["problem"] is not None)
        assert job.valid(CLUSTER_INFO)[0]["controller"] is None
        assert job.valid(CLUSTER_INFO)[0]["problem"] == of_sampler.CONTROLLER_UNANSWERED
        assert f"cluster: the controller is unknown: {of_sampler.CONTROLLER_UNANSWERED}" in job.lines
        assert sampled("leaders_at(now())") == led, "what brokers knew"
        job.cluster.close()


@pytest.mark.full
def test_cluster_job_with_zookeeper_and_while_it_migrates_to_kraft(tmp_path: Path) -> None:
    with KafkaWithZooKeeper(tmp_path / "kafka") as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        done(admin.create_topics([NewTopic("orders", 2, 2)]))
        job = Job(config_of(cluster.bootstrap, tmp_path / "warehouse"))

        def sampled() -> tuple[int | None, str | None, Any]:
            job.sample()
            [info] = job.valid(CLUSTER_INFO)
            assert [row["broker_id"] for row in sorted(job.valid(BROKERS), key=str)] == [1, 2]
            return info["controller"], info["problem"], info["features"]

        described = admin.describe_cluster().result(PATIENCE_SECONDS)
        assert sampled() == (described.controller.id, None, [])
        assert {row["is_controller"] for row in job.valid(BROKERS)} == {True, False}
        [before] = job.of(TOPICS, "orders")
        cluster.begin_migration()
        await_that(lambda: sampled()[1] == MIGRATING)
        assert sampled() == (None, MIGRATING, [])
        assert f"cluster: the controller is unknown: {MIGRATING}" in job.lines
        cluster.end_migration()
        await_that(lambda: sampled()[:2] == (CONTROLLER, None))
        assert "metadata.version" in {feature["name"] for feature in sampled()[2]}
        assert [(row["topic_id"], row["is_open"]) for row in job.of(TOPICS, "orders")] == [(before["topic_id"], True)]
        await_that(lambda: sampled() and [row["isr"] for row in job.valid(PARTITIONS)] == [[1, 2], [1, 2]])
        job.cluster.close()


@pytest.mark.parametrize("version", EVERY_VERSION)
def test_cluster_job_coordinators_move_with_the_offset_at_which_their_epoch_begins(
    version: str, tmp_path: Path
) -> None:
    """Judged by Kafka's consumer groups command, and by the epochs in the headers of the records."""
    groups = [f"group-{number}" for number in range(6)]
    properties = {"offsets.topic.num.partitions": "3", "offsets.topic.replication.factor": "3"}
    with KafkaCluster(tmp_path / "kafka", version=version, properties=properties) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        create_orders(admin, 1)
        job = Job(config_of(cluster.bootstrap, tmp_path / "warehouse"))

        def commit(offset: int) -> None:
            for group in groups:
                consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
                consumer.commit(offsets=[TopicPartition("orders", 0, offset)], asynchronous=False)
                consumer.close()

        def are_led_as_described(by: Broker) -> bool:
            described = by.tool(
                *("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", "--describe", "--state"),
                *("--all-groups", "--bootstrap-server", by.bootstrap),
            ).stdout
            coordinators = {
                name: int(node) for name, node in re.findall(r"^(group-\d)\s+\S+ +\((\d+)\)", described, re.M)
            }
            job.sample()
            led = {row["record_partition"]: row["broker_id"] for row in asked(job.config, COORDINATORS_NOW)}
            return coordinators == {name: led.get(coordinator_partition(name, 3)) for name in groups}

        def epochs() -> dict[int, list[tuple[int, int]]]:
            """Return each partition's epochs by the headers of its records, with the first offset of each."""
            found: dict[int, dict[int, int]] = {number: {} for number in range(3)}
            for number, offset, epoch in records_of(cluster.bootstrap, "__consumer_offsets", 3):
                found[number].setdefault(epoch, offset)
            return {number: sorted(first.items()) for number, first in found.items()}

        commit(1)
        await_that(lambda: are_led_as_described(cluster.brokers[0]))
        lost = asked(job.config, COORDINATORS_NOW)[0]["broker_id"]
        cluster.brokers[lost - 1].kill()
        commit(2)
        await_that(lambda: are_led_as_described(cluster.brokers[lost % 3]))
        job.cluster.close()
        rows = sorted(landed.rows(job.config, COORDINATORS), key=lambda row: row["leader_epoch"])
        for number, begun in epochs().items():
            known = {row["leader_epoch"]: row for row in rows if row["record_partition"] == number}
            assert begun == [(epoch, known[epoch]["first_offset"]) for epoch, _ in begun]
        moved = [row for row in rows if row["broker_id"] == lost]
        assert moved
        assert not any(row["is_open"] for row in moved)


def records_of(bootstrap: str, topic: str, partitions: int) -> Iterator[tuple[int, int, int]]:
    """Yield partition, offset and leader epoch of every record of a topic."""
    ends = {
        "bootstrap.servers": bootstrap,
        "group.id": "judge",
        "enable.partition.eof": True,
        "enable.auto.commit": False,
    }
    consumer = Consumer({**ends, "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    ended = 0
    with closing(consumer):
        while ended < partitions:
            message = consumer.poll(PATIENCE_SECONDS)
            assert message is not None
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF
                ended += 1
                continue
            yield message.partition(), message.offset(), message.leader_epoch()


def test_cluster_job_topic_created_changed_recreated_and_deleted_has_each_as_a_row(
    job: Job, admin: AdminClient
) -> None:
    name = f"audit-{uuid.uuid4().hex[:8]}"
    job.sample()
    create(admin, name)
    job.sample()
    entry = ConfigEntry("retention.ms", "60000", incremental_operation=AlterConfigOpType.SET)
    done(
        admin.incremental_alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, incremental_configs=[entry])])
    )
    done(admin.create_partitions([NewPartitions(name, 4)]))
    await_that(lambda: len(admin.list_topics(name, timeout=PATIENCE_SECONDS).topics[name].partitions) == 4)
    job.sample()
    versions = [table.open().version() for table in warehouse_of(job.config).tables(TABLES)]  # type: ignore[union-attr]
    job.sample()
    assert [table.open().version() for table in warehouse_of(job.config).tables(TABLES)] == versions  # type: ignore[union-attr]
    delete(admin, name)
    create(admin, name)
    job.sample()
    delete(admin, name)
    job.sample()
    job.sample()
    topics = job.of(TOPICS, name)
    assert [row["partition_count"] for row in topics] == [3, 4, 3]
    assert [row["valid_to"] for row in topics[:-1]] == [row["valid_from"] for row in topics[1:]]
    first, second, recreated = topics
    assert first["topic_id"] == second["topic_id"] != recreated["topic_id"]
    assert first["created_at"] == second["created_at"] == first["valid_from"]
    assert (first["deleted_at"], second["deleted_at"]) == (None, recreated["created_at"])
    assert recreated["deleted_at"] == recreated["valid_to"] is not None
    assert [row["retention_ms"] for row in job.of(CONFIGS, name)] == [3_600_000, 60_000, 3_600_000]
    assert {row["is_open"] for row in (*job.of(CONFIGS, name), *job.of(PARTITIONS, name))} == {False}
    assert len(job.of(PARTITIONS, name)) == 4


def test_cluster_job_rights_granted_and_revoked_is_ignorant_but_not_wrong(
    broker: Broker, config: Config, topic: str
) -> None:
    """A principal that sees one topic, then its settings, then nothing: nothing is deleted."""
    settings = {"warehouse": config.warehouse, "cluster": "test"}
    job = Job(load_config(None, settings, as_reader(broker)))
    broker.allow("reader", "DESCRIBE", "TOPIC", topic)
    await_that(lambda: topic in set(job.cluster.metadata().topics["topic"].to_pylist()))
    job.sample()
    assert [row["topic"] for row in job.valid(TOPICS)] == [topic]
    assert job.of(CONFIGS, topic)[0]["problem"] == CONFIGS_DENIED
    [info] = job.valid(CLUSTER_INFO)
    assert (info["controller"], info["problem"]) == (None, CLUSTER_DENIED)
    assert [row["is_controller"] for row in job.valid(BROKERS)] == [None]
    assert f"cluster: settings of topics are unknown: {CONFIGS_DENIED}: {topic!r}" in job.lines
    assert f"cluster: the controller is unknown: {CLUSTER_DENIED}" in job.lines
    assert any(line.startswith(f"cluster: sizes of logs are unknown: {CLUSTER_DENIED}") for line in job.lines)
    assert landed.rows(job.config, LOG_SIZES) == []
    brokers, never_there = [row["broker_id"] for row in job.valid(BROKERS)], f"{topic}-never-there"
    assert job.cluster.unlisted([never_there], brokers) == {never_there: DESCRIBE_DENIED}
    revoke(broker, "reader", topic)
    await_that(lambda: not len(job.cluster.metadata().topics))
    job.sample()
    assert [row["topic"] for row in job.valid(TOPICS)] == [topic]
    assert f"cluster: topics keep their last rows: {DESCRIBE_DENIED}: {topic!r}" in job.lines
    job.cluster.close()
