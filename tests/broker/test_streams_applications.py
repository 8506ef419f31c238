"""The history of a real Kafka Streams application on the classic protocol, compared with what it logs itself.

Two instances count words, each with a standby of what the other has; one is closed and started again, then the other
is killed. The tasks of every generation must be those that the instances took over, and at quiet moments the
partitions those that Kafka's own tool prints.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Producer

from grouptrail.config import Config
from servers.kafka import VERSIONS, Broker
from servers.offsets_topic import ensure_offsets_topic
from support.cli_in_process import Cli, succeeded
from support.history_tables import History, Row
from support.kafka_clients import await_that
from support.landed import config_of
from support.observed_groups import now_ms
from support.queries import asked
from support.streams_apps import INPUT_TOPIC, StreamsApp, TaskEvent, create_topics

GROUP = "word-count"
REPARTITION_TOPIC = f"{GROUP}-KSTREAM-AGGREGATE-STATE-STORE-0000000003-repartition"
PARTITIONS = 3
TASKS = frozenset(f"{part}_{number}" for part in (0, 1) for number in range(PARTITIONS))

# An instance commits when it gives tasks up, and so lags behind at other times.
RARE_COMMITS = {"commit.interval.ms": "3600000"}

NEWEST, *OLDER = VERSIONS
# An application that is upgraded from Kafka 1.1 writes user data of version 2, and is not cooperative.
RUNS = [
    pytest.param((NEWEST, {}), id=NEWEST),
    *(pytest.param((version, {}), id=version, marks=pytest.mark.full) for version in OLDER),
    pytest.param((OLDER[-1], {"upgrade.from": "1.1"}), id="version-2", marks=pytest.mark.full),
]

Places = dict[str, list[tuple[str, int]]]

OffsetSums = dict[int, dict[str, dict[str, int]]]
"""By generation, process id and task."""


@dataclass(frozen=True)
class Quiet:
    """A moment at which the application had settled: its members' tasks, and their partitions by Kafka's own tool."""

    at_ms: int
    members: dict[str, TaskEvent]
    instances: dict[str, tuple[str, str]]
    """The process id and endpoint of each member."""
    partitions: Places


@dataclass(frozen=True)
class Run:
    """What the instances and the tool said, and the history."""

    config: Config
    events: list[TaskEvent]
    quiet: list[Quiet]
    offset_sums: OffsetSums
    history: History
    lag: dict[tuple[str, int], int]
    prints_topics: bool
    """Whether the tool prints the topics of partitions."""
    has_offset_sums: bool
    """Whether members send the sums of the offsets of their tasks' changelogs."""


@pytest.fixture(scope="module", params=RUNS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, cli: Cli) -> Run:
    version, settings = request.param
    folder = tmp_path_factory.mktemp("application")
    properties = {"offsets.topic.num.partitions": "4", "log.cleaner.enable": "false"}
    with Broker(folder / "kafka", version=version, properties=properties) as broker:
        ensure_offsets_topic(broker.bootstrap)
        create_topics(broker.bootstrap, partitions=PARTITIONS)
        config = config_of(broker.bootstrap, folder / "warehouse")
        settings = {**RARE_COMMITS, **settings}
        instances = [
            StreamsApp(folder / name, broker.bootstrap, GROUP, protocol="classic", version=version, settings=settings)
            for name in ("first", "second")
        ]
        try:
            quiet = schedule(broker, *instances)
            left = await_lag(broker)
            jobs = ("decode", "log-offsets", "history", "lag")
            succeeded(cli(config, "run", *(word for job in jobs for word in ("--job", job)), "--once"))
            assert lag(broker) == left, "not a quiet moment"
        finally:
            for one in instances:
                one.kill()
    events = [event for one in instances for event in one.assignments()]
    sums = {generation: known for one in instances for generation, known in one.offset_sums().items()}
    return Run(
        config,
        events,
        quiet,
        sums,
        History.read(config),
        left,
        prints_topics=not version.startswith("3."),
        has_offset_sums="upgrade.from" not in settings,
    )


def schedule(broker: Broker, first: StreamsApp, second: StreamsApp) -> list[Quiet]:
    """Let the instances come and go, and return the quiet moments in between; at the end the first one runs."""
    write_lines(broker)
    first.start()
    quiet = [await_quiet(broker, first)]
    second.start()
    quiet.append(await_quiet(broker, first, second))
    first.stop()  # it sends no leave: its session has to expire
    quiet.append(await_quiet(broker, second))
    first.start()
    quiet.append(await_quiet(broker, first, second))
    second.kill()
    quiet.append(await_quiet(broker, first))
    write_lines(broker)
    return quiet


