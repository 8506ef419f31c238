"""The history, compared with what the consumers themselves observed and with an admin client's view of their groups.

Groups of every kind run at the same time, on a broker with the new coordinator and on one with the old; every
scenario brings its group to a stable state several times. The pipeline then runs, and its history must match.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient

from grouptrail.config import Config, load_config
from grouptrail.history.rows import TABLES
from grouptrail.runtime.warehouses import warehouse_of
from proof.recording_judge import held_facts
from servers.kafka import VERSIONS, Broker
from servers.offsets_topic import ensure_offsets_topic
from support.cli_in_process import Cli, succeeded
from support.cli_process import Grouptrail
from support.deadlines import scaled
from support.history_tables import History, Row, described_members, partitions_of, rebalance_with
from support.observed_groups import COMMITTED, ClientGroup, MemberProcess, Partition, ShareClientGroup

NEW, OLD = VERSIONS[0], VERSIONS[-1]
PATIENCE_SECONDS = scaled(480)
BOTH_JOBS = ("--job", "decode", "--job", "history")
PARTITIONS = 7  # with this number, a different hash function or abs would give different partitions

SESSION_MS = 15_000  # of static members; they return within this time, except at the end

PROPERTIES = {
    NEW: {
        "group.consumer.session.timeout.ms": str(SESSION_MS),
        "group.consumer.min.session.timeout.ms": str(SESSION_MS),
        "group.consumer.heartbeat.interval.ms": "500",
        "group.consumer.min.heartbeat.interval.ms": "500",
        "group.share.heartbeat.interval.ms": "500",
        "group.share.min.heartbeat.interval.ms": "500",
    },
    OLD: {"group.coordinator.rebalance.protocols": "classic", "group.coordinator.new.enable": "false"},
}


# --- the scenarios -----------------------------------------------------------------------------------------


TOPICS = {"one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "growing": 3}


@dataclass
class Environment:
    """The broker on which the scenarios run, and the groups created by them."""

    broker: Broker
    groups: dict[str, ClientGroup] = field(default_factory=dict)

    def set_up(self) -> None:
        ensure_offsets_topic(self.broker.bootstrap)
        with closing(KafkaAdminClient(bootstrap_servers=self.broker.bootstrap)) as admin:
            topics = {name: {"num_partitions": count, "replication_factor": 1} for name, count in TOPICS.items()}
            admin.create_topics(topics, wait_for_metadata=True)

    def group(self, group_id: str, *topics: str, **spec: Any) -> ClientGroup:
        partitions = {topic: TOPICS[topic] for topic in topics}
        group = self.groups[group_id] = ClientGroup(self.broker.bootstrap, group_id, partitions, **spec)
        return group


def seven_for_three(assignor: str) -> Callable[[Environment], None]:
    """Seven partitions and three members, one of which leaves."""

    def run_schedule(environment: Environment) -> None:
        with environment.group(f"three-{assignor}", "seven", assignor=assignor, commits=True) as group:
            members = [group.join() for _ in range(3)]
            group.await_stable()
            members[1].leave()
            group.await_stable()
            group.join()
            group.await_stable()
            group.leave_all()
            group.await_empty()

    return run_schedule


def seven_for_five(environment: Environment) -> None:
    with environment.group("polygenelubricants", "seven", client="librdkafka") as group:
        for _ in range(5):
            group.join()
        group.await_stable()


def two_topics(assignor: str) -> Callable[[Environment], None]:
    """Topics of five and of seven partitions, members that subscribe to both, to one, and to neither."""

    def run_schedule(environment: Environment) -> None:
        # kafka-python 3.0.12 cannot assign such subscriptions round robin: its assignor ends with a KeyError.
        client = "librdkafka" if assignor == "roundrobin" else "kafka-python"
        names = ("five", "seven", "one")
        with environment.group(f"two-{assignor}", *names, client=client, assignor=assignor) as group:
            for topics in (("five", "seven"), ("five",), ("seven",), ("one",)):
                group.join(topics=topics)
            group.await_stable()

    return run_schedule


def static(environment: Environment) -> None:
    """A static member is restarted, and its group does not rebalance."""
    with environment.group("static", "four", session_ms=SESSION_MS) as group:
        group.join(instance_id="one")
        group.await_stable()
        second = group.join(instance_id="two")
        group.await_stable()
        second.leave()
        group.await_stable(away=1)
        group.join(instance_id="two")
        group.await_stable()


def cooperative(environment: Environment) -> None:
    """A second member joins: the first gives up partitions, a follow-up round assigns them; then it leaves."""
    with environment.group("cooperative", "six", client="librdkafka", assignor="cooperative-sticky") as group:
        group.join()
        group.await_stable()
        second = group.join()
        group.await_stable()
        second.leave()
        group.await_stable()


def kip_848(environment: Environment) -> None:
    """Members of the new protocol join and leave."""
    with environment.group("kip-848", "seven", client="kip-848", assignor="uniform") as group:
        group.join()
        group.await_stable()
        second = group.join()
        group.await_stable()
        group.join()
        group.await_stable()
        second.leave()
        group.await_stable()
        group.leave_all()
        group.await_empty()


def kip_848_static(environment: Environment) -> None:
    """A static member of the new protocol is restarted."""
    with environment.group("kip-848-static", "four", client="kip-848", assignor="range") as group:
        group.join(instance_id="one")
        second = group.join(instance_id="two")
        group.await_stable()
        second.leave()
        group.join(instance_id="two")
        group.await_stable()


def share(environment: Environment) -> None:
    """Members of a share group join and leave; each partition of `two` has more than one member."""
    topics = {topic: TOPICS[topic] for topic in ("two", "three")}
    with ShareClientGroup(environment.broker.tool, environment.broker.bootstrap, "share", topics) as group:
        environment.groups["share"] = group
        for wanted in (("two", "three"), ("two", "three"), ("two",)):
            group.join(topics=wanted)
            group.await_stable()
        group.members[1].leave()
        group.await_stable()
        group.leave_all()
        group.await_empty()


def crash(environment: Environment) -> None:
    """A member's process is killed; the group notices when its session expires."""
    with environment.group("grüppe-群组-😀", "three", session_ms=6_000) as group:
        group.join()
        second = group.join(own_process=True)
        group.await_stable()
        assert isinstance(second, MemberProcess)
        second.crash()
        group.await_stable()


