"""Arrow batches of records in, rows of tables out: each record once, with where it lay."""

from __future__ import annotations

import tracemalloc
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from grouptrail.decode import batch
from grouptrail.decode.batch import decode_batches
from grouptrail.decode.rows import decode_row, encode_row
from grouptrail.decode.schema import COMMITS, TABLES, row_schema
from grouptrail.kafka.record_schema import RECORD_SCHEMA
from grouptrail.wire.records import Key, Value, encode_key, encode_value
from support import strategies
from support.strategies import MANY
from support.wire_vectors import BY_NAME, RECORDS

Record = tuple[bytes | None, bytes | None]

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
    joined = pa.RecordBatch.from_pylist(whole, schema=RECORD_SCHEMA)
    starts = [sum(map(len, batches[:number])) for number in range(len(batches))]
    return [joined.slice(start, len(records)) for start, records in zip(starts, batches, strict=True)]


def decoded_rows(batches: list[list[Record]]) -> dict[str, list[dict[str, Any]]]:
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
    by_place = {}
    for table, rows in decoded_rows(batches).items():
        for row in rows:
            coordinates = tuple(row[name] for name in place(0, 0))
            assert coordinates not in by_place
            by_place[coordinates] = (table, *encode_row(table, row))
    assert by_place == {
        tuple(place(number, index).values()): (decode_row(*record)[0], *record)
        for number, records in enumerate(batches)
        for index, record in enumerate(records)
    }


def test_decode_batches_vectors_fill_every_table() -> None:
    """Each table has as many rows as decoding the records one by one gives."""
    expected = Counter(decode_row(*record)[0] for record in VECTORS)
    assert {table: len(rows) for table, rows in decoded_rows([VECTORS]).items()} == expected
    assert set(expected) == set(TABLES)


def test_decode_batches_plain_commits_return_one_batch() -> None:
    """Nothing is copied if there are only commits, as in nearly every batch."""
    commit = BY_NAME["offset-commit/v4-topic-id"]
    [(table, rows)] = decode_batches(arrow([[(commit.key, commit.value), (commit.key, None)] * 50]))
    assert table == COMMITS
    assert rows.column("record_offset").to_pylist() == [place(0, index)["record_offset"] for index in range(100)]
    assert rows.column("is_tombstone").to_pylist() == [False, True] * 50


@pytest.mark.parametrize("said", [[True, False], [None, None]])
def test_decode_batches_commits_keep_whether_they_were_written_in_a_transaction(said: list[bool | None]) -> None:
    """Those decoded together, those left to the interpreter, and tombstones; other tables have no such column."""
    plain, unusual, other = (
        BY_NAME[name] for name in ("offset-commit/v4", "offset-commit/v4-unknown-tags", "group-metadata/v3")
    )
    records = [(plain.key, plain.value), (plain.key, None), (unusual.key, unusual.value), (other.key, other.value)]
    [joined] = arrow([[record for record in records for _ in said]])
    column = pa.array(said * len(records), pa.bool_())
    given = joined.set_column(joined.schema.get_field_index("is_transactional"), "is_transactional", column)
    transactional = {}
    for table, rows in decode_batches([given]):
        if table == COMMITS:
            in_transaction = rows.column("is_transactional").to_pylist()
            transactional |= dict(zip(rows.column("record_offset").to_pylist(), in_transaction, strict=True))
        else:
            assert "is_transactional" not in rows.schema.names
    assert transactional == {place(0, index)["record_offset"]: said[index % 2] for index in range(6)}


def test_decode_batches_empty_batches_return_nothing() -> None:
    """Spark sends them for partitions without new records."""
    assert list(decode_batches(arrow([[], []]))) == []


LIMIT = 1000


def group_record(members: int) -> Record:
    """Return a classic group's record with many members."""
    key = Key(2, {"group": "billing"})
    member = {
        "memberId": "m", "groupInstanceId": None, "clientId": "c", "clientHost": "/10.0.0.1",
        "rebalanceTimeout": 1, "sessionTimeout": 1, "subscription": b"", "assignment": b"",
    }  # fmt: skip
    fields = {"protocolType": "consumer", "generation": 1, "protocol": "range", "leader": "m"}
    value = Value(3, {**fields, "currentStateTimestamp": 1, "members": [member] * members})
    return encode_key(key), encode_value(key, value)


def test_decode_record_above_the_limit_is_kept_verbatim_as_undecodable() -> None:
    """A key or value of exactly the limit is decoded; a value that is too large still has a group: its key's."""
    key, value = group_record(20)
    assert value is not None
    assert key is not None
    huge = b"\0\2" + bytes(LIMIT)
    batches = arrow([[(key, value), (huge, value), (huge, None), group_record(1)]])
    rows_of = {table: rows.to_pylist() for table, rows in decode_batches(batches, len(value) - 1)}
    assert rows_of.keys() == {"group_metadata", "undecodable_records"}
    assert [encode_row("group_metadata", row) for row in rows_of["group_metadata"]] == [group_record(1)]
    rows = rows_of["undecodable_records"]
    assert [(row["record_key"], row["record_value"]) for row in rows] == [(key, value), (huge, value), (huge, None)]
    assert [(row["reason"], row["fault_in"], row["fault_position"], row["group_id"]) for row in rows] == [
        ("too_large", "value", len(value) - 1, "billing"),
        ("too_large", "key", len(value) - 1, None),
        ("too_large", "key", len(value) - 1, None),
    ]
    [(table, _)] = decode_batches(arrow([[(key, value)]]), len(value))
    assert table == "group_metadata"


@given(records=st.lists(strategies.ANY_RECORDS, max_size=6), size=st.integers(1, 200))
def test_decode_batches_in_parts_equals_decoding_in_one(records: list[Record], size: int) -> None:
    """Each row once, in order within its table."""
    whole = decoded_rows([records])
    before = batch._ENOUGH_BYTES
    batch._ENOUGH_BYTES = size
    try:
        assert decoded_rows([records]) == whole
    finally:
        batch._ENOUGH_BYTES = before


def peak_bytes(batches: list[pa.RecordBatch], limit: int | None) -> int:
    """Return how much memory Python needs to decode batches, one after the other."""
    tracemalloc.start()
    try:
        for _ in decode_batches(batches, limit):
            pass
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_decode_large_record_takes_memory_of_its_own_size_only() -> None:
    record = group_record(20_000)
    size = len(record[1] or b"")
    batches = arrow([[record]])
    assert size > 500_000
    assert peak_bytes(batches, size - 1) < 4 * size
    assert peak_bytes(batches, None) > 15 * size


def test_decode_many_large_records_takes_memory_of_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark passes up to 1,024 records at a time, whatever their size."""
    record = group_record(500)
    size = len(record[1] or b"")
    batches = arrow([[record] * 50])
    monkeypatch.setattr(batch, "_ENOUGH_BYTES", 2 * size)
    in_parts = peak_bytes(batches, None)
    monkeypatch.setattr(batch, "_ENOUGH_BYTES", 1000 * size)
    assert in_parts < peak_bytes(batches, None) / 5
