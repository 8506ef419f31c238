"""Which positions of groups without members have no reader on purpose.

A leave writes what an expired session writes, and what a client writes that leaves because its application does not
poll. A classic member's own commits outside transactions keep its session alive, so that one that committed within
its session timeout cannot have expired. It has polled if its poll timeout has not passed since its first join, or if
it has read a record that was written since then; a client may join again while its application does not poll.

A group that has come back from several pauses, and had read all that there was when this one began, pauses again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.lag.index import MICROS, UNKNOWN, Bools, Ints, ints, lengthened, whole
from grouptrail.lag.members import Groups
from grouptrail.lag.offsets import CLOCKS_DIFFER_SECONDS
from grouptrail.lag.seconds import Written

READ_BEFORE_END = ("recent", "all", "recent and all")
"""What a group had read when its last member was gone: `recent` records, written within the member's poll timeout."""

_MICROS_A_MS = 1_000
# Two coordinators' clocks, and that of the log-offsets job.
_CLOCKS_DIFFER_MICROS = CLOCKS_DIFFER_SECONDS * MICROS
# The sample before the end must be as close to it.
_CLOSE_MICROS = 30 * MICROS
ALL_KEPT_SECONDS = 500
"""For so long no sample from just before the end is missing."""
_RECENT, _ALL = 1, 2


@dataclass(frozen=True)
class LastCommits:
    """The newest commits of Empty groups, by entry: numbers of group and position, times in microseconds.

    `is_plain`: known to have been made outside a transaction. `read` and `unread`: when the last record that was read
    and the first one that was not were written, as far as that was looked up.
    """

    groups: Ints
    positions: Ints
    offsets: Ints
    committed_at: Ints
    record_offsets: Ints
    is_plain: Bools
    read: Written
    unread: Written

    def of(self, entries: Bools) -> LastCommits:
        """Return some entries."""
        columns = {name: column[entries] for name, column in vars(self).items() if isinstance(column, np.ndarray)}
        return LastCommits(**columns, read=self.read.of(entries), unread=self.unread.of(entries))


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
        numbers = ints(pc.index_in(self.group_ids, pa.array(groups.names, pa.string())))
        of_rows = numbers[self.groups]
        is_there = of_rows != UNKNOWN
        columns = {name: column[is_there] for name, column in vars(self).items() if isinstance(column, np.ndarray)}
        return LastOwners(group_ids=self.group_ids, **columns), of_rows[is_there]


class Departed(NamedTuple):
    """By position: `has_left`, its last owner left by itself; `had_read_all` when it was gone.

    `evidence` are numbers in `READ_BEFORE_END`, from 1 on; 0: none.
    """

    has_left: Bools
    had_read_all: Bools
    evidence: Ints


class Departures:
    """Finds the positions without a reader on purpose.

    What the samples of the logs show of the time before a group became Empty is kept: they are thinned later.
    """

    def __init__(self) -> None:
        self._evidence, self._known_at = (np.empty(0, np.int64) for _ in range(2))

    def restore(self, positions: Ints, evidence: pa.Array, at: int) -> None:
        """Add what was stored (`READ_BEFORE_END`) at a sample (microseconds)."""
        count = int(positions.max(initial=-1)) + 1
        self._evidence, self._known_at = (lengthened(one, count) for one in (self._evidence, self._known_at))
        self._evidence[positions] = ints(pc.index_in(whole(evidence), pa.array(READ_BEFORE_END))) + 1
        self._known_at[positions] = at

    def find(self, groups: Groups, commits: LastCommits, owners: LastOwners, count: int) -> Departed:
        """Return what is known of the positions (`count`) of Empty groups without a commit since."""
        commits = commits.of(~_may_be_read(groups, commits)[commits.groups])
        owners, of_owners = owners.among(groups)
        polls = np.full(count, UNKNOWN)
        polls[owners.positions] = owners.poll
        evidence = self._known_evidence(groups, commits, polls, count)
        committed_at = np.full(count, UNKNOWN)
        plain = commits.of(commits.is_plain)
        committed_at[plain.positions] = plain.committed_at
        has_left = np.full(count, False)
        is_unowned = np.full(len(groups.names), True)
        is_unowned[of_owners] = False
        have_all_left = np.array([status.endings == {"left"} for status in groups.statuses], bool)
        has_left[commits.positions] = (have_all_left & is_unowned)[commits.groups]
        by_itself = _left_by_themselves(owners, committed_at, evidence, groups.emptied_at[of_owners])
        has_left[owners.positions] = True
        has_left[owners.positions[~by_itself]] = False
        is_there = np.full(count, False)
        is_there[commits.positions] = True
        return Departed(has_left & is_there, (evidence & _ALL > 0) & is_there, evidence)

    def _known_evidence(self, groups: Groups, commits: LastCommits, polls: Ints, count: int) -> Ints:
        """Return the evidence by position, and keep it for later samples."""
        ends, positions = groups.emptied_at[commits.groups], commits.positions
        self._evidence, self._known_at = (lengthened(one, count) for one in (self._evidence, self._known_at))
        known = np.where(self._known_at[positions] >= ends, np.maximum(self._evidence[positions], 0), 0)
        since = ends - polls[positions] + _CLOCKS_DIFFER_MICROS
        has_read = (polls[positions] > 0) & (commits.read.after != UNKNOWN) & (commits.read.after >= since)
        was_close = (commits.unread.after != UNKNOWN) & (commits.unread.after >= ends - _CLOSE_MICROS)
        was_close &= (commits.unread.before == UNKNOWN) | (commits.unread.before > ends)
        combined = known | np.where(has_read, _RECENT, 0) | np.where(was_close, _ALL, 0)
        self._evidence[positions], self._known_at[positions] = combined, groups.at
        evidence = np.zeros(count, np.int64)
        evidence[positions] = combined
        return evidence


def _may_be_read(groups: Groups, commits: LastCommits) -> Bools:
    """Return whether each group has had a commit, or members, since it became Empty."""
    ends, offsets = groups.emptied_at[commits.groups], groups.emptied_offsets[commits.groups]
    is_later = np.where(offsets == UNKNOWN, commits.committed_at > ends, commits.record_offsets > offsets)
    may_be_read = np.array([status.is_returning for status in groups.statuses], bool)
    may_be_read[commits.groups[is_later]] = True
    return may_be_read


def _left_by_themselves(owners: LastOwners, committed_at: Ints, evidence: Ints, end: Ints) -> Bools:
    """Return whether the member of each row left by itself.

    In: the times of plain commits and the evidence by position, the group's end by row.
    """
    count = int(owners.members.max(initial=-1)) + 1
    newest, has_read = np.full(count, UNKNOWN), np.full(count, False)
    np.maximum.at(newest, owners.members, committed_at[owners.positions])
    has_read[owners.members[evidence[owners.positions] & _RECENT > 0]] = True
    silent, since_join = end - newest[owners.members], end - owners.joined_at
    was_alive = (owners.session > 0) & (newest[owners.members] != UNKNOWN) & _is_within(silent, owners.session)
    has_polled = (owners.joined_at != UNKNOWN) & (owners.poll > 0) & _is_within(since_join, owners.poll)
    left: Bools = (owners.has_left | was_alive) & (has_polled | has_read[owners.members])
    return left


def _is_within(elapsed: Ints, timeout: Ints) -> Bools:
    """Return whether a timeout has not passed, by clocks that may differ, and of which none was set back."""
    is_within: Bools = (elapsed >= -_CLOCKS_DIFFER_MICROS) & (elapsed < timeout - _CLOCKS_DIFFER_MICROS)
    return is_within
