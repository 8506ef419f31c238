"""Arrow batches of records in, rows of tables out: each record once, with where it lay."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from grouptrail.decode.batch import decode_batches
from grouptrail.decode.rows import decode_row, encode_row
from grouptrail.decode.schema import COMMITS, RECORD_COLUMNS, TABLES, row_schema
from support import strategies
from support.strategies import MANY
from support.wire_vectors import BY_NAME, RECORDS

Record = tuple[bytes | None, bytes | None]

SCHEMA = pa.schema(
    [
        *(row_schema(COMMITS).field(name) for name in RECORD_COLUMNS),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
    ]
)
BATCHES = st.lists(st.lists(strategies.ANY_RECORDS, max_size=4), max_size=2)
VECTORS = [(vector.key, vector.value) for vector in RECORDS]


def place(batch: int, index: int) -> dict[str, Any]:
    """Return a record's partition, offset and time, the first columns of every row."""
    return {
        "record_partition": batch,
        "record_offset": 1 << 40 | index * 7,
        "record_at": datetime(2026, 1, 1, tzinfo=UTC) + timedelta(milliseconds=batch * 1000 + index),
    }


def arrow(batches: list[list[Record]]) -> list[pa.RecordBatch]:
    """Return batches as Spark passes them, as slices of longer ones."""
    whole = [
        {**place(number, index), "key": key, "value": value}
        for number, records in enumerate(batches)
        for index, (key, value) in enumerate(records)
    ]
    joined = pa.RecordBatch.from_pylist(whole, schema=SCHEMA)
    starts = [sum(map(len, batches[:number])) for number in range(len(batches))]
    return [joined.slice(start, len(records)) for start, records in zip(starts, batches, strict=True)]


def landed(batches: list[list[Record]]) -> dict[str, list[dict[str, Any]]]:
    """The rows of each table; every batch of rows has its table's schema and holds some."""
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for table, decoded in decode_batches(arrow(batches)):
        decoded.validate(full=True)
        assert decoded.schema == row_schema(table)
        assert decoded.num_rows
        rows[table] += decoded.to_pylist()
    return rows


@MANY
@given(BATCHES)
@example([])
@example([[]])
@example([VECTORS, VECTORS[::-1]])
def test_decode_batches_each_record_becomes_one_row_of_one_table(batches: list[list[Record]]) -> None:
    """Decoded and undecodable rows together are the records read, each with its own coordinates and bytes."""
    found = {}
    for table, rows in landed(batches).items():
        for row in rows:
            coordinates = tuple(row[name] for name in RECORD_COLUMNS)
            assert coordinates not in found
            found[coordinates] = (table, *encode_row(table, row))
    assert found == {
        tuple(place(number, index).values()): (decode_row(*record)[0], *record)
        for number, records in enumerate(batches)
        for index, record in enumerate(records)
    }


def test_decode_batches_vectors_fill_every_table() -> None:
    """Each table has as many rows as decoding the records one by one gives."""
    expected = Counter(decode_row(*record)[0] for record in VECTORS)
    assert {table: len(rows) for table, rows in landed([VECTORS]).items()} == expected
    assert set(expected) == set(TABLES)


def test_decode_batches_plain_commits_return_one_batch() -> None:
    """Nothing is copied if there are only commits, as in nearly every batch."""
    commit = BY_NAME["offset-commit/v4-topic-id"]
    [(table, rows)] = decode_batches(arrow([[(commit.key, commit.value), (commit.key, None)] * 50]))
    assert table == COMMITS
    assert rows.column("record_offset").to_pylist() == [place(0, index)["record_offset"] for index in range(100)]
    assert rows.column("is_tombstone").to_pylist() == [False, True] * 50


def test_decode_batches_empty_batches_return_nothing() -> None:
    """Spark sends them for partitions without new records."""
    assert list(decode_batches(arrow([[], []]))) == []
