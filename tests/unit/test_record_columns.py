"""Records of record batches as Arrow columns: the same as kafka-python's objects, one by one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import CorruptRecordError
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords

from grouptrail.kafka.record_columns import fetched, within
from grouptrail.kafka.record_schema import RECORD_SCHEMA
from support.record_batches import ABORT, CODECS, COMMIT, NOW, Pair, batch, marker, seal


@dataclass(frozen=True)
class Aborted:
    producer_id: int
    first_offset: int


def rows(content: bytes, offset: int = 0, aborted: Iterable[Aborted] = ()) -> tuple[list[Any], int]:
    """Return (offset, ms, key, value, whether in a transaction) of each record, and the next offset."""
    batch_read = fetched(3, offset, content, aborted)
    assert batch_read.records.schema == RECORD_SCHEMA
    batch_read.records.validate(full=True)
    records = batch_read.records.to_pylist()
    assert {record["record_partition"] for record in records} <= {3}
    return [
        (
            record["record_offset"],
            round(record["record_at"].timestamp() * 1000),
            *(record[name] for name in ("key", "value", "is_transactional", "partition_leader_epoch")),
        )
        for record in records
    ], batch_read.next_offset


def one_by_one(content: bytes) -> list[Any]:
    """Return what kafka-python reads."""
    records, batches = [], MemoryRecords(content)
    while (one := batches.next_batch()) is not None:
        of_batch = (one.is_transactional, one.leader_epoch if one.leader_epoch >= 0 else None)
        records += [(record.offset, record.timestamp, record.key, record.value, *of_batch) for record in one]
    return records


OCTETS = st.none() | st.binary(max_size=300)


@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(OCTETS, OCTETS), min_size=1, max_size=20),
            st.sampled_from(list(CODECS.values())),
            st.sampled_from([-1, 7]),
        ),
        max_size=5,
    )
)
def test_fetched_records_of_any_batches_are_those_that_kafka_python_reads(
    batches: list[tuple[list[Pair], int, int]],
) -> None:
    """Nulls, empty and long values, headers, several batches, in transactions and not, and every codec."""
    content, first = b"", 7
    for records, codec, producer in batches:
        content += batch(first, records, codec=codec, producer=producer, append_time=len(records) % 3 == 0)
        first += len(records)
    records_read, following = rows(content)
    assert records_read == one_by_one(content)
    assert following == (first if batches else 0)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [0, 1])
def test_fetched_old_message_formats_are_read_beside_the_current_one(magic: int, codec: int) -> None:
    """A compacted topic keeps batches from before an upgrade of the cluster."""
    builder = LegacyRecordBatchBuilder(magic, codec, 1 << 20)
    for offset in range(3):
        builder.append(offset, NOW + offset, b"key", None)
    content = bytes(builder.build()) + batch(3, [(b"new", b"value")], producer=7)
    records_read, following = rows(content)
    times = [NOW + offset if magic else 0 for offset in range(3)]
    assert [(offset, *others) for offset, _, *others in records_read] == [
        *((offset, b"key", None, False, None) for offset in range(3)),
        (3, b"new", b"value", True, 0),
    ]
    assert [time for _, time, *_ in records_read[:3]] == times
    assert following == 4


def test_fetched_batch_that_begins_before_the_offset_yields_the_rest() -> None:
    """Brokers return whole batches, and cut off the last one at the limit of a fetch."""
    content = batch(5, [(b"a", b""), (b"b", b""), (b"c", b"")]) + batch(8, [(b"d", b"")])
    records_read, following = rows(content[:-1], offset=6)
    assert [(offset, key) for offset, _, key, *_ in records_read] == [(6, b"b"), (7, b"c")]
    assert following == 8


def test_fetched_records_have_the_epoch_of_the_leader_that_wrote_them() -> None:
    """The broker writes it into the header of the batch, outside the CRC; -1: it was not known."""
    one, two, three = (bytearray(batch(offset, [(b"a", b"")] * 2)) for offset in (0, 2, 4))
    for built, epoch in ((one, 3), (two, -1), (three, 4)):
        built[12:16] = epoch.to_bytes(4, "big", signed=True)
    found, _ = rows(bytes(one + two + three))
    assert [epoch for *_, epoch in found] == [3, 3, None, None, 4, 4]


def test_fetched_transactions_yield_committed_records_only() -> None:
    """A producer's aborted transaction ends with its marker; its next one and those of others are committed."""
    content = b"".join(
        [
            batch(0, [(b"plain", b"")]),
            batch(1, [(b"aborted", b"")], producer=7),
            batch(2, [(b"other", b"")], producer=8),
            marker(3, 7, ABORT),
            batch(4, [(b"again", b"")], producer=7),
            marker(5, 7, COMMIT),
            marker(6, 8, COMMIT),
        ]
    )
    records_read, following = rows(content, aborted=[Aborted(7, 1)])
    assert [(key, in_transaction) for _, _, key, _, in_transaction, _ in records_read] == [
        (b"plain", False),
        (b"other", True),
        (b"again", True),
    ]
    assert following == 7


def test_fetched_only_markers_yield_nothing_and_go_on() -> None:
    """Otherwise a reader would ask for the same marker for ever."""
    assert rows(marker(9, 7, COMMIT), offset=9) == ([], 10)
    assert rows(b"", offset=9) == ([], 9)


def test_fetched_wrong_crc_raises() -> None:
    content = bytearray(batch(0, [(b"key", b"value")]))
    content[-2] ^= 1
    with pytest.raises(CorruptRecordError, match="partition 3: the batch at offset 0 has a wrong CRC"):
        rows(bytes(content))


@given(st.data())
def test_fetched_damaged_records_with_a_right_crc_raise_or_stay_within_their_bytes(data: st.DataObject) -> None:
    """No length in a record leads outside the batch."""
    content = bytearray(batch(0, [(b"key", b"value" * 30), (None, b""), (b"k", None)]))
    where = data.draw(st.integers(61, len(content) - 1))
    content[where] = data.draw(st.integers(0, 255))
    seal(content)
    try:
        records = fetched(3, 0, bytes(content), ()).records
    except CorruptRecordError:
        return
    records.validate(full=True)
    assert records.nbytes < 3 * len(content)


def test_within_cuts_at_offsets_also_where_some_are_missing() -> None:
    records = fetched(3, 0, batch(0, [(b"a", b"")]) + batch(5, [(b"b", b"")]) + batch(9, [(b"c", b"")]), ()).records
    assert within(records, 1, 9).column("key").to_pylist() == [b"b"]
    assert within(records, 0).column("key").to_pylist() == [b"a", b"b", b"c"]
    assert not len(within(records, 6, 9))
