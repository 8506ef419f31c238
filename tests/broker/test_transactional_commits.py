"""The verdict on an exactly-once consumer whose transaction stays open, on a Kafka that writes topic ids in it."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from grouptrail.config import Config
from servers.kafka import VERSIONS, Broker
from servers.offsets_topic import ensure_offsets_topic
from support import landed
from support.cli_process import Grouptrail
from support.deadlines import scaled
from support.kafka_clients import PATIENCE_SECONDS, await_that, in_background, producer

STOP_SECONDS = 20
# As six minutes are to the default of five, and longer than a partition may be behind an open transaction.
OPEN_SECONDS = 1.2 * STOP_SECONDS
ENVIRON = {
    "GROUPTRAIL_LOG_OFFSETS__INTERVAL_SECONDS": "1",
    "GROUPTRAIL_LAG__STOP_SECONDS": str(STOP_SECONDS),
    "GROUPTRAIL_EXPORTER__LISTEN": "",
}

pytestmark = pytest.mark.full


@pytest.mark.parametrize("broker", VERSIONS[:2], indirect=True)
def test_verdict_on_an_exactly_once_consumer_after_a_long_transaction_is_never_stop(
    broker: Broker, config: Config
) -> None:
    """Its offsets are in the topic for longer than `stop_seconds` when they take effect; with topic ids since 4.4."""
    group = f"exactly-once-{uuid.uuid4().hex[:8]}"
    ensure_offsets_topic(broker.bootstrap)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(group, 1, 1)])[group].result(PATIENCE_SECONDS)
    run = Grouptrail(config, "run", environ=ENVIRON)
    try:
        with records(broker, group), transactions(broker, group) as opened:
            await_that(lambda: "OK" in _statuses(config, group), scaled(240))
            opened.set()
            await_that(lambda: _late_commits(config, group) >= 2, scaled(240))
    finally:
        run.kill()
    rows = _rows(config, group)
    # It reads nothing while its transaction is open: WARN is true of it.
    assert {row["status"] for row in rows} <= {"OK", "WARN", "UNKNOWN"}, "\n".join(_judged(rows))
    assert all("open transaction" in row["status_reason"] for row in rows if row["status"] == "UNKNOWN")
    commits = [row for row in landed.rows(config, "offset_commits") if row["group_id"] == group]
    assert {row["is_transactional"] for row in commits} == {True}
    assert {row["topic_id"] is not None for row in commits} == {broker.version == "4.4.0"}


@contextmanager
def records(broker: Broker, topic: str) -> Iterator[None]:
    """Write ten records a second until the block ends."""

    def write(ended: threading.Event) -> None:
        with producer(broker) as producing:
            while not ended.wait(0.1):
                producing.produce(topic, b"x", partition=0)
                producing.poll(0)

    with in_background(write):
        yield


@contextmanager
def transactions(broker: Broker, group: str) -> Iterator[threading.Event]:
    """Let a member of the group consume and commit in transactions, which are short until the event is set.

    A long one gets the offsets at once and goes on for `OPEN_SECONDS`.
    """
    are_long = threading.Event()
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": group, "enable.auto.commit": False}
    with (
        closing(Consumer(settings | {"auto.offset.reset": "earliest"})) as consumer,
        in_background(partial(_consume, consumer, Producer(_transactional(broker, group)), group, are_long)),
    ):
        yield are_long


def _transactional(broker: Broker, group: str) -> dict[str, str | int]:
    return {
        "bootstrap.servers": broker.bootstrap,
        "transactional.id": group,
        "transaction.timeout.ms": round(3_000 * OPEN_SECONDS),
    }


def _consume(
    consumer: Consumer, producing: Producer, topic: str, are_long: threading.Event, ended: threading.Event
) -> None:
    producing.init_transactions(PATIENCE_SECONDS)
    consumer.subscribe([topic])
    while not ended.is_set():
        if not consumer.consume(100, timeout=1):
            continue
        producing.begin_transaction()
        offsets = consumer.position(consumer.assignment())
        producing.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), PATIENCE_SECONDS)
        if are_long.is_set():
            ended.wait(OPEN_SECONDS)
        producing.commit_transaction(PATIENCE_SECONDS)


def _rows(config: Config, group: str) -> list[dict[str, Any]]:
    """Return the group's lag, the oldest first."""
    rows = [row for row in landed.rows(config, "consumer_lag") if row["group_id"] == group]
    return sorted(rows, key=lambda row: row["sampled_at"])


def _statuses(config: Config, group: str) -> set[str]:
    return {row["status"] for row in _rows(config, group)}


def _late_commits(config: Config, group: str) -> int:
    """Return how many samples have records behind a commit that is older than `STOP_SECONDS`, and no held offset."""
    return sum(
        row["lag"] > 0 and row["problem"] is None and _commit_age(row) > STOP_SECONDS
        for row in _rows(config, group)
        if row["lag"] is not None
    )


def _commit_age(row: dict[str, Any]) -> float:
    return float((row["sampled_at"] - row["commit_at"]).total_seconds())


def _judged(rows: list[dict[str, Any]]) -> list[str]:
    columns = ("sampled_at", "commit_at", "lag", "status", "status_reason")
    return [" ".join(str(row[name]) for name in columns) for row in rows]