def growth(environment: Environment) -> None:
    """A topic gets more partitions."""
    with environment.group("growth", "growing", client="librdkafka", metadata_age_ms=1_000) as group:
        group.join()
        group.join()
        group.await_stable()
        group.add_partitions("growing", 5)
        group.await_stable()


def deleted(environment: Environment) -> None:
    """A group is deleted and created again with the same name."""
    with environment.group("deleted", "two") as group:
        for _ in range(2):
            member = group.join()
            group.await_stable()
            member.leave()
            group.await_empty()
            group.delete()


def restart(environment: Environment) -> None:
    """The broker is restarted while a group has members, after all other groups have ended."""
    with environment.group("restart", "five") as group:
        group.join()
        group.join()
        group.await_stable()
        environment.broker.stop()
        environment.broker.start()
        group.await_stable()
        group.join()
        group.await_stable()


CLASSIC: dict[str, Callable[[Environment], None]] = {
    "three-range": seven_for_three("range"),
    "three-roundrobin": seven_for_three("roundrobin"),
    "three-sticky": seven_for_three("sticky"),
    "polygenelubricants": seven_for_five,
    "two-range": two_topics("range"),
    "two-roundrobin": two_topics("roundrobin"),
    "two-sticky": two_topics("sticky"),
    "static": static,
    "cooperative": cooperative,
    "grüppe-群组-😀": crash,
    "growth": growth,
    "deleted": deleted,
}
KIP_848 = {"kip-848": kip_848, "kip-848-static": kip_848_static}
GROUPS = [*CLASSIC, "restart", *KIP_848]
SHARE = {"share": share}


# --- the play ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RecordedGroups:
    """All groups that ran on one broker, and their history."""

    version: str
    config: Config
    groups: dict[str, ClientGroup]
    history: History

    def group(self, group_id: str) -> ClientGroup:
        if group_id not in self.groups:
            pytest.skip(f"Kafka {self.version} does not enable this kind of group by default")
        return self.groups[group_id]


def _config(broker: Broker, folder: Path) -> Config:
    settings = {
        "warehouse": str(folder / "warehouse"),
        "cluster": "test",
        "kafka.bootstrap.servers": broker.bootstrap,
        "decode.trigger_seconds": "1",
    }
    return load_config(None, settings, {})


