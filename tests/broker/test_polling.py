"""Groups polled on a real Kafka by a principal that may not read the offsets topic."""

from __future__ import annotations

import json
import uuid
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaAdminClient, OffsetAndMetadata
from kafka import TopicPartition as Partition
from pyspark.sql import SparkSession

from grouptrail.config import Config, load_config
from grouptrail.decode.schema import TABLES
from grouptrail.jobs import POLL
from grouptrail.kafka.errors import KafkaDeniedError
from grouptrail.kafka.offsets_topic import OffsetsTopic
from grouptrail.runtime.warehouses import warehouse_of
from servers.kafka import Broker
from servers.offsets_topic import OFFSETS_TOPIC, ensure_offsets_topic
from support import landed
from support.cli_in_process import Cli, succeeded
from support.contexts import context
from support.kafka_clients import PATIENCE_SECONDS, as_reader, await_that, producer
from support.lag_figures import classic_member, described, figures, kip848_member, newest

pytestmark = pytest.mark.full

PARTITIONS = 3
CHECKED = ("offset_commits", "group_metadata", "group_records", "ingest_progress", "generations", "group_states")


@pytest.fixture(scope="module")
def topic(broker: Broker) -> str:
    name = f"orders-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(PATIENCE_SECONDS)
    ensure_offsets_topic(broker.bootstrap)
    await_that(lambda: name in admin.list_topics(timeout=PATIENCE_SECONDS).topics)
    with producer(broker) as producing:
        for number in range(40):
            producing.produce(name, b"x", partition=number % 2)
    return name


def poll(spark: SparkSession, config: Config) -> list[str]:
    """Run the polling job once and return the lines that it logs."""
    lines: list[str] = []
    query = POLL.start(context(POLL, config, spark, lines.append, once=True))
    assert query.awaitTermination(PATIENCE_SECONDS * 2)
    return lines


def test_run_admin_source_lands_changes_once_and_lag_matches_kafka_consumer_groups(
    broker: Broker, topic: str, spark: SparkSession, cli: Cli, tmp_path: Path
) -> None:
    """Only changes land, each once; lag matches Kafka's own tool, and what polling cannot observe is unknown."""
    billing, search, secret = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("billing", "search", "secret"))
    settings = {"warehouse": str(tmp_path / "warehouse"), "cluster": "test", "source": "admin"}
    config = load_config(None, settings, as_reader(broker))
    for group in (billing, search):
        broker.allow("reader", "DESCRIBE", "GROUP", group)
    broker.allow("reader", "DESCRIBE", "TOPIC", topic)
    with pytest.raises(KafkaDeniedError), OffsetsTopic(config.kafka_settings()) as offsets_topic:
        offsets_topic.bounds()
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    with closing(admin), ExitStack() as members:
        consumer = members.enter_context(classic_member(broker, billing, [topic]))
        members.enter_context(classic_member(broker, secret, [topic]))
        with kip848_member(broker, search, [topic]):
            assert "records in" in poll(spark, config)[-1]
            assert Path(warehouse_of(config).checkpoint_path("decode"), "commits", "0").is_file()
            commits = landed.rows(config, "offset_commits")
            committed = {(row["group_id"], row["partition"]): row["committed_offset"] for row in commits}
            assert committed == {(group, at): 3 + at for group in (billing, search) for at in (0, 1)}
            assert {(row["commit_at"], row["not_before"], row["source"]) for row in commits} == {
                (None, None, "admin")
            }
            [group] = landed.rows(config, "group_metadata")
            [member] = group["members"]
            assert (group["group_id"], group["generation"]) == (billing, 1)
            assert member["assignment"]["partitions"] == [{"topic": topic, "partitions": list(range(PARTITIONS))}]
            assert {row["group_id"] for row in landed.rows(config, "group_records")} == {search}

            for _ in range(5):  # the group may still be reconciling
                before = {table: len(landed.rows(config, table)) for table in (*TABLES, "ingest_progress")}
                if not (lines := poll(spark, config)):
                    break
            assert lines == []
            assert {table: len(landed.rows(config, table)) for table in before} == before

        moved_at = datetime.now(UTC)
        consumer.commit({Partition(topic, 0): OffsetAndMetadata(7, "", -1)})
        poll(spark, config)
        [moved] = [row for row in landed.rows(config, "offset_commits") if row["committed_offset"] == 7]
        assert moved["not_before"] <= moved_at <= moved["record_at"]
        await_that(lambda: admin.delete_groups([search])[search] == "OK")
        poll(spark, config)
        gone = [row for row in landed.rows(config, "offset_commits") if row["is_tombstone"]]
        assert {(row["group_id"], row["partition"]) for row in gone} == {(search, 0), (search, 1)}
        landed.assert_progress_adds_up(config)

        environ = {**as_reader(broker), "GROUPTRAIL_SOURCE": "admin", "GROUPTRAIL_LOG_OFFSETS__ALL_TOPICS": "true"}
        succeeded(cli(config, "run", "--once", environ=environ))
        lag = newest(config, billing, search, secret)
        empty = {(billing, topic, 2): (None, 0, 0)}  # without a commit, where Kafka's tool prints no lag
        assert figures(lag) == described(broker, billing) | empty
        assert {place[0] for place in lag} == {billing}
        assert all(
            row["lag_seconds_error"] is None or row["lag_seconds_error"] >= 30 for row in lag.values() if row["lag"]
        )

    doctor = cli(config, "doctor", environ=environ).printed
    assert "groups" in doctor
    assert OFFSETS_TOPIC not in doctor
    shown = succeeded(cli(config, "show", "group", billing, environ=environ))
    assert "counted by what polls showed" in shown
    assert "polled: times are the polls'" in shown
    ended = json.loads(succeeded(cli(config, "show", "group", search, "--format", "json", environ=environ)))
    assert (ended["state"], ended["state_note"]) == ("Dead", "polled: deleted or expired since the previous poll")
    succeeded(cli(config, "check", *CHECKED, environ=environ))
    recovered = succeeded(cli(config, "recover", "--job", "decode", environ=environ))
    assert "decode: the next run begins where its tables end" in recovered
    succeeded(cli(config, "run", "--once", "--job", "decode", environ=environ))
    landed.assert_progress_adds_up(config)
    who_may_read = {"GROUPTRAIL_KAFKA__BOOTSTRAP_SERVERS": broker.bootstrap}
    refused = cli(config, "run", "--once", "--job", "decode", environ=who_may_read)
    assert "cannot be read into the same rows" in refused.printed.splitlines()[-1]
