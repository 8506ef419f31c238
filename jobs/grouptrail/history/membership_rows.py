"""Rows of `memberships`: the members of a group and when they joined and left."""

from __future__ import annotations

from grouptrail.history.changes import Change
from grouptrail.history.endings import Ending, concluded, ending
from grouptrail.history.evidence import EndingEvidence
from grouptrail.history.generation_rows import origin, record_fact
from grouptrail.history.group import Group, Member
from grouptrail.history.operations import Operation
from grouptrail.history.rows import MembershipRow, Values
from grouptrail.history.state import FoldState

# The epoch of a member that joins before the group's first epoch: brokers count from 1 in Kafka 4.3.
_EPOCH_BEFORE_THE_FIRST = 1


def update_memberships(state: FoldState, change: Change, *, is_beginning: bool) -> None:
    """End and begin the rows of members that came and went."""
    generation, left_at = change.after.generation, change.boundary
    if change.may_miss_records:
        _update_over_a_gap(state, change)
        return
    rejoined, replaced = concluded(EndingEvidence.REJOINED), concluded(EndingEvidence.REPLACED)
    for member in change.left:
        end_membership(state, member, change.operation, ending(member, change), at=left_at, generation=generation)
    for old, _ in change.rejoined:
        end_membership(state, old, change.operation, rejoined, at=left_at, generation=generation)
    for old, _ in change.replaced:
        end_membership(state, old, change.operation, replaced, at=change.at, generation=generation)
    for member in change.joined:
        _begin(state, change, member, _began(change, member, is_beginning=is_beginning))
    for _, new in change.rejoined:
        _begin(state, change, new, "rejoined")
    for _, new in change.replaced:
        _begin(state, change, new, "replaced")
    _update_clients(state, change)


def _update_over_a_gap(state: FoldState, change: Change) -> None:
    """Do the same where records in between may be missing: nothing shows who followed whom, or when."""
    unknown = concluded(EndingEvidence.COMPACTED)
    for member in (*change.left, *(old for old, _ in (*change.rejoined, *change.replaced))):
        end_membership(state, member, change.operation, unknown, at=change.boundary, generation=None)
    for member in (*change.joined, *(new for _, new in (*change.rejoined, *change.replaced))):
        _begin(state, change, member, "there")
    _update_clients(state, change)


def _update_clients(state: FoldState, change: Change) -> None:
    for name in change.touched:
        row, known = state.rows.memberships.get(name), change.after.members.get(name)
        if row is not None and known is not None:
            state.rows.update(row, **_client(known))


def _client(member: Member) -> Values:
    """Return the columns that a member may change while it stays."""
    return {**member.client, "topology_epoch": member.topology_epoch}


def note_early_members(state: FoldState, change: Change) -> None:
    """Record the members that joined or left without a new group epoch, and drop those that are gone.

    A member that subscribes to a pattern joins first; the epoch follows when the pattern has been resolved.
    """
    pairs = (*change.replaced, *change.rejoined) if change.keeps_generation else ()
    if change.keeps_generation:
        gone = (*change.left, *(old for old, _ in pairs))
        state.left_before_rebalance.update(member.member_id for member in gone)
    if change.after.kind == "classic":
        return
    state.joined_before_epoch.update(new.member_id for _, new in pairs)
    # Any epoch counts, even an unchanged one: a group that was deleted and recreated unread can repeat its old epoch.
    has_epoch = any(record.has_generation for record in change.operation) and not change.keeps_generation
    for member in () if has_epoch else change.joined:
        if state.rows.memberships[member.member_id].began == "joined":
            state.joined_before_epoch.add(member.member_id)
    if state.joined_before_epoch:
        state.joined_before_epoch &= change.after.members.keys()


def note_patterns(state: FoldState, change: Change) -> None:
    """Record which members wait for their pattern to be resolved, and how they came to it."""
    after = change.after
    if after.kind != "consumer":
        return
    subscribed = [(member, "resubscribed") for member in change.resubscribed]
    # A conversion writes every member that the classic group still has, also one that it replaces at once.
    written = {record.name for record in change.operation}
    subscribed += [
        (new, "resubscribed")
        for old, new in change.replaced
        if old.topic_regex != new.topic_regex and (old.member_id in written or not change.is_conversion)
    ]
    subscribed += [
        (member, "joined") for member in change.joined if state.rows.memberships[member.member_id].began == "joined"
    ]
    for member, how in subscribed:
        state.waiting[member.member_id] = how
    for old, new in change.replaced:
        if old.topic_regex == new.topic_regex and old.member_id in state.waiting:
            state.waiting[new.member_id] = state.waiting[old.member_id]
    state.waiting = {name: how for name, how in state.waiting.items() if _waits(after, name)}


def _waits(group: Group, name: str) -> bool:
    """Return whether a member has a pattern that is not resolved."""
    member = group.members.get(name)
    return member is not None and member.topic_regex is not None and member.topic_regex not in group.regexes


def end_membership(
    state: FoldState, member: Member, operation: Operation, how: Ending, *, at: int, generation: int | None
) -> None:
    """End the row of a member, if it is open, by an operation without it."""
    row = state.rows.memberships.pop(member.member_id, None)
    if row is not None:
        evidence = [record_fact(state, operation, how.recorded)]
        left_at = max(at, row.joined_at)
        state.rows.close(row, left_at=left_at, left_generation=generation, evidence=evidence, **how.columns)


def _began(change: Change, member: Member, *, is_beginning: bool) -> str:
    if is_beginning and change.began_at == change.at:
        return "joined"
    if change.before.generation is not None:
        return "there" if _is_described_again(change, member) else "joined"
    is_earliest = change.after.generation is None and _joins_at_once(member, change.after)
    return "joined" if is_earliest else "there"


def _is_described_again(change: Change, member: Member) -> bool:
    """Return whether a member only looks new, because compaction removed its earlier records.

    A member that joins a consumer group gets its first assignment at once, with previous epoch 0. A member that joins
    a share or streams group bumps its epoch. Classic groups write all members each time.
    """
    before, after = change.before, change.after
    if after.kind == "classic" or after.is_polled or change.is_conversion:
        return False
    if after.kind != "consumer":
        return before.generation == after.generation
    return member.member_id in before.fragments or not any(
        record.type == "ConsumerGroupCurrentMemberAssignment"
        and record.name == member.member_id
        and (record.body or {}).get("previousMemberEpoch") == 0
        for record in change.operation
    )


def _joins_at_once(member: Member, group: Group) -> bool:
    """Return whether a member that joins before any epoch of its group is the group's first."""
    if group.is_polled or member.epoch is None or member.previous_epoch not in (None, 0, member.epoch):
        return False
    return 0 <= member.epoch <= _EPOCH_BEFORE_THE_FIRST


def _begin(state: FoldState, change: Change, member: Member, began: str) -> None:
    row = MembershipRow(
        **origin(state, change.operation),
        member_id=member.member_id,
        instance_id=member.instance_id,
        **_client(member),
        joined_at=change.at,
        joined_generation=change.after.generation,
        began=began,
    )
    state.rows.memberships[member.member_id] = row
    state.rows.mark(row)