@pytest.fixture(scope="module", params=[NEW, pytest.param(OLD, marks=pytest.mark.full)])
def recorded(
    request: pytest.FixtureRequest, cli: Cli, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RecordedGroups]:
    folder = tmp_path_factory.mktemp("history")
    version: str = request.param
    properties = {"offsets.topic.num.partitions": str(PARTITIONS), **PROPERTIES[version]}
    with Broker(folder / "kafka", version=version, properties=properties) as broker:
        environment = Environment(broker)
        environment.set_up()
        scenarios = CLASSIC | (KIP_848 | SHARE if version == NEW else {})
        with ThreadPoolExecutor(len(scenarios)) as pool:
            for running in [pool.submit(scenario, environment) for scenario in scenarios.values()]:
                running.result()
        restart(environment)
        config = _config(broker, folder)
        succeeded(cli(config, "run", *BOTH_JOBS, "--once"))
        yield RecordedGroups(version, config, environment.groups, History.read(config))


# --- the truth ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group_id", [*GROUPS, *SHARE])
def test_history_stable_or_empty_group_matches_its_members_and_admin_client(
    recorded: RecordedGroups, group_id: str
) -> None:
    """State, generation, assignor, members, instance ids and partitions."""
    for stable in recorded.group(group_id).stable_states:
        seen = stable.group
        if seen.state == "Empty":
            # No member reports the generation or requests an assignor: a broker then returns its default assignor
            # (ConsumerGroup.asDescribedGroup), which the log does not contain.
            generation = recorded.history.generation(group_id, stable)["generation"]
            seen = replace(seen, generation=generation, protocol=None)
        assert recorded.history.group_at(group_id, stable) == seen


@pytest.mark.parametrize("group_id", [*GROUPS, *SHARE])
def test_generations_members_and_counts_match_the_last_observed_state(
    recorded: RecordedGroups, group_id: str
) -> None:
    """A row of `generations` has the members at its end: the id of a static member may change within a generation."""
    last = {
        stable.group.generation: stable for stable in recorded.group(group_id).stable_states if stable.group.members
    }
    for stable in last.values():
        generation = recorded.history.generation(group_id, stable)
        described = described_members(generation)
        assert described == stable.group.members
        assert generation["member_count"] == len(described)
        partitions = frozenset[Partition]().union(*(member.partitions for member in described.values()))
        assert generation["partition_count"] == len(partitions)


@pytest.mark.parametrize("group_id", ["three-range", "deleted", "kip-848"])
def test_generations_empty_group_has_an_empty_member_list(recorded: RecordedGroups, group_id: str) -> None:
    """The list is empty and not null: it is known that there are no members."""
    empty = [stable for stable in recorded.group(group_id).stable_states if not stable.group.members]
    rows = [recorded.history.generation(group_id, stable) for stable in empty]
    assert [row["members"] for row in rows] == [[] for _ in empty]


@pytest.mark.parametrize("group_id", [group_id for group_id in [*CLASSIC, "restart"] if group_id != "cooperative"])
def test_generations_eager_group_has_every_assignment_its_members_received(
    recorded: RecordedGroups, group_id: str
) -> None:
    """Every assignment that a member received, including those between two stable states."""
    generations = recorded.history.of("generations", group_id)
    for member in recorded.group(group_id).members:
        for event in member.events:
            if event.kind == "assigned":
                recorded = [
                    partitions_of(other["partitions"])
                    for row in generations
                    if row["generation"] == event.generation
                    for other in row["members"]
                    if event.member_id == other["member_id"]
                    or (member.spec.instance_id and member.spec.instance_id == other["instance_id"])
                ]
                assert recorded == [event.partitions], event


@pytest.mark.parametrize("group_id", GROUPS)
def test_partition_ownership_covers_the_time_a_member_held_each_partition(
    recorded: RecordedGroups, group_id: str
) -> None:
    """From the time a member received a partition until it gave it up."""
    facts = [
        fact for member in recorded.group(group_id).members for fact in held_facts(group_id, member, recorded.history)
    ]
    assert not [fact for fact in facts if fact.verdict == "wrong"]


@pytest.mark.parametrize("group_id", GROUPS)
def test_history_record_partition_matches_java_hash_of_group_id(recorded: RecordedGroups, group_id: str) -> None:
    """abs(hash(group)) % partitions, with Java's hash and Kafka's abs."""
    recorded.group(group_id)
    record_partitions = {row["record_partition"] for table in TABLES for row in recorded.history.of(table, group_id)}
    assert record_partitions == {java_abs(java_hash(group_id)) % PARTITIONS}


