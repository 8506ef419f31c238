"""The history, compared with what the consumers themselves observed and with an admin client's view of their groups.

Groups of every kind run at the same time, on a broker with the new coordinator and on one with the old; every scene
brings its group to a stable state several times. The pipeline then runs, and its history must match.
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

from demo.kafka import VERSIONS, Broker, ensure_offsets_topic
from grouptrail.config import Config, load_config
from grouptrail.history.rows import TABLES
from support.cli_in_process import Cli, succeeded
from support.cli_process import Grouptrail
from support.deadlines import scaled
from support.history_tables import History, Row, partitions_of, rebalance_with, seats
from support.observed_groups import COMMITTED, MemberApart, Partition, ShareTroupe, Troupe, held_intervals

pytestmark = pytest.mark.broker

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


# --- the scenes --------------------------------------------------------------------------------------------


TOPICS = {"one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "growing": 3}


@dataclass
class Stage:
    """The broker on which the scenes run, and the groups created by them."""

    broker: Broker
    troupes: dict[str, Troupe] = field(default_factory=dict)

    def set_up(self) -> None:
        ensure_offsets_topic(self.broker.bootstrap)
        with closing(KafkaAdminClient(bootstrap_servers=self.broker.bootstrap)) as admin:
            topics = {name: {"num_partitions": count, "replication_factor": 1} for name, count in TOPICS.items()}
            admin.create_topics(topics, wait_for_metadata=True)

    def troupe(self, group_id: str, *topics: str, **post: Any) -> Troupe:
        partitions = {topic: TOPICS[topic] for topic in topics}
        troupe = self.troupes[group_id] = Troupe(self.broker.bootstrap, group_id, partitions, **post)
        return troupe


def seven_for_three(assignor: str) -> Callable[[Stage], None]:
    """Seven partitions and three members, one of which leaves."""

    def play(stage: Stage) -> None:
        with stage.troupe(f"three-{assignor}", "seven", assignor=assignor, commits=True) as troupe:
            members = [troupe.join() for _ in range(3)]
            troupe.rest()
            members[1].leave()
            troupe.rest()
            troupe.join()
            troupe.rest()
            troupe.send_home()
            troupe.empty()

    return play


def seven_for_five(stage: Stage) -> None:
    with stage.troupe("polygenelubricants", "seven", client="librdkafka") as troupe:
        for _ in range(5):
            troupe.join()
        troupe.rest()


def two_topics(assignor: str) -> Callable[[Stage], None]:
    """Topics of five and of seven partitions, members that subscribe to both, to one, and to neither."""

    def play(stage: Stage) -> None:
        # kafka-python 3.0.12 cannot assign such subscriptions round robin: its assignor ends with a KeyError.
        client = "librdkafka" if assignor == "roundrobin" else "kafka-python"
        names = ("five", "seven", "one")
        with stage.troupe(f"two-{assignor}", *names, client=client, assignor=assignor) as troupe:
            for topics in (("five", "seven"), ("five",), ("seven",), ("one",)):
                troupe.join(topics=topics)
            troupe.rest()

    return play


def static(stage: Stage) -> None:
    """A static member is restarted, and its group does not rebalance."""
    with stage.troupe("static", "four", session_ms=SESSION_MS) as troupe:
        troupe.join(instance_id="one")
        troupe.rest()
        second = troupe.join(instance_id="two")
        troupe.rest()
        second.leave()
        troupe.rest(away=1)
        troupe.join(instance_id="two")
        troupe.rest()


def cooperative(stage: Stage) -> None:
    """A second member joins: the first gives up partitions, a follow-up round assigns them; then it leaves."""
    with stage.troupe("cooperative", "six", client="librdkafka", assignor="cooperative-sticky") as troupe:
        troupe.join()
        troupe.rest()
        second = troupe.join()
        troupe.rest()
        second.leave()
        troupe.rest()


def kip_848(stage: Stage) -> None:
    """Members of the new protocol join and leave."""
    with stage.troupe("kip-848", "seven", client="kip-848", assignor="uniform") as troupe:
        troupe.join()
        troupe.rest()
        second = troupe.join()
        troupe.rest()
        troupe.join()
        troupe.rest()
        second.leave()
        troupe.rest()
        troupe.send_home()
        troupe.empty()


def kip_848_static(stage: Stage) -> None:
    """A static member of the new protocol is restarted."""
    with stage.troupe("kip-848-static", "four", client="kip-848", assignor="range") as troupe:
        troupe.join(instance_id="one")
        second = troupe.join(instance_id="two")
        troupe.rest()
        second.leave()
        troupe.join(instance_id="two")
        troupe.rest()


def share(stage: Stage) -> None:
    """Members of a share group join and leave; each partition of `two` has more than one member."""
    topics = {topic: TOPICS[topic] for topic in ("two", "three")}
    with ShareTroupe(stage.broker.tool, stage.broker.bootstrap, "share", topics) as troupe:
        stage.troupes["share"] = troupe
        for wanted in (("two", "three"), ("two", "three"), ("two",)):
            troupe.join(topics=wanted)
            troupe.rest()
        troupe.members[1].leave()
        troupe.rest()
        troupe.send_home()
        troupe.empty()


def crash(stage: Stage) -> None:
    """A member's process is killed; the group notices when its session expires."""
    with stage.troupe("grüppe-群组-😀", "three", session_ms=6_000) as troupe:
        troupe.join()
        second = troupe.join(apart=True)
        troupe.rest()
        assert isinstance(second, MemberApart)
        second.crash()
        troupe.rest()


