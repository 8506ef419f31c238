"""`grouptrail show group`, and the partition that coordinates a group."""

from __future__ import annotations

import io
import json
import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from grouptrail import cli
from grouptrail.config import Config
from grouptrail.kafka.coordinator import coordinator_partition, java_hash
from grouptrail.query.errors import QueryError
from grouptrail.query.show_group import TABLES, describe_group, ranges, show_group
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.storage.sql_snapshot import SqlSnapshot
from support.from_config import SAMPLE_SECONDS
from support.noted_samples import note_sample
from support.sample_groups import memberless
from support.small_tables import at, lay
from support.streams_tables import lay_streams_group, lay_unready_group


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """Member a owns all of orders; b takes a part after 5 minutes, and b's assignment after 10 cannot be decoded."""
    config = Config(warehouse=str(tmp_path_factory.mktemp("lake")))
    generation = {"group_kind": "classic", "protocol_type": "consumer", "protocol": "range"}
    lay(
        config,
        "generations",
        {**generation, "generation": 1, "started_at": at(0), "ended_at": at(5), "partition_count": 5, "skew": 0}
        | {"is_assignors_own": True, "assignment_note": "range gives the same", "members": [_assigned("a", 0, 1, 2)]},
        {**generation, "generation": 4, "started_at": at(5), "ended_at": at(10), "partition_count": 5, "skew": 1}
        | {
            "is_assignors_own": False,
            "assignment_note": "0 is another's",
            "members": [_assigned("a"), _assigned("b")],
        },
        {**generation, "generation": 5, "started_at": at(10)}
        | {"members": [_assigned("a", 0), {"member_id": "b", "partitions": None}]},
    )
    states = [("Stable", 0, 4), ("PreparingRebalance", 4, 5), ("Stable", 5, None)]
    lay(
        config,
        "group_states",
        *(
            {"state": state, "started_at": at(since), "ended_at": None if until is None else at(until)}
            | {"evidence": "inferred" if state == "PreparingRebalance" else "recorded"}
            for state, since, until in states
        ),
    )
    member = {"client_host": "/10.0.0.1", "began": "joined"}
    lay(
        config,
        "memberships",
        {**member, "member_id": "a", "client_id": "client-a", "joined_at": at(0)},
        {**member, "member_id": "b", "client_id": "\x1b[31mb", "joined_at": at(5)},
    )
    lay(
        config,
        "partition_ownership",
        *({"topic": "orders", "partition": number, "member_id": "a", "owned_from": at(0)} for number in (3, 0, 1)),
        *(
            {"topic": "orders", "partition": number, "member_id": "a", "owned_from": at(0), "owned_until": at(5)}
            for number in (2, 4)
        ),
        {"topic": "orders", "partition": 4, "member_id": "b", "owned_from": at(5), "owned_until": at(10)},
        {"topic": "payments", "partition": 4, "member_id": "b", "owned_from": at(5), "owned_until": at(10)},
    )
    lay(
        config,
        "rebalances",
        {"to_generation": 1, "cause": "group_started", "certainty": "recorded", "members_joined": ["a"]},
        {"to_generation": 4, "cause": "member_joined", "certainty": "recorded", "members_joined": ["b"]}
        | {"skipped": 2, "partitions_moved": 2, "partitions_kept": 3, "duration_ms": 1500}
        | {"seconds_since_previous": 300.0},
        {"to_generation": 5, "cause": "unknown", "certainty": "ambiguous", "cause_note": "not to be read"},
    )
    lay(config, "ingest_progress", {"record_partition": 49}, {"record_partition": 0})
    return config


def _assigned(name: str, *numbers: int) -> dict[str, Any]:
    return {"member_id": name, "partitions": [{"topic": "orders", "partitions": list(numbers)}]}


def shown(config: Config, time: datetime | None = None, *, group: str = "billing", generations: int = 10) -> str:
    out = io.StringIO()
    show_group(
        warehouse_of(config),
        group,
        at=time,
        generations=generations,
        sample_seconds=SAMPLE_SECONDS,
        format="table",
        out=out,
    )
    return "\n".join(" ".join(line.split()) for line in out.getvalue().splitlines())


