"""Rows of `task_assignments`: which member of a streams group had which task, in which role."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from grouptrail.history.fold import fold_group
from grouptrail.history.operations import Record
from grouptrail.history.state import FoldState, decode_state, encode_state
from support.fold_records import at_once, streams
from support.group_records import Rows, fold, fold_in_pieces
from support.streams_records import (
    assignment_epoch,
    current_tasks,
    group_epoch,
    target_tasks,
    thread,
    thread_leaves,
)

ENDPOINT = {"host": "app-1", "port": 8080}


def started() -> list[Record]:
    """Return the records of a group whose first member `a` gets two tasks."""
    return [
        thread(0, 1_000, "a", userEndpoint=ENDPOINT),
        streams(1, 1_000, "Topology", None, {"epoch": 0, "subtopologies": []}),
        group_epoch(2, 1_000, 2),
        target_tasks(3, 1_000, "a", active={"0": [0, 1]}),
        assignment_epoch(4, 1_000, 2),
        current_tasks(5, 1_000, "a", 2, previous=0, active={"0": [0, 1]}),
    ]


def scaled_out() -> list[Record]:
    """Return the records that follow when `b` joins: it gets a task after `a` has given it up, both a standby."""
    return [
        thread(10, 2_000, "b"),
        group_epoch(11, 2_000, 3),
        target_tasks(12, 2_000, "a", active={"0": [0]}, standby={"0": [1]}),
        target_tasks(13, 2_000, "b", active={"0": [1]}, standby={"0": [0]}),
        assignment_epoch(14, 2_000, 3),
        current_tasks(15, 2_000, "b", 3, state=3, previous=0, standby={"0": [0]}),
        current_tasks(20, 3_000, "a", 2, state=2, active={"0": [0]}, active_pending={"0": [1]}),
        current_tasks(30, 4_000, "a", 3, previous=2, active={"0": [0]}, standby={"0": [1]}),
        current_tasks(40, 5_000, "b", 3, active={"0": [1]}, standby={"0": [0]}),
    ]


def left() -> list[Record]:
    """Return the records that follow when `a` leaves: `b` takes over its active task, no longer as a standby."""
    return [
        *thread_leaves(50, 6_000, "a"),
        group_epoch(53, 6_000, 4),
        target_tasks(60, 7_000, "b", active={"0": [0, 1]}),
        assignment_epoch(61, 7_000, 4),
        current_tasks(62, 7_000, "b", 4, previous=3, active={"0": [0, 1]}),
    ]


def lines(rows: Rows) -> list[tuple[Any, ...]]:
    """Return the rows: task, role, member, from (ms, generation), until (ms, generation), how they ended."""
    names = ("assigned_from", "from_generation", "assigned_until", "until_generation", "ended")
    listed = sorted(rows["task_assignments"], key=lambda row: (row["assigned_from"], row["task"], row["role"]))
    return [(row["task"], row["role"], row["member_id"], *(row[name] for name in names)) for row in listed]


def test_tasks_of_a_streams_group_have_their_role_and_end_when_they_are_given_up() -> None:
    """A task that a member has been asked to give up is still its own; a standby that becomes active is two rows."""
    assert lines(fold(started() + scaled_out() + left())) == [
        (0, "active", "a", 1_000, 2, 6_000, 4, "member_gone"),
        (1, "active", "a", 1_000, 2, 4_000, 3, "given_up"),
        (0, "standby", "b", 2_000, 3, 7_000, 4, "given_up"),
        (1, "standby", "a", 4_000, 3, 6_000, 4, "member_gone"),
        (1, "active", "b", 5_000, 3, None, None, None),
        (0, "active", "b", 7_000, 4, None, None, None),
    ]


def test_tasks_have_the_process_and_endpoint_of_their_member() -> None:
    first, *_, last = fold(started() + scaled_out())["task_assignments"]
    assert (first["process_id"], first["endpoint"], first["client_id"]) == ("process-a", "app-1:8080", "client-a")
    assert (last["process_id"], last["endpoint"], last["client_host"]) == ("process-b", None, "/10.0.0.1")


def test_open_tasks_follow_their_members_changed_endpoint() -> None:
    for host, endpoint in (("app-2", "app-2:1"), ("::1", "[::1]:1")):
        moved = thread(10, 2_000, "a", userEndpoint={"host": host, "port": 1})
        rows = fold([*started(), moved, group_epoch(11, 2_000, 3)])
        assert {row["endpoint"] for row in rows["task_assignments"]} == {endpoint}


def test_tasks_of_a_removed_group_end_with_it() -> None:
    """Records of how its members left are missing."""
    parts = ("TargetAssignmentMetadata", "Metadata", "Topology")
    removed = [streams(20 + index, 9_000, part, None, None) for index, part in enumerate(parts)]
    assert {row[3:] for row in lines(fold(started() + removed))} == {(1_000, 2, 9_000, None, "group_ended")}


def test_tasks_found_where_history_begins_have_no_generation_of_their_assignment() -> None:
    """They may have been assigned long before."""
    found = [group_epoch(2, 1_000, 7), thread(3, 1_500, "a"), assignment_epoch(4, 2_000, 7)]
    found += [current_tasks(5, 3_000, "a", 7, active={"0": [0]}, warmup={"1": [3]})]
    assert lines(fold(found)) == [
        (0, "active", "a", 3_000, None, None, None, None),
        (3, "warmup", "a", 3_000, None, None, None, None),
    ]


def test_tasks_of_a_group_whose_saved_state_has_none_begin_with_the_next_record() -> None:
    """Earlier releases saved no tasks: when these were assigned is not known, those of later changes are."""
    state = fold_group(FoldState("app", 0), at_once(started()), complete_to=7, names={}).state
    values = json.loads(encode_state(state))
    del values["open"]["task_assignments"]
    for member in values["group"]["members"]:
        del member["tasks"], member["process_id"], member["endpoint"]
    state = decode_state("app", 0, json.dumps(values), {})
    later = [current_tasks(10, 5_000, "a", 3, active={"0": [0, 1]})]
    later += [current_tasks(20, 6_000, "a", 4, active={"0": [0, 1]}, standby={"0": [2]})]
    result = fold_group(state, at_once(later), complete_to=22, names={})
    rows = [row.values() for row in result.rows if row.table == "task_assignments"]
    assert lines({"task_assignments": rows}) == [
        (0, "active", "a", 5_000, None, None, None, None),
        (1, "active", "a", 5_000, None, None, None, None),
        (2, "standby", "a", 6_000, 2, None, None, None),
    ]


def test_active_task_of_another_member_after_missing_records_ends_the_one_before() -> None:
    """Compaction took the record in which `a` gave the task up; of standby tasks there may be several."""
    late = [
        record._replace(offset=record.offset + 100, at=90_000, read_late_at=95_000)
        for record in (
            thread(0, 0, "b"),
            group_epoch(1, 0, 9),
            current_tasks(2, 0, "b", 9, previous=8, active={"0": [1]}, standby={"0": [0]}),
        )
    ]
    rows = lines(fold([*at_once(started()), *late]))
    assert rows == [
        (0, "active", "a", 1_000, 2, None, None, None),
        (1, "active", "a", 1_000, 2, 90_000, None, "unknown"),
        (0, "standby", "b", 90_000, None, None, None, None),
        (1, "active", "b", 90_000, None, None, None, None),
    ]


@given(st.lists(st.integers(0, 30)))
def test_tasks_do_not_depend_on_the_cut(cuts: list[int]) -> None:
    records = started() + scaled_out() + left()
    assert fold_in_pieces(records, cuts) == fold_in_pieces(records)


def test_tasks_survive_a_saved_state() -> None:
    state = fold_group(FoldState("app", 0), started() + scaled_out(), complete_to=42, names={}).state
    again = decode_state("app", 0, encode_state(state), {})
    assert again.group.members == state.group.members
    assert again.rows.tasks == state.rows.tasks
