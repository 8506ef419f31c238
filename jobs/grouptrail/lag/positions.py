"""The newest commit of each group in each partition."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.lag.clocks import of_partitions
from grouptrail.lag.index import UNKNOWN, Ints, at_numbers, ints, ranks, whole
from grouptrail.storage.positions import CAME_BACK, updated
from grouptrail.storage.schema import columns_of, compact, table_schema

TABLE = "committed_offsets"

# When this share of the positions is new, all are put in order.
_NEW_SHARE = 1 / 8

# So many commits are reduced to the newest of each position before anybody asks for them.
_MANY = 500_000

STORED = table_schema(TABLE)
COMMITS = STORED.append(pa.field("is_tombstone", pa.bool_()))
"""The columns of `offset_commits`."""
OF_TABLE = compact(COMMITS)
"""The same, as they are read: texts have numbers, which are faster to copy and to compare."""
COMPLETE = pa.field("delivery_complete_count", pa.int64())
"""Of share groups: how many records from the offset on need no delivery any more, `UNKNOWN` if that is not kept,
`UNDECODED` if the newest record could not be decoded; null for other groups."""
UNDECODED = -2
_SHARED = pa.schema([COMPLETE, *((name, pa.int64()) for name in (*CAME_BACK, "lag_error"))])
"""What only share groups have; the records that came back are null where nothing is known of them, `lag_error` where
they were not polled."""
READ = compact(pa.schema([*COMMITS, *_SHARED]))
"""The columns of the rows that are kept."""
CHECKS = "tombstone_checks"
CHECKED = columns_of(
    CHECKS,
    ("cluster", "record_partition", "record_offset", "checked_at", "group_id", "topic", "partition", "is_gone"),
)
"""The columns that are read from `tombstone_checks`, where `IS_GONE`: of committed offsets that are gone."""
IS_GONE = pc.field("is_gone") & (pc.field("topic") != "")


class Positions:
    """The newest commit or tombstone of each position.

    Kept twice: over all commits, and over those of the tables made by a time, because a sample that is processed late
    must not see the commits that came after it.
    """

    def __init__(self, first_until: int | None = None) -> None:
        """`first_until` (microseconds): no sample is from before it."""
        self._all = _Newest(math.inf)
        self._due = _Newest(-math.inf if first_until is None else first_until)

    def set_clock_offsets(self, offsets: Ints) -> None:
        """Set by how much the clocks of commits are ahead, by partition of the offsets topic (microseconds)."""
        self._due.clock_offsets = offsets

    def add(self, commits: pa.Table) -> None:
        """Add commits (`COMMITS`, `OF_TABLE` or `READ`) of the tables in any order, duplicates included."""
        commits = _as_read(commits)
        self._all.add(commits)
        self._due.add(commits)

    def add_live(self, commits: pa.Table) -> None:
        """Add commits (`COMMITS`) that the tables may not have yet; only `latest` of all of them has these."""
        self._all.add(_as_read(commits))

    def latest(self, until: int | None = None) -> pa.Table:
        """Return the newest commits (`READ`) without deleted ones: of all, or of those made by a time.

        `until` is in microseconds and must not decrease from call to call.
        """
        return self._all.latest(math.inf) if until is None else self._due.latest(until)

    def newest(self) -> pa.Table:
        """Return the newest commits (`READ`) of all, deleted ones included."""
        return self._all.newest()

    def are_all_due(self) -> bool:
        """Return whether `latest` of all commits equals that of the last time."""
        return self._due.is_whole and self._all.offsets() == self._due.offsets()

    def in_tables(self) -> pa.Table:
        """Return the newest commits (`READ`) of the tables without deleted ones."""
        return self._due.whole()


class _Newest:
    def __init__(self, until: float) -> None:
        """`until`: no caller asks for less than the commits made by then."""
        self._until = until
        self.clock_offsets = np.empty(0, np.int64)
        self._waiting: list[pa.Table] = []
        self._newest = READ.empty_table()
        self._sorted_count = 0
        self._merged_from = _MANY

    def add(self, commits: pa.Table) -> None:
        self._waiting.append(commits)
        if sum(map(len, self._waiting)) >= self._merged_from:
            self._merge()
            self._merged_from = max(_MANY, 2 * sum(map(len, self._waiting)))

    def latest(self, until: float) -> pa.Table:
        self._until = until
        return _undeleted(self.newest())

    def newest(self) -> pa.Table:
        self._merge()
        return self._newest

    @property
    def is_whole(self) -> bool:
        """Whether no commit waits for a later time."""
        return not any(map(len, self._waiting))

    def offsets(self) -> tuple[int, int]:
        """Return how many commits there are, and the sum of their offsets, which a newer one raises."""
        self._merge()
        return len(self._newest), pc.sum(self._newest["record_offset"]).as_py() or 0

    def _merge(self) -> None:
        if not self._waiting:
            return
        due = pa.concat_tables([READ.empty_table(), *self._waiting])
        self._waiting = []
        ahead = of_partitions(self.clock_offsets, ints(due["record_partition"]))
        is_due = ints(due["record_at"]) - ahead <= self._until
        if not is_due.all():
            self._waiting = [due.filter(pa.array(~is_due))]
            due = due.filter(pa.array(is_due))
        if len(due):
            self._newest = updated(self._newest, due)
        if len(self._newest) - self._sorted_count > _NEW_SHARE * len(self._newest):
            self._newest, self._sorted_count = _by_position(self._newest), len(self._newest)

    def whole(self) -> pa.Table:
        """Return the newest of all, those waiting included."""
        return _undeleted(updated(self._newest, pa.concat_tables([READ.empty_table(), *self._waiting])))


def _by_position(commits: pa.Table) -> pa.Table:
    """Return commits by group, topic and partition, the order of the lag's rows: neighbours are faster to read."""
    columns = [whole(commits[name]) for name in ("group_id", "topic")]
    group, topic = (ranks(column.dictionary)[np.asarray(column.indices)] for column in columns)
    return commits.take(pa.array(np.lexsort((np.asarray(commits["partition"]), topic, group))))


