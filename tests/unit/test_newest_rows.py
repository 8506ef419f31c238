"""The newest row of each key, also where names are long."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouptrail.storage.positions import newest, updated


@pytest.fixture
def pool() -> Iterator[pa.MemoryPool]:
    """What Arrow allocates from while the test runs, with statistics of its own."""
    before = pa.default_memory_pool()
    counting = pa.proxy_memory_pool(before)
    pa.set_memory_pool(counting)
    yield counting
    pa.set_memory_pool(before)


def rows_of(groups: list[str], partitions: int, offsets: list[int]) -> pa.Table:
    keys = [(group, partition) for group in groups for partition in range(partitions)]
    return pa.table(
        {
            "group_id": [group for group, _ in keys for _ in offsets],
            "topic": ["orders"] * len(keys) * len(offsets),
            "partition": pa.array([partition for _, partition in keys for _ in offsets], pa.int32()),
            "record_offset": [offset for _ in keys for offset in offsets],
        }
    )


def test_newest_long_names_each_once_are_not_copied(pool: pa.MemoryPool) -> None:
    """Groups of 32 KB names once made each refresh of the metrics copy and compare hundreds of megabytes."""
    rows = rows_of([f"{'g' * 32_000}-{number}" for number in range(10)], 50, [1])
    before = pool.bytes_allocated()
    kept = newest(rows)
    assert pool.max_memory() - before < rows.nbytes / 2
    assert kept.num_rows == rows.num_rows
    assert kept.sort_by([("group_id", "ascending"), ("partition", "ascending")]) == rows


def test_newest_keys_in_several_chunks_are_the_same_key() -> None:
    early, late = rows_of(["a", "b"], 2, [1, 3]), rows_of(["c", "b"], 2, [2])
    kept = newest(pa.concat_tables([early, late])).to_pylist()
    newest_offsets = {(row["group_id"], row["partition"]): row["record_offset"] for row in kept}
    assert newest_offsets == {(g, p): {"a": 3, "b": 3, "c": 2}[g] for g in "abc" for p in range(2)}
    assert len(kept) == 6


def test_newest_keys_as_codes_of_different_dictionaries_are_compared_by_text() -> None:
    """The same code stands for another text in the next chunk."""
    coded = pa.dictionary(pa.int32(), pa.string())
    chunks = [rows_of(groups, 1, [offset]) for groups, offset in ((["a", "b"], 1), (["c", "b"], 2))]
    tables = [rows.set_column(0, "group_id", rows["group_id"].cast(coded)) for rows in chunks]
    kept = newest(pa.concat_tables(tables))
    assert kept["group_id"].type == coded
    assert {row["group_id"]: row["record_offset"] for row in kept.to_pylist()} == {"a": 1, "b": 2, "c": 2}
    assert len(kept) == 3


def test_newest_same_offset_twice_returns_the_last_row() -> None:
    rows = rows_of(["a"], 1, [5, 5]).append_column("committed_offset", pa.array([1, 2]))
    assert newest(rows)["committed_offset"].to_pylist() == [2]


def test_newest_null_key_is_a_key_and_no_rows_return_no_rows() -> None:
    rows = rows_of(["a"], 1, [1, 2])
    with_null = pa.concat_tables([rows, rows.set_column(0, "group_id", pa.nulls(2, pa.string())).slice(0, 1)])
    assert sorted(newest(with_null)["group_id"].to_pylist(), key=str) == [None, "a"]
    assert len(newest(rows.slice(0, 0))) == 0


COMMIT = st.tuples(st.sampled_from("abc"), st.integers(-1, 2) | st.just((1 << 31) - 1), st.integers(0, 9))


def table_of(commits: list[tuple[str, int, int]], first: int, *, coded: bool) -> pa.Table:
    """Return commits as rows; `number` tells them apart."""
    groups = pa.array([group for group, _, _ in commits], pa.string())
    columns = {
        "group_id": groups.dictionary_encode() if coded else groups,
        "topic": pa.array(["orders"] * len(commits), pa.string()),
        "partition": pa.array([partition for _, partition, _ in commits], pa.int32()),
        "record_offset": pa.array([offset for _, _, offset in commits], pa.int64()),
        "number": pa.array(range(first, first + len(commits)), pa.int64()),
    }
    return pa.table(columns)


@given(batches=st.lists(st.lists(COMMIT, max_size=8), max_size=5), coded=st.booleans())
def test_updated_batch_after_batch_is_the_newest_of_all_and_keys_keep_their_places(
    batches: list[list[tuple[str, int, int]]], coded: bool
) -> None:
    everything = known = table_of([], 0, coded=coded)
    for commits in batches:
        rows = table_of(commits, len(everything), coded=coded)
        before = list(zip(*(known[name].to_pylist() for name in ("group_id", "partition")), strict=True))
        known, everything = updated(known, rows), pa.concat_tables([everything, rows])
        expected = newest(everything)
        assert sorted(known["number"].to_pylist()) == sorted(expected["number"].to_pylist())
        after = list(zip(*(known[name].to_pylist() for name in ("group_id", "partition")), strict=True))
        assert after[: len(before)] == before