def described(config: Config, group_id: str, *, at: datetime | None, generations: int) -> dict[str, Any]:
    return describe_group(SqlSnapshot(warehouse_of(config), TABLES), group_id, at=at, generations=generations)


def test_show_group_at_a_time_prints_state_members_and_rebalances(warehouse: Config) -> None:
    """Members with their partitions at that time; the newest generation first."""
    text = shown(warehouse, at(7))
    assert text.startswith(
        "billing: classic group of cluster default, Stable since 2026-03-04 12:05:00 UTC\n"
        "generation 4, protocol consumer / range, coordinator partition 9 of __consumer_offsets\n"
        "assignment: 5 partitions, skew 1, not the assignor's own (0 is another's)\n"
    )
    assert "client-a 10.0.0.1 2026-03-04 12:00:00 3: orders 0-1,3 a\n" in text
    assert "2026-03-04 12:05:00 2: orders 4; payments 4 b\n" in text
    assert "4 2026-03-04 12:05:00 member_joined +\\x1b[31mb 2 3 1.5 s 5.0 min\n" in text
    assert "1 2026-03-04 12:00:00 group_started +client-a 0 0 - -\n" in text
    assert "4: 2 generations before it are not in the log" in text
    assert text.index("member_joined") < text.index("group_started")
    assert "ambiguous" not in text


@pytest.fixture
def coordinated(warehouse: Config, tmp_path: Path) -> Config:
    """Partition 9 moved from broker 2 to broker 1, between the samples 5 and 6 minutes after the beginning."""
    config = Config(warehouse=str(tmp_path / "lake"))
    shutil.copytree(warehouse.warehouse, config.warehouse)
    epochs = [
        {"leader_epoch": 3, "broker_id": 2, "valid_from": at(1), "valid_to": at(6), "last_seen_at": at(5)},
        {"leader_epoch": 4, "broker_id": 1, "valid_from": at(6)},
    ]
    lay(config, "coordinators", *({"record_partition": 9, "first_offset": 7, **one} for one in epochs))
    lay(config, "brokers", {"broker_id": 1, "host": "kafka-1", "valid_from": at(1)})
    return config


@pytest.mark.parametrize(
    ("time", "brokers"),
    [
        (None, ", on broker 1 (kafka-1)"),
        (at(7), ", on broker 1 (kafka-1)"),
        (at(4), ", on broker 2 then and broker 1 (kafka-1) now"),
        (
            at(5.5),
            ", on broker 2 then and broker 1 (kafka-1) now "
            "(it moved between 2026-03-04 12:05:00 and 2026-03-04 12:06:00 UTC)",
        ),
        (at(0.5), ", on broker 1 (kafka-1) now"),
    ],
)
def test_show_group_names_the_coordinator_then_and_now(
    coordinated: Config, time: datetime | None, brokers: str
) -> None:
    second_line = shown(coordinated, time).splitlines()[1]
    assert second_line.endswith(f"coordinator partition 9 of __consumer_offsets{brokers}")


def test_show_group_unreadable_assignment_is_unknown(warehouse: Config) -> None:
    """It is shown neither as empty nor as 0 partitions."""
    text = shown(warehouse)
    assert "assignment: unknown, not every member's can be read" in text
    assert "2026-03-04 12:05:00 unknown b\n" in text
    assert "5 2026-03-04 12:10:00 unknown ? unknown unknown - -\n" in text
    assert "~ likely, ? ambiguous; other causes are recorded as such\n5: not to be read" in text


def test_show_group_inferred_state_is_marked(warehouse: Config) -> None:
    """Its shown time is the latest possible begin."""
    assert "PreparingRebalance since 2026-03-04 12:04:00 UTC at the latest (inferred)" in shown(warehouse, at(4.5))


@pytest.mark.parametrize(("stable", "is_held"), [(90, True), (100, False)])
def test_show_group_says_what_an_open_transaction_holds_back(warehouse: Config, stable: int, is_held: bool) -> None:
    """The group may have been deleted behind it: its tombstones cannot be read yet."""
    of_partition = {"topic": "__consumer_offsets", "partition": 9, "log_end_offset": 100}
    lay(warehouse, "log_offsets", {**of_partition, "sampled_at": at(9), "last_stable_offset": 100})
    lay(warehouse, "log_offsets", {**of_partition, "sampled_at": at(10), "last_stable_offset": stable})
    assert ("an open transaction holds back 10 records of that partition" in shown(warehouse)) == is_held
    assert "holds back" not in shown(warehouse, at(7))