def growth(stage: Stage) -> None:
    """A topic gets more partitions."""
    with stage.troupe("growth", "growing", client="librdkafka", metadata_age_ms=1_000) as troupe:
        troupe.join()
        troupe.join()
        troupe.rest()
        troupe.grow("growing", 5)
        troupe.rest()


def deleted(stage: Stage) -> None:
    """A group is deleted and created again with the same name."""
    with stage.troupe("deleted", "two") as troupe:
        for _ in range(2):
            member = troupe.join()
            troupe.rest()
            member.leave()
            troupe.empty()
            troupe.delete()


def restart(stage: Stage) -> None:
    """The broker is restarted while a group has members, after all other groups have ended."""
    with stage.troupe("restart", "five") as troupe:
        troupe.join()
        troupe.join()
        troupe.rest()
        stage.broker.stop()
        stage.broker.start()
        troupe.rest()
        troupe.join()
        troupe.rest()


CLASSIC: dict[str, Callable[[Stage], None]] = {
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
class Played:
    """All groups that ran on one broker, and their history."""

    version: str
    config: Config
    troupes: dict[str, Troupe]
    history: History

    def troupe(self, group_id: str) -> Troupe:
        if group_id not in self.troupes:
            pytest.skip(f"Kafka {self.version} does not enable this kind of group by default")
        return self.troupes[group_id]


def _config(broker: Broker, folder: Path) -> Config:
    settings = {
        "warehouse": str(folder / "warehouse"),
        "cluster": "test",
        "kafka.bootstrap.servers": broker.bootstrap,
        "decode.trigger_seconds": "1",
    }
    return load_config(None, settings, {})


@pytest.fixture(scope="module", params=[NEW, pytest.param(OLD, marks=pytest.mark.full)])
def played(request: pytest.FixtureRequest, cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    folder = tmp_path_factory.mktemp("history")
    version: str = request.param
    properties = {"offsets.topic.num.partitions": str(PARTITIONS), **PROPERTIES[version]}
    with Broker(folder / "kafka", version=version, properties=properties) as broker:
        stage = Stage(broker)
        stage.set_up()
        scenes = CLASSIC | (KIP_848 | SHARE if version == NEW else {})
        with ThreadPoolExecutor(len(scenes)) as pool:
            for playing in [pool.submit(scene, stage) for scene in scenes.values()]:
                playing.result()
        restart(stage)
        config = _config(broker, folder)
        succeeded(cli(config, "run", *BOTH_JOBS, "--once"))
        yield Played(version, config, stage.troupes, History.read(config))


# --- the truth ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group_id", [*GROUPS, *SHARE])
def test_history_stable_or_empty_group_matches_its_members_and_admin_client(played: Played, group_id: str) -> None:
    """State, generation, assignor, members, instance ids and partitions."""
    for rest in played.troupe(group_id).rests:
        seen = rest.sight
        if seen.state == "Empty":
            # No member reports the generation or requests an assignor: a broker then returns its default assignor
            # (ConsumerGroup.asDescribedGroup), which the log does not contain.
            generation = played.history.generation(group_id, rest)["generation"]
            seen = replace(seen, generation=generation, protocol=None)
        assert played.history.sight(group_id, rest) == seen


@pytest.mark.parametrize("group_id", [*GROUPS, *SHARE])
def test_generations_members_and_counts_match_the_last_observed_state(played: Played, group_id: str) -> None:
    """A row of `generations` has the members at its end: the id of a static member may change within a generation."""
    last = {rest.sight.generation: rest for rest in played.troupe(group_id).rests if rest.sight.members}
    for rest in last.values():
        generation = played.history.generation(group_id, rest)
        found = seats(generation)
        assert found == rest.sight.members
        assert generation["member_count"] == len(found)
        partitions = frozenset[Partition]().union(*(seat.partitions for seat in found.values()))
        assert generation["partition_count"] == len(partitions)


@pytest.mark.parametrize("group_id", ["three-range", "deleted", "kip-848"])
def test_generations_empty_group_has_an_empty_member_list(played: Played, group_id: str) -> None:
    """The list is empty and not null: it is known that there are no members."""
    empty = [rest for rest in played.troupe(group_id).rests if not rest.sight.members]
    rows = [played.history.generation(group_id, rest) for rest in empty]
    assert [row["members"] for row in rows] == [[] for _ in empty]


@pytest.mark.parametrize("group_id", [group_id for group_id in [*CLASSIC, "restart"] if group_id != "cooperative"])
def test_generations_eager_group_has_every_assignment_its_members_received(played: Played, group_id: str) -> None:
    """Every assignment that a member received, including those between two stable states."""
    generations = played.history.of("generations", group_id)
    for member in played.troupe(group_id).members:
        for note in member.notes:
            if note.what == "assigned":
                recorded = [
                    partitions_of(other["partitions"])
                    for row in generations
                    if row["generation"] == note.generation
                    for other in row["members"]
                    if note.member_id == other["member_id"]
                    or (member.post.instance_id and member.post.instance_id == other["instance_id"])
                ]
                assert recorded == [note.partitions], note


@pytest.mark.parametrize("group_id", GROUPS)
def test_partition_ownership_covers_the_time_a_member_held_each_partition(played: Played, group_id: str) -> None:
    """From the time a member received a partition until it gave it up. Members of a cooperative classic group give up
    partitions when they receive the new generation, a moment after its record."""
    delay_ms = 1_000 if group_id == "cooperative" else 0
    rows = played.history.of("partition_ownership", group_id)
    for member in played.troupe(group_id).members:
        for partition, member_id, since, until in held_intervals(member.notes):
            owned = [
                (row["owned_from"], row["owned_until"])
                for row in rows
                if (row["topic"], row["partition"], row["member_id"]) == (*partition, member_id)
            ]
            assert any(start <= since and (end is None or until <= end + delay_ms) for start, end in owned), (
                f"{member_id} held {partition} from {since} to {until}; the history says {owned}"
            )


@pytest.mark.parametrize("group_id", GROUPS)
def test_history_record_partition_matches_java_hash_of_group_id(played: Played, group_id: str) -> None:
    """abs(hash(group)) % partitions, with Java's hash and Kafka's abs."""
    played.troupe(group_id)
    found = {row["record_partition"] for table in TABLES for row in played.history.of(table, group_id)}
    assert found == {java_abs(java_hash(group_id)) % PARTITIONS}


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
def test_generations_seven_partitions_three_members_are_split_3_2_2(played: Played, assignor: str) -> None:
    group_id = f"three-{assignor}"
    generation = played.history.generation(group_id, played.troupe(group_id).rests[0])
    assert (sizes(generation), generation["skew"], generation["protocol"]) == ([3, 2, 2], 1, assignor)
    assert generation["is_assignors_own"] is True, generation["assignment_note"]


def test_generations_seven_partitions_five_members_are_split_2_2_1_1_1(played: Played) -> None:
    troupe = played.troupe("polygenelubricants")
    generation = played.history.generation(troupe.group_id, troupe.rests[0])
    assert (sizes(generation), generation["skew"]) == ([2, 2, 1, 1, 1], 1)
    assert generation["is_assignors_own"] is True, generation["assignment_note"]


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky"])
def test_generations_members_with_different_subscriptions_list_their_own_topics(
    played: Played, assignor: str
) -> None:
    troupe = played.troupe(f"two-{assignor}")
    generation = played.history.generation(troupe.group_id, troupe.rests[0])
    assert {member["client_id"]: tuple(member["topics"]) for member in generation["members"]} == {
        member.post.client_id: tuple(sorted(member.post.topics)) for member in troupe.members
    }
    assert generation["partition_count"] == 13
    # A sticky assignment may depend on what members claimed to own: see the next test.
    expected = (True, None) if assignor == "sticky" else (True,)
    assert generation["is_assignors_own"] in expected, generation["assignment_note"]


def test_generations_sticky_group_assignment_is_the_assignors_own_in_every_generation(played: Played) -> None:
    """Assignments after the first can then be recomputed, too."""
    generations = [row for row in played.history.of("generations", "three-sticky") if row["partition_count"] != 0]
    assert len(generations) > 2
    assert {row["is_assignors_own"] for row in generations} == {True}


def test_rebalances_sticky_member_leaves_moves_only_its_partitions(played: Played) -> None:
    troupe = played.troupe("three-sticky")
    before, after = troupe.rests[:2]
    (leaver,) = before.sight.members.keys() - after.sight.members.keys()
    rebalance, _ = rebalance_with(leaver, "members_left", played.history.rebalances("three-sticky", before, after))
    had = before.sight.members[leaver].partitions
    assert {(one["topic"], one["partition"]) for one in rebalance["handed_over"]} == had
    assert (rebalance["partitions_moved"], rebalance["partitions_kept"]) == (len(had), 7 - len(had))
    assert {one["from_member"] for one in rebalance["handed_over"]} == {leaver}
    assert {one["committed_offset"] for one in rebalance["handed_over"]} == {COMMITTED}


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky"])
def test_rebalances_leave_join_and_empty_group_have_matching_causes(played: Played, assignor: str) -> None:
    group_id = f"three-{assignor}"
    first, second, third, end = played.troupe(group_id).rests
    (leaver,) = first.sight.members.keys() - second.sight.members.keys()
    left, _ = rebalance_with(leaver, "members_left", played.history.rebalances(group_id, first, second))
    assert (left["cause"], left["members_left"], left["members_joined"]) == ("member_left", [leaver], [])
    (joiner,) = third.sight.members.keys() - second.sight.members.keys()
    joined, _ = rebalance_with(joiner, "members_joined", played.history.rebalances(group_id, second, third))
    assert (joined["cause"], joined["members_joined"]) == ("member_joined", [joiner])
    *_, emptied = played.history.rebalances(group_id, third, end)
    assert emptied["cause"] == "group_emptied"
    ended = {row["member_id"]: row["ended"] for row in played.history.of("memberships", group_id)}
    assert ended[leaver] == "left"


def test_history_static_member_restarted_has_no_rebalance_and_a_replaced_membership(played: Played) -> None:
    _, before, away, back = played.troupe("static").rests
    assert before.sight == away.sight
    assert back.sight.generation == before.sight.generation
    assert played.history.rebalances("static", before, back) == []
    (old,) = before.sight.members.keys() - back.sight.members.keys()
    (new,) = back.sight.members.keys() - before.sight.members.keys()
    memberships = {row["member_id"]: row for row in played.history.of("memberships", "static")}
    assert (memberships[old]["ended"], memberships[new]["began"]) == ("replaced", "replaced")


def test_rebalances_cooperative_member_joins_has_a_follow_up_rebalance(played: Played) -> None:
    alone, both, _ = played.troupe("cooperative").rests
    joined, followed = played.history.rebalances("cooperative", alone, both)
    assert (joined["cause"], followed["cause"]) == ("member_joined", "cooperative_follow_up")
    assert (joined["partitions_removed"], joined["partitions_kept"]) == (3, 3)
    assert (followed["partitions_moved"], followed["partitions_kept"]) == (3, 3)


def test_rebalances_kip_848_join_leave_and_empty_group_have_matching_causes(played: Played) -> None:
    one, two, three, less, none = played.troupe("kip-848").rests
    history = played.history
    for before, after, cause in (
        (one, two, "member_joined"),
        (two, three, "member_joined"),
        (three, less, "member_left_or_expired"),
    ):
        (rebalance,) = history.rebalances("kip-848", before, after)
        assert (rebalance["cause"], rebalance["duration_of"]) == (cause, "whole")
        assert before.at_ms < rebalance["at"] <= rebalance["ended_at"] <= after.at_ms
    assert history.rebalances("kip-848", less, none)[-1]["cause"] == "group_emptied"


def test_rebalances_kip_848_static_member_restarted_has_no_rebalance(played: Played) -> None:
    before, back = played.troupe("kip-848-static").rests
    assert back.sight.generation == before.sight.generation
    assert played.history.rebalances("kip-848-static", before, back) == []


def test_history_share_group_join_and_leave_have_causes_but_no_moved_partitions(played: Played) -> None:
    """A partition with several members has no single owner, so none is moved or handed over."""
    one, two, three, less, none = played.troupe("share").rests
    history = played.history
    for before, after, cause in (
        (one, two, "member_joined"),
        (two, three, "member_joined"),
        (three, less, "member_left_or_expired"),
    ):
        first, *_ = history.rebalances("share", before, after)
        changed = before.sight.members.keys() ^ after.sight.members.keys()
        assert first["cause"] == cause
        assert {*first["members_joined"], *first["members_left"]} == changed
        assert before.at_ms < first["at"] <= after.at_ms
    assert history.rebalances("share", less, none)[-1]["cause"] == "group_emptied"
    rows = [row for row in history.of("rebalances", "share") if row["partitions_moved"] or row["handed_over"]]
    assert rows == []
    owned = history.at("partition_ownership", "share", three.at_ms, "owned_from", "owned_until")
    places = [(row["topic"], row["partition"]) for row in owned]
    assert len(places) > len(set(places)) == sum(TOPICS[topic] for topic in ("two", "three"))


def test_rebalances_member_killed_cause_is_member_left_or_expired(played: Played) -> None:
    troupe = played.troupe("grüppe-群组-😀")
    before, after = troupe.rests
    (dead,) = before.sight.members.keys() - after.sight.members.keys()
    rebalance, _ = rebalance_with(dead, "members_left", played.history.rebalances(troupe.group_id, before, after))
    assert (rebalance["cause"], rebalance["certainty"]) == ("member_left_or_expired", "ambiguous")
    (membership,) = [row for row in played.history.of("memberships", troupe.group_id) if row["member_id"] == dead]
    assert membership["ended"] == "left_or_expired"
    crashed = troupe.members[1].notes[-1]
    assert membership["left_at"] - crashed.at_ms > 4_000  # its session lasted for six seconds
    handed_over = {(one["topic"], one["partition"]): one["to_member"] for one in rebalance["handed_over"]}
    assert handed_over == {
        partition: name
        for name, seat in after.sight.members.items()
        for partition in seat.partitions & before.sight.members[dead].partitions
    }


def test_rebalances_topic_gains_partitions_cause_is_partitions_added(played: Played) -> None:
    before, after = played.troupe("growth").rests
    grown, *_ = played.history.rebalances("growth", before, after)
    assert (grown["cause"], grown["partitions_added"]) == ("partitions_added", 2)


def test_history_group_deleted_and_recreated_has_a_new_incarnation(played: Played) -> None:
    first, _, second, _ = played.troupe("deleted").rests
    history = played.history
    assert [history.generation("deleted", rest)["incarnation"] for rest in (first, second)] == [1, 2]
    states = sorted(history.of("group_states", "deleted"), key=lambda row: (row["incarnation"], row["record_offset"]))
    dead = [row for row in states if row["state"] == "Dead"]
    assert [row["incarnation"] for row in dead] == [1, 2]
    assert first.at_ms < dead[0]["started_at"] < dead[0]["ended_at"] <= second.at_ms
    assert dead[1]["ended_at"] is None


def test_generations_broker_restarted_keeps_the_incarnation(played: Played) -> None:
    rests = played.troupe("restart").rests
    rows = [played.history.generation("restart", rest) for rest in rests]
    assert {row["incarnation"] for row in rows} == {1}
    assert rows[0]["generation"] <= rows[1]["generation"] < rows[2]["generation"]


# --- batch equals stream -----------------------------------------------------------------------------------


@pytest.mark.full
def test_history_job_killed_and_resumed_then_rebuilt_matches_a_single_run(
    played: Played, cli: Cli, tmp_path: Path
) -> None:
    """The job runs in small batches, is killed during one, resumes, and the history is then rebuilt."""
    if played.version != NEW:
        pytest.skip("the new coordinator's records are of all kinds")
    decode = played.config.decode.model_copy(update={"max_records_per_batch": 70})
    config = played.config.model_copy(update={"warehouse": str(tmp_path / "warehouse"), "decode": decode})
    run = Grouptrail(config, "run", *BOTH_JOBS)
    try:
        await_the_middle_of_a_batch(run, config)
    finally:
        run.kill()
    assert History.read(config) != played.history

    run = Grouptrail(config, "run", *BOTH_JOBS)
    try:
        await_history(config, played.history, run)
    finally:
        run.kill()

    succeeded(cli(config, "rebuild", "history"))
    assert_same(History.read(config), played.history)


def await_the_middle_of_a_batch(run: Grouptrail, config: Config) -> None:
    """Return when a batch has written to a table but has not ended, after at least one complete batch."""
    checkpoint = Path(config.checkpoint_path("history"))
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
    return sum(1 for table in TABLES for _ in Path(config.table_path(table)).glob("_delta_log/*.json"))


def await_history(config: Config, wanted: History, run: Grouptrail) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (found := History.read(config)) != wanted:
        assert run.process.poll() is None, run.finished()
        if time.monotonic() > deadline:
            assert_same(found, wanted)
        time.sleep(0.5)


def assert_same(found: History, wanted: History) -> None:
    for table in TABLES:
        assert len(found.tables[table]) == len(wanted.tables[table]), table
        for one, other in zip(found.tables[table], wanted.tables[table], strict=True):
            assert one == other, table
