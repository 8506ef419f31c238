"""What the history says of the groups at a sample: their states, what they subscribe to, and how members left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from grouptrail.lag.clocks import of_partitions
from grouptrail.lag.group_status import GroupStatus
from grouptrail.lag.index import MICROS, UNKNOWN, Bools, Floats, Ints, micros, moment, whole
from grouptrail.lag.offsets import matching
from grouptrail.lag.verdict import Thresholds

# Within this time the history reads the record of a member that commits, and a member that has started commits.
_HISTORY_FOLLOWS_MICROS = 60 * MICROS

_UNKNOWN_GROUP = GroupStatus()
_ALL_EXACT: Ints = np.empty(0, np.int64)


@dataclass(frozen=True)
class Groups:
    """Groups by number at the time of a sample (microseconds), and that time by the clocks of their coordinators."""

    at: int
    names: list[str]
    statuses: list[GroupStatus]
    coordinators_at: Ints

    @classmethod
    def of(
        cls, at: int, names: list[str], statuses: Mapping[str, GroupStatus], clock_offsets: Ints = _ALL_EXACT
    ) -> Groups:
        """Return the groups with these names, in this order.

        `clock_offsets`: by how much the clocks are ahead, by partition of the offsets topic (microseconds).
        """
        of_groups = [statuses.get(name, _UNKNOWN_GROUP) for name in names]
        partitions = [UNKNOWN if one.record_partition is None else one.record_partition for one in of_groups]
        return cls(at, names, of_groups, at + of_partitions(clock_offsets, np.array(partitions, np.int64)))

    @cached_property
    def states(self) -> pa.Array:
        """The state of each group, as dictionary codes."""
        return pa.array([status.state for status in self.statuses], pa.string()).dictionary_encode()

    @cached_property
    def new_seconds(self) -> Floats:
        """For how long each group has had members, if so recently that they need not have committed; else NaN."""
        times = map(moment, self.coordinators_at.tolist())
        started = np.array([status.started_seconds(now) for status, now in zip(self.statuses, times, strict=True)])
        is_new = (started >= 0) & (started < _HISTORY_FOLLOWS_MICROS / MICROS)
        return np.where(is_new, started, np.nan)

    @cached_property
    def assigned_at(self) -> Ints:
        """When each group last assigned a partition that a member owns (microseconds)."""
        times = (status.assigned_at for status in self.statuses)
        return np.array([UNKNOWN if time is None else micros(time) for time in times], np.int64)

    @cached_property
    def emptied_at(self) -> Ints:
        """When the members of each Empty group were gone (microseconds)."""
        ends = (status.emptied_at for status in self.statuses)
        return np.array([UNKNOWN if end is None else micros(end) for end in ends], np.int64)

    @cached_property
    def emptied_offsets(self) -> Ints:
        """The record of that in each group's partition of the offsets topic."""
        offsets = (status.emptied_offset for status in self.statuses)
        return np.array([UNKNOWN if offset is None else offset for offset in offsets], np.int64)

    @cached_property
    def are_empty(self) -> Bools:
        """Whether each group is Empty."""
        are_empty: Bools = self.emptied_at != UNKNOWN
        return are_empty

    @cached_property
    def may_pause_seconds(self) -> Floats:
        """For how long each group may pause by habit after it had read all."""
        return np.array([status.may_pause_seconds for status in self.statuses], np.float64)

    def may_be_away_seconds(self, thresholds: Thresholds) -> Floats:
        """Return for how long the members of each group may stay away; NaN for those that are not Empty."""
        seconds = np.full(len(self.names), np.nan)
        for number in np.flatnonzero(self.are_empty).tolist():
            seconds[number] = self.statuses[number].may_be_away_seconds(thresholds)
        return seconds

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
        is_ignored: Bools = ignores[np.cumsum(is_first) - 1]
        return is_ignored
