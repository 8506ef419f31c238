"""Log segments read from a disk: what counts as committed, and what a damaged file costs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from grouptrail.decode.sources import ingest
from grouptrail.decode.sources.segments import SegmentsError, SegmentSummary, partition_folders, read_partition
from support import record_batches
from support.record_batches import ABORT, CODECS, COMMIT, NOW, marker

Segment = Callable[..., Path]


def batch(first: int, count: int = 1, *, codec: int = 0, producer: int = -1) -> bytes:
    """Return a batch with records `key-N` at offsets from `first` on."""
    records = [(b"key-%d" % offset, b"value" * 40) for offset in range(first, first + count)]
    return record_batches.batch(first, records, codec=codec, producer=producer)


@pytest.fixture
def segment(tmp_path: Path) -> Segment:
    def write(*parts: bytes, first: int = 0, partition: int = 3) -> Path:
        folder = tmp_path / f"__consumer_offsets-{partition}"
        folder.mkdir(exist_ok=True)
        path = folder / f"{first:020}.log"
        path.write_bytes(b"".join(parts))
        return path

    return write


def read(*paths: Path) -> tuple[list[int], SegmentSummary]:
    """Return the offsets that were read and the summary; each record must be the one written at its offset."""
    summary = SegmentSummary()
    records = list(read_partition(paths, summary))
    for offset, time, key, value, *_ in records:
        assert (time, key, value) == (1_700_000_000_000 + offset, b"key-%d" % offset, b"value" * 40)
    return [offset for offset, *_ in records], summary


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS.keys())
def test_read_partition_every_compression_codec_is_read(segment: Segment, codec: int) -> None:
    """Offsets, timestamps, keys and values are equal."""
    offsets, summary = read(segment(batch(5, 3, codec=codec), batch(11, codec=codec)))
    assert offsets == [5, 6, 7, 11]
    assert (summary.start, summary.end, summary.stable, summary.faults) == (5, 12, 12, [])


def test_read_partition_tombstone_has_no_value(segment: Segment) -> None:
    path = segment(record_batches.batch(0, [(b"key", None)]))
    assert list(read_partition([path], SegmentSummary())) == [(0, NOW, b"key", None, False, 0)]


def test_read_partition_returns_only_committed_transactions(segment: Segment) -> None:
    """A transaction's marker may be in a later segment, after transactions of other producers."""
    first = segment(batch(0), batch(1, 2, producer=7), batch(3, producer=8), batch(4))
    second = segment(marker(5, 8, ABORT), batch(6, producer=8), marker(7, 7, COMMIT), batch(8), first=5)
    summary = SegmentSummary()
    records = sorted(read_partition([first, second], summary))
    assert [(offset, in_transaction) for offset, *_, in_transaction, _ in records] == [
        (0, False),
        (1, True),
        (2, True),
        (4, False),
        (8, False),
    ]
    assert (summary.aborted, summary.unfinished, summary.stable, summary.end) == (1, 1, 6, 9)


@pytest.mark.parametrize("left", [8, 16, 40, 100])
def test_read_partition_incomplete_last_batch_is_not_a_fault(segment: Segment, left: int) -> None:
    """A killed broker leaves one, and so does a copy of a live broker's file."""
    whole = batch(0, 2)
    offsets, summary = read(segment(whole, batch(2)[:left]))
    assert offsets == [0, 1]
    assert summary.faults == []
    assert summary.cut_off is not None
    assert (summary.cut_off.position, summary.cut_off.skipped) == (len(whole), left)


def test_read_partition_preallocated_space_is_ignored(segment: Segment) -> None:
    offsets, summary = read(segment(batch(0, 2), bytes(5_000)))
    assert (offsets, summary.faults, summary.cut_off) == ([0, 1], [], None)


def test_read_partition_incomplete_batch_before_another_segment_is_a_fault(segment: Segment) -> None:
    offsets, summary = read(segment(batch(0), batch(1)[:70]), segment(batch(2), first=2))
    assert offsets == [0, 2]
    assert [fault.reason for fault in summary.faults] == ["the batch is cut off"]


@pytest.mark.parametrize("place", ["record", "length", "negative length", "magic"])
def test_read_partition_damaged_batch_is_reported_and_others_are_read(segment: Segment, place: str) -> None:
    """Also if the damage is in the length, which locates the next batch."""
    before, damaged, behind = batch(0, 2), bytearray(batch(2, 3)), batch(5, 2)
    where, value = {"record": (100, 0xFF), "length": (9, 0x7F), "negative length": (8, 0xFF), "magic": (16, 0x77)}[
        place
    ]
    damaged[where] = value
    path = segment(before, bytes(damaged), behind)
    offsets, summary = read(path)
    assert offsets == [0, 1, 5, 6]
    (fault,) = summary.faults
    assert (fault.file, fault.position, fault.skipped) == (str(path), len(before), len(damaged))
    assert f"{path}, byte {len(before)}: " in str(fault)


