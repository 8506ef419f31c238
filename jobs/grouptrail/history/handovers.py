"""The last commit of partitions that changed their owner: its age, and how many records may be read twice.

The last commit is searched in the lookback before a partition was given up. The estimate of records that may be read
twice is the commit's age times the rate of the last two commits. The driver processes few handovers, Spark many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from grouptrail.storage.files import Rows
from grouptrail.storage.schema import gathered
from grouptrail.storage.sql import spark_literal

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Ints = npt.NDArray[np.int64]
CommitsBetween = Callable[[datetime, datetime], ds.Dataset]
"""Returns rows of `offset_commits`, among them all of a time."""

_OF = ("record_partition", "group_id", "topic", "partition")
_IN_TIME = ("at", "is_handover", "record_offset")
_COMMIT_COLUMNS = ("committed_offset", "commit_age_ms", "may_be_read_twice")
_COMMIT_DDL = (
    "group_id string, record_offset bigint, position int, committed_offset bigint, commit_age_ms bigint, "
    "may_be_read_twice bigint, commits_found int"
)
_FEW_GROUPS = 2_000

# Most partitions are committed every few seconds; only for the others the whole lookback is read.
_NEAR = timedelta(minutes=1)
_SHORT = timedelta(minutes=10)
_ROWS_AT_A_TIME = 1_000_000


@dataclass(frozen=True)
class HandoverSpan:
    """The time range in which partitions were given up, and their groups."""

    first: datetime
    last: datetime
    groups: list[str]

    @staticmethod
    def aggregates(rebalances: str) -> list[Column]:
        """Return the aggregates that `of` needs, over a column with rows of `rebalances` and `group_id`."""
        from pyspark.sql import functions as F

        given_up = F.col(f"{rebalances}.handed_over.given_up_at")
        return [
            F.min(F.array_min(given_up)).alias("first"),
            F.max(F.array_max(given_up)).alias("last"),
            F.collect_set(F.when(F.size(given_up) > 0, F.col("group_id"))).alias("groups"),
        ]

    @classmethod
    def of(cls, row: Any) -> Self | None:
        """Return the span in a row of the aggregates; None where nothing was handed over."""
        return cls(row["first"], row["last"], row["groups"]) if row["groups"] else None

    @classmethod
    def of_rows(cls, rebalances: pa.Table) -> Self | None:
        """Return the span of rows of `rebalances`; None where nothing was handed over."""
        lists = rebalances["handed_over"].combine_chunks()
        given_up = pc.struct_field(lists.flatten(), "given_up_at")
        groups = pc.unique(rebalances["group_id"].take(pc.list_parent_indices(lists))).to_pylist()
        return cls(pc.min(given_up).as_py(), pc.max(given_up).as_py(), groups) if groups else None

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
    found = _commits_of(handed, commits, cluster, min(_NEAR, lookback), lookback)
    fields = [
        found[name] if name in _COMMIT_COLUMNS else pc.struct_field(handovers, name)
        for name in _names(handovers.type)
    ]
    ends = np.cumsum(pc.list_value_length(lists).to_numpy(zero_copy_only=False))
    offsets = pa.array(np.concatenate([[0], ends]).astype(np.int32))
    whole = pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays(fields, fields=list(handovers.type)))
    at = rebalances.column_names.index("handed_over")
    return rebalances.set_column(at, rebalances.schema.field(at), whole)


def fill_commits_with_spark(
    rebalances: DataFrame, span: HandoverSpan, commits: DataFrame, lookback: timedelta
) -> DataFrame:
    """Do the same as `fill_commits` for any number of rows; `commits` are rows of `offset_commits`."""
    from pyspark.sql import functions as F

    key = ["group_id", "record_offset"]
    handed = rebalances.select("record_partition", *key, F.posexplode("handed_over").alias("position", "handover"))
    handed = handed.select(*handed.columns[:-1], "handover.topic", "handover.partition", "handover.given_up_at")
    near = commits.where(F.col("record_at").between(span.first - lookback, span.last))
    near = near.where("committed_offset IS NOT NULL")
    if len(span.groups) <= _FEW_GROUPS:
        # As text: each argument of a function is a call from Python into Java.
        near = near.where(f"group_id IN ({', '.join(map(spark_literal, span.groups))})")
    near = near.select(*_OF, "record_offset", F.col("record_at").alias("at"), "committed_offset")
    events = near.unionByName(handed.withColumnRenamed("given_up_at", "at"), allowMissingColumns=True)
    events = events.withColumn("is_handover", F.col("position").isNotNull())
    in_order = events.repartition(*_OF).sortWithinPartitions(*_OF, *_IN_TIME)
    found = in_order.mapInArrow(last_commits(lookback), _COMMIT_DDL)
    by_rebalance = found.groupBy(*key).agg(
        F.sort_array(F.collect_list(F.struct("position", *_COMMIT_COLUMNS))).alias("found")
    )

    def fill(handover: Column, found: Column) -> Column:
        for name in _COMMIT_COLUMNS:
            handover = handover.withField(name, found[name])
        return handover

    return (
        rebalances.join(by_rebalance.hint("merge"), key, "left")
        .withColumn("handed_over", F.coalesce(F.zip_with("handed_over", "found", fill), "handed_over"))
        .select(*rebalances.columns)
    )


def _commits_of(
    handed: pa.Table, commits: CommitsBetween, cluster: str, near: timedelta, lookback: timedelta
) -> dict[str, pa.Array]:
    """Return the commit columns of each handover, from the near commits or else from the whole lookback."""
    events = pa.concat_tables([_commits_before(handed, commits, cluster, near), handed], promote_options="default")
    found = pa.Table.from_batches(last_commits(near)(sort_events(events).to_batches())).sort_by("position")
    columns = {name: found[name].combine_chunks() for name in _COMMIT_COLUMNS}
    missing = pc.less(found["commits_found"], 2).combine_chunks()
    if near < lookback and pc.any(missing).as_py():
        rest = _commits_of(handed.filter(missing), commits, cluster, lookback, lookback)
        columns = {name: pc.replace_with_mask(columns[name], missing, rest[name]) for name in _COMMIT_COLUMNS}
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
    columns = {name: pc.field(name) for name in (*_OF, "record_offset", "committed_offset")}
    columns["at"] = pc.field("record_at")
    batches = commits(first, last).to_batches(columns=columns, filter=among)
    wanted = handed.select(_OF).group_by(_OF).aggregate([])
    found = [
        pa.Table.from_batches(some).join(wanted, list(_OF), join_type="left semi")
        for some in gathered(batches, rows=_ROWS_AT_A_TIME)
    ]
    none = pa.schema([*(wanted.schema.field(name) for name in _OF), pa.field("committed_offset", pa.int64())])
    return pa.concat_tables([none.empty_table(), *found], promote_options="default")


def sort_events(events: pa.Table) -> pa.Table:
    """Return commits and handovers (those with a position) in the order that `last_commits` needs."""
    events = events.append_column("is_handover", events["position"].is_valid())
    return events.sort_by([(name, "ascending") for name in (*_OF, *_IN_TIME)]).combine_chunks()


def last_commits(lookback: timedelta) -> Rows:
    """Return a function for `DataFrame.mapInArrow` over sorted commits and handovers that yields `_COMMIT_DDL`."""

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
    begins = np.zeros(len(events), np.bool_)
    for name in _OF:
        code = events[name].dictionary_encode().indices.to_numpy()
        begins[1:] |= code[1:] != code[:-1]
    return np.cumsum(begins)


def _names(struct: pa.StructType) -> list[str]:
    return [field.name for field in struct]
