"""Poll all groups of a cluster."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from grouptrail.config.patterns import is_allowed
from grouptrail.kafka.errors import ClusterError, KafkaDeniedError
from grouptrail.kafka.group import PolledGroup
from grouptrail.kafka.groups import BrokerGroups, Brokers, GroupCoordinators

if TYPE_CHECKING:
    from grouptrail.config.model import AdminConfig

_MOST_BROKERS_AT_ONCE = 8


@dataclass
class Poll:
    """The groups of a cluster at a time (seconds), and problems.

    `listed` are the node ids of the brokers that returned all their groups; `denied` is the error if a login or a
    right is missing.
    """

    at: float
    groups: dict[str, PolledGroup] = field(default_factory=dict)
    listed: set[int] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    denied: KafkaDeniedError | None = None


class Poller:
    """Polls a cluster's groups, and keeps its connections between polls.

    `rules` say which groups to poll and how fast, `kafka` are the settings of Kafka's client.
    """

    def __init__(self, rules: AdminConfig, kafka: Mapping[str, str]) -> None:
        self._rules = rules
        self._coordinators = GroupCoordinators(kafka)
        self._brokers = Brokers(kafka, rules.requests_per_second)

    def poll(self) -> Poll:
        """Ask every broker; one that does not answer does not affect the others."""
        poll = Poll(at=time.time())
        self._coordinators.close()  # a client caches groups' coordinators as long as it lives
        try:
            brokers = [self._brokers.groups(node, server) for node, server in self._coordinators.nodes().items()]
        except ClusterError as error:
            poll.problems.append(str(error))
            poll.denied = _denied(error)
            return poll
        if brokers:
            with ThreadPoolExecutor(min(len(brokers), _MOST_BROKERS_AT_ONCE)) as pool:
                for node, groups, problem in pool.map(self._ask, brokers):
                    if problem is not None:
                        poll.problems.append(f"broker {node}: {problem}")
                        poll.denied = poll.denied or _denied(problem)
                    if groups is not None:
                        poll.listed.add(node)
                        poll.groups |= {group.group_id: group for group in groups}
        return poll

    def is_gone(self, group_id: str, poll: Poll) -> bool:
        """Return whether a group that a poll does not have is deleted, and not only hidden or unreachable."""
        if not self._is_wanted(group_id):
            return False
        try:
            return self._coordinators.coordinator(group_id) in poll.listed
        except ClusterError:
            return False

    def close(self) -> None:
        """Close the connections."""
        self._coordinators.close()
        self._brokers.close()

    def _ask(self, broker: BrokerGroups) -> tuple[int, list[PolledGroup] | None, ClusterError | None]:
        groups = None
        try:
            groups = [group for group in broker.listed() if self._is_wanted(group.group_id)]
            broker.describe(groups)
        except ClusterError as error:
            return broker.node, groups, error
        return broker.node, groups, None

    def _is_wanted(self, group_id: str) -> bool:
        return is_allowed(group_id, self._rules.allow_groups, self._rules.deny_groups)


def _denied(error: ClusterError) -> KafkaDeniedError | None:
    return error if isinstance(error, KafkaDeniedError) else None
