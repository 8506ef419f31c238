"""`grouptrail what-if broker`: verdict, partitions, groups and what is not known, as text and for programs."""

from __future__ import annotations

import csv
import io
import json
import re
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grouptrail.config import Config
from grouptrail.query.errors import QueryError
from grouptrail.query.formats import RowsFormat
from grouptrail.query.show_what_if import show_loss
from grouptrail.query.what_if import UnknownBrokerError, describe_loss
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.storage.last_sample import LastSample, write_last_sample
from support.broker_facts import DENIED, group_in, lay_cluster, lay_facts, led
from support.cli_in_process import run_cli
from support.exporter_tables import OPEN, configured, lag_row, now
from support.from_config import SAMPLE_SECONDS
from support.small_tables import at, lay


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, dict[str, str]]:
    config = configured(tmp_path_factory.mktemp("lake"))
    return config, lay_cluster(config)


@pytest.fixture
def lake(tmp_path: Path) -> Config:
    return configured(tmp_path / "lake")


def lost(config: Config, *brokers: int, **more: Any) -> dict[str, Any]:
    return describe_loss(warehouse_of(config), brokers, sample_seconds=SAMPLE_SECONDS, **more)


def shown(config: Config, *brokers: int, format: RowsFormat = "table", **more: Any) -> str:
    out = io.StringIO()
    given = {"racks": (), "at": None, "sample_seconds": SAMPLE_SECONDS, **more}
    show_loss(warehouse_of(config), brokers, format=format, out=out, **given)
    return out.getvalue()


def test_what_if_broker_counts_partitions_and_says_the_worst_first(cluster: tuple[Config, dict[str, str]]) -> None:
    loss = lost(cluster[0], 3)
    assert (loss["verdict"], loss["is_stale"]) == ("unsafe", False)
    assert loss["summary"] == (
        "2 partitions would refuse acks=all writes: below min.insync.replicas; "
        "1 would be offline: no replica in sync is left; "
        f"1 partition may be below min.insync.replicas, which is unknown ({DENIED}: 'audit')"
    )
    assert {name: count for name, count in loss["counts"].items() if count} == {
        "offline": 1,
        "below_min_isr": 2,
        "unknown": 1,
        "offline_already": 1,
        "leader_moves": 2,
        "fewer_in_sync": 2,
    }
    assert [(row["topic"], row["partition"]) for row in loss["partitions"]][:4] == [
        ("single", 0),
        ("__consumer_offsets", 1),
        ("orders", 1),
        ("audit", 0),
    ]
    assert [(one["topic"], one["effect"], one["partitions"]) for one in loss["internal"]] == [
        ("__consumer_offsets", "below_min_isr", [1])
    ]


def test_what_if_broker_groups_have_their_consequences_the_worst_first(
    cluster: tuple[Config, dict[str, str]],
) -> None:
    config, groups = cluster
    loss = lost(config, 3)
    assert [(group["group_id"], group["consequences"]) for group in loss["groups"]] == [
        (groups["cannot_commit"], ["cannot_commit", "leaders_move"]),
        (groups["cannot_read"], ["cannot_read"]),
        (groups["coordinator_moves"], ["coordinator_moves"]),
    ]
    worst = loss["groups"][0]
    assert (worst["state"], worst["member_count"], worst["lag"]) == ("Stable", 2, 5)
    assert loss["groups_coordinated"] == 1


def test_what_if_broker_text_has_verdict_topics_and_consequences(cluster: tuple[Config, dict[str, str]]) -> None:
    config, groups = cluster
    text = " ".join(shown(config, 3).split())
    assert text.startswith(
        "if broker 3 (kafka-3, rack r1) of cluster default stops 2 partitions would refuse acks=all"
    )
    assert "it leads 4 of 9 partitions that it has a replica of, and coordinates 1 group" in text
    assert "already now, among these: 1 offline" in text
    assert (
        "__consumer_offsets, partition 1: would refuse acks=all; groups in them cannot commit, nor rebalance" in text
    )
    reason = "cannot commit or rebalance: __consumer_offsets-1 is below min.insync.replicas then"
    assert f"{groups['cannot_commit']} Stable 2 5 {reason}; reading pauses on 1 of 1 partitions while" in text
    assert "cannot read 1 of its 1 partitions: offline then" in text
    assert "the cluster as sampled at" in text
    assert groups["nothing"] not in text


def test_what_if_broker_formats_for_programs_have_all(cluster: tuple[Config, dict[str, str]]) -> None:
    config = cluster[0]
    assert json.loads(shown(config, 3, format="json")) == json.loads(json.dumps(lost(config, 3)))
    rows = list(csv.DictReader(io.StringIO(shown(config, 3, format="csv"))))
    assert [(row["topic"], row["effect"], row["isr_left"]) for row in rows][:2] == [
        ("single", "offline", "[]"),
        ("__consumer_offsets", "below_min_isr", "[2]"),
    ]
    assert "| group | state |" in shown(config, 3, format="markdown")


