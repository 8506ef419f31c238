"""Lag and its verdict where a sample, a commit and the group's end come in an unlucky order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from grouptrail.lag.backtest import Alert, replay
from grouptrail.lag.board import COLUMNS, Board, Rules
from grouptrail.lag.groups import Group, Position
from grouptrail.lag.job import Watch
from grouptrail.lag.positions import COMMITS
from grouptrail.lag.verdict import Thresholds
from grouptrail.storage.schema import table_schema

NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
LOGS = table_schema("log_offsets")
OLD_TOPIC, NEW_TOPIC = "b2xkAAAAAAAAAAAAAAAAAA", "bmV3AAAAAAAAAAAAAAAAAA"

Row = dict[str, Any]


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def commit(seconds: float, offset: int | None, **more: Any) -> Row:
    where = {"cluster": "c", "group_id": "billing", "topic": "orders", "partition": 0, "record_partition": 7}
    record = {"record_offset": round(seconds * 1000) + 10_000_000, "record_at": at(seconds), "commit_at": at(seconds)}
    return where | record | {"committed_offset": offset, "is_tombstone": offset is None} | more


def log(seconds: float, end: int, **more: Any) -> Row:
    where = {"cluster": "c", "topic": "orders", "partition": 0, "sampled_at": at(seconds), "asked_at": at(seconds)}
    return where | {"log_start_offset": 0, "last_stable_offset": end, "log_end_offset": end} | more


def commits_of(*rows: Row) -> pa.Table:
    return pa.Table.from_pylist(list(rows), COMMITS)


def board(*commits: Row) -> Board:
    made = Board("c", Rules())
    made.positions.add(commits_of(*commits))
    return made


def rows_of(
    made: Board, *logs: Row, groups: Mapping[str, Group] | None = None, owned: tuple[Position, ...] = ()
) -> list[Row]:
    made.sample(pa.Table.from_pylist(list(logs), LOGS))
    rows: list[Row] = made.rows(groups or {}, owned).to_pylist()
    return rows


def sampled(made: Board, *logs: Row, groups: Mapping[str, Group] | None = None) -> Row:
    [row] = rows_of(made, *logs, groups=groups)
    return row


def test_samples_that_waited_are_judged_by_the_commits_made_before_them() -> None:
    """A lag job that was down for an hour reads the samples of that hour in batches, and all commits at once."""

    class Groups:
        by_id: Mapping[str, Group] = {}
        owned: tuple[Position, ...] = ()

        def refresh(self) -> None:
            pass

    class Commits:
        def __init__(self, *tables: pa.Table) -> None:
            self._tables = list(tables)

        def fresh(self) -> Iterator[pa.Table]:
            while self._tables:
                yield self._tables.pop()

    watch: Any = object.__new__(Watch)
    interval = type("LogOffsets", (), {"interval_seconds": 10.0})()
    watch._config = type("Config", (), {"cluster": "c", "log_offsets": interval})()
    watch._groups, watch._board, watch._report = Groups(), board(), print
    watch._records = SimpleNamespace(first_records=lambda _wanted, seconds: {})  # noqa: ARG005
    watch._commits = Commits(commits_of(commit(-5, 100), commit(3_600, 460)))
    samples = [log(second, 100 + second // 10) for second in range(0, 3_600, 10)]
    rows: list[Row] = []
    for first in range(0, len(samples), 20):
        rows += watch._lag(pa.Table.from_pylist(samples[first : first + 20], LOGS)).to_pylist()
    # Of the newest of all a later commit is documented.
    late = [row for row in rows[:-1] if row["commit_at"] > row["sampled_at"]]
    assert not late, f"{len(late)} of {len(rows)} samples, such as {late[-1]['sampled_at']}: lag {late[-1]['lag']}"


def test_samples_that_waited_are_not_judged_by_what_was_served_in_between() -> None:
    """The newest sample is served by all commits there are, again and again, while older ones still wait."""
    made = board(commit(-5, 100), commit(45, 160), commit(3_600, 460))
    first = pa.Table.from_pylist([log(0, 500)], LOGS)
    made.sample(first)
    [row] = made.rows({}, until=round(at(0).timestamp() * 1e6)).to_pylist()
    assert row["committed_offset"] == 100
    [served] = made.rows({}).to_pylist()
    assert served["committed_offset"] == 460
    made.positions.standing()  # as it is stored now and then
    made.sample(pa.Table.from_pylist([log(60, 510)], LOGS))
    [row] = made.rows({}, until=round(at(60).timestamp() * 1e6)).to_pylist()
    assert (row["committed_offset"], row["lag"]) == (160, 350)
    assert row["status"] != "REWIND", row["status_reason"]


@pytest.mark.parametrize("ids", [(OLD_TOPIC, NEW_TOPIC), (None, None)])
@pytest.mark.parametrize("sampled_between", [False, True])
def test_status_after_a_topic_was_remade_is_not_rewind(
    ids: tuple[str | None, str | None], *, sampled_between: bool
) -> None:
    old, new = ids
    made = board(commit(-5, 100_000, topic_id=old))
    sampled(made, log(0, 100_010, topic_id=old))
    if sampled_between:
        sampled(made, log(30, 20, topic_id=new))
    made.positions.add(commits_of(commit(55, 5, topic_id=new)))
    row = sampled(made, log(60, 50, topic_id=new))
    assert row["status"] != "REWIND", row["status_reason"]


def test_status_of_a_crashed_group_after_an_admin_reset_is_not_empty() -> None:
    """A commit after the group became Empty is no sign of life before."""
    made = board(commit(-900, 100))
    sampled(made, log(-800, 100))
    group = {"billing": Group("Empty", emptied_at=at(-600), endings=frozenset({"left_or_expired"}))}
    assert sampled(made, log(-10, 150), groups=group)["status"] == "STOP"
    made.positions.add(commits_of(commit(-5, 120)))
    row = sampled(made, log(600, 150), groups=group)
    assert row["status"] != "EMPTY", row["status_reason"]


def test_status_of_a_stop_whose_last_commit_came_after_the_sample_is_never_stall() -> None:
    """One commit of offset 100, then none: it is not committed again and again."""
    made = board(commit(-400, 90))
    sampled(made, log(-390, 150))
    sampled(made, log(-9, 160))
    made.positions.add(commits_of(commit(2.5, 100)))
    statuses = [sampled(made, log(second, 170 + second))["status"] for second in range(1, 330, 10)]
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
    [found] = replay(samples, Thresholds(stop_seconds=60), Alert(frozenset({"STOP"})))
    assert found.fired_at is not None
    assert datetime.fromtimestamp(found.fired_at / 1e6, UTC) == at(360)


def test_status_of_a_group_that_left_and_was_reset_stays_empty() -> None:
    """Its last commit before its end shows that its members left by themselves; the reset changes nothing."""
    made = board(commit(-603, 100))
    group = {"billing": Group("Empty", emptied_at=at(-600), endings=frozenset({"left_or_expired"}))}
    assert sampled(made, log(-500, 150), groups=group)["status"] == "EMPTY"
    made.positions.add(commits_of(commit(-5, 120)))
    assert sampled(made, log(600, 150), groups=group)["status"] == "EMPTY"


def test_status_of_a_group_whose_members_have_just_started_is_neither_empty_nor_stop() -> None:
    """Before the history has read of them, and for the first minute, in which they may not have committed yet."""
    made = board(commit(-3603, 100))
    before = Group("Empty", emptied_at=at(-3600), endings=frozenset({"left"}))
    for second in range(-400, 0, 10):
        assert sampled(made, log(second, 150), groups={"billing": before})["status"] == "EMPTY"
    returning = Group("Empty", emptied_at=at(-3600), endings=frozenset({"left"}), is_returning=True)
    assert sampled(made, log(0, 150), groups={"billing": returning})["status"] == "WARN"
    members = {"billing": Group("Stable", filled_at=at(-1))}
    assert sampled(made, log(10, 150), groups=members)["status"] == "WARN"
    assert sampled(made, log(70, 150), groups=members)["status"] == "STOP"


def test_status_of_a_member_that_has_just_started_is_not_empty() -> None:
    """It commits on from where the group was, before the history has read the record of its group."""
    made = board(commit(-603, 100))
    group = {"billing": Group("Empty", emptied_at=at(-600), endings=frozenset({"left_or_expired"}))}
    assert sampled(made, log(-500, 150), groups=group)["status"] == "EMPTY"
    made.positions.add(commits_of(commit(5, 140)))
    assert sampled(made, log(10, 160), groups=group)["status"] != "EMPTY"
    # The history, which has long come so far, knows of no member: an administrator has set the offset.
    assert sampled(made, log(100, 160), groups=group)["status"] == "EMPTY"


def test_status_of_a_group_that_left_and_was_set_back_is_empty_at_once() -> None:
    made = board(commit(-603, 100))
    group = {"billing": Group("Empty", emptied_at=at(-600), endings=frozenset({"left_or_expired"}))}
    assert sampled(made, log(-500, 150), groups=group)["status"] == "EMPTY"
    made.positions.add(commits_of(commit(5, 20)))
    assert sampled(made, log(10, 160), groups=group)["status"] == "EMPTY"


def test_status_after_a_restart_does_not_look_back_on_a_remade_topic() -> None:
    """The samples of the logs are read again first, then the lag that was stored of the same time."""
    made = board(commit(55, 5))
    for one in (log(0, 100_010), log(30, 20)):
        made.sample(pa.Table.from_pylist([one], LOGS))
    stored = {"cluster": "c", "group_id": "billing", "topic": "orders", "partition": 0, "status": "OK"}
    stored |= {"committed_offset": 100_000, "commit_at": at(-5), "sampled_at": at(0), "lag": 10, "lost_records": 0}
    made.remember(pa.Table.from_pylist([stored], COLUMNS))
    assert sampled(made, log(60, 50))["status"] != "REWIND"


def test_partition_that_a_member_owns_without_any_commit_has_a_row_that_says_so() -> None:
    """No other group commits to it, so that its log is not sampled."""
    owned = (("billing", "orders", 0), ("audit", "payments", 3))
    rows = rows_of(board(commit(-5, 90)), log(0, 100), owned=owned)
    assert [(row["group_id"], row["topic"], row["lag"], row["problem"]) for row in rows] == [
        ("audit", "payments", None, "no commit yet"),
        ("billing", "orders", 10, None),
    ]
    assert [row["status"] for row in rows] == ["UNKNOWN", "OK"]
    assert rows[0]["sampled_at"] == at(0)
    assert rows[0]["log_end_offset"] is None


def test_status_where_all_unread_records_were_deleted_is_ok() -> None:
    """Retention took what the group had not consumed: there is nothing to stop at."""
    made = board(commit(-900, 90))
    for second in range(0, 400, 10):
        row = sampled(made, log(second, 100, log_start_offset=100))
    assert (row["lag"], row["lost_records"], row["status"]) == (10, 10, "OK")
    assert row["status_reason"] == "nothing is left to read: 10 records were deleted before they were consumed"


def test_status_where_some_unread_records_are_left_is_still_stop() -> None:
    made = board(commit(-900, 90))
    for second in range(0, 400, 10):
        row = sampled(made, log(second, 100, log_start_offset=95))
    assert (row["lag"], row["lost_records"], row["status"]) == (10, 5, "STOP")
    assert ", 5 unread" in row["status_reason"]
