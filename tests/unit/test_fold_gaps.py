"""Where history begins and after a stop: compaction may have taken records, and no state from before is invented.

Compaction keeps the newest record of each key: what is left of a group that the broker assigns is in any order.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from grouptrail.history.operations import Record
from support.fold_records import (
    DAY,
    HOUR,
    at_once,
    classic,
    current,
    epoch,
    first_epoch,
    joins,
    last,
    leaves,
    states,
    target,
    target_epoch,
)
from support.group_records import fold, gone

READ_AT = 9 * DAY


def late(records: Sequence[Record], read_at: int = READ_AT) -> list[Record]:
    return [record._replace(read_late_at=read_at) for record in records]


def second_joins(offset: int, at: int, number: int = 3) -> list[Record]:
    """Return the join of a second member, and 500 ms later what the first one does."""
    records = [joins(offset, at, "b", clientHost="/10.0.0.2"), epoch(offset + 1, at, number)]
    records += [target(offset + 2, at, "b", [1]), target_epoch(offset + 3, at, number)]
    records.append(current(offset + 4, at, "b", number, [1], previous=0))
    return [*records, current(offset + 5, at + 500, "a", number, [0], previous=number - 1)]


def compacted() -> list[Record]:
    """Return what is left of a group in epoch 12: a member's records are newer than the epoch's."""
    records = [
        epoch(100, HOUR, 12),
        target_epoch(103, HOUR, 12),
        joins(500, 5 * HOUR, "a"),
        target(510, 5 * HOUR, "a", [0]),
    ]
    return [*records, current(520, 5 * HOUR + 7, "a", 12, [0], previous=12)]


# --- a first read


def test_first_read_of_a_compacted_group_claims_no_state_before_its_last_record() -> None:
    rows = fold(compacted())
    assert [one for one in states(rows) if one[3] is None] == [("Stable", "inferred", 5 * HOUR + 7, None)]
    assert all(ended == started for _, _, started, ended in states(rows) if ended is not None)


def test_first_read_of_a_compacted_group_has_no_duration_and_no_time_of_stability() -> None:
    rows = fold(compacted())
    assert (last(rows)["duration_ms"], last(rows)["ended_at"], last(rows, "generations")["stable_at"]) == (None,) * 3


@pytest.mark.parametrize("ends", ["its key was read before", "it was read at once"])
def test_state_becomes_recorded_from_the_last_record_on_when_nothing_can_be_missing(ends: str) -> None:
    joined = [joins(600, 7 * HOUR, "b"), current(601, 7 * HOUR, "b", 12, [], state=2, previous=0)]
    after = [current(600, 7 * HOUR, "a", 12, [0])] if ends.startswith("its") else at_once(joined)
    rows = fold([*compacted(), *after])
    assert ("Stable", "recorded", 5 * HOUR + 7, None if ends.startswith("its") else 7 * HOUR) in states(rows)


def test_static_member_that_came_back_in_a_compacted_group_leaves_no_empty_group() -> None:
    """GMM.replaceMember writes no epoch: nothing of the member under its old id is left."""
    records = [epoch(100, HOUR, 12), target_epoch(103, HOUR, 12), *leaves(500, 5 * HOUR, "old")]
    records += [joins(503, 5 * HOUR, "new", instanceId="s"), target(504, 5 * HOUR, "new", [0, 1])]
    records += [current(505, 5 * HOUR, "new", 0, [0, 1]), current(506, 5 * HOUR, "new", 12, [0, 1], previous=0)]
    rows = fold(records)
    assert [(state, evidence) for state, evidence, _, ended in states(rows) if ended is None] == [
        ("Stable", "inferred")
    ]
    assert ("Empty", "recorded") not in [one[:2] for one in states(rows)]


def test_reconciliation_that_only_compaction_shows_is_not_recorded() -> None:
    """B's assignment was written again later: until that is read, it looks as if b had to reconcile."""
    records = [joins(90, HOUR, "a"), joins(91, HOUR, "b"), epoch(100, HOUR, 12), target_epoch(103, HOUR, 12)]
    records += [current(104, HOUR, "a", 12, [0]), current(900, 9 * HOUR, "b", 12, [1])]
    rows = fold(records)
    assert [one for one in states(rows) if one[1] == "recorded"] == []
    assert states(rows)[-1] == ("Stable", "inferred", 9 * HOUR, None)


def test_group_that_is_read_from_its_beginning_has_recorded_states_and_durations() -> None:
    rows = fold(at_once([*first_epoch(0), *second_joins(10, 60_000)]))
    assert {one[1] for one in states(rows)} == {"recorded"}
    assert [(row["duration_ms"], row["ended_at"]) for row in rows["rebalances"]] == [(0, 1_000), (500, 60_500)]
    assert [row["stable_at"] for row in rows["generations"]] == [1_000, 60_500]


