"""The delivery states of share groups, folded from the records of their state."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from grouptrail.share_state.deliveries import Deliveries, PartitionState, StateBatch
from grouptrail.storage.positions import CAME_BACK

AVAILABLE, ACKNOWLEDGED, ARCHIVED = 0, 2, 4
NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
Row = dict[str, Any]
_OF_BATCH = ("first_offset", "last_offset", "delivery_state", "delivery_count")


def record(offset: int, *batches: tuple[int, int, int, int], **more: Any) -> Row:
    """Return a row of `share_group_state`: an update of snapshot 0, unless `more` says otherwise."""
    return {
        "record_partition": 3,
        "record_offset": offset,
        "record_at": NOW + timedelta(seconds=offset),
        "group_id": "queue",
        "topic_id": "b3JkZXJzb3JkZXJzb3JkZQ",
        "partition": 0,
        "record_type": "update",
        "snapshot_epoch": 0,
        "state_epoch": None,
        "start_offset": None,
        "state_batches": [dict(zip(_OF_BATCH, batch, strict=True)) for batch in batches],
        "is_tombstone": False,
        "reason": None,
        **more,
    }


def snapshot(offset: int, *batches: tuple[int, int, int, int], epoch: int = 0, **more: Any) -> Row:
    """Return a row of a snapshot."""
    of_snapshot = {"record_type": "snapshot", "snapshot_epoch": epoch, "state_epoch": 0, "start_offset": 0}
    return record(offset, *batches, **{**of_snapshot, **more})


def folded(*rows: Row) -> list[tuple[Any, ...]]:
    """Return the changes of rows in short: the offsets, state, count, count before, and whether it is the first."""
    deliveries = Deliveries()
    columns = ("first_offset", "last_offset", "delivery_state", "delivery_count", "previous_count", "is_first")
    changes = [change for row in rows for change in deliveries.add(row)]
    for change in changes:
        assert change["records"] == change["last_offset"] - change["first_offset"] + 1
        assert (change["redeliveries"] is None) == (change["previous_count"] is None)
    return [tuple(change[name] for name in columns) for change in changes]


def figures(*rows: Row) -> tuple[Any, ...]:
    """Return what the last of the rows says of the state after it."""
    deliveries = Deliveries()
    for row in rows:
        deliveries.add(row)
    return tuple(rows[-1][name] for name in CAME_BACK)


def test_changes_of_a_record_that_is_released_twice_and_given_up_have_the_counts_before() -> None:
    rows = [
        snapshot(0),
        record(1, (0, 9, AVAILABLE, 1)),
        record(2, (0, 3, ACKNOWLEDGED, 2), (4, 4, AVAILABLE, 2), (5, 9, ACKNOWLEDGED, 2)),
        record(3, (4, 4, ARCHIVED, 2)),
    ]
    assert folded(*rows) == [
        (0, 9, "available", 1, 0, False),
        (0, 3, "acknowledged", 2, 1, False),
        (4, 4, "available", 2, 1, False),
        (5, 9, "acknowledged", 2, 1, False),
        (4, 4, "archived", 2, 2, False),
    ]
    assert figures(*rows[:2]) == (10, 1, 0)
    assert figures(*rows[:3]) == (1, 2, 4)
    assert figures(*rows) == (0, 0, None)


def test_redeliveries_are_the_deliveries_after_the_first_of_each_record() -> None:
    deliveries = Deliveries()
    rows = [
        snapshot(0),
        record(1, (0, 9, ACKNOWLEDGED, 1)),
        record(2, (10, 12, AVAILABLE, 1)),
        record(3, (10, 11, AVAILABLE, 2), (13, 14, ARCHIVED, 3)),
        record(4, (10, 12, ACKNOWLEDGED, 4)),
    ]
    found = [[change["redeliveries"] for change in deliveries.add(row)] for row in rows]
    assert found == [[], [0], [0], [2, 4], [4, 3]]


def test_changes_of_a_batch_over_several_states_are_those_of_each() -> None:
    rows = [snapshot(0), record(1, (2, 3, AVAILABLE, 1), (6, 6, AVAILABLE, 3)), record(2, (0, 7, ACKNOWLEDGED, 2))]
    assert folded(*rows)[2:] == [
        (0, 1, "acknowledged", 2, 0, False),
        (2, 3, "acknowledged", 2, 1, False),
        (4, 5, "acknowledged", 2, 0, False),
        (7, 7, "acknowledged", 2, 0, False),
    ]
    assert figures(*rows) == (1, 3, 6)


def test_snapshot_that_repeats_the_state_changes_nothing_and_the_next_update_goes_on_from_it() -> None:
    rows = [
        snapshot(0),
        record(1, (0, 4, AVAILABLE, 1)),
        snapshot(2, (0, 4, AVAILABLE, 1), epoch=1),
        record(3, (0, 0, ACKNOWLEDGED, 2), snapshot_epoch=1),
    ]
    assert folded(*rows)[1:] == [(0, 0, "acknowledged", 2, 1, False)]


def test_first_snapshot_that_is_read_says_what_was_so_before() -> None:
    rows = [snapshot(7, (3, 5, AVAILABLE, 2)), record(8, (3, 3, ACKNOWLEDGED, 3))]
    assert folded(*rows) == [(3, 5, "available", 2, None, True), (3, 3, "acknowledged", 3, 2, False)]
    assert figures(*rows) == (2, 2, 4)


def test_update_without_its_snapshot_is_a_change_of_an_unknown_state() -> None:
    rows = [record(7, (3, 5, AVAILABLE, 2)), record(8, (4, 6, ACKNOWLEDGED, 3))]
    assert folded(*rows) == [
        (3, 5, "available", 2, None, False),
        (4, 5, "acknowledged", 3, 2, False),
        (6, 6, "acknowledged", 3, None, False),
    ]
    assert figures(*rows) == (None, None, None)
    assert folded(snapshot(0), record(7, (3, 5, AVAILABLE, 2), snapshot_epoch=4)) == [
        (3, 5, "available", 2, None, False)
    ]


def test_state_that_was_reset_or_deleted_begins_with_nothing() -> None:
    before = [snapshot(0), record(1, (0, 4, AVAILABLE, 2))]
    again = snapshot(2, (0, 0, ACKNOWLEDGED, 1), state_epoch=1, epoch=1)
    assert folded(*before, again)[1:] == [(0, 0, "acknowledged", 1, 0, False)]
    deleted = record(2, is_tombstone=True, state_batches=None, snapshot_epoch=None)
    assert figures(*before, deleted) == (None, None, None)
    assert figures(*before, deleted, snapshot(3)) == (0, 0, None)


def test_after_a_record_that_was_not_decoded_the_state_is_unknown_until_the_next_snapshot() -> None:
    broken = record(2, reason="unknown_version", state_batches=None, snapshot_epoch=None)
    rows = [snapshot(0), record(1, (0, 0, AVAILABLE, 1)), broken, record(3, (0, 0, ACKNOWLEDGED, 3))]
    assert folded(*rows)[1:] == [(0, 0, "acknowledged", 3, None, False)]
    assert figures(*rows[:3]) == figures(*rows) == (None, None, None)
    assert figures(*rows, snapshot(4, (0, 0, AVAILABLE, 3), epoch=1)) == (1, 3, 0)
    other = record(2, reason="unknown_version", state_batches=None, snapshot_epoch=None, group_id="other")
    assert figures(*rows[:2], other, record(3, (1, 1, AVAILABLE, 1))) == (2, 1, 0)


def test_after_records_that_were_deleted_unread_the_states_of_that_partition_are_unknown() -> None:
    """The updates that are missing may have changed the state, and belong to the same snapshot."""
    rows = [snapshot(0), record(1, (0, 0, AVAILABLE, 1)), record(7, (0, 0, ACKNOWLEDGED, 3))]
    assert folded(*rows)[1:] == [(0, 0, "acknowledged", 3, None, False)]
    assert figures(*rows) == (None, None, None)
    assert folded(*rows, snapshot(8, (1, 1, AVAILABLE, 2), epoch=1))[2:] == [(1, 1, "available", 2, None, True)]
    elsewhere = snapshot(20, record_partition=4, group_id="other")
    assert figures(*rows[:2], elsewhere, record(2, (1, 1, AVAILABLE, 1))) == (2, 1, 0)


BATCHES = st.builds(
    lambda first, length, state, count: StateBatch(first, first + length, state, count),
    st.integers(0, 12),
    st.integers(0, 6),
    st.sampled_from([AVAILABLE, ACKNOWLEDGED, ARCHIVED]),
    st.integers(0, 3),
)


@given(st.lists(st.tuples(st.lists(BATCHES, max_size=3), st.integers(0, 12)), max_size=6))
def test_state_of_any_batches_is_that_of_each_offset_on_its_own(
    steps: Sequence[tuple[Sequence[StateBatch], int]],
) -> None:
    state = PartitionState(is_whole=True)
    by_offset: dict[int, tuple[int, int]] = {}
    start_offset = 0
    for batches, start in steps:
        for batch in batches:
            changed = {
                offset: by_offset.get(offset, (0, -1))
                for offset in range(batch.first, batch.last + 1)
                if batch.rank > by_offset.get(offset, (-1, -1))
            }
            by_offset |= dict.fromkeys(changed, batch.rank)
            said = {
                offset: change
                for change in state.put(batch)
                for offset in range(change.batch.first, change.batch.last + 1)
            }
            assert {offset: change.previous_count for offset, change in said.items()} == {
                offset: count for offset, (count, _) in changed.items()
            }
            assert all(change.batch.rank == batch.rank for change in said.values())
        start_offset = max(start_offset, start)
        state.drop_before(start_offset)
        by_offset = {offset: rank for offset, rank in by_offset.items() if offset >= start_offset}
        assert {
            offset: batch.rank for batch in state.batches for offset in range(batch.first, batch.last + 1)
        } == by_offset
        for one, next_ in pairwise(state.batches):
            assert one.last < next_.first
            assert (one.last + 1, one.rank) != (next_.first, next_.rank)
