"""EMPTY, the verdict that alerts leave out: only where the partition's last owner provably left by itself."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from grouptrail.lag.calculator import LagCalculator, Rules
from grouptrail.lag.departures import LOG_ENDS
from grouptrail.lag.group_status import LAST_OWNERS, NO_LAST_OWNERS, GroupStatus
from grouptrail.lag.positions import COMMITS
from grouptrail.lag.verdict import Thresholds
from grouptrail.storage.schema import table_schema

NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
LOGS = table_schema("log_offsets")
HOUR, DAY = 3600, 86_400
ENDED = "left_or_expired"

Row = dict[str, Any]


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def commit(seconds: float, offset: int, partition: int = 0, **more: Any) -> Row:
    """Return a plain commit of group billing to orders."""
    where = {"cluster": "c", "group_id": "billing", "topic": "orders", "partition": partition, "record_partition": 7}
    record = {"record_offset": round(seconds * 1000) + 10_000_000, "record_at": at(seconds), "commit_at": at(seconds)}
    plain = {"committed_offset": offset, "is_tombstone": False, "is_transactional": False}
    return where | record | plain | more


def log(seconds: float, end: int, partition: int = 0) -> Row:
    where = {"cluster": "c", "topic": "orders", "partition": partition}
    bounds = {"log_start_offset": 0, "last_stable_offset": end, "log_end_offset": end}
    return where | bounds | {"sampled_at": at(seconds), "asked_at": at(seconds)}


def owner(
    partition: int = 0,
    member: str = "a",
    *,
    has_left: bool = False,
    joined: float | None = -100,
    session: float | None = 45,
    poll: float | None = 300,
) -> Row:
    """Return the last owner of a partition of orders, a classic member unless `joined` is None."""
    owned = {"group_id": "billing", "topic": "orders", "partition": partition, "member_id": member}
    times = {"joined_at": None, "session_ms": None, "poll_ms": None}
    if joined is not None and session is not None and poll is not None:
        times = {"joined_at": at(joined), "session_ms": round(session * 1000), "poll_ms": round(poll * 1000)}
    return owned | {"has_left": has_left} | times


EMPTY = GroupStatus("Empty", emptied_at=at(0), endings=frozenset({ENDED}), emptied_offset=10_000_000)


def statuses(
    commits: list[Row],
    owners: list[Row],
    group: GroupStatus = EMPTY,
    *,
    after: float = 1_000,
    log_ends: Mapping[int, tuple[int, int]] | None = None,
    thresholds: Thresholds | None = None,
) -> dict[int, tuple[str, str]]:
    """Return status and reason of each partition of billing, which became Empty at 0, so many seconds later.

    `log_ends`: the lowest and the highest log end by partition that were sampled in the minutes before.
    """
    periods: list[Any] = []

    def find(wanted: Mapping[str, tuple[datetime, datetime]]) -> pa.Table:
        periods.append(wanted)
        ends = [
            {"group_id": "billing", "topic": "orders", "partition": number, "lowest": lowest, "highest": highest}
            for number, (lowest, highest) in (log_ends or {}).items()
        ]
        return pa.Table.from_pylist(ends, LOG_ENDS)

    calculator = LagCalculator("c", Rules(thresholds or Thresholds()), find)
    calculator.positions.add(pa.Table.from_pylist(commits, COMMITS))
    partitions = sorted({one["partition"] for one in commits})
    for seconds, end in ((-10, 1_000), (20, 2_000), (after, 3_000)):
        calculator.add_sample(pa.Table.from_pylist([log(seconds, end, number) for number in partitions], LOGS))
        rows = calculator.compute({"billing": group}, last_owners=pa.Table.from_pylist(owners, LAST_OWNERS))
    assert len(periods) <= 1  # the answer is kept
    return {row["partition"]: (row["status"], row["status_reason"]) for row in rows.to_pylist()}


def status(*args: Any, **more: Any) -> str:
    [(found, _)] = statuses(*args, **more).values()
    return found


@pytest.mark.parametrize(
    ("endings", "is_empty"),
    [({"left"}, True), ({ENDED}, False), ({"expired"}, False), ({"left", "expired"}, False), (set(), False)],
)
def test_status_without_known_owners_is_empty_only_if_all_members_left(endings: set[str], *, is_empty: bool) -> None:
    group = GroupStatus("Empty", emptied_at=at(0), endings=frozenset(endings))
    assert status([commit(-1, 900)], [], group) == ("EMPTY" if is_empty else "STOP")


def test_status_owner_committed_within_its_session_timeout_is_empty() -> None:
    """It joined less than its poll timeout before, so that it cannot have left because nobody polled."""
    assert statuses([commit(-10, 900)], [owner()]) == {
        0: ("EMPTY", "the partition's last owner left the group on purpose, with 2100 unread")
    }


@pytest.mark.parametrize(
    ("committed", "one", "why"),
    [
        (-42, owner(), "its session may have expired: two coordinators' clocks may differ by 5 s"),
        (-4, owner(session=6), "its session may have expired"),
        (-1, owner(joined=None), "a KIP-848 member: commits keep no session alive"),
        (-1, owner(joined=-1_000), "it may not have polled for 300 s"),
        (-1, owner(joined=-297), "it may not have polled: the clocks"),
    ],
)
def test_status_owner_that_may_have_died_is_stop(committed: float, one: Row, why: str) -> None:
    assert status([commit(committed, 900)], [one]) == "STOP", why


@pytest.mark.parametrize("is_transactional", [True, None])
def test_status_commit_that_may_be_transactional_is_no_sign_of_life(*, is_transactional: bool | None) -> None:
    """Transactional commits keep no session alive; an older version stored no difference."""
    assert status([commit(-1, 900, is_transactional=is_transactional)], [owner()]) == "STOP"


@pytest.mark.parametrize(("lowest", "expected"), [(899, "EMPTY"), (900, "STOP"), (None, "STOP")])
def test_status_owner_that_read_recent_records_has_polled(lowest: int | None, expected: str) -> None:
    """It has committed past a log end that was sampled within its poll timeout before the end."""
    ends = {} if lowest is None else {0: (lowest, 1_000)}
    assert status([commit(-1, 900)], [owner(joined=-10_000)], log_ends=ends) == expected


def test_status_owner_that_left_by_itself_needs_no_commit() -> None:
    """The history shows it: sooner than any timeout."""
    assert status([commit(-5_000, 900)], [owner(has_left=True)]) == "EMPTY"


def test_status_each_partition_depends_on_its_own_last_owner() -> None:
    """Member a commits and closes; b was killed before, and its session expires when the group becomes Empty."""
    found = statuses([commit(-5, 900), commit(-43, 900, 1)], [owner(0, "a"), owner(1, "b")])
    assert {partition: one for partition, (one, _) in found.items()} == {0: "EMPTY", 1: "STOP"}


def test_status_commit_to_one_partition_shows_that_the_owner_of_others_lived() -> None:
    """All of a member's commits keep its session alive: it has had nothing to commit to its other partition."""
    found = statuses([commit(-5, 900), commit(-400, 900, 1)], [owner(0, "a"), owner(1, "a")])
    assert {one for one, _ in found.values()} == {"EMPTY"}


