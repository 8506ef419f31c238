"""`time_to_loss`: held against logs whose segments are rolled and deleted as a broker does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouptrail.lag.index import MICROS, PartitionIndex
from grouptrail.lag.retention import (
    NO_AGE,
    NO_LIMIT,
    NO_RATE,
    NO_SIZE,
    NOT_SAMPLED,
    READ_IN_TIME,
    Retention,
    TimeToLoss,
    UnreadLogs,
    time_to_loss,
)
from grouptrail.lag.seconds import LogEnds, LogEndSample
from grouptrail.storage.topic_settings import TopicSettings

SETTINGS = TopicSettings(
    cleanup_policy="delete",
    retention_ms=100_000,
    retention_bytes=-1,
    segment_ms=20_000,
    segment_bytes=1 << 30,
    message_timestamp_type="CreateTime",
    min_insync_replicas=1,
    remote_storage_enable=False,
    local_retention_ms=-2,
    local_retention_bytes=-2,
    problem=None,
)
NOW = 1_000_000


@dataclass(frozen=True)
class Loss:
    """The figures of one position."""

    least: float | None
    most: float | None
    reason: str


def _loss(
    settings: TopicSettings | None,
    ends: LogEnds | None = None,
    *,
    at: float = NOW,
    offset: int = 50,
    end: int = 100,
    ages: tuple[float, float] = (30.0, 40.0),
    consumed: float = math.nan,
    produced: float = math.nan,
    size: int = -1,
    start: int = 0,
    check_seconds: float = 5,
) -> Loss:
    def one(value: float) -> np.ndarray:
        return np.array([value], np.float64)

    def whole(value: float) -> np.ndarray:
        return np.array([value], np.int64)

    retention = Retention({} if settings is None else {"orders": settings})
    unread = UnreadLogs(
        kinds=whole(0 if settings is None else 1),
        partitions=whole(0),
        offsets=whole(offset),
        ends=whole(end),
        at=whole(round(at * MICROS)),
        least_ages=one(ages[0]),
        most_ages=one(ages[1]),
        sampled_ages=one(ages[1]),
        consume_rates=one(consumed),
        produce_rates=one(produced),
        starts=whole(start),
        log_ends=whole(end),
        bytes=whole(size),
        sized_ends=whole(end),
    )
    if without := retention.reasons_without_limit(unread.kinds):
        return Loss(None, None, without[0][1])
    return _only(time_to_loss(unread, retention, [] if ends is None else ends.samples, check_seconds))


def _only(loss: TimeToLoss) -> Loss:
    [(entries, reason)] = loss.reasons
    assert entries.tolist() == [0]
    least, most = (None if math.isnan(one[0]) else float(one[0]) for one in (loss.least, loss.most))
    return Loss(least, most, reason)


def _ends(*samples: tuple[float, int]) -> LogEnds:
    ends = LogEnds()
    for at, end in samples:
        ends.add(LogEndSample(round(at * MICROS), round(at * MICROS), np.array([end])))
    return ends


def test_time_to_loss_of_a_group_that_does_not_read_is_retention_less_age() -> None:
    """At the latest, its segment was closed `segment.ms` later, and the next check deletes it."""
    assert _loss(SETTINGS) == Loss(60.0, 95.0, "retention.ms=100000")
    assert _loss(SETTINGS, consumed=0.0) == Loss(60.0, 95.0, "retention.ms=100000")


def test_time_to_loss_of_a_record_that_is_old_enough_is_zero() -> None:
    """Also where its age has no upper limit, and where the size of the log is not known."""
    assert _loss(SETTINGS, ages=(120.0, 130.0)) == Loss(0.0, 5.0, "retention.ms=100000")
    # It should have been deleted: a later timestamp in its segment holds it.
    assert _loss(SETTINGS, ages=(126.0, 130.0)) == Loss(0.0, None, "retention.ms=100000")
    assert _loss(SETTINGS, ages=(120.0, math.inf)).least == 0.0
    assert _loss(replace(SETTINGS, retention_bytes=10), ages=(120.0, 130.0)).least == 0.0


def test_time_to_loss_of_a_record_of_unknown_age_is_absent() -> None:
    """It may be older than retention allows."""
    assert _loss(SETTINGS, ages=(30.0, math.inf)) == Loss(None, None, NO_AGE)


def test_time_to_loss_of_a_group_that_reads_what_there_is_in_time_is_absent() -> None:
    """50 records at one a second; the first can be deleted after 60 s."""
    assert _loss(SETTINGS, consumed=1.0) == Loss(None, None, READ_IN_TIME)


def test_time_to_loss_of_a_slow_group_is_when_the_front_reaches_it() -> None:
    """A record a second was written; it reads one every two seconds, from 70 to 80 s ago on."""
    ends = _ends(*((NOW - 80 + 10 * number, 10 + 10 * number) for number in range(9)))
    loss = _loss(SETTINGS, ends, offset=10, end=90, ages=(70.0, 80.0), consumed=0.5)
    # It has read ten more in 20 s, when the first could be deleted, and ten more in 40 s: these can be 10 s before.
    assert (loss.least, loss.reason) == (30.0, "retention.ms=100000")
    slower = _loss(SETTINGS, ends, offset=10, end=90, ages=(70.0, 80.0), consumed=0.1)
    # In 20 s it has read two. The first ten are deleted by 100 + 20 + 5 s after 70 s ago: it needs 100 s for them.
    assert slower == Loss(20.0, 55.0, "retention.ms=100000")
    assert _loss(SETTINGS, ends, offset=10, end=90, ages=(70.0, 80.0), consumed=0.95).reason == READ_IN_TIME


def test_time_to_loss_of_topics_that_retention_leaves_alone_is_absent() -> None:
    """The reason has the setting."""
    unlimited = replace(SETTINGS, retention_ms=-1)
    assert _loss(unlimited) == Loss(None, None, NO_LIMIT)
    compacted = replace(SETTINGS, cleanup_policy="compact")
    assert _loss(compacted).reason == "retention deletes nothing of the topic: cleanup.policy=compact"
    assert _loss(None).reason == NOT_SAMPLED
    denied = replace(SETTINGS, retention_ms=None, problem="DESCRIBE_CONFIGS is denied")
    assert _loss(denied).reason == "the settings of the topic are not known: DESCRIBE_CONFIGS is denied"


def test_time_to_loss_of_a_compacted_topic_with_retention_has_no_upper_limit() -> None:
    """Compaction joins segments; one of a topic with remote storage is deleted after it was copied there."""
    for special in (
        replace(SETTINGS, cleanup_policy="delete,compact"),
        replace(SETTINGS, remote_storage_enable=True),
        replace(SETTINGS, segment_ms=None),
    ):
        assert _loss(special) == Loss(60.0, None, "retention.ms=100000")


def test_time_to_loss_of_a_tiered_topic_ignores_local_retention() -> None:
    """Records stay readable in remote storage."""
    tiered = replace(SETTINGS, remote_storage_enable=True, local_retention_ms=1000, local_retention_bytes=1)
    assert _loss(tiered).least == 60.0
    assert _loss(replace(tiered, retention_bytes=1000)).reason.endswith(
        "retention.bytes=1000: the topic has remote storage"
    )


def test_time_to_loss_by_size_unknown_is_absent() -> None:
    """The size may act before the time."""
    assert _loss(replace(SETTINGS, retention_bytes=1000)) == Loss(None, None, f"{NO_SIZE}1000")
    assert _loss(replace(SETTINGS, retention_bytes=1000), size=100) == Loss(None, None, f"{NO_RATE}1000")


def test_time_to_loss_by_size_counts_the_bytes_after_the_group() -> None:
    """100 records are 1,000 bytes, the unread 50 up to 1,000; a record a second may add 20 bytes."""
    settings = replace(SETTINGS, retention_bytes=1400, segment_bytes=100)
    loss = _loss(settings, size=1000, produced=1.0)
    assert loss == Loss(20.0, 95.0, "retention.bytes=1400")
    # At a fifth of the size, the bytes come before the time at the latest, too.
    small = _loss(replace(settings, retention_bytes=300), size=1000, produced=1.0, offset=95)
    assert (small.least, small.reason) == (10.0, "retention.bytes=300")
    assert small.most == pytest.approx((400 - 25) / 5 + 5)


def test_time_to_loss_by_size_of_an_idle_topic_is_by_time() -> None:
    """Nothing pushes the records out."""
    settings = replace(SETTINGS, retention_bytes=1400)
    assert _loss(settings, size=1000, produced=0.0) == Loss(60.0, 95.0, "retention.ms=100000")


def test_retention_numbers_topics_as_partitions_become_known() -> None:
    """Topics that no sample has shown have the first kind."""
    index = PartitionIndex()
    retention = Retention({"orders": SETTINGS, "payments": replace(SETTINGS, retention_ms=-1)})
    rows = pa.table({"topic": ["orders", "new"], "partition": [0, 0]})
    assert retention.of(index.partitions(rows), index).tolist() == [1, 0]
    rows = pa.table({"topic": ["payments", "orders", "new"], "partition": [0, 1, 1]})
    assert retention.of(index.partitions(rows), index).tolist() == [2, 1, 0]


@dataclass
class Segment:
    """Records of a log: offsets from `base` on, with timestamps and sizes."""

    base: int
    times: list[float] = field(default_factory=list)
    bytes: int = 0

    @property
    def end(self) -> int:
        return self.base + len(self.times)


class Broker:
    """One log: rolled and deleted as Kafka's UnifiedLog does (appends and checks, in the order of their times)."""

    def __init__(self, settings: TopicSettings) -> None:
        self.segments = [Segment(0)]
        limits = settings.retention_ms, settings.segment_ms, settings.retention_bytes, settings.segment_bytes
        retention_ms, segment_ms, self.retention_bytes, self.segment_bytes = (limit or 0 for limit in limits)
        self.retention, self.segment = math.inf if retention_ms < 0 else retention_ms / 1000, segment_ms / 1000

    @property
    def end(self) -> int:
        return self.segments[-1].end

    @property
    def start(self) -> int:
        return self.segments[0].base

    @property
    def bytes(self) -> int:
        return sum(segment.bytes for segment in self.segments)

    def append(self, time: float, size: int) -> None:
        active = self.segments[-1]
        if active.times and (time - active.times[0] > self.segment or active.bytes + size > self.segment_bytes):
            active = Segment(self.end)
            self.segments.append(active)
        active.times.append(time)
        active.bytes += size

    def check(self, now: float) -> None:
        """Delete segments, the oldest first."""
        while self.segments[0].times and now - max(self.segments[0].times) > self.retention:
            self._drop()
        while (
            self.retention_bytes >= 0
            and self.segments[0].times
            and self.bytes - self.segments[0].bytes >= self.retention_bytes
        ):
            self._drop()

    def _drop(self) -> None:
        first = self.segments.pop(0)
        if not self.segments:
            self.segments = [Segment(first.end)]