def await_quiet(broker: Broker, *instances: StreamsApp) -> Quiet:
    """Wait until these instances have all tasks in one generation, also after the tool has described them."""
    found: list[Quiet] = []

    def is_quiet() -> bool:
        members = settled(instances)
        if members is None:
            return False
        partitions = described(broker)
        if settled(instances) != members or partitions.keys() != members.keys():
            return False
        ids = {one.assignments()[-1].member_id: (one.process_id(), one.endpoint) for one in instances}
        found.append(Quiet(now_ms(), members, ids, partitions))
        return True

    await_that(is_quiet)
    return found[0]


def settled(instances: tuple[StreamsApp, ...]) -> dict[str, TaskEvent] | None:
    if any(one.state() != "RUNNING" or not one.assignments() for one in instances):
        return None
    last = {event.member_id: event for event in (one.assignments()[-1] for one in instances)}
    active = sorted(task for event in last.values() for task in event.active)
    is_one = len({event.generation for event in last.values()}) == 1 and len(last) == len(instances)
    return last if is_one and active == sorted(TASKS) else None


def described(broker: Broker) -> Places:
    """Return the partitions of each member according to Kafka's tool."""
    rows = printed(broker, "--members", "--verbose")
    return {row["CONSUMER-ID"]: _places(row.get("ASSIGNMENT") or row["CURRENT-ASSIGNMENT"]) for row in rows}


def lag(broker: Broker) -> dict[tuple[str, int], int]:
    """Return the lag of each partition with a commit according to Kafka's tool."""
    rows = printed(broker, "--offsets")
    return {(row["TOPIC"], int(row["PARTITION"])): int(row["LAG"]) for row in rows if row["LAG"] != "-"}


def await_lag(broker: Broker) -> dict[tuple[str, int], int]:
    """Wait until the first subtopology has written all that it read, and return the lag."""
    seen: list[dict[tuple[str, int], int]] = [{}]

    def is_still() -> bool:
        seen.append(lag(broker))
        return seen[-1] == seen[-2]

    await_that(is_still)
    return seen[-1]


def printed(broker: Broker, *options: str) -> list[dict[str, str]]:
    """Return the table that `kafka-consumer-groups --describe` prints; the last column may have spaces."""
    done = broker.tool(
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        *("--bootstrap-server", broker.bootstrap, "--describe", "--group", GROUP, *options),
    )
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    names = next((line.split() for line in lines if line.startswith("GROUP")), [])
    rows = [line.split(None, len(names) - 1) for line in lines if line.startswith(GROUP)]
    return [dict(zip(names, row, strict=True)) for row in rows]


def _places(text: str) -> list[tuple[str, int]]:
    """Read partitions as the tool prints them: `topic:0,2; other:1`; that of 3.9 leaves topics out: `(0,2), (1)`."""
    parts = re.findall(r"([\w.-]*)[(:]([\d,]+)", text)
    return sorted((topic, int(number)) for topic, numbers in parts for number in numbers.split(",") if number)


