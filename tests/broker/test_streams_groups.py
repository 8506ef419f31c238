"""A real Kafka Streams application as a streams group (KIP-1071), compared with what Kafka's own tool prints.

An instance is joined by another one, which is stopped, started again and killed; in between the group's number of
standby replicas is changed. The tool is asked at quiet moments, and the history must match.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from grouptrail.config import Config
from servers.kafka import VERSIONS, Broker, config_command
from servers.offsets_topic import ensure_offsets_topic
from support.cli_in_process import Cli, succeeded
from support.history_tables import History, Row
from support.kafka_clients import await_that
from support.landed import config_of
from support.queries import asked
from support.streams_apps import INPUT_TOPIC, StreamsApp, create_topics

GROUP = "word-count"
PARTITIONS = 4
REPARTITION = f"{GROUP}-KSTREAM-AGGREGATE-STATE-STORE-0000000003-repartition"
CHANGELOG = f"{GROUP}-KSTREAM-AGGREGATE-STATE-STORE-0000000003-changelog"
TOOL = "org.apache.kafka.tools.streams.StreamsGroupCommand"
PROPERTIES = {
    "offsets.topic.num.partitions": "1",
    "group.streams.num.standby.replicas": "1",
    "group.streams.session.timeout.ms": "6000",
    "group.streams.min.session.timeout.ms": "6000",
    "group.streams.heartbeat.interval.ms": "500",
    "group.streams.min.heartbeat.interval.ms": "500",
    "group.streams.initial.rebalance.delay.ms": "0",
}
# It commits when it gives tasks up, and so lags behind at other times.
RARE_COMMITS = {"commit.interval.ms": "3600000"}

NEWEST, *BEFORE = VERSIONS[:3]  # the group's protocol was in early access in 4.1

Task = tuple[str, str, int]
"""A role, a subtopology and a number."""


@dataclass(frozen=True)
class ToolMember:
    """A member as the tool prints it."""

    process_id: str
    client_id: str
    epoch: int
    tasks: frozenset[Task]
    target: frozenset[Task]


@dataclass(frozen=True)
class Quiet:
    """A group that was in one state for a while: what the tool printed, and when (ms)."""

    at_ms: int
    state: str
    members: Mapping[str, ToolMember]
    endpoints: Mapping[str, str]


@dataclass
class Recorded:
    """The group's quiet moments, its lag by topic and partition at the end, and its history."""

    version: str
    config: Config
    quiet: dict[str, Quiet] = field(default_factory=dict)
    lag: dict[tuple[str, int], int] = field(default_factory=dict)

    @property
    def history(self) -> History:
        return History.read(self.config)


