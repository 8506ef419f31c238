"""How members left, by their last commits: each rule, its bounds, and the commits against a search one by one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouptrail.history.departure_commits import ended_by_commits, fill_departures
from grouptrail.history.departures import (
    asks_others,
    cause_by_departures,
    end_by_commits,
    had_polled,
    had_stopped_polling,
    is_open,
)
from grouptrail.storage.schema import table_schema

LEFT_AT = datetime(2026, 3, 4, 12, tzinfo=UTC)
LOOKBACK = timedelta(hours=1)
MS = timedelta(milliseconds=1)
UNKNOWN = "left_or_expired"

Values = dict[str, Any]


def departure(age_ms: int | None = None, **values: object) -> Values:
    """A classic member, whose last commit was so long before it was gone, after twenty at every second."""
    return {
        "member_id": "a-1",
        "left_at": LEFT_AT,
        "session_timeout_ms": 45_000,
        "rebalance_timeout_ms": 300_000,
        "owned": [{"topic": "orders", "partition": 0, "since_offset": 10}],
        "same_leader_from": 10,
        "is_last": False,
        "is_alone": True,
        "ended": "left_or_expired",
        "ended_because": "gone after its timeouts",
        "rule": "AFTER_TIMEOUTS",
        "last_commit_at": None if age_ms is None else LEFT_AT - age_ms * MS,
        "last_commit_offset": 90,
        "commits": 20,
        "longest_gap_ms": 1_000,
        "unchanged_commits": 5,
        "others_advanced": None,
        **values,
    }


def ended(age_ms: int | None, **values: object) -> str:
    return str(end_by_commits(departure(age_ms, **values))["ended"])


@pytest.mark.parametrize(
    ("age_ms", "expected"),
    [
        pytest.param(None, UNKNOWN, id="no-commit"),
        pytest.param(0, "left", id="at-once"),
        pytest.param(43_999, "left", id="within-its-session"),
        pytest.param(44_000, UNKNOWN, id="within-its-session-unless-the-commit-was-written-late"),
        pytest.param(44_999, UNKNOWN, id="just-before-a-session-later"),
        pytest.param(45_000, "expired", id="a-session-later"),
        pytest.param(50_000, "expired", id="a-session-a-gap-and-a-rejoin-later"),
        pytest.param(50_001, UNKNOWN, id="later-than-any-session"),
        pytest.param(298_999, UNKNOWN, id="before-its-time-between-polls"),
        pytest.param(299_000, "poll_timeout", id="its-last-commit-came-after-its-last-poll"),
        pytest.param(305_000, "poll_timeout", id="its-time-between-polls-later"),
        pytest.param(305_001, UNKNOWN, id="later-than-that"),
        pytest.param(-1, UNKNOWN, id="the-clock-was-set-back"),
    ],
)
def test_ending_of_a_classic_member_by_the_age_of_its_last_commit(age_ms: int | None, expected: str) -> None:
    assert ended(age_ms) == expected


@pytest.mark.parametrize(
    ("age_ms", "values", "expected"),
    [
        pytest.param(44_000, {"same_leader_from": None}, UNKNOWN, id="another-coordinator"),
        pytest.param(33_999, {"same_leader_from": None}, "left", id="another-coordinator-with-margin"),
        pytest.param(40_000, {"same_leader_from": 90}, UNKNOWN, id="the-commit-is-before-that-coordinator"),
        pytest.param(46_000, {"same_leader_from": None}, UNKNOWN, id="a-session-by-two-clocks"),
        pytest.param(47_500, {"is_last": True}, UNKNOWN, id="nobody-had-to-join-again"),
        pytest.param(46_500, {"is_last": True}, "expired", id="nobody-had-to-join-again-in-time"),
        pytest.param(4_999, {"rebalance_timeout_ms": 10_000}, "left", id="within-its-time-to-rejoin"),
        pytest.param(5_000, {"rebalance_timeout_ms": 10_000}, UNKNOWN, id="perhaps-it-missed-a-rebalance"),
        pytest.param(1_000, {"rebalance_timeout_ms": None}, UNKNOWN, id="time-to-rejoin-not-known"),
        pytest.param(46_000, {"is_alone": False}, UNKNOWN, id="perhaps-the-group-waited-for-another"),
        pytest.param(1_000, {"is_alone": False}, "left", id="with-another"),
        pytest.param(46_000, {"commits": 4}, UNKNOWN, id="too-few-for-a-rhythm"),
        pytest.param(46_000, {"longest_gap_ms": 15_001}, UNKNOWN, id="a-rhythm-as-slow-as-the-session"),
        pytest.param(46_000, {"unchanged_commits": 1}, UNKNOWN, id="perhaps-nothing-to-read"),
        pytest.param(46_000, {"unchanged_commits": 0, "others_advanced": True}, "expired", id="others-went-on"),
        pytest.param(1_000, {"session_timeout_ms": None}, UNKNOWN, id="session-not-known"),
        pytest.param(11_000, {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000}, UNKNOWN, id="equal"),
        pytest.param(2_000, {"rule": "TOMBSTONES"}, "left", id="kip-848-closing"),
        pytest.param(2_001, {"rule": "TOMBSTONES"}, UNKNOWN, id="kip-848-later"),
        pytest.param(46_000, {"rule": "TOMBSTONES"}, UNKNOWN, id="kip-848-commits-keep-no-session-alive"),
        pytest.param(46_000, {"rule": "STATIC", "ended": "expired_or_removed"}, "expired_or_removed", id="static"),
        pytest.param(46_000, {"rule": "WITHIN_TIMEOUTS", "ended": "left"}, "left", id="decided-by-the-records"),
    ],
)
def test_ending_by_commits_only_where_nothing_else_is_likely(age_ms: int, values: Values, expected: str) -> None:
    assert ended(age_ms, **values) == expected


def test_commits_of_others_are_asked_for_only_where_they_decide() -> None:
    assert asks_others(departure(46_000, unchanged_commits=0))
    assert not asks_others(departure(46_000))
    assert not asks_others(departure(60_000, unchanged_commits=0))
    assert not asks_others(departure(46_000, unchanged_commits=0, commits=4))
    kip_848 = {"rule": "TOMBSTONES", "session_timeout_ms": None, "unchanged_commits": 0}
    assert asks_others(departure(300_000, **kip_848))
    assert not asks_others(departure(200_000, **kip_848))


@pytest.mark.parametrize(
    ("age_ms", "values", "expected"),
    [
        pytest.param(300_000, {}, True, id="its-time-between-polls-later"),
        pytest.param(300_000, {"session_timeout_ms": None, "rule": "TOMBSTONES"}, True, id="kip-848"),
        pytest.param(298_999, {}, False, id="sooner"),
        pytest.param(305_001, {}, False, id="later"),
        pytest.param(302_001, {"is_last": True}, False, id="later-with-nobody-left"),
        pytest.param(300_000, {"unchanged_commits": 0}, False, id="perhaps-nothing-to-commit"),
        pytest.param(300_000, {"unchanged_commits": 0, "others_advanced": True}, True, id="others-went-on"),
        pytest.param(300_000, {"longest_gap_ms": 100_001}, False, id="no-rhythm"),
        pytest.param(300_000, {"commits": 4}, False, id="too-few"),
        pytest.param(300_000, {"rebalance_timeout_ms": None}, False, id="time-between-polls-not-known"),
        pytest.param(None, {}, False, id="no-commit"),
    ],
)
def test_member_that_left_had_stopped_polling_if_its_commits_ended_so_long_before(
    age_ms: int | None, values: Values, *, expected: bool
) -> None:
    assert had_stopped_polling(departure(age_ms, **values)) is expected


@pytest.mark.parametrize(
    ("age_ms", "values", "expected"),
    [
        pytest.param(0, {}, True, id="at-once"),
        pytest.param(287_999, {}, True, id="within-its-time-between-polls"),
        pytest.param(288_000, {}, False, id="its-last-commit-may-have-come-after-its-last-poll-by-two-clocks"),
        pytest.param(-1, {}, False, id="the-clock-was-set-back"),
        pytest.param(0, {"session_timeout_ms": None}, False, id="kip-848"),
        pytest.param(0, {"longest_gap_ms": 100_001}, False, id="no-rhythm"),
        pytest.param(0, {"commits": 4}, False, id="too-few"),
        pytest.param(None, {}, False, id="no-commit"),
    ],
)
def test_member_had_polled_if_it_committed_regularly_until_shortly_before(
    age_ms: int | None, values: Values, *, expected: bool
) -> None:
    assert had_polled(departure(age_ms, **values)) is expected


@given(age_ms=st.integers(-10_000, 400_000), gap_ms=st.integers(0, 120_000), is_last=st.booleans())
def test_member_that_had_polled_had_not_stopped_polling(age_ms: int, gap_ms: int, *, is_last: bool) -> None:
    one = departure(age_ms, longest_gap_ms=gap_ms, is_last=is_last)
    assert not (had_polled(one) and had_stopped_polling(one))


def test_ending_by_commits_says_its_figures() -> None:
    assert end_by_commits(departure(46_000))["ended_because"] == (
        "its partitions were committed 20 times, at least every 1000 ms, and then not for 46000 ms: its session of "
        "45000 ms expired"
    )


@pytest.mark.parametrize(
    ("ages", "expected"),
    [
        pytest.param([0, 1_000], "member_left", id="all-left"),
        pytest.param([46_000], "member_expired", id="expired"),
        pytest.param([300_000], "member_poll_timeout", id="poll-timeout"),
        pytest.param([0, 46_000], None, id="one-of-each"),
        pytest.param([0, 60_000], None, id="one-unknown"),
    ],
)
def test_cause_of_a_rebalance_only_if_all_left_in_one_way(ages: list[int], expected: str | None) -> None:
    cause = cause_by_departures(end_by_commits(departure(age)) for age in ages)
    assert (cause and cause.name) == expected
    assert cause is None or cause.certainty == "likely"


# --- the commits -------------------------------------------------------------------------------------------

REBALANCE_OFFSET = 500

_seconds = st.one_of(st.integers(0, 1_200), st.sampled_from([0, 1, 44, 45, 46, 59, 60, 61, 899, 900, 901]))
_groups = st.sampled_from(["billing", "audit"])
_commits = st.lists(
    st.tuples(_groups, st.integers(0, 2), _seconds, st.integers(0, 3), st.integers(0, 510)),
    max_size=40,
    unique_by=lambda commit: commit[-1],
)


def rebalances(group: str = "billing") -> pa.Table:
    """A rebalance of a group whose member with partitions 0 (since offset 10) and 1 (since offset 300) is gone."""
    schema = table_schema("rebalances")
    owned = [
        {"topic": "orders", "partition": partition, "since_offset": since} for partition, since in ((0, 10), (1, 300))
    ]
    unread = dict.fromkeys(("last_commit_at", "last_commit_offset", "commits", "longest_gap_ms", "unchanged_commits"))
    row = {
        "record_partition": 9,
        "group_id": group,
        "incarnation": 1,
        "record_offset": REBALANCE_OFFSET,
        "to_generation": 4,
        "cause": "member_left_or_expired",
        "certainty": "ambiguous",
        "departed": [{**departure(), **unread, "owned": owned}],
    }
    return pa.Table.from_pylist([{**row, "departed": []}, row], schema)


def commits_of(listed: list[tuple[str, int, int, int, int]], **values: object) -> pa.Table:
    """Rows of `offset_commits`, so many seconds before the member was gone."""
    rows = [
        {
            "cluster": "default",
            "record_partition": 9,
            "record_offset": offset,
            "group_id": group,
            "topic": "orders",
            "partition": partition,
            "record_at": LEFT_AT - timedelta(seconds=seconds),
            "committed_offset": committed,
            "is_transactional": False,
            **values,
        }
        for group, partition, seconds, committed, offset in listed
    ]
    return pa.Table.from_pylist(rows, table_schema("offset_commits"))


def filled(commits: pa.Table) -> tuple[Values, Values]:
    """The row of the rebalance with a departure, and that departure."""
    empty, row = fill_departures(rebalances(), lambda *_: ds.dataset(commits), "default", LOOKBACK).to_pylist()
    assert empty["departed"] == []
    return row, row["departed"][0]


def test_cause_of_a_group_that_is_empty_says_how_its_members_left_by_their_commits() -> None:
    reason = "gone after its timeouts"
    commits = ds.dataset(commits_of([("billing", 0, 1, 5, 400)]))
    for note, expected in (
        (reason, "gone 1000 ms after"),
        (f"{reason}; unless compaction", "gone 1000 ms after"),
        ("else", "else"),
    ):
        rows = rebalances().to_pylist()
        rows[1] |= {"cause": "group_emptied", "certainty": "recorded", "cause_note": note}
        rows[1]["departed"][0]["ended_because"] = reason
        before = pa.Table.from_pylist(rows, table_schema("rebalances"))
        row = fill_departures(before, lambda *_: commits, "default", LOOKBACK).to_pylist()[1]
        assert (row["cause"], row["certainty"]) == ("group_emptied", "recorded")
        assert row["cause_note"].startswith(expected)
        assert row["cause_note"].endswith(note.removeprefix(reason))


@given(_commits)
def test_departure_is_filled_from_the_commits_of_what_it_owned(listed: list[tuple[str, int, int, int, int]]) -> None:
    """Against a search through all commits one by one: of the last minute if these decide, else of 15 minutes."""
    since = {0: 10, 1: 300}
    own = sorted(
        (offset, partition, seconds, committed)
        for group, partition, seconds, committed, offset in listed
        if group == "billing" and partition in since and since[partition] < offset < REBALANCE_OFFSET
    )
    _, found = filled(commits_of(listed))
    for within in (60, 900):
        near = [one for one in own if one[2] <= within]
        times = sorted({-seconds for _, _, seconds, _ in near})
        gaps = [1000 * (after - before) for before, after in pairwise(times)]
        last = near[-1] if near else None
        expected = {
            "last_commit_at": last and LEFT_AT - timedelta(seconds=last[2]),
            "last_commit_offset": last and last[0],
            "commits": len(times),
            "longest_gap_ms": max(gaps, default=None),
        }
        if (
            near
            and end_by_commits({**departure(), **found, **expected, "rule": "AFTER_TIMEOUTS"})["ended"] != UNKNOWN
        ):
            break
    assert {name: found[name] for name in expected} == expected


def test_departure_ignores_transactions_tombstones_and_other_clusters() -> None:
    own = [("billing", 0, 1, 5, 400)]
    for values in (
        {"is_transactional": True},
        {"is_transactional": None},
        {"committed_offset": None},
        {"cluster": "other"},
        {"topic": "payments"},
        {"record_partition": 8},
    ):
        assert filled(commits_of(own, **values))[1]["commits"] == 0
    assert filled(commits_of(own))[1]["commits"] == 1


def test_filled_rebalance_and_membership_say_how_the_member_left() -> None:
    row, found = filled(commits_of([("billing", 0, 1, 5, 400)]))
    assert (row["cause"], row["certainty"], found["ended"], found["rule"]) == (
        "member_left",
        "likely",
        "left",
        "AFTER_COMMIT",
    )
    assert (row["rule"], row["ruled_out"].split(":")[0]) == ("GONE_AFTER_COMMIT", "an expired session")
    (commit,) = row["evidence"]
    assert (commit["source"], commit["record_partition"], commit["record_offset"]) == ("commit", 9, 400)
    assert commit["shows"].startswith("a-1: gone 1000 ms after the last commit")
    group = {"group_id": "billing", "incarnation": 1, "record_partition": 9}
    memberships = pa.Table.from_pylist(
        [
            {**whose, **group, "ended": "left_or_expired", "ended_because": "?"}
            for whose in (
                {"member_id": "a-1", "left_generation": 4},
                {"member_id": "a-1", "left_generation": 3},
                {"member_id": "b-1", "left_generation": 4},
            )
        ]
        + [{**group, "member_id": "c-1"}],
        table_schema("memberships"),
    )
    rows = fill_departures(
        rebalances(), lambda *_: ds.dataset(commits_of([("billing", 0, 1, 5, 400)])), "default", LOOKBACK
    )
    ended = ended_by_commits(memberships, rows)
    assert ended["ended"].to_pylist() == ["left", UNKNOWN, UNKNOWN, None]
    assert ended["rule"].to_pylist() == ["AFTER_COMMIT", None, None, None]
    assert ended["ruled_out"][0].as_py() == row["ruled_out"]
    assert ended["evidence"].to_pylist() == [[{**commit, "record_partition": 9}], None, None, None]


def test_silent_member_needs_others_that_went_on() -> None:
    """Twenty commits, each of more, and then none for a session."""
    own = [("billing", 0, seconds, 200 - seconds, 400 - seconds) for seconds in range(46, 66)]
    row, found = filled(commits_of(own))
    assert (row["cause"], found["ended"], found["others_advanced"]) == ("member_left_or_expired", UNKNOWN, None)
    idle = [("billing", 2, seconds, 7, 480 - seconds) for seconds in (1, 20, 40)]
    assert filled(commits_of(own + idle))[1]["ended"] == UNKNOWN
    busy = [("billing", 2, seconds, 90 - seconds, 480 - seconds) for seconds in (1, 20, 40)]
    row, found = filled(commits_of(own + busy))
    assert (row["cause"], found["ended"], found["others_advanced"]) == ("member_expired", "expired", True)


def test_departure_without_partitions_is_not_open() -> None:
    assert not is_open(departure(owned=[]))
    assert is_open(departure())
