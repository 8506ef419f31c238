"""`grouptrail decode`, line by line, against the vectors written by Kafka's own classes."""

from __future__ import annotations

import io
import itertools
import json
import time
import tracemalloc
from typing import Any

import pytest

from grouptrail.decode.lines import arriving_lines, decode_lines
from support.wire_vectors import READ_IN_PART, as_kafka_prints, vector_lines

VECTORS = [json.loads(line) for line in (*vector_lines("group"), *vector_lines("share"))]


def decoded(*lines: str) -> tuple[list[dict[str, Any]], int]:
    out = io.StringIO()
    unusable = decode_lines(lines, out)
    return [json.loads(line) for line in out.getvalue().splitlines()], unusable.total()


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_decode_lines_vector_matches_kafka(vector: dict[str, Any]) -> None:
    """Names, values and kinds of error are equal; a vector gives a position only if it matters."""
    expected = vector["expected"] | READ_IN_PART.get(vector["name"], {})
    line = {name: vector[name] for name in ("name", "topic", "key_hex", "value_hex") if name in vector}
    if "blob" in expected:
        line["blob"] = expected["blob"]
        expected.setdefault("error", None)
    else:
        expected = dict.fromkeys(("key", "value", "error")) | expected
    [answer], unusable = decoded(json.dumps(line))
    if expected["error"]:
        wanted = {
            part: expected["error"][part] for part in ("where", "kind", "position") if part in expected["error"]
        }
        assert answer["error"].keys() == {"where", "kind", "position"}
        answer["error"] = {part: answer["error"][part] for part in wanted}
        expected["error"] = wanted
    assert as_kafka_prints(answer) == expected
    assert unusable == 0


def test_decode_lines_absent_or_null_value_is_tombstone() -> None:
    """Other fields of the line are ignored."""
    key = {"key_hex": "00010001670001740000000a", "offset": 5}
    answers, _ = decoded(json.dumps(key), json.dumps({**key, "value_hex": None}))
    assert answers[0] == answers[1]
    assert answers[0]["key"] == {"type": 1, "data": {"group": "g", "topic": "t", "partition": 10}}
    assert answers[0]["value"] is None
    assert answers[0]["error"] is None


@pytest.mark.parametrize(
    ("topic", "fields"),
    [
        ({}, {"group": "g", "topic": "t", "partition": 10}),
        ({"topic": "__consumer_offsets"}, {"group": "g", "topic": "t", "partition": 10}),
        ({"topic": None}, {"group": "g", "topic": "t", "partition": 10}),
        ({"topic": "__share_group_state"}, {"groupId": "g", "topicId": "AAF0" + "A" * 18, "partition": 10}),
    ],
)
def test_decode_lines_topic_tells_whose_record_types_are_meant(
    topic: dict[str, str | None], fields: dict[str, Any]
) -> None:
    """Without a topic, and with any other than that of share groups' state, a line is of __consumer_offsets."""
    key = "0001000167" + ("0001740000000a" if "group" in fields else "000174" + "00" * 13 + "0000000a")
    [answer], _ = decoded(json.dumps({"key_hex": key, **topic}))
    assert (answer["key"], answer["error"]) == ({"type": 1, "data": fields}, None)


def test_decode_lines_topic_of_a_line_overrides_that_of_all() -> None:
    line = {"key_hex": "0000000167000174" + "00" * 17}
    out = io.StringIO()
    decode_lines(
        [json.dumps(line | {"topic": "__consumer_offsets"}), json.dumps(line)], out, topic="__share_group_state"
    )
    keys = [json.loads(answer)["key"]["data"] for answer in out.getvalue().splitlines()]
    assert keys == [
        {"group": "g", "topic": "t", "partition": 0},
        {"groupId": "g", "topicId": "AAF0" + "A" * 18, "partition": 0},
    ]


def test_decode_lines_empty_value_is_truncated_not_tombstone() -> None:
    """An empty value is a malformed one."""
    [answer], _ = decoded('{"key_hex": "00010001670001740000000a", "value_hex": ""}')
    assert answer["error"] == {"where": "value", "kind": "truncated", "position": 0}


@pytest.mark.parametrize(
    ("line", "kind", "position"),
    [
        ("", "not_json", 0),
        ("nul", "not_json", 0),
        ('{"key_hex": }', "not_json", 12),
        ("[" * 100_000, "not_json", 0),
        ("[]", "not_object", 0),
        ('"0001"', "not_object", 0),
        ('{"value_hex": "00"}', "no_key", 0),
        ('{"key_hex": "00zz"}', "not_hex", 2),
        ('{"key_hex": "000"}', "not_hex", 3),
        ('{"key_hex": 1}', "not_hex", 0),
        ('{"key_hex": "0001", "value_hex": "x"}', "not_hex", 0),
        ('{"blob": "NoSuchBlob", "value_hex": "00"}', "unknown_blob", 0),
        ('{"blob": "OffsetCommit", "value_hex": "00"}', "unknown_blob", 0),
        ('{"blob": ["x"], "value_hex": "00"}', "unknown_blob", 0),
        ('{"blob": "ConsumerProtocolAssignment"}', "no_value", 0),
    ],
)
def test_decode_lines_unusable_line_is_answered_with_an_error_and_counted(
    line: str, kind: str, position: int
) -> None:
    """The lines around it are decoded, in order."""
    good = '{"key_hex": "0002000167"}'
    answers, unusable = decoded(good, line, good)
    assert unusable == 1
    assert answers[0] == answers[2]
    assert answers[0]["key"] == {"type": 2, "data": {"group": "g"}}
    assert answers[1] == {
        "key": None,
        "value": None,
        "error": {"where": "input", "kind": kind, "position": position},
    }


