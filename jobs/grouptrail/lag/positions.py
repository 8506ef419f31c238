"""The newest commit of each group in each partition."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.lag.index import Index, ints, position_names
from grouptrail.storage.schema import table_schema

TABLE = "committed_offsets"

STORED = table_schema(TABLE)
COMMITS = STORED.append(pa.field("is_tombstone", pa.bool_()))
"""The columns that are read from `offset_commits`."""


class Positions:
    """The newest commit or tombstone of each position; a row's number is the position's in `index`.

    Kept twice: over all commits, and over those made by a time, because a sample that is processed late must not see
    the commits that came after it.
    """

    def __init__(self, index: Index) -> None:
        self._all = _Newest(index)
        self._due = _Newest(index)

    def add(self, commits: pa.Table) -> None:
        """Add commits (`COMMITS`) in any order, duplicates included."""
        self._all.waiting.append(commits)
        self._due.waiting.append(commits)

    def latest(self, until: int | None = None) -> pa.Table:
        """Return the newest commits (`COMMITS`) without deleted ones: of all, or of those made by a time.

        `until` is in microseconds and must not decrease from call to call.
        """
        return self._all.latest(None) if until is None else self._due.latest(until)


class _Newest:
    def __init__(self, index: Index) -> None:
        self.waiting: list[pa.Table] = []
        self._index = index
        self._newest = COMMITS.empty_table()

    def latest(self, until: int | None) -> pa.Table:
        waiting = pa.concat_tables([COMMITS.empty_table(), *self.waiting])
        is_due = np.full(len(waiting), True) if until is None else ints(waiting["record_at"]) <= until
        self.waiting = [waiting.filter(pa.array(~is_due))] if not is_due.all() else []
        if is_due.any():
            self._merge(waiting.filter(pa.array(is_due)))
        return self._newest.filter(pc.invert(self._newest["is_tombstone"]))

    def _merge(self, commits: pa.Table) -> None:
        both = pa.concat_tables([self._newest, commits])
        numbers = self._index.of(position_names(both["topic"], both["partition"], both["group_id"]))
        # A group's records are in one partition of the offsets topic, so that their offsets give the order.
        in_order = np.argsort(ints(both["record_offset"]), kind="stable")
        newest = np.full(len(self._index), -1)
        newest[numbers[in_order]] = in_order
        self._newest = both.take(pa.array(newest[newest >= 0])).combine_chunks()


def to_stored(commits: pa.Table) -> pa.Table:
    """Return commits (`COMMITS`) as rows of `committed_offsets`."""
    return commits.select(STORED.names)


def from_stored(rows: pa.Table) -> tuple[pa.Table, Mapping[int, int]]:
    """Return rows of `committed_offsets` as commits (`COMMITS`), and the newest record offset by partition."""
    commits = rows.append_column("is_tombstone", pa.array(np.full(len(rows), False)))
    newest = rows.group_by("record_partition").aggregate([("record_offset", "max")]).to_pylist()
    return commits.select(COMMITS.names), {row["record_partition"]: row["record_offset_max"] for row in newest}
