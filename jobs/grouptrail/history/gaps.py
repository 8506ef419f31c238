"""Gaps in a group's records: where history begins, and after a stop, compaction may have taken records.

Compaction keeps the newest record of each key, and takes none of those that were written last. So the first record of
a key that was read before, or one that was read at once, shows that no record is missing from the one before it on:
what is known of the group then was true since that one.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from grouptrail.history.group import Group, settled_by_epoch
from grouptrail.history.operations import Operation
from grouptrail.history.rebalance_rows import end_rebalance
from grouptrail.history.state import FoldState
from grouptrail.history.state_rows import end_state, note_stable


def note_gap(state: FoldState, operation: Operation) -> bool:
    """Note whether records may be missing before an operation, or not any more; return whether a stop was before it.

    A gap begins where a read begins that was late: records that were read together are complete from the first key on
    that they have twice.
    """
    read_late_at = operation[0].read_late_at
    is_after_stop = read_late_at not in (None, state.doubted_at) and state.last_at is not None
    if is_after_stop:
        state.gap_from, state.gap_offset, state.keys_since_gap = state.last_at, operation[0].offset, set()
        state.is_measured = state.seems_complete = False
    if read_late_at is not None:
        state.doubted_at = read_late_at
    if state.keys_since_gap is not None:
        _look_for_the_end(state, operation, state.keys_since_gap)
    return is_after_stop


def note_unreadable(state: FoldState, at: int) -> None:
    """Note a record of the group that could not be decoded: what it changed is not known, from then on (ms)."""
    state.group = replace(state.group, lacks_records=True)
    end_state(state, at)
    state.gap_from = state.last_at = at
    state.is_measured = False


def shows_unread_members(state: FoldState, after: Group, operation: Operation) -> bool:
    """Return whether an epoch shows members that were not read: one joins, leaves, or sends the heartbeat for it."""
    if after.kind in (None, "classic") or after.is_polled or after.members or state.keys_since_gap is not None:
        return False
    is_gone = any(record.name is not None and record.body is None for record in operation)
    return any(record.has_generation for record in operation) and not is_gone


def _look_for_the_end(state: FoldState, operation: Operation, known: set[str]) -> None:
    keys = {_key(record.type, record.name) for record in operation}
    is_after_late_ones = state.doubted_at is not None and operation[0].read_late_at is None
    is_at_once = operation[0].read_at_once or is_after_late_ones
    if is_at_once or keys & known or (operation[0].is_polled and operation[0].read_late_at is None):
        _end_gap(state)
    else:
        known |= keys


def _key(type_: str, name: str | None = None) -> str:
    return f"{type_} {name or ''}"


def _end_gap(state: FoldState) -> None:
    """Take what was inferred since the last operation as recorded: nothing is missing between it and the next one."""
    state.keys_since_gap = None
    state.group = replace(state.group, may_miss_records=False)
    row, generation = state.rows.state, state.rows.generation
    if row is not None and row.evidence == "inferred":
        state.rows.update(row, evidence="recorded")
    state.is_measured = generation is None or generation.started_at == state.last_at
    if state.is_measured and state.last_at is not None:
        note_stable(state, state.group, state.last_at)
        end_rebalance(state, state.group, state.last_at)


# A new coordinator's clock may be behind, and the state Stable begins when the generation's record is replicated.
_LONGEST_DELAY_MS = 60_000


def is_another_group(state: FoldState, after: Group, operation: Operation) -> bool:
    """Return whether the group was deleted and began again, although compaction took its tombstone.

    Numbers of generations only increase. Where records may be missing, the number of before may be that of another
    group, too: an epoch is written once. The generation of a classic group is written again when a static member
    returns, with its other members, and with the time of the state Stable.
    """
    before = state.group
    if before.kind != after.kind or before.generation is None or after.generation is None:
        return False
    if after.generation != before.generation or state.keys_since_gap is None or after.is_polled:
        return after.generation < before.generation
    if not any(record.has_generation for record in operation):
        return False
    if after.kind != "classic":
        return not _may_be_written_again(operation)
    if before.members.keys() & after.members.keys():
        return False
    instances = {member.instance_id for member in before.members.values()} - {None}
    returned = {member.instance_id for member in after.members.values()} & instances
    is_newer = (after.state_at or 0) > (state.last_at or 0) + _LONGEST_DELAY_MS
    return is_newer or (bool(before.members or after.members) and not returned)


def _may_be_written_again(operation: Operation) -> bool:
    """Return whether a record with an epoch may have followed another with the same one.

    The coordinator of a streams group writes there, too, that its topology's description was stored (KIP-1331).
    """
    names = ("storedDescriptionTopologyEpoch", "failedDescriptionTopologyEpoch")
    return any((record.body or {}).get(name, -1) >= 0 for record in operation for name in names)


def only_described(group: Group, keys: Set[str]) -> Group:
    """Return a group that the broker assigns, as described by the records of these keys alone."""
    kind = (group.kind or "").capitalize()

    def has(part: str, name: str | None = None) -> bool:
        return _key(f"{kind}Group{part}", name) in keys

    members = {name: member for name, member in group.members.items() if has("MemberMetadata", name)}
    return replace(
        group,
        assignment_epoch=group.assignment_epoch if has("TargetAssignmentMetadata") else None,
        members=members,
        fragments={
            name: member
            for name, member in group.fragments.items()
            if has("TargetAssignmentMember", name) or has("CurrentMemberAssignment", name)
        },
        regexes={pattern: topics for pattern, topics in group.regexes.items() if has("RegularExpression", pattern)},
        settled=settled_by_epoch(members.values()),
    )
