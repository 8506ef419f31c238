"""The vectorised path against the interpreter: the same rows, and of exactly the records it says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from grouptrail.decode.commits import decode_commits
from grouptrail.decode.rows import Row, decode_row
from grouptrail.decode.schema import COMMITS, own_columns
from grouptrail.decode.times import MAX_MS, MIN_MS
from grouptrail.wire.layout import record_types
from grouptrail.wire.records import Key, Value, encode_key, encode_value
from support import strategies
from support.strategies import MANY
from support.wire_vectors import RECORDS, Vector

Bytes = bytes | None
Pair = tuple[Bytes, Bytes]

KEY = encode_key(Key(1, {"group": "billing", "topic": "orders", "partition": 4}))
BEYOND_TWO_BYTE_LENGTHS = 1 << 14
NOT_UTF8 = [b"\xc3", b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\xf0\x80\x80\x80"]


def commit(
    *, version: int = 4, metadata: str = "", commit_ms: int = 1_795_243_335_411, expire_ms: int = -1, **tagged: object
) -> bytes:
    """Return the bytes of a commit's value."""
    fields = {"offset": 671, "leaderEpoch": 7, "commitTimestamp": commit_ms, "expireTimestamp": expire_ms, **tagged}
    value = encode_value(Key(1, {}), Value(version, {"metadata": metadata, **fields}))
    assert value is not None
    return value


def column(values: Sequence[Bytes]) -> pa.Array:
    """Return a binary column that is a slice of a longer one."""
    return pa.array([b"before", None, *values, b"behind"], pa.binary()).slice(2, len(values))


def is_plain(key: Bytes, value: Bytes) -> bool:
    """Return whether the interpreter decodes a commit that its row alone restores, with metadata of less than 16
    KiB."""
    table, row = decode_row(key, value)
    if table != COMMITS or row["verbatim_key"] is not None or row["verbatim_value"] is not None:
        return False
    compact = row["value_version"] == 4
    return not compact or len(row["metadata"].encode()) + 1 < BEYOND_TWO_BYTE_LENGTHS


def agree(records: Sequence[Pair], keys: pa.Array = None, values: pa.Array = None) -> list[bool]:
    """Assert that both decoders agree on records, also given as columns; return which ones the vectorised one
    took."""
    keys = column([key for key, _ in records]) if keys is None else keys
    values = column([value for _, value in records]) if values is None else values
    plain, rows = decode_commits(keys, values)
    assert plain.tolist() == [is_plain(*record) for record in records]
    taken = [record for record, is_taken in zip(records, plain, strict=True) if is_taken]
    rows.validate(full=True)
    assert rows.schema == own_columns(COMMITS)
    assert rows.to_pylist() == [decode_row(*record)[1] for record in taken]
    return [bool(is_taken) for is_taken in plain]


@st.composite
def plain_commits(draw: st.DrawFn) -> Pair:
    """Commits as Kafka writes them: no unknown tags, times that fit, among them the last ones that do."""
    type_, version = draw(st.sampled_from([(0, 0), (1, 0), (1, 1), (1, 2), (1, 3), (1, 3), (1, 4), (1, 4), (1, 4)]))
    value = record_types()[type_].value
    fields = draw(strategies.struct(record_types()[type_], value, version, flexible=False))
    times = st.integers(MIN_MS, MAX_MS) | st.sampled_from((MIN_MS, MAX_MS, -1, 0))
    fields.update({name: draw(times) for name in ("commitTimestamp", "expireTimestamp") if name in fields})
    if version == 4 and draw(st.booleans()):
        fields["topicId"] = draw(strategies.UUIDS.filter(lambda uuid: uuid != "A" * 22))
    key = draw(strategies.keys(record_types()[type_]))
    is_tombstone = draw(st.sampled_from((True, False, False, False)))
    return encode_key(key), None if is_tombstone else encode_value(key, Value(version, fields))


@st.composite
def spoilt_commits(draw: st.DrawFn) -> Pair:
    """Commits with bytes that are not UTF-8 in one of their strings."""
    key, value = draw(plain_commits())
    raw = draw(st.sampled_from(NOT_UTF8))
    assert key is not None
    spoil_key = value is None or draw(st.booleans())
    content = key if spoil_key else value
    assert content is not None
    at = draw(st.integers(0, len(content)))
    spoilt = content[:at] + raw + content[at + len(raw) :]
    return (spoilt, value) if spoil_key else (key, spoilt)


MIXED = st.lists(
    st.one_of(
        plain_commits(),
        plain_commits(),
        spoilt_commits(),
        strategies.mutated_records(plain_commits()),
        strategies.encoded_records((1,)),
        strategies.ANY_RECORDS,
    ),
    max_size=6,
)


@pytest.mark.parametrize("vector", RECORDS, ids=lambda vector: vector.name)
def test_decode_commits_vector_matches_decode_row(vector: Vector) -> None:
    agree([(vector.key, vector.value)])


