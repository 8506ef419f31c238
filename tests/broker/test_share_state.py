"""Records of `__share_group_state` that a real share coordinator writes, compared with what Kafka prints of them, and
landed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import AcknowledgeType, ShareConsumer

from grouptrail.config import Config
from grouptrail.storage.warehouse import Warehouse
from grouptrail.wire.records import decode_record, encode_key, encode_value
from grouptrail.wire.text import record_json
from servers.kafka import SHARE_STATE_FORMATTER, VERSIONS, Broker
from servers.offsets_topic import read_records
from support.cli_in_process import Cli, succeeded
from support.kafka_clients import await_that, make_orders, producer

STATE_TOPIC = "__share_group_state"
GROUP = "queue"
AVAILABLE, ACKNOWLEDGED, ARCHIVED = 0, 2, 4
NEWEST, BEFORE, *_ = VERSIONS  # the consumer receives nothing from the early access of 4.1


@pytest.fixture(scope="module", params=[NEWEST, pytest.param(BEFORE, marks=pytest.mark.full)])
def queued(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker whose share group has accepted, released, rejected and given up records, and has been deleted."""
    properties = {
        "share.coordinator.state.topic.num.partitions": "1",
        "share.coordinator.snapshot.update.records.per.snapshot": "10",
        "group.share.delivery.count.limit": "2",
    }
    with Broker(tmp_path_factory.mktemp("kafka"), version=request.param, properties=properties) as broker:
        make_orders(broker.bootstrap)
        _consume(broker)
        deleted = broker.tool(
            "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
            *("--bootstrap-server", broker.bootstrap, "--delete", "--group", GROUP),
        )
        assert deleted.returncode == 0, deleted.stderr
        yield broker


def _consume(broker: Broker) -> None:
    """Acknowledge records in every way; every third one is released until the broker gives it up."""
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": GROUP, "share.acknowledgement.mode": "explicit"}
    consumer = ShareConsumer({**settings, "log_level": 2})
    consumer.subscribe(["orders"])
    ways = (AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT)
    acknowledged = 0

    def has_acknowledged_enough() -> bool:
        nonlocal acknowledged
        producing.produce("orders", b"x", partition=0)  # it starts at the end of the log
        for message in consumer.poll(0.2):
            assert message.error() is None
            consumer.acknowledge(message, ways[message.offset() % 3])
            acknowledged += 1
        consumer.commit_sync()
        return acknowledged >= 60

    with producer(broker) as producing:
        await_that(has_acknowledged_enough)
    consumer.close()


def test_decode_record_share_state_matches_kafkas_formatter(queued: Broker) -> None:
    """Snapshots, updates and tombstones; each encodes back to its own bytes."""
    printed = {row["offset"]: row for row in queued.formatted(SHARE_STATE_FORMATTER, topic=STATE_TOPIC)}
    records = read_records(queued.bootstrap, topic=STATE_TOPIC)
    assert len(printed) == len(records)
    states: set[int] = set()
    kinds: set[tuple[int, bool]] = set()
    is_counted = False
    for record in records:
        decoded = decode_record(record.key, record.value, coordinator="share")
        ours, theirs = record_json(decoded), printed[record.offset]
        assert (ours["key"], ours["value"]) == (theirs["key"], theirs["value"]), record.offset
        assert decoded.key is not None
        assert (encode_key(decoded.key), encode_value(decoded.key, decoded.value)) == (record.key, record.value)
        assert decoded.key.data["groupId"] == GROUP
        kinds.add((decoded.key.type, decoded.value is None))
        if decoded.value is not None:
            states |= {batch["deliveryState"] for batch in decoded.value.data["stateBatches"]}
            is_counted |= "deliveryCompleteCount" in decoded.value.data
    assert {(0, False), (1, False), (0, True)} <= kinds
    assert {AVAILABLE, ACKNOWLEDGED, ARCHIVED} <= states
    assert is_counted


def test_share_state_job_lands_each_record_once_with_the_fields_that_kafka_prints(
    queued: Broker, cli: Cli, tmp_path: Path
) -> None:
    """Also when it runs again; Kafka's formatter is asked for the same records."""
    config = Config(kafka={"bootstrap.servers": queued.bootstrap}, warehouse=str(tmp_path))
    for _ in range(2):
        succeeded(cli(config, "run", "--job", "share-state", "--once"))
    rows = Warehouse(str(tmp_path), config.cluster).table("share_group_state").select("*", "ORDER BY record_offset")
    printed = queued.formatted(SHARE_STATE_FORMATTER, topic=STATE_TOPIC)
    assert [row["record_offset"] for row in rows] == sorted(row["offset"] for row in printed)
    theirs = {row["offset"]: row for row in printed}
    for row in rows:
        key, value = theirs[row["record_offset"]]["key"]["data"], theirs[row["record_offset"]]["value"]
        assert (row["group_id"], row["topic_id"], row["partition"]) == (GROUP, key["topicId"], key["partition"])
        assert row["is_tombstone"] == (value is None)
        if value is not None:
            data = value["data"]
            assert row["snapshot_epoch"] == data["snapshotEpoch"]
            assert _known(row["start_offset"]) == data["startOffset"]
            assert _known(row["delivery_complete_count"]) == data.get("deliveryCompleteCount", -1)
            assert [list(batch.values()) for batch in row["state_batches"]] == [
                [batch["firstOffset"], batch["lastOffset"], batch["deliveryState"], batch["deliveryCount"]]
                for batch in data["stateBatches"]
            ]


def test_share_state_job_without_a_share_group_waits_for_one(broker: Broker, cli: Cli, tmp_path: Path) -> None:
    config = Config(kafka={"bootstrap.servers": broker.bootstrap}, warehouse=str(tmp_path))
    assert "share-state: " not in succeeded(cli(config, "run", "--job", "share-state", "--once"))
    assert not Warehouse(str(tmp_path), config.cluster).table("share_group_state").has_rows()


def _known(number: int | None) -> int:
    return -1 if number is None else number
