"""Rows of `generations`: each one's assignment, and whether its assignor computes the same."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from grouptrail.history.assignors import Explanation, explain, skew
from grouptrail.history.changes import Change
from grouptrail.history.group import Group, Member, Partition, assigned_to, by_topic
from grouptrail.history.operations import Operation
from grouptrail.history.rows import GenerationRow, Values
from grouptrail.history.state import Assignment, FoldState
from grouptrail.history.subscriber import Subscriber

Assigned = Mapping[str, frozenset[Partition]]
"""Partitions by member id."""

_COOPERATIVE_STICKY = "cooperative-sticky"


def origin(state: FoldState, operation: Operation) -> Values:
    """Return the columns with a row's group and the record that began it."""
    return {
        "group_id": state.group_id,
        "incarnation": state.incarnation,
        "record_partition": state.record_partition,
        "record_offset": operation[0].offset,
    }


def record_fact(state: FoldState, operation: Operation, shows: str) -> Values:
    """Return an element of a column `evidence`: the record of an operation, and what it shows."""
    return {
        "source": "record",
        "at": operation[-1].at,
        "record_partition": state.record_partition,
        "record_offset": operation[0].offset,
        "shows": shows,
    }


def begin_generation(state: FoldState, change: Change, *, is_beginning: bool) -> None:
    """Begin the row of a change's generation; the one before must have been described."""
    end_generation(state, change.began_at)
    after = change.after
    state.rows.generation = GenerationRow(
        **origin(state, change.operation),
        generation=after.generation,
        group_kind=after.kind,
        started_at=change.began_at,
        skipped=0 if is_beginning else change.skipped,
    )
    state.rows.mark(state.rows.generation)
    if after.kind == "classic" and change.is_conversion:
        # GMM.convertToClassicGroup: the members keep their KIP-848 assignment; the assignor is the one they will use.
        state.rows.generation.assignment_note = (
            "the broker's assignment from before the downgrade: no leader computed it"
        )
    elif after.kind == "classic":
        # The record of a rejoined static member has the same form and holds the previous assignment.
        state.unexplained = Assignment(after, is_synced=not after.may_be_restart)


def end_generation(state: FoldState, at: int) -> None:
    """End the open row, if there is one."""
    row = state.rows.generation
    if row is not None:
        state.rows.close(row, ended_at=max(at, row.started_at))
        state.rows.generation = None


def count_partitions(state: FoldState, change: Change) -> None:
    """Record each topic's smallest possible partition count: one more than the highest ever assigned or claimed."""
    counts = state.partition_counts
    for name in change.touched:
        member = change.after.members.get(name)
        if member is None:
            continue
        for topic, number in (*(assigned_to(change.after, member) or ()), *member.claimed):
            if number >= counts.get(topic, 0):
                counts[topic] = number + 1


def describe_generation(state: FoldState) -> None:
    """Bring the open row up to date with its members, as they are now."""
    row, group = state.rows.generation, state.group
    if row is None:
        return
    # No assignment is ever made for an epoch without members.
    is_assigned = (
        group.kind == "classic" or not group.members or (group.assignment_epoch or 0) >= (group.generation or 0)
    )
    assigned = {name: assigned_to(group, member) for name, member in group.members.items()}
    known = {name: owned for name, owned in assigned.items() if owned is not None}
    is_known = len(known) == len(assigned)
    explanation = _explanation(state, known if is_known else None)
    state.rows.update(
        row,
        protocol_type=group.protocol_type,
        protocol=group.assignor,
        leader=group.leader,
        member_count=None if group.lacks_members else len(group.members),
        members=[_member_values(member, assigned[name]) for name, member in sorted(group.members.items())]
        if is_assigned
        else None,
        partition_count=len(frozenset().union(*known.values())) if is_known else None,
        skew=skew(known) if is_known and known else None,
        **({} if explanation is None else {"is_assignors_own": explanation[0], "assignment_note": explanation[1]}),
    )


def _member_values(member: Member, assigned: frozenset[Partition] | None) -> Values:
    same = ("member_id", "instance_id", "client_id", "client_host", "rack", "topic_regex")
    return {
        **{name: getattr(member, name) for name in same},
        "topics": None if member.topics is None else list(member.topics),
        "partitions": None if assigned is None else by_topic(assigned),
    }


def _explanation(state: FoldState, assigned: Assigned | None) -> tuple[bool | None, str | None] | None:
    """Return whether the assignor computes the assignment, and a note; None where the row has these already."""
    group = state.group
    if group.kind != "classic":
        is_any = bool(group.members) and (assigned is None or any(assigned.values()))
        return None, "only assignors of consumers are recomputed" if is_any else None
    if state.unexplained is None:
        return None
    assignment, state.unexplained = state.unexplained, None
    return _explained(assignment, state.partition_counts)


def _explained(assignment: Assignment, counts: Mapping[str, int]) -> tuple[bool | None, str | None]:
    group = assignment.group
    owned = {name: member.owned for name, member in group.members.items()}
    assigned = {name: some for name, some in owned.items() if some is not None}
    is_known = len(assigned) == len(owned)
    if not group.members or (is_known and not any(assigned.values())):
        return None, None
    if group.protocol_type != "consumer":
        return None, "only assignors of consumers are recomputed"
    if not is_known:
        return None, "not every assignment can be read"
    if any(member.topics is None for member in group.members.values()):
        return None, "not every subscription can be read"
    explanation = _compared(group, counts, assigned)
    if explanation.is_own is False and not assignment.is_synced:
        return None, f"{explanation.note}; but a static member may have rejoined with other topics since then"
    return explanation.is_own, explanation.note


def _compared(group: Group, counts: Mapping[str, int], assigned: Assigned) -> Explanation:
    """Compare an assignment with its assignor's over all partitions that the topics ever had.

    If they differ and some of these partitions are unassigned, compare again over the assigned ones only.
    """
    subscribers = [_subscriber(member) for member in group.members.values()]
    explanation = explain(group.protocol, subscribers, counts, assigned)
    if explanation.is_own is not False:
        return explanation
    present = _present(assigned)
    wanted = {topic for member in subscribers for topic in member.topics}
    doubtful = sorted(topic for topic in wanted if counts.get(topic, 0) > present.get(topic, 0))
    if not doubtful:
        return explanation
    again = explain(group.protocol, subscribers, present, assigned)
    if again.is_own is False and group.protocol != _COOPERATIVE_STICKY:
        return again
    gone = f"partitions of {', '.join(doubtful)} are gone or not known to the leader"
    return Explanation(None, f"{explanation.note}, or {gone}: {again.note}")


def _present(assigned: Mapping[str, Collection[Partition]]) -> dict[str, int]:
    """Return the smallest possible partition count of each topic, from the partitions assigned now."""
    present: dict[str, int] = {}
    for partitions in assigned.values():
        for topic, number in partitions:
            present[topic] = max(present.get(topic, 0), number + 1)
    return present


def _subscriber(member: Member) -> Subscriber:
    return Subscriber(
        member_id=member.member_id,
        instance_id=member.instance_id,
        topics=frozenset(member.topics or ()),
        owned=member.claimed,
        generation=member.claimed_generation,
        rack=member.rack,
    )