@dataclass(frozen=True)
class Run:
    """What happens to a log: appends as (time, timestamp's distance from it), and the sample at `now`."""

    appends: Sequence[tuple[float, float]]
    settings: TopicSettings
    check_seconds: float
    sample_seconds: float
    now: float
    offset: int
    rate: float


def _predicted(run: Run, *, produced: float = math.nan) -> tuple[Loss, Broker]:
    """Return what is foreseen at `now` of a group at its offset, and the log then."""
    broker, ends = Broker(run.settings), LogEnds()
    events = [(time, 1, time + ahead) for time, ahead in run.appends if time <= run.now]
    events += [(at, 0, 0.0) for at in _every(run.check_seconds, run.now)]
    samples = [(at, 2, 0.0) for at in {*_every(run.sample_seconds, run.now), run.now}]
    for at, kind, time in sorted([*events, *samples]):
        if kind == 0:
            broker.check(at)
        elif kind == 1:
            broker.append(time, 1)
        else:
            moment = round((NOW + at) * MICROS)
            ends.add(LogEndSample(moment, moment, np.array([broker.end])))
    offset = max(run.offset, broker.start)
    age = ends.written(np.array([0]), np.array([offset])).age(np.array([round((NOW + run.now) * MICROS)]))
    seconds, error = float(age.seconds[0]), float(age.errors[0])
    ages = (seconds, math.inf) if math.isnan(error) else (max(seconds - error, 0.0), seconds + error)
    loss = _loss(
        run.settings,
        ends,
        at=NOW + run.now,
        offset=offset,
        end=broker.end,
        ages=ages,
        consumed=run.rate,
        produced=produced,
        size=broker.bytes,
        start=broker.start,
        check_seconds=run.check_seconds,
    )
    return loss, broker


