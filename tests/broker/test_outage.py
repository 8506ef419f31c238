"""`grouptrail run` while no broker answers: it serves what is stored, waits, and goes on by itself."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from grouptrail.config import Config
from servers.kafka import Broker
from support.cli_in_process import Cli, succeeded
from support.cli_process import Grouptrail
from support.deadlines import scaled
from support.kafka_clients import PATIENCE_SECONDS, await_that, producer
from support.landed import config_of

pytestmark = pytest.mark.broker

RECORDS = 10
WAITS = "waiting: the jobs start when a broker answers"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("kafka"), properties={"offsets.topic.num.partitions": "2"}) as started:
        with producer(started) as writing:
            for number in range(RECORDS):
                writing.produce("orders", str(number), partition=0)
        commit(started, 4)
        yield started


@pytest.fixture
def config(broker: Broker, tmp_path: Path) -> Config:
    """Return the configuration of a new warehouse, when the broker answers: a test may have stopped it."""
    broker.start()
    return config_of(broker.bootstrap, tmp_path / "warehouse")


@pytest.fixture(scope="module")
def filled(broker: Broker, cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a warehouse that one run has filled."""
    broker.start()
    warehouse = tmp_path_factory.mktemp("filled") / "warehouse"
    succeeded(cli(config_of(broker.bootstrap, warehouse), "run", "--once"))
    return warehouse


@pytest.fixture
def stored(filled: Path, config: Config) -> Config:
    """Return the configuration of a copy of that warehouse, when the broker answers."""
    shutil.copytree(filled, config.warehouse)
    return config


def commit(broker: Broker, offset: int) -> None:
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "billing", "enable.auto.commit": False}
    consumer = Consumer(settings)
    consumer.commit(offsets=[TopicPartition("orders", 0, offset)], asynchronous=False)
    consumer.close()


@contextmanager
def killed(broker: Broker) -> Iterator[None]:
    broker.kill()
    yield


@contextmanager
def hung(broker: Broker) -> Iterator[None]:
    """Let the broker accept connections and not answer."""
    assert broker.pid is not None
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as answer:
        return answer.code, answer.read().decode()


def figures(url: str, name: str) -> dict[str, float]:
    """Return the values of a metric by their labels, as the page of metrics has them."""
    lines = re.findall(rf"^{name}(\{{.*\}}) (\S+)$", get(f"{url}/metrics")[1], re.MULTILINE)
    return {labels: float(value) for labels, value in lines}


@contextmanager
def running(config: Config) -> Iterator[tuple[Grouptrail, list[str], str]]:
    """Run the pipeline until its address is known; yield it, its output until then, and the address."""
    run = Grouptrail(config, "run")
    try:
        printed = []
        for line in run.lines():
            printed.append(line)
            if match := re.search(r"served at (\S+)/metrics", line):
                yield run, printed, match[1]
                return
        raise AssertionError(f"it has ended: {printed}")
    finally:
        run.kill()


def test_run_without_a_broker_serves_the_past_and_goes_on_when_one_answers(broker: Broker, stored: Config) -> None:
    broker.kill()
    with running(stored) as (run, printed, url):
        assert [line for line in printed if WAITS in line]
        await_that(lambda: get(f"{url}/ready")[1].startswith("no Kafka broker answers at"))
        status, reason = get(f"{url}/ready")
        assert status == 503
        assert "; no broker has returned log offsets since " in reason
        jobs = {'{cluster="test",job_name="exporter"}': 1} | {
            f'{{cluster="test",job_name="{name}"}}': 0
            for name in ("decode", "log-offsets", "cluster", "share-state", "history", "lag")
        }
        assert figures(url, "grouptrail_job_running") == jobs
        assert figures(url, "grouptrail_ready") == {'{cluster="test"}': 0}
        assert figures(url, "kafka_consumer_group_sum_lag") == {}
        age = '{cluster="test",table="consumer_lag"}'
        before = figures(url, "grouptrail_freshness_seconds")[age]
        await_that(lambda: figures(url, "grouptrail_freshness_seconds")[age] > before)
        [group] = json.loads(get(f"{url}/api/v1/groups")[1])["groups"]
        assert (group["group_id"], group["lag"], group["is_stale"]) == ("billing", RECORDS - 4, True)
        assert get(f"{url}/groups/billing")[0] == 200

        broker.start()
        commit(broker, 7)
        lag = {'{cluster="test",group="billing"}': RECORDS - 7}
        await_that(lambda: figures(url, "kafka_consumer_group_sum_lag") == lag)
        await_that(lambda: get(f"{url}/ready") == (200, "ready\n"))
        assert set(figures(url, "grouptrail_job_running").values()) == {1}
        run.process.send_signal(signal.SIGTERM)
        more = run.finished()
    assert run.process.returncode == 143, more
    assert len(re.findall("a broker answers after .* s: the jobs start", more)) == 1
    assert WAITS not in more


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_run_that_waits_for_a_broker_ends_promptly_by_a_signal(
    broker: Broker, stored: Config, number: signal.Signals
) -> None:
    """Of a broker that is stopped (SIGTERM), and of one that accepts connections and does not answer (SIGINT)."""
    with hung(broker) if number == signal.SIGINT else killed(broker), running(stored) as (run, _printed, url):
        await_that(lambda: len(figures(url, "grouptrail_job_running")) > 1)
        asked = time.monotonic()
        run.process.send_signal(number)
        more = run.finished()
    assert run.process.returncode == 128 + number, more
    assert time.monotonic() - asked < scaled(10), more
    assert "Traceback" not in more


def test_run_without_a_broker_ends_with_one_line_if_nothing_is_stored_or_with_once(
    broker: Broker, config: Config, cli: Cli
) -> None:
    broker.kill()
    for arguments in (("run",), ("run", "--once")):
        run = cli(config, *arguments)
        assert run.returncode == 1
        assert "grouptrail: no Kafka broker answers at" in run.printed.splitlines()[-1]
        assert WAITS not in run.printed