def test_describe_group_generations_returns_the_newest(warehouse: Config) -> None:
    group = described(warehouse, "billing", at=None, generations=2)
    assert [row["generation"] for row in group["generations"]] == [5, 4]


def test_show_group_json_is_one_object(warehouse: Config) -> None:
    """JSON has full timestamps and the values behind the texts."""
    out = io.StringIO()
    show_group(
        warehouse_of(warehouse),
        "billing",
        at=at(7),
        generations=1,
        sample_seconds=SAMPLE_SECONDS,
        format="json",
        out=out,
    )
    group = json.loads(out.getvalue())
    assert (group["at"], group["state_since"]) == ("2026-03-04T12:07:00Z", "2026-03-04T12:05:00Z")
    assert (group["record_partition"], group["coordinator_partition"], group["offsets_partitions"]) == (9, 9, 50)
    assert [member["partitions"] for member in group["members"]] == [
        {"orders": [4], "payments": [4]},
        {"orders": [0, 1, 3]},
    ]
    assert group["generations"][0]["members_joined"] == [{"member_id": "b", "client_id": "\x1b[31mb"}]


def test_show_group_coordinator_partition_mismatch_is_reported(warehouse: Config) -> None:
    """The number of partitions is the highest seen, of the configured cluster."""
    lay(
        warehouse,
        "generations",
        {"cluster": "grown", "generation": 0, "group_kind": "classic", "record_partition": 8, "member_count": 0},
    )
    lay(warehouse, "ingest_progress", {"cluster": "grown", "record_partition": 49})
    grown = warehouse.model_copy(update={"cluster": "grown"})
    text = shown(grown)
    assert "coordinator partition 8 of __consumer_offsets (of 50 partitions it would be 9: " in text
    assert "\nno members\n" in text
    assert "state not known" in text


def test_show_group_before_its_history_raises(warehouse: Config) -> None:
    """Whether the group existed at that time is unknown."""
    with pytest.raises(QueryError, match=r"history of 'billing' begins at 2026-03-04T12:0.*Z: give a later time"):
        shown(warehouse, at(-1))


def test_show_group_unknown_group_exits_1_with_a_suggestion(warehouse: Config) -> None:
    """The error is one line with similar names."""
    result = CliRunner().invoke(cli.app, ["show", "group", "biling", "--warehouse", warehouse.warehouse])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines() == [
        "grouptrail: there is no history of a group 'biling' in cluster default: did you mean billing?"
    ]


def test_show_group_at_option_takes_a_time_or_exits_2(warehouse: Config) -> None:
    """The error describes the accepted formats."""
    command = ["show", "group", "billing", "--warehouse", warehouse.warehouse, "--format", "json", "--at"]
    result = CliRunner().invoke(cli.app, [*command, "2026-03-04 12:07"])
    assert json.loads(result.stdout)["generation"] == 4
    result = CliRunner().invoke(cli.app, [*command, "noon"])
    assert result.exit_code == 2
    assert "'noon' is not a time" in result.stderr


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory, warehouse: Config) -> Config:
    """The warehouse, and a group that never had members."""
    memberless(warehouse)
    return warehouse


def test_show_group_without_members_prints_its_committed_offsets(standalone: Config) -> None:
    """As of a time, too; a deleted offset is not among them."""
    out = io.StringIO()
    show_group(
        warehouse_of(standalone),
        "standalone",
        at=None,
        generations=10,
        sample_seconds=SAMPLE_SECONDS,
        format="table",
        out=out,
    )
    text = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert text[0].startswith(
        "standalone: group of cluster default; it has no members in its history: its offsets are"
    )
    assert text[-4:-2] == ["orders 0 1,950 2026-03-04 12:19:30", "orders 1 1,950 2026-03-04 12:19:30"]
    group = described(standalone, "standalone", at=at(1.2), generations=10)
    assert [(row["partition"], row["committed_offset"]) for row in group["committed"]] == [
        (0, 100),
        (1, 100),
        (2, 100),
    ]
    assert (group["members"], group["generations"]) == ([], [])
    assert described(standalone, "billing", at=None, generations=1)["committed"] is None