def _every(seconds: float, until: float, since: float = 0.0) -> list[float]:
    first = math.floor(since / seconds) + 1
    return [number * seconds for number in range(first, math.floor(until / seconds) + 1)]


def _lost_after(run: Run, broker: Broker, until: float, *, of_all: bool = False) -> float | None:
    """Return how long after the sample the log first deletes a record that was there, or any, and is not read yet."""
    offset, end = max(run.offset, broker.start), math.inf if of_all else broker.end
    events = [(time, 1, time + ahead) for time, ahead in run.appends if time > run.now]
    events += [(at, 0, 0.0) for at in _every(run.check_seconds, until, run.now)]
    for at, kind, time in sorted(events):
        if kind == 1:
            broker.append(time, 1)
            continue
        broker.check(at)
        # A record is read once the position is behind it; what is read at this very moment counts as read.
        position = offset + math.floor(run.rate * (at - run.now) + 1e-6)
        if min(broker.start, end) > position:
            return at - run.now
    return None


@st.composite
def runs(draw: st.DrawFn, *, ahead: float = 0.0) -> Run:
    gaps = draw(st.lists(st.sampled_from([0.0, 0.0, 0.5, 1.0, 3.0, 30.0]), min_size=5, max_size=150))
    times = np.cumsum(gaps).tolist()
    aheads = (
        draw(st.lists(st.floats(0, ahead), min_size=len(times), max_size=len(times))) if ahead else [0.0] * len(times)
    )
    now = draw(st.floats(times[-1] * 0.3, times[-1] + 40)) + 0.25
    there = sum(time <= now for time in times)
    settings = replace(
        SETTINGS,
        retention_ms=draw(st.sampled_from([10_000, 60_000, 200_000])),
        segment_ms=draw(st.sampled_from([1_000, 10_000, 100_000])),
        segment_bytes=draw(st.sampled_from([3, 1 << 30])),
    )
    return Run(
        appends=list(zip(times, aheads, strict=True)),
        settings=settings,
        check_seconds=draw(st.sampled_from([0.7, 5.0, 30.0])),
        sample_seconds=draw(st.sampled_from([1.0, 10.0])),
        now=now,
        offset=draw(st.integers(0, max(there - 1, 0))),
        rate=draw(st.sampled_from([0.0, 0.1, 0.5, 1.0, 2.0, 10.0])),
    )


