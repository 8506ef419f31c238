"""What the history says of the groups at a sample: their states, what they subscribe to, and how members left."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

import numpy as np
import pyarrow as pa

from grouptrail.lag.group_status import GroupStatus
from grouptrail.lag.index import UNKNOWN, Bools, Floats, Ints, ints, micros, moment, whole
from grouptrail.lag.offsets import CLOCKS_DIFFER_SECONDS, matching
from grouptrail.lag.verdict import Thresholds

_MICROS, _MICROS_A_MS = 1_000_000, 1_000
# Two coordinators' clocks, and that of the log-offsets job.
_CLOCKS_DIFFER_MICROS = CLOCKS_DIFFER_SECONDS * _MICROS
_NO_OFFSET = (1 << 63) - 1
# Within this time the history reads the record of a member that commits, and a member that has started commits.
_HISTORY_FOLLOWS_MICROS = 60 * _MICROS

_UNKNOWN_GROUP = GroupStatus()

FindLogEnds = Callable[[Mapping[str, tuple[datetime, datetime]]], Mapping[str, Mapping[tuple[str, int], int]]]
"""Returns the lowest log end offset of each topic and partition of a group, in a period of each group."""


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

    @cached_property
    def emptied_offsets(self) -> Ints:
        """The record of that in each group's partition of the offsets topic."""
        offsets = (status.emptied_offset for status in self.statuses)
        return np.array([UNKNOWN if offset is None else offset for offset in offsets], np.int64)

    @cached_property
    def are_empty(self) -> Bools:
        """Whether each group is Empty."""
        found: Bools = self.emptied_at != UNKNOWN
        return found

    def may_be_away_seconds(self, thresholds: Thresholds) -> Floats:
        """Return for how long the members of each group may stay away; NaN for those that are not Empty."""
        found = np.full(len(self.names), np.nan)
        for number in np.flatnonzero(self.are_empty).tolist():
            found[number] = self.statuses[number].may_be_away_seconds(thresholds)
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


@dataclass(frozen=True)
class LastCommits:
    """The newest commits of Empty groups, by entry: numbers of group and position, times in microseconds.

    `is_plain`: known to have been made outside a transaction.
    """

    groups: Ints
    positions: Ints
    offsets: Ints
    committed_at: Ints
    record_offsets: Ints
    is_plain: Bools

    def of(self, entries: Bools) -> LastCommits:
        """Return some entries."""
        return LastCommits(*(column[entries] for column in vars(self).values()))


@dataclass(frozen=True)
class LastOwners:
    """The rows of `group_status.LAST_OWNERS` by position; members and groups have numbers, times are microseconds."""

    positions: Ints
    groups: Ints
    group_ids: list[str]
    places: list[tuple[str, int]]
    members: Ints
    has_left: Bools
    joined_at: Ints
    session: Ints
    poll: Ints

    @classmethod
    def of(cls, rows: pa.Table, positions: Ints) -> LastOwners:
        """Return the rows with the numbers of their positions."""
        group = whole(rows["group_id"]).dictionary_encode()
        groups = np.asarray(group.indices).astype(np.int64)
        member = whole(rows["member_id"]).dictionary_encode()
        most = len(member.dictionary) + 1
        _, members = np.unique(groups * most + np.asarray(member.indices), return_inverse=True)
        session, poll = (
            np.where(found == UNKNOWN, UNKNOWN, found * _MICROS_A_MS)
            for found in (ints(rows["session_ms"]), ints(rows["poll_ms"]))
        )
        return cls(
            positions,
            groups,
            group.dictionary.to_pylist(),
            list(zip(rows["topic"].to_pylist(), rows["partition"].to_pylist(), strict=True)),
            members,
            np.asarray(whole(rows["has_left"]).fill_null(False), bool),
            ints(rows["joined_at"]),
            session,
            poll,
        )


