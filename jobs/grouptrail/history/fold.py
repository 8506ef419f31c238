"""Fold a group's records, in log order, into the rows of the history tables.

A pure function of the records and of the state before them: the rows are the same however the records are cut into
batches. Start reading at `fold_group`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from grouptrail.history.causes import is_beginning
from grouptrail.history.changes import Change, change_of
from grouptrail.history.endings import concluded, removal_note
from grouptrail.history.evidence import EndingEvidence, RemovalEvidence
from grouptrail.history.gaps import (
    is_another_group,
    note_gap,
    note_unreadable,
    only_described,
    shows_unread_members,
)
from grouptrail.history.generation_rows import begin_generation, count_partitions, describe_generation, end_generation
from grouptrail.history.group import Group, settled_by_epoch
from grouptrail.history.membership_rows import (
    end_membership,
    note_early_members,
    note_patterns,
    update_memberships,
)
from grouptrail.history.operations import COMMIT_TOMBSTONE, UNREADABLE, Operation, Record, operations, removal_of
from grouptrail.history.ownership_rows import give_up, update_ownership
from grouptrail.history.reading import apply_operation
from grouptrail.history.rebalance_rows import (
    begin_rebalance,
    end_rebalances,
    refine_cause,
    settle_rebalances,
    update_rebalance,
)
from grouptrail.history.rows import Row
from grouptrail.history.state import FoldState, Owner
from grouptrail.history.state_rows import add_dead, end_state, update_state
from grouptrail.history.task_rows import end_tasks, update_tasks
from grouptrail.history.topology_rows import end_topology, update_topology

# Defaults of delete.retention.ms, and of group.consumer.max.session.timeout.ms with as much again for a restart.
_TOMBSTONES_MS = 24 * 3600 * 1000
_LONGEST_SESSION_MS = 120_000

_UNREAD = -1
"""The `read_late_at` of a record that compaction took before it could be read."""

WEEK_MS = 7 * 24 * 3600 * 1000


@dataclass(frozen=True)
class FoldResult:
    """The state after the records, and all rows that they began or changed, each once.

    `waits`: the last operation may be incomplete; it is processed when more of its partition has been read.
    """

    state: FoldState
    rows: list[Row]
    waits: bool


def fold_group(
    state: FoldState,
    records: Iterable[Record],
    *,
    complete_to: int,
    names: Mapping[str, str],
    retention_ms: int = WEEK_MS,
) -> FoldResult:
    """Return the state and rows after a group's records, which are in offset order.

    Records that were processed before are skipped. `complete_to` is as for `operations`, `names` maps topic ids to
    names. `retention_ms` is the broker's `offsets.retention.minutes` in ms; it distinguishes deletion from expiry.
    """
    fold = _Fold(state.copy(), names, retention_ms)
    return fold.result(records, complete_to)


class _Fold:
    """One call of `fold_group`."""

    def __init__(self, state: FoldState, names: Mapping[str, str], retention_ms: int) -> None:
        self._state = state
        self._names = names
        self._retention_ms = retention_ms

    def result(self, records: Iterable[Record], complete_to: int) -> FoldResult:
        state = self._state
        start, pending, state.pending = state.processed_to, state.pending, ()
        fresh = (record for record in records if record.offset >= start)
        for operation, is_complete in operations((*pending, *fresh), complete_to, self._bumps_epoch):
            state.processed_to = operation[-1].offset + 1
            if is_complete:
                self._process(operation)
            else:
                state.pending = operation
        describe_generation(state)
        return FoldResult(state, state.rows.changed(), bool(state.pending))

    def _process(self, operation: Operation) -> None:
        """Apply everything that one operation changed."""
        state, at = self._state, operation[-1].at
        if all(record.type == COMMIT_TOMBSTONE for record in operation):
            state.commit_tombstone_at = at
            return
        if operation[0].type == UNREADABLE:
            note_unreadable(state, at)
            return
        if note_gap(state, operation):
            self._doubt_members(operation)
        operation = (*self._lost_tombstones(operation), *operation)
        may_miss_records = state.keys_since_gap is not None
        after = apply_operation(state.group, operation, self._name_of, may_miss_records=may_miss_records)
        if after.kind is None and state.group.kind is None and not any(record.removes_group for record in operation):
            return
        if shows_unread_members(state, after, operation):
            after = replace(after, lacks_records=True)
        settle_rebalances(state, at)
        if is_another_group(state, after, operation):
            after = self._begin_again(after, operation)
        if state.group.kind is None and state.was_removed:
            # Even if this operation removes it again: in between it only had commits, which are not read here.
            state.incarnation, state.was_removed = state.incarnation + 1, False
        if after.kind is None:
            self._end_incarnation(operation, self._removal_note(operation))
        else:
            self._update(change_of(state.group, after, operation))
        state.last_at = at

    def _begin_again(self, after: Group, operation: Operation) -> Group:
        """End a group whose removal was not read, and return the one after it without what was known before.

        Members of which records were read since the gap may be those of the new group.
        """
        state, keys = self._state, self._state.keys_since_gap
        note = RemovalEvidence.LOWER_GENERATION.value
        if keys is None or after.kind == "classic":
            self._end_incarnation(operation, note)
            if after.kind != "classic":
                return after
            return apply_operation(Group(), operation, self._name_of, may_miss_records=keys is not None)
        described = only_described(state.group, keys)
        new = {name: row for name, row in state.rows.memberships.items() if row.record_offset >= state.gap_offset}
        owned = {key: row for key, row in state.rows.ownership.items() if row.member_id in new}
        tasks = {key: row for key, row in state.rows.tasks.items() if row.member_id in new}
        topology = [row for row in state.rows.topology if row.record_offset >= state.gap_offset]
        state.rows.topology = [row for row in state.rows.topology if row not in topology]
        old = {name: member for name, member in state.group.members.items() if name not in new}
        state.group = replace(state.group, members=old)
        self._end_incarnation(operation, note)
        state.incarnation, state.was_removed = state.incarnation + 1, False
        members = {name: member for name, member in described.members.items() if name in new}
        state.group = replace(described, members=members, settled=settled_by_epoch(members.values()), generation=None)
        state.rows.memberships, state.rows.ownership = new, owned
        state.rows.tasks, state.rows.topology = tasks, topology
        for row in (*new.values(), *owned.values(), *tasks.values(), *topology):
            state.rows.update(row, incarnation=state.incarnation)
        for row in owned.values():
            state.owners[row.topic, row.partition] = Owner(row.instance_id or row.member_id, row.member_id, None)
        return only_described(after, keys)

    def _doubt_members(self, operation: Operation) -> None:
        """Mark the members of a broker-assigned group as unconfirmed after a gap in the records.

        A gap longer than the retention of tombstones can hide that a member left.
        """
        state = self._state
        stopped_ms = (operation[0].read_late_at or 0) - (state.last_at or 0)
        if state.group.kind != "classic" and stopped_ms > _TOMBSTONES_MS:
            state.unconfirmed, state.unsure_from = set(state.group.members), operation[0].offset

    def _lost_tombstones(self, operation: Operation) -> Operation:
        """Return the tombstones of unconfirmed members that must have left.

        A live member writes a record for each epoch that it reaches. The coordinator removes a member that does not
        reach the group's epoch within its session or rebalance timeout.
        """
        state, group, generation = self._state, self._state.group, self._state.rows.generation
        if not state.unconfirmed or generation is None or group.kind is None or operation[0].read_late_at is not None:
            return ()
        if generation.record_offset < (state.unsure_from or 0):
            return ()
        waited_ms = operation[0].at - generation.started_at
        described = {record.name for record in operation}
        gone = [
            name
            for name in sorted((state.unconfirmed & group.members.keys()) - described)
            if (group.members[name].epoch or 0) < (generation.generation or 0)
            and waited_ms > (group.members[name].rebalance_timeout_ms or 0) + _LONGEST_SESSION_MS
        ]
        first, type_ = operation[0], f"{group.kind.title()}GroupMemberMetadata"
        return tuple(Record(first.offset, first.at, type_, name, None, read_late_at=_UNREAD) for name in gone)

    def _bumps_epoch(self, metadata: Record) -> bool:
        """Return whether a member's metadata bumps the group epoch, if its request is the next one.

        It does if its topics change, or its pattern changes to one that is already resolved
        (GMM.hasMemberSubscriptionChanged, maybeUpdateRegularExpressions).
        """
        group = self._state.group
        before = group.members.get(metadata.name or "")
        if before is None:
            return True
        after = apply_operation(group, (metadata,), self._name_of).members[before.member_id]
        return after.topics != before.topics or (
            after.topic_regex != before.topic_regex and after.topic_regex in group.regexes
        )

    def _name_of(self, topic_id: str) -> str:
        """Return the name of a topic in rows. A topic that was first shown by its id keeps showing it."""
        if topic_id in self._state.unnamed:
            return topic_id
        name = self._names.get(topic_id)
        if name is None:
            self._state.unnamed.add(topic_id)
            return topic_id
        return name

    def _update(self, change: Change) -> None:
        state, before, after = self._state, change.before, change.after
        state.unconfirmed.difference_update(change.touched)
        is_first = before.generation is None
        is_new = after.generation is not None and (
            is_first or change.is_conversion or after.generation != before.generation
        )
        is_start = is_first and is_beginning(change, state.joined_before_epoch)
        previous_at = state.last_at
        state.seems_complete |= is_start
        if is_new:
            state.is_measured = state.keys_since_gap is None or (
                after.kind == "classic" and not change.is_beginning_open
            )
        if is_new or state.unexplained is not None:
            describe_generation(state)
        _note_subscriptions(state, change)
        if is_new:
            begin_generation(state, change, is_beginning=is_start)
            begin_rebalance(state, change)
            state.joined_before_epoch.clear()
            state.left_before_rebalance.clear()
        state.group = after
        count_partitions(state, change)
        update_memberships(state, change, is_beginning=is_start)
        if not is_new or change.keeps_generation:
            note_early_members(state, change)
        note_patterns(state, change)
        update_ownership(state, change, is_rebalance=is_new or after.kind != "classic")
        update_tasks(state, change)
        update_topology(state, change)
        refine_cause(state, change)
        update_state(state, change, is_new=is_new, is_beginning=is_start, previous_at=previous_at)
        update_rebalance(state, change)

    def _removal_note(self, operation: Operation) -> str:
        state = self._state
        # The batches of one cleanup may become readable one after the other; they have the same timestamp.
        has_offsets = state.commit_tombstone_at == operation[-1].at or any(
            record.type == COMMIT_TOMBSTONE for record in operation
        )
        return removal_note(state.group, operation, has_offsets=has_offsets, retention_ms=self._retention_ms)

    def _end_incarnation(self, operation: Operation, note: str) -> None:
        state, at, is_polled = self._state, operation[-1].at, operation[-1].is_polled
        evidence = EndingEvidence.GROUP_REMOVED_POLLED if is_polled else EndingEvidence.GROUP_REMOVED
        removal = (removal_of(operation),)
        describe_generation(state)
        for member in state.group.members.values():
            for partition in sorted(member.owned or ()):
                give_up(state, member, partition, at, generation=None, ended="group_ended")
            end_tasks(state, member, at)
            # Only an empty group is removed: records of how its members left are missing, or between two polls.
            end_membership(state, member, removal, concluded(evidence, note=note), at=at, generation=None)
        end_topology(state, at)
        end_generation(state, at)
        end_state(state, at if state.gap_from is None else state.gap_from)
        end_rebalances(state)
        add_dead(state, operation, note)
        state.gap_from = None
        state.was_removed = True
        state.forget_group()


def _note_subscriptions(state: FoldState, change: Change) -> None:
    """Record since when members subscribe to each topic."""
    since, after = state.subscribed_since, change.after
    if change.resubscribed and since:
        wanted = {topic for topics in {member.topics for member in after.members.values()} for topic in topics or ()}
        wanted.update(topic for topics in after.regexes.values() for topic in topics)
        for topic in since.keys() - wanted:
            del since[topic]
    for member in (*change.joined, *change.resubscribed):
        for topic in member.topics or ():
            since.setdefault(topic, change.at)
    if after.regexes is not change.before.regexes:
        for topics in after.regexes.values():
            for topic in topics:
                since.setdefault(topic, change.at)
