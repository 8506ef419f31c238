"""Tasks, processes and source topics of classic Kafka Streams applications, and tasks of Connect workers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from grouptrail.history.operations import Record
from grouptrail.history.reading import subtopology_of
from support.group_records import Rows, classic, fold, gone, worker
from support.streams_user_data import application, assignment, subscription

A, B = subscription(1, "app-1:8080"), subscription(2, "app-2:8080")
LINES, COUNTS = "lines", "counts"
CONNECT = {"protocol_type": "connect", "protocol": "sessioned"}


def alone(offset: int, at: int, generation: int) -> Record:
    """Return the record of a generation in which `a` has two subtopologies of two tasks each."""
    tasks = assignment([(1, 0), (1, 1), (0, 0), (0, 1)])
    return application(offset, at, generation, {"a": ({LINES: [0, 1], COUNTS: [0, 1]}, A, tasks)})


def shared(offset: int, at: int, generation: int) -> Record:
    """Return one in which `b` has half of them, and each member a standby of the other's."""
    mine, its = assignment([(1, 0), (0, 0)], [(1, 1)]), assignment([(1, 1), (0, 1)], [(1, 0)])
    return application(
        offset, at, generation, {"a": ({LINES: [0], COUNTS: [0]}, A, mine), "b": ({LINES: [1], COUNTS: [1]}, B, its)}
    )


def lines(rows: Rows) -> list[tuple[Any, ...]]:
    """Return each task's row: subtopology, task, role, member, from (ms, generation), until (ms), how it ended."""
    names = (
        "subtopology",
        "task",
        "role",
        "member_id",
        "assigned_from",
        "from_generation",
        "assigned_until",
        "ended",
    )
    return sorted(
        (tuple(row[name] for name in names) for row in rows["task_assignments"]), key=lambda line: (line[4], line)
    )


def topics(rows: Rows) -> list[tuple[Any, ...]]:
    names = ("subtopology", "topic", "usage", "topology_epoch", "known_from", "known_until")
    return sorted(tuple(row[name] for name in names) for row in rows["streams_topology"])


def test_tasks_of_a_classic_application_have_their_role_process_and_endpoint() -> None:
    log = [alone(1, 1_000, 1), shared(2, 5_000, 2)]
    rows = fold(log)
    assert lines(rows) == [
        ("0", 0, "active", "a", 1_000, 1, None, None),
        ("0", 1, "active", "a", 1_000, 1, 5_000, "given_up"),
        ("1", 0, "active", "a", 1_000, 1, None, None),
        ("1", 1, "active", "a", 1_000, 1, 5_000, "given_up"),
        ("0", 1, "active", "b", 5_000, 2, None, None),
        ("1", 0, "standby", "b", 5_000, 2, None, None),
        ("1", 1, "active", "b", 5_000, 2, None, None),
        ("1", 1, "standby", "a", 5_000, 2, None, None),
    ]
    processes = {
        (row["member_id"], row["process_id"], row["endpoint"])
        for table in ("task_assignments", "memberships")
        for row in rows[table]
    }
    assert processes == {
        ("a", "00000000-0000-0000-0000-000000000001", "app-1:8080"),
        ("b", "00000000-0000-0000-0000-000000000002", "app-2:8080"),
    }
    assert fold(log, cuts=range(len(log))) == rows


def offset_sums(rows: Rows) -> dict[tuple[str, int, str, str], tuple[int | None, int | None]]:
    """Return the offset sum of each task, and when (ms) it was recorded."""
    return {
        (row["subtopology"], row["task"], row["role"], row["member_id"]): (row["offset_sum"], row["offset_sum_at"])
        for row in rows["task_assignments"]
        if row["is_open"]
    }


