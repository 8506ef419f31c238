"""Groups as their coordinators describe them: which there are, who is in them, what they have committed.

Each broker is asked over a connection of its own, not more often than the configuration allows, and about many groups
in one request.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from kafka import errors as faults
from kafka.protocol.admin import DescribeGroupsRequest
from kafka.protocol.api_message import ApiMessage

import grouptrail.kafka
from grouptrail.kafka.brokers import TOPIC, Cluster, ClusterError, KafkaDenied, server_of
from grouptrail.kafka.group import Committed, PolledGroup

_GROUPS_A_REQUEST = 50
_MOST_BROKERS_AT_ONCE = 8
# They are told again at the next poll, and are no cause for alarm: the group's coordinator moves, or the group goes.
_PASSING = (14, 15, 16, 69)


class ConsumerGroupDescribeRequest(ApiMessage, load_json=grouptrail.kafka):  # type: ignore[misc, call-arg]
    """KIP-848's, which kafka-python lacks; the layouts lie beside this file."""


class ConsumerGroupDescribeResponse(ApiMessage, load_json=grouptrail.kafka):  # type: ignore[misc, call-arg]
    """Its answer."""


class Throttle:
    """Spreads requests: `wait` returns as often a second as is allowed."""

    def __init__(self, per_second: float) -> None:
        self._apart = 1 / per_second
        self._next = 0.0

    def wait(self) -> None:
        """Until the next request is due."""
        now = time.monotonic()
        self._next = max(self._next, now) + self._apart
        time.sleep(max(0.0, self._next - self._apart - now))


class GroupCoordinators(Cluster):
    """Which brokers there are, and which of them coordinates a group."""

    _denied = "describe groups: grant the principal DESCRIBE on the groups, or on the cluster for all of them"

    def nodes(self) -> dict[int, str]:
        """The brokers, by node id: `host:port`."""
        found = self._ask(lambda admin: admin.describe_cluster())
        alive = (broker for broker in found["brokers"] if not broker.get("is_fenced"))
        return {broker["broker_id"]: server_of(broker["host"], broker["port"]) for broker in alive}

    def coordinator(self, group_id: str) -> int:
        """The node that coordinates a group, whether the group exists or not."""
        return int(self._ask(lambda admin: admin._manager.run(admin._find_coordinator_ids, [group_id])[group_id]))


class BrokerGroups(Cluster):
    """One broker's groups."""

    _denied = GroupCoordinators._denied

    def __init__(self, settings: Mapping[str, str], node: int, server: str, throttle: Throttle) -> None:
        super().__init__({**settings, "bootstrap.servers": server})
        self._node = node
        self._throttle = throttle

    def listed(self) -> list[PolledGroup]:
        """The groups that it coordinates and the principal may DESCRIBE. Raises ClusterError."""
        answer = self._send(lambda admin: admin._list_groups_request())
        if answer.error_code:
            self._explain(faults.for_code(answer.error_code)())
        return [
            PolledGroup(
                group.group_id,
                (getattr(group, "group_type", "") or "classic").lower(),
                group.protocol_type,
                getattr(group, "group_state", "") or "",
            )
            for group in answer.groups
        ]

    def describe(self, groups: Iterable[PolledGroup]) -> None:
        """Fills in what these groups are and have committed, or why that is not told."""
        for kind, request in _DESCRIBING.items():
            for some in _parts([group for group in groups if group.kind == kind]):
                self._describe(some, request)
        for some in _parts([group for group in groups if group.kind != "share"]):
            self.fetch_commits(some)

    def _describe(self, groups: Sequence[PolledGroup], request: Callable[[list[str]], Any]) -> None:
        by_id = {group.group_id: group for group in groups}
        answer = self._send(lambda _admin: request(list(by_id)))
        for told in answer.groups:
            group = by_id[told.group_id]
            group.problem = _problem(told.error_code)
            if not told.error_code:
                group.described = _classic(told) if group.kind == "classic" else told.to_dict()

    def fetch_commits(self, groups: Sequence[PolledGroup]) -> None:
        """Fills in what these groups have committed, or why that is not told; one request (before Kafka 3.0 one for
        each group)."""
        by_id = {group.group_id: group for group in groups}
        for group_id, request in self._ask(
            lambda admin: list(admin._list_group_offsets_requests(dict.fromkeys(by_id)))
        ):
            answer = self._send(lambda _admin, ready=request: ready)  # type: ignore[misc]
            for told in answer.groups if group_id is None else [answer]:
                group = by_id[told.group_id if group_id is None else group_id]
                code = told.error_code or next(
                    (one.error_code for topic in told.topics for one in topic.partitions if one.error_code), 0
                )
                group.problem = group.problem or _problem(code)
                if not code:
                    group.commits = dict(_commits(told.topics))

    def _send(self, request: Callable[[Any], Any]) -> Any:
        self._throttle.wait()

        def ask(admin: Any) -> Any:
            message = request(admin)

            async def answer() -> Any:
                return await admin._manager.send(message, node_id=self._node)

            return admin._manager.run(answer)

        return self._ask(ask)


