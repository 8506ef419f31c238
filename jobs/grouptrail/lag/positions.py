"""Where each group stands in each partition: its newest commit."""

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
"""What is read of `offset_commits`."""


class Positions:
    """The newest commit, or tombstone, of each position; a row's number is the position's in `index`.

    Two views of them go on by themselves: all commits, and those that were made until a time. Samples may wait, and
    must not see the commits that came after them.
    """

    def __init__(self, index: Index) -> None:
        self._all = _Newest(index)
        self._due = _Newest(index)

    def add(self, commits: pa.Table) -> None:
        """Commits (`COMMITS`) of any order, also some that were there before: the newest of each position stays."""
        self._all.waiting.append(commits)
        self._due.waiting.append(commits)

    def standing(self, until: int | None = None) -> pa.Table:
        """The commits that stand (`COMMITS`): all, or those made until a time (microseconds), which only goes on."""
        return self._all.standing(None) if until is None else self._due.standing(until)


class _Newest:
    def __init__(self, index: Index) -> None:
        self.waiting: list[pa.Table] = []
        self._index = index
        self._newest = COMMITS.empty_table()

    def standing(self, until: int | None) -> pa.Table:
        waiting = pa.concat_tables([COMMITS.empty_table(), *self.waiting])
        is_due = np.full(len(waiting), True) if until is None else ints(waiting["record_at"]) <= until
        self.waiting = [waiting.filter(pa.array(~is_due))] if not is_due.all() else []
        if is_due.any():
            self._fold(waiting.filter(pa.array(is_due)))
        return self._newest.filter(pc.invert(self._newest["is_tombstone"]))

    def _fold(self, commits: pa.Table) -> None:
        both = pa.concat_tables([self._newest, commits])
        numbers = self._index.of(position_names(both["topic"], both["partition"], both["group_id"]))
        # A group's records lie in one partition of the offsets topic: their offsets say which came last.
        in_order = np.argsort(ints(both["record_offset"]), kind="stable")
        newest = np.full(len(self._index), -1)
        newest[numbers[in_order]] = in_order
        self._newest = both.take(pa.array(newest[newest >= 0])).combine_chunks()


def stored(standing: pa.Table) -> pa.Table:
    """Rows of `committed_offsets`."""
    return standing.select(STORED.names)


def resumed(rows: pa.Table) -> tuple[pa.Table, Mapping[int, int]]:
    """Commits (`COMMITS`) from rows of `committed_offsets`, and up to which record offset they go by partition."""
    commits = rows.append_column("is_tombstone", pa.array(np.full(len(rows), False)))
    newest = rows.group_by("record_partition").aggregate([("record_offset", "max")]).to_pylist()
    return commits.select(COMMITS.names), {row["record_partition"]: row["record_offset_max"] for row in newest}
