"""A model of the group coordinator and its clients, which writes the records that a broker would write.

    run(schedule) -> Run(records, moments, names, refused)

A `Schedule` (module `schedule`) is plain data: actions by name, which `to_json` and `from_json` carry, so that it can
be replayed with real clients on a real broker.

- `Run.records` is what the fold consumes; `Run.names` gives topics by id.
- `Run.moments` is the actual state of the group after each operation, with the reasons for the generation and how
  members left (`cluster.Moment`).
- `Run.last_action_at` is the time (ms) when the last action ended, `Run.clients` the state of each client then.
- `Run.commits` are those that consumers made by themselves, where the schedule says so.
- `Run.refused` are requests that the broker would refuse. An action that is impossible at that time, such as a
  second Join of a running client, is skipped and listed there, too.

Modules:

- `cluster`: time, topics, offsets, the log; `clients`: consumers of the classic protocol, `consumer` has the others;
- `classic`: the coordinator of classic groups; `consumer`: that of KIP-848 groups; `assignors`: who gets what;
- `strategies`: schedules at random.

The durations of requests, heartbeats and metadata updates are drawn from the schedule's seed. A run continues for
`SETTLE_MS` after the last action. Not modelled: a static member that returns with the other protocol, share and
streams groups, Connect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from grouptrail.history.operations import Record
from proof.coordinator_model.classic import ClassicGroup
from proof.coordinator_model.clients import ClassicClient, Client
from proof.coordinator_model.cluster import Cluster, Moment, OwnCommit
from proof.coordinator_model.consumer import ConsumerClient
from proof.coordinator_model.schedule import (
    Action,
    AddPartitions,
    Commit,
    Crash,
    CreateTopic,
    DeleteGroup,
    DeleteOffsets,
    DeleteTopic,
    Join,
    Leave,
    MoveCoordinator,
    Rejoin,
    RemoveAllMembers,
    RemoveMember,
    ResetOffsets,
    Resume,
    Schedule,
    Stall,
    Subscribe,
    UpgradeBroker,
    Wait,
)

SETTLE_MS = 20_000


@dataclass(frozen=True)
class Run:
    """The result of a schedule."""

    records: list[Record]
    moments: list[Moment]
    names: Mapping[str, str]
    refused: list[str]
    last_action_at: int
    clients: Mapping[str, str]
    commits: list[OwnCommit]


def run(schedule: Schedule, seeds: Mapping[int, int] | None = None) -> Run:
    """Run a schedule; return its records and the actual states of the group.

    `seeds`, by the index of an action, take the place of the schedule's seed from that action on.
    """
    cluster = Cluster(schedule)
    for index, action in enumerate(schedule.actions):
        if seeds and index in seeds:
            cluster.random.seed(seeds[index])
        name = getattr(action, "client", None)
        client = cluster.clients.get(name or "")
        if isinstance(action, Join):
            _join(cluster, action)
        elif name is None:
            _OF_THE_CLUSTER[type(action)](cluster, action)
        elif client is None or client.is_over:
            cluster.refused.append(f"not running: {action}")
        else:
            _OF_CLIENTS[type(action)](client, action)
    last_action_at = cluster.now
    clients = {name: _state(cluster, client) for name, client in cluster.clients.items()}
    cluster.run_for(SETTLE_MS)
    return Run(
        cluster.records, cluster.moments, cluster.names, cluster.refused, last_action_at, clients, cluster.commits
    )


def _state(cluster: Cluster, client: Client) -> str:
    if client.is_over or client.is_silent:
        return "over" if client.is_over else "silent"
    is_member = cluster.group is not None and client.member_id in cluster.group.members
    return "member" if is_member else "running"


def _join(cluster: Cluster, spec: Join) -> None:
    before = cluster.clients.get(spec.client)
    if before is not None and not before.is_over:
        cluster.refused.append(f"{spec.client} runs")
        return
    kind = ClassicClient if spec.protocol == "classic" else ConsumerClient
    cluster.clients[spec.client] = kind(cluster, spec, was_member=before is not None)


def _remove_member(client: Client, action: Any) -> None:
    group = client.cluster.group
    if client.spec.instance_id is None or group is None:
        return
    if isinstance(group, ClassicGroup):
        group.remove([client.member_id])
    elif client.spec.protocol == "classic":  # others it refuses (GMM.throwIfMemberDoesNotUseClassicProtocol)
        group.classic_leave(client.member_id, "removed")


def _remove_all_members(cluster: Cluster, action: Any) -> None:
    if isinstance(cluster.group, ClassicGroup):
        cluster.group.remove(list(cluster.group.members))


def _upgrade(cluster: Cluster, action: UpgradeBroker) -> None:
    if action.version < cluster.version or cluster.version == "3.9":
        cluster.refused.append(f"no upgrade from {cluster.version} to {action.version}")
    else:
        cluster.version = action.version
        move_coordinator(cluster, "moved")


_OF_CLIENTS: dict[type[Action], Callable[[Client, Any], None]] = {
    Leave: lambda client, action: client.leave(for_good=action.for_good),
    Crash: lambda client, _: client.crash(),
    Stall: lambda client, action: client.stall(action.how),
    Resume: lambda client, _: client.resume(),
    Subscribe: lambda client, action: client.subscribe(action.topics),
    Rejoin: lambda client, _: client.rejoin(),
    Commit: lambda client, _: client.commit(),
    RemoveMember: _remove_member,
}
_OF_THE_CLUSTER: dict[type[Action], Callable[[Cluster, Any], None]] = {
    Wait: lambda cluster, action: cluster.run_for(action.ms),
    CreateTopic: lambda cluster, action: cluster.create_topic(action.topic, action.partitions),
    AddPartitions: lambda cluster, action: cluster.add_partitions(action.topic, action.more),
    DeleteTopic: lambda cluster, action: cluster.delete_topic(action.topic),
    ResetOffsets: lambda cluster, action: cluster.reset_offsets(action.topic),
    DeleteOffsets: lambda cluster, action: cluster.delete_offsets(action.topic),
    DeleteGroup: lambda cluster, _: cluster.delete_group(),
    MoveCoordinator: lambda cluster, action: move_coordinator(cluster, action.how),
    RemoveAllMembers: _remove_all_members,
    UpgradeBroker: _upgrade,
}


def _epochs(cluster: Cluster, how: str) -> int:
    """Return by how much the leader's epoch rises.

    A partition with one replica is without a leader in between. Before 4.0 a broker that is back at once still leads
    it, in the same epoch (`tests/data/recorded-runs-3.9.1.json.gz`).
    """
    if how != "killed":
        return 1
    return 0 if cluster.version == "3.9" else 2


def move_coordinator(cluster: Cluster, how: str) -> None:
    """Another broker loads the group, or the same one again; meanwhile requests find no coordinator.

    With `epoch` only the leader's epoch rises: the coordinator stays, and loads nothing.
    """
    cluster.leader_epoch += _epochs(cluster, how)
    if how == "epoch":
        return
    cluster.is_available = False
    if cluster.group is not None:
        cluster.group = cluster.group.reload()
    away_ms = cluster.random.choice((50, 500) if how == "moved" else (2_000, 9_000, 20_000))
    for client in cluster.clients.values():
        client.coordinator_away(away_ms)
    cluster.run_for(away_ms)
    cluster.is_available = True
    if cluster.group is not None:
        cluster.group.take_over()
    for client in list(cluster.clients.values()):
        client.coordinator_moved()
