"""What the demo's clients did and what brokers acknowledged to them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal

Kind = Literal[
    "range",
    "roundrobin",
    "sticky",
    "static",
    "consumer",
    "transactional",
    "simple",
    "deleted",
    "reset",
    "share",
]
Key = tuple[str, str, int]
Partition = tuple[str, int]
Offsets = dict[Partition, int]


class Ledger:
    """What the clients did and what was acknowledged to them. Safe to read and write from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kinds: dict[str, Kind] = {}
        self._offsets: dict[Key, int] = {}
        self._commits: Counter[Key] = Counter()
        self._unsure: set[Key] = set()
        self._gone: set[str] = set()
        self._transactions: Counter[str] = Counter()
        self._actions: Counter[str] = Counter()

    def opened(self, group: str, kind: Kind) -> None:
        """A client of this group is about to start."""
        with self._lock:
            self._kinds[group] = kind
            self._gone.discard(group)

    def acknowledge(self, group: str, offsets: Mapping[Partition, int]) -> None:
        """The coordinator accepted these offsets."""
        with self._lock:
            for (topic, partition), offset in offsets.items():
                key = (group, topic, partition)
                self._offsets[key] = offset
                self._commits[key] += 1
                self._unsure.discard(key)

    def doubt(self, group: str, partitions: Iterable[Partition]) -> None:
        """A commit went out and no answer came: it may or may not be in the topic."""
        with self._lock:
            self._unsure.update((group, topic, partition) for topic, partition in partitions)

    def forget(self, group: str) -> None:
        """The group was deleted, with its offsets."""
        with self._lock:
            self._gone.add(group)
            for key in [key for key in self._commits if key[0] == group]:
                del self._commits[key]
                self._offsets.pop(key, None)

    def transaction(self, outcome: Literal["committed", "aborted"]) -> None:
        with self._lock:
            self._transactions[outcome] += 1

    def did(self, action: str) -> None:
        """A client or an administrator did this to a group."""
        with self._lock:
            self._actions[action] += 1

    def groups(self) -> dict[str, Kind]:
        """The kind of every group that had a client, the deleted ones as well."""
        with self._lock:
            return dict(self._kinds)

    def committed(self) -> dict[Key, int]:
        """The last acknowledged offset of each (group, topic, partition) of the groups that exist."""
        with self._lock:
            return dict(self._offsets)

    def commit_counts(self) -> dict[Key, int]:
        """How many commits of each (group, topic, partition) were acknowledged since the group began."""
        with self._lock:
            return dict(self._commits)

    def unsure(self) -> frozenset[Key]:
        """The keys whose last commit got no answer: leave them out of a comparison."""
        with self._lock:
            return frozenset(self._unsure)

    def deleted(self) -> frozenset[str]:
        """The groups that were deleted and not used again."""
        with self._lock:
            return frozenset(self._gone)

    @property
    def transactions_committed(self) -> int:
        with self._lock:
            return self._transactions["committed"]

    @property
    def transactions_aborted(self) -> int:
        with self._lock:
            return self._transactions["aborted"]

    def actions(self) -> Counter[str]:
        """How often something was started, left, crashed, restarted, deleted, reset or removed."""
        with self._lock:
            return self._actions.copy()
