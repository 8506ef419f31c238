"""The demo's Kafka itself: the other broker tests stand on it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import (  # type: ignore[import-untyped]
    KafkaAdminClient,
    KafkaConsumer,
    TopicPartition,
)
from kafka.errors import KafkaError, TopicAuthorizationFailedError  # type: ignore[import-untyped]

from servers.errors import BrokerError
from servers.kafka import OFFSETS_FORMATTER, PASSWORDS, VERSIONS, Broker, fetch
from servers.offsets_topic import OFFSETS_TOPIC, ensure_offsets_topic, load_raw, read_records
from support.kafka_clients import await_that, commit, commit_all, make_orders

PARTITIONS = 2


PROPERTIES = {"offsets.topic.num.partitions": str(PARTITIONS)}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with the offsets topic and the topic `orders`."""
    with Broker(tmp_path_factory.mktemp("kafka"), properties=PROPERTIES, security="sasl") as started:
        make_orders(started.bootstrap)
        yield started


def committed(broker: Broker, group: str) -> int:
    with contextlib.closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as admin:
        offsets = admin.list_group_offsets({group: [TopicPartition("orders", 0)]})[group]
    return int(offsets[TopicPartition("orders", 0)].offset)


def committed_if_loaded(broker: Broker, group: str) -> int | None:
    """The group's offset, or None while the coordinator still reads its partition, as after a crash."""
    try:
        return committed(broker, group)
    except KafkaError as error:
        if not error.retriable:
            raise
        return None


def test_fetch_jars_already_cached_reports_nothing() -> None:
    fetch()
    said: list[str] = []
    assert (fetch(log=said.append) / f"kafka-tools-{VERSIONS[0]}.jar").is_file()
    assert said == []


def test_ensure_offsets_topic_returns_the_configured_partition_count(broker: Broker) -> None:
    assert ensure_offsets_topic(broker.bootstrap) == PARTITIONS


def test_formatted_dumped_and_read_records_return_the_same_commit(broker: Broker) -> None:
    commit_all(broker.bootstrap, "printed", {("orders", 0): 41}, "by hand")
    key = {"group": "printed", "topic": "orders", "partition": 0}

    [row] = [row for row in broker.formatted(OFFSETS_FORMATTER) if row["key"]["data"] == key]
    assert row["key"]["type"] == 1
    assert (row["value"]["data"]["offset"], row["value"]["data"]["metadata"]) == (41, "by hand")

    [dumped] = [row for row in broker.dumped() if row["key"]["data"] == key]
    assert (dumped["partition"], dumped["offset"]) == (row["partition"], row["offset"])
    assert dumped["value"]["data"] == row["value"]["data"]

    [raw] = [r for r in read_records(broker.bootstrap) if r.type == 1 and r.key and b"printed" in r.key]
    assert (raw.partition, raw.offset) == (row["partition"], row["offset"])


def test_broker_killed_and_restarted_keeps_its_port_and_data(broker: Broker) -> None:
    commit(broker.bootstrap, "survivor", 7)
    bootstrap = broker.bootstrap
    broker.kill()
    assert not broker.running
    broker.start()
    assert broker.bootstrap == bootstrap
    # Before the coordinator has loaded its partition, it may also answer that there is no offset.
    await_that(lambda: committed_if_loaded(broker, "survivor") == 7)


def test_broker_allow_read_authorizes_a_previously_denied_sasl_user(broker: Broker) -> None:
    partition = TopicPartition(OFFSETS_TOPIC, 0)
    with contextlib.closing(
        KafkaConsumer(
            bootstrap_servers=broker.sasl_bootstrap,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="PLAIN",
            sasl_plain_username="reader",
            sasl_plain_password=PASSWORDS["reader"],
        )
    ) as consumer:
        with pytest.raises(TopicAuthorizationFailedError):
            consumer.beginning_offsets([partition])
        broker.allow("reader", "READ", "TOPIC", OFFSETS_TOPIC)
        assert consumer.beginning_offsets([partition]) == {partition: 0}


def test_load_raw_unreadable_records_are_stored_unchanged_and_stop_the_formatter(tmp_path: Path) -> None:
    with Broker(tmp_path / "kafka", properties=PROPERTIES) as broker:
        ensure_offsets_topic(broker.bootstrap)
        assert load_raw(broker.bootstrap, [(0, b"\x00\x63abc", None), (1, b"\x00\x01", b"x")]) == 2
        records = {(record.partition, record.key, record.value) for record in read_records(broker.bootstrap)}
        assert records == {(0, b"\x00\x63abc", None), (1, b"\x00\x01", b"x")}
        errors = [row["error"] for row in broker.dumped() if row["error"]]
        assert [error.split(" at offset")[0] for error in errors] == ["Unknown record type 99", "Error"]
        with pytest.raises(BrokerError, match=r"stopped in partition 1 .* use dumped"):
            broker.formatted(OFFSETS_FORMATTER)


START_AND_WAIT = """\
import sys
from pathlib import Path
from servers.kafka import Broker
print(Broker(Path(sys.argv[1])).start().pid, flush=True)
sys.stdin.read()
"""


def test_broker_parent_process_killed_stops_the_broker(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", START_AND_WAIT, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        assert parent.stdout
        child = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
    await_that(lambda: not alive(child))


def alive(pid: int) -> bool:
    """A process that has ended but that nobody has waited for is not alive."""
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return bool(shown.stdout.strip()) and not shown.stdout.startswith("Z")