def test_decode_lines_undecodable_record_is_not_counted_as_unusable() -> None:
    """The line is valid although the record's bytes are not."""
    answers, unusable = decoded('{"key_hex": "7fff"}', '{"key_hex": null}')
    assert [answer["error"]["kind"] for answer in answers] == ["unknown_type", "null_not_allowed"]
    assert unusable == 0


def test_decode_lines_undecodable_blob_has_only_name_and_error() -> None:
    [answer], _ = decoded('{"blob": "ConsumerProtocolAssignment", "value_hex": "00"}')
    assert answer == {
        "blob": "ConsumerProtocolAssignment",
        "error": {"where": "blob", "kind": "truncated", "position": 0},
    }


def test_decode_lines_non_ascii_text_is_not_escaped() -> None:
    """A group's name stays readable."""
    out = io.StringIO()
    decode_lines(['{"key_hex": "00020004c3bcc3a9"}'], out)
    assert '"üé"' in out.getvalue()


class Pipe(io.BytesIO):
    """Return one chunk for each read, as an open pipe does."""

    def __init__(self, *chunks: bytes) -> None:
        super().__init__()
        self._chunks = list(chunks)

    def read1(self, size: int | None = -1, /) -> bytes:
        del size
        return self._chunks.pop(0) if self._chunks else b""


def test_arriving_lines_yields_complete_lines_and_flushes_before_each_read() -> None:
    """Complete lines of a chunk are yielded at once, and the output is flushed before the next read blocks."""
    flushed: list[int] = []
    seen: list[str] = []
    seen.extend(arriving_lines(Pipe(b"a\nb\nc", b"d\n", b"e"), lambda: flushed.append(len(seen))))
    assert seen == ["a", "b", "cd", "e"]
    assert flushed == [2, 3, 3]


def test_arriving_lines_splits_only_at_newlines() -> None:
    """JSON may contain other line separators; invalid UTF-8 does not end the stream."""
    text = '{"key_hex": "0002000167", "note": "a\u2028b\x85c"}'
    lines = list(arriving_lines(Pipe(text.encode() + b"\r\n\xff\n"), lambda: None))
    answers, unusable = decoded(*lines)
    assert answers[0]["key"]["type"] == 2
    assert unusable == 1


def test_arriving_lines_one_long_line_takes_linear_time_and_is_not_kept() -> None:
    """A line without an end in sight: a hundred times as long, not ten thousand times as slow."""
    chunk = b"0" * (1 << 16)

    def seconds(chunks: int) -> float:
        started = time.perf_counter()
        [line] = arriving_lines(Pipe(*itertools.repeat(chunk, chunks)), lambda: None, max_record_bytes=200_000_000)
        assert line is not None
        assert len(line) == chunks * len(chunk)
        return time.perf_counter() - started

    seconds(10)
    assert seconds(1600) < 100 * max(seconds(100), 0.01)


def test_arriving_lines_too_long_line_is_none_and_the_next_is_read() -> None:
    tracemalloc.start()
    try:
        lines = list(
            arriving_lines(
                Pipe(b"a\n" + b"0" * 60_000, *[b"1" * 65_536] * 400, b"2\nb\n" + b"3" * 70_000, b"4" * 50_000),
                lambda: None,
                max_record_bytes=1_000,
            )
        )
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert lines == ["a", None, "b", None]
    assert peak < 2_000_000


def test_decode_lines_too_large_key_value_or_line_is_answered_with_an_error() -> None:
    """One answer for each line, as for any other error; what is just small enough is decoded."""
    key = "00010001670001740000000a"
    out = io.StringIO()
    lines = [
        json.dumps({"key_hex": key, "value_hex": "00" * 101}),
        json.dumps({"key_hex": key + "00" * 100}),
        None,
        json.dumps({"key_hex": key, "value_hex": "00" * 100}),
        json.dumps({"blob": "ConsumerProtocolAssignment", "value_hex": "00" * 101}),
    ]
    unusable = decode_lines(lines, out, max_record_bytes=100)
    answers = [json.loads(line) for line in out.getvalue().splitlines()]
    too_large = {"where": "input", "kind": "too_large", "position": 100}
    assert [answer["error"] == too_large for answer in answers] == [True, True, True, False, True]
    assert unusable == {"too_large": 4}
