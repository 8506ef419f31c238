"""Ask the coordinators of share groups for start offsets and lag."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from grouptrail.config.patterns import is_allowed
from grouptrail.kafka.cluster import DESCRIBE_DENIED, Cluster
from grouptrail.kafka.errors import ClusterError
from grouptrail.kafka.group import ShareOffset, ShareOffsets
from grouptrail.kafka.groups import BrokerGroups, Brokers, GroupCoordinators, parts
from grouptrail.share_state.polled import LogEnds

if TYPE_CHECKING:
    from grouptrail.config.model import AdminConfig

Place = tuple[str, int]
"""A topic and the number of a partition."""

_ONE_BROKER_FAILED = "broker {}: {}"


@dataclass(frozen=True)
class PolledShareGroup:
    """What a coordinator returned of a share group, by topic and partition, with the ends of the logs.

    `gone` are partitions that were known and in which the group has no offset any more.
    """

    offsets: Mapping[Place, ShareOffset]
    log_ends: Mapping[Place, LogEnds]
    gone: frozenset[Place]


@dataclass
class SharePoll:
    """The share groups whose coordinators answered a poll that began at a time (seconds), and problems.

    `problems` are those of brokers and partitions, `refused` says by group why there is no answer.
    """

    at: float
    groups: dict[str, PolledShareGroup] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


class SharePoller:
    """Polls a cluster's share groups, and keeps its connections between polls.

    `rules` say which groups to poll and how fast, `kafka` are the settings of Kafka's client. The ends of logs are
    read beyond the limit: two requests to each leader for each request about groups, which must not wait.
    """

    def __init__(self, rules: AdminConfig, kafka: Mapping[str, str]) -> None:
        self._rules = rules
        self._coordinators = GroupCoordinators(kafka)
        self._brokers = Brokers(kafka, rules.requests_per_second)
        self._logs = Cluster(kafka)
        self._leaders: dict[Place, int] = {}
        self._hidden: set[str] = set()

    def poll(self, known: Mapping[str, Collection[Place]]) -> SharePoll:
        """Ask about all share groups; `known` gives the known ones, with the partitions where they have an offset.

        A group that no broker lists is deleted, or the principal may not see it: which of the two, any broker says of
        the second, and its coordinator of the first. Raises ClusterError if no broker answers.
        """
        poll = SharePoll(at=time.time())
        listed: dict[BrokerGroups, list[str]] = {}
        for node, server in self._coordinators.nodes().items():
            broker = self._brokers.groups(node, server)
            try:
                names = (group.group_id for group in broker.listed_share_groups())
                listed[broker] = sorted(filter(self._is_wanted, names))
            except ClusterError as error:
                poll.problems.append(_ONE_BROKER_FAILED.format(node, error))
        unlisted = sorted(
            filter(self._is_wanted, known.keys() - {group for some in listed.values() for group in some})
        )
        self._leaders, self._hidden = {}, set()
        self._find_leaders({place for places in known.values() for place in places})
        for broker, groups in listed.items():
            for some in parts([*groups, *unlisted]):
                try:
                    self._ask(broker, some, known, poll)
                except ClusterError as error:
                    poll.problems.append(_ONE_BROKER_FAILED.format(broker.node, error))
                    break
        return poll

    def _ask(
        self, broker: BrokerGroups, groups: Collection[str], known: Mapping[str, Collection[Place]], poll: SharePoll
    ) -> None:
        """Ask a broker about groups, once more if it returns partitions whose logs' ends were not read."""
        places = {place for group in groups for place in known.get(group, ())}
        answers, (before, after) = broker.share_offsets(groups, lambda: self._log_ends(places))
        if new := _with_lag(answers) - places:
            self._find_leaders(new)
            answers, (before, after) = broker.share_offsets(groups, lambda: self._log_ends(places | new))
        for group, answer in answers.items():
            if isinstance(answer, str):
                if answer:
                    poll.refused[group] = answer
                continue
            poll.problems += [
                f"{group!r}: the coordinator returns no offsets of {topic}-{partition} ({problem})"
                for (topic, partition), problem in answer.problems.items()
            ]
            returned = answer.offsets.keys() | answer.problems.keys()
            gone = {place for place in known.get(group, ()) if place not in returned and place[0] not in self._hidden}
            ends = {place: (before.get(place), after.get(place)) for place in answer.offsets}
            poll.groups[group] = PolledShareGroup(answer.offsets, ends, frozenset(gone))

    def _log_ends(self, places: Iterable[Place]) -> dict[Place, int]:
        """Return the ends of the logs whose leaders answer."""
        of_leader: dict[int, list[Place]] = defaultdict(list)
        for place in places:
            if (leader := self._leaders.get(place)) is not None:
                of_leader[leader].append(place)
        ends: dict[Place, int] = {}
        for leader, led in of_leader.items():
            with suppress(ClusterError):
                ends |= self._logs.log_ends(leader, led)
        return ends

    def _find_leaders(self, places: Collection[Place]) -> None:
        """Find the leaders of partitions, and the topics that the principal may not DESCRIBE."""
        partitions: dict[str, list[int]] = defaultdict(list)
        for topic, partition in places:
            partitions[topic].append(partition)
        for one in self._logs.partition_metadata(partitions) if partitions else ():
            if one.leader is not None:
                self._leaders[one.topic, one.partition] = one.leader
            elif one.error == DESCRIBE_DENIED:
                self._hidden.add(one.topic)

    def _is_wanted(self, group_id: str) -> bool:
        return is_allowed(group_id, self._rules.allow_groups, self._rules.deny_groups)


def _with_lag(answers: Mapping[str, ShareOffsets | str]) -> set[Place]:
    """Return the partitions whose lag was returned."""
    offsets = (answer.offsets.items() for answer in answers.values() if isinstance(answer, ShareOffsets))
    return {place for some in offsets for place, one in some if one.lag is not None}