def test_group_that_seems_to_begin_has_its_states_though_they_are_not_certain() -> None:
    """Nothing says when its records were read, as in warehouses of version 0.1."""
    rows = fold([*first_epoch(0), *second_joins(10, 60_000)])
    assert states(rows) == [
        ("Stable", "recorded", 1_000, 60_000),
        ("Reconciling", "recorded", 60_000, 60_500),
        ("Stable", "recorded", 60_500, None),
    ]
    assert [one[1] for one in states(fold(first_epoch(0)))] == ["inferred"]


def test_classic_group_has_a_recorded_state_from_its_first_record_on() -> None:
    """One record says all of the group, and compaction leaves the newest."""
    rows = fold([classic(50, HOUR, 57, {"a": {"orders": [0]}}), classic(60, 2 * HOUR, 58, {"a": {"orders": [0]}})])
    assert [one for one in states(rows) if one[0] == "Stable"] == [
        ("Stable", "recorded", HOUR, 2 * HOUR),
        ("Stable", "recorded", 2 * HOUR, None),
    ]


def test_removal_before_which_records_may_be_missing_is_over_at_once() -> None:
    """Another group may have begun since then: its records are gone or come later."""
    records = [gone(6, HOUR), epoch(100, 5 * HOUR, 12), target_epoch(103, 5 * HOUR, 12), joins(500, 9 * HOUR, "a")]
    rows = fold(records)
    assert states(rows)[0] == ("Dead", "inferred", HOUR, HOUR)


# --- after a stop


def known() -> list[Record]:
    return at_once(first_epoch(0))


def test_state_before_a_stop_is_known_up_to_its_last_record() -> None:
    rows = fold([*known(), *late([current(900, 5 * HOUR, "a", 7, [0], previous=6)])])
    assert states(rows) == [("Stable", "recorded", 1_000, 1_000), ("Reconciling", "inferred", 5 * HOUR, None)]
    assert last(rows, "group_states")["not_before"] == 1_000


def test_epoch_after_a_stop_has_no_duration_until_all_its_records_are_read() -> None:
    missed = late(
        [joins(800, 4 * HOUR, "b", clientHost="/10.0.0.2"), epoch(900, 5 * HOUR, 7), target_epoch(901, 5 * HOUR, 7)]
    )
    missed += late([current(902, 5 * HOUR, "a", 7, [0], previous=6), current(950, 6 * HOUR, "b", 7, [1], previous=7)])
    rows = fold([*known(), *missed])
    assert (last(rows)["duration_ms"], last(rows)["ended_at"], last(rows)["seconds_since_previous"]) == (None,) * 3
    then = fold([*known(), *missed, *second_joins(1_000, 7 * HOUR, 8)])
    assert last(then)["seconds_since_previous"] == 2 * 3_600


def test_records_read_together_after_a_stop_are_complete_from_the_second_of_a_key_on() -> None:
    missed = late([*second_joins(900, 5 * HOUR), current(950, 6 * HOUR, "a", 3, [0]), joins(960, 7 * HOUR, "a")])
    rows = fold([*known(), *missed])
    assert states(rows)[-1] == ("Stable", "recorded", 5 * HOUR + 500, None)


def test_state_of_a_classic_group_lasts_over_a_stop_where_no_generation_can_be_missing() -> None:
    a = {"a": {"orders": [0]}}
    rows = fold([classic(1, 1_000, 5, a), *late([classic(2, HOUR, 6, a, state_at=HOUR - 100)])])
    assert states(rows)[0] == ("Stable", "recorded", 1_000, HOUR - 100)
    assert last(rows)["duration_ms"] == 100


@pytest.mark.parametrize(("number", "name"), [(7, "a"), (6, "b")], ids=["one is skipped", "another group"])
def test_state_of_a_classic_group_is_not_known_where_a_generation_may_be_missing(number: int, name: str) -> None:
    before = classic(1, 1_000, 5, {"a": {"orders": [0]}})
    rows = fold([before, *late([classic(2, HOUR, number, {name: {"orders": [0]}}, state_at=HOUR - 100)])])
    assert states(rows)[:1] == [("Stable", "recorded", 1_000, 1_000)]
    assert (last(rows, "group_states")["not_before"], last(rows)["seconds_since_previous"]) == (1_000, None)


def test_removal_after_a_stop_does_not_prolong_the_state_before_it() -> None:
    rows = fold(
        [classic(1, 1_000, 5, {}, state_at=900), classic(2, 2_000, 6, {}, state_at=1_900), *late([gone(9, 5 * DAY)])]
    )
    assert states(rows)[-2:] == [("Empty", "recorded", 1_900, 2_000), ("Dead", "inferred", 5 * DAY, None)]


@pytest.mark.parametrize("cut", range(1, 12))
def test_rows_around_a_stop_do_not_depend_on_how_the_records_are_cut(cut: int) -> None:
    records = [*known(), *late([*second_joins(900, 5 * HOUR), current(950, 6 * HOUR, "a", 3, [0])])]
    calls = [(cut, records[cut - 1].offset + 1), (len(records), 10_000)]
    assert fold(records, calls) == fold(records)
