"""Log offsets on a real Kafka: against its own GetOffsetShell and another client, and what the cluster may do."""

from __future__ import annotations

import signal
import time
import uuid
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from confluent_kafka import IsolationLevel, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from grouptrail.config import Config
from grouptrail.kafka.log import PartitionMetadata
from grouptrail.log_offsets.source import LeaderTask, LogOffsetsSource, sample
from servers.kafka import PASSWORDS, Broker
from servers.offsets_topic import ensure_offsets_topic
from support import landed
from support.cli_in_process import Cli, succeeded
from support.cli_process import Grouptrail
from support.kafka_clients import PATIENCE_SECONDS, await_that, commit_all, producer

PARTITIONS = 3
URL_SAFE = str.maketrans("+/", "-_")  # base64 as Kafka prints it, of librdkafka's

Bounds = tuple[int, int, int]


@pytest.fixture
def topic(broker: Broker) -> Iterator[str]:
    """Create a topic with three partitions, the last of them empty."""
    name = f"orders-{uuid.uuid4().hex[:8]}"
    create(broker, name)
    with producer(broker) as producing:
        for partition, count in enumerate((5, 2)):
            for _ in range(count):
                producing.produce(name, b"x", partition=partition)
    yield name
    if name in names(broker):
        delete(broker, name)


def admin(broker: Broker) -> AdminClient:
    """Return the broker's admin client, which is cached: its futures fail once it is garbage-collected."""
    return _admin(broker.bootstrap)


@cache
def _admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


@pytest.fixture(scope="module", autouse=True)
def none_outlives_its_broker() -> Iterator[None]:
    """A client of a stopped broker would retry until the end of all tests, and log so once a second."""
    yield
    _admin.cache_clear()


def create(broker: Broker, name: str) -> None:
    admin(broker).create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(PATIENCE_SECONDS)
    await_that(lambda: name in names(broker))


def delete(broker: Broker, name: str) -> None:
    admin(broker).delete_topics([name])[name].result(PATIENCE_SECONDS)
    await_that(lambda: name not in names(broker))


def names(broker: Broker) -> set[str]:
    return set(admin(broker).list_topics(timeout=PATIENCE_SECONDS).topics)


def asked(broker: Broker, **options: str) -> list[dict[str, Any]]:
    """Return the rows of the data source, planned and read in this process."""
    reader = LogOffsetsSource({"kafka.bootstrap.servers": broker.bootstrap, **options}).reader(None)  # type: ignore[arg-type]
    return [row for one in reader.partitions() for batch in reader.read(one) for row in batch.to_pylist()]


def assign(name: str) -> str:
    return f'{{"{name}": [0, 1, 2]}}'


def bounds(rows: list[dict[str, Any]]) -> dict[int, Bounds]:
    """Return (log start, last stable, log end) offsets by partition; no row may have an error."""
    assert {row["error"] for row in rows} == {None}
    return {
        row["partition"]: (row["log_start_offset"], row["last_stable_offset"], row["log_end_offset"]) for row in rows
    }


def bounds_from_librdkafka(broker: Broker, name: str) -> dict[int, Bounds]:
    """The same bounds from librdkafka."""
    offsets = []
    for spec, level in (
        (OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED),
        (OffsetSpec.latest(), IsolationLevel.READ_COMMITTED),
        (OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED),
    ):
        wanted = {TopicPartition(name, partition): spec for partition in range(PARTITIONS)}
        answers = admin(broker).list_offsets(wanted, isolation_level=level)
        offsets.append({at.partition: answer.result(PATIENCE_SECONDS).offset for at, answer in answers.items()})
    return {partition: tuple(answer[partition] for answer in offsets) for partition in range(PARTITIONS)}  # type: ignore[misc]


def offsets_from_kafkas_tool(broker: Broker, name: str, when: str) -> dict[int, int]:
    """Return GetOffsetShell's offsets by partition; it prints topic:partition:offset."""
    printed = broker.tool(
        "org.apache.kafka.tools.GetOffsetShell",
        *("--bootstrap-server", broker.bootstrap, "--topic", name, "--time", when),
    )
    lines = [line.rsplit(":", 2) for line in printed.stdout.splitlines() if line.startswith(f"{name}:")]
    return {int(partition): int(offset) for _, partition, offset in lines}


def assert_true(broker: Broker, name: str) -> dict[int, Bounds]:
    """Assert that the data source, Kafka's own tool and another client return the same offsets."""
    measured = bounds(asked(broker, assign=assign(name)))
    assert measured == bounds_from_librdkafka(broker, name)
    assert {at: start for at, (start, _, _) in measured.items()} == offsets_from_kafkas_tool(broker, name, "earliest")
    assert {at: end for at, (_, _, end) in measured.items()} == offsets_from_kafkas_tool(broker, name, "latest")
    return measured


