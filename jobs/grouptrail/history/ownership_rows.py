"""Rows of `partition_ownership`, and the handovers in the row of the newest rebalance."""

from __future__ import annotations

from grouptrail.history.changes import Change
from grouptrail.history.generation_rows import origin
from grouptrail.history.group import Member, Partition
from grouptrail.history.rows import OwnershipRow
from grouptrail.history.state import FoldState, Owner

_NONE = frozenset[Partition]()


def update_ownership(state: FoldState, change: Change, *, is_rebalance: bool) -> None:
    """End the rows of partitions that members gave up, then begin those of partitions that they took over.

    `is_rebalance`: partitions taken over count in the newest rebalance's row.
    """
    before, after, boundary = change.before.members, change.after.members, change.boundary
    if is_rebalance:
        _end_revocations(state, boundary)
    for name in change.touched:
        had, has = before.get(name), after.get(name)
        lost = _owned(had) - _owned(has)
        if had is None or not lost:
            continue
        until, ended = end_of_assignment(change, has, is_known=has is not None and has.owned is not None)
        for partition in sorted(lost):
            give_up(state, had, partition, until, generation=change.after.generation, ended=ended)
        if ended == "given_up" and change.after.is_cooperative and change.after.kind == "classic":
            state.revoked |= lost
    for name in change.touched:
        has = after.get(name)
        if has is not None:
            for partition in sorted(_owned(has) - _owned(before.get(name))):
                _take_over(state, change, has, partition, is_rebalance=is_rebalance)


def end_of_assignment(change: Change, has: Member | None, *, is_known: bool) -> tuple[int, str]:
    """Return when (ms) and how what a member no longer has has ended; `is_known`: its later assignment is."""
    if has is None:
        return change.boundary, "member_gone"
    if not is_known:
        return change.boundary, "unknown"
    return change.at if change.after.is_cooperative else change.boundary, "given_up"


def give_up(
    state: FoldState, member: Member, partition: Partition, until: int, *, generation: int | None, ended: str
) -> None:
    """End the row of a partition that a member had."""
    row = state.rows.ownership.pop((*partition, member.member_id), None)
    if row is None:
        return
    until = max(until, row.owned_from)  # the coordinator's clock may have been set back
    state.rows.close(row, owned_until=until, until_generation=generation, ended=ended)
    owner = state.owners.get(partition)
    # Another member may own it after a topic was deleted and recreated: two topics have the same name.
    is_held = owner is not None and owner.until is None and owner.member_id != member.member_id
    if not is_held:
        state.owners[partition] = Owner(member.identity, member.member_id, until)
    rebalance = state.rows.rebalance
    # In a classic group only the replacement of a static member ends a row within its generation; it begins another.
    if rebalance is not None and row.record_offset >= rebalance.record_offset and state.group.kind != "classic":
        state.taken_over -= 1
    if ended != "unknown" and not is_held:
        state.given_up.add(partition)


def count_kept(state: FoldState) -> int:
    """Return how many partitions have the same owner as before the newest rebalance."""
    return max(0, len(state.rows.ownership) - state.taken_over)


def _owned(member: Member | None) -> frozenset[Partition]:
    return (member.owned or _NONE) if member else _NONE


def _end_revocations(state: FoldState, boundary: int) -> None:
    """Extend the ownership of revoked partitions to the end of the next join phase.

    A cooperative member learns of a revocation from the SyncGroup response, after the record; when it rejoins it has
    committed and given the partitions up (ConsumerCoordinator.onJoinComplete).
    """
    for partition in state.revoked:
        owner = state.owners.get(partition)
        if owner is not None and owner.until is not None:
            until = max(owner.until, boundary)
            state.owners[partition] = Owner(owner.identity, owner.member_id, until)
    state.revoked.clear()


def _take_over(state: FoldState, change: Change, member: Member, partition: Partition, *, is_rebalance: bool) -> None:
    topic, number = partition
    row = OwnershipRow(
        **origin(state, change.operation),
        topic=topic,
        partition=number,
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        owned_from=change.at,
        from_generation=change.after.generation,
    )
    if state.keys_since_gap is not None and change.after.kind != "share":
        _end_of_unread_owner(state, partition, change.at)
    state.rows.ownership[(topic, number, member.member_id)] = row
    state.rows.mark(row)
    for partitions in (state.given_up, state.kept_back, state.withdrawn, state.revoked):
        partitions.discard(partition)
    last = state.owners.get(partition)
    state.owners[partition] = Owner(member.identity, member.member_id, None)
    rebalance = state.rows.rebalance
    if not is_rebalance or rebalance is None:
        return
    state.taken_over += 1
    if change.after.kind == "share":
        return
    if last is None:
        state.rows.update(rebalance, partitions_added=rebalance.partitions_added + 1)
    elif last.identity != member.identity:
        _hand_over(state, partition, last, member, change.at)


def _end_of_unread_owner(state: FoldState, partition: Partition, at: int) -> None:
    """End the row of a partition's owner before a gap: the broker gives nobody what another member still has."""
    last = state.owners.get(partition)
    row = None if last is None else state.rows.ownership.pop((*partition, last.member_id), None)
    if row is not None:
        state.rows.close(row, owned_until=max(at, row.owned_from), until_generation=None, ended="unknown")


def _hand_over(state: FoldState, partition: Partition, last: Owner, member: Member, at: int) -> None:
    rebalance = state.rows.rebalance
    assert rebalance is not None
    given_up_at = at if last.until is None else min(last.until, at)
    rebalance.handed_over.append(
        {
            "topic": partition[0],
            "partition": partition[1],
            "from_member": last.member_id,
            "to_member": member.member_id,
            "given_up_at": given_up_at,
            "taken_at": at,
        }
    )
    rebalance.partitions_moved += 1
    rebalance.unowned_partition_ms += at - given_up_at
    state.rows.mark(rebalance)
