"""Records by their timestamps, requested from the leaders of their partitions. DESCRIBE on the topics is enough."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor

from grouptrail.kafka.cluster import NOT_LED, Cluster
from grouptrail.kafka.errors import ClusterError, why_unanswered
from grouptrail.kafka.groups import Throttle
from grouptrail.kafka.log import NO_TOPIC, RecordTimestamp

# A broker answers so many in about a tenth of a second, in which one of its threads does nothing else.
_PARTITIONS_A_REQUEST = 2000
_TOPICS_A_REQUEST = 1000
_MOST_LEADERS_AT_ONCE = 32
_TRANSACTIONS_TOPIC = "__transaction_state"
_COMPACT = "compact"

Answer = RecordTimestamp | None | str
"""A record, None where no record has such a timestamp, or why there is no answer."""


class _Broker(Cluster):
    """One broker, which gets no more requests than the throttle allows."""

    def __init__(
        self, settings: Mapping[str, str], server: str, deadline_seconds: float, requests_per_second: float
    ) -> None:
        super().__init__({**settings, "bootstrap.servers": server}, deadline_seconds)
        self._limit_requests(deadline_seconds)
        self._throttle = Throttle(requests_per_second)

    def answers(
        self, leader: int, asked: Mapping[tuple[str, int], int], deadline: float
    ) -> dict[tuple[str, int], Answer]:
        """Return the answers that come before a deadline (monotonic); none of a broker that does not answer."""
        partitions = list(asked)
        answers: dict[tuple[str, int], Answer] = {}
        for first in range(0, len(partitions), _PARTITIONS_A_REQUEST):
            self._throttle.wait()
            if time.monotonic() > deadline:
                break
            some = partitions[first : first + _PARTITIONS_A_REQUEST]
            try:
                answers |= self.records_since(leader, {at: asked[at] for at in some})
            except ClusterError as error:
                return answers | dict.fromkeys(partitions[first:], f"broker {leader} {why_unanswered(error)}")
        return answers


class TimestampReader:
    """Finds records by timestamps over one connection to each leader, which are kept between calls."""

    def __init__(self, settings: Mapping[str, str], deadline_seconds: float, requests_per_second: float) -> None:
        """Each broker gets at most `requests_per_second`, each of 2,000 partitions at most."""
        self._settings = settings
        self._deadline_seconds = deadline_seconds
        self._requests_per_second = requests_per_second
        self._cluster = Cluster(settings, deadline_seconds)
        self._brokers: dict[tuple[int, str], _Broker] = {}
        self._leaders: dict[tuple[str, int], tuple[int, str]] = {}

    def records_since(self, asked: Mapping[tuple[str, int], int], deadline: float) -> dict[tuple[str, int], Answer]:
        """Return the first record with at least the given timestamp (milliseconds) of each partition.

        Partitions that were not reached before a deadline (monotonic seconds) are left out. Raises ClusterError if no
        broker can be asked for the leaders.
        """
        answers: dict[tuple[str, int], Answer] = self._find_leaders(asked.keys() - self._leaders.keys())
        of_leader: dict[tuple[int, str], dict[tuple[str, int], int]] = defaultdict(dict)
        for at, timestamp in asked.items():
            if at in self._leaders:
                of_leader[self._leaders[at]][at] = timestamp
        with ThreadPoolExecutor(min(_MOST_LEADERS_AT_ONCE, max(len(of_leader), 1))) as pool:
            futures = [
                pool.submit(self._broker(*leader).answers, leader[0], of_it, deadline)
                for leader, of_it in of_leader.items()
            ]
            for future in futures:
                answers |= future.result()
        for at, answer in answers.items():
            if answer == NOT_LED or (isinstance(answer, str) and answer.endswith("did not answer")):
                self._leaders.pop(at, None)
        # The leader has changed: the next call asks the new one.
        return {at: answer for at, answer in answers.items() if answer != NOT_LED}

    def has_transactions(self) -> bool:
        """Return whether logs may have markers of transactions: brokers create a topic at the first transaction.

        Without DESCRIBE on that topic, there may be some. Raises ClusterError.
        """
        [state] = self._cluster.partition_metadata({_TRANSACTIONS_TOPIC: [0]})
        return state.error != NO_TOPIC

    def kept_topics(self, topics: Collection[str]) -> list[str]:
        """Return those topics that are not compacted, as far as DESCRIBE_CONFIGS shows it. Raises ClusterError."""
        kept: list[str] = []
        waiting = list(topics)
        while waiting:
            some, waiting = waiting[:_TOPICS_A_REQUEST], waiting[_TOPICS_A_REQUEST:]
            policies = self._cluster.cleanup_policies(some)
            kept += [topic for topic, policy in policies.items() if _COMPACT not in policy.split(",")]
        return kept

    def close(self) -> None:
        """Close the connections."""
        self._cluster.close()
        for broker in self._brokers.values():
            broker.close()
        self._brokers, self._leaders = {}, {}

    def _find_leaders(self, partitions: Collection[tuple[str, int]]) -> dict[tuple[str, int], Answer]:
        """Find the leaders of partitions; return why others have none."""
        if not partitions:
            return {}
        wanted: dict[str, list[int]] = defaultdict(list)
        for topic, partition in partitions:
            wanted[topic].append(partition)
        reasons: dict[tuple[str, int], Answer] = {}
        for one in self._cluster.partition_metadata(wanted):
            if one.leader is None or one.server is None:
                reasons[one.topic, one.partition] = one.error or "leader not available"
            else:
                self._leaders[one.topic, one.partition] = one.leader, one.server
        return reasons

    def _broker(self, leader: int, server: str) -> _Broker:
        if (leader, server) not in self._brokers:
            self._brokers[leader, server] = _Broker(
                self._settings, server, self._deadline_seconds, self._requests_per_second
            )
        return self._brokers[leader, server]
