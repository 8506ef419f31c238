"""The newest commit of each position, merged early or late."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grouptrail.lag import positions
from grouptrail.lag.positions import COMMITS, OF_TABLE, READ, Positions

START = datetime(2026, 11, 1, 12, tzinfo=UTC)

Commit = tuple[str, int, int | None, int, bool]
"""Group, partition, committed offset or None for a tombstone, the second it was made, and whether it is only live."""

COMMIT = st.tuples(
    st.sampled_from("abc"), st.integers(0, 1), st.none() | st.integers(0, 99), st.integers(0, 20), st.booleans()
)


def rows_of(commits: Sequence[tuple[int, Commit]]) -> pa.Table:
    rows = [
        dict.fromkeys(COMMITS.names)
        | {"cluster": "test", "record_partition": 0, "record_offset": number, "group_id": group}
        | {"topic": "orders", "partition": partition, "committed_offset": offset, "is_tombstone": offset is None}
        | {"record_at": START + timedelta(seconds=second)}
        for number, (group, partition, offset, second, _) in commits
    ]
    return pa.Table.from_pylist(rows, COMMITS)


def newest(commits: Sequence[tuple[int, Commit]]) -> dict[tuple[str, int], int]:
    last = {(group, partition): offset for _, (group, partition, offset, *_) in commits}
    return {place: offset for place, offset in last.items() if offset is not None}


def offsets_of(rows: pa.Table) -> dict[tuple[str, int], int]:
    assert rows.schema == READ
    return {(row["group_id"], row["partition"]): row["committed_offset"] for row in rows.to_pylist()}


@settings(max_examples=200)
@given(
    batches=st.lists(st.lists(COMMIT, max_size=6), max_size=6),
    untils=st.lists(st.integers(0, 25), max_size=6),
    is_first=st.booleans(),
    many=st.sampled_from([1, 4, 1000]),
)
def test_latest_is_the_newest_of_all_or_of_those_made_by_a_time(
    batches: list[list[Commit]], untils: list[int], is_first: bool, many: int
) -> None:
    """Whenever commits are merged, and whatever is asked between batches; times never go back."""
    times = sorted(untils)
    micros = [round((START + timedelta(seconds=second)).timestamp() * 1_000_000) for second in times]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(positions, "_MANY", many)
        known = Positions(micros[0] if is_first and micros else None)
        added: list[tuple[int, Commit]] = []
        for number, batch in enumerate(batches):
            numbered = list(enumerate(batch, len(added)))
            stored = [one for one in numbered if not one[1][-1]]
            known.add(rows_of(stored).cast(OF_TABLE) if number % 2 else rows_of(stored))
            known.add_live(rows_of([one for one in numbered if one[1][-1]]))
            added += numbered
            in_tables = [one for one in added if not one[1][-1]]
            assert offsets_of(known.latest()) == newest(added)
            assert offsets_of(known.in_tables()) == newest(in_tables)
            if number < len(times):
                due = [one for one in in_tables if one[1][3] <= times[number]]
                assert offsets_of(known.latest(micros[number])) == newest(due)
