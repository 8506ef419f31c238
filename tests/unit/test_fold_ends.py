"""How members and groups end: nothing is called expired or deleted that may have been the other."""

from __future__ import annotations

from typing import Any

import pytest

from grouptrail.history.fold import fold_group
from grouptrail.history.operations import Record
from grouptrail.history.state import FoldState
from support.fold_records import (
    DAY,
    HOUR,
    classic,
    commit_tombstone,
    current,
    epoch,
    joins,
    leaves,
    target,
    target_epoch,
)
from support.group_records import fold, gone

MINUTE = 60_000


def static(away_ms: int, *, beats: int = 0) -> list[Record]:
    """Return a static member that leaves for now, is described again, and is gone so long after."""
    records = [joins(0, 1_000, "a", instanceId="s"), epoch(1, 1_000, 2), target(2, 1_000, "a", [0])]
    records += [target_epoch(3, 1_000, 2), current(4, 1_000, "a", 2, [0], previous=0)]
    records += [current(5 + index, 60_000 + index, "a", -2, [0], previous=2) for index in range(1 + beats)]
    return [*records, *leaves(12, 60_000 + away_ms, "a"), epoch(15, 60_000 + away_ms, 3)]


@pytest.mark.parametrize("away_ms", [0, 2_000, 44_999, 45_000, 300_000])
def test_static_member_that_was_away_expired_or_was_removed(away_ms: int) -> None:
    """Admin.removeMembersFromConsumerGroup removes it whenever it is called."""
    [row] = fold(static(away_ms))["memberships"]
    assert row["ended"] == "expired_or_removed"
    assert f"left temporarily {away_ms} ms before" in row["ended_because"]


@pytest.mark.parametrize(
    ("away_ms", "cause"), [(2_000, "static_member_expired_or_removed"), (45_000, "member_expired")]
)
def test_cause_of_a_static_member_that_was_away_depends_on_the_shortest_session(away_ms: int, cause: str) -> None:
    """group.consumer.min.session.timeout.ms is 45 s by default."""
    other = [
        joins(6, 3_000, "b", clientHost="/10.0.0.2"),
        epoch(7, 3_000, 3),
        current(8, 3_000, "b", 3, [], previous=0),
    ]
    records = static(away_ms)
    records = [*records[:5], *other, records[5]._replace(offset=9), *records[6:9], records[9]._replace(offset=15)]
    records[-1] = epoch(15, 60_000 + away_ms, 4)
    last = fold(records)["rebalances"][-1]
    assert (last["cause"], last["certainty"]) == (cause, "likely")
    assert "administrator removed it" in last["cause_note"] or "removed" in last["cause"]


def test_time_away_counts_from_the_first_record_of_it() -> None:
    [row] = fold(static(50_000, beats=3))["memberships"]
    assert "left temporarily 50000 ms before" in row["ended_because"]


def dead_note(empty_ms: int, retention_ms: int, *, before: Record | None = None) -> str:
    """Return the note of a classic group that is removed with its offsets, so long after it was emptied."""
    records = [classic(1, 1_000, 1, {"a": {"orders": [0]}}), before or classic(2, 2_000, 2, {})]
    records += [commit_tombstone(3, 2_000 + empty_ms), gone(4, 2_000 + empty_ms)]
    result = fold_group(FoldState("billing", 0), records, complete_to=9, names={}, retention_ms=retention_ms)
    [dead] = [row.values() for row in result.rows if row.values().get("state") == "Dead"]
    note: str = dead["note"]
    return note


@pytest.mark.parametrize("empty_ms", [1_000, HOUR, 6 * DAY])
def test_removal_within_the_retention_names_all_that_may_have_caused_it(empty_ms: int) -> None:
    """OMM.commitOffset keeps the expiry of OffsetCommit v2 to v4, on brokers of 4.x, too."""
    note = dead_note(empty_ms, 7 * DAY)
    anywhere, older = note.split("before 4.0")
    assert "own expiry" in anywhere
    assert "deleted topic" in older
    assert "offsets.retention.minutes is less" in anywhere


@pytest.mark.parametrize("empty_ms", [1_000, 8 * DAY])
def test_removal_says_that_the_retention_is_assumed(empty_ms: int) -> None:
    assert "assumed: history.offsets_retention_minutes" in dead_note(empty_ms, 7 * DAY)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (90, "0.1 s"),
        (90_000, "1.5 min"),
        (60_000, "1 min"),
        (5_400_000, "1.5 h"),
        (8 * DAY, "8 days"),
        (0, "0 s"),
        (59_949, "59.9 s"),
    ],
)
def test_removal_after_a_short_retention_says_how_long_the_group_was_empty(ms: int, text: str) -> None:
    assert dead_note(ms, 0).startswith(f"expired: it had been empty for {text}, longer than")


def test_removal_after_the_retention_names_an_administrator() -> None:
    assert "an administrator deleted it" in dead_note(8 * DAY, 7 * DAY)


def test_group_deleted_behind_an_open_transaction_was_empty_until_it_was_deleted() -> None:
    """Its tombstones can be read only when the transaction has ended, a quarter of an hour later."""
    records = [classic(1, 1_000, 1, {"a": {"orders": [0]}}), classic(2, 2_000, 2, {}, state_at=2_000)]
    at_once = [record._replace(read_at_once=True) for record in records]
    removal = [record._replace(read_late_at=20 * MINUTE) for record in (commit_tombstone(3, HOUR), gone(4, HOUR))]
    rows: dict[tuple[Any, ...], Any] = {}
    state = FoldState("billing", 0)
    for some, complete_to in ((at_once, 4), (removal, 6)):
        result = fold_group(state, some, complete_to=complete_to, names={})
        state = result.state
        rows |= {(row.table, *(row.values()[name] for name in row.key)): row.values() for row in result.rows}
    states = {key[-1]: row for key, row in rows.items() if key[0] == "group_states"}
    assert states["Empty"]["ended_at"] <= HOUR
    assert states["Dead"]["started_at"] == HOUR
