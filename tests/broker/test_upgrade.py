"""A pipeline of version 0.1 goes on with this version, while its broker is upgraded from Kafka to Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import landed
from broker.test_broker_faults import assert_formatter_agrees, commit, config_of, groups, in_topic
from clients import PATIENCE_SECONDS
from command import Grouptrail
from demo.kafka import VERSIONS, Broker, ensure_offsets_topic
from frozen_pipeline import PARTITIONS, load, thaw
from grouptrail.config import Config
from lake import HISTORY

pytestmark = pytest.mark.broker


def run_once(config: Config) -> str:
    run = Grouptrail(config, "run", "--once")
    printed = run.finished()
    assert run.process.returncode == 0, printed
    return printed


def test_tables_and_checkpoints_go_on_through_three_releases_of_kafka(tmp_path: Path) -> None:
    """What was landed before is not read again, and what comes under each release lands once."""
    frozen = thaw(tmp_path)
    warehouse = tmp_path / "warehouse"
    told = {table: landed.rows(config_of("127.0.0.1:9092", warehouse), table) for table in HISTORY}
    assert all(told.values())
    properties = {"offsets.topic.num.partitions": str(PARTITIONS)}
    for number, version in enumerate(reversed(VERSIONS), 1):
        with Broker(tmp_path / "kafka", version=version, properties=properties) as broker:
            config = config_of(broker.bootstrap, warehouse)
            if number == 1:
                ensure_offsets_topic(broker.bootstrap)
                load(broker.bootstrap, frozen)
                admin = AdminClient({"bootstrap.servers": broker.bootstrap})
                admin.create_topics([NewTopic("orders", 2)])["orders"].result(PATIENCE_SECONDS)
            commit(broker.bootstrap, groups(PARTITIONS)[1], number)
            before = in_topic(broker.bootstrap)
            assert "offset commits" in run_once(config)
            # A broker that has loaded the groups may write of them at any time: their members do not answer.
            assert before.items() <= landed.records(config).items() <= in_topic(broker.bootstrap).items()
            assert len(landed.records(config)) >= len(frozen) + number
            landed.assert_progress_adds_up(config)
            assert_formatter_agrees(broker, config)
    for table in set(HISTORY) - {"ingest_progress"}:
        for row in told[table]:
            assert row in landed.rows(config, table), table
