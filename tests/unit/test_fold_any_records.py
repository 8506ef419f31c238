"""Records in any order, cut, doubled or missing: no error, no count below zero, no interval that ends too early."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from grouptrail.history.operations import Record
from support.fold_records import (
    classic,
    commit_tombstone,
    consumer,
    current,
    epoch,
    joins,
    leaves,
    regex,
    target,
    target_epoch,
)
from support.group_records import KeyedRows, fold_in_pieces, gone

_INTERVALS = {
    "generations": ("started_at", "ended_at"),
    "group_states": ("started_at", "ended_at"),
    "memberships": ("joined_at", "left_at"),
    "partition_ownership": ("owned_from", "owned_until"),
    "task_assignments": ("assigned_from", "assigned_until"),
    "streams_topology": ("known_from", "known_until"),
    "rebalances": ("at", "ended_at"),
}
_COUNTS = ("partitions_added", "partitions_removed", "partitions_moved", "partitions_kept", "followed_within_minute")
_NAMES = {"T": "orders"}


class Coordinator:
    """Writes the records of operations on one group, as a broker of 4.2 does."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.at = 1_000_000
        self._offset = 0
        self._epoch = 0
        self._members: list[str] = []
        self._joined = 0
        self._read_late_at: int | None = None

    def _write(self, *records: Record) -> None:
        for record in records:
            self.records.append(record._replace(offset=self._offset, at=self.at, read_late_at=self._read_late_at))
            self._offset += 1

    def do(self, operation: str, which: int) -> None:
        """Write one operation; `which` selects its member."""
        if operation == "join":
            self._joined += 1
            self._members.append(f"m{self._joined}")
            self._epoch += 1
            name = self._members[-1]
            self._write(joins(0, 0, name), epoch(0, 0, self._epoch), *self._targets())
            self._write(current(0, 0, name, self._epoch, [len(self._members) - 1], previous=0))
        elif operation == "pattern":
            self._write(regex(0, 0, "^o.*", "orders", *("other" for _ in range(which % 2))))
        elif operation == "gap":
            self._offset += 1 + which
        elif operation == "late":
            self._read_late_at = which or None
        elif operation == "classic":
            self._write(classic(0, 0, which, {"a": {"orders": [0]}, "b": {"orders": [1]}}))
        elif operation == "removal":
            self._write(commit_tombstone(0, 0), gone(0, 0), consumer(0, 0, "Metadata", None, None))
            self._epoch, self._members = 0, []
        elif self._members:
            self._to_member(operation, self._members[which % len(self._members)])

    def _targets(self) -> list[Record]:
        listed = [target(0, 0, name, [number]) for number, name in enumerate(self._members)]
        return [*listed, target_epoch(0, 0, self._epoch)]

    def _to_member(self, operation: str, name: str) -> None:
        if operation == "leave":
            self._members.remove(name)
            self._epoch += 1
            self._write(*leaves(0, 0, name), epoch(0, 0, self._epoch))
        elif operation == "metadata":
            self._epoch += 1
            self._write(epoch(0, 0, self._epoch, metadataHash=self._epoch), *self._targets())
        elif operation == "settle":
            self._write(current(0, 0, name, self._epoch, [self._members.index(name)]))
        elif operation == "revoke":
            self._write(current(0, 0, name, self._epoch, [], state=1, pending=([self._members.index(name)], "T")))


_KINDS = (
    *("join", "join", "leave", "metadata", "settle", "settle"),
    *("revoke", "pattern", "gap", "classic", "removal", "late"),
)
_OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(_KINDS),
        st.integers(0, 5),
        st.sampled_from([0, 0, 1, 500, 70_000, -20_000]),
    ),
    min_size=1,
    max_size=25,
)


def logged(operations: list[tuple[str, int, int]]) -> list[Record]:
    coordinator = Coordinator()
    for operation, which, later in operations:
        coordinator.at += later
        coordinator.do(operation, which)
    return coordinator.records or [gone(0, coordinator.at)]


def assert_sound(rows: KeyedRows) -> None:
    for (table, *_), row in rows.items():
        begun, ended = _INTERVALS[table]
        assert row[ended] is None or row[begun] <= row[ended], (table, row)
        if table == "rebalances":
            assert all(row[count] >= 0 for count in _COUNTS), row
            assert all(row[name] is None or row[name] >= 0 for name in ("skipped", "seconds_since_previous"))
            assert row["duration_ms"] is None or row["duration_ms"] >= 0
            assert all(one["given_up_at"] <= one["taken_at"] for one in row["handed_over"])
        if table == "group_states":
            assert row["not_before"] is None or row["not_before"] <= row["started_at"]


@given(_OPERATIONS, st.lists(st.integers(0, 100)))
def test_rows_of_a_consumer_group_do_not_depend_on_the_cut(
    operations: list[tuple[str, int, int]], cuts: list[int]
) -> None:
    records = logged(operations)
    whole = fold_in_pieces(records, names=_NAMES)
    assert fold_in_pieces(records, cuts, _NAMES) == whole
    assert_sound(whole)


@given(_OPERATIONS, st.randoms(use_true_random=False))
def test_rows_of_shuffled_doubled_and_missing_records_are_sound(
    operations: list[tuple[str, int, int]], random: Any
) -> None:
    records = logged(operations)
    mixed = random.choices(records, k=len(records)) + random.sample(records, k=len(records) // 2)
    placed = [record._replace(offset=offset) for offset, record in enumerate(mixed)]
    assert_sound(fold_in_pieces(placed, names=_NAMES))
