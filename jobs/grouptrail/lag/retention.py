"""When retention will delete records that a group has not read. Reads no table, no broker and no clock.

A broker deletes whole segments, the oldest first, at its next check (log.retention.check.interval.ms): by time once
the largest timestamp of a segment is older than retention.ms, by size while the bytes after it are at least
retention.bytes.

By time, the record with timestamp t is deleted at t + retention.ms at the earliest, as are those after it: their
segment is the same or a later one. A segment has no record more than segment.ms younger than its first, so that a
check after t + segment.ms + retention.ms deletes it. Timestamps are taken to be those at which the samples show that
records were written, unless they were read or looked up; where a producer sets older ones, retention deletes earlier.

A group that goes on at its rate loses the first record that it reaches later than that record can be deleted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Self

import numpy as np
import pyarrow as pa

from grouptrail.lag.index import MICROS, UNKNOWN, Bools, Floats, Ints, PartitionIndex, at_numbers, ints
from grouptrail.lag.seconds import LogEndSample
from grouptrail.storage.topic_settings import TopicSettings

NO_SETTINGS = "the settings of the topic are not known"
NOT_SAMPLED = f"{NO_SETTINGS}: the job cluster has not read them"
READ_IN_TIME = "the group reads what there is in time, at its rate"
NOTHING_UNREAD = "no record is left to read"
NO_LAG = "the lag is not known: see problem"
NO_AGE = "the age of the oldest unread record has no upper limit"
NOT_DELETED = "retention deletes nothing of the topic: cleanup.policy="
NO_LIMIT = "retention.ms and retention.bytes have no limit"
NO_SIZE = "the size of the log is not known, and retention.bytes="
NO_RATE = "the rate at which records come is not known yet, and retention.bytes="

SIZES_DIFFER = 2.0
"""By this factor at most, unread records are taken to be larger or smaller than the average record of their log."""

# Beyond, groups that would fall behind later are taken to stop reading now.
_MOST_FOLLOWED = 50_000


_NONE, _NO_AGE, _NO_SIZE, _NO_RATE, _BY_TIME, _BY_SIZE = range(6)
_REASONS = 6


@dataclass(frozen=True)
class _Kind:
    """The settings that topics share; seconds and bytes are infinite without a limit, NaN where they are not known.

    `reasons`: by the numbers above, why there is no figure, or which setting acts.
    """

    seconds: float
    segment_seconds: float
    bytes: float
    segment_bytes: float
    reasons: tuple[str, ...]
    is_remote: bool = False

    @classmethod
    def unknown(cls, reason: str) -> Self:
        return cls(np.nan, np.nan, np.nan, np.nan, (reason,) * _REASONS)

    @classmethod
    def of(cls, settings: TopicSettings) -> Self:
        """Return what matters here of a topic's settings."""
        policy, ms, size = settings.cleanup_policy, settings.retention_ms, settings.retention_bytes
        if settings.problem is not None or policy is None or ms is None or size is None:
            return cls.unknown(NO_SETTINGS + (f": {settings.problem}" if settings.problem else ""))
        policies = {name.strip() for name in policy.split(",")}
        if "delete" not in policies:
            return cls(np.inf, np.nan, np.inf, np.nan, (f"{NOT_DELETED}{policy}",) * _REASONS)
        # Compaction joins segments, and one of a topic with remote storage is deleted after it was copied there.
        is_plain = policies == {"delete"} and not settings.remote_storage_enable
        segment_ms, segment_bytes = (
            value if is_plain and value is not None else np.nan
            for value in (settings.segment_ms, settings.segment_bytes)
        )
        remote = ": the topic has remote storage" if settings.remote_storage_enable else ""
        return cls(
            np.inf if ms < 0 else ms / 1000,
            segment_ms / 1000,
            np.inf if size < 0 else float(size),
            float(segment_bytes),
            (
                NO_LIMIT if ms < 0 and size < 0 else READ_IN_TIME,
                NO_AGE,
                f"{NO_SIZE}{size}{remote}",
                f"{NO_RATE}{size}",
                f"retention.ms={ms}",
                f"retention.bytes={size}",
            ),
            bool(settings.remote_storage_enable),
        )


