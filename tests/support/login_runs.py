"""Runs of the pipeline on a broker that demands a login: for longer than it lasts, and while it is refused."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections.abc import Callable, Mapping

from confluent_kafka.admin import AdminClient, NewTopic

from grouptrail.config import Config
from grouptrail.kafka.cluster import GROUP_PREFIX
from servers.kafka import Broker
from servers.offsets_topic import OFFSETS_TOPIC, ensure_offsets_topic
from support import landed
from support.cli_process import Grouptrail
from support.deadlines import scaled
from support.kafka_clients import PATIENCE_SECONDS, await_that, commit_all

TOPIC, GROUP = "orders", "billing"

_RIGHTS = (
    ("READ", "TOPIC", OFFSETS_TOPIC, "LITERAL"),
    ("DESCRIBE", "GROUP", GROUP_PREFIX, "PREFIXED"),
    ("DESCRIBE", "TOPIC", TOPIC, "LITERAL"),
    ("DESCRIBE", "CLUSTER", "kafka-cluster", "LITERAL"),
    ("DESCRIBE_CONFIGS", "TOPIC", "*", "LITERAL"),
)


def prepare(broker: Broker, principal: str) -> None:
    """Create the topic and a first commit, and give a principal the rights of all jobs."""
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    client.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(PATIENCE_SECONDS)
    ensure_offsets_topic(broker.bootstrap)
    commit(broker, 0)
    for right in _RIGHTS:
        broker.allow(principal, *right)


def commit(broker: Broker, offset: int) -> None:
    """Commit an offset of partition 0."""
    commit_all(broker.bootstrap, GROUP, {(TOPIC, 0): offset})


def committed(config: Config) -> set[int]:
    """Return the offsets committed to partition 0 that have landed."""
    return {row["committed_offset"] for row in landed.rows(config, "offset_commits") if row["group_id"] == GROUP}


def run_while_committing(
    broker: Broker,
    config: Config,
    environ: Mapping[str, str],
    *,
    seconds: float,
    begin: Callable[[], None] = lambda: None,
) -> str:
    """Run all jobs, and commit for so long once there is lag; return the output, which has no error.

    `begin` is called before the first of these commits, all of which have landed."""
    run = Grouptrail(config, "run", environ={**environ, "GROUPTRAIL_CLUSTER_FACTS__INTERVAL_SECONDS": "2"})
    printed: list[str] = []
    reader = threading.Thread(target=lambda: printed.extend(run.lines()))
    reader.start()
    try:
        await_that(lambda: any("lag batch" in line for line in printed), scaled(120))
        begin()
        ends_at = time.monotonic() + seconds
        for offset in itertools.count(1):
            commit(broker, offset)
            await_that(lambda offset=offset: offset in committed(config), scaled(30))  # type: ignore[misc]
            if time.monotonic() > ends_at:
                break
        run.process.send_signal(signal.SIGTERM)
        run.process.wait(scaled(60))
    finally:
        run.kill()
        reader.join()
    text = "".join(printed)
    assert run.process.returncode == 143, text
    assert committed(config) >= set(range(offset + 1))
    assert {(row["topic"], row["error"]) for row in landed.rows(config, "log_offsets")} == {(TOPIC, None)}
    assert not [line for line in printed if "restarting it" in line or "ERROR" in line or "Exception" in line]
    return text


def decode_through_outage(
    broker: Broker, config: Config, environ: dict[str, str], begin: Callable[[], None], end: Callable[[], None]
) -> str:
    """Run decode until its login is refused, and until what was committed meanwhile has landed; return the output."""
    run = Grouptrail(config, "run", "--job", "decode", environ=environ)
    printed: list[str] = []
    try:
        lines = run.lines()
        printed += itertools.takewhile(lambda line: not line.startswith("batch "), lines)
        begin()
        for line in lines:
            printed.append(line)
            if "restarting it in" in line:
                break
        commit(broker, 4711)
        end()
        for line in lines:
            printed.append(line)
            if line.startswith("batch ") and 4711 in committed(config):
                break
        run.process.send_signal(signal.SIGTERM)
        printed.append(run.finished())
    finally:
        run.kill()
    text = "".join(printed)
    assert run.process.returncode == 143, text
    assert "Traceback" not in text
    assert " ERROR " not in text
    assert "\tat " not in text, "a stack trace of Java"
    landed.assert_progress_adds_up(config)
    return text
