"""`grouptrail backtest`: replay an alert over the stored lag with other thresholds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.lag.calculator import TABLE
from grouptrail.lag.index import (
    MICROS,
    UNKNOWN,
    Bools,
    Ints,
    PartitionIndex,
    at_numbers,
    floats,
    ints,
    moment,
    valid,
    whole,
)
from grouptrail.lag.offsets import SAMPLES_TO_KEEP_UP, are_of_other_log, keeps_up, matching, not_deleted
from grouptrail.lag.verdict import CAUGHT_UP, PositionSample, Thresholds, judge, stop_seconds_of
from grouptrail.lag.window import Window
from grouptrail.query.errors import QueryError
from grouptrail.query.fitted_table import LONGEST_NAME, shortened
from grouptrail.query.formats import RowsFormat, console_on, write_rows, write_table
from grouptrail.storage.positions import CAME_BACK
from grouptrail.storage.schema import columns_of
from grouptrail.storage.sql import datafusion_literal
from grouptrail.storage.sql_snapshot import SqlSnapshot
from grouptrail.storage.warehouse import Warehouse

if TYPE_CHECKING:
    from grouptrail.config.job_settings import LagSettings

_COLUMNS = (
    *("group_id", "topic", "partition", "sampled_at", "committed_offset", "delivery_complete_count", "commit_at"),
    *("log_start_offset", "log_end_offset", "lag", "lost_records"),
    *("lag_seconds", "silent_seconds", "usual_wait_seconds", *CAME_BACK),
    *("status", "status_reason", "group_state", "problem"),
)
_STORED = columns_of(TABLE, _COLUMNS)
_HEADERS = ("group_id", "topic", "partition", "fired_at", "ended_at", "lasted_seconds", "status", "lag", "reason")


@dataclass(frozen=True)
class Alert:
    """An alert on statuses, or on a lag in seconds above a bound, that must hold for `for_seconds`."""

    statuses: frozenset[str] = frozenset({"STOP", "STALL", "REWIND"})
    above_seconds: float | None = None
    for_seconds: float = 0

    def fires(self, status: str, lag_seconds: float) -> bool:
        """Return whether the condition holds at one sample; an unknown lag (NaN) is not above the bound."""
        return status in self.statuses or (self.above_seconds is not None and lag_seconds > self.above_seconds)


@dataclass
class Firing:
    """An alert on one position; it fires once the condition has held for long enough and ends with it.

    Times are in microseconds. `fired_at` is None until it fires, `ended_at` None while it lasts.
    """

    group_id: str
    topic: str
    partition: int
    held_since: int
    fired_at: int | None
    ended_at: int | None
    status: str
    lag: int
    reason: str


def replay(
    samples: Iterable[pa.Table],
    thresholds: Thresholds,
    alert: Alert,
    group_stop_seconds: Sequence[tuple[str, float]] = (),
) -> Iterator[Firing]:
    """Yield the firings of an alert over samples (rows of `consumer_lag`), the oldest first, as they end."""
    index, window = PartitionIndex(), Window(thresholds.window_seconds, thresholds.allowed_lag)
    held: dict[int, Firing] = {}
    earlier_ends = [np.empty(0, np.int64)] * SAMPLES_TO_KEEP_UP
    for rows in samples:
        partitions = index.partitions(rows)
        numbers = index.positions(rows, partitions)
        at = int(ints(rows["sampled_at"]).max())
        committed, lag, lost = (ints(rows[name]) for name in ("committed_offset", "lag", "lost_records"))
        readable = np.where(_have_nothing_left(rows), 0, not_deleted(lag, lost, committed))
        committed_at = ints(rows["commit_at"])
        ends = ints(rows["log_end_offset"])
        is_other = are_of_other_log(rows["problem"])
        window.forget(numbers[is_other | ((ends != UNKNOWN) & (ends < at_numbers(earlier_ends[-1], partitions)))])
        committed = np.where(is_other, UNKNOWN, committed)
        then = at_numbers(earlier_ends.pop(0), partitions)
        earlier_ends.append(np.full(index.partition_count, UNKNOWN))
        earlier_ends[-1][partitions] = ends
        are_shared = valid(rows["delivery_complete_count"])
        complete = np.where(are_shared, ints(rows["delivery_complete_count"]), 0)
        consumed = np.where(committed == UNKNOWN, UNKNOWN, committed + complete)
        window.start_sample(at, index.position_count)
        window.put(
            numbers,
            partitions,
            committed=consumed,
            committed_at=committed_at,
            lag=readable,
            keeps_up=keeps_up(consumed, readable, then),
        )
        seconds, silent = (floats(rows[name]) for name in ("lag_seconds", "silent_seconds"))
        quiet = np.where(committed_at == UNKNOWN, np.nan, (at - committed_at) / MICROS)
        # Members that have just started are silent for less; older versions did not store it.
        quiet = np.where(silent < np.minimum(quiet, seconds), silent, quiet)
        verdict = judge(
            window,
            PositionSample(
                positions=numbers,
                committed=committed,
                lag=readable,
                lost=lost,
                lag_seconds=seconds,
                commit_seconds=quiet,
                is_empty=_were_empty(rows),
                is_unsubscribed=np.asarray(pc.equal(rows["status"], "UNSUBSCRIBED")),
                uncommitted=_uncommitted(rows),
                held_back=_held_back(rows),
                usual_seconds=floats(rows["usual_wait_seconds"]),
                stop_seconds=stop_seconds_of(whole(rows["group_id"]), thresholds, group_stop_seconds),
                are_shared=are_shared,
                awaiting_redelivery=ints(rows["awaiting_redelivery"]),
                most_deliveries=ints(rows["most_deliveries"]),
                most_delivered_offset=ints(rows["most_delivered_offset"]),
            ),
            thresholds,
        )
        status = verdict.status.to_pylist()
        fires = [alert.fires(*one) for one in zip(status, seconds.tolist(), strict=True)]
        firing = {number: entry for entry, number in enumerate(numbers.tolist()) if fires[entry]}
        for number in [number for number in held if number not in firing]:
            if (ended := held.pop(number)).fired_at is not None:
                ended.ended_at = at
                yield ended
        for number, entry in firing.items():
            if number not in held:
                held[number] = Firing(
                    group_id=rows["group_id"][entry].as_py(),
                    topic=rows["topic"][entry].as_py(),
                    partition=rows["partition"][entry].as_py(),
                    held_since=at,
                    fired_at=None,
                    ended_at=None,
                    status=status[entry],
                    lag=int(lag[entry]),
                    reason=verdict.reason[entry].as_py(),
                )
            if held[number].fired_at is None and at - held[number].held_since >= alert.for_seconds * MICROS:
                held[number].fired_at = at
    yield from (firing for firing in held.values() if firing.fired_at is not None)


def _held_back(rows: pa.Table) -> pa.Array:
    """Return why known lag was not judged, which is because of open transactions; null where it was."""
    is_held = pc.and_(pc.equal(rows["status"], "UNKNOWN"), pc.is_valid(rows["lag"]))
    return whole(pc.if_else(is_held, rows["status_reason"], None))


def _have_nothing_left(rows: pa.Table) -> Bools:
    """Return where the unread offsets hold no record, or one that was read."""
    has_none = pc.starts_with(rows["status_reason"], CAUGHT_UP[1])
    return np.asarray(whole(pc.fill_null(has_none, False)), bool)


def _uncommitted(rows: pa.Table) -> Ints:
    """Return the records of partitions to which the group had not committed yet; `UNKNOWN` where it had."""
    records = ints(rows["log_end_offset"]) - ints(rows["log_start_offset"])
    return np.where(np.asarray(pc.equal(rows["status"], "UNCOMMITTED")), records, UNKNOWN)


def _were_empty(rows: pa.Table) -> Bools:
    """Return whether the members had left on purpose, as far as the stored rows show.

    EMPTY says so. OK of an Empty group may, if the group had caught up; otherwise EMPTY would have been the status.
    """
    stored = zip(*(rows[name].to_pylist() for name in ("status", "group_state", "status_reason", "lag")), strict=True)
    return np.array(
        [
            status == "EMPTY"
            or (status == "OK" and state == "Empty" and (not lag or (reason or "").startswith(CAUGHT_UP)))
            for status, state, reason, lag in stored
        ],
        bool,
    )


def backtest(
    warehouse: Warehouse,
    settings: LagSettings,
    alert: Alert,
    *,
    groups: Sequence[str],
    since: datetime,
    until: datetime,
    format: RowsFormat,
    out: TextIO,
) -> None:
    """Print the firings between two times for the groups that match one of the patterns (without any, for all).

    Raises QueryError where no lag of them was stored in that time.
    """
    thresholds = Thresholds.of(settings.lag)
    stored = _Stored(warehouse, settings.sample_seconds, groups, since, until)
    firings = replay(stored.samples(), thresholds, alert, settings.lag.group_stop_seconds)
    most = LONGEST_NAME if format == "table" and out.isatty() else None
    rows = [_shown(firing, most) for firing in sorted(firings, key=lambda firing: firing.fired_at or 0)]
    if format != "table":
        write_rows(list(_HEADERS), rows, out, format=format)
        return
    if rows:
        write_table(list(_HEADERS), rows, out)
    positions = len({row[:3] for row in rows})
    console_on(out).print(
        f"{len(rows)} alerts on {positions} partitions in {stored.count} samples, "
        f"{_text(stored.first)} to {_text(stored.last)}; window_seconds {thresholds.window_seconds:g}, "
        f"stop_seconds {thresholds.stop_seconds:g}, allowed_lag {thresholds.allowed_lag}",
        markup=False,
        soft_wrap=True,
    )


class _Stored:
    """The stored samples of a time range, and once they have been read, their count and times."""

    def __init__(
        self, warehouse: Warehouse, sample_seconds: float, groups: Sequence[str], since: datetime, until: datetime
    ) -> None:
        self._tables = SqlSnapshot(warehouse, [TABLE])
        self._apart = sample_seconds / 2 * MICROS
        self._where = (
            f"WHERE cluster = {datafusion_literal(warehouse.cluster)} "
            f"AND sampled_at >= {datafusion_literal(since)} AND sampled_at < {datafusion_literal(until)}"
        )
        known = [row["group_id"] for row in self._tables.rows(f"SELECT DISTINCT group_id FROM {TABLE} {self._where}")]
        is_matching = matching(pa.array(known, pa.string()), groups).tolist()
        selected = [name for name, matches in zip(known, is_matching, strict=True) if matches]
        if not (selected if groups else known):
            of = f" of {' or '.join(groups)}" if groups else ""
            raise QueryError(
                f"no lag{of} was stored from {_text(since)} to {_text(until)}: give another --from or --to, "
                "or see `grouptrail tables`"
            )
        if groups:
            self._where += f" AND group_id IN ({', '.join(map(datafusion_literal, selected))})"
        self.count = 0
        self.first, self.last = until, since

    def samples(self) -> Iterator[pa.Table]:
        """Yield the samples, the oldest first; rows closer together than half the sampling interval belong to one."""
        text = f"SELECT {', '.join(_COLUMNS)} FROM {TABLE} {self._where} ORDER BY sampled_at"
        waiting: list[pa.RecordBatch] = []
        newest = UNKNOWN
        for stored in self._tables.stream(text)[1]:
            batch = pa.record_batch(stored).cast(_STORED)
            times = ints(batch["sampled_at"])
            cuts = np.flatnonzero(np.diff(times, prepend=times[0] if newest == UNKNOWN else newest) >= self._apart)
            newest = int(times[-1])
            for first, end in zip([0, *cuts.tolist()], [*cuts.tolist(), len(batch)], strict=True):
                if first in cuts and waiting:
                    yield self._counted(waiting)
                    waiting = []
                if end > first:
                    waiting.append(batch.slice(first, end - first))
        if waiting:
            yield self._counted(waiting)

    def _counted(self, parts: list[pa.RecordBatch]) -> pa.Table:
        sample = pa.Table.from_batches(parts)
        at = moment(int(ints(sample["sampled_at"]).max()))
        self.count += 1
        self.first, self.last = min(self.first, at), max(self.last, at)
        return sample


def _shown(firing: Firing, most: int | None) -> tuple[str | int | float | None, ...]:
    """Return the columns of a firing, with names of at most this many cells."""
    fired_at = firing.fired_at or 0
    lasted = None if firing.ended_at is None else (firing.ended_at - fired_at) / MICROS
    ended_at = None if firing.ended_at is None else _text(moment(firing.ended_at))
    names = (name if most is None else shortened(name, most) for name in (firing.group_id, firing.topic))
    return (
        *names,
        firing.partition,
        _text(moment(fired_at)),
        ended_at,
        lasted,
        firing.status,
        firing.lag,
        firing.reason,
    )


def _text(time: datetime) -> str:
    return f"{time:%Y-%m-%dT%H:%M:%SZ}"