def write_lines(broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(300):
        producer.produce(INPUT_TOPIC, f"word{number} and word{number % 7}", partition=number % PARTITIONS)
    producer.flush()


def tasks_in(run: Run, event: TaskEvent) -> dict[str, frozenset[str]]:
    """Return the tasks of an event's member in its generation, by role, according to the history."""
    rows = [
        row
        for row in run.history.of("task_assignments", GROUP)
        if row["member_id"] == event.member_id
        and row["from_generation"] <= event.generation
        and (row["is_open"] or row["until_generation"] > event.generation)
    ]
    return {role: frozenset(_name(row) for row in rows if row["role"] == role) for role in ("active", "standby")}


def tasks_at(run: Run, at_ms: int) -> list[Row]:
    return run.history.at("task_assignments", GROUP, at_ms, "assigned_from", "assigned_until")


def _name(row: Row) -> str:
    return f"{row['subtopology']}_{row['task']}"


def test_tasks_of_every_generation_are_those_that_the_instances_took_over(run: Run) -> None:
    assert len({event.member_id for event in run.events}) == 3
    assert any(event.standby for event in run.events)
    for event in run.events:
        assert tasks_in(run, event) == {"active": event.active, "standby": event.standby}, event


def test_tasks_at_quiet_moments_are_active_once_and_have_process_and_endpoint(run: Run) -> None:
    for quiet in run.quiet:
        rows = tasks_at(run, quiet.at_ms)
        assert sorted(_name(row) for row in rows if row["role"] == "active") == sorted(TASKS)
        shown = {row["member_id"]: (row["process_id"], row["endpoint"]) for row in rows}
        assert shown == quiet.instances


def test_source_topics_with_active_tasks_are_the_partitions_that_kafkas_tool_prints(run: Run) -> None:
    topology = run.history.of("streams_topology", GROUP)
    assert {(row["subtopology"], row["topic"], row["usage"]) for row in topology} == {
        ("0", INPUT_TOPIC, "source"),
        ("1", REPARTITION_TOPIC, "source"),
    }
    topics = {row["subtopology"]: row["topic"] for row in topology}
    for quiet in run.quiet:
        places: Places = {}
        for row in tasks_at(run, quiet.at_ms):
            if row["role"] == "active":
                topic = topics[row["subtopology"]] if run.prints_topics else ""
                places.setdefault(row["member_id"], []).append((topic, row["task"]))
        assert {member: sorted(listed) for member, listed in places.items()} == quiet.partitions


def test_offset_sum_of_each_task_is_the_one_that_the_leader_knew_in_its_last_generation(run: Run) -> None:
    """Of a task that the member ran it knew a sentinel; one that a member did not name it counts as 0."""
    found = set()
    for row in run.history.of("task_assignments", GROUP):
        if not run.has_offset_sums:
            assert (row["offset_sum"], row["offset_sum_at"]) == (None, None)
            continue
        last = max(run.offset_sums) if row["is_open"] else row["until_generation"] - 1
        known = run.offset_sums[last][row["process_id"]].get(_name(row), 0)
        assert row["offset_sum"] == (None if known < 0 else known), (row, last)
        assert row["offset_sum_at"] >= row["assigned_from"]
        found.add((row["role"], known > 0))
    assert not run.has_offset_sums or ("active", True) in found


def test_lag_of_each_task_is_that_of_its_partition(run: Run) -> None:
    """Each subtopology reads one topic; a partition without a commit has no lag."""
    rows = asked(run.config, "SELECT * FROM task_lag WHERE role = 'active'")
    topics = {"0": INPUT_TOPIC, "1": REPARTITION_TOPIC}
    ours = {(topics[row["subtopology"]], row["task"]): row["lag"] for row in rows}
    assert ours == {
        (topic, task): run.lag.get((topic, task)) for topic in topics.values() for task in range(PARTITIONS)
    }


def test_tasks_of_instances_that_are_gone_end_with_their_members(run: Run) -> None:
    """The one that was closed had not left, so the broker removed it as it removed the one that was killed."""
    gone = {event.member_id for event in run.events} - run.quiet[-1].members.keys()
    ended = {row["ended"] for row in run.history.of("task_assignments", GROUP) if row["member_id"] in gone}
    assert ended <= {"member_gone", "given_up"}
    last = [row for row in run.history.of("task_assignments", GROUP) if row["is_open"]]
    assert {row["member_id"] for row in last} == run.quiet[-1].members.keys()


@pytest.mark.full
def test_rebalance_that_a_member_was_to_begin_is_a_probing_rebalance(tmp_path: Path, cli: Cli) -> None:
    """A new instance first restores the state of the tasks that it is to get; a minute later the group rebalances."""
    settings = {
        "num.standby.replicas": "0",
        "acceptable.recovery.lag": "0",
        "probing.rebalance.interval.ms": "60000",  # the least
    }
    with Broker(tmp_path / "kafka", properties={"offsets.topic.num.partitions": "4"}) as broker:
        ensure_offsets_topic(broker.bootstrap)
        create_topics(broker.bootstrap, partitions=PARTITIONS)
        first, second = (
            StreamsApp(tmp_path / name, broker.bootstrap, GROUP, protocol="classic", settings=settings)
            for name in ("first", "second")
        )
        with first:
            await_quiet(broker, first)
            write_lines(broker)
            await_that(lambda: len(left := lag(broker)) == 2 * PARTITIONS and not any(left.values()))
            with second:
                await_that(lambda: bool(first.probed_generations() + second.probed_generations()), seconds=120)
                await_quiet(broker, first, second)
        probed = {*first.probed_generations(), *second.probed_generations()}
        config = config_of(broker.bootstrap, tmp_path / "warehouse")
        succeeded(cli(config, "run", "--job", "decode", "--job", "history", "--once"))
        assert probing_rebalances(config) == dict.fromkeys(probed, "likely")
        succeeded(cli(config, "ingest-broker-log", str(broker.log_file), "--time-zone", "UTC", "--trust-clients"))
    assert probing_rebalances(config) == dict.fromkeys(probed, "recorded")


def probing_rebalances(config: Config) -> dict[int, str]:
    """Return the certainty of each generation that a probing rebalance began."""
    rebalances = History.read(config).of("rebalances", GROUP)
    return {row["to_generation"]: row["certainty"] for row in rebalances if row["cause"] == "probing_rebalance"}