def test_what_if_broker_several_and_racks_stop_together(lake: Config) -> None:
    lay_facts(lake, led("orders", 0, 2, [1, 2, 3]), brokers=(1, 2, 3))
    assert lost(lake, 3)["summary"] == "safe: no partition would be offline or below min.insync.replicas"
    assert lost(lake, 3)["verdict"] == "safe"
    of_rack = lost(lake, racks=["r1"])
    assert [broker["broker_id"] for broker in of_rack["brokers"]] == [1, 3]
    assert of_rack["counts"]["below_min_isr"] == 1
    assert lost(lake, 1, 2, 3)["counts"]["offline"] == 1
    assert "if broker 1 (kafka-1, rack r1) and broker 3" in shown(lake, 3, racks=["r1"])


def test_what_if_broker_of_unknown_settings_is_not_safe(lake: Config) -> None:
    lay_facts(lake, led("orders", 0, 3, [1, 2, 3]), least=None)
    loss = lost(lake, 3)
    assert loss["verdict"] == "unknown"
    assert loss["summary"] == (
        f"not known to be safe: 1 partition may be below min.insync.replicas, which is unknown ({DENIED}: 'orders')"
    )


def test_what_if_broker_of_topics_that_no_sample_shows_is_not_safe(lake: Config) -> None:
    """A topic that is known to be deleted hides nothing."""
    lay_facts(lake, led("orders", 0, 3, [1, 2, 3]))
    gone = {"topic": "gone", "valid_from": at(0), "valid_to": at(1), "deleted_at": at(1)}
    lay(lake, "topics", {**gone, "partition_count": 1})
    lay(lake, "group_states", {**OPEN, "state": "Stable", "group_id": "billing"})
    lay(lake, "consumer_lag", lag_row(0, topic="gone"))
    assert lost(lake, 3)["verdict"] == "safe"
    lay(lake, "consumer_lag", lag_row(0, topic="secret"))
    loss = lost(lake, 3)
    assert loss["summary"] == "not known to be safe: 1 topic that groups read cannot be seen"
    assert any("no sample shows 'secret'" in note for note in loss["notes"])
    assert any("no sample shows __consumer_offsets" in note for note in loss["notes"])
    assert loss["groups_coordinated"] is None


def test_what_if_broker_already_stopped_says_so_and_changes_nothing(lake: Config) -> None:
    lay_facts(lake, led("orders", 0, 1, [1, 2]), led("single", 0, None, [3], (3,)), brokers=(1, 2))
    stopped = {"broker_id": 3, "host": "kafka-3", "valid_from": at(0), "valid_to": at(9), "last_seen_at": at(8)}
    lay(lake, "brokers", stopped)
    loss = lost(lake, 3)
    assert loss["verdict"] == "safe"
    assert loss["summary"].endswith("that is not so already")
    assert loss["notes"][0] == (
        "broker 3 has not been listed as alive since 2026-03-04 12:08:00 UTC: it has stopped already, "
        "and its leaders have moved"
    )
    assert loss["counts"]["offline_already"] == 1
    assert loss["elsewhere"] == {"offline_already": 0, "below_min_isr_already": 0}
    assert lost(lake, 2)["elsewhere"]["offline_already"] == 1


def test_what_if_broker_unknown_names_those_that_are_known(lake: Config) -> None:
    lay_facts(lake, led("orders", 0, 1, [1, 2, 3]))
    with pytest.raises(UnknownBrokerError, match=r"has no broker 7: its brokers are 1, 2, 3$"):
        lost(lake, 7)
    with pytest.raises(UnknownBrokerError, match=r"no broker in rack 'r9': racks are r0, r1$"):
        lost(lake, racks=["r9"])


def test_what_if_broker_of_a_cluster_not_sampled_says_what_to_do(lake: Config) -> None:
    with pytest.raises(QueryError, match="have not been sampled yet: run `grouptrail run`"):
        lost(lake, 3)
    lay_facts(lake, led("orders", 0, 1, [1, 2, 3]))
    with pytest.raises(QueryError, match=r"were first sampled at .*: give a later time"):
        lost(lake, 3, at=at(0))


