"""A pipeline of version 0.1 resumes with this version, while its broker is upgraded through three Kafka releases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grouptrail import contracts
from grouptrail.config import Config
from servers.kafka import GROUP_METADATA_FORMATTER, VERSIONS, Broker
from support import landed
from support.cli_in_process import Cli, succeeded
from support.frozen_pipeline import LANDED, PARTITIONS, load, thaw
from support.kafka_clients import commit, make_orders
from support.observed_groups import ClientGroup, StableState
from support.small_tables import HISTORY

pytestmark = pytest.mark.full  # the jars of three releases

OLDEST = VERSIONS[-1]

# The beginning of each job's line about a batch.
JOBS = ("batch", "log-offsets batch", "history batch", "lag batch")

# Offsets of groups whose members have timed out must not expire during the test.
PROPERTIES = {"offsets.topic.num.partitions": str(PARTITIONS), "offsets.retention.check.interval.ms": "3600000"}


def finish_upgrade(broker: Broker) -> None:
    """Finalize the features of the release, the operator's last step: 4.1 accepts KIP-848 groups only after it."""
    release = broker.version.rpartition(".")[0]
    done = broker.tool(
        "org.apache.kafka.tools.FeatureCommand",
        *("--bootstrap-server", broker.bootstrap, "upgrade", "--release-version", release),
    )
    assert done.returncode == 0, done.stdout + done.stderr


def live(broker: Broker, group_id: str, **spec: str) -> StableState:
    """Let a member join, own all of `orders` and leave. Return the group's state while it was a member."""
    with ClientGroup(broker.bootstrap, group_id, {"orders": 2}, **spec) as group:
        group.join()
        return group.await_stable()


def assert_resumes(cli: Cli, config: Config, upgraded: int) -> None:
    """Assert that each job's next batch has the number that follows from its checkpoint, after `upgraded` others.

    The log-offsets job puts its checkpoint of version 0.1 aside (ADR 0016).
    """
    printed = succeeded(cli(config, "run", "--once"))
    batches = dict.fromkeys(JOBS, len(LANDED) + upgraded) | {"log-offsets batch": upgraded}
    assert [job for job in JOBS if f"\n{job} {batches[job]}" not in f"\n{printed}"] == [], printed


def assert_in_history(config: Config, group_id: str, stable: StableState) -> None:
    (generation,) = (
        row
        for row in landed.rows(config, "generations")
        if (row["group_id"], row["generation"]) == (group_id, stable.group.generation)
    )
    assert [member["member_id"] for member in generation["members"]] == list(stable.group.members)
    stays = {row["member_id"]: row for row in landed.rows(config, "memberships") if row["group_id"] == group_id}
    for member_id, described in stable.group.members.items():
        assert stays[member_id]["client_id"] == described.client_id
        assert stays[member_id]["left_at"] is not None


def assert_group_metadata_agrees(broker: Broker, config: Config) -> None:
    lines = {(line["partition"], line["offset"]): line for line in broker.formatted(GROUP_METADATA_FORMATTER)}
    for row in landed.rows(config, "group_metadata"):
        line = lines[row["record_partition"], row["record_offset"]]
        value = line["value"] and line["value"]["data"]
        assert row["group_id"] == line["key"]["data"]["group"]
        assert row["generation"] == (value and value["generation"])
        printed = value and [member["memberId"] for member in value["members"]]
        assert (row["members"] and [member["member_id"] for member in row["members"]]) == printed


def assert_kept(config: Config, table: str, rows: list[dict[str, Any]]) -> None:
    """Assert that all rows still exist, and that closed ones are unchanged."""
    key = contracts.tables()[table].key
    now = {tuple(row[column] for column in key): row for row in landed.rows(config, table)}
    for row in rows:
        kept = now[tuple(row[column] for column in key)]
        assert row.get("is_open") or row.items() <= kept.items()


def test_run_version_0_1_pipeline_resumes_through_each_kafka_release(tmp_path: Path, cli: Cli) -> None:
    """Records that landed before are not read again; those of each release land once and appear in the history."""
    frozen = thaw(tmp_path)
    warehouse = tmp_path / "warehouse"
    old_history = {table: landed.rows(landed.config_of("127.0.0.1:9092", warehouse), table) for table in HISTORY}
    assert all(old_history.values())
    old_rows = landed.rows(landed.config_of("127.0.0.1:9092", warehouse), "offset_commits")
    old_commits = {(row["record_partition"], row["record_offset"]) for row in old_rows}
    for number, version in enumerate(reversed(VERSIONS)):
        with Broker(tmp_path / "kafka", version=version, properties=PROPERTIES) as broker:
            config = landed.config_of(broker.bootstrap, warehouse)
            stable_states = {}
            if is_first := version == OLDEST:
                make_orders(broker.bootstrap)
                load(broker.bootstrap, frozen)
            stable_states["classic"] = live(broker, "classic")
            if not is_first:
                finish_upgrade(broker)
                stable_states["kip-848"] = live(broker, "kip-848", client="kip-848", assignor="uniform")
            commit(broker.bootstrap, "operator", number)
            before = landed.in_topic(broker.bootstrap)
            assert_resumes(cli, config, number)
            # A broker that has loaded the groups may write records of them at any time: their members do not answer.
            assert before.items() <= landed.records(config).items() <= landed.in_topic(broker.bootstrap).items()
            landed.assert_progress_adds_up(config)
            for group_id, stable in stable_states.items():
                assert_in_history(config, group_id, stable)
            # Kafka 3.9's formatters stop at a KIP-848 record; those of 4.1 also print the older releases' records.
            if not is_first:
                landed.assert_formatter_agrees(broker, config)
                assert_group_metadata_agrees(broker, config)
    for table, rows in old_history.items():
        assert_kept(config, table, rows)
    commits = landed.rows(config, "offset_commits")
    known = {(row["record_partition"], row["record_offset"]): row["is_transactional"] for row in commits}
    assert {known.pop(place) for place in old_commits} == {None}
    assert set(known.values()) == {False}