def java_hash(text: str) -> int:
    """Return Java's String.hashCode: over UTF-16 code units, in 32 bits."""
    units, value = text.encode("utf-16-be"), 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + high * 256 + low) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def java_abs(value: int) -> int:
    return 0 if value == -(1 << 31) else abs(value)


# --- the golden cases --------------------------------------------------------------------------------------


def sizes(generation: Row) -> list[int]:
    return sorted((len(partitions_of(member["partitions"])) for member in generation["members"]), reverse=True)


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky"])
def test_generations_seven_partitions_three_members_are_split_3_2_2(recorded: RecordedGroups, assignor: str) -> None:
    group_id = f"three-{assignor}"
    generation = recorded.history.generation(group_id, recorded.group(group_id).stable_states[0])
    assert (sizes(generation), generation["skew"], generation["protocol"]) == ([3, 2, 2], 1, assignor)
    assert generation["is_assignors_own"] is True, generation["assignment_note"]


def test_generations_seven_partitions_five_members_are_split_2_2_1_1_1(recorded: RecordedGroups) -> None:
    group = recorded.group("polygenelubricants")
    generation = recorded.history.generation(group.group_id, group.stable_states[0])
    assert (sizes(generation), generation["skew"]) == ([2, 2, 1, 1, 1], 1)
    assert generation["is_assignors_own"] is True, generation["assignment_note"]


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky"])
def test_generations_members_with_different_subscriptions_list_their_own_topics(
    recorded: RecordedGroups, assignor: str
) -> None:
    group = recorded.group(f"two-{assignor}")
    generation = recorded.history.generation(group.group_id, group.stable_states[0])
    assert {member["client_id"]: tuple(member["topics"]) for member in generation["members"]} == {
        member.spec.client_id: tuple(sorted(member.spec.topics)) for member in group.members
    }
    assert generation["partition_count"] == 13
    # A sticky assignment may depend on what members claimed to own: see the next test.
    expected = (True, None) if assignor == "sticky" else (True,)
    assert generation["is_assignors_own"] in expected, generation["assignment_note"]


def test_generations_sticky_group_assignment_is_the_assignors_own_in_every_generation(
    recorded: RecordedGroups,
) -> None:
    """Assignments after the first can then be recomputed, too."""
    generations = [row for row in recorded.history.of("generations", "three-sticky") if row["partition_count"] != 0]
    assert len(generations) > 2
    assert {row["is_assignors_own"] for row in generations} == {True}


def test_rebalances_sticky_member_leaves_moves_only_its_partitions(recorded: RecordedGroups) -> None:
    group = recorded.group("three-sticky")
    before, after = group.stable_states[:2]
    (leaver,) = before.group.members.keys() - after.group.members.keys()
    rebalance, _ = rebalance_with(leaver, "members_left", recorded.history.rebalances("three-sticky", before, after))
    had = before.group.members[leaver].partitions
    assert {(one["topic"], one["partition"]) for one in rebalance["handed_over"]} == had
    assert (rebalance["partitions_moved"], rebalance["partitions_kept"]) == (len(had), 7 - len(had))
    assert {one["from_member"] for one in rebalance["handed_over"]} == {leaver}
    assert {one["committed_offset"] for one in rebalance["handed_over"]} == {COMMITTED}


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky"])
def test_rebalances_leave_join_and_empty_group_have_matching_causes(recorded: RecordedGroups, assignor: str) -> None:
    group_id = f"three-{assignor}"
    first, second, third, end = recorded.group(group_id).stable_states
    (leaver,) = first.group.members.keys() - second.group.members.keys()
    left, _ = rebalance_with(leaver, "members_left", recorded.history.rebalances(group_id, first, second))
    assert (left["cause"], left["members_left"], left["members_joined"]) == ("member_left", [leaver], [])
    (joiner,) = third.group.members.keys() - second.group.members.keys()
    joined, _ = rebalance_with(joiner, "members_joined", recorded.history.rebalances(group_id, second, third))
    assert (joined["cause"], joined["members_joined"]) == ("member_joined", [joiner])
    *_, emptied = recorded.history.rebalances(group_id, third, end)
    assert emptied["cause"] == "group_emptied"
    ended = {row["member_id"]: row["ended"] for row in recorded.history.of("memberships", group_id)}
    assert ended[leaver] == "left"