class Tool:
    """Kafka's tool for streams groups."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def _rows(self, *options: str) -> list[dict[str, str]]:
        """Return the printed table; the last column may have spaces."""
        command = ("--bootstrap-server", self._broker.bootstrap, "--describe", "--group", GROUP, *options)
        done = self._broker.tool(TOOL, *command)
        lines = [line for line in done.stdout.splitlines() if line.strip()]
        head = next((number for number, line in enumerate(lines) if line.startswith("GROUP")), None)
        if head is None:
            return []
        names = re.split(r"\s{2,}|(?<=\w) (?=[A-Z#])", lines[head].replace("COORDINATOR (ID)", "COORDINATOR").strip())
        if "COORDINATOR" in names:
            lines = [re.sub(r" \(\d+\)", "", line) for line in lines]
        return [dict(zip(names, line.split(None, len(names) - 1), strict=False)) for line in lines[head + 1 :]]

    def state(self) -> str | None:
        return next((row["STATE"] for row in self._rows("--state")), None)

    def members(self) -> dict[str, ToolMember]:
        return {
            row["MEMBER"]: ToolMember(
                row["PROCESS"],
                row["CLIENT-ID"],
                int(row["MEMBER-EPOCH"]),
                _tasks(row.get("ASSIGNMENTS", ""), ""),
                _tasks(row.get("ASSIGNMENTS", ""), "TARGET-"),
            )
            for row in self._rows("--members", "--verbose")
        }

    def lag(self) -> dict[tuple[str, int], int]:
        """Return the lag of each partition with a commit."""
        return {
            (row["TOPIC"], int(row["PARTITION"])): int(row["OFFSET-LAG"])
            for row in self._rows("--offsets")
            if row["OFFSET-LAG"] != "-"
        }


def _tasks(printed: str, prefix: str) -> frozenset[Task]:
    """Return the tasks in a text such as `ACTIVE: 0:[0,1]; 1:[0]; STANDBY: 1:[1]; TARGET-ACTIVE: 0:[0,1];`."""
    tasks: set[Task] = set()
    role = ""
    for part in filter(None, (one.strip() for one in printed.split(";"))):
        *named, listed = part.split(": ")
        role = named[0] if named else role
        if role.removeprefix(prefix) in ("ACTIVE", "STANDBY", "WARMUP") and role.startswith(prefix):
            subtopology, numbers = listed.split(":")
            kind = role.removeprefix(prefix).lower()
            tasks |= {(kind, subtopology, int(number)) for number in numbers.strip("[]").split(",") if number}
    return frozenset(tasks)


def _await_quiet(tool: Tool, *apps: StreamsApp, standbys: int) -> Quiet:
    """Wait until each instance has its member with its tasks, and each task with a store as many standbys."""
    found: dict[str, ToolMember] = {}

    def is_quiet() -> bool:
        nonlocal found
        found = tool.members()
        tasks = [task for member in found.values() for task in member.tasks]
        return (
            {member.process_id for member in found.values()} == {app.process_id() for app in apps}
            and all(member.tasks == member.target for member in found.values())
            and sum(role == "active" for role, _, _ in tasks) == 2 * PARTITIONS
            and sum(role == "standby" for role, _, _ in tasks) == standbys * PARTITIONS
            and tool.state() == "Stable"
        )

    await_that(is_quiet)
    endpoints = {app.process_id(): app.endpoint for app in apps}
    return Quiet(round(time.time() * 1000), "Stable", found, endpoints)


def _produce(broker: Broker, count: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 2})
    for number in range(count):
        producer.produce(INPUT_TOPIC, f"all streams lead to {number % 7}", partition=number % PARTITIONS)
    producer.flush()


@pytest.fixture(scope="module", params=[NEWEST, *(pytest.param(one, marks=pytest.mark.full) for one in BEFORE)])
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, cli: Cli) -> Recorded:
    folder: Path = tmp_path_factory.mktemp("streams")
    version: str = request.param
    with Broker(folder / "kafka", version=version, properties=PROPERTIES) as broker:
        ensure_offsets_topic(broker.bootstrap)
        create_topics(broker.bootstrap, partitions=PARTITIONS)
        tool, result = Tool(broker), Recorded(version, config_of(broker.bootstrap, folder / "warehouse"))

        def app(name: str) -> StreamsApp:
            settings = {"protocol": "streams", "version": version}
            return StreamsApp(folder / name, broker.bootstrap, GROUP, settings=RARE_COMMITS, **settings)  # type: ignore[arg-type]

        with app("a") as stays, app("b") as comes_and_goes:
            comes_and_goes.kill()
            stays.await_running()
            _produce(broker, 100)
            result.quiet["one"] = _await_quiet(tool, stays, standbys=0)
            comes_and_goes.start()
            comes_and_goes.await_running()
            result.quiet["two"] = _await_quiet(tool, stays, comes_and_goes, standbys=1)
            _produce(broker, 100)
            comes_and_goes.stop()
            result.quiet["stopped"] = _await_quiet(tool, stays, standbys=0)
            comes_and_goes.start()
            comes_and_goes.await_running()
            result.quiet["started"] = _await_quiet(tool, stays, comes_and_goes, standbys=1)
            _set_standbys(broker, version, 0)
            result.quiet["set"] = _await_quiet(tool, stays, comes_and_goes, standbys=0)
            comes_and_goes.kill()
            result.quiet["killed"] = _await_quiet(tool, stays, standbys=0)
            _produce(broker, 50)
            await_that(lambda: tool.lag() == tool.lag() and any(tool.lag().values()))
            result.lag = tool.lag()
            jobs = ("decode", "log-offsets", "history", "lag")
            succeeded(cli(result.config, "run", *(word for job in jobs for word in ("--job", job)), "--once"))
            assert tool.lag() == result.lag, "not a quiet moment"
            made = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 2}).list_topics().topics
            assert {REPARTITION, CHANGELOG} <= made.keys()
    return result


def _set_standbys(broker: Broker, version: str, number: int) -> None:
    done = broker.tool(
        config_command(version),
        *("--bootstrap-server", broker.bootstrap, "--alter", "--entity-type", "groups", "--entity-name", GROUP),
        *("--add-config", f"streams.num.standby.replicas={number}"),
    )
    assert done.returncode == 0, done.stderr


MOMENTS = ("one", "two", "stopped", "started", "set", "killed")


@pytest.mark.parametrize("moment", MOMENTS)
def test_tasks_of_each_member_match_kafkas_tool(recorded: Recorded, moment: str) -> None:
    """By role, with the member's process and endpoint."""
    quiet, ours = recorded.quiet[moment], {}
    for row in recorded.history.at("task_assignments", GROUP, quiet.at_ms, "assigned_from", "assigned_until"):
        ours.setdefault(row["member_id"], set()).add((row["role"], row["subtopology"], row["task"]))
        theirs = quiet.members[row["member_id"]]
        assert (row["process_id"], row["client_id"]) == (theirs.process_id, theirs.client_id)
        assert row["endpoint"] == quiet.endpoints[theirs.process_id]
        assert row["from_generation"] is not None
    assert ours == {name: set(member.tasks) for name, member in quiet.members.items()}