def test_status_partition_without_a_last_owner_is_stop_if_a_member_may_have_died() -> None:
    found = statuses([commit(-5, 900), commit(-5, 900, 1)], [owner(0, "a")])
    assert {partition: one for partition, (one, _) in found.items()} == {0: "EMPTY", 1: "STOP"}


def test_status_partition_with_two_last_owners_needs_that_both_left() -> None:
    """It was handed over within the last second."""
    assert status([commit(-5, 900)], [owner(0, "a", has_left=True), owner(0, "b", joined=None)]) == "STOP"


@pytest.mark.parametrize("moment", [0.001, 5, 500])
def test_status_commit_after_the_end_makes_it_a_group_without_members(moment: float) -> None:
    """By the record's offset, whatever the clocks say."""
    late = commit(-1, 900, record_offset=10_000_000 + round(moment * 1000))
    assert status([late], [owner(has_left=True)]) == "STOP"


def test_status_commit_after_the_end_counts_for_all_partitions_of_the_group() -> None:
    found = statuses(
        [commit(-5, 900), commit(5, 900, 1)], [owner(0, "a", has_left=True), owner(1, "a", has_left=True)]
    )
    assert "EMPTY" not in {one for one, _ in found.values()}


def test_status_of_a_sample_from_before_the_end_is_not_empty() -> None:
    """Samples that are processed late see a history that is newer than they are."""
    assert status([commit(-1, 900)], [owner(has_left=True)], EMPTY.__class__("Empty", emptied_at=at(2_000))) == "STOP"