@dataclass(frozen=True)
class LogSizes:
    """Bytes of logs by the partitions' numbers, and when they were read (microseconds); `UNKNOWN` where not."""

    bytes: Ints
    at: Ints

    @classmethod
    def of(cls, rows: pa.Table, index: PartitionIndex) -> Self:
        """Return sizes of partitions. In: topic, partition, size_bytes, sampled_at."""
        partitions = index.partitions(rows)
        sizes, times = (np.full(index.partition_count, UNKNOWN) for _ in range(2))
        sizes[partitions], times[partitions] = ints(rows["size_bytes"]), ints(rows["sampled_at"])
        return cls(sizes, times)


class Retention:
    """The settings of the topics of partitions, by the partitions' numbers.

    `are_limited`: by kind, whether retention has a limit that is known; `has_bytes`: whether any has one by size.
    """

    def __init__(self, settings: Mapping[str, TopicSettings], missing: str = NOT_SAMPLED) -> None:
        """`missing` is the reason why there are no figures of other topics."""
        numbers = {its: number for number, its in enumerate(dict.fromkeys(settings.values()), 1)}
        self.kinds = [_Kind.unknown(missing), *map(_Kind.of, numbers)]
        self.are_limited = np.array([np.isfinite(one.seconds) or np.isfinite(one.bytes) for one in self.kinds])
        self.has_bytes = any(np.isfinite(one.bytes) for one in self.kinds)
        self._of_topic = {topic: numbers[its] for topic, its in settings.items()}
        self._of_partition = np.empty(0, np.int64)

    def reasons_without_limit(self, kinds: Ints) -> list[tuple[Ints, str]]:
        """Return the entries of which retention has no limit that is known, and why it foresees no loss."""
        counts = np.bincount(kinds, minlength=len(self.kinds))
        others = np.flatnonzero((counts > 0) & ~self.are_limited).tolist()
        return [(np.flatnonzero(kinds == number), self.kinds[number].reasons[_NONE]) for number in others]

    def of(self, partitions: Ints, index: PartitionIndex) -> Ints:
        """Return the numbers of the `kinds` of partitions."""
        if len(self._of_partition) < index.partition_count:
            topics = index.topics(np.arange(len(self._of_partition), index.partition_count)).dictionary_encode()
            codes = [self._of_topic.get(topic, 0) for topic in topics.dictionary.to_pylist()]
            more = np.array([*codes, 0], np.int64)[np.asarray(topics.indices)]
            self._of_partition = np.concatenate([self._of_partition, more])
        return self._of_partition[partitions]


@dataclass(frozen=True)
class UnreadLogs:
    """What groups have not read of logs, by entry; seconds and rates are NaN where they are not known.

    `offsets` are the first unread ones that were not deleted, `ends` those after the last to read. The oldest unread
    record is between `least_ages` and `most_ages` seconds old, infinite without an upper limit; by the samples alone
    `sampled_ages` at most. The logs are from `starts` to `log_ends`; they had `bytes` when they ended at `sized_ends`
    (`UNKNOWN` where that is not known). Times are in microseconds.
    """

    kinds: Ints
    partitions: Ints
    offsets: Ints
    ends: Ints
    at: Ints
    least_ages: Floats
    most_ages: Floats
    sampled_ages: Floats
    consume_rates: Floats
    produce_rates: Floats
    starts: Ints
    log_ends: Ints
    bytes: Ints
    sized_ends: Ints

    def __len__(self) -> int:
        return len(self.offsets)

    def of(self, chosen: Bools | Ints) -> UnreadLogs:
        """Return some entries."""
        return UnreadLogs(*(getattr(self, field.name)[chosen] for field in fields(self)))

    @property
    def sizes(self) -> Floats:
        """The average bytes of an offset, not less than they were when the log's size was read; NaN if not known."""
        counts = self.sized_ends - self.starts
        is_known = (self.bytes != UNKNOWN) & (self.sized_ends != UNKNOWN) & (counts > 0)
        return np.where(is_known, self.bytes / np.where(is_known, counts, 1), np.nan)

    @property
    def reading_seconds(self) -> Floats:
        """How long groups take, at their rates, to read all that is there; infinite for those that do not read."""
        rates = np.nan_to_num(self.consume_rates)
        with np.errstate(divide="ignore"):
            return np.asarray((self.ends - self.offsets) / rates)


