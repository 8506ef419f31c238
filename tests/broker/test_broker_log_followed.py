"""The pipeline follows a real broker's log: causes become known while it runs, also after it was interrupted."""

from __future__ import annotations

import re
import signal
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic

from grouptrail.broker_log.events_table import EVENTS
from grouptrail.broker_log.reading import LineCounts, read_events
from grouptrail.config import Config
from grouptrail.runtime.warehouses import warehouse_of
from servers.kafka import Broker
from servers.offsets_topic import ensure_offsets_topic
from support.broker_logs import poll_until
from support.cli_in_process import Cli, succeeded
from support.cli_process import Grouptrail
from support.kafka_clients import await_that

TOPIC = "orders-topic"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("kafka")) as started:
        ensure_offsets_topic(started.bootstrap)
        admin = AdminClient({"bootstrap.servers": started.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 2)])[TOPIC].result()
        yield started


@pytest.fixture
def config(broker: Broker, tmp_path: Path) -> Config:
    return Config(
        warehouse=str(tmp_path / "warehouse"),
        kafka={"bootstrap.servers": broker.bootstrap},
        decode={"trigger_seconds": 1},  # type: ignore[arg-type]
    )


def close_member(broker: Broker, group: str) -> str:
    """Let a second member join a group, and close it when its records could also be those of an expired session."""
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": group,
        "enable.auto.commit": False,
        "session.timeout.ms": 6_000,
        "max.poll.interval.ms": 6_000,
    }
    with closing(Consumer(settings)) as first:
        first.subscribe([TOPIC])
        poll_until([first], 2)
        with closing(Consumer(settings)) as second:
            second.subscribe([TOPIC])
            poll_until([first, second], 2)
            member: str = second.memberid()
            joined = time.monotonic()
            # Polling, so that neither exceeds its poll interval.
            await_that(lambda: [one.poll(0.05) for one in (first, second)] and time.monotonic() - joined > 8)
        poll_until([first], 2)
    return member


def causes_by_log(config: Config, group: str) -> list[dict[str, Any]]:
    """Return the causes of the group's rebalances that its log shows, and what they are without it."""
    table = warehouse_of(config).table("rebalances")
    if table.open() is None:
        return []
    known = f"AND group_id = '{group}' AND rule LIKE 'LOGGED_%'"
    return table.select("cause, cause_without_log, members_left", known)


def run_and_interrupt(broker: Broker, config: Config, group: str, environ: dict[str, str]) -> None:
    """Run the pipeline until it is known how a member left, then interrupt it."""
    run = Grouptrail(config, "run", environ=environ)
    try:
        url = next(match[0] for line in run.lines() if (match := re.search(r"http://\S+/metrics", line)))
        member = close_member(broker, group)
        await_that(lambda: causes_by_log(config, group) != [])
        readable = f'grouptrail_broker_log_readable{{cluster="default",file="{broker.log_file}"}} 1'
        await_that(lambda: readable in urllib.request.urlopen(url).read().decode())
        run.process.send_signal(signal.SIGINT)
        printed = run.finished()
    finally:
        run.kill()
    assert run.process.returncode == 130, printed
    assert "broker-log batch" in printed
    known = {"cause": "member_left", "cause_without_log": "member_left_or_expired", "members_left": [member]}
    assert causes_by_log(config, group) == [known]


def test_run_following_the_brokers_log_knows_causes_live_and_after_each_restart(
    broker: Broker, config: Config
) -> None:
    environ = {
        "GROUPTRAIL_BROKER_LOG__FILES": str(broker.log_file),
        "GROUPTRAIL_BROKER_LOG__INTERVAL_SECONDS": "1",
        "GROUPTRAIL_BROKER_LOG__TRUST_CLIENTS": "true",
    }
    for group in ("orders-0", "orders-1"):
        run_and_interrupt(broker, config, group, environ)
    stored = warehouse_of(config).table(EVENTS).select("event_id")
    logged = {row["event_id"] for row in read_events(broker.log_file, UTC, LineCounts(), trusts_clients=True)}
    ids = [row["event_id"] for row in stored]
    assert len(set(ids)) == len(ids)
    assert set(ids) <= logged


def test_job_alone_once_reads_what_the_whole_log_has(broker: Broker, config: Config, cli: Cli) -> None:
    """It asks no broker."""
    close_member(broker, "payments")
    apart = config.model_copy(update={"kafka": {"bootstrap.servers": "127.0.0.1:1"}})
    environ = {
        "GROUPTRAIL_BROKER_LOG__FILES": f"{broker.log_file}*",
        "GROUPTRAIL_BROKER_LOG__TRUST_CLIENTS": "true",
    }
    for _ in range(2):
        succeeded(cli(apart, "run", "--once", "--job", "broker-log", environ=environ))
    logged = [row["event_id"] for row in read_events(broker.log_file, UTC, LineCounts(), trusts_clients=True)]
    stored = [row["event_id"] for row in warehouse_of(config).table(EVENTS).select("event_id")]
    assert sorted(stored) == sorted(set(logged))