def test_show_group_without_members_before_its_first_commit_raises(standalone: Config) -> None:
    with pytest.raises(QueryError, match=r"history of 'standalone' begins at 2026-03-04T12:0.*Z: give a later time"):
        described(standalone, "standalone", at=at(-1), generations=1)


def test_show_group_unknown_group_suggests_one_without_members(standalone: Config) -> None:
    with pytest.raises(QueryError, match="'standalon' in cluster default: did you mean standalone"):
        described(standalone, "standalon", at=None, generations=1)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([], ""), ([3], "3"), ([7, 2, 1, 0, 3], "0-3,7"), ([0, 2, 4], "0,2,4"), ([-1, 0, 1], "-1,0-1")],
)
def test_ranges_lists_partitions_ascending_with_runs_joined(numbers: list[int], text: str) -> None:
    """Ascending; the connector itself is no part of a range."""
    assert ranges(numbers) == text
    assert ranges(numbers, is_connect=True) == text.replace("-1,", "connector,")


@pytest.mark.parametrize(
    ("group_id", "partition"),
    [
        ("billing", 9),
        ("audit", 5),
        ("", 0),
        ("my-group", 12),
        ("polygenelubricants", 0),
        ("connect-cluster", 13),
        ("a", 47),
        ("grüppe-群组-😀", 33),
    ],
)
def test_coordinator_partition_matches_kafka(group_id: str, partition: int) -> None:
    assert coordinator_partition(group_id, 50) == partition


def test_java_hash_is_a_signed_32_bit_hash() -> None:
    assert java_hash("polygenelubricants") == -(2**31)
    assert java_hash("Hello") == 69609650


@pytest.mark.parametrize("time", [None, at(7)])
def test_show_group_after_the_newest_record_says_how_old_it_is(warehouse: Config, time: datetime | None) -> None:
    assert shown(warehouse, time).splitlines()[-1].startswith("as of 2026-03-04 12:00:00 UTC (")


def test_show_group_as_of_a_recorded_time_has_no_note(warehouse: Config) -> None:
    assert "nothing has been recorded since" not in shown(warehouse, at(4))


@pytest.mark.parametrize("command", [["show", "group", "billing", "--at"], ["diff", "billing", "2026-03-04"]])
def test_commands_as_of_a_future_time_exit_with_usage_error(command: list[str], warehouse: Config) -> None:
    result = CliRunner().invoke(cli.app, [*command, "2999-01-01", "--warehouse", warehouse.warehouse])
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].endswith("'2999-01-01' is in the future: give one up to now")


def test_show_group_members_with_one_client_id_are_told_apart(warehouse: Config) -> None:
    """By the end of their member ids, in the members' table and in the generations'."""
    ids = [f"sarama-7c5b{number}0e1-aa" for number in range(3)]
    group = {"group_id": "go", "generation": 1, "incarnation": 1, "group_kind": "classic", "started_at": at(0)}
    lay(warehouse, "generations", group | {"members": [_assigned(one, number) for number, one in enumerate(ids)]})
    member = {"group_id": "go", "client_id": "sarama", "client_host": "/10.0.0.1", "joined_at": at(0)}
    lay(warehouse, "memberships", *(member | {"member_id": one} for one in ids))
    started = {"group_id": "go", "to_generation": 1, "cause": "group_started", "certainty": "recorded"}
    lay(warehouse, "rebalances", started | {"members_joined": ids})
    text = shown(warehouse, group="go")
    names = [f"sarama …{number}0e1-aa" for number in range(3)]
    assert all(f"{name} 10.0.0.1" in text for name in names)
    assert f"group_started {' '.join('+' + name for name in names)}" in text