@dataclass(frozen=True)
class TimeToLoss:
    """After how many seconds retention deletes an unread record: `least` at the earliest, `most` at the latest.

    NaN: there is no such limit. `reasons` are entries and why these have no `least`, or which setting acts.
    """

    least: Floats
    most: Floats
    reasons: Sequence[tuple[Ints, str]]


def time_to_loss(
    unread: UnreadLogs, retention: Retention, samples: Sequence[LogEndSample], check_seconds: float
) -> TimeToLoss:
    """Return after which time unread records are deleted, if each group goes on at its rate; all kinds have a limit.

    `samples` are log ends, the oldest first; brokers check logs every `check_seconds`.
    """
    by_time = _by_time(unread, retention, samples, check_seconds)
    # What can be deleted now needs no further figure.
    is_due = by_time[0] == 0
    which = np.where(np.isnan(by_time[0]), _NO_AGE, _NONE)
    least, most = by_time
    if retention.has_bytes:
        by_size = _by_size(unread, retention, check_seconds)
        is_due |= by_size[0] == 0
        least, most = np.minimum(least, by_size[0]), np.fmin(most, by_size[1])
        least[is_due] = 0.0
        has_no_size = np.isnan(unread.sizes) | (_by_kind(unread, retention, "is_remote") != 0)
        which[np.isnan(by_size[0])] = _NO_RATE
        which[np.isnan(by_size[0]) & has_no_size] = _NO_SIZE
        which[np.isnan(by_time[0])] = _NO_AGE
        which[by_size[0] == least] = _BY_SIZE
    is_known = np.isfinite(least)
    which[is_known & (by_time[0] == least)] = _BY_TIME
    which[np.isinf(least)] = _NONE
    codes = unread.kinds * _REASONS + which
    reasons = [
        (np.flatnonzero(codes == code), retention.kinds[code // _REASONS].reasons[code % _REASONS])
        for code in np.flatnonzero(np.bincount(codes)).tolist()
    ]
    return TimeToLoss(np.where(is_known, least, np.nan), np.where(is_known, most, np.nan), reasons)


def _by_kind(unread: UnreadLogs, retention: Retention, name: str) -> Floats:
    values = np.array([getattr(kind, name) for kind in retention.kinds], np.float64)
    return values[unread.kinds]


def _by_time(
    unread: UnreadLogs, retention: Retention, samples: Sequence[LogEndSample], check_seconds: float
) -> tuple[Floats, Floats]:
    """Return the time to loss by retention.ms: infinite if none comes, NaN where it is not known."""
    kept = _by_kind(unread, retention, "seconds")
    kept_at_most = kept + _by_kind(unread, retention, "segment_seconds") + check_seconds
    left = kept - unread.most_ages
    least = np.where(np.isinf(kept), np.inf, np.where(np.isinf(left), np.nan, np.maximum(left, 0.0)))
    # Whatever its age is, it is old enough.
    least[unread.least_ages >= kept] = 0.0
    # What is still there then is held by a later timestamp.
    most = np.where(unread.least_ages > kept_at_most, np.nan, kept_at_most - unread.least_ages)
    is_reading = np.nan_to_num(unread.consume_rates) > 0
    is_followed = is_reading & (unread.reading_seconds > least) & np.isfinite(least)
    least[is_reading & (unread.reading_seconds <= least)] = np.inf
    followed = np.flatnonzero(is_followed)[:_MOST_FOLLOWED]
    most[is_reading] = np.nan
    least[followed], most[followed] = _followed(unread.of(followed), kept[followed], kept_at_most[followed], samples)
    return least, most


def _followed(
    unread: UnreadLogs, kept: Floats, kept_at_most: Floats, samples: Sequence[LogEndSample]
) -> tuple[Floats, Floats]:
    """Return the time to loss of groups that read, by when they reach what was written between two samples each."""
    least, most = np.full(len(unread), np.inf), np.full(len(unread), np.nan)
    if not len(unread):
        return least, most
    # What was written after a sample was asked for is not older than that, unless timestamps are.
    older = unread.most_ages - unread.sampled_ages
    older = np.where(np.isfinite(older), np.maximum(older, 0.0), 0.0)
    written_since, reached = -unread.most_ages, unread.offsets

    def read(until: Ints, known: Bools, written_by: Floats) -> None:
        read_by = (np.minimum(until, unread.ends) - unread.offsets) / unread.consume_rates
        is_next = known & (np.minimum(until, unread.ends) > reached)
        lost_from, lost_by = np.maximum(written_since + kept, 0.0), written_by + kept_at_most
        is_first = is_next & np.isinf(least) & (read_by > lost_from)
        least[is_first] = lost_from[is_first]
        is_certain = is_next & np.isnan(most) & (read_by > lost_by)
        most[is_certain] = np.maximum(lost_by[is_certain], 0.0)

    for sample in samples:
        ends = at_numbers(sample.ends, unread.partitions)
        is_known = ends != UNKNOWN
        read(ends, is_known, (sample.answered_at - unread.at) / MICROS)
        is_after = is_known & (ends > unread.offsets)
        since = (sample.asked_at - unread.at) / MICROS - older
        written_since = np.where(is_after, np.maximum(written_since, since), written_since)
        reached = np.where(is_after, ends, reached)
    read(unread.ends, np.full(len(unread), True), np.zeros(len(unread)))
    return least, most


def _by_size(unread: UnreadLogs, retention: Retention, check_seconds: float) -> tuple[Floats, Floats]:
    """Return the time to loss by retention.bytes: infinite if none comes at these rates, NaN if it is not known."""
    kept, segment = (_by_kind(unread, retention, name) for name in ("bytes", "segment_bytes"))
    least, most = np.where(np.isinf(kept), np.inf, np.nan), np.full(len(unread), np.nan)
    is_remote = _by_kind(unread, retention, "is_remote") != 0
    where = np.flatnonzero(np.isfinite(kept) & ~np.isnan(unread.sizes) & ~is_remote)
    if not len(where):
        return least, most
    unread, kept, segment = unread.of(where), kept[where], segment[where]
    size, behind = unread.sizes, (unread.log_ends - unread.offsets).astype(np.float64)
    # The bytes after a record are those of the whole log at most.
    whole = unread.bytes + SIZES_DIFFER * size * np.maximum(unread.log_ends - unread.sized_ends, 0)
    room = np.maximum(kept - np.minimum(SIZES_DIFFER * size * behind, whole), 0.0)
    grows = unread.produce_rates - np.nan_to_num(unread.consume_rates)
    with np.errstate(divide="ignore", invalid="ignore"):
        least_here = np.where(grows > 0, room / (SIZES_DIFFER * size * grows), np.inf)
        most_room = np.maximum(kept + segment - size * behind / SIZES_DIFFER, 0.0)
        most_here = np.where(grows > 0, most_room * SIZES_DIFFER / (size * grows) + check_seconds, np.nan)
    least_here = np.where(np.isnan(grows), np.nan, least_here)
    least[where] = np.where(room == 0, 0.0, least_here)
    most[where] = most_here
    return least, most