@pytest.mark.parametrize(
    ("history", "away", "expected"),
    [
        ({}, DAY - 10, "EMPTY"),
        ({}, DAY + 10, "STOP"),
        # A nightly job: away for 23 hours each time.
        ({"pauses": 10, "longest_pause_seconds": 23 * HOUR, "known_since": at(-10 * DAY)}, 34 * HOUR, "EMPTY"),
        ({"pauses": 10, "longest_pause_seconds": 23 * HOUR, "known_since": at(-10 * DAY)}, 35 * HOUR, "STOP"),
        # A weekly one, whose history has a single pause.
        ({"pauses": 1, "longest_pause_seconds": 7 * DAY, "known_since": at(-8 * DAY)}, 8 * DAY, "EMPTY"),
        # Deployed three times, for a minute each.
        ({"pauses": 3, "longest_pause_seconds": 60, "known_since": at(-5 * HOUR)}, 290, "EMPTY"),
        ({"pauses": 3, "longest_pause_seconds": 60, "known_since": at(-5 * HOUR)}, 310, "STOP"),
        # There for two days, and never away.
        ({"known_since": at(-2 * DAY)}, 310, "STOP"),
        ({"known_since": at(-2 * HOUR)}, 310, "EMPTY"),
        ({"pauses": 2, "longest_pause_seconds": 60, "known_since": at(-2 * HOUR)}, 3 * HOUR, "EMPTY"),
    ],
)
def test_status_of_a_group_that_stays_away_for_longer_than_it_used_to_is_stop(
    history: Row, away: float, expected: str
) -> None:
    group = GroupStatus("Empty", emptied_at=at(0), endings=frozenset({"left"}), **history)
    assert status([commit(-1, 900)], [owner(has_left=True)], group, after=away) == expected


def test_status_of_a_group_that_stays_away_says_that_it_left_on_purpose() -> None:
    short = Thresholds(empty_seconds=900)
    assert statuses([commit(-1, 900)], [owner(has_left=True)], thresholds=short)[0] == (
        "STOP",
        "the partition's last owner left the group on purpose, but for 1000 s nobody has come back: "
        "2100 unread, the first of them for 1010 s",
    )


NIGHTLY: Row = {"pauses": 3, "longest_pause_seconds": 3_000, "known_since": at(-DAY)}


@pytest.mark.parametrize(
    ("history", "highest", "after", "expected"),
    [
        (NIGHTLY, 900, 4_400, "EMPTY"),
        (NIGHTLY, 900, 4_600, "STOP"),
        (NIGHTLY, 901, 4_400, "STOP"),
        (NIGHTLY, None, 4_400, "STOP"),
        (NIGHTLY | {"pauses": 2}, 900, 4_400, "STOP"),
    ],
)
def test_status_of_a_group_that_had_read_all_and_pauses_as_it_used_to_is_empty(
    history: Row, highest: int | None, after: float, expected: str
) -> None:
    """A KIP-848 or exactly-once group: what it writes does not show whether its members left or died."""
    group = GroupStatus("Empty", emptied_at=at(0), endings=frozenset({ENDED}), emptied_offset=10_000_000, **history)
    ends = {} if highest is None else {0: (800, highest)}
    [(found, why)] = statuses([commit(-1, 900)], [owner(joined=None)], group, after=after, log_ends=ends).values()
    assert found == expected
    if expected == "EMPTY":
        assert why == "the group had read all and pauses as usual, with 2100 unread"


def test_status_of_a_group_that_stays_away_without_records_is_ok_until_one_has_waited() -> None:
    """Nothing waits, so that nobody is missed."""
    calculator = LagCalculator("c", Rules(Thresholds(empty_seconds=900)))
    calculator.positions.add(pa.Table.from_pylist([commit(-1, 900)], COMMITS))
    group = {"billing": GroupStatus("Empty", emptied_at=at(0), endings=frozenset({"left"}))}
    found = {}
    for seconds, end in ((10, 900), (2_000, 900), (2_010, 950), (2_200, 960), (2_320, 970)):
        calculator.add_sample(pa.Table.from_pylist([log(seconds, end)], LOGS))
        [row] = calculator.compute(group, last_owners=NO_LAST_OWNERS).to_pylist()
        found[seconds] = row["status"]
    assert found == {10: "OK", 2_000: "OK", 2_010: "OK", 2_200: "OK", 2_320: "STOP"}
