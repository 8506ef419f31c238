"""The offsets topic's log segments on a disk: find them and read their committed records.

As under read_committed, a transaction's records count when its commit marker follows, those of an aborted or
unfinished one do not.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from grouptrail.errors import GrouptrailError
from grouptrail.kafka.batches import CUT_OFF, HEAD_BYTES, OLD_FORMATS, Batch, batches, message_format
from grouptrail.kafka.coordinator import OFFSETS_TOPIC
from grouptrail.kafka.record_columns import Record

_FOLDER = re.compile(rf"{OFFSETS_TOPIC}-(\d+)")
_SEGMENT = re.compile(r"\d{20}\.log")

_MORE_FAULTS = 20

MAX_BATCH_BYTES = (1 << 31) - 1


class SegmentsError(GrouptrailError):
    """There are no segments of the offsets topic to read, or some of them cannot be read."""


@dataclass(frozen=True)
class Fault:
    """A part of a file that could not be read: its `position`, and how many bytes were skipped."""

    file: str
    position: int
    reason: str
    skipped: int

    def __str__(self) -> str:
        return f"{self.file}, byte {self.position:,}: {self.reason}; {self.skipped:,} bytes skipped"


@dataclass
class SegmentSummary:
    """The contents of a partition's segments: offsets [start, end), numbers of records, and faults.

    `stable` is the first offset of an unfinished transaction, or `end`. `aborted` and `unfinished` count records of
    such transactions; `cut_off` is set if the last segment ends within a batch.
    """

    start: int | None = None
    end: int = 0
    records: int = 0
    aborted: int = 0
    unfinished: int = 0
    stable: int = 0
    cut_off: Fault | None = None
    faults: list[Fault] = field(default_factory=list)
    more_faults: int = 0

    def add(self, fault: Fault) -> None:
        """Keep the first faults, and count the others."""
        if len(self.faults) < _MORE_FAULTS:
            self.faults.append(fault)
        else:
            self.more_faults += 1


def partition_folders(folder: Path) -> list[tuple[int, list[Path]]]:
    """Return the topic's partitions with folders below a folder, and the segments of each in order.

    A partition with several replicas is returned several times. Raises SegmentsError if there is nothing to read.
    """
    if not folder.is_dir():
        raise SegmentsError(f"there is no folder {folder}: give a broker's log folder (log.dirs), or a copy of it")
    partitions: list[tuple[int, list[Path]]] = []
    for place in [folder, *sorted(path for path in folder.rglob(f"{OFFSETS_TOPIC}-*") if path.is_dir())]:
        name = _FOLDER.fullmatch(place.resolve().name)
        segments = sorted(path for path in place.iterdir() if _SEGMENT.fullmatch(path.name)) if name else []
        if name and segments:
            partitions.append((int(name[1]), segments))
    if not partitions:
        raise SegmentsError(
            f"no segment ({OFFSETS_TOPIC}-N/00000000000000000000.log) found below {folder}: "
            "give a broker's log folder (log.dirs), or a copy of it with its folders' names"
        )
    _refuse_unreadable([path for _, segments in partitions for path in segments])
    return sorted(partitions)


def _refuse_unreadable(segments: list[Path]) -> None:
    """Raise SegmentsError for a segment of an old format, or if no file is a log segment."""
    unknown = []
    for path in segments:
        try:
            with path.open("rb") as file:
                head = file.read(HEAD_BYTES)
        except OSError as error:
            raise SegmentsError(
                f"{path} cannot be read ({error.strerror}): grant read access, or run as a user who has it"
            ) from error
        if not head.strip(b"\0"):
            continue
        magic = message_format(head)
        if magic in OLD_FORMATS:
            raise SegmentsError(
                f"{path} is of message format v{magic}, which brokers wrote before Kafka 0.11: it cannot be read; "
                "leave its partition's folder out"
            )
        if magic is not None:
            return
        unknown.append(path)
    if unknown:
        raise SegmentsError(f"{unknown[0]} is no Kafka log segment: give a broker's log folder, or a copy of it")


def read_partition(
    segments: Iterable[Path], summary: SegmentSummary, max_batch_bytes: int = MAX_BATCH_BYTES
) -> Iterator[Record]:
    """Yield the committed records of a partition's segments, each offset once, and fill `summary`.

    A transaction's records are yielded at its commit marker. A batch of more than `max_batch_bytes` is a fault.
    """
    unfinished: dict[int, list[Record]] = {}
    for path in segments:
        for position, batch in _batches(path, summary, max_batch_bytes):
            read_to = summary.end
            if batch.last_offset < read_to:
                continue
            summary.start = batch.base_offset if summary.start is None else summary.start
            summary.end = batch.next_offset
            try:
                marker = next(iter(batch), None) if batch.is_control_batch else None
                of_batch = (batch.is_transactional, batch.leader_epoch)
                records = [
                    (one.offset, one.timestamp, one.key, one.value, *of_batch)
                    for one in (() if batch.is_control_batch else batch)
                    if one.offset >= read_to
                ]
            except Exception as error:  # codecs raise errors of many kinds
                reason = f"batch of offsets {batch.base_offset:,} to {batch.last_offset:,} cannot be read"
                cause = next(iter(str(error).splitlines()), type(error).__name__)
                summary.add(Fault(str(path), position, f"{reason} ({cause})", batch.size_in_bytes))
                continue
            if marker is not None and (marker.commit or marker.abort):
                records = unfinished.pop(batch.producer_id, [])
                if marker.abort:
                    summary.aborted += len(records)
                    continue
            elif batch.is_transactional:
                unfinished.setdefault(batch.producer_id, []).extend(records)
                continue
            summary.records += len(records)
            yield from records
    summary.unfinished = sum(map(len, unfinished.values()))
    summary.stable = min((records[0][0] for records in unfinished.values() if records), default=summary.end)


def _batches(path: Path, summary: SegmentSummary, max_bytes: int) -> Iterator[tuple[int, Batch]]:
    """Yield a segment's complete batches with their positions; faults are added to `summary`."""
    if not path.stat().st_size:
        return
    with path.open("rb") as file:
        content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    if summary.cut_off:  # a fault, as another segment follows
        summary.add(summary.cut_off)
        summary.cut_off = None
    for position, batch, size in batches(content, max_bytes):
        if isinstance(batch, Batch):
            yield position, batch
        elif batch is CUT_OFF and position + size == len(content):
            summary.cut_off = Fault(str(path), position, batch, size)
        else:
            summary.add(Fault(str(path), position, batch, size))
