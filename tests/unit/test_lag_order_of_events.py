"""Lag and status for unusual orders of samples, commits and the group's end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from grouptrail.lag.backtest import Alert, replay
from grouptrail.lag.calculator import COLUMNS, LagCalculator
from grouptrail.lag.group_status import NO_LAST_OWNERS, NONE_OWNED, OWNED, GroupStatus
from grouptrail.lag.positions import COMMITS
from grouptrail.lag.shard import ALL
from grouptrail.lag.state import LagState
from grouptrail.lag.verdict import Thresholds
from support.lag_samples import LOGS, Row, add_commits, add_sample, at, commit, log, new_calculator

OLD_TOPIC, NEW_TOPIC = "b2xkAAAAAAAAAAAAAAAAAA", "bmV3AAAAAAAAAAAAAAAAAA"


def rows_of(
    calculator: LagCalculator,
    *logs: Row,
    groups: Mapping[str, GroupStatus] | None = None,
    owned: pa.Table = NONE_OWNED,
) -> list[Row]:
    add_sample(calculator, *logs)
    rows: list[Row] = calculator.compute(groups or {}, owned).to_pylist()
    return rows


def sampled(calculator: LagCalculator, *logs: Row, groups: Mapping[str, GroupStatus] | None = None) -> Row:
    [row] = rows_of(calculator, *logs, groups=groups)
    return row


def test_samples_processed_late_use_only_the_commits_made_before_them() -> None:
    """A lag job that was down for an hour reads the samples of that hour in batches, and all commits at once."""

    class GroupStatuses:
        by_id: Mapping[str, GroupStatus] = {}
        owned, last_owners = NONE_OWNED, NO_LAST_OWNERS

        def refresh(self) -> None:
            pass

    class Commits:
        def __init__(self, *tables: pa.Table) -> None:
            self._tables = list(tables)

        def fresh(self) -> Iterator[pa.Table]:
            while self._tables:
                yield self._tables.pop()

    processor: Any = object.__new__(LagState)
    processor._settings = SimpleNamespace(sample_seconds=10.0)
    processor._groups, processor._calculator, processor._log = GroupStatuses(), new_calculator(), print
    processor._retention = SimpleNamespace(refresh=lambda _calculator: None)
    processor.has_new_commits = False
    processor._records = SimpleNamespace(first_records=lambda _wanted: {})
    processor._missed = SimpleNamespace(fresh=lambda: ())
    processor._shared = SimpleNamespace(fresh=lambda: ())
    processor._shard = ALL
    processor._commits = Commits(pa.Table.from_pylist([commit(-5, 100), commit(3_600, 460)], COMMITS))
    samples = [log(second, 100 + second // 10) for second in range(0, 3_600, 10)]
    rows: list[Row] = []
    for first in range(0, len(samples), 20):
        rows += processor._lag(pa.Table.from_pylist(samples[first : first + 20], LOGS)).to_pylist()
    # The newest sample may use later commits, as documented.
    late = [row for row in rows[:-1] if row["commit_at"] > row["sampled_at"]]
    assert not late, f"{len(late)} of {len(rows)} samples, such as {late[-1]['sampled_at']}: lag {late[-1]['lag']}"


def test_samples_processed_late_ignore_what_was_published_in_between() -> None:
    """The newest sample is published with all commits while later samples are not processed yet."""
    calculator = new_calculator(commit(-5, 100), commit(45, 160), commit(3_600, 460))
    first = pa.Table.from_pylist([log(0, 500)], LOGS)
    calculator.add_sample(first)
    [row] = calculator.compute({}, until=round(at(0).timestamp() * 1e6)).to_pylist()
    assert row["committed_offset"] == 100
    [served] = calculator.compute({}).to_pylist()
    assert served["committed_offset"] == 460
    calculator.positions.latest()  # as for storing them
    add_sample(calculator, log(60, 510))
    [row] = calculator.compute({}, until=round(at(60).timestamp() * 1e6)).to_pylist()
    assert (row["committed_offset"], row["lag"]) == (160, 350)
    assert row["status"] != "REWIND", row["status_reason"]


@pytest.mark.parametrize("ids", [(OLD_TOPIC, NEW_TOPIC), (None, None)])
@pytest.mark.parametrize("sampled_between", [False, True])
def test_status_after_a_topic_was_recreated_is_not_rewind(
    ids: tuple[str | None, str | None], *, sampled_between: bool
) -> None:
    old, new = ids
    calculator = new_calculator(commit(-5, 100_000, topic_id=old))
    sampled(calculator, log(0, 100_010, topic_id=old))
    if sampled_between:
        sampled(calculator, log(30, 20, topic_id=new))
    add_commits(calculator, commit(55, 5, topic_id=new))
    row = sampled(calculator, log(60, 50, topic_id=new))
    assert row["status"] != "REWIND", row["status_reason"]


def test_status_of_a_crashed_group_after_an_admin_reset_is_not_empty() -> None:
    """A commit after the group became Empty does not show that its members were alive before."""
    calculator = new_calculator(commit(-900, 100))
    sampled(calculator, log(-800, 100))
    group = {"billing": GroupStatus("Empty", emptied_at=at(-600), endings=frozenset({"left_or_expired"}))}
    assert sampled(calculator, log(-10, 150), groups=group)["status"] == "STOP"
    add_commits(calculator, commit(-5, 120))
    row = sampled(calculator, log(600, 150), groups=group)
    assert row["status"] != "EMPTY", row["status_reason"]


def test_status_of_a_stop_whose_last_commit_came_after_the_sample_is_never_stall() -> None:
    """One commit of offset 100, then none: the offset is not committed repeatedly."""
    calculator = new_calculator(commit(-400, 90))
    sampled(calculator, log(-390, 150))
    sampled(calculator, log(-9, 160))
    add_commits(calculator, commit(2.5, 100))
    statuses = [sampled(calculator, log(second, 170 + second))["status"] for second in range(1, 330, 10)]
    assert "STALL" not in statuses
    assert statuses[-1] == "STOP"


def test_backtest_with_a_lower_threshold_finds_a_crash_that_ends_empty() -> None:
    """A group that crashed at 300 s, is Empty from 345 s on, and was judged STOP at 600 s by stop_seconds = 300."""

    def sample(second: int) -> pa.Table:
        silent = max(second - 300, 0)
        row = {"group_id": "billing", "topic": "orders", "partition": 0, "sampled_at": at(second)}
        row |= {"committed_offset": 100 + min(second, 300), "commit_at": at(min(second, 300)), "lag": 5 + silent}
        row |= {"lag_seconds": float(silent), "status": "STOP" if silent >= 300 else "OK"}
        return pa.Table.from_pylist([row | {"group_state": "Empty" if second >= 345 else "Stable"}], COLUMNS)

    samples = [sample(second) for second in range(0, 1_000, 10)]
    [alert] = replay(samples, Thresholds(stop_seconds=60), Alert(frozenset({"STOP"})))
    assert alert.fired_at is not None
    assert datetime.fromtimestamp(alert.fired_at / 1e6, UTC) == at(360)


def test_status_of_a_group_with_commits_after_its_members_left_is_judged_by_its_commits() -> None:
    """A consumer without membership goes on there, or an administrator has set the offset: both write the same."""
    calculator = new_calculator(commit(-603, 100))
    group = {"billing": GroupStatus("Empty", emptied_at=at(-600), endings=frozenset({"left"}))}
    assert sampled(calculator, log(-500, 150), groups=group)["status"] == "EMPTY"
    add_commits(calculator, commit(-5, 120))
    assert sampled(calculator, log(0, 150), groups=group)["status"] == "OK"
    assert sampled(calculator, log(600, 150), groups=group)["status"] == "STOP"


def test_status_of_a_group_whose_members_have_just_started_is_neither_empty_nor_stop() -> None:
    """Before the history has read of them, and for the first minute, in which they may not have committed yet."""
    calculator = new_calculator(commit(-3603, 100))
    before = GroupStatus("Empty", emptied_at=at(-3600), endings=frozenset({"left"}))
    for second in range(-400, 0, 10):
        assert sampled(calculator, log(second, 150), groups={"billing": before})["status"] == "EMPTY"
    returning = GroupStatus("Empty", emptied_at=at(-3600), endings=frozenset({"left"}), is_returning=True)
    assert sampled(calculator, log(0, 150), groups={"billing": returning})["status"] == "WARN"
    members = {"billing": GroupStatus("Stable", filled_at=at(-1))}
    assert sampled(calculator, log(10, 150), groups=members)["status"] == "WARN"
    assert sampled(calculator, log(70, 150), groups=members)["status"] == "STOP"


def test_status_of_a_member_that_has_just_started_is_not_empty() -> None:
    """It continues at the group's offset before the history has read its record."""
    calculator = new_calculator(commit(-603, 100))
    group = {"billing": GroupStatus("Empty", emptied_at=at(-600), endings=frozenset({"left"}))}
    assert sampled(calculator, log(-500, 150), groups=group)["status"] == "EMPTY"
    add_commits(calculator, commit(5, 140))
    assert sampled(calculator, log(10, 160), groups=group)["status"] == "OK"