def test_log_offsets_source_plain_topic_matches_get_offset_shell_and_librdkafka(broker: Broker, topic: str) -> None:
    """The topic has partitions with records and an empty one."""
    assert assert_true(broker, topic) == {0: (0, 5, 5), 1: (0, 2, 2), 2: (0, 0, 0)}


def test_log_offsets_source_open_transaction_holds_back_last_stable_offset(broker: Broker, topic: str) -> None:
    """Its end is a marker with an offset of its own."""
    with producer(broker, **{"transactional.id": topic}) as producing:
        producing.init_transactions(PATIENCE_SECONDS)
        producing.begin_transaction()
        for _ in range(3):
            producing.produce(topic, b"x", partition=0)
        assert producing.flush(PATIENCE_SECONDS) == 0
        assert assert_true(broker, topic)[0] == (0, 5, 8)
        producing.commit_transaction(PATIENCE_SECONDS)
    await_that(lambda: bounds(asked(broker, assign=assign(topic)))[0] == (0, 9, 9))
    assert bounds_from_librdkafka(broker, topic)[0] == (0, 9, 9)


def test_log_offsets_source_deleted_records_advance_log_start_offset(broker: Broker, topic: str) -> None:
    answers = admin(broker).delete_records([TopicPartition(topic, 0, 4)])
    assert [answer.result(PATIENCE_SECONDS).low_watermark for answer in answers.values()] == [4]
    assert assert_true(broker, topic) == {0: (4, 5, 5), 1: (0, 2, 2), 2: (0, 0, 0)}


def test_log_offsets_source_without_assign_samples_all_topics(broker: Broker, topic: str) -> None:
    """Including Kafka's internal topics; each row has the topic id and the time of the answer."""
    ensure_offsets_topic(broker.bootstrap)
    before = time.time()
    rows = asked(broker)
    assert {row["topic"] for row in rows} == names(broker)
    assert bounds([row for row in rows if row["topic"] == topic]) == bounds_from_librdkafka(broker, topic)
    ids = {row["topic"]: row["topic_id"] for row in rows}
    described = admin(broker).describe_topics(TopicCollection([topic]))[topic].result(PATIENCE_SECONDS)
    assert ids[topic] == str(described.topic_id).translate(URL_SAFE)
    assert all(before <= row["sampled_at"].timestamp() <= time.time() for row in rows)


def test_log_offsets_source_topic_deleted_after_planning_has_error_rows(broker: Broker, topic: str) -> None:
    """The plan still contains the topic.

    Partitions of other topics have offsets, and a topic created again has another id.
    """
    other = f"other-{topic}"
    create(broker, other)
    both = f'{{"{topic}": [0, 1, 2], "{other}": [0, 1, 2]}}'
    before = {row["topic"]: row["topic_id"] for row in asked(broker, assign=both)}
    reader = LogOffsetsSource({"kafka.bootstrap.servers": broker.bootstrap, "assign": both}).reader(None)  # type: ignore[arg-type]
    (planned,) = reader.partitions()
    delete(broker, other)
    (batch,) = reader.read(planned)
    rows = batch.to_pylist()
    assert [row["error"] for row in rows if row["topic"] == other] == ["topic deleted"] * PARTITIONS
    assert bounds([row for row in rows if row["topic"] == topic]) == bounds_from_librdkafka(broker, topic)
    gone = [row for row in asked(broker, assign=both) if row["topic"] == other]
    assert [(row["error"], row["topic_id"]) for row in gone] == [("no such topic", None)] * PARTITIONS
    create(broker, other)
    after = {row["topic"]: row["topic_id"] for row in asked(broker, assign=both)}
    assert after[topic] == before[topic]
    assert after[other] not in (None, before[other])
    delete(broker, other)


def test_log_offsets_sample_broker_unreachable_or_unknown_returns_error_row(broker: Broker, topic: str) -> None:
    """One planned broker does not listen, another has left the cluster."""
    settings = {"bootstrap.servers": broker.bootstrap}
    there = PartitionMetadata(topic, 0, None, 1, broker.bootstrap)
    (row,) = sample(settings, LeaderTask(2, "127.0.0.1:9", (there,))).to_pylist()
    assert (row["error"], row["log_end_offset"]) == ("broker 2 did not answer", None)
    (row,) = sample(settings, LeaderTask(77, broker.bootstrap, (there,))).to_pylist()
    assert (row["error"], row["log_end_offset"]) == ("broker 77 did not answer", None)
    assert bounds(asked(broker, assign=assign(topic)))[0] == (0, 5, 5)


