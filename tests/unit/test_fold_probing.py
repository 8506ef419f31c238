"""Causes of rebalances that only the user data of a classic Kafka Streams application show."""

from __future__ import annotations

import pytest

from grouptrail.history.operations import Record
from support.group_records import Row, fold
from support.streams_user_data import NO_REBALANCE, Members, application, assignment, subscription

DUE = 600_000
POLL_TIMEOUT_MS = 60_000
A, B = subscription(1, "app-1:8080"), subscription(2, "app-2:8080")


def members(next_rebalance: int = NO_REBALANCE, *, a: tuple[int, ...] = (0,)) -> Members:
    """Return two members of which `a` is asked to join again at a time (ms), and has these partitions."""
    return {
        "a": ({"lines": list(a)}, A, assignment([(0, number) for number in a], next_rebalance=next_rebalance)),
        "b": ({"lines": [1]}, B, assignment([(0, 1)], [(0, 0)])),
    }


def last_rebalance(*log: Record) -> Row:
    rows = fold(log)
    assert fold(log, cuts=range(len(log))) == rows
    return rows["rebalances"][-1]


@pytest.mark.parametrize("at", [DUE, DUE + 2 * POLL_TIMEOUT_MS])
def test_generation_after_the_time_to_join_again_is_a_probing_rebalance(at: int) -> None:
    """Nothing else differs; as other causes may leave no trace, it is not certain."""
    row = last_rebalance(application(1, 1_000, 1, members(DUE)), application(2, at, 2, members()))
    assert (row["cause"], row["certainty"]) == ("probing_rebalance", "likely")
    assert "a was to join again at 1970-01-01 00:10:00 UTC" in row["cause_note"]


def test_generation_after_the_time_to_join_again_may_take_tasks_away() -> None:
    """A standby has caught up and is to take over a task, once its owner has given it up."""
    row = last_rebalance(application(1, 1_000, 1, members(DUE)), application(2, DUE + 50, 2, members(a=())))
    assert (row["cause"], row["certainty"]) == ("probing_rebalance", "likely")


@pytest.mark.parametrize("at", [DUE - 1, DUE + 2 * POLL_TIMEOUT_MS + 1])
def test_generation_at_another_time_is_no_probing_rebalance(at: int) -> None:
    row = last_rebalance(application(1, 1_000, 1, members(DUE)), application(2, at, 2, members()))
    assert row["certainty"] == "ambiguous"
    assert row["cause"] != "probing_rebalance"


@pytest.mark.parametrize("next_rebalance", [0, NO_REBALANCE])
def test_generation_of_which_none_was_to_join_again_is_no_probing_rebalance(next_rebalance: int) -> None:
    """0 asks for a rebalance at once, so that others give their tasks up."""
    row = last_rebalance(application(1, 0, 1, members(next_rebalance)), application(2, 50, 2, members()))
    assert row["cause"] != "probing_rebalance"


def test_generation_with_another_visible_cause_is_no_probing_rebalance() -> None:
    """Partitions are new, a member is gone, or a generation is missing."""
    first = application(1, 1_000, 1, members(DUE))
    more = application(2, DUE, 2, members(a=(0, 2)))
    alone = application(2, DUE, 2, {"a": members()["a"]})
    skipped = application(2, DUE, 3, members())
    causes = [last_rebalance(first, second)["cause"] for second in (more, alone, skipped)]
    assert "probing_rebalance" not in causes
    assert causes[0] == "partitions_added"


@pytest.mark.parametrize(
    ("code", "name"), [(1, "INCOMPLETE_SOURCE_TOPIC_METADATA"), (4, "SHUTDOWN_REQUESTED"), (9, "error 9")]
)
def test_assignment_with_an_error_has_no_cause_but_names_it(code: int, name: str) -> None:
    """It assigns nothing; that is no sign that topics were deleted."""
    failed: Members = {name: ({}, user, assignment(error=code)) for name, user in (("a", A), ("b", B))}
    row = last_rebalance(application(1, 1_000, 1, members()), application(2, 5_000, 2, failed))
    assert (row["cause"], row["certainty"]) == ("unknown", "ambiguous")
    assert row["cause_note"].startswith(f"the application's leader assigned nothing: {name}")