def test_show_group_names_the_rollout_of_its_rebalances(tmp_path: Path) -> None:
    """One line, also if only the last of its generations are listed; JSON has it, too. None before it began."""
    config = Config(warehouse=str(tmp_path))
    steps = [("a", 10, 10.5), ("b", 11, 11.5)]
    moments = [moment for _, *both in steps for moment in both]
    for name, row in (("generations", "generation"), ("rebalances", "to_generation")):
        at_name = "started_at" if name == "generations" else "at"
        lay(config, name, *({row: number, at_name: at(moment)} for number, moment in enumerate([0, *moments], 1)))
    members = [
        {"client_id": client, "client_host": "/h", "began": "joined"} | more
        for client, left, back in steps
        for more in (
            {"member_id": f"{client}-1", "joined_at": at(-60), "left_at": at(left), "ended": "left"},
            {"member_id": f"{client}-2", "joined_at": at(back)},
        )
    ]
    lay(config, "memberships", *members)
    lay(config, "group_states", {"state": "Stable", "evidence": "recorded", "started_at": at(0)})
    lay(config, "partition_ownership")
    lay(config, "ingest_progress", {"record_partition": 9, "landed_at": at(30)})
    line = "2-5: rollout: 2 of 2 members, rolling, 4 rebalances, 1 min 30 s"
    assert line in shown(config).splitlines()
    assert line in shown(config, generations=1).splitlines()
    assert "rollout" not in shown(config, at(9))
    out = io.StringIO()
    show_group(
        warehouse_of(config),
        "billing",
        at=None,
        generations=1,
        sample_seconds=SAMPLE_SECONDS,
        format="json",
        out=out,
    )
    [rollout] = json.loads(out.getvalue())["rollouts"]
    assert (rollout["started_at"], rollout["certainty"]) == ("2026-03-04T12:10:00Z", "likely")


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Config:
    config = Config(warehouse=str(tmp_path_factory.mktemp("lake")))
    lay_streams_group(config)
    return config


def test_show_group_of_a_streams_group_has_tasks_by_role_topology_and_lag_of_each_task(streams: Config) -> None:
    text = shown(streams, group="app")
    assert "assignment: 3 tasks, skew 1" in text
    assert "client host since (UTC) active tasks standby tasks member id" in text
    assert "thread-a 10.0.0.1 2026-03-04 12:00:00 2 (0: 0; 1: 0) none a" in text
    assert "thread-b 10.0.0.1 2026-03-04 12:00:00 1 (0: 1) 1 (1: 0) b" in text
    assert "subtopology reads writes state in" in text
    assert [line for line in text.splitlines() if line.endswith(("by-key -", "counts"))] == [
        "0 orders by-key -",
        "1 by-key - counts",
    ]
    assert "0_0 thread-a 1,200 4.0 s -" in text
    assert "1_0 thread-a 5 500 ms -" in text
    assert "0_1 thread-b unknown - topics without a commit or a sample of this partition" in text


def test_show_group_of_a_streams_group_says_why_the_lag_of_standbys_is_unknown(streams: Config) -> None:
    text = shown(streams, group="app")
    assert "no offset of a standby or warm-up task is recorded: how far it is behind" in text
    assert "copy of task" not in text


def test_show_group_has_the_offset_sum_of_standbys_of_which_it_is_recorded(tmp_path: Path) -> None:
    config = Config(warehouse=str(tmp_path))
    lay_streams_group(config, offset_sum=1_040, offset_sum_at=at(1))
    text = shown(config, group="app")
    assert "copy of task client offset sum as of (UTC)" in text
    assert "1_0 thread-b 1,040 2026-03-04 12:01:00" in text
    assert "only offset_sum is recorded" in text


def test_describe_group_of_a_streams_group_at_an_earlier_time_has_tasks_and_no_lag(streams: Config) -> None:
    """Lag of tasks is of now."""
    group = described(streams, "app", at=at(0), generations=1)
    assert [(one["tasks"], one["endpoint"]) for one in group["members"]] == [
        ({"active": {"0": [0], "1": [0]}}, "a:8080"),
        ({"active": {"0": [1]}, "standby": {"1": [0]}}, "b:8080"),
    ]
    assert {row["subtopology"] for row in group["topology"]} == {"0", "1"}
    assert group["task_lag"] == []


def sampled_topic(topic: str, count: int, **more: object) -> dict[str, object]:
    return {"topic": topic, "partition_count": count, "valid_from": at(0), "is_open": True, "open_bucket": 0, **more}


