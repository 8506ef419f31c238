"""Records of `__share_group_state` that a real share coordinator writes, compared with what Kafka prints of them, and
landed."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from grouptrail.config import Config
from grouptrail.share_state.deliveries import PartitionState, StateBatch
from grouptrail.storage.warehouse import Warehouse
from grouptrail.wire.records import decode_record, encode_key, encode_value
from grouptrail.wire.text import record_json
from servers.kafka import SHARE_STATE_FORMATTER, VERSIONS, Broker, config_command
from servers.offsets_topic import read_records
from support.cli_in_process import Cli, succeeded
from support.kafka_clients import make_orders
from support.share_consumers import (
    HEARTBEATS,
    accept_as_two,
    acknowledge_in_every_way,
    killed_with_records,
    leave_some,
)

STATE_TOPIC = "__share_group_state"
GROUP, KEPT = "queue", "kept"
AVAILABLE, ACKNOWLEDGED, ARCHIVED = 0, 2, 4
NEWEST, *BEFORE = VERSIONS[:3]  # the consumer receives nothing from the early access of 4.1


@pytest.fixture(scope="module", params=[NEWEST, *(pytest.param(one, marks=pytest.mark.full) for one in BEFORE)])
def queued(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker whose share groups have accepted, released, rejected and given up records; one has been deleted."""
    properties = HEARTBEATS | {
        "share.coordinator.state.topic.num.partitions": "1",
        "share.coordinator.snapshot.update.records.per.snapshot": "10",
        "group.share.delivery.count.limit": "2",
    }
    with Broker(tmp_path_factory.mktemp("kafka"), version=request.param, properties=properties) as broker:
        make_orders(broker.bootstrap)
        for group in (GROUP, KEPT):
            acknowledge_in_every_way(broker, group)
        leave_some(broker, KEPT)
        deleted = broker.tool(
            "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
            *("--bootstrap-server", broker.bootstrap, "--delete", "--group", GROUP),
        )
        assert deleted.returncode == 0, deleted.stderr
        yield broker


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
        assert decoded.key.data["groupId"] in (GROUP, KEPT)
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
        assert (row["group_id"], row["topic_id"], row["partition"]) == (
            key["groupId"],
            key["topicId"],
            key["partition"],
        )
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


def test_delivery_states_are_those_of_kafkas_snapshots_and_counts_and_of_the_clients(
    queued: Broker, cli: Cli, tmp_path: Path
) -> None:
    """Each snapshot has what the updates before it left; at each record Kafka counts as many complete ones."""
    config = Config(kafka={"bootstrap.servers": queued.bootstrap}, warehouse=str(tmp_path))
    succeeded(cli(config, "run", "--job", "share-state", "--once"))
    warehouse = Warehouse(str(tmp_path), config.cluster)
    states = defaultdict[tuple[str, int], PartitionState](lambda: PartitionState(is_whole=True))
    starts = defaultdict[tuple[str, int], int](int)
    compared = 0
    for row in warehouse.table("share_group_state").select("*", "ORDER BY record_offset"):
        at = row["group_id"], row["partition"]
        if row["is_tombstone"]:
            continue
        batches = [StateBatch(*batch.values()) for batch in row["state_batches"]]
        for batch in batches:
            states[at].put(batch)
        starts[at] = starts[at] if row["start_offset"] is None else row["start_offset"]
        states[at].drop_before(starts[at])
        if row["record_type"] == "snapshot" and batches:
            assert states[at].batches == batches
            compared += 1
        complete = [batch for batch in states[at].batches if batch.state != AVAILABLE]
        assert sum(batch.last - batch.first + 1 for batch in complete) == (row["delivery_complete_count"] or 0)
        waiting = [batch for batch in states[at].batches if batch.state == AVAILABLE]
        assert row["awaiting_redelivery"] == sum(batch.last - batch.first + 1 for batch in waiting)
        assert row["most_deliveries"] == max((batch.delivered for batch in waiting), default=0)
    assert compared > 3
    changes = warehouse.table("share_deliveries").select("*", "ORDER BY record_offset, first_offset")
    assert not any(row["is_first"] for row in changes)
    by_record = _by_record(row for row in changes if row["group_id"] == GROUP)
    by_offset = {offset: ways for (_, offset), ways in by_record.items()}
    given_up = [("available", 1, 0), ("archived", 2, 1)]
    said = {
        0: [("acknowledged", 1, 0)],
        1: given_up,
        2: [("archived", 1, 0)],
    }  # by the ways of acknowledge_in_every_way
    last = max(by_offset)
    assert len(by_offset) >= 30
    assert {offset: way for offset, way in by_offset.items() if offset < last} == {
        offset: said[offset % 3] for offset in by_offset if offset < last
    }


