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

from servers.kafka import Broker
from servers.offsets_topic import ensure_offsets_topic
from support.cli_in_process import Cli, succeeded
from support.connect_workers import DELAY_MS, Workers
from support.history_tables import History, Row, described_members, rebalance_with
from support.kafka_clients import await_that
from support.landed import config_of
from support.observed_groups import Partitions, StableState

pytestmark = pytest.mark.full

PROTOCOLS = {"sessioned": "sessioned", "eager": "default"}
"""The protocols by their settings, and what their groups call them."""
COORDINATOR_LOST = "coordinator-lost"
GROUPS = PROTOCOLS | {COORDINATOR_LOST: "sessioned"}


# --- the scenarios -----------------------------------------------------------------------------------------


def begin(group: Workers) -> StableState:
    group.create_connector("source", "Source")
    group.create_connector("sink", "Sink", tasks=3)
    return group.await_stable()


def sessioned(group: Workers) -> None:
    """A worker is killed, and a connector is created before its tasks are reassigned; another worker is suspended
    and resumed."""
    begin(group)
    lost, survivor = group.follower(), group.leader()
    lost.crash()
    await_that(lambda: survivor.assignments()[-1].delay_ms > 0)
    group.create_connector("late", "Source")
    group.await_stable()
    lost.start()
    group.await_stable()
    group.delete_connector("late")
    group.await_stable()
    frozen = group.leader()
    frozen.freeze()
    group.await_stable()
    frozen.thaw()
    group.await_stable()


def eager(group: Workers) -> None:
    """A worker is killed and restarted."""
    begin(group)
    lost = group.follower()
    lost.crash()
    group.await_stable()
    lost.start()
    group.await_stable()


def coordinator_lost(group: Workers, broker: Broker) -> None:
    """The broker stops for so long that the workers stop all their tasks, and returns before their sessions
    expire."""
    before = begin(group)
    broker.stop()
    await_that(lambda: all(worker.has_stopped_its_tasks() for worker in group.workers))
    broker.start()
    await_that(lambda: all(worker.assignments()[-1].generation > before.group.generation for worker in group.workers))
    group.await_stable()


SCENARIOS: dict[str, Callable[[Workers], None]] = {"sessioned": sessioned, "eager": eager}


@dataclass(frozen=True)
class RecordedGroups:
    """The groups by scenario, and their history."""

    groups: dict[str, Workers]
    history: History

    def stable_states(self, scenario: str) -> list[StableState]:
        return self.groups[scenario].stable_states

    def rebalances(self, scenario: str, after: StableState, until: StableState) -> list[Row]:
        return self.history.rebalances(self.groups[scenario].group_id, after, until)