def stored_lag(problem: str | None) -> pa.Table:
    """Return a stored row of the sample at 0 s, with the committed offset of an earlier log."""
    row = {"cluster": "c", "group_id": "billing", "topic": "orders", "partition": 0, "status": "OK"}
    row |= {"committed_offset": 100_000, "commit_at": at(-5), "sampled_at": at(0), "lag": 10, "lost_records": 0}
    return pa.Table.from_pylist([row | {"problem": problem}], COLUMNS)


def test_status_after_a_restart_ignores_offsets_of_a_recreated_topic() -> None:
    """The stored samples are read first, then the stored lag."""
    calculator = new_calculator(commit(55, 5))
    for one in (log(0, 100_010), log(30, 20)):
        add_sample(calculator, one)
    calculator.add_stored_lag(stored_lag(problem=None))
    assert sampled(calculator, log(60, 50))["status"] != "REWIND"


@pytest.mark.parametrize("words", ["truncated or recreated", "truncated or made anew"])
def test_status_after_a_restart_ignores_offsets_stored_as_those_of_another_log(words: str) -> None:
    """Version 0.1 stored `made anew`."""
    calculator = new_calculator(commit(55, 5))
    calculator.add_stored_lag(stored_lag(problem=f"committed 100000 above the log's end 20: {words}"))
    assert sampled(calculator, log(60, 50))["status"] != "REWIND"