@pytest.mark.parametrize("version", [NEWEST, *(pytest.param(one, marks=pytest.mark.full) for one in BEFORE)])
def test_records_of_a_member_that_was_killed_come_back_and_are_delivered_to_others(
    version: str, cli: Cli, tmp_path: Path
) -> None:
    """They come back when the time is up that it may hold them; two other members accept them, and all else."""
    locks = {"group.share.min.record.lock.duration.ms": "1000", "group.share.record.lock.duration.ms": "1000"}
    properties = locks | HEARTBEATS
    with Broker(tmp_path / "kafka", version=version, properties=properties) as broker:
        make_orders(broker.bootstrap)
        held = set(killed_with_records(broker, GROUP))
        first, second = accept_as_two(broker, GROUP, held)
        config = Config(kafka={"bootstrap.servers": broker.bootstrap}, warehouse=str(tmp_path / "warehouse"))
        succeeded(cli(config, "run", "--job", "share-state", "--once"))
    order = "ORDER BY record_partition, record_offset, first_offset"
    by_record = _by_record(Warehouse(config.warehouse, config.cluster).table("share_deliveries").select("*", order))
    assert held
    assert by_record.keys() == first | second
    for record, (*before, last) in by_record.items():  # a slow machine may keep the others waiting, too
        assert before == [("available", count, count - 1) for count in range(1, len(before) + 1)]
        assert last == ("acknowledged", len(before) + 1, len(before))
        assert before or record not in {(0, offset) for offset in held}


@pytest.fixture(scope="module")
def followed(queued: Broker, cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Config:
    """The configuration of a warehouse in which all jobs have run; a setting of the kept group was altered before."""
    altered = queued.tool(
        config_command(queued.version),
        *("--bootstrap-server", queued.bootstrap, "--alter", "--entity-type", "groups", "--entity-name", KEPT),
        *("--add-config", "share.auto.offset.reset=earliest"),
    )
    assert altered.returncode == 0, altered.stderr
    warehouse = str(tmp_path_factory.mktemp("warehouse"))
    config = Config(kafka={"bootstrap.servers": queued.bootstrap}, warehouse=warehouse)
    succeeded(cli(config, "run", "--once"))
    succeeded(cli(config, "run", "--job", "cluster", "--once"))
    return config


def test_lag_of_a_share_group_is_what_kafkas_tool_prints(queued: Broker, followed: Config) -> None:
    """Of one that left records released and unread behind; the deleted one has no lag."""
    rows = Warehouse(followed.warehouse, followed.cluster).table("consumer_lag").select("*", "ORDER BY partition")
    described = queued.tool(
        "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
        *("--bootstrap-server", queued.bootstrap, "--describe", "--group", KEPT, "--offsets"),
    )
    assert described.returncode == 0, described.stderr
    printed = [line.split() for line in described.stdout.splitlines() if line.startswith(f"{KEPT} ")]
    theirs = [[topic, int(partition), start, lag] for _, topic, partition, start, lag in printed]
    ours = [[row["topic"], row["partition"], str(row["committed_offset"]), str(row["lag"])] for row in rows]
    assert ours == sorted(row for row in theirs if row[2] != "-")  # of which nothing has been read
    assert all(int(row["lag"]) > 0 < row["delivery_complete_count"] for row in rows)
    assert {row["group_id"] for row in rows} == {KEPT}


def test_settings_of_a_share_group_are_landed(queued: Broker, followed: Config) -> None:
    """The limit of deliveries is that of the broker, and known of Kafka 4.3 and later; the group has a setting of its
    own."""
    settings = {
        row["name"]: (row["value"], row["source"])
        for row in Warehouse(followed.warehouse, followed.cluster).table("group_configs").select("*")
        if row["group_id"] == KEPT
    }
    limit = None if queued.version == "4.2.0" else ("2", "broker")
    assert settings.get("share.delivery.count.limit") == limit
    assert settings["share.auto.offset.reset"] == ("earliest", "group")
    assert all(name.startswith(("share.", "errors.")) for name in settings)


def test_records_that_were_given_up_are_poison_records(followed: Config, cli: Cli) -> None:
    out = succeeded(cli(followed, "sql", "--format", "json", "SELECT * FROM poison_records(2) ORDER BY first_offset"))
    given_up = [json.loads(line) for line in out.splitlines()]
    assert {row["deliveries"] for row in given_up} == {2}
    assert all(row["first_offset"] % 3 == 1 for row in given_up if row["group_id"] == GROUP)
    assert {(row["group_id"], row["topic"]) for row in given_up} == {(GROUP, "orders"), (KEPT, "orders")}


def test_share_state_job_without_a_share_group_waits_for_one(broker: Broker, cli: Cli, tmp_path: Path) -> None:
    config = Config(kafka={"bootstrap.servers": broker.bootstrap}, warehouse=str(tmp_path))
    assert "share-state: " not in succeeded(cli(config, "run", "--job", "share-state", "--once"))
    assert not Warehouse(str(tmp_path), config.cluster).table("share_group_state").has_rows()
    succeeded(cli(config, "sql", "SELECT * FROM poison_records"))


def _known(number: int | None) -> int:
    return -1 if number is None else number


def _by_record(changes: Iterable[dict[str, Any]]) -> dict[tuple[int, int], list[tuple[str, int, int]]]:
    """Return state, delivery count and count before of each change, by partition and offset of a record."""
    found = defaultdict[tuple[int, int], list[tuple[str, int, int]]](list)
    for row in changes:
        for offset in range(row["first_offset"], row["last_offset"] + 1):
            change = row["delivery_state"], row["delivery_count"], row["previous_count"]
            found[row["partition"], offset].append(change)
    return found
