"""Rows of `task_assignments`: which member has which task of Kafka Streams or Connect, and in which role."""

from __future__ import annotations

from typing import Any

from grouptrail.history.changes import Change
from grouptrail.history.generation_rows import origin
from grouptrail.history.group import Member, Task
from grouptrail.history.operations import Operation
from grouptrail.history.ownership_rows import end_of_assignment
from grouptrail.history.reading import subtopology_of
from grouptrail.history.rows import TaskRow
from grouptrail.history.state import FoldState

_NONE = frozenset[Task]()

OffsetSums = dict[tuple[str, int], int]
"""By the subtopology and the number of a task."""


def update_tasks(state: FoldState, change: Change) -> None:
    """End the rows of tasks that members gave up, then begin those of tasks that they got."""
    before, after = change.before.members, change.after.members
    is_certain = not _may_miss_records(state, change)
    generation = change.after.generation if is_certain else None
    for name in change.touched:
        had, has = before.get(name), after.get(name)
        lost = _tasks(had) - _tasks(has)
        if lost:
            until, ended = end_of_assignment(change, has, is_known=has is not None and has.tasks is not None)
            _end(state, lost, name, until, generation=generation, ended=ended)
    for name in change.touched:
        had, has = before.get(name), after.get(name)
        if has is None or not has.tasks:
            continue
        is_new_to_it = state.rows.memberships[name].began != "there" if had is None else had.tasks is not None
        for task in sorted(has.tasks - _tasks(had)):
            if not is_certain and task.role == "active":
                _end_of_unread(state, task, change.at)
            row = TaskRow(
                **origin(state, change.operation),
                subtopology=task.subtopology,
                task=task.number,
                role=task.role,
                member_id=name,
                instance_id=has.instance_id,
                **has.client,
                assigned_from=change.at,
                from_generation=generation if is_new_to_it else None,
            )
            state.rows.tasks[task, name] = row
            state.rows.mark(row)
        if had is not None and had.client != has.client:
            for task in has.tasks & _tasks(had):
                if (task, name) in state.rows.tasks:
                    state.rows.update(state.rows.tasks[task, name], **has.client)
    _update_offset_sums(state, change)


def end_tasks(state: FoldState, member: Member, at: int) -> None:
    """End the rows of a member of a group that was removed."""
    _end(state, _tasks(member), member.member_id, at, generation=None, ended="group_ended")


def _tasks(member: Member | None) -> frozenset[Task]:
    return (member.tasks or _NONE) if member else _NONE


def _may_miss_records(state: FoldState, change: Change) -> bool:
    """Return whether an earlier record may have shown the same change, because compaction may have taken some."""
    if change.after.kind == "classic":
        return change.may_hide_a_generation
    return state.keys_since_gap is not None and not state.seems_complete


def _end(
    state: FoldState, tasks: frozenset[Task], member_id: str, until: int, *, generation: int | None, ended: str
) -> None:
    for task in tasks:
        row = state.rows.tasks.pop((task, member_id), None)
        if row is not None:
            # The coordinator's clock may have been set back.
            until = max(until, row.assigned_from)
            state.rows.close(row, assigned_until=until, until_generation=generation, ended=ended)


def _end_of_unread(state: FoldState, task: Task, at: int) -> None:
    """End the active task of a member before a gap: the broker gives nobody what another member still has."""
    for held, member_id in [key for key in state.rows.tasks if key[0] == task]:
        _end(state, frozenset({held}), member_id, at, generation=None, ended="unknown")


def _update_offset_sums(state: FoldState, change: Change) -> None:
    """Update how far the state of each task was when its member joined, of the members that say it."""
    is_new = change.after.generation != change.before.generation or change.is_conversion
    for name, sums in _offset_sums(change.operation).items():
        if not is_new and name in change.before.members:
            continue  # written again because another member, a static one, came back
        for task in _tasks(change.after.members.get(name)):
            # The leader counts a task that is not named as 0 (ClientState.computeTaskLags); negative: sentinels.
            found = sums.get((task.subtopology, task.number), 0)
            if (task, name) in state.rows.tasks:
                row = state.rows.tasks[task, name]
                state.rows.update(row, offset_sum=found if found >= 0 else None, offset_sum_at=change.at)


def _offset_sums(operation: Operation) -> dict[str, OffsetSums]:
    """Return the offset sums that members sent as they joined, by member id: classic ones of 2.6 and newer."""
    said = [one for record in operation for one in ((record.body or {}).get("streams") or {}).items()]
    return {
        name: {(subtopology_of(one), part["partition"]): part["offsetSum"] for one in listed for part in _parts(one)}
        for name, user_data in said
        if (listed := (user_data["subscription"] or {}).get("taskOffsetSums")) is not None
    }


def _parts(one: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the tasks of an element: before version 10 it has all of a subtopology."""
    return one.get("partitionToOffsetSum") or [one]