def test_history_static_member_restarted_has_no_rebalance_and_a_replaced_membership(recorded: RecordedGroups) -> None:
    _, before, away, back = recorded.group("static").stable_states
    assert before.group == away.group
    assert back.group.generation == before.group.generation
    assert recorded.history.rebalances("static", before, back) == []
    (old,) = before.group.members.keys() - back.group.members.keys()
    (new,) = back.group.members.keys() - before.group.members.keys()
    memberships = {row["member_id"]: row for row in recorded.history.of("memberships", "static")}
    assert (memberships[old]["ended"], memberships[new]["began"]) == ("replaced", "replaced")


def test_rebalances_cooperative_member_joins_has_a_follow_up_rebalance(recorded: RecordedGroups) -> None:
    alone, both, _ = recorded.group("cooperative").stable_states
    joined, followed = recorded.history.rebalances("cooperative", alone, both)
    assert (joined["cause"], followed["cause"]) == ("member_joined", "cooperative_follow_up")
    assert (joined["partitions_removed"], joined["partitions_kept"]) == (3, 3)
    assert (followed["partitions_moved"], followed["partitions_kept"]) == (3, 3)


def test_rebalances_kip_848_join_leave_and_empty_group_have_matching_causes(recorded: RecordedGroups) -> None:
    one, two, three, less, none = recorded.group("kip-848").stable_states
    history = recorded.history
    for before, after, cause in (
        (one, two, "member_joined"),
        (two, three, "member_joined"),
        (three, less, "member_left_or_expired"),
    ):
        (rebalance,) = history.rebalances("kip-848", before, after)
        assert (rebalance["cause"], rebalance["duration_of"]) == (cause, "whole")
        assert before.at_ms < rebalance["at"] <= rebalance["ended_at"] <= after.at_ms
    assert history.rebalances("kip-848", less, none)[-1]["cause"] == "group_emptied"


def test_rebalances_kip_848_static_member_restarted_has_no_rebalance(recorded: RecordedGroups) -> None:
    before, back = recorded.group("kip-848-static").stable_states
    assert back.group.generation == before.group.generation
    assert recorded.history.rebalances("kip-848-static", before, back) == []


def test_history_share_group_join_and_leave_have_causes_but_no_moved_partitions(recorded: RecordedGroups) -> None:
    """A partition with several members has no single owner, so none is moved or handed over."""
    one, two, three, less, none = recorded.group("share").stable_states
    history = recorded.history
    for before, after, cause in (
        (one, two, "member_joined"),
        (two, three, "member_joined"),
        (three, less, "member_left_or_expired"),
    ):
        first, *_ = history.rebalances("share", before, after)
        changed = before.group.members.keys() ^ after.group.members.keys()
        assert first["cause"] == cause
        assert {*first["members_joined"], *first["members_left"]} == changed
        assert before.at_ms < first["at"] <= after.at_ms
    assert history.rebalances("share", less, none)[-1]["cause"] == "group_emptied"
    rows = [row for row in history.of("rebalances", "share") if row["partitions_moved"] or row["handed_over"]]
    assert rows == []
    owned = history.at("partition_ownership", "share", three.at_ms, "owned_from", "owned_until")
    places = [(row["topic"], row["partition"]) for row in owned]
    assert len(places) > len(set(places)) == sum(TOPICS[topic] for topic in ("two", "three"))


def test_rebalances_member_killed_cause_is_member_left_or_expired(recorded: RecordedGroups) -> None:
    group = recorded.group("grüppe-群组-😀")
    before, after = group.stable_states
    (dead,) = before.group.members.keys() - after.group.members.keys()
    rebalance, _ = rebalance_with(dead, "members_left", recorded.history.rebalances(group.group_id, before, after))
    assert (rebalance["cause"], rebalance["certainty"]) == ("member_left_or_expired", "ambiguous")
    (membership,) = [row for row in recorded.history.of("memberships", group.group_id) if row["member_id"] == dead]
    assert membership["ended"] == "left_or_expired"
    crashed = group.members[1].events[-1]
    assert membership["left_at"] - crashed.at_ms > 4_000  # its session lasted for six seconds
    handed_over = {(one["topic"], one["partition"]): one["to_member"] for one in rebalance["handed_over"]}
    assert handed_over == {
        partition: name
        for name, described in after.group.members.items()
        for partition in described.partitions & before.group.members[dead].partitions
    }


