"""The demo's Kafka itself: the other broker tests stand on it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import (  # type: ignore[import-untyped]
    KafkaAdminClient,
    KafkaConsumer,
    OffsetAndMetadata,
    TopicPartition,
)
from kafka.errors import TopicAuthorizationFailedError  # type: ignore[import-untyped]

from demo.kafka import (
    OFFSETS_FORMATTER,
    OFFSETS_TOPIC,
    PASSWORDS,
    Broker,
    BrokerError,
    ensure_offsets_topic,
    fetch,
    load_raw,
    read_records,
)

pytestmark = pytest.mark.broker

PARTITIONS = 2


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(
        tmp_path_factory.mktemp("kafka"),
        properties={"offsets.topic.num.partitions": str(PARTITIONS)},
        security="sasl",
    ) as started:
        yield started


def commit(broker: Broker, group: str, offset: int) -> None:
    """A commit by a group without members, as an operator's reset makes it."""
    commits = {TopicPartition("orders", 0): OffsetAndMetadata(offset, "by hand", -1)}
    with contextlib.closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as admin:
        admin.alter_group_offsets(group, commits)


def committed(broker: Broker, group: str) -> int:
    with contextlib.closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as admin:
        offsets = admin.list_group_offsets({group: [TopicPartition("orders", 0)]})[group]
    return int(offsets[TopicPartition("orders", 0)].offset)


def test_a_second_fetch_is_instant() -> None:
    fetch()
    started = time.monotonic()
    said: list[str] = []
    assert (fetch(report=said.append) / "kafka-tools-4.3.0.jar").is_file()
    assert time.monotonic() - started < 0.1
    assert said == []


def test_the_offsets_topic_has_the_partitions_asked_for(broker: Broker) -> None:
    assert ensure_offsets_topic(broker.bootstrap) == PARTITIONS


def test_a_commit_is_printed_by_kafkas_own_tools(broker: Broker) -> None:
    ensure_offsets_topic(broker.bootstrap)
    with contextlib.closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as admin:
        admin.create_topics({"orders": {"num_partitions": 1, "replication_factor": 1}})
        admin.wait_for_topics(["orders"])
    commit(broker, "printed", 41)
    key = {"group": "printed", "topic": "orders", "partition": 0}

    [row] = [row for row in broker.formatted(OFFSETS_FORMATTER) if row["key"]["data"] == key]
    assert row["key"]["type"] == 1
    assert (row["value"]["data"]["offset"], row["value"]["data"]["metadata"]) == (41, "by hand")

    [dumped] = [row for row in broker.dumped() if row["key"]["data"] == key]
    assert (dumped["partition"], dumped["offset"]) == (row["partition"], row["offset"])
    assert dumped["value"]["data"] == row["value"]["data"]

    [raw] = [r for r in read_records(broker.bootstrap) if r.type == 1 and r.key and b"printed" in r.key]
    assert (raw.partition, raw.offset) == (row["partition"], row["offset"])


def test_a_killed_broker_comes_back_with_its_data(broker: Broker) -> None:
    ensure_offsets_topic(broker.bootstrap)
    commit(broker, "survivor", 7)
    bootstrap = broker.bootstrap
    broker.kill()
    assert not broker.running
    broker.start()
    assert broker.bootstrap == bootstrap
    assert committed(broker, "survivor") == 7


def test_users_may_do_what_they_were_allowed(broker: Broker) -> None:
    ensure_offsets_topic(broker.bootstrap)
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


# After the tests that use the formatters: they stop at the record that is unreadable from here on.
def test_raw_records_lie_in_the_topic_as_they_were_given(broker: Broker) -> None:
    ensure_offsets_topic(broker.bootstrap)
    before = len(read_records(broker.bootstrap))
    assert load_raw(broker.bootstrap, [(0, b"\x00\x63abc", None), (1, b"\x00\x01", b"x")]) == 2
    records = read_records(broker.bootstrap)
    assert len(records) == before + 2
    assert {(0, b"\x00\x63abc", None), (1, b"\x00\x01", b"x")} <= {(r.partition, r.key, r.value) for r in records}
    errors = [row["error"] for row in broker.dumped() if row["error"]]
    assert [error.split(" at offset")[0] for error in errors] == ["Unknown record type 99", "Error"]
    with pytest.raises(BrokerError, match=r"stopped in partition 1 .* use dumped"):
        broker.formatted(OFFSETS_FORMATTER)


START_AND_WAIT = """\
import sys
from pathlib import Path
from demo.kafka import Broker
print(Broker(Path(sys.argv[1])).start().pid, flush=True)
sys.stdin.read()
"""


def test_no_broker_outlives_its_parent(broker: Broker, tmp_path: Path) -> None:
    broker.stop()
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
    deadline = time.monotonic() + 10
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(child)


def alive(pid: int) -> bool:
    """A process that has ended but that nobody has waited for is not alive."""
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return bool(shown.stdout.strip()) and not shown.stdout.startswith("Z")