def test_offset_sums_are_those_of_the_newest_join_of_each_member() -> None:
    """A task that a member does not name has no state there; -2 is one that it runs."""
    tasks = assignment([(0, 0), (1, 0)], [(1, 1)])
    joins: list[dict[tuple[int, int], int]] = [{(1, 0): 700}, {(1, 0): -2, (1, 1): 40}]
    log = [
        application(
            offset, offset * 1_000, offset, {"a": ({LINES: [0], COUNTS: [0]}, subscription(1, disk=disk), tasks)}
        )
        for offset, disk in enumerate(joins, 1)
    ]
    assert offset_sums(fold(log[:1])) == {
        ("0", 0, "active", "a"): (0, 1_000),
        ("1", 0, "active", "a"): (700, 1_000),
        ("1", 1, "standby", "a"): (0, 1_000),
    }
    assert offset_sums(fold(log)) == {
        ("0", 0, "active", "a"): (0, 2_000),
        ("1", 0, "active", "a"): (None, 2_000),
        ("1", 1, "standby", "a"): (40, 2_000),
    }
    assert fold(log, cuts=range(len(log))) == fold(log)


def test_offset_sums_of_members_that_do_not_join_again_keep_their_time() -> None:
    """A static member's return writes all members of the same generation again."""
    held = {
        name: (
            {LINES: [number]},
            subscription(number, disk={(1, number): 50}),
            assignment([(0, number)], [(1, number)]),
        )
        for number, name in enumerate(("a", "b"))
    }
    returned = {"a": held["a"], "c": held["b"]}
    log = [application(1, 1_000, 1, held), application(2, 2_000, 1, returned)]
    rows = fold(log)
    assert offset_sums(rows)["1", 0, "standby", "a"] == (50, 1_000)
    assert offset_sums(rows)["1", 1, "standby", "c"] == (50, 2_000)
    assert fold(log, cuts=range(len(log))) == rows


@pytest.mark.parametrize(("version", "expected"), [(6, (None, None)), (7, (40, 1_000)), (10, (40, 1_000))])
def test_offset_sums_are_read_in_each_version_that_has_them(
    version: int, expected: tuple[int | None, int | None]
) -> None:
    said = subscription(1, version=version, disk={(1, 0): 900, (1, 1): 40})
    log = [application(1, 1_000, 1, {"a": ({LINES: [0]}, said, assignment([(0, 0)], [(1, 1)]))})]
    assert offset_sums(fold(log))["1", 1, "standby", "a"] == expected


def test_tasks_of_a_member_that_is_gone_end_with_it() -> None:
    log = [shared(1, 1_000, 1), alone(2, 9_000, 2), gone(3, 20_000)]
    assert [line[-1] for line in lines(fold(log)) if line[3] == "b"] == ["member_gone"] * 3
    assert {line[-1] for line in lines(fold(log)) if line[3] == "a"} == {"given_up", "group_ended"}


def test_tasks_that_cannot_be_read_are_not_claimed() -> None:
    """The end of what the member had is then unknown; what it has later may have been assigned before."""
    damaged = {"a": ({LINES: [0, 1]}, A, assignment([(0, 0), (0, 1)])[:-1])}
    log = [alone(1, 1_000, 1), application(2, 5_000, 2, damaged), alone(3, 9_000, 3)]
    rows = fold(log)
    assert [line[6:] for line in lines(rows) if line[4] == 1_000] == [(5_000, "unknown")] * 4
    assert [line[5] for line in lines(rows) if line[4] == 9_000] == [None] * 4
    assert fold(log, cuts=range(len(log))) == rows


def test_tasks_of_an_assignment_with_an_error_are_none() -> None:
    """INCOMPLETE_SOURCE_TOPIC_METADATA: the leader has assigned nothing."""
    log = [alone(1, 1_000, 1), application(2, 5_000, 2, {"a": ({}, A, assignment(error=1))})]
    assert [line[6:] for line in lines(fold(log))] == [(5_000, "given_up")] * 4


def test_tasks_of_a_named_topology_have_its_name() -> None:
    assert subtopology_of({"topicGroupId": 2, "partition": 0, "namedTopology": "orders"}) == "orders__2"


