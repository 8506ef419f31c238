"""Requests about groups: list them, describe their members, fetch their committed offsets.

Each broker has a connection of its own and a limit on requests per second; a request covers many groups.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from kafka import errors as client_errors

from grouptrail.kafka import client_internals
from grouptrail.kafka.cluster import Cluster, server_of
from grouptrail.kafka.coordinator import OFFSETS_TOPIC
from grouptrail.kafka.errors import ClusterError, error_name, why_unanswered
from grouptrail.kafka.group import Committed, PolledGroup, ShareOffset, ShareOffsets
from grouptrail.kafka.log import topic_id_text

_GROUPS_A_REQUEST = 50
# Errors that need no warning, the next poll asks again: the coordinator moves, or the group is being deleted.
_GROUP_ID_NOT_FOUND = 69
_TRANSIENT = (14, 15, 16, _GROUP_ID_NOT_FOUND)


T = TypeVar("T")


class Throttle:
    """Limits requests: `wait` returns at most `per_second` times a second."""

    def __init__(self, per_second: float) -> None:
        self._apart = 1 / per_second
        self._next = 0.0

    def wait(self) -> None:
        """Sleep until the next request is due."""
        now = time.monotonic()
        self._next = max(self._next, now) + self._apart
        time.sleep(max(0.0, self._next - self._apart - now))


PartitionsOf = Mapping[str, Collection[tuple[str, int]]]
"""Partitions by group, as topic and number."""

_DENIED = "describe groups: grant the principal DESCRIBE on the groups, or on the cluster for all of them"


class GroupCoordinators(Cluster):
    """The brokers of the cluster, and which of them coordinates a group."""

    _denied = _DENIED

    def nodes(self) -> dict[int, str]:
        """Return the brokers by node id: `host:port`."""
        description = self._ask(lambda admin: admin.describe_cluster())
        alive = (broker for broker in description["brokers"] if not broker.get("is_fenced"))
        return {broker["broker_id"]: server_of(broker["host"], broker["port"]) for broker in alive}

    def coordinator(self, group_id: str) -> int:
        """Return the node that coordinates a group, whether the group exists or not."""
        return self._ask(lambda admin: client_internals.group_coordinator(admin, group_id))


class BrokerGroups(Cluster):
    """Requests to one broker about the groups that it coordinates."""

    _denied = _DENIED

    def __init__(self, settings: Mapping[str, str], node: int, server: str, throttle: Throttle) -> None:
        super().__init__({**settings, "bootstrap.servers": server})
        self.node = node
        self._throttle = throttle

    def listed(self) -> list[PolledGroup]:
        """Return the broker's groups that the principal may DESCRIBE. Raises ClusterError."""
        return self._groups(self._send(client_internals.list_groups_request))

    def listed_share_groups(self) -> list[PolledGroup]:
        """Return those that are share groups; none if the broker is too old to list one kind (before Kafka 3.8)."""

        def ask(admin: Any) -> Any:
            request = client_internals.list_groups_request(admin, "share")
            try:
                return client_internals.send_to_node(admin, self.node, request)
            except client_errors.IncompatibleBrokerVersion:
                return None

        self._throttle.wait()
        answer = self._ask(ask)
        return [] if answer is None else self._groups(answer)

    def _groups(self, answer: Any) -> list[PolledGroup]:
        if answer.error_code:
            self._explain(client_errors.for_code(answer.error_code)())
        return [
            PolledGroup(
                group.group_id,
                (getattr(group, "group_type", "") or "classic").lower(),
                group.protocol_type,
                getattr(group, "group_state", "") or "",
            )
            for group in answer.groups
        ]

    def share_offsets(
        self, group_ids: Collection[str], log_ends: Callable[[], T]
    ) -> tuple[dict[str, ShareOffsets | str], tuple[T, T]]:
        """Return the offsets of share groups, or why there are none, and what `log_ends` returned before and after.

        One request (DescribeShareGroupOffsets), which waits for its turn before the first of these. An empty reason
        passes: the coordinator moves. Of partitions whose topic the principal may not DESCRIBE there is nothing.
        Raises ClusterError.
        """
        self._throttle.wait()
        before = log_ends()
        request = client_internals.share_group_offsets_request(group_ids)
        answer = self._ask(lambda admin: client_internals.send_to_node(admin, self.node, request))
        return {group.group_id: share_offsets_of(group) for group in answer.groups}, (before, log_ends())

    def describe(self, groups: Sequence[PolledGroup], partitions: PartitionsOf | None = None) -> None:
        """Fill in the description and commits of these groups, or why there are none.

        Groups of unknown kind have no description. `partitions` are as for `fetch_commits`.
        """
        for kind, request in _DESCRIBING.items():
            for some in parts([group for group in groups if group.kind == kind]):
                self._describe(some, request)
        for some in parts([group for group in groups if group.kind != "share"]):
            self.fetch_commits(some, partitions)

    def _describe(self, groups: Sequence[PolledGroup], request: Callable[[list[str]], Any]) -> None:
        by_id = {group.group_id: group for group in groups}
        answer = self._send(lambda _admin: request(list(by_id)))
        for description in answer.groups:
            group = by_id[description.group_id]
            group.problem = _problem(description.error_code)
            group.is_gone = _is_gone(description)
            if not description.error_code:
                group.described = _classic(description) if group.kind == "classic" else description.to_dict()

    def fetch_commits(self, groups: Sequence[PolledGroup], partitions: PartitionsOf | None = None) -> None:
        """Fill in the commits of these groups, or why there are none: all, or those of some partitions by group.

        One request; before Kafka 3.0 one for each group. Only a request that names partitions proves that one has no
        commit: from all commits of a group the broker leaves out topics that the principal may not DESCRIBE.
        """
        by_id = {group.group_id: group for group in groups}
        wanted = dict.fromkeys(by_id) if partitions is None else {name: partitions.get(name) or [] for name in by_id}
        if not (wanted := {name: some for name, some in wanted.items() if some != []}):
            return
        for group_id, request in self._ask(lambda admin: client_internals.committed_offsets_requests(admin, wanted)):
            answer = self._send(lambda _admin, ready=request: ready)  # type: ignore[misc]
            for fetched in answer.groups if group_id is None else [answer]:
                group = by_id[fetched.group_id if group_id is None else group_id]
                code = fetched.error_code or next(
                    (one.error_code for topic in fetched.topics for one in topic.partitions if one.error_code), 0
                )
                group.problem = group.problem or _problem(code)
                if not code:
                    group.commits = dict(_commits(fetched.topics))
                if not fetched.error_code:
                    group.without_commit = frozenset(_without_commit(fetched.topics))

    def _send(self, request: Callable[[Any], Any]) -> Any:
        self._throttle.wait()
        return self._ask(lambda admin: client_internals.send_to_node(admin, self.node, request(admin)))


