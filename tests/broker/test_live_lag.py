"""What the metrics and /ready of a running pipeline say of lag, from one scrape to the next."""

from __future__ import annotations

import re
import threading
import urllib.error
import urllib.request
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families

from grouptrail.config import Config
from servers.kafka import Broker
from servers.offsets_topic import ensure_offsets_topic, hanging_transaction
from servers.pipeline import answer_of
from support import landed
from support.cli_in_process import Cli, succeeded
from support.cli_process import Grouptrail
from support.deadlines import scaled
from support.kafka_clients import PATIENCE_SECONDS, await_that, in_background, producer
from support.lag_figures import groups_around_a_transaction

RECORDS_A_SECOND = 20
STOP_SECONDS = 45
# `run` starts a JVM, beside the tests of other processes.
START_SECONDS = scaled(240)
ENVIRON = {
    "GROUPTRAIL_LOG_OFFSETS__INTERVAL_SECONDS": "1",
    "GROUPTRAIL_LAG__STOP_SECONDS": str(STOP_SECONDS),
    "GROUPTRAIL_EXPORTER__REFRESH_SECONDS": "1",
}


@pytest.fixture
def topic(broker: Broker) -> str:
    """A new topic with one partition."""
    name = f"live-{uuid.uuid4().hex[:8]}"
    ensure_offsets_topic(broker.bootstrap)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(PATIENCE_SECONDS)
    return name


@pytest.mark.full
def test_run_beside_a_hanging_transaction_serves_the_coordinators_lag_and_never_stop(
    broker: Broker, config: Config, topic: str
) -> None:
    """From before the transaction until after its abort; the group behind it goes on consuming for longer than a
    group may be without commits before it is STOP."""
    held, transactional, elsewhere, partition = groups_around_a_transaction(config, topic)
    longer_than_stop = round(1.5 * STOP_SECONDS * RECORDS_A_SECOND)
    with records(broker, topic), consuming(broker, topic, [held, elsewhere]), running(config) as url:
        served = ServedGroups(url, (held, elsewhere), str(partition))
        served.await_statuses({held: "OK", elsewhere: "OK"})
        served.seen.clear()
        with hanging_transaction(broker.bootstrap, transactional, topic, 0, patience_seconds=PATIENCE_SECONDS):
            served.await_statuses({held: "UNKNOWN", elsewhere: "OK"})
            begun = served.value("kafka_consumer_group_committed_offset", held)
            await_that(
                lambda: served.value("kafka_consumer_group_committed_offset", held) >= begun + longer_than_stop,
                START_SECONDS,
            )
            assert served.held_back() > STOP_SECONDS
            landed_to = committed_in_table(config, held)[-1]
        assert landed_to <= begun
        served.await_statuses({held: "OK", elsewhere: "OK"})
        await_that(lambda: served.held_back() == 0)
        await_that(lambda: committed_in_table(config, held)[-1] > begun + longer_than_stop)
    assert served.seen == {(held, "OK"), (held, "UNKNOWN"), (elsewhere, "OK")}, "\n".join(judged(config, held))
    # It did not grow for as long as the transaction was open.
    assert served.most_lag < longer_than_stop
    commits = committed_in_table(config, held)
    assert len(commits) == len(set(commits))


def test_ready_after_a_restart_is_not_served_before_the_lag_of_what_was_written_meanwhile(
    broker: Broker, config: Config, topic: str, cli: Cli
) -> None:
    group, unread = f"{topic}-group", 500
    with consuming(broker, topic, [group]):
        with producer(broker) as producing:
            producing.produce(topic, b"x", partition=0)
        await_that(lambda: committed_by_broker(broker, topic, group) == 1)
        succeeded(cli(config, "run", "--once"))
    [before] = [row["lag"] for row in landed.rows(config, "consumer_lag") if row["group_id"] == group]
    assert before == 0
    with producer(broker) as producing:
        for _ in range(unread):
            producing.produce(topic, b"x", partition=0)
    with running(config) as url:
        after = ServedGroups(url, (group,))
        lags: dict[bool, set[float]] = {True: set(), False: set()}

        def is_ready() -> bool:
            # In this order: what is served after /ready said so must be current.
            ready = after.is_ready()
            lags[ready] |= {after.value("kafka_consumer_group_lag", group)}
            return ready

        await_that(is_ready, START_SECONDS)
    assert lags[True] == {unread}
    # The tables' lag is served from the start, and said to be old.
    assert 0 in lags[False]


def committed_by_broker(broker: Broker, topic: str, group: str) -> int:
    """Return the offset that a group has committed in the only partition of a topic; negative if none."""
    with closing(Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})) as consumer:
        [position] = consumer.committed([TopicPartition(topic, 0)], timeout=PATIENCE_SECONDS)
    return position.offset