def _as_read(commits: pa.Table) -> pa.Table:
    if COMPLETE.name not in commits.column_names:
        for field in _SHARED:
            commits = commits.append_column(field, pa.nulls(len(commits), field.type))
    return commits.cast(READ)


def _undeleted(commits: pa.Table) -> pa.Table:
    deleted = commits["is_tombstone"]
    return commits.filter(pc.invert(deleted)) if pc.any(deleted).as_py() else commits


def from_records(rows: pa.Table) -> pa.Table:
    """Return decoded rows of `offset_commits` as `COMMITS`; columns that a decoder cannot know are null."""
    known = {field.name: rows[field.name] for field in COMMITS if field.name in rows.column_names}
    return pa.table([known.get(field.name, pa.nulls(len(rows), field.type)) for field in COMMITS], schema=COMMITS)


def from_checks(rows: pa.Table) -> pa.Table:
    """Return rows of `tombstone_checks` about committed offsets that are gone as tombstones (`COMMITS`).

    They replace what had been read when the coordinator was asked, and not what was read later.
    """
    tombstones = rows.append_column("is_tombstone", pa.array(np.full(len(rows), True)))
    return from_records(tombstones.append_column("record_at", rows["checked_at"]))


def from_progress(progress: pa.Table, first_number: int) -> pa.Table:
    """Return what is said of share groups (`share_progress.PROGRESS`) as commits (`READ`) of the start offsets.

    Records about one position need not be in one partition of their topic: `record_offset` is the place in the
    sequence, from `first_number` on. They have no partition of the offsets topic.
    """
    unknown = pc.if_else(pc.is_valid(progress["reason"]), UNDECODED, UNKNOWN)
    counts = pc.coalesce(progress["delivery_complete_count"].cast(pa.int64()), unknown)
    given = {
        **{name: progress[name] for name in ("group_id", "topic", "topic_id", "partition", "record_at")},
        "commit_at": progress["record_at"],
        "record_offset": pa.array(np.arange(first_number, first_number + len(progress))),
        "committed_offset": progress["start_offset"],
        "is_transactional": pa.array(np.full(len(progress), False)),
        "is_tombstone": progress["is_tombstone"],
        COMPLETE.name: counts,
        **{name: progress[name] for name in (*CAME_BACK, "source", "lag_error")},
    }
    columns = [given.get(field.name, pa.nulls(len(progress), field.type)) for field in READ]
    return pa.table(columns, names=READ.names).cast(READ)


def to_stored(commits: pa.Table) -> pa.Table:
    """Return commits (`READ`) as rows of `committed_offsets`, without those of share groups."""
    return commits.filter(pc.is_null(commits[COMPLETE.name])).select(STORED.names).cast(STORED)


def from_stored(rows: pa.Table) -> tuple[pa.Table, Ints]:
    """Return rows of `committed_offsets` as commits (`COMMITS`), and the newest record offset of each partition."""
    commits = rows.append_column("is_tombstone", pa.array(np.full(len(rows), False)))
    partitions = ints(rows["record_partition"])
    newest = np.full(partitions.max(initial=-1) + 1, UNKNOWN)
    np.maximum.at(newest, partitions, ints(rows["record_offset"]))
    return commits.select(COMMITS.names), newest


def after(commits: pa.Table, newest: Ints) -> pa.Table:
    """Return the commits that are newer than the newest of their partition of the offsets topic."""
    is_newer = ints(commits["record_offset"]) > at_numbers(newest, ints(commits["record_partition"]))
    return commits if is_newer.all() else commits.filter(pa.array(is_newer))