def test_rebalances_topic_gains_partitions_cause_is_partitions_added(recorded: RecordedGroups) -> None:
    before, after = recorded.group("growth").stable_states
    grown, *_ = recorded.history.rebalances("growth", before, after)
    assert (grown["cause"], grown["partitions_added"]) == ("partitions_added", 2)


def test_history_group_deleted_and_recreated_has_a_new_incarnation(recorded: RecordedGroups) -> None:
    first, _, second, _ = recorded.group("deleted").stable_states
    history = recorded.history
    assert [history.generation("deleted", stable)["incarnation"] for stable in (first, second)] == [1, 2]
    states = sorted(history.of("group_states", "deleted"), key=lambda row: (row["incarnation"], row["record_offset"]))
    dead = [row for row in states if row["state"] == "Dead"]
    assert [row["incarnation"] for row in dead] == [1, 2]
    assert first.at_ms < dead[0]["started_at"] < dead[0]["ended_at"] <= second.at_ms
    assert dead[1]["ended_at"] is None


def test_generations_broker_restarted_keeps_the_incarnation(recorded: RecordedGroups) -> None:
    stable_states = recorded.group("restart").stable_states
    rows = [recorded.history.generation("restart", stable) for stable in stable_states]
    assert {row["incarnation"] for row in rows} == {1}
    assert rows[0]["generation"] <= rows[1]["generation"] < rows[2]["generation"]


# --- batch equals stream -----------------------------------------------------------------------------------


@pytest.mark.full
def test_history_job_killed_and_resumed_then_rebuilt_matches_a_single_run(
    recorded: RecordedGroups, cli: Cli, tmp_path: Path
) -> None:
    """The job runs in small batches and is killed during one, beside the decode job and alone; then it is rebuilt."""
    if recorded.version != NEW:
        pytest.skip("the new coordinator's records are of all kinds")
    decode = recorded.config.decode.model_copy(update={"max_records_per_batch": 70})
    config = recorded.config.model_copy(update={"warehouse": str(tmp_path / "warehouse"), "decode": decode})
    run = Grouptrail(config, "run", *BOTH_JOBS)
    try:
        await_the_middle_of_a_batch(run, config)
    finally:
        run.kill()
    assert History.read(config) != recorded.history

    succeeded(cli(config, "run", "--job", "decode", "--once"))
    run = Grouptrail(config, "run", "--job", "history")
    try:
        await_the_middle_of_a_batch(run, config)
    finally:
        run.kill()

    run = Grouptrail(config, "run", *BOTH_JOBS)
    try:
        await_history(config, recorded.history, run)
    finally:
        run.kill()

    succeeded(cli(config, "rebuild", "history"))
    assert_same(History.read(config), recorded.history)


def await_the_middle_of_a_batch(run: Grouptrail, config: Config) -> None:
    """Return when a batch has written to a table but has not ended, after at least one complete batch."""
    checkpoint = Path(warehouse_of(config).checkpoint_path("history"))
    deadline = time.monotonic() + PATIENCE_SECONDS
    ended: set[str] = set()
    before = 0
    while True:
        begun, now = ({path.name for path in checkpoint.glob(f"{kind}/[0-9]*")} for kind in ("offsets", "commits"))
        written = _written(config)
        if now != ended:
            ended, before = now, written
        if ended and begun - ended and written > before:
            return
        assert time.monotonic() < deadline, "no batch was met"
        assert run.process.poll() is None, run.finished()
        time.sleep(0.02)


def _written(config: Config) -> int:
    """Return the sum of the tables' versions."""
    return sum(1 for table in TABLES for _ in Path(warehouse_of(config).table(table).path).glob("_delta_log/*.json"))


def await_history(config: Config, wanted: History, run: Grouptrail) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (history := History.read(config)) != wanted:
        assert run.process.poll() is None, run.finished()
        if time.monotonic() > deadline:
            assert_same(history, wanted)
        time.sleep(0.5)


def assert_same(history: History, wanted: History) -> None:
    for table in TABLES:
        assert len(history.tables[table]) == len(wanted.tables[table]), table
        for one, other in zip(history.tables[table], wanted.tables[table], strict=True):
            assert one == other, table