def test_source_topics_of_a_classic_application_follow_from_its_active_tasks() -> None:
    """Tasks are in the order of the partitions by topic; a topic that nobody has for now stays known."""
    log = [
        alone(1, 1_000, 1),
        application(2, 5_000, 2, {"a": ({LINES: [0]}, A, assignment([(0, 0)]))}),
        gone(3, 9_000),
    ]
    rows = fold(log[:2])
    assert topics(rows) == [
        ("0", LINES, "source", None, 1_000, None),
        ("1", COUNTS, "source", None, 1_000, None),
    ]
    assert fold(log, cuts=range(len(log))) == fold(log)
    assert {row[-1] for row in topics(fold(log))} == {9_000}


def test_source_topic_of_another_subtopology_begins_a_row() -> None:
    """The application was deployed with another topology, which numbers its subtopologies otherwise."""
    renumbered = {"a": ({LINES: [0, 1]}, A, assignment([(3, 0), (3, 1)]))}
    rows = fold([alone(1, 1_000, 1), application(2, 5_000, 2, renumbered)])
    assert topics(rows) == [
        ("0", LINES, "source", None, 1_000, 5_000),
        ("1", COUNTS, "source", None, 1_000, None),
        ("3", LINES, "source", None, 5_000, None),
    ]


@pytest.mark.parametrize("tasks", [[(0, 0)], [(0, 1), (0, 0)], []])
def test_source_topics_are_not_claimed_where_tasks_and_partitions_differ(tasks: list[tuple[int, int]]) -> None:
    """Not the partitions' number, their order, or any task."""
    assert topics(fold([application(1, 1_000, 1, {"a": ({LINES: [0, 1]}, A, assignment(tasks))})])) == []


def test_source_topic_that_no_member_subscribes_to_ends() -> None:
    rows = fold(
        [
            alone(1, 1_000, 1),
            application(2, 5_000, 2, {"a": ({LINES: [0]}, A, assignment([(0, 0)]))}, topics=[LINES]),
        ]
    )
    assert [row[-1] for row in topics(rows)] == [None, 5_000]


def test_source_topics_end_when_the_group_is_no_longer_an_application() -> None:
    rows = fold([alone(1, 1_000, 1), classic(2, 5_000, 2, {"c": {LINES: [0, 1]}})])
    assert {row[-1] for row in topics(rows)} == {5_000}


def test_tasks_of_connect_workers_are_active_and_have_their_url() -> None:
    url = {"url": "http://connect-1:8083/", "allocation": None}
    first, second = worker({"sink": [-1, 0]}), worker({"sink": [1]})
    first["subscription"]["connect"] = json.dumps(url)
    log = [
        classic(1, 1_000, 1, {"a": first, "b": second}, **CONNECT),
        classic(2, 9_000, 2, {"b": worker({"sink": [-1, 0]}, had={"sink": [1]})}, **CONNECT),
    ]
    rows = fold(log)
    assert lines(rows) == [
        ("sink", -1, "active", "a", 1_000, 1, 9_000, "member_gone"),
        ("sink", 0, "active", "a", 1_000, 1, 9_000, "member_gone"),
        ("sink", 1, "active", "b", 1_000, 1, None, None),
        ("sink", -1, "active", "b", 9_000, 2, None, None),
        ("sink", 0, "active", "b", 9_000, 2, None, None),
    ]
    assert {(row["member_id"], row["process_id"], row["endpoint"]) for row in rows["task_assignments"]} == {
        ("a", None, "http://connect-1:8083/"),
        ("b", None, None),
    }
    assert topics(rows) == []
    assert fold(log, cuts=range(len(log))) == rows


def test_consumers_have_no_tasks() -> None:
    rows = fold([classic(1, 1_000, 1, {"a": {"orders": [0]}})])
    assert (rows["task_assignments"], rows["streams_topology"]) == ([], [])
