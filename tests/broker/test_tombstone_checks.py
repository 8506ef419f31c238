"""Groups deleted while the pipeline is stopped, on a real Kafka that has compacted their tombstones since."""

from __future__ import annotations

import contextlib

from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaAdminClient, TopicPartition

from grouptrail.config import Config
from grouptrail.wire.records import decode_record
from servers.kafka import Broker
from servers.offsets_topic import ensure_offsets_topic, read_records
from support import landed
from support.cli_in_process import Cli, succeeded
from support.kafka_clients import (
    PATIENCE_SECONDS,
    as_reader,
    await_that,
    commit,
    commit_all,
    configure_offsets_topic,
)
from support.lag_figures import PARTITIONS, classic_member, kip848_member

# Every pause is longer than that.
SHORT = {"GROUPTRAIL_HISTORY__TOMBSTONES_RETENTION_MINUTES": "0.00001"}


def subjects(broker: Broker) -> set[tuple[str, int | None]]:
    """Return the groups, with the partition if it is a commit, of which `__consumer_offsets` has any record."""
    keys = [decode_record(record.key, record.value).key for record in read_records(broker.bootstrap)]
    data = [key.data for key in keys if key is not None]
    return {(one.get("group") or one["groupId"], one.get("partition")) for one in data}


def figures(config: Config) -> tuple[set[tuple[str, str]], set[tuple[str, int]], set[tuple[str, int]]]:
    """Return groups and their states of now, and positions with a commit and with lag at the last sample."""
    states = {(row["group_id"], row["state"]) for row in landed.rows(config, "group_states") if row["is_open"]}
    commits = {(row["group_id"], row["partition"]) for row in landed.rows(config, "committed_offsets")}
    lag = landed.rows(config, "consumer_lag")
    sampled_at = max(row["sampled_at"] for row in lag)
    return states, commits, {(row["group_id"], row["partition"]) for row in lag if row["sampled_at"] == sampled_at}


def test_groups_and_offsets_deleted_in_a_stop_longer_than_their_tombstones_are_gone_once_coordinators_say_so(
    broker: Broker, config: Config, cli: Cli
) -> None:
    """Without the right to ask they stay, and one line says why; a group that still exists stays, too."""
    deleting = AdminClient({"bootstrap.servers": broker.bootstrap})
    deleting.create_topics([NewTopic("orders", PARTITIONS, 1)])["orders"].result(PATIENCE_SECONDS)
    ensure_offsets_topic(broker.bootstrap)
    with classic_member(broker, "classic", ["orders"]), kip848_member(broker, "kip848", ["orders"]):
        commit_all(broker.bootstrap, "alone", {("orders", 0): 3})
        commit_all(broker.bootstrap, "alive", {("orders", 0): 3, ("orders", 1): 4})
    succeeded(cli(config, "run", "--once", environ=SHORT))
    states, commits, _ = figures(config)
    assert {("classic", "Empty"), ("kip848", "Empty")} <= states
    before = {("classic", 0), ("classic", 1), ("kip848", 0), ("kip848", 1), ("alone", 0), ("alive", 0), ("alive", 1)}
    assert before <= commits

    with contextlib.closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as admin:
        for deleted in deleting.delete_consumer_groups(["classic", "kip848", "alone"]).values():
            deleted.result(PATIENCE_SECONDS)
        admin.delete_group_offsets("alive", [TopicPartition("orders", 1)])
    fast = {"segment_ms": "100", "min_cleanable_dirty_ratio": "0.001", "max_compaction_lag_ms": "100"}
    configure_offsets_topic(broker.bootstrap, delete_retention_ms="0", **fast)
    rolling = [f"rolling-{number}" for number in range(12)]

    def are_compacted() -> bool:
        for name in rolling:  # what is new rolls the segment, and only rolled ones are cleaned
            commit(broker.bootstrap, name, 1)
        left = subjects(broker)
        return ("alive", 1) not in left and not {name for name, _ in left} & {"classic", "kip848", "alone"}

    await_that(are_compacted, 3 * PATIENCE_SECONDS)

    broker.allow("reader", "READ", "TOPIC", "__consumer_offsets")
    broker.allow("reader", "DESCRIBE", "TOPIC", "orders")
    broker.allow("reader", "DESCRIBE", "GROUP", "grouptrail", "PREFIXED")
    printed = succeeded(cli(config, "run", "--once", environ={**SHORT, **as_reader(broker)}))
    assert "the principal may not DESCRIBE it" in printed
    states, commits, _ = figures(config)
    assert {("classic", "Empty"), ("kip848", "Empty")} <= states
    assert before <= commits

    for name in rolling:
        commit(broker.bootstrap, name, 2)
    printed = succeeded(cli(config, "run", "--once", environ=SHORT))
    assert "committed offsets are gone" in printed
    states, commits, lag = figures(config)
    assert {("classic", "Dead"), ("kip848", "Dead")} <= states
    assert commits & before == lag & before == {("alive", 0)}
