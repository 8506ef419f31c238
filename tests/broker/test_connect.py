"""The history of Connect worker groups, compared with the workers' own logs and REST API and with an admin client.

A group with the incremental protocol and one with the eager protocol run at the same time, each with two real
workers, one of which is killed and restarted; then a group whose workers lose the broker. The pipeline then runs, and
its history must match.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from demo.kafka import Broker, ensure_offsets_topic
from support.cli_in_process import Cli, succeeded
from support.connect_workers import DELAY_MS, Workers
from support.history_tables import History, Row, rebalance_with, seats
from support.kafka_clients import await_that
from support.landed import config_of
from support.observed_groups import Partitions, Rest

pytestmark = [pytest.mark.broker, pytest.mark.full]

PROTOCOLS = {"sessioned": "sessioned", "eager": "default"}
"""The protocols by their settings, and what their groups call them."""
FORSAKEN = "forsaken"
GROUPS = PROTOCOLS | {FORSAKEN: "sessioned"}


# --- the scenes --------------------------------------------------------------------------------------------


def begin(group: Workers) -> Rest:
    group.make("source", "Source")
    group.make("sink", "Sink", tasks=3)
    return group.rest()


def sessioned(group: Workers) -> None:
    """A worker is killed, and a connector is created before its tasks are reassigned; another worker is suspended
    and resumed."""
    begin(group)
    lost, survivor = group.follower(), group.leader()
    lost.crash()
    await_that(lambda: survivor.assignments()[-1].delay_ms > 0)
    group.make("late", "Source")
    group.rest()
    lost.start()
    group.rest()
    group.delete("late")
    group.rest()
    frozen = group.leader()
    frozen.freeze()
    group.rest()
    frozen.thaw()
    group.rest()


def eager(group: Workers) -> None:
    """A worker is killed and restarted."""
    begin(group)
    lost = group.follower()
    lost.crash()
    group.rest()
    lost.start()
    group.rest()


def forsaken(group: Workers, broker: Broker) -> None:
    """The broker stops for so long that the workers stop all their tasks, and returns before their sessions
    expire."""
    before = begin(group)
    broker.stop()
    await_that(lambda: all(worker.has_let_go() for worker in group.workers))
    broker.start()
    await_that(lambda: all(worker.assignments()[-1].generation > before.sight.generation for worker in group.workers))
    group.rest()


SCENES: dict[str, Callable[[Workers], None]] = {"sessioned": sessioned, "eager": eager}


@dataclass(frozen=True)
class Played:
    """The groups by scene, and their history."""

    groups: dict[str, Workers]
    history: History

    def rests(self, scene: str) -> list[Rest]:
        return self.groups[scene].rests

    def rebalances(self, scene: str, after: Rest, until: Rest) -> list[Row]:
        return self.history.rebalances(self.groups[scene].group_id, after, until)


@pytest.fixture(scope="module")
def played(broker: Broker, cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Played:
    folder = tmp_path_factory.mktemp("connect")
    ensure_offsets_topic(broker.bootstrap)
    groups = {protocol: Workers(folder, broker.bootstrap, f"connect-{protocol}", protocol) for protocol in SCENES}

    def play(protocol: str) -> None:
        with groups[protocol] as group:
            SCENES[protocol](group)

    with ThreadPoolExecutor(len(groups)) as pool:
        for playing in [pool.submit(play, protocol) for protocol in groups]:
            playing.result()
    with Workers(folder, broker.bootstrap, f"connect-{FORSAKEN}", "sessioned", session_ms=30_000) as group:
        forsaken(group, broker)
    groups[FORSAKEN] = group
    config = config_of(broker.bootstrap, folder / "warehouse")
    succeeded(cli(config, "run", "--job", "decode", "--job", "history", "--once"))
    return Played(groups, History.read(config))


# --- the truth ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scene", GROUPS)
def test_history_stable_connect_group_matches_workers_rest_api_and_admin_client(played: Played, scene: str) -> None:
    """State, generation, protocol, members, connectors and tasks."""
    for rest in played.rests(scene):
        assert played.history.sight(played.groups[scene].group_id, rest) == rest.sight
        assert rest.sight.protocol == GROUPS[scene]


@pytest.mark.parametrize("scene", GROUPS)
def test_generations_connect_group_has_every_assignment_in_its_worker_logs(played: Played, scene: str) -> None:
    """Member id, leader and assignment of every generation, including those between two stable states."""
    group = played.groups[scene]
    generations = {row["generation"]: row for row in played.history.of("generations", group.group_id)}
    for logged in (logged for worker in group.workers for logged in worker.assignments()):
        row = generations[logged.generation]
        assert (row["protocol_type"], row["leader"]) == ("connect", logged.leader)
        assert seats(row)[logged.member_id].partitions == logged.has, logged


def newcomer(before: Rest, after: Rest) -> str:
    (member_id,) = after.sight.members.keys() - before.sight.members.keys()
    return member_id


def handed_over(rebalance: Row) -> Partitions:
    return frozenset((one["topic"], one["partition"]) for one in rebalance["handed_over"])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_rebalances_connect_worker_killed_cause_is_member_left_or_expired(played: Played, protocol: str) -> None:
    """Its member id never returns, and its connectors and tasks are handed over, at once or in a later rebalance."""
    before, after = played.rests(protocol)[:2]
    dead = newcomer(after, before)
    lost, later = rebalance_with(dead, "members_left", played.rebalances(protocol, before, after))
    assert (lost["cause"], lost["certainty"]) == ("member_left_or_expired", "ambiguous")
    assert (lost["members_left"], lost["members_joined"]) == ([dead], [])
    memberships = played.history.of("memberships", played.groups[protocol].group_id)
    assert [row["ended"] for row in memberships if row["member_id"] == dead] == ["left_or_expired"]
    [given] = [row for row in (lost, *later) if row["handed_over"]]
    assert handed_over(given) == before.sight.members[dead].partitions
    assert (given is lost) == (protocol == "eager")


def test_rebalances_connect_worker_lost_reassigns_its_tasks_after_the_delay(played: Played) -> None:
    """A connector created during the delay has its own cause and is not counted among the delayed tasks."""
    before, after = played.rests("sessioned")[:2]
    dead = newcomer(after, before)
    lost, later = rebalance_with(dead, "members_left", played.rebalances("sessioned", before, after))
    [given] = [row for row in later if row["handed_over"]]
    had = handed_over(given)
    assert lost["partitions_removed"] == given["partitions_moved"] == len(had)
    assert (given["cause"], given["partitions_added"]) == ("cooperative_follow_up", 0)
    assert {one["from_member"] for one in given["handed_over"]} == {dead}
    assert all(one["taken_at"] - one["given_up_at"] >= DELAY_MS for one in given["handed_over"])
    [made] = [row for row in later if row["cause"] == "topic_created"]
    assert made["cause_note"].split(":")[0] == "late"
    assert made["at"] < given["at"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_rebalances_connect_worker_restarted_cause_is_member_joined(played: Played, protocol: str) -> None:
    """Eager workers reassign everything at once; incremental ones first give up what the new worker then receives."""
    before, after = played.rests(protocol)[1:3]
    back = newcomer(before, after)
    joined, later = rebalance_with(back, "members_joined", played.rebalances(protocol, before, after))
    assert (joined["cause"], joined["members_joined"]) == ("member_joined", [back])
    got = after.sight.members[back].partitions
    if protocol == "eager":
        assert handed_over(joined) == got
    else:
        assert (joined["partitions_removed"], joined["partitions_moved"]) == (len(got), 0)
        [followed] = [row for row in later if row["handed_over"]]
        assert (followed["cause"], handed_over(followed)) == ("cooperative_follow_up", got)


def test_history_connector_deleted_has_cause_topic_deleted_and_ends_ownership(played: Played) -> None:
    before, after = played.rests("sessioned")[2:4]
    [deleted] = [row for row in played.rebalances("sessioned", before, after) if row["cause"] == "topic_deleted"]
    assert deleted["cause_note"].split(":")[0] == "late"
    owned = played.history.of("partition_ownership", played.groups["sessioned"].group_id)
    assert {row["ended"] for row in owned if row["topic"] == "late"} == {"given_up"}


def test_rebalances_connect_leader_suspended_and_resumed_rejoins_under_new_member_id(played: Played) -> None:
    """It was the leader, and the next leader does not know which tasks to delay for it. After it resumes, it still
    claims all tasks that it had."""
    before, without, after = played.rests("sessioned")[3:6]
    frozen, thawed = newcomer(without, before), newcomer(without, after)
    lost, _ = rebalance_with(frozen, "members_left", played.rebalances("sessioned", before, without))
    assert (lost["cause"], lost["members_left"]) == ("member_left_or_expired", [frozen])
    assert handed_over(lost) == before.sight.members[frozen].partitions
    joined, later = rebalance_with(thawed, "members_joined", played.rebalances("sessioned", without, after))
    assert (joined["cause"], joined["members_joined"]) == ("member_joined", [thawed])
    [followed] = [row for row in later if row["handed_over"]]
    assert (followed["cause"], handed_over(followed)) == (
        "cooperative_follow_up",
        after.sight.members[thawed].partitions,
    )


def test_rebalances_connect_broker_restarted_has_no_members_joined_or_left(played: Played) -> None:
    """No worker was lost; the tests above compare the assignments."""
    before, after = played.rests(FORSAKEN)
    assert after.sight.members.keys() == before.sight.members.keys()
    rebalances = played.rebalances(FORSAKEN, before, after)
    assert rebalances
    assert not any(row["members_left"] or row["members_joined"] for row in rebalances)