_DESCRIBING: dict[str, Callable[[list[str]], Any]] = {
    "classic": client_internals.describe_classic_groups_request,
    "consumer": client_internals.describe_consumer_groups_request,
}


def _classic(description: Any) -> dict[str, Any]:
    """Return the fields of a classic group: kafka-python's `to_dict` would turn the members' bytes into text."""
    of_group = ("group_state", "protocol_type", "protocol_data")
    of_member = ("member_id", "group_instance_id", "client_id", "client_host")
    members = [
        {name: getattr(member, name, None) for name in of_member}
        | {name: bytes(getattr(member, name) or b"") for name in ("member_metadata", "member_assignment")}
        for member in description.members
    ]
    return {**{name: getattr(description, name) for name in of_group}, "members": members}


def share_offsets_of(group: Any) -> ShareOffsets | str:
    """Return what a response says of a share group, or why it says nothing: see `BrokerGroups.share_offsets`."""
    if (problem := _problem(group.error_code)) is not None:
        return problem
    offsets: dict[tuple[str, int], ShareOffset] = {}
    problems: dict[tuple[str, int], str] = {}
    for topic in group.topics:
        for one in topic.partitions:
            place = topic.topic_name, one.partition_index
            if one.error_code:
                problems[place] = error_name(one.error_code)
            else:
                lag = None if one.lag < 0 else one.lag  # as always in version 0, of Kafka 4.1
                offsets[place] = ShareOffset(topic_id_text(topic.topic_id), one.start_offset, lag)
    return ShareOffsets(offsets, problems)


def _commits(topics: Iterable[Any]) -> Iterator[tuple[tuple[str, int], Committed]]:
    for topic in topics:
        for one in topic.partitions:
            if one.committed_offset >= 0:
                committed = Committed(one.committed_offset, one.committed_leader_epoch, one.metadata or "")
                yield (topic.name, one.partition_index), committed


def _without_commit(topics: Iterable[Any]) -> Iterator[tuple[str, int]]:
    for topic in topics:
        for one in topic.partitions:
            if one.committed_offset < 0 and not one.error_code:
                yield topic.name, one.partition_index


def _is_gone(description: Any) -> bool:
    """Return whether a coordinator does not have a group, as a group of the kind that was asked for.

    Before version 6 of DescribeGroups (KIP-1043) its state is Dead then, without an error.
    """
    if description.error_code:
        return bool(description.error_code == _GROUP_ID_NOT_FOUND)
    return bool(description.group_state == "Dead")


