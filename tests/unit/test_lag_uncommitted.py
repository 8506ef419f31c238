"""Owned partitions to which the group has not committed: nothing to read, nothing known, or a commit is missing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest

from grouptrail import contracts
from grouptrail.lag.backtest import Alert, replay
from grouptrail.lag.calculator import LagCalculator, Rules
from grouptrail.lag.group_status import OWNED, GroupStatus
from grouptrail.lag.verdict import Thresholds
from grouptrail.storage.schema import table_schema
from support.lag_samples import Row, add_commits, add_sample, at, commit, log, new_calculator

HOUR, DAY = 3_600, 86_400
FAR = (1 << 53) + 1


def owned(*partitions: int) -> pa.Table:
    """Return that members of billing own partitions of orders."""
    place: dict[str, Any] = {"group_id": "billing", "topic": "orders"}
    return pa.Table.from_pylist([{**place, "partition": partition} for partition in partitions], OWNED)


def assigned(since: float | None) -> dict[str, GroupStatus]:
    """Return the group after an assignment at that time."""
    return {"billing": GroupStatus("Stable", assigned_at=None if since is None else at(since))}


def rows_of(
    ends: Iterable[tuple[float, int]],
    *,
    commits: Iterable[float] = (),
    rules: Rules | None = None,
    calculator: LagCalculator | None = None,
    groups: dict[str, GroupStatus] | None = None,
    **more: Any,
) -> list[Row]:
    """Return the rows of orders-0, owned without a commit, at samples (seconds, log end) of orders-0 and orders-1.

    The group commits to orders-1 at these times.
    """
    calculator = calculator or new_calculator(rules=rules)
    waiting, rows = sorted(commits), []
    for second, end in ends:
        while waiting and waiting[0] <= second:
            committed_at = waiting.pop(0)
            add_commits(calculator, commit(committed_at, 5, partition=1))
        add_sample(calculator, log(second, end, **more), log(second, 5, partition=1))
        computed = calculator.compute(groups or assigned(-HOUR), owned(0, 1)).to_pylist()
        rows += [row for row in computed if row["partition"] == 0]
    return rows


def statuses(rows: list[Row]) -> set[str]:
    return {row["status"] for row in rows}


def worst(*found: str) -> str:
    return min(found, key=contracts.statuses().index)


# --- nothing to read -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "end"), [(0, 0), (70, 70), (1 << 62, 1 << 62)])
@pytest.mark.parametrize("groups", [{}, assigned(None), assigned(-HOUR)], ids=["not known", "not assigned", "known"])
def test_lag_of_a_partition_with_nothing_to_read_is_zero_and_ok(
    start: int, end: int, groups: dict[str, GroupStatus]
) -> None:
    """Never a record, or all deleted by retention."""
    for row in rows_of([(second, end) for second in range(0, DAY, HOUR)], groups=groups, start=start):
        assert (row["lag"], row["lag_seconds"], row["lost_records"]) == (0, 0, 0)
        assert (row["status"], row["problem"], row["committed_offset"]) == ("OK", None, None)


def test_lag_under_read_committed_of_an_open_transaction_alone_is_zero() -> None:
    """Its records cannot be read yet."""
    for groups, status in ((("billing",), "OK"), ((), "UNCOMMITTED")):
        rows = rows_of([(0, 9)], rules=Rules(read_committed_groups=groups), last_stable_offset=4, start=4)
        assert statuses(rows) == {status}


def test_lag_of_a_log_that_retention_empties_becomes_zero() -> None:
    calculator = new_calculator()
    assert statuses(rows_of([(0, 9)], calculator=calculator)) == {"UNCOMMITTED"}
    [row] = rows_of([(10, 9)], calculator=calculator, start=9)
    assert (row["lag"], row["status"]) == (0, "OK")


# --- records from before the members ---------------------------------------------------------------------------


def test_status_with_records_from_before_is_uncommitted_for_ever() -> None:
    """As with auto.offset.reset=latest in an old topic; the group commits elsewhere all the time."""
    rows = rows_of([(second, 150) for second in range(0, DAY, 600)], commits=range(0, DAY, 600))
    assert statuses(rows) == {"UNCOMMITTED"}
    assert {row["lag"] for row in rows} == {None}
    assert {row["lag_seconds"] for row in rows} == {None}
    assert rows[-1]["status_reason"] == "no commit yet: between 0 and 150 records are unread, by auto.offset.reset"
    assert rows[-1]["problem"] == "no commit yet: of 150 records, auto.offset.reset says how many are to be read"


def test_status_uncommitted_is_better_than_ok_for_the_group() -> None:
    """So that a healthy group is OK, and one that is stopped elsewhere is not."""
    assert worst("UNCOMMITTED", "OK") == "OK"
    assert worst("UNCOMMITTED", "STOP") == "STOP"
    assert worst("UNCOMMITTED", "UNKNOWN") == "UNKNOWN"


@pytest.mark.parametrize(("start", "end", "records"), [(0, FAR, FAR), (3, FAR, FAR - 3), (99, 100, 1)])
def test_status_reason_uncommitted_has_the_exact_number_of_records(start: int, end: int, records: int) -> None:
    [row] = rows_of([(0, end)], start=start)
    assert f"between 0 and {records} records" in row["status_reason"]


def test_status_of_a_group_that_never_commits_is_uncommitted() -> None:
    """A cache that reads all records at each start: nothing shows that it should commit."""
    rows = rows_of([(second, second) for second in range(10, DAY, 600)])
    assert statuses(rows) == {"UNCOMMITTED"}


def test_status_after_the_first_commit_is_that_of_a_committed_partition() -> None:
    calculator = new_calculator()
    rows_of([(0, 150)], calculator=calculator)
    add_commits(calculator, commit(5, 140))
    [row] = rows_of([(10, 150)], calculator=calculator)
    assert (row["lag"], row["status"]) == (10, "OK")


def test_status_after_an_operator_deleted_the_offset_is_uncommitted() -> None:
    calculator = new_calculator(commit(-9, 140))
    assert statuses(rows_of([(0, 150)], calculator=calculator)) == {"OK"}
    add_commits(calculator, commit(5, None))
    assert statuses(rows_of([(10, 150)], calculator=calculator)) == {"UNCOMMITTED"}


# --- what is known otherwise -----------------------------------------------------------------------------------


def test_status_of_a_log_whose_leader_does_not_answer_is_unknown() -> None:
    calculator = new_calculator()
    add_sample(calculator, log(0, None))
    [row] = calculator.compute(assigned(-HOUR), owned(0)).to_pylist()
    assert (row["status"], row["lag"], row["problem"]) == ("UNKNOWN", None, "broker 1 did not answer")


def test_status_of_a_partition_that_was_not_sampled_is_unknown() -> None:
    calculator = new_calculator()
    add_sample(calculator, log(0, 9, partition=3))
    [row] = calculator.compute(assigned(-HOUR), owned(0)).to_pylist()
    assert (row["status"], row["problem"]) == ("UNKNOWN", "no commit yet")


def test_status_of_a_topic_without_subscriber_is_unsubscribed_without_a_commit_too() -> None:
    groups = {"billing": GroupStatus("Stable", frozenset({"payments"}))}
    assert statuses(rows_of([(0, 150)], groups=groups)) == {"UNSUBSCRIBED"}


# --- a first commit that is overdue ----------------------------------------------------------------------------

ENDS = [(second, 5 if second < 200 else 6) for second in range(0, 1_000, 20)]
"""A record is written at 200 s at the latest."""


def test_status_is_unknown_once_the_group_has_committed_elsewhere_but_not_the_record_that_came() -> None:
    rows = rows_of(ENDS, commits=range(0, 1_000, 10))
    unknown = [(row["sampled_at"] - at(0)).total_seconds() for row in rows if row["status"] == "UNKNOWN"]
    assert unknown == list(range(500, 1_000, 20))
    assert rows[-1]["problem"] == (
        "no commit yet, although the group has committed elsewhere since records came: of 6 records, "
        "auto.offset.reset says how many are to be read"
    )


@pytest.mark.parametrize(
    ("case", "since", "commits"),
    [
        ("no commit since", -HOUR, [100]),
        ("a commit too soon", -HOUR, [100, 499]),
        ("never a commit", -HOUR, []),
        ("assigned after it came", 300, range(0, 1_000, 10)),
        ("before the member need have polled", 181, range(0, 1_000, 10)),
        ("since when is not known", None, range(0, 1_000, 10)),
        ("assigned in the future, by another clock", DAY, range(0, 1_000, 10)),
    ],
)
def test_status_stays_uncommitted_where_nothing_shows_that_a_commit_is_overdue(
    case: str, since: float | None, commits: Iterable[float]
) -> None:
    assert statuses(rows_of(ENDS, groups=assigned(since), commits=commits)) == {"UNCOMMITTED"}, case


@pytest.mark.parametrize(("pattern", "overdue"), [("bill*", 800), ("other", 500)])
def test_status_overdue_first_commit_follows_the_threshold_of_the_group(pattern: str, overdue: int) -> None:
    rules = Rules(group_stop_seconds=((pattern, 600.0),))
    rows = rows_of(ENDS, commits=range(0, 1_000, 10), rules=rules)
    unknown = [(row["sampled_at"] - at(0)).total_seconds() for row in rows if row["status"] == "UNKNOWN"]
    assert unknown[0] == overdue


def test_status_of_a_group_that_commits_hourly_is_not_unknown_before_its_commit() -> None:
    """The record comes right after a commit of the group."""
    ends = [(second, 5 if second < 60 else 6) for second in range(0, HOUR + 600, 60)]
    assert statuses(rows_of(ends, commits=[0, 10])) == {"UNCOMMITTED"}


def test_status_overdue_first_commit_ends_with_the_commit_or_a_new_assignment() -> None:
    calculator = new_calculator()
    assert rows_of(ENDS, calculator=calculator, commits=range(0, 1_000, 10))[-1]["status"] == "UNKNOWN"
    [row] = rows_of([(1_000, 6)], calculator=calculator, groups=assigned(990))
    assert row["status"] == "UNCOMMITTED"
    add_commits(calculator, commit(1_005, 6))
    assert statuses(rows_of([(1_010, 6)], calculator=calculator)) == {"OK"}


def test_status_overdue_first_commit_is_the_same_after_a_restart() -> None:
    calculator = new_calculator(commit(900, 5, partition=1))
    for second, end in ENDS:
        add_sample(calculator, log(second, end), log(second, 5, partition=1))
    assert calculator.compute(assigned(-HOUR), owned(0)).to_pylist()[0]["status"] == "UNKNOWN"


def test_status_without_a_commit_in_one_of_many_groups_does_not_depend_on_the_others() -> None:
    """Another group's commits say nothing of this one."""
    calculator = new_calculator(commit(900, 5, partition=1, group_id="audit"))
    for second, end in ENDS:
        add_sample(calculator, log(second, end), log(second, 5, partition=1))
    rows = calculator.compute(assigned(-HOUR), owned(0)).to_pylist()
    assert {row["group_id"]: row["status"] for row in rows} == {"audit": "OK", "billing": "UNCOMMITTED"}


def test_backtest_of_uncommitted_partitions_fires_nothing() -> None:
    rows = rows_of([(second, 150) for second in range(0, DAY, 600)], commits=range(0, DAY, 600))
    tables = [pa.Table.from_pylist([row], table_schema("consumer_lag")) for row in rows]
    statuses_alerted = frozenset(set(contracts.statuses()) - {"UNCOMMITTED"})
    assert list(replay(tables, Thresholds(), Alert(statuses_alerted))) == []
