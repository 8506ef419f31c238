"""The last commit of partitions that changed their owner: its age, and how many records may be read twice.

The last commit is searched in the lookback before a partition was given up. The estimate of records that may be read
twice is the commit's age times the rate of the last two commits. This module reads the commits into memory;
`handovers_with_spark` does the same for any number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from grouptrail.history.arrow_rows import equals_before, with_values
from grouptrail.storage.files import RowsFunction
from grouptrail.storage.schema import gathered

Ints = npt.NDArray[np.int64]
CommitsBetween = Callable[[datetime, datetime], ds.Dataset]
"""Returns rows of `offset_commits`, among them all of a time."""

NEEDS_COMMITS = {"handed_over": "given_up_at", "departed": "left_at"}
"""The lists in `rebalances` that commits complete, with the times until which they do."""

PARTITION = ("record_partition", "group_id", "topic", "partition")
IN_TIME = ("at", "is_handover", "record_offset")
COMMIT_COLUMNS = ("committed_offset", "commit_age_ms", "may_be_read_twice")
COMMIT_DDL = (
    "group_id string, record_offset bigint, position int, committed_offset bigint, commit_age_ms bigint, "
    "may_be_read_twice bigint, commits_found int"
)

# Most partitions are committed every few seconds; only for the others the whole lookback is read.
_NEAR = timedelta(minutes=1)
_SHORT = timedelta(minutes=10)
_ROWS_AT_A_TIME = 1_000_000


@dataclass(frozen=True)
class CommitSpan:
    """The time range in which partitions were given up or members left, and their groups."""

    first: datetime
    last: datetime
    groups: list[str]

    @classmethod
    def of(cls, rebalances: pa.Table) -> Self | None:
        """Return the span of rows of `rebalances`; None where nothing was handed over and nobody's end is open."""
        times, groups = [], set[str]()
        for name, time in NEEDS_COMMITS.items():
            lists = rebalances[name].combine_chunks()
            times.append(pc.struct_field(lists.flatten(), time))
            groups |= set(rebalances["group_id"].take(pc.list_parent_indices(lists)).to_pylist())
        needed = pa.chunked_array(times)
        return cls(pc.min(needed).as_py(), pc.max(needed).as_py(), sorted(groups)) if groups else None

    @property
    def is_short(self) -> bool:
        """Whether the commits of the time range fit the driver's memory."""
        return self.last - self.first <= _SHORT


def fill_commits(rebalances: pa.Table, commits: CommitsBetween, cluster: str, lookback: timedelta) -> pa.Table:
    """Fill the commit columns of `handed_over` in rows of `rebalances` from rows of `offset_commits`."""
    lists = rebalances["handed_over"].combine_chunks()
    handovers = lists.flatten()
    if not len(handovers):
        return rebalances
    whose = rebalances.select(["record_partition", "group_id", "record_offset"]).take(pc.list_parent_indices(lists))
    handed = pa.table(
        {
            **{name: whose[name] for name in whose.column_names},
            "topic": pc.struct_field(handovers, "topic"),
            "partition": pc.struct_field(handovers, "partition"),
            "at": pc.struct_field(handovers, "given_up_at"),
            "position": pa.array(np.arange(len(handovers), dtype=np.int32)),
        }
    )
    filled = _commits_of(handed, commits, cluster, min(_NEAR, lookback), lookback)
    fields = [
        filled[field.name] if field.name in COMMIT_COLUMNS else pc.struct_field(handovers, field.name)
        for field in handovers.type
    ]
    ends = np.cumsum(pc.list_value_length(lists).to_numpy(zero_copy_only=False))
    offsets = pa.array(np.concatenate([[0], ends]).astype(np.int32))
    whole = pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays(fields, fields=list(handovers.type)))
    return with_values(rebalances, {"handed_over": whole})


def _commits_of(
    handed: pa.Table, commits: CommitsBetween, cluster: str, near: timedelta, lookback: timedelta
) -> dict[str, pa.Array]:
    """Return the commit columns of each handover, from the near commits or else from the whole lookback."""
    events = pa.concat_tables([_commits_before(handed, commits, cluster, near), handed], promote_options="default")
    figures = pa.Table.from_batches(last_commits(near)(sort_events(events).to_batches())).sort_by("position")
    columns = {name: figures[name].combine_chunks() for name in COMMIT_COLUMNS}
    missing = pc.less(figures["commits_found"], 2).combine_chunks()
    if near < lookback and pc.any(missing).as_py():
        rest = _commits_of(handed.filter(missing), commits, cluster, lookback, lookback)
        columns = {name: pc.replace_with_mask(columns[name], missing, rest[name]) for name in COMMIT_COLUMNS}
    return columns


