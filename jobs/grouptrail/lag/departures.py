"""Which positions of groups without members have no reader on purpose.

A leave writes what an expired session writes, and what a client writes that leaves because its application does not
poll. A classic member's own commits outside transactions keep its session alive, so that one that committed within
its session timeout cannot have expired. It has polled if its poll timeout has not passed since it joined, or if it
has read a record that was written since then.

A group that has come back from several pauses, and had read all that there was when this one began, pauses again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from grouptrail.lag.group_status import OWNED
from grouptrail.lag.index import UNKNOWN, Bools, Ints, at_numbers, ints, lengthened, moment, whole
from grouptrail.lag.members import Groups
from grouptrail.lag.offsets import CLOCKS_DIFFER_SECONDS

LOG_ENDS = pa.schema([*OWNED, pa.field("lowest", pa.int64()), pa.field("highest", pa.int64())])
"""The lowest and the highest log end offset of positions in a period."""
FindLogEnds = Callable[[Mapping[str, tuple[datetime, datetime]]], pa.Table]
"""Returns what was sampled (`LOG_ENDS`) of the positions of groups, in a period of each group."""

_MICROS, _MICROS_A_MS = 1_000_000, 1_000
# Two coordinators' clocks, and that of the log-offsets job.
_CLOCKS_DIFFER_MICROS = CLOCKS_DIFFER_SECONDS * _MICROS
# Where the members' poll timeout is not known, the default of max.poll.interval.ms.
_POLL_MICROS = 300 * _MICROS
_MOST_ASKED = 200


@dataclass(frozen=True)
class LastCommits:
    """The newest commits of Empty groups, by entry: numbers of group and position, times in microseconds.

    `is_plain`: known to have been made outside a transaction. `is_behind`: the log has more.
    """

    groups: Ints
    positions: Ints
    offsets: Ints
    committed_at: Ints
    record_offsets: Ints
    is_plain: Bools
    is_behind: Bools

    def of(self, entries: Bools) -> LastCommits:
        """Return some entries."""
        return LastCommits(*(column[entries] for column in vars(self).values()))


@dataclass(frozen=True)
class LastOwners:
    """The rows of `group_status.LAST_OWNERS` with numbers for positions and members; times are microseconds.

    `groups` are numbers of `group_ids`.
    """

    positions: Ints
    groups: Ints
    group_ids: pa.Array
    members: Ints
    has_left: Bools
    joined_at: Ints
    session: Ints
    poll: Ints

    @classmethod
    def of(cls, rows: pa.Table, positions: Ints) -> LastOwners:
        """Return the rows with the numbers of their positions."""
        group, member = (whole(rows[name]).dictionary_encode() for name in ("group_id", "member_id"))
        groups = ints(group.indices)
        _, members = np.unique(groups * (len(member.dictionary) + 1) + ints(member.indices), return_inverse=True)
        timeouts = (ints(rows[name]) for name in ("session_ms", "poll_ms"))
        session, poll = (np.where(one == UNKNOWN, UNKNOWN, one * _MICROS_A_MS) for one in timeouts)
        has_left = np.asarray(whole(rows["has_left"]).fill_null(False), bool)
        joined_at = ints(rows["joined_at"])
        return cls(positions, groups, group.dictionary, members, has_left, joined_at, session, poll)

    def among(self, groups: Groups) -> tuple[LastOwners, Ints]:
        """Return the rows of these groups, and the numbers of their groups among them."""
        numbers = ints(pa.compute.index_in(self.group_ids, pa.array(groups.names, pa.string())))
        of_rows = numbers[self.groups]
        is_there = of_rows != UNKNOWN
        columns = {name: column[is_there] for name, column in vars(self).items() if isinstance(column, np.ndarray)}
        return LastOwners(group_ids=self.group_ids, **columns), of_rows[is_there]


class Departed(NamedTuple):
    """By position: `has_left`, its last owner left by itself; `is_pausing`, its group pauses as it used to."""

    has_left: Bools
    is_pausing: Bools


class Departures:
    """Finds the positions without a reader on purpose; keeps what was sampled before a group became Empty."""

    def __init__(self, find_log_ends: FindLogEnds) -> None:
        self._find = find_log_ends
        # What was sampled before the group became Empty, and when that was.
        self._lowest = self._highest = self._until = np.empty(0, np.int64)

    def find(
        self,
        groups: Groups,
        commits: LastCommits,
        owners: LastOwners,
        *,
        count: int,
        number: Callable[[pa.Table], Ints],
    ) -> Departed:
        """Return what is known of the positions of Empty groups without a commit since.

        In: the last commits and owners of Empty groups, the number of positions, and how rows become positions.
        """
        ends, offsets = groups.emptied_at[commits.groups], groups.emptied_offsets[commits.groups]
        is_later = np.where(offsets == UNKNOWN, commits.committed_at > ends, commits.record_offsets > offsets)
        is_used = np.array([status.is_returning for status in groups.statuses], bool)
        is_used[commits.groups[is_later]] = True
        commits = commits.of(~is_used[commits.groups])
        owners, of_owners = owners.among(groups)
        committed, committed_at = (np.full(count, UNKNOWN) for _ in range(2))
        committed[commits.positions] = commits.offsets
        plain = commits.of(commits.is_plain)
        committed_at[plain.positions] = plain.committed_at
        end = groups.emptied_at[of_owners]
        is_alive, has_polled = _signs_of_life(owners, committed_at, end)
        is_in_question = is_alive & ~has_polled & ~owners.has_left & (owners.poll > 0)
        self._ask(groups, commits, _polls(groups, owners, of_owners, is_in_question), count, number)
        lowest, highest = self._sampled(groups, commits, count)
        has_read = np.full(int(owners.members.max(initial=-1)) + 1, False)
        is_recent = (lowest != UNKNOWN) & (committed > lowest) & (committed_at != UNKNOWN)
        has_read[owners.members[is_recent[owners.positions]]] = True
        by_itself = owners.has_left | (is_alive & (has_polled | has_read[owners.members]))
        has_left, is_pausing = np.full(count, False), np.full(count, False)
        have_all_left = np.array([status.endings == {"left"} for status in groups.statuses], bool)
        has_left[commits.positions] = have_all_left[commits.groups]
        has_left[owners.positions] = True
        has_left[owners.positions[~by_itself]] = False
        has_left[committed == UNKNOWN] = False
        is_pausing[commits.positions] = groups.have_paused[commits.groups]
        is_pausing &= (highest != UNKNOWN) & (committed >= highest)
        return Departed(has_left, is_pausing)

    def _ask(
        self,
        groups: Groups,
        commits: LastCommits,
        polls: Ints,
        count: int,
        number: Callable[[pa.Table], Ints],
    ) -> None:
        """Ask what was sampled before groups became Empty that have paused, or whose members may not have polled."""
        ends = groups.emptied_at[commits.groups]
        is_open = commits.is_behind & ((polls != UNKNOWN) | groups.have_paused)[commits.groups]
        is_open &= at_numbers(self._until, commits.positions) != ends
        asked = np.unique(commits.groups[is_open])[:_MOST_ASKED]
        if not len(asked):
            return
        periods = {}
        for group in asked.tolist():
            poll = _POLL_MICROS if polls[group] == UNKNOWN else polls[group]
            end = int(groups.emptied_at[group])
            since = end - max(int(poll) - _CLOCKS_DIFFER_MICROS, 0)
            periods[groups.names[group]] = (moment(since), moment(end))
        rows = self._find(periods)
        positions = number(rows)
        is_asked = np.isin(commits.groups, asked)
        self._lowest, self._highest, self._until = (
            lengthened(column, max(count, int(positions.max(initial=-1)) + 1))
            for column in (self._lowest, self._highest, self._until)
        )
        self._lowest[commits.positions[is_asked]] = self._highest[commits.positions[is_asked]] = UNKNOWN
        self._until[commits.positions[is_asked]] = ends[is_asked]
        self._lowest[positions], self._highest[positions] = ints(rows["lowest"]), ints(rows["highest"])

    def _sampled(self, groups: Groups, commits: LastCommits, count: int) -> tuple[Ints, Ints]:
        """Return the lowest and the highest log end by position, of those sampled before the groups became Empty."""
        lowest, highest = (np.full(count, UNKNOWN) for _ in range(2))
        is_known = at_numbers(self._until, commits.positions) == groups.emptied_at[commits.groups]
        there = commits.positions[is_known]
        lowest[there], highest[there] = at_numbers(self._lowest, there), at_numbers(self._highest, there)
        return lowest, highest


def _signs_of_life(owners: LastOwners, committed_at: Ints, end: Ints) -> tuple[Bools, Bools]:
    """Return whether each row's member had a session at the end, and had polled since its poll timeout began.

    In: the times of plain commits by position, the end by row.
    """
    newest = np.full(int(owners.members.max(initial=-1)) + 1, UNKNOWN)
    np.maximum.at(newest, owners.members, committed_at[owners.positions])
    last = newest[owners.members]
    is_alive = (owners.session > 0) & (last != UNKNOWN) & (end - last < owners.session - _CLOCKS_DIFFER_MICROS)
    since_join = end - owners.joined_at
    has_polled = (owners.joined_at != UNKNOWN) & (since_join < owners.poll - _CLOCKS_DIFFER_MICROS)
    return is_alive, has_polled


def _polls(groups: Groups, owners: LastOwners, of_owners: Ints, rows: Bools) -> Ints:
    """Return the shortest poll timeout of each group's members in these rows; `UNKNOWN` for groups without."""
    longest = np.iinfo(np.int64).max
    found = np.full(len(groups.names), longest)
    np.minimum.at(found, of_owners[rows], owners.poll[rows])
    return np.where(found == longest, UNKNOWN, found)