_DESCRIBING: dict[str, Callable[[list[str]], Any]] = {
    "classic": lambda ids: DescribeGroupsRequest(groups=ids, include_authorized_operations=False),
    "consumer": lambda ids: ConsumerGroupDescribeRequest(group_ids=ids, include_authorized_operations=False),
}


def _classic(told: Any) -> dict[str, Any]:
    """Like kafka-python's `to_dict`, which would make text of the members' bytes."""
    of_group = ("group_state", "protocol_type", "protocol_data")
    of_member = ("member_id", "group_instance_id", "client_id", "client_host")
    members = [
        {name: getattr(member, name, None) for name in of_member}
        | {name: bytes(getattr(member, name) or b"") for name in ("member_metadata", "member_assignment")}
        for member in told.members
    ]
    return {**{name: getattr(told, name) for name in of_group}, "members": members}


def _commits(topics: Iterable[Any]) -> Iterator[tuple[tuple[str, int], Committed]]:
    for topic in topics:
        for one in topic.partitions:
            if one.committed_offset >= 0:
                place = Committed(one.committed_offset, one.committed_leader_epoch, one.metadata or "")
                yield (topic.name, one.partition_index), place


def _problem(code: int) -> str | None:
    if not code:
        return None
    if code in _PASSING:
        return ""
    return "the principal may not DESCRIBE it" if code in (29, 30) else str(faults.for_code(code).__name__)


def _parts(groups: Sequence[PolledGroup]) -> Iterator[Sequence[PolledGroup]]:
    yield from (groups[first : first + _GROUPS_A_REQUEST] for first in range(0, len(groups), _GROUPS_A_REQUEST))


class Brokers:
    """A connection to each broker that was asked for, and how often each may be asked."""

    def __init__(self, settings: Mapping[str, str], requests_per_second: float) -> None:
        self._settings = settings
        self._requests_per_second = requests_per_second
        self._groups: dict[tuple[int, str], BrokerGroups] = {}

    def groups(self, node: int, server: str) -> BrokerGroups:
        """Of one broker."""
        if (node, server) not in self._groups:
            throttle = Throttle(self._requests_per_second)
            self._groups[node, server] = BrokerGroups(self._settings, node, server, throttle)
        return self._groups[node, server]

    def close(self) -> None:
        """Closes the connections."""
        for groups in self._groups.values():
            groups.close()


class Coordinators:
    """What groups have committed, asked of the brokers that lead their partitions of the offsets topic.

    `requests_per_second` each broker gets at most; a request is about up to 50 groups.
    """

    def __init__(self, settings: Mapping[str, str], requests_per_second: float) -> None:
        self._cluster = Cluster(settings)
        self._brokers = Brokers(settings, requests_per_second)

    def offsets(self, groups: Mapping[str, int], *, seconds: float) -> dict[str, dict[tuple[str, int], int] | str]:
        """By group, given with its partition of the offsets topic: its offsets, or why they are not told.

        Nothing for those not asked about within so many seconds. Raises ClusterError where no broker answers.
        """
        deadline = time.monotonic() + seconds
        of_partition: dict[int, list[str]] = defaultdict(list)
        for group_id, partition in groups.items():
            of_partition[partition].append(group_id)
        of_broker: dict[tuple[int, str], list[str]] = defaultdict(list)
        found: dict[str, dict[tuple[str, int], int] | str] = {}
        for place in self._cluster.places({TOPIC: list(of_partition)}):
            if place.leader is None or place.server is None:
                why = f"no broker leads its partition ({place.error})"
                found |= dict.fromkeys(of_partition[place.partition], why)
            else:
                of_broker[place.leader, place.server] += of_partition[place.partition]
        for (leader, server), group_ids in of_broker.items():
            for some in _parts([PolledGroup(group_id, "classic", "", "") for group_id in group_ids]):
                if time.monotonic() > deadline:
                    break
                try:
                    self._brokers.groups(leader, server).fetch_commits(some)
                except ClusterError as error:
                    why = "refuses this principal" if isinstance(error, KafkaDenied) else "did not answer"
                    found |= {group_id: f"broker {leader} {why}" for group_id in group_ids if group_id not in found}
                    break
                found |= {group.group_id: _told_offsets(group) for group in some}
        return found

    def close(self) -> None:
        """Closes the connections."""
        self._cluster.close()
        self._brokers.close()


def _told_offsets(group: PolledGroup) -> dict[tuple[str, int], int] | str:
    if group.commits is None:
        return group.problem or "its coordinator is moving"
    return {place: committed.offset for place, committed in group.commits.items()}