def test_what_if_broker_at_a_time_goes_by_the_facts_then(lake: Config) -> None:
    lay_facts(lake, led("orders", 0, 1, [1, 2, 3]))
    before = {"valid_from": at(0), "valid_to": at(60), "last_seen_at": at(59)}
    lay(lake, "brokers", *({"broker_id": number, "host": "old", **before} for number in (1, 2, 3)))
    lay(lake, "topics", {"topic": "orders", "partition_count": 1, **before})
    lay(lake, "topic_partitions", {**led("orders", 0, 3, [3]), **before})
    lay(lake, "consumer_lag", lag_row(0, sampled_at=at(29)), lag_row(1, topic="later", sampled_at=at(31)))
    loss = lost(lake, 3, at=at(30))
    assert (loss["verdict"], loss["counts"]["offline"], loss["at"]) == ("unsafe", 1, "2026-03-04T12:30:00Z")
    assert (loss["sampled_at"], loss["is_stale"]) == ("2026-03-04T12:30:00Z", False)
    assert [group["partitions"] for group in loss["groups"]] == [1]
    assert lost(lake, 3)["verdict"] == "safe"


def test_what_if_broker_of_old_facts_is_not_safe(lake: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("support.broker_facts.now", lambda: now() - timedelta(hours=2))
    lay_facts(lake, led("orders", 0, 1, [1, 2, 3]))
    stale = lost(lake, 3)
    assert (stale["verdict"], stale["is_stale"]) == ("unknown", True)
    assert stale["summary"].startswith("not known to be safe: the cluster was last sampled at")
    folder = Path(warehouse_of(lake).checkpoint_path("cluster"))
    folder.mkdir(parents=True)
    checkpoint: Any = SimpleNamespace(write_text=lambda name, text: (folder / name).write_text(text))
    noted = LastSample(now(), 60.0, ("cluster: settings of topics: denied",), missing=("audit", "orders"))
    write_last_sample(checkpoint, noted)
    fresh = lost(lake, 3)
    assert (fresh["verdict"], fresh["is_stale"]) == ("safe", False)
    assert fresh["notes"][-2:] == [
        "the last sample lacks something: settings of topics: denied",
        "the last sample did not find 'audit' and 1 more: deleted, unless the next one finds them",
    ]
    assert fresh["changed_at"] < fresh["sampled_at"]


def test_what_if_broker_before_kafka_3_7_says_that_min_isr_is_not_capped(lake: Config) -> None:
    lay_facts(lake, led("orders", 0, 1, [1, 2, 3]))
    lay(lake, "brokers", {"broker_id": 4, "release_from": "3.6", "valid_from": now(), **OPEN})
    assert any(note.startswith("brokers before Kafka 3.7 (4) refuse") for note in lost(lake, 3)["notes"])


def test_what_if_broker_group_deleted_or_recreated_by_commits(lake: Config) -> None:
    """A group is listed if it has offsets, whatever its last state was."""
    lay_facts(lake, *(led("__consumer_offsets", number, 3, [1, 2, 3]) for number in range(3)))
    dead, alive = group_in(0, "dead"), group_in(1, "alive")
    lay(lake, "group_states", *({**OPEN, "state": "Dead", "group_id": name} for name in (dead, alive)))
    lay(lake, "committed_offsets", {"group_id": alive, "topic": "__consumer_offsets", "partition": 0})
    assert [(group["group_id"], group["state"]) for group in lost(lake, 3)["groups"]] == [(alive, None)]


@pytest.mark.parametrize(
    ("given", "status", "said"),
    [
        ((), 2, "name a broker, or a rack with --rack"),
        (("x",), 2, "'x' is not a valid int"),
        (("3", "--at", "2999-01-01"), 2, "is in the future"),
        (("7",), 1, "has no broker 7: its brokers are 1, 2, 3"),
        (("--rack", "r9"), 1, "no broker in rack 'r9': racks are r0, r1"),
    ],
)
def test_what_if_command_wrongly_used_says_what_is_wanted(
    lake: Config, given: tuple[str, ...], status: int, said: str
) -> None:
    lay_facts(lake, led("orders", 0, 1, [1, 2, 3]))
    finished = run_cli(lake, "what-if", "broker", *given)
    assert (finished.returncode, said in finished.printed) == (status, True), finished.printed


def test_what_if_command_takes_several_brokers(lake: Config) -> None:
    lay_facts(lake, led("orders", 0, 1, [1, 2, 3]))
    finished = run_cli(lake, "what-if", "broker", "2", "3", "--format", "json")
    assert json.loads(finished.printed)["counts"]["below_min_isr"] == 1


@pytest.mark.parametrize("format", ["table", "markdown", "json"])
def test_what_if_broker_hostile_names_are_plain_text(lake: Config, format: RowsFormat) -> None:
    name = "\x1b[2Jfine\nbilling\u202e`id`"
    lay_cluster(lake, name)
    text = shown(lake, 3, format=format)
    assert "billing" in text
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
    assert "\nbilling\\u202e" not in text