def _problem(code: int) -> str | None:
    if not code:
        return None
    if code in _TRANSIENT:
        return ""
    return "the principal may not DESCRIBE it" if code in (29, 30) else error_name(code)


def parts(groups: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield groups in parts for one request each."""
    yield from (groups[first : first + _GROUPS_A_REQUEST] for first in range(0, len(groups), _GROUPS_A_REQUEST))


class Brokers:
    """One throttled connection for each broker, opened when it is first used."""

    def __init__(self, settings: Mapping[str, str], requests_per_second: float) -> None:
        self._settings = settings
        self._requests_per_second = requests_per_second
        self._groups: dict[tuple[int, str], BrokerGroups] = {}

    def groups(self, node: int, server: str) -> BrokerGroups:
        """Return the connection to one broker."""
        if (node, server) not in self._groups:
            throttle = Throttle(self._requests_per_second)
            self._groups[node, server] = BrokerGroups(self._settings, node, server, throttle)
        return self._groups[node, server]

    def close(self) -> None:
        """Close the connections."""
        for groups in self._groups.values():
            groups.close()


class Coordinators:
    """Groups as the brokers have them that lead their partitions of the offsets topic.

    Each broker gets at most `requests_per_second`; a request covers up to 50 groups.
    """

    def __init__(self, settings: Mapping[str, str], requests_per_second: float) -> None:
        self._cluster = Cluster(settings)
        self._brokers = Brokers(settings, requests_per_second)

    def offsets(self, groups: Mapping[str, int], *, seconds: float) -> dict[str, dict[tuple[str, int], int] | str]:
        """Return the committed offsets by group, or why there are none.

        `groups` gives the partition of the offsets topic for each group. Groups that were not reached within
        `seconds` are left out. Raises ClusterError if no broker answers.
        """
        asked = [PolledGroup(group_id, "classic", "", "") for group_id in groups]
        answered = self._ask(asked, groups, lambda broker, some: broker.fetch_commits(some), seconds)
        return {group.group_id: _offsets_or_reason(group) for group in answered}

    def describe(
        self, kinds: Mapping[str, str], groups: Mapping[str, int], partitions: PartitionsOf, *, seconds: float
    ) -> list[PolledGroup]:
        """Return the groups with their description and their commits in these partitions, or why there are none.

        `kinds` are classic or consumer, or empty if only the commits are wanted. Otherwise as `offsets`.
        """
        asked = [PolledGroup(group_id, kinds[group_id], "", "") for group_id in groups]
        return self._ask(asked, groups, lambda broker, some: broker.describe(some, partitions), seconds)

    def _ask(
        self,
        groups: Sequence[PolledGroup],
        partition_of: Mapping[str, int],
        question: Callable[[BrokerGroups, Sequence[PolledGroup]], None],
        seconds: float,
    ) -> list[PolledGroup]:
        """Ask each group's coordinator; return the groups that have an answer or a problem."""
        deadline = time.monotonic() + seconds
        of_partition: dict[int, list[PolledGroup]] = defaultdict(list)
        for group in groups:
            of_partition[partition_of[group.group_id]].append(group)
        of_broker: dict[tuple[int, str], list[PolledGroup]] = defaultdict(list)
        answered: list[PolledGroup] = []
        for metadata in self._cluster.partition_metadata({OFFSETS_TOPIC: list(of_partition)}):
            led = of_partition[metadata.partition]
            if metadata.leader is None or metadata.server is None:
                answered += _with_problem(led, f"no broker leads its partition ({metadata.error})")
            else:
                of_broker[metadata.leader, metadata.server] += led
        for (leader, server), coordinated in of_broker.items():
            left = coordinated
            for some in parts(coordinated):
                if time.monotonic() > deadline:
                    break
                try:
                    question(self._brokers.groups(leader, server), some)
                except ClusterError as error:
                    answered += _with_problem(left, f"broker {leader} {why_unanswered(error)}")
                    break
                answered += some
                left = left[len(some) :]
        return answered

    def close(self) -> None:
        """Close the connections."""
        self._cluster.close()
        self._brokers.close()


def _with_problem(groups: Sequence[PolledGroup], problem: str) -> list[PolledGroup]:
    return [replace(group, problem=problem) for group in groups]


def _offsets_or_reason(group: PolledGroup) -> dict[tuple[str, int], int] | str:
    if group.commits is None:
        return group.problem or "its coordinator is moving"
    return {place: committed.offset for place, committed in group.commits.items()}