def test_read_partition_overlapping_segments_return_each_record_once(segment: Segment) -> None:
    """A broker leaves such segments if it stops while it replaces one with its compacted version."""
    offsets, _ = read(segment(batch(0, 4)), segment(batch(2, 4), first=2))
    assert offsets == [0, 1, 2, 3, 4, 5]


def test_read_partition_batch_emptied_by_compaction_only_moves_the_end(segment: Segment) -> None:
    offsets, summary = read(segment(batch(0), batch(5, 0)))
    assert (offsets, summary.end) == ([0], 6)


def test_partition_folders_lists_segments_by_partition_and_replica(segment: Segment, tmp_path: Path) -> None:
    """Other topics and other files are skipped; replicas are returned separately."""
    later, first = segment(batch(9), first=9, partition=10), segment(batch(0), partition=10)
    third = segment(batch(0), partition=3)
    (first.parent / "00000000000000000000.index").write_bytes(b"")
    (tmp_path / "orders-0").mkdir()
    (tmp_path / "orders-0" / first.name).write_bytes(b"")
    replica = tmp_path / "broker-2" / "__consumer_offsets-3"
    replica.mkdir(parents=True)
    (replica / third.name).write_bytes(third.read_bytes())
    assert partition_folders(tmp_path) == [(3, [third]), (3, [replica / third.name]), (10, [first, later])][
        :0
    ] + sorted([(3, [third]), (3, [replica / third.name]), (10, [first, later])])
    assert partition_folders(third.parent) == [(3, [third])]


def _old() -> bytes:
    builder = LegacyRecordBatchBuilder(1, 0, 1 << 16)
    builder.append(0, timestamp=1, key=b"k", value=b"v" * 100)
    return bytes(builder.build())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not a segment at all, but a log of some program's", r"is no Kafka log segment: give a broker's log"),
        (b"short", "is no Kafka log segment"),
        (_old(), "is of message format v1, which brokers wrote before Kafka 0.11"),
    ],
)
def test_partition_folders_invalid_segment_raises_one_line_error(
    segment: Segment, tmp_path: Path, content: bytes, message: str
) -> None:
    path = segment(content)
    with pytest.raises(SegmentsError, match=re.escape(str(path)) + ".*" + message) as error:
        partition_folders(tmp_path)
    assert "\n" not in str(error.value)


def test_partition_folders_missing_folder_and_no_segments_raise_different_errors(tmp_path: Path) -> None:
    with pytest.raises(SegmentsError, match=r"there is no folder .*/absent: give a broker's log folder"):
        partition_folders(tmp_path / "absent")
    with pytest.raises(SegmentsError, match=r"no segment .* found below"):
        partition_folders(tmp_path)


def test_read_partition_old_format_batch_is_reported_and_skipped(segment: Segment) -> None:
    head: Any = batch(0)
    offsets, summary = read(segment(head, _old(), batch(4)))
    assert offsets == [0, 4]
    assert "message format v1" in summary.faults[0].reason


def test_read_partition_batch_above_the_limit_is_a_fault_and_the_next_ones_are_read(segment: Segment) -> None:
    """Nothing is lost: with a higher limit, the segment is read as a whole."""
    path = segment(batch(0, 2), batch(2, 50), batch(52, 2))
    summary = SegmentSummary()
    most = len(batch(2, 50)) - 1
    assert [offset for offset, *_ in read_partition([path], summary, most)] == [0, 1, 52, 53]
    [fault] = summary.faults
    assert (fault.file, fault.position) == (str(path), len(batch(0, 2)))
    assert fault.reason.startswith(f"the batch has {most + 1:,} bytes: raise decode.max_segment_batch_bytes")
    assert fault.skipped == most + 1
    offsets, summary = read(path)
    assert (offsets, summary.faults) == (list(range(54)), [])


def test_arrow_batches_of_large_records_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "_BYTES_A_BATCH", 250)
    records = [(offset, 0, b"k" * 50, b"v" * 50, offset == 3, -1) for offset in range(7)]
    batches = list(ingest._arrow(3, records))
    assert [len(part) for part in batches] == [3, 3, 1]
    rows = [row for part in batches for row in part.to_pylist()]
    assert [row["record_offset"] for row in rows] == list(range(7))
    assert [row["record_offset"] for row in rows if row["is_transactional"]] == [3]