def _commits_before(handed: pa.Table, commits: CommitsBetween, cluster: str, near: timedelta) -> pa.Table:
    bounds = pc.min_max(handed["at"])
    first, last = bounds["min"].as_py() - near, bounds["max"].as_py()
    among = (
        (pc.field("cluster") == cluster)
        & (pc.field("record_at") >= first)
        & (pc.field("record_at") <= last)
        & pc.field("group_id").isin(pc.unique(handed["group_id"]))
        & pc.field("committed_offset").is_valid()
    )
    columns = {name: pc.field(name) for name in (*PARTITION, "record_offset", "committed_offset")}
    columns["at"] = pc.field("record_at")
    batches = commits(first, last).to_batches(columns=columns, filter=among)
    wanted = handed.select(PARTITION).group_by(PARTITION).aggregate([])
    matching = [
        pa.Table.from_batches(some).join(wanted, list(PARTITION), join_type="left semi")
        for some in gathered(batches, rows=_ROWS_AT_A_TIME)
    ]
    none = pa.schema([*(wanted.schema.field(name) for name in PARTITION), pa.field("committed_offset", pa.int64())])
    return pa.concat_tables([none.empty_table(), *matching], promote_options="default")


def sort_events(events: pa.Table) -> pa.Table:
    """Return commits and handovers (those with a position) in the order that `last_commits` needs."""
    events = events.append_column("is_handover", events["position"].is_valid())
    return events.sort_by([(name, "ascending") for name in (*PARTITION, *IN_TIME)]).combine_chunks()


def last_commits(lookback: timedelta) -> RowsFunction:
    """Return a function for `DataFrame.mapInArrow` over sorted commits and handovers that yields `COMMIT_DDL`."""

    def look_up(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        carried: list[pa.RecordBatch] = []
        for batch in filter(len, batches):
            events = pa.concat_batches([*carried, batch.select(sorted(batch.schema.names))])
            rows, last, before = _two_commits(events)
            yield _commit_figures(events, rows[:-1], last[:-1], before[:-1], lookback)
            two = np.array([before[-1], last[-1]])
            carried = [events.take(pa.array(two[two >= 0]))]

    return look_up


def _two_commits(events: pa.RecordBatch) -> tuple[Ints, Ints, Ints]:
    """Return the row numbers of all handovers and of the last row, and those of the last two commits before each.

    -1 stands for no commit of the same partition.
    """
    is_handover = events["is_handover"].to_numpy(zero_copy_only=False)
    newest = np.maximum.accumulate(np.where(is_handover, -1, np.arange(len(events))))
    newest_before = np.concatenate([[-1], newest[:-1]])
    rows = np.array([*np.flatnonzero(is_handover), len(events) - 1])
    partition = _numbered(events)

    def of_partition(commit: Ints) -> Ints:
        return np.where((commit >= 0) & (partition[commit] == partition[rows]), commit, -1)

    last = of_partition(newest[rows])
    return rows, last, of_partition(np.where(last >= 0, newest_before[last], -1))


def _commit_figures(
    events: pa.RecordBatch, rows: Ints, last: Ints, before: Ints, lookback: timedelta
) -> pa.RecordBatch:
    at = events["at"].cast(pa.int64()).to_numpy()
    offset = events["committed_offset"].fill_null(0).to_numpy()
    since = at[rows] - lookback // timedelta(microseconds=1)
    has_last, has_before = ((one >= 0) & (at[one] >= since) for one in (last, before))
    ms = at // 1000
    age, between, read = ms[rows] - ms[last], ms[last] - ms[before], offset[last] - offset[before]
    has_pace = has_before & (between > 0) & (read >= 0)
    twice = np.floor(read / np.where(has_pace, between, 1) * age + 0.5).astype(np.int64)
    which = events.take(pa.array(rows))
    return pa.RecordBatch.from_pydict(
        {
            **{name: which[name] for name in ("group_id", "record_offset", "position")},
            "committed_offset": pa.array(offset[last], mask=~has_last),
            "commit_age_ms": pa.array(age, mask=~has_last),
            "may_be_read_twice": pa.array(twice, mask=~has_pace),
            "commits_found": pa.array(has_last.astype(np.int32) + has_before),
        }
    )


def _numbered(events: pa.RecordBatch) -> Ints:
    """Number sorted rows by group and partition."""
    return np.cumsum(~equals_before(events[name] for name in PARTITION))
