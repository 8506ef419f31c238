"""Ages by timestamps on a broker with transactions, whose markers have offsets and timestamps, as records have."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest

from grouptrail.kafka.log import RecordRequest, RecordTimestamp
from grouptrail.kafka.records import RecordReader
from grouptrail.kafka.timestamps import TimestampReader
from grouptrail.lag import dated as dated_module
from grouptrail.lag.dated import DatedRecords, TimestampAge, TimestampLookup, UnreadRecords
from grouptrail.lag.index import UNKNOWN
from servers.kafka import Broker
from support.kafka_clients import PATIENCE_SECONDS
from support.kafka_versions import EVERY_VERSION
from support.timestamped_topics import (
    HOUR_MS,
    NOW_MS,
    TRANSACTIONAL_CONFIGS,
    bounds,
    make_topics,
    produce,
    produce_in_transactions,
    records_of,
)

FEW = 3
"""In place of 1,000 offsets that may be markers: here, one follows each transaction."""


pytestmark = pytest.mark.parametrize("broker", EVERY_VERSION, indirect=True, scope="module")


@pytest.fixture(scope="module")
def topics(broker: Broker) -> dict[str, str]:
    names = make_topics(broker, TRANSACTIONAL_CONFIGS)
    for kind, name in names.items():
        (produce if kind == "ordered" else produce_in_transactions)(broker, kind, name)
    return names


@pytest.fixture(autouse=True)
def few_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dated_module, "FEW_OFFSETS", FEW)


@pytest.fixture
def reader(broker: Broker) -> Iterator[TimestampReader]:
    with closing(TimestampReader({"bootstrap.servers": broker.bootstrap}, PATIENCE_SECONDS, 1000)) as made:
        yield made


def first_committed(broker: Broker, topic: str, offsets: list[int]) -> list[tuple[int, int]]:
    """Return offset and timestamp of the first committed record from each offset on, as the lag job reads it."""
    with closing(RecordReader({"bootstrap.servers": broker.bootstrap}, PATIENCE_SECONDS)) as records:
        found = records.first_records([RecordRequest(topic, 0, offset, is_isolated=True) for offset in offsets])
    first = [found[RecordRequest(topic, 0, offset, is_isolated=True)] for offset in offsets]
    return [(UNKNOWN, UNKNOWN) if one is None else (one.offset, one.written_at) for one in first]


def age_of(
    reader: TimestampReader, topic: str, offsets: list[int], end: int, shown: list[tuple[int, int]], *, isolated: bool
) -> TimestampAge:
    places = np.array(offsets)
    shown_offsets, shown_times = np.array(shown, np.int64).T
    unread = UnreadRecords(
        places * 0, places, end - places, shown_offsets, shown_times, np.full(len(places), isolated)
    )
    deadline = time.monotonic() + PATIENCE_SECONDS
    dated, now = DatedRecords(), np.full(len(places), (NOW_MS + HOUR_MS) * 1000)
    dated.want(unread, int(now[0]), lambda numbers: [(topic, 0)] * len(numbers))
    lookup = TimestampLookup(
        lambda asked: reader.records_since(asked, deadline), reader.has_transactions, reader.kept_topics
    )
    dated.search(lookup)
    return dated.age(unread, now)


@pytest.mark.parametrize("isolated", [False, True])
@pytest.mark.parametrize("kind", TRANSACTIONAL_CONFIGS)
def test_dated_records_every_offset_with_transactions_is_never_wrong(
    broker: Broker,
    topics: dict[str, str],
    reader: TimestampReader,
    kind: str,
    isolated: bool,
) -> None:
    """The judge is a consumer with the group's isolation level, which reads records, and no markers."""
    topic = topics[kind]
    assert reader.has_transactions()
    start, end = bounds(broker, topic)
    committed = records_of(broker, topic, "read_committed")
    records = committed if isolated else records_of(broker, topic)
    offsets = list(range(start, end))
    unknown = [(UNKNOWN, UNKNOWN)] * len(offsets)
    # Nothing is read while a transaction is open.
    for shown in (unknown, unknown if kind == "open" else first_committed(broker, topic, offsets)):
        age = age_of(reader, topic, offsets, end, shown, isolated=isolated)
        dated = []
        for offset, seconds, is_exact in zip(offsets, age.seconds.tolist(), age.is_exact.tolist(), strict=True):
            first = min((at for at in records if at >= offset), default=None)
            if first is None or np.isnan(seconds):
                continue
            dated.append(offset)
            true = (NOW_MS + HOUR_MS - records[first]) / 1000
            assert seconds <= true + 0.0005
            assert not is_exact or seconds == pytest.approx(true, abs=0.0005)
        if shown != unknown:
            assert set(dated) >= {at for at in offsets if at <= max(committed, default=-1)}
            assert age.is_exact.any() == bool(committed)
        else:
            is_bounded = kind == "transacted-compacted" or isolated
            assert dated == [at for at in offsets if end - at > FEW and not is_bounded]
            assert not age.is_exact.any()


def test_dated_records_marker_at_the_committed_offset_is_no_record(
    broker: Broker, topics: dict[str, str], reader: TimestampReader
) -> None:
    topic = topics["single"]
    records = records_of(broker, topic)
    marker = next(offset for offset in range(*bounds(broker, topic)) if offset not in records)
    deadline = time.monotonic() + PATIENCE_SECONDS
    [answer] = reader.records_since({(topic, 0): records[max(records)] + 1}, deadline).values()
    assert isinstance(answer, RecordTimestamp)
    assert answer.offset == marker, "brokers return markers as records"
    for shown in ([(UNKNOWN, UNKNOWN)], first_committed(broker, topic, [marker])):
        age = age_of(reader, topic, [marker], bounds(broker, topic)[1], shown, isolated=False)
        first = min(offset for offset in records if offset >= marker)
        assert not age.is_exact[0]
        assert np.isnan(age.seconds[0]) or age.seconds[0] <= (NOW_MS + HOUR_MS - records[first]) / 1000
