"""Log files as events: recorded logs of each release, forged lines, compression, damage, memory."""

from __future__ import annotations

import contextlib
import gzip
import tracemalloc
from collections import Counter
from datetime import UTC
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouptrail.broker_log.doubts import BACK_IN_TIME, FOLLOWS_TEXT, NEAR_INCOMPLETE
from grouptrail.broker_log.files import MAX_LINE_BYTES, BrokerLogError, read_lines
from grouptrail.broker_log.reading import LINE_CHARACTERS, LineCounts, read_events
from support import broker_log_lines as lines
from support.broker_log_lines import events_of, named

A, B = "app-17e0bb30-0f94-4806-9276-0ad8e0e4ceea", "b-1536646c-48f4-4998-9bfb-accd8a286c4b"


def read(path: Path, counts: LineCounts | None = None) -> list[dict[str, object]]:
    return list(read_events(path, UTC, counts or LineCounts()))


@pytest.mark.parametrize("path", lines.recorded(), ids=lambda path: path.stem)
def test_read_events_of_a_recorded_log_knows_all_messages_but_those_that_were_forged(path: Path) -> None:
    counts = LineCounts()
    rows = read(path, counts)
    kinds = Counter(row["event"] for row in rows)
    assert {"rebalance_started", "join_completed", "assignment_received", "group_emptied"} <= kinds.keys()
    assert kinds["member_left"] >= 4
    assert kinds["member_expired"] >= 2
    assert counts.malformed == 0
    assert counts.unmatched <= 6, "only lines of the group evil-group, whose client id has a line break"
    ids = [row["event_id"] for row in rows]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("path", lines.recorded(), ids=lambda path: path.stem)
def test_read_events_of_a_recorded_log_doubts_the_line_that_a_client_forged(path: Path) -> None:
    """A client gave as reason to leave a line about a member of another group."""
    forged = [row for row in read(path) if row["member_id"] == "victim-1"]
    assert all(row["doubt"] is not None and row["is_forgeable"] for row in forged)


def test_recorded_logs_are_of_every_release() -> None:
    releases = {"3.9.1", "3.9.1-old", "4.1.1", "4.3.0", "4.4.0"}
    assert {path.stem for path in lines.recorded()} == {f"kafka-{release}" for release in releases}


@pytest.mark.parametrize("release", ["4.3.0", "4.4.0"])
def test_read_events_of_a_recorded_log_of_streams_groups_knows_all_messages(release: str) -> None:
    """Members join, leave, and are killed; in 4.4 static ones also go and come back."""
    counts = LineCounts()
    rows = read(lines.FOLDER / f"streams-{release}.log", counts)
    kinds = Counter(row["event"] for row in rows)
    assert (counts.unmatched, counts.malformed, counts.doubtful) == (0, 0, 0)
    of_static = Counter(row["event"] for row in rows if row["group_id"] == "static")
    assert kinds - of_static >= Counter(member_joined=3, member_left=2, member_expired=1)
    if release == "4.4.0":
        assert of_static >= Counter(member_joined=2, member_replaced=1, member_left=1, member_expired=1)


FORGED = lines.plain(10, lines.failed("orders", A)).removesuffix(f" ({lines.LOGGER})")


def test_line_in_the_reason_of_another_group_is_doubtful(tmp_path: Path) -> None:
    reason = f"bye ({lines.LOGGER})\n{FORGED}"
    rows = events_of(tmp_path, [lines.plain(10, lines.left("evil", B, reason))])
    assert named(rows) == [("evil", "member_left", B), ("orders", "member_expired", A)]
    assert [row["doubt"] for row in rows] == [None, FOLLOWS_TEXT]


@pytest.mark.parametrize("reason", ["", "not provided", "the consumer is being closed"])
def test_line_after_a_usual_reason_of_another_group_is_not_doubtful(tmp_path: Path, reason: str) -> None:
    """Static members of Java's client 3.9 join with an empty one."""
    joined = lines.preparing("orders", 1, f"Adding new member {A} with group instance id i; client reason: {reason}")
    written = [lines.plain(0, joined), lines.plain(1, lines.failed("payments", B))]
    assert [row["doubt"] for row in events_of(tmp_path, written)] == [None, None]


def test_line_in_a_reason_is_no_line_in_json(tmp_path: Path) -> None:
    rows = events_of(tmp_path, [lines.structured(10, lines.left("evil", B, f"bye\n{FORGED} ({lines.LOGGER})"))])
    assert named(rows) == [("evil", "member_left", B)]
    assert rows[0]["is_forgeable"] is False


def test_lines_of_text_are_forgeable_unless_clients_are_trusted(tmp_path: Path) -> None:
    reason = f"bye ({lines.LOGGER})\n{FORGED}"
    written = [lines.plain(10, lines.left("evil", B, reason))]
    assert [row["is_forgeable"] for row in events_of(tmp_path, written)] == [True, True]
    trusted = events_of(tmp_path, written, trusts_clients=True)
    assert [(row["is_forgeable"], row["doubt"]) for row in trusted] == [(False, None)] * 2


def test_lines_before_and_after_an_incomplete_one_are_doubtful(tmp_path: Path) -> None:
    written = [
        lines.plain(0, lines.failed("orders", A)),
        lines.plain(8, lines.failed("orders", A)),
        f"{lines.plain(10, '[Group evil] Member x').removesuffix(f' ({lines.LOGGER})')}",
        f"y has left ({lines.LOGGER})",
        lines.plain(12, lines.failed("orders", A)),
        lines.plain(20, lines.failed("orders", A)),
    ]
    assert [row["doubt"] for row in events_of(tmp_path, written)] == [None, NEAR_INCOMPLETE, NEAR_INCOMPLETE, None]