@contextmanager
def running(config: Config) -> Iterator[str]:
    """Run the pipeline; yield the URL of its metrics. Afterwards it is killed."""
    run = Grouptrail(config, "run", environ=ENVIRON)
    try:
        yield next(line for line in run.lines() if line.startswith("metrics are served at ")).split()[-1]
    finally:
        run.kill()


@contextmanager
def records(broker: Broker, topic: str) -> Iterator[None]:
    """Write records until the block ends."""

    def write(ended: threading.Event) -> None:
        with producer(broker) as producing:
            while not ended.wait(1 / RECORDS_A_SECOND):
                producing.produce(topic, b"x", partition=0)
                producing.poll(0)

    with in_background(write):
        yield


@contextmanager
def consuming(broker: Broker, topic: str, groups: Sequence[str]) -> Iterator[None]:
    """Let one member of each group consume and commit every second until the block ends."""
    settings = {"bootstrap.servers": broker.bootstrap, "auto.offset.reset": "earliest", "enable.auto.commit": False}

    def consume(group: str, ended: threading.Event) -> None:
        with closing(Consumer(settings | {"group.id": group})) as consumer:
            consumer.subscribe([topic])
            while not ended.is_set():
                if consumer.consume(10 * RECORDS_A_SECOND, timeout=1):
                    consumer.commit(asynchronous=False)

    with in_background(*(partial(consume, group) for group in groups)):
        yield


def judged(config: Config, group: str) -> list[str]:
    """Return the group's samples as text, in order."""
    rows = sorted(landed.rows(config, "consumer_lag"), key=lambda row: row["sampled_at"])
    columns = ("sampled_at", "commit_at", "lag", "status", "status_reason")
    return [" ".join(str(row[name]) for name in columns) for row in rows if row["group_id"] == group]


def committed_in_table(config: Config, group: str) -> list[int]:
    """Return the group's offsets in `offset_commits`, in order."""
    rows = landed.rows(config, "offset_commits")
    return sorted(row["committed_offset"] for row in rows if row["group_id"] == group)


class ServedGroups:
    """What is served of groups with one partition, and of their partition of __consumer_offsets."""

    def __init__(self, url: str, groups: Sequence[str], offsets_partition: str = "") -> None:
        self._url = url
        self._groups = groups
        self._offsets_partition = offsets_partition
        self.seen: set[tuple[str, str]] = set()
        self.most_lag = 0.0

    def is_ready(self) -> bool:
        """Return whether /ready says so."""
        try:
            with urllib.request.urlopen(re.sub("/metrics$", "/ready", self._url), timeout=PATIENCE_SECONDS):
                return True
        except urllib.error.HTTPError as answer:
            if answer.code != 503:
                raise
            return False

    def await_statuses(self, wanted: Mapping[str, str]) -> None:
        """Wait until these are the groups' statuses."""
        statuses: list[Mapping[str, str]] = []

        def is_so() -> bool:
            statuses.append(self._statuses())
            return statuses[-1] == wanted

        try:
            await_that(is_so, START_SECONDS)
        except AssertionError:
            pytest.fail(f"{statuses[-1]} instead of {wanted}")

    def value(self, metric: str, group: str) -> float:
        """Return a metric of a group, -1 if it has none."""
        return {labels["group"]: value for labels, value in self._samples()[metric]}.get(group, -1)

    def held_back(self) -> float:
        """Return how many records of the offsets partition an open transaction holds back."""
        samples = self._samples()["grouptrail_last_stable_offset_lag"]
        return next(value for labels, value in samples if labels["partition"] == self._offsets_partition)

    def _statuses(self) -> dict[str, str]:
        return {labels["group"]: labels["status"] for labels, _ in self._samples()["kafka_consumer_group_status"]}

    def _samples(self) -> dict[str, list[tuple[dict[str, str], float]]]:
        """Return labels and values by metric: those of these groups, and all without a group."""
        by_name: defaultdict[str, list[tuple[dict[str, str], float]]] = defaultdict(list)
        for family in text_string_to_metric_families(answer_of(self._url)):
            for sample in family.samples:
                if sample.labels.get("group", self._groups[0]) in self._groups:
                    by_name[sample.name].append((sample.labels, sample.value))
        self.seen |= {(labels["group"], labels["status"]) for labels, _ in by_name["kafka_consumer_group_status"]}
        self.most_lag = max([self.most_lag, *(lag for _, lag in by_name["kafka_consumer_group_lag"])])
        return by_name
