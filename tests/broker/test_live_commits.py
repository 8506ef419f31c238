"""Commits read as they are written, on a real broker: what metrics show before the tables have it."""

from __future__ import annotations

import itertools
import json
import re
import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlencode

import pytest
from kafka import KafkaAdminClient, TopicPartition

from grouptrail.config import Config
from grouptrail.decode.live import LiveCommits
from grouptrail.kafka import new_records
from grouptrail.kafka.coordinator import coordinator_partition
from grouptrail.kafka.offsets_topic import OffsetsTopic
from servers.kafka import OFFSETS_FORMATTER, Broker
from servers.offsets_topic import hanging_transaction
from servers.pipeline import answer_of
from support import landed
from support.cli_process import Grouptrail
from support.deadlines import scaled
from support.kafka_clients import PATIENCE_SECONDS, await_that, commit, make_orders


@pytest.fixture(scope="module", autouse=True)
def orders(broker: Broker) -> None:
    """Create the topic that the groups consume."""
    make_orders(broker.bootstrap)


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def commits(config: Config) -> Iterator[LiveCommits]:
    """Commits from now on."""
    with closing(LiveCommits(config.kafka_settings(), config.decode.max_record_bytes, pytest.fail)) as live:
        assert not len(live.fresh())
        yield live


def until_seen(commits: LiveCommits, group: str, offset: int | None) -> list[dict[str, Any]]:
    """Return the group's rows up to the one of that offset."""
    rows: list[dict[str, Any]] = []

    def is_there() -> bool:
        rows.extend(row for row in commits.fresh().to_pylist() if row["group_id"] == group)
        return any(row["committed_offset"] == offset for row in rows)

    await_that(is_there)
    return rows


def test_live_commits_are_those_that_kafkas_formatter_prints(
    broker: Broker, commits: LiveCommits, group: str
) -> None:
    for offset in (3, 5):
        commit(broker.bootstrap, group, offset)
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as admin:
        admin.delete_group_offsets(group, [TopicPartition("orders", 0)])
    seen = until_seen(commits, group, None)
    printed = [line for line in broker.formatted(OFFSETS_FORMATTER) if line["key"]["data"]["group"] == group]
    places = [(line["partition"], line["offset"]) for line in printed]
    assert [(row["record_partition"], row["record_offset"]) for row in seen] == places
    offsets = [line["value"] and line["value"]["data"]["offset"] for line in printed]
    assert [row["committed_offset"] for row in seen] == offsets == [3, 5, None]
    assert [row["is_tombstone"] for row in seen] == [False, False, True]


def test_live_commits_of_an_open_transaction_are_not_shown(
    broker: Broker, config: Config, commits: LiveCommits, group: str
) -> None:
    with OffsetsTopic(config.kafka_settings()) as topic:
        count = len(topic.partitions())
    names = (f"{group}-{number}" for number in itertools.count())
    other = next(name for name in names if coordinator_partition(name, count) != coordinator_partition(group, count))
    with hanging_transaction(broker.bootstrap, group, "orders", 0, patience_seconds=PATIENCE_SECONDS):
        commit(broker.bootstrap, group, 11, partition=1)
        commit(broker.bootstrap, other, 8)
        assert {row["group_id"] for row in until_seen(commits, other, 8)} == {other}
    assert [row["committed_offset"] for row in until_seen(commits, group, 11)] == [11]


def test_live_commits_of_a_transaction_say_that_they_are(broker: Broker, commits: LiveCommits, group: str) -> None:
    with hanging_transaction(broker.bootstrap, group, "orders", 0, end="commit", patience_seconds=PATIENCE_SECONDS):
        pass
    commit(broker.bootstrap, group, 11, partition=1)
    seen = until_seen(commits, group, 11)
    assert {row["committed_offset"]: row["is_transactional"] for row in seen} == {99: True, 11: False}


def test_live_commits_beyond_the_most_are_skipped_and_the_next_are_shown(
    broker: Broker, commits: LiveCommits, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(new_records, "MOST_RECORDS", 2)
    for offset in range(1, 6):
        commit(broker.bootstrap, group, offset)
    assert len(commits.fresh()) == 2
    assert not len(commits.fresh())
    commit(broker.bootstrap, group, 6)
    assert [row["committed_offset"] for row in until_seen(commits, group, 6)] == [6]


def test_live_commits_are_none_without_the_broker_and_come_again_with_it(
    broker: Broker, commits: LiveCommits, group: str
) -> None:
    broker.stop()
    assert not len(commits.fresh())
    broker.start()
    offsets = itertools.count(1)

    def is_shown() -> bool:
        commit(broker.bootstrap, group, next(offsets))
        return len(commits.fresh()) > 0

    await_that(is_shown)


def test_run_serves_a_commit_that_no_table_has_yet_and_sql_over_the_tables(
    broker: Broker, config: Config, group: str
) -> None:
    commit(broker.bootstrap, group, 7)
    served = re.compile(rf'^kafka_consumer_group_committed_offset{{[^}}]*group="{group}"[^}}]*}} (\d+)', re.MULTILINE)
    run = Grouptrail(config, "run", environ={"GROUPTRAIL_DECODE__TRIGGER_SECONDS": "3600"})
    try:
        url = next(line for line in run.lines() if line.startswith("metrics are served at ")).split()[-1]

        def is_served(offset: int) -> bool:
            return str(offset) in served.findall(answer_of(url))

        def in_table() -> list[int]:
            rows = landed.rows(config, "offset_commits")
            return [row["committed_offset"] for row in rows if row["group_id"] == group]

        # The metrics may have it before the only batch reads the topic. A JVM starts, beside other tests.
        await_that(lambda: is_served(7) and in_table() == [7], scaled(240))
        commit(broker.bootstrap, group, 9)
        await_that(lambda: is_served(9))
        assert in_table() == [7]
        query = urlencode({"q": f"SELECT committed_offset FROM offset_commits WHERE group_id = '{group}'"})
        answer = json.loads(answer_of(url.replace("/metrics", f"/api/v1/sql?{query}")))
        assert answer["rows"] == [{"committed_offset": 7}]
    finally:
        run.kill()