@pytest.fixture(scope="module")
def recorded(broker: Broker, cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> RecordedGroups:
    folder = tmp_path_factory.mktemp("connect")
    ensure_offsets_topic(broker.bootstrap)
    groups = {protocol: Workers(folder, broker.bootstrap, f"connect-{protocol}", protocol) for protocol in SCENARIOS}

    def run_schedule(protocol: str) -> None:
        with groups[protocol] as group:
            SCENARIOS[protocol](group)

    with ThreadPoolExecutor(len(groups)) as pool:
        for running in [pool.submit(run_schedule, protocol) for protocol in groups]:
            running.result()
    with Workers(folder, broker.bootstrap, f"connect-{COORDINATOR_LOST}", "sessioned", session_ms=30_000) as group:
        coordinator_lost(group, broker)
    groups[COORDINATOR_LOST] = group
    config = config_of(broker.bootstrap, folder / "warehouse")
    succeeded(cli(config, "run", "--job", "decode", "--job", "history", "--once"))
    return RecordedGroups(groups, History.read(config))


# --- the truth ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", GROUPS)
def test_history_stable_connect_group_matches_workers_rest_api_and_admin_client(
    recorded: RecordedGroups, scenario: str
) -> None:
    """State, generation, protocol, members, connectors and tasks."""
    for stable in recorded.stable_states(scenario):
        assert recorded.history.group_at(recorded.groups[scenario].group_id, stable) == stable.group
        assert stable.group.protocol == GROUPS[scenario]


@pytest.mark.parametrize("scenario", GROUPS)
def test_generations_connect_group_has_every_assignment_in_its_worker_logs(
    recorded: RecordedGroups, scenario: str
) -> None:
    """Member id, leader and assignment of every generation, including those between two stable states."""
    group = recorded.groups[scenario]
    generations = {row["generation"]: row for row in recorded.history.of("generations", group.group_id)}
    for logged in (logged for worker in group.workers for logged in worker.assignments()):
        row = generations[logged.generation]
        assert (row["protocol_type"], row["leader"]) == ("connect", logged.leader)
        assert described_members(row)[logged.member_id].partitions == logged.has, logged


@pytest.mark.parametrize("scenario", GROUPS)
def test_task_assignments_stable_connect_group_has_the_tasks_of_workers_rest_api(
    recorded: RecordedGroups, scenario: str
) -> None:
    """A connector is its task -1; the endpoint is the worker's REST address."""
    group = recorded.groups[scenario]
    workers = {
        event.member_id: f"http://{worker.name}/" for worker in group.workers for event in worker.assignments()
    }
    for stable in recorded.stable_states(scenario):
        rows = recorded.history.at(
            "task_assignments", group.group_id, stable.at_ms, "assigned_from", "assigned_until"
        )
        assert {(row["role"], row["process_id"]) for row in rows} == {("active", None)}
        assert {(row["member_id"], row["subtopology"], row["task"]) for row in rows} == {
            (name, *task) for name, member in stable.group.members.items() for task in member.partitions
        }
        assert all(row["endpoint"] == workers[row["member_id"]] for row in rows)


def newcomer(before: StableState, after: StableState) -> str:
    (member_id,) = after.group.members.keys() - before.group.members.keys()
    return member_id


def handed_over(rebalance: Row) -> Partitions:
    return frozenset((one["topic"], one["partition"]) for one in rebalance["handed_over"])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_rebalances_connect_worker_killed_cause_is_member_left_or_expired(
    recorded: RecordedGroups, protocol: str
) -> None:
    """Its member id never returns, and its connectors and tasks are handed over, at once or in a later rebalance."""
    before, after = recorded.stable_states(protocol)[:2]
    dead = newcomer(after, before)
    lost, later = rebalance_with(dead, "members_left", recorded.rebalances(protocol, before, after))
    assert (lost["cause"], lost["certainty"]) == ("member_left_or_expired", "ambiguous")
    assert (lost["members_left"], lost["members_joined"]) == ([dead], [])
    memberships = recorded.history.of("memberships", recorded.groups[protocol].group_id)
    assert [row["ended"] for row in memberships if row["member_id"] == dead] == ["left_or_expired"]
    [given] = [row for row in (lost, *later) if row["handed_over"]]
    assert handed_over(given) == before.group.members[dead].partitions
    assert (given is lost) == (protocol == "eager")


def test_rebalances_connect_worker_lost_reassigns_its_tasks_after_the_delay(recorded: RecordedGroups) -> None:
    """A connector created during the delay has its own cause and is not counted among the delayed tasks."""
    before, after = recorded.stable_states("sessioned")[:2]
    dead = newcomer(after, before)
    lost, later = rebalance_with(dead, "members_left", recorded.rebalances("sessioned", before, after))
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
def test_rebalances_connect_worker_restarted_cause_is_member_joined(recorded: RecordedGroups, protocol: str) -> None:
    """Eager workers reassign everything at once; incremental ones first give up what the new worker then receives."""
    before, after = recorded.stable_states(protocol)[1:3]
    back = newcomer(before, after)
    joined, later = rebalance_with(back, "members_joined", recorded.rebalances(protocol, before, after))
    assert (joined["cause"], joined["members_joined"]) == ("member_joined", [back])
    got = after.group.members[back].partitions
    if protocol == "eager":
        assert handed_over(joined) == got
    else:
        assert (joined["partitions_removed"], joined["partitions_moved"]) == (len(got), 0)
        [followed] = [row for row in later if row["handed_over"]]
        assert (followed["cause"], handed_over(followed)) == ("cooperative_follow_up", got)


def test_history_connector_deleted_has_cause_topic_deleted_and_ends_ownership(recorded: RecordedGroups) -> None:
    before, after = recorded.stable_states("sessioned")[2:4]
    [deleted] = [row for row in recorded.rebalances("sessioned", before, after) if row["cause"] == "topic_deleted"]
    assert deleted["cause_note"].split(":")[0] == "late"
    owned = recorded.history.of("partition_ownership", recorded.groups["sessioned"].group_id)
    assert {row["ended"] for row in owned if row["topic"] == "late"} == {"given_up"}


def test_rebalances_connect_leader_suspended_and_resumed_rejoins_under_new_member_id(
    recorded: RecordedGroups,
) -> None:
    """It was the leader, and the next leader does not know which tasks to delay for it. After it resumes, it still
    claims all tasks that it had."""
    before, without, after = recorded.stable_states("sessioned")[3:6]
    frozen, thawed = newcomer(without, before), newcomer(without, after)
    lost, _ = rebalance_with(frozen, "members_left", recorded.rebalances("sessioned", before, without))
    assert (lost["cause"], lost["members_left"]) == ("member_left_or_expired", [frozen])
    assert handed_over(lost) == before.group.members[frozen].partitions
    joined, later = rebalance_with(thawed, "members_joined", recorded.rebalances("sessioned", without, after))
    assert (joined["cause"], joined["members_joined"]) == ("member_joined", [thawed])
    [followed] = [row for row in later if row["handed_over"]]
    assert (followed["cause"], handed_over(followed)) == (
        "cooperative_follow_up",
        after.group.members[thawed].partitions,
    )


def test_rebalances_connect_broker_restarted_has_no_members_joined_or_left(recorded: RecordedGroups) -> None:
    """No worker was lost; the tests above compare the assignments."""
    before, after = recorded.stable_states(COORDINATOR_LOST)
    assert after.group.members.keys() == before.group.members.keys()
    rebalances = recorded.rebalances(COORDINATOR_LOST, before, after)
    assert rebalances
    assert not any(row["members_left"] or row["members_joined"] for row in rebalances)