@given(runs())
def test_time_to_loss_by_time_contains_the_deletion(run: Run) -> None:
    """Whatever was written when, and however fast the group reads: not before the least, not after the most."""
    loss, broker = _predicted(run)
    if max(run.offset, broker.start) >= broker.end:
        return
    lost = _lost_after(run, broker, run.now + 1000)
    if loss.least is None:
        assert loss.reason in {NO_AGE, READ_IN_TIME}
        assert lost is None or loss.reason == NO_AGE
        return
    assert loss.reason == f"retention.ms={run.settings.retention_ms}"
    assert lost is None or lost >= loss.least - 1e-3
    if loss.most is not None:
        assert lost is not None
        assert lost <= loss.most + 1e-3


@given(runs(ahead=25.0))
def test_time_to_loss_timestamps_ahead_of_the_clock_only_delay_the_deletion(run: Run) -> None:
    """In whatever order: a later timestamp holds its whole segment."""
    loss, broker = _predicted(run)
    if max(run.offset, broker.start) >= broker.end:
        return
    lost = _lost_after(run, broker, run.now + 1000)
    if loss.least is None:
        assert lost is None or loss.reason == NO_AGE
        return
    assert lost is None or lost >= loss.least - 1e-3


@given(
    rate=st.sampled_from([1, 3, 10]),
    share=st.sampled_from([0.0, 0.3, 0.9, 1.0, 1.5]),
    kept=st.sampled_from([20, 100, 1000]),
    segment=st.sampled_from([1, 10, 50]),
    now=st.integers(10, 150),
    back=st.floats(0, 1),
    check_seconds=st.sampled_from([0.7, 5.0]),
)
def test_time_to_loss_by_size_contains_the_deletion(
    *, rate: int, share: float, kept: int, segment: int, now: int, back: float, check_seconds: float
) -> None:
    """Records of one size come at one rate."""
    settings = replace(SETTINGS, retention_ms=-1, retention_bytes=kept, segment_bytes=segment)
    appends = [(number / rate, 0.0) for number in range(rate * 1500)]
    there = now * rate
    run = Run(appends, settings, check_seconds, 1.0, now + 0.05, round(there * back), rate * share)
    loss, broker = _predicted(run, produced=float(rate))
    if max(run.offset, broker.start) >= broker.end:
        return
    lost = _lost_after(run, broker, 1500)
    if loss.least is None:
        assert (loss.reason, lost) == (READ_IN_TIME, None)
        return
    assert loss.reason == f"retention.bytes={kept}"
    assert lost is None or lost >= loss.least - 1 / rate - 1e-3
    if loss.most is not None:
        lost = _lost_after(run, _predicted(run)[1], 1500, of_all=True)
        assert lost is not None
        assert lost <= loss.most + 1 / rate + 1e-3