def test_decode_commits_every_commit_kafka_writes_is_vectorised() -> None:
    """All decodable vectors of types 0 and 1, except the three that Kafka itself would not write."""
    taken = agree([(vector.key, vector.value) for vector in RECORDS])
    names = {vector.name for vector, is_taken in zip(RECORDS, taken, strict=True) if is_taken}
    commits = {vector.name for vector in RECORDS if "offset-commit/" in vector.name}
    assert commits - names == {
        "offset-commit/v4-unknown-tags",
        "offset-commit/v3-trailing-bytes-ignored",
        "offset-commit/v3-invalid-utf8-metadata",
    }
    assert names <= commits


@MANY
@given(MIXED, st.integers(0, 6))
@example([], 0)
@example([(None, None)], 1)
@example([(b"", b"")], 0)
def test_decode_commits_mixed_records_match_decode_row_however_sliced(records: list[Pair], cut: int) -> None:
    """Plain, altered and other records are mixed: none affects its neighbours, wherever the column is sliced."""
    keys, values = column([key for key, _ in records]), column([value for _, value in records])
    plain = agree(records, keys, values)
    assert agree(records[:cut], keys[:cut], values[:cut]) + agree(records[cut:], keys[cut:], values[cut:]) == plain


def test_decode_commits_truncated_or_extended_commit_is_not_vectorised() -> None:
    """Key or value cut anywhere or followed by bytes, next to records whose bytes would complete them."""
    plain = [(KEY, commit(version=version, metadata="m")) for version in range(5)]
    plain.append((KEY, commit(topicId="XbQBMisSTo-zlAi9gS0-Vw")))
    cut: list[Pair] = [(key[:at], value) for key, value in plain[:1] for at in range(len(key))]
    cut += [(key, value[:at]) for key, value in plain for at in range(len(value))]
    cut += [(key + b"\0", value) for key, value in plain] + [(key, value + b"\0") for key, value in plain]
    assert agree(plain) == [True] * len(plain)
    assert not any(agree(cut))
    assert not any(any(agree([record])) for record in cut)


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("time_ms", [MIN_MS - 1, MIN_MS, -2, -1, 0, 1, MAX_MS, MAX_MS + 1, -(1 << 63), (1 << 63) - 1])
def test_decode_commits_time_outside_timestamp_range_is_not_vectorised(version: int, time_ms: int) -> None:
    """A time that no timestamp column can store is left to the interpreter, which keeps the bytes."""
    fits = MIN_MS <= time_ms <= MAX_MS
    assert agree([(KEY, commit(version=version, commit_ms=time_ms))]) == [fits]
    assert agree([(KEY, commit(version=version, expire_ms=time_ms))]) == [fits or version != 1]


@pytest.mark.parametrize("length", [0, 1, 126, 127, 128, 4096, 16382, 16383, 32767])
@pytest.mark.parametrize("version", [3, 4])
def test_decode_commits_metadata_length_over_two_byte_varint_is_not_vectorised(version: int, length: int) -> None:
    """Lengths of one and two bytes are vectorised; longer ones than brokers allow are left to the interpreter."""
    taken = agree([(KEY, commit(version=version, metadata="x" * length)), (KEY, None)])
    assert taken == [version == 3 or length + 1 < BEYOND_TWO_BYTE_LENGTHS, True]


@pytest.mark.parametrize(
    ("version", "length"),
    [
        *((4, length) for length in (b"\x81\0", b"\x81\x80\0", b"\x80\0", b"\xff\xff\xff\xff\x0f", b"\0")),
        *((3, length) for length in (b"\xff\xff", b"\x80\0", b"\x7f\xff")),
    ],
)
def test_decode_commits_overlong_null_or_wrong_metadata_length_is_not_vectorised(version: int, length: bytes) -> None:
    """An overlong varint, null, or a wrong length is left to the slow decoder, however many bytes follow."""
    head = version.to_bytes(2, "big") + bytes(12) + length
    assert not any(agree([(KEY, head + bytes(size)) for size in range(40)]))


def test_decode_commits_three_byte_length_is_not_read_as_two_byte_length() -> None:
    """If the third byte of the length were read as text, the rest would decode shifted by one byte."""
    head = b"\0\4" + bytes(12) + b"\x81\x80\1"
    assert not any(agree([(KEY, head + b"m" * size + bytes(9)) for size in (16382, 16383, 16384)]))


@pytest.mark.parametrize("group_length", [*range(-12, 0), -32768, 32767])
def test_decode_commits_wrong_group_length_is_not_vectorised(group_length: int) -> None:
    """A negative length must not read the topic from the key's own head or from the previous record."""
    head = b"\0\1" + group_length.to_bytes(2, "big", signed=True)
    keys = [head + bytes([fill]) * size for size in range(530) for fill in (0, 7)]
    assert not any(agree([(key, commit()) for key in keys]))


@pytest.mark.parametrize("topic_length", [-1, -2, -32768, 100, 32767])
def test_decode_commits_wrong_topic_length_is_not_vectorised(topic_length: int) -> None:
    """Even if the sum of the lengths is right."""
    lying = topic_length.to_bytes(2, "big", signed=True)
    keys = [b"\0\1\0\4mine" + lying + bytes(size) for size in range(8)]
    assert not any(agree([(key, None) for key in keys]))


