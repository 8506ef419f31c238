"""Fuzz targets: for some seconds each, what may come from a client, a disk or a user."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouptrail.config import Config, ConfigError, load_config
from grouptrail.config.model import CLIENT_SECTIONS, GROUPTRAIL_SECTIONS
from grouptrail.decode.batch import decode_batches
from grouptrail.decode.lines import arriving_lines, decode_lines
from grouptrail.decode.rows import encode_row
from grouptrail.decode.sources.segments import SegmentSummary, read_partition
from grouptrail.kafka.record_schema import RECORD_SCHEMA
from support import record_batches, strategies
from support.fuzz import FUZZ, for_seconds

pytestmark = pytest.mark.full

SECONDS = 12
RECORDS = st.one_of(
    strategies.ANY_RECORDS, strategies.mutated_records(), st.tuples(st.none() | st.binary(), st.none() | st.binary())
)


def test_fuzz_decode_every_record_becomes_one_row_with_its_bytes() -> None:
    """Whatever the limit of a record's size."""

    @FUZZ
    @given(st.lists(RECORDS, max_size=5), st.none() | st.integers(1, 300))
    def decodes(records: list[tuple[bytes | None, bytes | None]], limit: int | None) -> None:
        columns = {
            "record_partition": [0] * len(records),
            "record_offset": range(len(records)),
            "record_at": [0] * len(records),
            "key": [key for key, _ in records],
            "value": [value for _, value in records],
            "is_transactional": [None] * len(records),
            "partition_leader_epoch": [None] * len(records),
        }
        batch = pa.RecordBatch.from_pydict(columns, schema=RECORD_SCHEMA)
        encoded = {}
        for table, rows in decode_batches([batch], limit):
            rows.validate(full=True)
            for row in rows.to_pylist():
                assert row["record_offset"] not in encoded
                encoded[row["record_offset"]] = encode_row(table, row)
        assert encoded == dict(enumerate(records))

    for_seconds(SECONDS, decodes)


HEX = st.binary(max_size=12).map(bytes.hex) | st.text(max_size=4) | st.integers() | st.none()
LINES = st.dictionaries(st.sampled_from(["key_hex", "value_hex", "blob"]), HEX).map(json.dumps).map(str.encode)
NOT_LINES = st.binary(max_size=40) | st.sampled_from(
    [b"[" * 5_000, b"9" * 5_000, b'{"key_hex": "\\ud800"}', b"\r", b""]
)


class Pieces(io.RawIOBase):
    """A stream that is read in pieces of a few bytes."""

    def __init__(self, content: bytes, size: int) -> None:
        self._content = io.BytesIO(content)
        self._size = size

    def read1(self, _size: int) -> bytes:
        return self._content.read(self._size)


def test_fuzz_decode_lines_each_line_is_answered_by_one_line_of_json() -> None:
    """In whatever pieces the input arrives."""

    @FUZZ
    @given(st.lists(LINES | NOT_LINES, max_size=6), st.integers(1, 50), st.integers(1, 20))
    def answers(lines: list[bytes], size: int, limit: int) -> None:
        content = b"\n".join(lines)
        out = io.StringIO()
        decode_lines(arriving_lines(Pieces(content, size), lambda: None, limit), out, limit)  # type: ignore[arg-type]
        answered = out.getvalue().splitlines()
        assert len(answered) == len(content.split(b"\n")) - content.endswith(b"\n") - (content == b"")
        for line in answered:
            assert line.isprintable()
            assert json.loads(line).keys() >= {"error"}

    for_seconds(SECONDS, answers)


def batch(first: int, count: int, codec: int) -> bytes:
    records = [(b"key-%d" % offset, b"value" * 10) for offset in range(first, first + count)]
    return record_batches.batch(first, records, codec=codec)


DAMAGE = st.tuples(
    st.integers(0, 1 << 16), st.sampled_from(["flip", "cut", "insert", "remove"]), st.binary(max_size=30)
)


def damaged(content: bytes, damages: list[tuple[int, str, bytes]]) -> bytes:
    for where, how, extra in damages:
        at = where % (len(content) + 1)
        if how == "flip" and at < len(content):
            content = content[:at] + bytes([content[at] ^ (extra[0] if extra else 1)]) + content[at + 1 :]
        elif how == "cut":
            content = content[:at]
        elif how == "insert":
            content = content[:at] + extra + content[at:]
        else:
            content = content[:at] + content[at + len(extra) :]
    return content


def test_fuzz_segments_damaged_files_are_read_without_error_and_no_record_is_invented(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"

    @FUZZ
    @given(
        st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), max_size=5),
        st.lists(DAMAGE, max_size=3),
        st.binary(max_size=100),
    )
    def reads(batches: list[tuple[int, int]], damages: list[tuple[int, str, bytes]], rest: bytes) -> None:
        content, end = b"", 0
        for count, codec in batches:
            content += batch(end, count, codec)
            end += count
        path.write_bytes(damaged(content, damages) + rest)
        summary = SegmentSummary()
        records = list(read_partition([path], summary))
        offsets = [offset for offset, *_ in records]
        assert offsets == sorted(set(offsets))
        for _, _, key, value, *_ in records:
            assert (key or b"").startswith(b"key-")
            assert value == b"value" * 10
        if not damages and not rest:
            assert offsets == list(range(end))

    for_seconds(SECONDS, reads)


NAMES = [name for section in GROUPTRAIL_SECTIONS.values() for name in section.model_fields] + list(
    Config.model_fields
)
VALUES: st.SearchStrategy[Any] = st.one_of(
    st.text(max_size=20), st.integers(), st.floats(), st.booleans(), st.lists(st.text(max_size=5), max_size=3)
)
SETTINGS = st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=10), VALUES, max_size=4)
FILES = st.one_of(
    st.text(max_size=100),
    st.binary(max_size=100),
    st.tuples(SETTINGS, st.sampled_from([*GROUPTRAIL_SECTIONS, *CLIENT_SECTIONS, "clusters.a", "x"]), SETTINGS),
)


def toml(drawn: Any) -> bytes:
    if isinstance(drawn, bytes):
        return drawn
    if isinstance(drawn, str):
        return drawn.encode("utf-8", "surrogatepass")
    top, section, inner = drawn

    def lines(values: dict[str, Any]) -> list[str]:
        return [f"{json.dumps(name)} = {json.dumps(value)}" for name, value in values.items()]

    return "\n".join([*lines(top), f"[{section}]", *lines(inner)]).encode("utf-8", "surrogatepass")


def test_fuzz_config_is_loaded_or_refused_with_a_config_error(tmp_path: Path) -> None:
    path = tmp_path / "grouptrail.toml"
    variables = st.dictionaries(
        st.sampled_from(["GROUPTRAIL_CLUSTER", "GROUPTRAIL_DECODE__TRIGGER_SECONDS", "GROUPTRAIL_X", "GROUPTRAIL_"]),
        st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=20),
    )
    options = st.dictionaries(
        st.sampled_from(["cluster", "warehouse", "decode.max_record_bytes"]), st.text(max_size=9)
    )

    @FUZZ
    @given(FILES, options, variables)
    def loads(drawn: Any, given_options: dict[str, str], environ: dict[str, str]) -> None:
        path.write_bytes(toml(drawn))
        with contextlib.suppress(ConfigError):
            assert load_config(path, given_options, environ).redacted_toml()

    for_seconds(SECONDS, loads)
