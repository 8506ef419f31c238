"""Ranges of offsets read from brokers that fail, move partitions or have lost records, without a broker."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Sequence
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka import errors as client_errors

from grouptrail.decode.tasks import shares
from grouptrail.kafka import record_ranges
from grouptrail.kafka.errors import ClusterError, KafkaDeniedError, KafkaUnreachableError
from grouptrail.kafka.log import LogBounds, PartitionMetadata
from grouptrail.kafka.record_ranges import Progress, RecordRanges
from support.record_batches import batch

SETTINGS = {"bootstrap.servers": "kafka:9092"}
OUT_OF_RANGE, NOT_LEADER, DENIED = 1, 6, 29
WHOLE = LogBounds(0, 100, 100)


def content(*offsets: int) -> bytes:
    """Return a batch of one record for each offset."""
    return b"".join(batch(offset, [(b"key", b"%d" % offset)]) for offset in offsets)


def answer(records: bytes = b"", *, partition: int = 0, error: int = 0) -> Any:
    one = SimpleNamespace(partition_index=partition, error_code=error, records=records, aborted_transactions=None)
    return SimpleNamespace(responses=[SimpleNamespace(partitions=[one])])


class Scripted(RecordRanges):
    """Reads scripted answers, one after the other; the last one again and again."""

    def __init__(self, *answers: Any, bounds: LogBounds = WHOLE) -> None:
        super().__init__(SETTINGS)
        self.answers = list(answers)
        self.asked: list[dict[int, int]] = []
        self.log = bounds

    def bounds(self) -> dict[int, LogBounds]:
        return {0: self.log, 1: self.log}

    def _send(self, progress: Progress) -> dict[int, Any]:
        self.asked.append({partition: progress.position[partition] for partition in progress.end})
        return {0: None}

    def _ask(self, _question: Callable[[Any], Any]) -> Any:
        return [self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]]

    def offsets(self, start: int, end: int) -> list[int]:
        return [offset for batch in self.read({0: (start, end)}) for offset in batch["record_offset"].to_pylist()]


@pytest.fixture(autouse=True)
def waited(monkeypatch: pytest.MonkeyPatch) -> Callable[[], float]:
    """Let waiting take no time; return a function that says for how long was waited."""
    began = time.monotonic()
    now = [began]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(record_ranges, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    return lambda: now[0] - began


def test_read_goes_on_where_an_answer_ends_and_stops_at_the_end() -> None:
    reader = Scripted(answer(content(3, 4)), answer(content(6, 7, 8)))
    assert reader.offsets(3, 8) == [3, 4, 6, 7]
    assert reader.asked == [{0: 3}, {0: 5}, {}]


def test_read_nothing_to_read_asks_no_broker() -> None:
    reader = Scripted(answer(content(3)))
    assert (reader.offsets(3, 3), reader.offsets(3, 2)) == ([], [])
    assert not any(reader.asked)


@pytest.mark.parametrize(
    "fault", [answer(error=NOT_LEADER), client_errors.KafkaConnectionError("lost"), client_errors.NodeNotReadyError()]
)
def test_read_faults_that_pass_are_waited_for(fault: Any, waited: Callable[[], float]) -> None:
    """A partition that moves to another broker, or a broker that restarts, does not fail the batch."""
    reader = Scripted(fault, fault, answer(content(0, 1)))
    assert reader.offsets(0, 2) == [0, 1]
    assert waited() == 1.0


def test_read_faults_that_do_not_pass_raise_after_a_minute(waited: Callable[[], float]) -> None:
    with pytest.raises(KafkaUnreachableError):
        Scripted(client_errors.KafkaConnectionError("lost")).offsets(0, 2)
    assert 60 < waited() < 62


def test_read_partition_without_a_leader_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """While its broker restarts; the leaders are asked for again."""
    answers = [{}, {0: 1}]

    def metadata(_reader: RecordRanges, _wanted: object) -> list[PartitionMetadata]:
        return [PartitionMetadata("topic", partition, leader=leader) for partition, leader in answers.pop(0).items()]

    monkeypatch.setattr(RecordRanges, "partition_metadata", metadata)
    reader = Scripted(answer(content(0)))
    monkeypatch.setattr(reader, "_send", lambda progress: RecordRanges._send(reader, progress))
    asked: list[int] = []

    def ask(_question: object) -> Any:
        asked.append(1)
        return {0: None} if len(asked) % 2 else [answer(content(0))]

    monkeypatch.setattr(reader, "_ask", ask)
    assert reader.offsets(0, 1) == [0]
    assert not answers


def test_read_denied_raises_at_once(waited: Callable[[], float]) -> None:
    with pytest.raises(KafkaDeniedError, match="grant the principal READ"):
        Scripted(answer(error=DENIED)).offsets(0, 2)
    assert not waited()


def test_read_records_that_retention_has_removed_are_skipped() -> None:
    """Also if all of a range is gone."""
    reader = Scripted(answer(error=OUT_OF_RANGE), answer(content(5)), bounds=LogBounds(5, 100, 100))
    assert reader.offsets(0, 6) == [5]
    assert Scripted(answer(error=OUT_OF_RANGE), bounds=LogBounds(9, 100, 100)).offsets(0, 6) == []


@pytest.mark.parametrize(
    ("start", "answers", "expected"),
    [(0, [answer(content(0)), answer()], [0]), (3, [answer(error=OUT_OF_RANGE)], [])],
)
def test_read_records_beyond_the_end_of_a_log_are_skipped_after_ten_seconds(
    waited: Callable[[], float], start: int, answers: list[Any], expected: list[int]
) -> None:
    """A new leader may lack them; for a moment it may only seem so."""
    assert Scripted(*answers, bounds=LogBounds(0, 1, 1)).offsets(start, 6) == expected
    assert 10 < waited() < 12


def test_read_records_that_no_broker_returns_raise_after_a_minute(waited: Callable[[], float]) -> None:
    with pytest.raises(ClusterError, match="returns no records of __consumer_offsets, partitions 0, although"):
        Scripted(answer()).offsets(0, 6)
    assert 60 < waited() < 62


def test_record_ranges_is_pickled_as_its_settings() -> None:
    """For tasks, which connect by themselves."""
    copy = pickle.loads(pickle.dumps(RecordRanges(SETTINGS)))
    assert isinstance(copy, RecordRanges)
    assert copy._settings == SETTINGS


@given(
    st.dictionaries(st.integers(0, 50), st.tuples(st.integers(0, 1000), st.integers(0, 1000)), max_size=8),
    st.integers(1, 9),
)
def test_shares_cover_each_offset_once_and_are_of_nearly_equal_size(
    spans: dict[int, tuple[int, int]], count: int
) -> None:
    ranges = {partition: (start, start + length) for partition, (start, length) in spans.items()}
    parts = shares(ranges, count)
    offsets = [
        sorted((partition, offset) for partition, span in share.items() for offset in range(*span)) for share in parts
    ]
    assert sorted(chain.from_iterable(offsets)) == [
        (partition, offset) for partition, span in sorted(ranges.items()) for offset in range(*span)
    ]
    assert len(parts) <= count
    sizes: Sequence[int] = [len(one) for one in offsets]
    assert max(sizes) <= -(-sum(sizes) // count)
