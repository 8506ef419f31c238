"""Real streams groups (KIP-1071) whose topics are missing or do not fit, compared with what the broker logs.

The first application, whose member is static, starts before its source topic, which is deleted later. The second one
stops; then the source topic gets another partition, so that the internal topics have too few.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from grouptrail.config import Config
from grouptrail.query.show_group import TABLES, describe_group
from grouptrail.report.group_rows import moment
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.storage.sql_snapshot import SqlSnapshot
from servers.kafka import Broker
from servers.offsets_topic import ensure_offsets_topic
from support.cli_in_process import Cli, succeeded
from support.cluster_job import Job
from support.history_tables import History, Row
from support.kafka_clients import await_that
from support.landed import config_of
from support.noted_samples import note_sample
from support.streams_apps import INPUT_TOPIC, StreamsApp, create_topics

GROUP, OTHER = "word-count", "counted"
INTERNAL_TOPICS = "-KSTREAM-AGGREGATE-STATE-STORE-0000000003-"
PARTITIONS = 2
PROPERTIES = {
    "offsets.topic.num.partitions": "1",
    # An application ends two heartbeat intervals after it has heard that a source topic is missing.
    "group.streams.heartbeat.interval.ms": "5000",
    "group.streams.initial.rebalance.delay.ms": "0",
}
# A coordinator of 4.4.0 fails on an endpoint in a group that is not ready (EndpointToPartitionsManager).
NO_ENDPOINT = {"application.server": ""}

_MISSING = re.compile(r"\[GroupId (?P<group>\S+?)\].*: Source topics (?P<topics>.*) are missing\.")
_WRONG = re.compile(
    r"\[GroupId (?P<group>\S+?)\].*: Existing topic (?P<topic>\S+) has different .* (?P<counts>expected .*)"
)


@dataclass(frozen=True)
class Recorded:
    """The broker's log and the history."""

    config: Config
    log: str

    def rows(self, table: str, group: str) -> list[Row]:
        return sorted(History.read(self.config).of(table, group), key=lambda row: row["record_offset"])

    def unready(self, group: str) -> list[Any]:
        """Return why the group was not ready, at the begin of each interval of that state."""
        tables = SqlSnapshot(warehouse_of(self.config), TABLES)
        intervals = [row for row in self.rows("group_states", group) if row["state"] == "NotReady"]
        return [
            describe_group(tables, group, at=moment(row["started_at"] * 1000), generations=1)["unready"]
            for row in intervals
        ]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, cli: Cli) -> Recorded:
    folder = tmp_path_factory.mktemp("not_ready")
    with Broker(folder / "kafka", properties=PROPERTIES) as broker:
        ensure_offsets_topic(broker.bootstrap)
        config = config_of(broker.bootstrap, folder / "warehouse")
        admin, cluster = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 2}), Job(config)

        def app(group: str, **settings: str) -> StreamsApp:
            return StreamsApp(
                folder / group, broker.bootstrap, group, protocol="streams", settings=NO_ENDPOINT | settings
            )

        def missed() -> int:
            return len(_MISSING.findall(broker.log_file.read_text()))

        cluster.sample()
        with app(GROUP, **{"group.instance.id": "first"}) as first:
            await_that(lambda: missed() > 0)
            create_topics(broker.bootstrap, partitions=PARTITIONS)
            first.await_running()
            first.stop()
            first.start()
            first.await_running()
            cluster.sample()
            before = missed()
            admin.delete_topics([INPUT_TOPIC])[INPUT_TOPIC].result()
            cluster.sample()
            cluster.sample()
            await_that(lambda: missed() > before)
        admin.create_topics([NewTopic(INPUT_TOPIC, PARTITIONS, 1)])[INPUT_TOPIC].result()
        with app(OTHER) as other:
            other.await_running()
            other.stop()
            grown = admin.create_partitions([NewPartitions(INPUT_TOPIC, PARTITIONS + 1)])
            grown[INPUT_TOPIC].result()
            cluster.sample()
            other.start()
            await_that(lambda: bool(_WRONG.search(broker.log_file.read_text())))
        note_sample(warehouse_of(config), "cluster", datetime.now(UTC))
        succeeded(cli(config, "run", "--job", "decode", "--job", "history", "--once"))
        return Recorded(config, broker.log_file.read_text())


def states(recorded: Recorded, group: str) -> list[str]:
    return [row["state"] for row in recorded.rows("group_states", group)]


def causes(recorded: Recorded, group: str) -> list[tuple[str, str]]:
    return [(row["cause"], row["certainty"]) for row in recorded.rows("rebalances", group)]


def test_group_is_not_ready_until_its_source_topic_is_there_and_after_it_was_deleted(recorded: Recorded) -> None:
    assert states(recorded, GROUP)[0] == "NotReady"
    assert states(recorded, GROUP).count("NotReady") == 2
    assert ("topology_validated", "recorded") in causes(recorded, GROUP)
    assert causes(recorded, GROUP)[-1] == ("topology_invalid", "recorded")


def test_missing_topics_are_the_source_topic_that_the_broker_misses(recorded: Recorded) -> None:
    """At first the internal topics are missing, too: the broker has them created once it knows the source topic."""
    assert {one["topics"] for one in _MISSING.finditer(recorded.log)} == {INPUT_TOPIC}
    before, after = recorded.unready(GROUP)
    assert [(row["topic"].removeprefix(GROUP), row["certainty"]) for row in before["topics"]] == [
        (INPUT_TOPIC, "likely"),
        (f"{INTERNAL_TOPICS}changelog", "likely"),
        (f"{INTERNAL_TOPICS}repartition", "likely"),
    ]
    assert [(row["topic"], row["problem"][:16], row["certainty"]) for row in after["topics"]] == [
        (INPUT_TOPIC, "missing: deleted", "recorded")
    ]


def test_topic_that_does_not_fit_is_named_with_the_numbers_that_the_broker_expects(recorded: Recorded) -> None:
    """The changelog has as many partitions as the repartition topic that is there."""
    assert states(recorded, OTHER)[0] == "NotReady"
    assert states(recorded, OTHER).count("NotReady") == 2
    [(_, topic, counts)] = set(_WRONG.findall(recorded.log))
    assert counts == f"expected {PARTITIONS + 1}, found {PARTITIONS}"
    assert topic == f"{OTHER}{INTERNAL_TOPICS}repartition"
    assert [(row["topic"], row["problem"]) for row in recorded.unready(OTHER)[-1]["topics"]] == [
        (topic, f"has {PARTITIONS} partitions, and {PARTITIONS + 1} are expected")
    ]


def test_static_member_of_a_streams_group_keeps_its_instance_id_when_it_returns(recorded: Recorded) -> None:
    """The client adds the number of the thread to `group.instance.id`."""
    first, second = recorded.rows("memberships", GROUP)
    assert {first["instance_id"], second["instance_id"]} == {"first-1"}
    assert (first["ended"], second["began"]) == ("replaced", "replaced")
    assert first["process_id"] != second["process_id"]
    assert ("static_member_replaced", "recorded") in causes(recorded, GROUP)
