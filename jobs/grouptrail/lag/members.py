"""What the history says of the groups at a sample: their states, what they subscribe to, and how members left."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

import numpy as np
import pyarrow as pa

from grouptrail.lag.group_status import GroupStatus
from grouptrail.lag.index import UNKNOWN, Bools, Floats, Ints, at_numbers, lengthened, micros, moment, whole
from grouptrail.lag.offsets import matching

_MICROS = 1_000_000
# Within this time the history reads the record of a member that commits, and a member that has started commits.
_HISTORY_FOLLOWS_MICROS = 60 * _MICROS

_UNKNOWN_GROUP = GroupStatus()

FindLastCommits = Callable[[Mapping[str, datetime]], Mapping[str, int]]
"""Returns the time (microseconds) of each group's last commit before the time at which it became Empty."""


@dataclass(frozen=True)
class Groups:
    """Groups by number at the time of a sample (microseconds)."""

    at: int
    names: list[str]
    statuses: list[GroupStatus]

    @classmethod
    def of(cls, at: int, names: list[str], statuses: Mapping[str, GroupStatus]) -> Groups:
        """Return the groups with these names, in this order."""
        return cls(at, names, [statuses.get(name, _UNKNOWN_GROUP) for name in names])

    @cached_property
    def states(self) -> pa.Array:
        """The state of each group, as dictionary codes."""
        return pa.array([status.state for status in self.statuses], pa.string()).dictionary_encode()

    @cached_property
    def new_seconds(self) -> Floats:
        """For how long each group has had members, if so recently that they need not have committed; else NaN."""
        now = moment(self.at)
        started = np.array([status.started_seconds(now) for status in self.statuses], np.float64)
        is_new = (started >= 0) & (started < _HISTORY_FOLLOWS_MICROS / _MICROS)
        return np.where(is_new, started, np.nan)

    @cached_property
    def emptied_at(self) -> Ints:
        """When the members of each Empty group were gone (microseconds)."""
        ends = (status.emptied_at for status in self.statuses)
        return np.array([UNKNOWN if end is None else micros(end) for end in ends], np.int64)

    @property
    def are_empty(self) -> Bools:
        """Whether each group is Empty."""
        found: Bools = self.emptied_at != UNKNOWN
        return found

    def matching(self, patterns: Sequence[str]) -> Bools:
        """Return whether each group's name matches one of some shell patterns."""
        return matching(pa.array(self.names, pa.string()), patterns)

    def ignore(self, groups: Ints, topics: pa.ChunkedArray) -> Bools:
        """Return, for entries by group and topic, whether the group's members subscribe, but not to the topic."""
        encoded = whole(topics).dictionary_encode()
        names, codes = encoded.dictionary.to_pylist(), np.asarray(encoded.indices)
        # Entries with the same group and topic follow each other.
        is_first = (np.diff(groups, prepend=-1) != 0) | (np.diff(codes, prepend=-1) != 0)
        pairs = zip(groups[is_first].tolist(), codes[is_first].tolist(), strict=True)
        ignores = np.array([self.statuses[group].ignores(names[topic]) for group, topic in pairs], bool)
        found: Bools = ignores[np.cumsum(is_first) - 1]
        return found


class LastCommits:
    """The last commit of each Empty group before its last member was gone.

    Later commits do not show that a member is alive: an administrator can reset the offsets of an Empty group. One
    that does not go back may come from a new member whose record the history has not read yet.
    """

    def __init__(self, find_last_commits: FindLastCommits) -> None:
        self._find = find_last_commits
        self._before_end: dict[str, tuple[datetime, int]] = {}
        self._offsets_before_end = np.empty(0, np.int64)

    def left_on_purpose(
        self, groups: Groups, numbers: Ints, positions: Ints, committed: Ints, committed_at: Ints
    ) -> Bools:
        """Return whether each group's members left on purpose, judged by its last commit to any partition.

        In: the number of the group, the position, the committed offset and its time (microseconds) of each entry of
        an Empty group.
        """
        is_known = committed_at != UNKNOWN
        numbers, positions, committed, committed_at = (
            column[is_known] for column in (numbers, positions, committed, committed_at)
        )
        is_before = committed_at <= groups.emptied_at[numbers]
        newest = np.full(len(groups.names), UNKNOWN)
        np.maximum.at(newest, numbers[is_before], committed_at[is_before])
        for number in np.flatnonzero(newest != UNKNOWN).tolist():
            self._add(groups.names[number], groups.statuses[number].emptied_at, newest[number].item())
        known = at_numbers(self._offsets_before_end, positions)
        continues = ~is_before & (known != UNKNOWN) & (committed >= known)
        has_returned = np.full(len(groups.names), False)
        has_returned[numbers[continues & (groups.at - committed_at < _HISTORY_FOLLOWS_MICROS)]] = True
        self._offsets_before_end = lengthened(self._offsets_before_end, int(positions.max(initial=-1)) + 1)
        self._offsets_before_end[positions[is_before]] = committed[is_before]
        self._find_unseen(groups, np.unique(numbers[~is_before]))
        left: Bools = groups.are_empty & ~has_returned
        for number in np.flatnonzero(left).tolist():
            status = groups.statuses[number]
            left[number] = not status.is_returning and self._left_on_purpose(groups.names[number], status)
        return left

    def _find_unseen(self, groups: Groups, numbers: Ints) -> None:
        """Find the last commits of groups where a later one replaced them before any sample saw them."""
        ends = {groups.names[number]: groups.statuses[number].emptied_at for number in numbers.tolist()}
        unseen = {
            name: end
            for name, end in ends.items()
            if end is not None and self._before_end.get(name, (None,))[0] != end
        }
        if unseen:
            found = self._find(unseen)
            for name, end in unseen.items():
                self._add(name, end, found.get(name, UNKNOWN))

    def _add(self, group_id: str, end: datetime | None, at: int) -> None:
        assert end is not None
        known_end, known_at = self._before_end.get(group_id, (end, UNKNOWN))
        self._before_end[group_id] = (end, max(at, known_at) if known_end == end else at)

    def _left_on_purpose(self, group_id: str, group: GroupStatus) -> bool:
        end, at = self._before_end.get(group_id, (None, UNKNOWN))
        is_known = at != UNKNOWN and end == group.emptied_at
        return group.left_on_purpose(moment(at) if is_known else None)
