"""EMPTY, the verdict that alerts leave out: only where the partition's last owner provably left by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from grouptrail.lag.calculator import Rules
from grouptrail.lag.group_status import LAST_OWNERS, NO_LAST_OWNERS, GroupStatus
from grouptrail.lag.verdict import Thresholds
from support import lag_samples
from support.lag_samples import Row, add_sample, at, new_calculator

HOUR, DAY = 3600, 86_400
ENDED = "left_or_expired"


def commit(seconds: float, offset: int, partition: int = 0, **more: Any) -> Row:
    """Return a plain commit of group billing to orders."""
    return lag_samples.commit(seconds, offset, partition=partition, **{"is_transactional": False, **more})


def log(seconds: float, end: int, partition: int = 0) -> Row:
    return lag_samples.log(seconds, end, partition=partition)


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
    ends: tuple[tuple[float, int], ...] = ((-10, 1_000), (20, 2_000)),
    thresholds: Thresholds | None = None,
) -> dict[int, tuple[str, str]]:
    """Return status and reason of each partition of billing, which became Empty at 0, so many seconds later.

    `ends` are the log ends of all partitions that were sampled before.
    """
    calculator = new_calculator(*commits, rules=Rules(thresholds or Thresholds()))
    partitions = sorted({one["partition"] for one in commits})
    for seconds, end in (*ends, (after, 3_000)):
        add_sample(calculator, *(log(seconds, end, number) for number in partitions))
        rows = calculator.compute({"billing": group}, last_owners=pa.Table.from_pylist(owners, LAST_OWNERS))
    return {row["partition"]: (row["status"], row["status_reason"]) for row in rows.to_pylist()}


def status(*args: Any, **more: Any) -> str:
    [(verdict, _)] = statuses(*args, **more).values()
    return verdict


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
        (
            -1,
            owner(session=None),
            "a static member, which does not leave: an administrator may have removed a dead one",
        ),
        (-1, owner(joined=-297), "it may not have polled: the clocks"),
    ],
)
def test_status_owner_that_may_have_died_is_stop(committed: float, one: Row, why: str) -> None:
    assert status([commit(committed, 900)], [one]) == "STOP", why


@pytest.mark.parametrize("is_transactional", [True, None])
def test_status_commit_that_may_be_transactional_is_no_sign_of_life(*, is_transactional: bool | None) -> None:
    """Transactional commits keep no session alive; an older version stored no difference."""
    assert status([commit(-1, 900, is_transactional=is_transactional)], [owner()]) == "STOP"


@pytest.mark.parametrize(
    ("sampled", "end", "expected"), [(-290, 899, "EMPTY"), (-290, 900, "STOP"), (-297, 899, "STOP")]
)
def test_status_owner_that_read_recent_records_has_polled(sampled: float, end: int, expected: str) -> None:
    """It has committed past a log end that was sampled within its poll timeout before the end."""
    ends = ((sampled, end), (-10, 1_000), (20, 2_000))
    assert status([commit(-1, 900)], [owner(joined=-10_000)], ends=ends) == expected


@pytest.mark.parametrize("has_left", [True, False])
def test_status_owner_that_joined_again_may_not_have_polled(*, has_left: bool) -> None:
    """A client joins again in the background while its application does not poll, and is evicted soon after."""
    assert status([commit(-1, 900)], [owner(joined=-400, has_left=has_left)]) == "STOP"


def test_status_what_was_read_before_the_end_is_known_long_after() -> None:
    """The samples of that time are thinned by then."""
    ends = ((-290, 899), *((second, 1_000) for second in range(-280, 0, 10)))
    ends += tuple((second, 2_000) for second in range(10, 20_000, 600))
    assert status([commit(-1, 900)], [owner(joined=-10_000)], ends=ends, after=20_000) == "EMPTY"


def test_status_after_a_restart_is_that_of_an_uninterrupted_run() -> None:
    """What was read before the end is stored with the lag."""
    group = {"billing": replace(EMPTY, pauses=3, habitual_pause_seconds=DAY, longest_pause_seconds=DAY)}
    logs = [log(second, 900 if second < 5 else 1_000) for second in (-20, -10, 10, 400, 5_000)]
    running, stored = new_calculator(commit(-1, 900)), []
    for one in logs:
        add_sample(running, one)
        stored.append(running.compute(group))
    restarted = new_calculator(commit(-1, 900))
    for one in (logs[0], logs[-1]):
        add_sample(restarted, one)
        if one is logs[0]:
            restarted.add_stored_lag(stored[-2])
    [row] = restarted.compute(group).to_pylist()
    assert (row["status"], row["read_before_end"]) == ("EMPTY", "all")
    assert stored[-1]["status"].to_pylist() == ["EMPTY"]


def test_status_owner_that_left_by_itself_needs_no_commit() -> None:
    """The history shows it: sooner than any timeout."""
    assert status([commit(-5_000, 900)], [owner(has_left=True)]) == "EMPTY"


def test_status_partition_that_no_last_member_owned_is_stop_although_they_left() -> None:
    """Its own last owner may have died long before, and later members did not subscribe to its topic."""
    left = replace(EMPTY, endings=frozenset({"left"}))
    by_partition = statuses([commit(-5, 900), commit(-5, 900, 1)], [owner(0, "b", has_left=True)], left)
    assert {partition: one for partition, (one, _) in by_partition.items()} == {0: "EMPTY", 1: "STOP"}


def test_status_commit_long_after_the_end_by_another_clock_is_no_sign_of_life() -> None:
    """The coordinator's clock was set back by an hour."""
    early = commit(3_000, 900, record_offset=9_999_000)
    assert status([early], [owner(joined=2_000)], after=4_000) == "STOP"


