"""Several clusters in one Spark application and one warehouse: one that is down stops none of the others."""

from __future__ import annotations

import re
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from grouptrail.config import Config, load_configs
from servers.kafka import Broker
from support import landed
from support.cli_in_process import Cli, succeeded
from support.cli_process import Grouptrail
from support.kafka_clients import PATIENCE_SECONDS, await_that, producer

RECORDS = 10


@pytest.fixture(scope="module")
def spare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("spare"), properties={"offsets.topic.num.partitions": "2"}) as broker:
        yield broker


@pytest.fixture
def clusters(broker: Broker, spare: Broker, tmp_path: Path) -> tuple[Path, Config, Config]:
    """Return the configuration file and the configuration of each of its clusters."""
    file = tmp_path / "grouptrail.toml"
    file.write_text(f"""
        warehouse = "lake"
        [decode]
        trigger_seconds = 1
        [log_offsets]
        interval_seconds = 2
        [clusters.main.kafka]
        "bootstrap.servers" = "{broker.bootstrap}"
        [clusters.spare.kafka]
        "bootstrap.servers" = "{spare.bootstrap}"
    """)
    main, other = load_configs(file, {}, {})
    return file, main, other


def work(broker: Broker, group: str, committed: int) -> None:
    """Commit an offset of the topic with the group's name; with offset 0, write the topic's records first."""
    if not committed:
        with producer(broker) as writing:
            for number in range(RECORDS):
                writing.produce(group, str(number), partition=0)
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": group, "enable.auto.commit": False}
    consumer = Consumer(settings)
    consumer.commit(offsets=[TopicPartition(group, 0, committed)], asynchronous=False)
    consumer.close()


def lag(url: str) -> dict[tuple[str, str], float]:
    """Return the served lag by cluster and group."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=PATIENCE_SECONDS) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {
        (sample.labels["cluster"], sample.labels["group"]): sample.value
        for family in families
        if family.name == "kafka_consumer_group_lag"
        for sample in family.samples
    }


@contextmanager
def running(file: Path) -> Iterator[tuple[Grouptrail, list[str], str]]:
    """Run the pipeline; yield it, its output until the URL of its metrics is known, and the URL."""
    run = Grouptrail(file, "run")
    try:
        lines = run.lines()
        printed = []
        for line in lines:
            printed.append(line)
            if match := re.search(r"served at (\S+)/metrics", line):
                yield run, printed, match[1]
                return
    finally:
        run.kill()


@pytest.mark.full
def test_run_one_of_two_clusters_down_keeps_the_other_running_and_is_retried(
    broker: Broker, spare: Broker, clusters: tuple[Path, Config, Config], cli: Cli
) -> None:
    """One that is down at the start is waited for, two lines in the log; if one dies later, the other runs on."""
    file, main, other = clusters
    work(broker, "billing", 0)
    work(spare, "search", 0)
    spare.kill()
    with running(file) as (run, printed, url):
        [waits] = [line for line in printed if "waiting: the jobs start when a broker answers" in line]
        assert waits.startswith("spare: no Kafka broker answers at"), waits
        await_that(lambda: lag(url) == {("main", "billing"): RECORDS})
        spare.start()
        await_that(lambda: lag(url) == {("main", "billing"): RECORDS, ("spare", "search"): RECORDS}, 120)
        spare.kill()
        work(broker, "billing", 4)
        await_that(lambda: lag(url).get(("main", "billing")) == RECORDS - 4)
        spare.start()
        work(spare, "search", 7)
        await_that(lambda: lag(url).get(("spare", "search")) == RECORDS - 7, 120)
        run.process.send_signal(signal.SIGINT)
        more = run.finished()
        assert run.process.returncode == 130, more
        assert more.count("spare: a broker answers after ") == 1
        assert "Traceback" not in more
    assert "main: log-offsets batch" in succeeded(cli(file, "run", "--once"))
    for config, of in ((main, broker), (other, spare)):
        assert landed.records(config) == landed.in_topic(of.bootstrap)
        landed.assert_progress_adds_up(config)
        assert {row["group_id"] for row in landed.rows(config, "group_states")} <= {"billing", "search"}
    spare.kill()
    alone = cli(file, "run", "--once")
    assert "1 of 2 clusters failed: spare; the others are done" in alone.printed.splitlines()[-1]
    assert alone.returncode == 1