@pytest.mark.parametrize("tags", [1, 2, 127, 128, 255])
def test_decode_commits_wrong_tag_count_is_not_vectorised(tags: int) -> None:
    """Kafka writes zero or one tag; a commit that claims more ends too early."""
    values = [commit()[:-1] + bytes([tags]), commit(topicId="XbQBMisSTo-zlAi9gS0-Vw")]
    assert agree([(KEY, value) for value in values]) == [False, True]


@pytest.mark.parametrize("version", range(5))
def test_decode_commits_legacy_key_is_vectorised_only_with_version_0_values(version: int) -> None:
    """Key type 0 is from Kafka 0.8, which has no later value versions."""
    legacy = encode_key(Key(0, {"group": "old", "topic": "orders", "partition": 1}))
    assert agree([(legacy, commit(version=version)), (legacy, None)]) == [version == 0, True]


@pytest.mark.parametrize("tag", [b"\0\x0f", b"\0\x11", b"\1\x10", b"\x10\0", b"\0\0"])
def test_decode_commits_tag_other_than_topic_id_is_not_vectorised(tag: bytes) -> None:
    """A tag with another number or size before sixteen bytes."""
    assert agree([(KEY, commit()[:-1] + b"\1" + tag + b"x" * 16), (KEY, commit())]) == [False, True]


def test_decode_commits_explicit_zero_topic_id_is_not_vectorised() -> None:
    """Kafka omits it: the row is the same, but the bytes must be kept."""
    head = commit()[:-1]
    assert agree([(KEY, head + b"\1\0\x10" + bytes(16)), (KEY, head + b"\1\0\x10" + bytes(15) + b"\1")]) == [
        False,
        True,
    ]


@pytest.mark.parametrize("raw", NOT_UTF8)
def test_decode_commits_invalid_utf8_affects_only_its_own_record(raw: bytes) -> None:
    """In the group, topic or metadata of one record: only that record is undecodable."""
    size = len(raw).to_bytes(2, "big")
    group = b"\0\1" + size + raw + b"\0\1t" + bytes(4)
    topic = b"\0\1\0\1g" + size + raw + bytes(4)
    metadata = b"\0\3" + bytes(12) + size + raw + bytes(8)
    good = (KEY, commit(metadata="é😀"))
    assert agree([good, (group, commit()), good, (topic, None), (KEY, metadata), good]) == [
        *(True, False, True),
        *(False, False, True),
    ]


def test_decode_commits_character_split_across_records_is_not_vectorised() -> None:
    """A column stores strings end to end: the next row's bytes must not complete a cut character."""
    first = b"\0\3" + bytes(12) + b"\0\1\xc3" + bytes(8)
    second = b"\0\3" + bytes(12) + b"\0\1\xa9" + bytes(8)
    assert agree([(KEY, first), (KEY, second), (KEY, commit())]) == [False, False, True]


def test_decode_commits_null_value_with_bytes_in_its_slot_is_tombstone() -> None:
    """Arrow allows anything in a null's slot."""
    value = commit(metadata="gone")
    ends = pa.py_buffer(np.array([0, len(value), 2 * len(value)], np.int32))
    values = pa.Array.from_buffers(pa.binary(), 2, [pa.py_buffer(b"\2"), ends, pa.py_buffer(value * 2)])
    keys = pa.Array.from_buffers(
        pa.binary(), 2, [None, pa.py_buffer(np.array([0, len(KEY), 2 * len(KEY)], np.int32)), pa.py_buffer(KEY * 2)]
    )
    assert agree([(KEY, None), (KEY, value)], keys, values) == [True, True]


def test_decode_commits_null_key_with_bytes_in_its_slot_is_not_vectorised() -> None:
    """A record with a null key is no commit, whatever bytes are in its slot."""
    ends = pa.py_buffer(np.array([0, len(KEY)], np.int32))
    keys = pa.Array.from_buffers(pa.binary(), 1, [pa.py_buffer(b"\0"), ends, pa.py_buffer(KEY)])
    assert agree([(None, None)], keys) == [False]


def test_decode_commits_ten_thousand_records_keep_their_order() -> None:
    """Ten thousand commits with hundreds of topic ids, every eleventh a tombstone, every seventh of another type."""
    rows: list[Row] = []
    records: list[Pair] = []
    for index in range(10_000):
        key = Key(1, {"group": f"g{index % 97}", "topic": f"t{index % 301}", "partition": index})
        topic_id = f"{index % 301:021}A"
        value = None if index % 11 == 0 else commit(topicId=topic_id, metadata="m" * (index % 5))
        records.append((b"\0\2\0\1g", None) if index % 7 == 0 else (encode_key(key), value))
        if index % 7:
            rows.append({"partition": index, "topic": f"t{index % 301}", "topic_id": value and topic_id})
    plain, batch = decode_commits(*(pa.array(part, pa.binary()) for part in zip(*records, strict=True)))
    assert plain.tolist() == [index % 7 != 0 for index in range(10_000)]
    assert batch.select(["partition", "topic", "topic_id"]).to_pylist() == rows