@pytest.mark.parametrize("moment", MOMENTS)
def test_members_epoch_and_state_match_kafkas_tool(recorded: Recorded, moment: str) -> None:
    quiet, history = recorded.quiet[moment], recorded.history
    [state] = history.at("group_states", GROUP, quiet.at_ms, "started_at", "ended_at")
    assert state["state"] == quiet.state
    assert {state["generation"]} == {member.epoch for member in quiet.members.values()}
    members = history.at("memberships", GROUP, quiet.at_ms, "joined_at", "left_at")
    assert {row["member_id"]: row["process_id"] for row in members} == {
        name: member.process_id for name, member in quiet.members.items()
    }
    assert {row["topology_epoch"] for row in members} == {0}


def test_topology_has_the_topics_that_the_application_uses(recorded: Recorded) -> None:
    rows = recorded.history.of("streams_topology", GROUP)
    assert {(row["subtopology"], row["topic"], row["usage"]) for row in rows} == {
        ("0", INPUT_TOPIC, "source"),
        ("0", REPARTITION, "repartition_sink"),
        ("1", REPARTITION, "repartition_source"),
        ("1", CHANGELOG, "changelog"),
    }
    assert all(row["is_open"] and row["partitions"] is None and row["replication_factor"] is None for row in rows)


def test_lag_of_each_task_is_that_of_its_partitions(recorded: Recorded) -> None:
    """Kafka's tool prints it by partition; partitions without a commit have none.

    The tool of 4.2.0 passes over commits in repartition topics, and prints all records that these have.
    """
    rows = asked(recorded.config, "SELECT * FROM task_lag WHERE role = 'active'")
    topics = {"0": [INPUT_TOPIC]} if recorded.version == "4.2.0" else {"0": [INPUT_TOPIC], "1": [REPARTITION]}
    all_of_ours = {(row["subtopology"], row["task"]): (row["lag"], row["topics_without_lag"]) for row in rows}
    assert len(all_of_ours) == 2 * PARTITIONS
    ours = {task: lag for task, lag in all_of_ours.items() if task[0] in topics}
    assert ours == {
        (name, task): _summed([recorded.lag.get((topic, task)) for topic in read])
        for name, read in topics.items()
        for task in range(PARTITIONS)
    }
    assert any(lag for lag, _ in ours.values())


def _summed(lags: list[int | None]) -> tuple[int | None, int]:
    known = [lag for lag in lags if lag is not None]
    return sum(known) if known else None, len(lags) - len(known)


def test_causes_of_the_epochs_are_those_of_what_was_done(recorded: Recorded) -> None:
    """The broker creates the internal topics after the first epoch, before which other records may be missing."""
    rows: list[Row] = sorted(recorded.history.of("rebalances", GROUP), key=lambda row: row["record_offset"])
    found = [(row["cause"], row["certainty"]) for row in rows]
    assert found[:3] == [
        ("group_started", "likely"),
        ("topology_validated", "recorded"),
        ("member_joined", "recorded"),
    ]
    by_epoch = {row["to_generation"]: row for row in rows}
    settings = by_epoch[next(iter(recorded.quiet["set"].members.values())).epoch]
    assert (settings["cause"], settings["certainty"]) == ("assignor_settings_changed", "recorded")
    assert settings["cause_note"] == "num.standby.replicas from 1 to 0"
    lost = by_epoch[next(iter(recorded.quiet["killed"].members.values())).epoch]
    assert len(lost["members_left"]) == 1
    assert lost["cause"] in ("member_expired", "member_left_or_expired")