def test_partition_that_a_member_owns_without_any_commit_has_a_row_that_says_so() -> None:
    """No other group commits to it, so that its log is not sampled."""
    positions = (("billing", "orders", 0), ("audit", "payments", 3))
    owned = pa.Table.from_pylist([dict(zip(OWNED.names, one, strict=True)) for one in positions], OWNED)
    rows = rows_of(new_calculator(commit(-5, 90)), log(0, 100), owned=owned)
    assert [(row["group_id"], row["topic"], row["lag"], row["problem"]) for row in rows] == [
        ("audit", "payments", None, "no commit yet"),
        ("billing", "orders", 10, None),
    ]
    assert [row["status"] for row in rows] == ["UNKNOWN", "OK"]
    assert rows[0]["sampled_at"] == at(0)
    assert rows[0]["log_end_offset"] is None


def test_status_where_all_unread_records_were_deleted_is_ok() -> None:
    """Retention took what the group had not consumed: there is nothing to stop at."""
    calculator = new_calculator(commit(-900, 90))
    for second in range(0, 400, 10):
        row = sampled(calculator, log(second, 100, log_start_offset=100))
    assert (row["lag"], row["lost_records"], row["status"]) == (10, 10, "OK")
    assert row["status_reason"] == "nothing is left to read: 10 records were deleted before they were consumed"


def test_status_where_some_unread_records_are_left_is_still_stop() -> None:
    calculator = new_calculator(commit(-900, 90))
    for second in range(0, 400, 10):
        row = sampled(calculator, log(second, 100, log_start_offset=95))
    assert (row["lag"], row["lost_records"], row["status"]) == (10, 5, "STOP")
    assert ", 5 unread" in row["status_reason"]