def unready(tmp_path: Path, *topics: dict[str, object], fixed: int | None = 4, sampled: float = 3) -> Any:
    config = Config(warehouse=str(tmp_path))
    lay_unready_group(config, fixed)
    note_sample(warehouse_of(config), "cluster", at(sampled))
    if topics:
        lay(config, "topics", *topics)
    assert described(config, "app", at=at(1), generations=1)["unready"] is None
    return described(config, "app", at=None, generations=1)["unready"]


def test_show_group_that_is_not_ready_names_missing_topics_and_those_that_do_not_fit(tmp_path: Path) -> None:
    deleted = {"valid_to": at(2), "last_seen_at": at(1), "deleted_at": at(2), "is_open": False, "open_bucket": None}
    found = unready(tmp_path, sampled_topic("orders", 4, **deleted), sampled_topic("by-key", 3))
    assert [(row["topic"], row["subtopologies"], row["certainty"]) for row in found["topics"]] == [
        ("by-key", ["1"], "recorded"),
        ("counts", ["1"], "likely"),
        ("orders", ["0"], "recorded"),
    ]
    assert found["note"] is None
    text = shown(Config(warehouse=str(tmp_path)), group="app")
    assert "not ready because of by-key (subtopology 1): has 3 partitions, and 4 are expected" in text
    assert "not ready because of counts (subtopology 1) ~: missing: no sample of the cluster shows it" in text
    assert "orders (subtopology 0): missing: deleted between 2026-03-04 12:01:00 and 2026-03-04 12:02:00 UTC" in text


def test_show_group_that_is_not_ready_names_a_changelog_with_other_partitions_than_the_topics_read(
    tmp_path: Path,
) -> None:
    found = unready(tmp_path, sampled_topic("orders", 8), sampled_topic("by-key", 4), sampled_topic("counts", 3))
    assert [(row["topic"], row["problem"]) for row in found["topics"]] == [
        ("counts", "has 3 partitions, and 4 are expected")
    ]


def test_show_group_that_is_not_ready_names_a_repartition_topic_with_other_partitions_than_what_is_read(
    tmp_path: Path,
) -> None:
    """Unless the topology fixes its number, it has that of the topics from which it is written."""
    found = unready(
        tmp_path, sampled_topic("orders", 8), sampled_topic("by-key", 4), sampled_topic("counts", 4), fixed=None
    )
    assert [(row["topic"], row["problem"]) for row in found["topics"]] == [
        ("by-key", "has 4 partitions, and 8 are expected")
    ]


def test_show_group_that_is_not_ready_names_no_topic_that_was_created_again(tmp_path: Path) -> None:
    gone = {"valid_to": at(1), "last_seen_at": at(0), "deleted_at": at(1), "is_open": False, "open_bucket": None}
    again = sampled_topic("orders", 4, valid_from=at(1.5))
    others = [sampled_topic("by-key", 4), sampled_topic("counts", 4)]
    found = unready(tmp_path, sampled_topic("orders", 4, **gone), again, *others)
    assert found["topics"] == []
    assert "their numbers of partitions may not fit" in found["note"]


def test_show_group_that_is_not_ready_is_not_sure_by_samples_from_before(tmp_path: Path) -> None:
    found = unready(tmp_path, sampled_topic("orders", 8), sampled_topic("by-key", 3), sampled=1)
    assert {row["certainty"] for row in found["topics"]} == {"likely"}
    assert found["note"].startswith("this is by samples of the cluster until 2026-03-04 12:01:00 UTC")


def test_show_group_that_is_not_ready_without_samples_of_the_cluster_says_so(tmp_path: Path) -> None:
    found = unready(tmp_path)
    assert (found["topics"], found["note"][:41]) == ([], "which topics are missing is not known: no")
    assert "not ready: which topics are missing" in shown(Config(warehouse=str(tmp_path)), group="app")


def test_describe_group_of_consumers_has_no_tasks_or_topology(warehouse: Config) -> None:
    group = described(warehouse, "billing", at=at(3), generations=1)
    assert (group["topology"], group["task_lag"], [one["tasks"] for one in group["members"]]) == ([], [], [{}])