def test_status_each_partition_depends_on_its_own_last_owner() -> None:
    """Member a commits and closes; b was killed before, and its session expires when the group becomes Empty."""
    by_partition = statuses([commit(-5, 900), commit(-43, 900, 1)], [owner(0, "a"), owner(1, "b")])
    assert {partition: one for partition, (one, _) in by_partition.items()} == {0: "EMPTY", 1: "STOP"}


def test_status_commit_to_one_partition_shows_that_the_owner_of_others_lived() -> None:
    """All of a member's commits keep its session alive: it has had nothing to commit to its other partition."""
    by_partition = statuses([commit(-5, 900), commit(-400, 900, 1)], [owner(0, "a"), owner(1, "a")])
    assert {one for one, _ in by_partition.values()} == {"EMPTY"}


def test_status_partition_without_a_last_owner_is_stop_if_a_member_may_have_died() -> None:
    by_partition = statuses([commit(-5, 900), commit(-5, 900, 1)], [owner(0, "a")])
    assert {partition: one for partition, (one, _) in by_partition.items()} == {0: "EMPTY", 1: "STOP"}


def test_status_partition_with_two_last_owners_needs_that_both_left() -> None:
    """It was handed over within the last second."""
    assert status([commit(-5, 900)], [owner(0, "a", has_left=True), owner(0, "b", joined=None)]) == "STOP"


@pytest.mark.parametrize("moment", [0.001, 5, 500])
def test_status_commit_after_the_end_makes_it_a_group_without_members(moment: float) -> None:
    """By the record's offset, whatever the clocks say."""
    late = commit(-1, 900, record_offset=10_000_000 + round(moment * 1000))
    assert status([late], [owner(has_left=True)]) == "STOP"


def test_status_commit_after_the_end_counts_for_all_partitions_of_the_group() -> None:
    by_partition = statuses(
        [commit(-5, 900), commit(5, 900, 1)], [owner(0, "a", has_left=True), owner(1, "a", has_left=True)]
    )
    assert "EMPTY" not in {one for one, _ in by_partition.values()}


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


NIGHTLY: Row = {
    "pauses": 3,
    "longest_pause_seconds": 90_000,
    "habitual_pause_seconds": 3_000,
    "known_since": at(-DAY),
}
READ_ALL = ((-10, 900), (20, 2_000))


@pytest.mark.parametrize(
    ("history", "ends", "after", "expected"),
    [
        (NIGHTLY, READ_ALL, 4_400, "EMPTY"),
        (NIGHTLY, READ_ALL, 4_600, "STOP"),
        (NIGHTLY, ((-10, 901), (20, 2_000)), 4_400, "STOP"),
        # The sample before the end is not close to it.
        (NIGHTLY, ((-40, 900), (20, 2_000)), 4_400, "STOP"),
        # There was none before the end, or none for long after.
        (NIGHTLY, ((20, 2_000),), 4_400, "STOP"),
        (NIGHTLY, ((-10, 900),), 4_400, "STOP"),
        (NIGHTLY | {"pauses": 2}, READ_ALL, 4_400, "STOP"),
    ],
)
def test_status_of_a_group_that_had_read_all_and_pauses_as_it_used_to_is_empty(
    history: Row, ends: tuple[tuple[float, int], ...], after: float, expected: str
) -> None:
    """A KIP-848 or exactly-once group: what it writes does not show whether its members left or died."""
    group = GroupStatus("Empty", emptied_at=at(0), endings=frozenset({ENDED}), emptied_offset=10_000_000, **history)
    [(status, why)] = statuses([commit(-1, 900)], [owner(joined=None)], group, after=after, ends=ends).values()
    assert status == expected
    if expected == "EMPTY":
        assert why == "the group had read all and pauses as usual, with 2100 unread"


def test_status_of_a_group_that_stays_away_without_records_is_ok_until_one_has_waited() -> None:
    """Nothing waits, so that nobody is missed."""
    calculator = new_calculator(commit(-1, 900), rules=Rules(Thresholds(empty_seconds=900)))
    group = {"billing": GroupStatus("Empty", emptied_at=at(0), endings=frozenset({"left"}))}
    statuses_of = {}
    for seconds, end in ((10, 900), (2_000, 900), (2_010, 950), (2_200, 960), (2_320, 970)):
        add_sample(calculator, log(seconds, end))
        [row] = calculator.compute(group, last_owners=NO_LAST_OWNERS).to_pylist()
        statuses_of[seconds] = row["status"]
    assert statuses_of == {10: "OK", 2_000: "OK", 2_010: "OK", 2_200: "OK", 2_320: "STOP"}