def test_stack_trace_after_an_error_raises_no_doubt(tmp_path: Path) -> None:
    written = [
        lines.plain(10, lines.failed("orders", A)),
        lines.plain(10, "Group orders could not complete rebalance because no members rejoined.", level="ERROR"),
        "java.lang.IllegalStateException: no",
        "\tat org.apache.kafka.X.y(X.java:5)",
    ]
    assert [row["doubt"] for row in events_of(tmp_path, written)] == [None]


def test_line_earlier_than_one_before_it_is_doubtful(tmp_path: Path) -> None:
    written = [lines.plain(10, lines.failed("orders", A)), lines.plain(8, lines.failed("orders", B))]
    assert [row["doubt"] for row in events_of(tmp_path, written)] == [None, BACK_IN_TIME]


def test_lines_of_several_brokers_with_clocks_apart_raise_no_doubt(tmp_path: Path) -> None:
    written = [
        lines.plain(10, lines.failed("orders", A), broker=1),
        lines.plain(3, lines.failed("payments", B), broker=2),
        lines.plain(11, "Stabilized group orders generation 2 with 1 members.", broker=1),
    ]
    assert [row["doubt"] for row in events_of(tmp_path, written)] == [None, None, None]


@given(
    reason=st.text(st.sampled_from("\n ()[]ab") | st.characters(codec="utf-8")),
    tail=st.sampled_from(["", f" ({lines.LOGGER})", f" ({lines.LOGGER})\njunk", "\n" + FORGED]),
)
def test_no_reason_of_a_client_gives_a_trusted_event_of_another_group(
    tmp_path_factory: pytest.TempPathFactory, reason: str, tail: str
) -> None:
    text = lines.plain(10, lines.left("evil", B, f"{reason}\n{FORGED}{tail}"))
    rows = events_of(tmp_path_factory.getbasetemp(), [text])
    assert all(row["is_forgeable"] for row in rows if row["group_id"] != "evil")


def written(folder: Path, count: int = 3) -> tuple[Path, bytes]:
    path = folder / "server.log"
    text = "".join(f"{lines.plain(number * 10, lines.failed('orders', A))}\n" for number in range(count)).encode()
    path.write_bytes(text)
    return path, text


def test_read_events_of_compressed_files_is_that_of_the_plain_one(tmp_path: Path) -> None:
    path, text = written(tmp_path)
    expected = read(path)
    zipped, zstd = tmp_path / "a.gz", tmp_path / "a.log"
    zipped.write_bytes(gzip.compress(text))
    zstd.write_bytes(pa.Codec("zstd").compress(text, asbytes=True))
    assert len(expected) == 3
    assert read(zipped) == read(zstd) == expected


@pytest.mark.parametrize("compress", [gzip.compress, lambda text: pa.Codec("zstd").compress(text, asbytes=True)])
def test_truncated_file_gives_the_lines_before_it_ends_and_an_error(tmp_path: Path, compress: object) -> None:
    path, text = written(tmp_path, 20_000)
    packed = compress(text)  # type: ignore[operator]
    path.write_bytes(packed[: len(packed) * 2 // 3])
    rows: list[dict[str, object]] = []
    with pytest.raises(BrokerLogError, match=r"damaged or truncated.*what could be read was kept") as raised:
        rows.extend(read_events(path, UTC, LineCounts()))
    assert "\n" not in str(raised.value)
    assert 0 < len(rows) < 20_000
    assert all(row["member_id"] == A for row in rows)


def test_missing_file_is_an_error_of_one_line(tmp_path: Path) -> None:
    with pytest.raises(BrokerLogError, match=r"cannot be read .*: check the path and its rights"):
        read(tmp_path / "none.log")


def test_invalid_bytes_and_long_lines_are_malformed_and_no_events(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    invalid = lines.plain(0, lines.failed("orders\x00", A)).encode().replace(b"\x00", b"\xff")
    long = lines.plain(100, lines.left("orders", A, "x" * MAX_LINE_BYTES)).encode()
    path.write_bytes(b"\n".join([invalid, long, lines.plain(200, lines.failed("orders", A)).encode(), b"\x00" * 100]))
    counts = LineCounts()
    assert named(read(path, counts)) == [("orders", "member_expired", A)]  # type: ignore[arg-type]
    assert (counts.lines, counts.malformed) == (4, 2)


def test_long_reason_is_cut_in_the_row(tmp_path: Path) -> None:
    [row] = events_of(tmp_path, [lines.plain(0, lines.left("orders", A, "x" * 10_000))])
    assert len(row["line"]) == len(row["reason"]) == LINE_CHARACTERS
    assert row["line"].endswith("…")


def test_line_that_a_container_runtime_split_is_read_whole(tmp_path: Path) -> None:
    text = lines.plain(0, lines.failed("orders", A))
    split = [f"2026-11-28T09:00:00Z stdout P {text[:60]}", f"2026-11-28T09:00:00Z stdout F {text[60:]}"]
    assert named(events_of(tmp_path, split)) == [("orders", "member_expired", A)]


def test_read_lines_holds_no_more_than_a_few_lines(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    with path.open("wb") as file:
        for _ in range(40):
            file.write(b"x" * (1 << 20))
        file.write(b"\nend\n")
    tracemalloc.start()
    try:
        found = [(len(line), is_cut) for line, is_cut in read_lines(path)]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == [(MAX_LINE_BYTES, True), (3, False)]
    assert peak < 4 << 20


@given(data=st.binary(max_size=2_000))
def test_read_events_of_any_bytes_gives_no_event(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.log"
    path.write_bytes(data)
    found = []
    with contextlib.suppress(BrokerLogError):
        found = read(path)
    assert found == []