def test_log_offsets_source_missing_acl_or_wrong_password_returns_error_rows(broker: Broker, topic: str) -> None:
    """Without DESCRIBE on a topic there are no offsets; an error about the login does not contain the password."""
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"

    def through_sasl(user: str, password: str) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": broker.sasl_bootstrap,
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.jaas.config": f'{login} username="{user}" password="{password}";',
            "assign": assign(topic),
        }

    reader = through_sasl("reader", PASSWORDS["reader"])
    assert {row["error"] for row in asked(broker, **reader)} == {"DESCRIBE is denied"}
    broker.allow("reader", "DESCRIBE", "TOPIC", topic)
    assert bounds(asked(broker, **reader)) == bounds_from_librdkafka(broker, topic)
    stranger = through_sasl("reader", "hunter2")

    def is_refused() -> bool:
        wrong = asked(broker, **stranger)
        assert "hunter2" not in str(wrong)
        return {row["error"] for row in wrong} == {"no broker got a valid login"}

    await_that(is_refused)  # a broker on a busy machine may take longer to refuse than a sample waits


# --- the job -------------------------------------------------------------------------------------------------


def commit(broker: Broker, *partitions: tuple[str, int]) -> None:
    """Commit for a group without members, as an operator's reset does."""
    commit_all(broker.bootstrap, "samplers", dict.fromkeys(partitions, 1))


def samples(config: Config) -> list[dict[str, Any]]:
    return sorted(landed.rows(config, "log_offsets"), key=lambda row: (row["sampled_at"], row["partition"]))


def test_log_offsets_job_once_samples_committed_partitions_or_all_topics(
    broker: Broker, config: Config, cli: Cli, topic: str
) -> None:
    """--once takes one sample, of all topics if the setting says so."""
    ensure_offsets_topic(broker.bootstrap)
    commit(broker, (topic, 0), (topic, 1))
    printed = succeeded(cli(config, "run", "--job", "decode", "--job", "log-offsets", "--once"))
    assert "log-offsets batch 0: " in printed
    mine = [row for row in samples(config) if row["topic"] == topic]
    truth = bounds_from_librdkafka(broker, topic)
    assert bounds(mine) == {partition: truth[partition] for partition in (0, 1)}
    assert len(mine) == 2

    everything = {"GROUPTRAIL_LOG_OFFSETS__ALL_TOPICS": "true"}
    succeeded(cli(config, "run", "--job", "log-offsets", "--once", environ=everything))
    second = [row for row in samples(config) if row["sampled_at"] > mine[-1]["sampled_at"]]
    assert {row["topic"] for row in second} == names(broker)
    assert bounds([row for row in second if row["topic"] == topic]) == truth


def test_log_offsets_job_broker_restarted_lands_error_rows_then_resumes(
    broker: Broker, config: Config, cli: Cli, topic: str
) -> None:
    """Every sample has its rows: those of the outage have an error, later ones have offsets again."""
    ensure_offsets_topic(broker.bootstrap)
    commit(broker, (topic, 0))
    succeeded(cli(config, "run", "--job", "decode", "--once"))
    run = Grouptrail(config, "run", "--job", "log-offsets", environ={"GROUPTRAIL_LOG_OFFSETS__INTERVAL_SECONDS": "1"})

    def newest() -> dict[str, Any]:
        assert run.process.poll() is None, run.finished()
        return next(row for row in reversed(samples(config)) if row["topic"] == topic)

    lines = run.lines()  # kept to the end: without it the job would print into a closed pipe
    try:
        assert next(line for line in lines if line.startswith("log-offsets batch 0: "))
        assert newest()["error"] is None
        broker.stop()
        await_that(lambda: newest()["error"] == "no broker answered")
        assert newest()["log_end_offset"] is None
        broker.start()
        with producer(broker) as producing:
            producing.produce(topic, b"x", partition=0)
        await_that(lambda: newest()["error"] is None)
        await_that(lambda: newest()["log_end_offset"] == 6)
        run.process.send_signal(signal.SIGTERM)
        printed = run.finished()
    finally:
        if run.process.poll() is None:
            run.kill()
        broker.start()
    assert run.process.returncode == 128 + signal.SIGTERM, printed
    mine = [row for row in samples(config) if row["topic"] == topic]
    assert len({row["sampled_at"] for row in mine}) == len(mine)