class Leavers:
    """Finds the positions whose last owners left by themselves.

    A leave writes what an expired session writes, and what a client writes that leaves because its application does
    not poll. A classic member's own commits outside transactions keep its session alive, so that one that committed
    within its session timeout cannot have expired. It has polled if its poll timeout has not passed since it joined,
    or if it has read a record that was written since then.
    """

    def __init__(self, find_log_ends: FindLogEnds) -> None:
        self._find = find_log_ends
        self._log_ends: dict[str, tuple[datetime, Mapping[tuple[str, int], int]]] = {}

    def left(self, groups: Groups, commits: LastCommits, owners: LastOwners, count: int) -> Bools:
        """Return whether each position's last owner left by itself, and its group has had no commit since.

        In: the last commits and owners of Empty groups, the number of positions.
        """
        ends, offsets = groups.emptied_at[commits.groups], groups.emptied_offsets[commits.groups]
        is_later = np.where(offsets == UNKNOWN, commits.committed_at > ends, commits.record_offsets > offsets)
        has_left = np.full(count, False)
        all_left = np.array([status.endings == {"left"} for status in groups.statuses], bool)
        has_left[commits.positions] = all_left[commits.groups]
        self._add_owners(has_left, groups, commits.of(~is_later), owners)
        is_used = np.array([status.is_returning for status in groups.statuses], bool)
        is_used[commits.groups[is_later]] = True
        has_left[commits.positions[is_used[commits.groups]]] = False
        return has_left

    def _add_owners(self, has_left: Bools, groups: Groups, commits: LastCommits, owners: LastOwners) -> None:
        """Set what is known of the positions with a known owner."""
        if not len(owners.positions) or not groups.names:
            return
        number_of = {name: number for number, name in enumerate(groups.names)}
        numbers = np.array([number_of.get(name, UNKNOWN) for name in owners.group_ids], np.int64)[owners.groups]
        ends = np.where(numbers == UNKNOWN, UNKNOWN, groups.emptied_at[numbers])
        rows = np.flatnonzero((ends != UNKNOWN) & (owners.positions < len(has_left)))
        committed, committed_at = (np.full(len(has_left), UNKNOWN) for _ in range(2))
        plain = commits.of(commits.is_plain)
        committed[plain.positions], committed_at[plain.positions] = plain.offsets, plain.committed_at
        positions, members = owners.positions[rows], owners.members[rows]
        newest, has_polled = (
            np.full(members.max(initial=-1) + 1, UNKNOWN),
            np.full(members.max(initial=-1) + 1, False),
        )
        np.maximum.at(newest, members, committed_at[positions])
        end, session = ends[rows], owners.session[rows] - _CLOCKS_DIFFER_MICROS
        is_alive = (session > 0) & (newest[members] != UNKNOWN) & (end - newest[members] < session)
        since = owners.joined_at[rows]
        polled = (since != UNKNOWN) & (end - since < owners.poll[rows] - _CLOCKS_DIFFER_MICROS)
        in_question = rows[is_alive & ~polled & ~owners.has_left[rows] & (owners.poll[rows] > 0)]
        log_ends = self._lowest_log_ends(owners, in_question, ends)
        has_read = np.array([committed[owners.positions[row]] > log_ends.get(row, _NO_OFFSET) for row in in_question])
        has_polled[owners.members[in_question[has_read.astype(bool)]]] = True
        by_itself = owners.has_left[rows] | (is_alive & (polled | has_polled[members]))
        has_left[positions] = True
        has_left[positions[~by_itself]] = False

    def _lowest_log_ends(self, owners: LastOwners, rows: Ints, ends: Ints) -> dict[int, int]:
        """Return, for rows of owners, the lowest log end within the poll timeout before the end (microseconds)."""
        wanted: dict[str, tuple[datetime, datetime]] = {}
        for row in rows.tolist():
            group, end = owners.group_ids[owners.groups[row]], moment(int(ends[row]))
            since = moment(int(ends[row] - owners.poll[row] + _CLOCKS_DIFFER_MICROS))
            if self._log_ends.get(group, (None,))[0] != end:
                wanted[group] = (max(since, wanted[group][0]) if group in wanted else since, end)
        if wanted:
            found = self._find(wanted)
            self._log_ends |= {group: (end, found.get(group, {})) for group, (_, end) in wanted.items()}
        known = ((row, self._log_ends[owners.group_ids[owners.groups[row]]][1]) for row in rows.tolist())
        return {row: of_group[owners.places[row]] for row, of_group in known if owners.places[row] in of_group}
