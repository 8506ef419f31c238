"""The newest commit of each group in each partition."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.lag.index import ints
from grouptrail.storage.positions import newest
from grouptrail.storage.schema import table_schema

TABLE = "committed_offsets"

STORED = table_schema(TABLE)
COMMITS = STORED.append(pa.field("is_tombstone", pa.bool_()))
"""The columns that are read from `offset_commits`."""


class Positions:
    """The newest commit or tombstone of each position.

    Kept twice: over all commits, and over those of the tables made by a time, because a sample that is processed late
    must not see the commits that came after it.
    """

    def __init__(self) -> None:
        self._all = _Newest()
        self._due = _Newest()

    def add(self, commits: pa.Table) -> None:
        """Add commits (`COMMITS`) of the tables in any order, duplicates included."""
        self._all.waiting.append(commits)
        self._due.waiting.append(commits)

    def add_live(self, commits: pa.Table) -> None:
        """Add commits that the tables may not have yet; only `latest` of all of them has these."""
        self._all.waiting.append(commits)

    def latest(self, until: int | None = None) -> pa.Table:
        """Return the newest commits (`COMMITS`) without deleted ones: of all, or of those made by a time.

        `until` is in microseconds and must not decrease from call to call.
        """
        return self._all.latest(None) if until is None else self._due.latest(until)

    def in_tables(self) -> pa.Table:
        """Return the newest commits (`COMMITS`) of the tables without deleted ones."""
        return self._due.whole()


class _Newest:
    def __init__(self) -> None:
        self.waiting: list[pa.Table] = []
        self._newest = COMMITS.empty_table()

    def latest(self, until: int | None) -> pa.Table:
        waiting = pa.concat_tables([COMMITS.empty_table(), *self.waiting])
        is_due = np.full(len(waiting), True) if until is None else ints(waiting["record_at"]) <= until
        self.waiting = [waiting.filter(pa.array(~is_due))] if not is_due.all() else []
        if is_due.any():
            self._newest = newest(pa.concat_tables([self._newest, waiting.filter(pa.array(is_due))]))
        return _undeleted(self._newest)

    def whole(self) -> pa.Table:
        """Return the newest of all, those waiting included."""
        return _undeleted(newest(pa.concat_tables([self._newest, *self.waiting])))


def _undeleted(commits: pa.Table) -> pa.Table:
    return commits.filter(pc.invert(commits["is_tombstone"]))


def from_records(rows: pa.Table) -> pa.Table:
    """Return decoded rows of `offset_commits` as `COMMITS`; columns that a decoder cannot know are null."""
    known = {field.name: rows[field.name] for field in COMMITS if field.name in rows.column_names}
    return pa.table([known.get(field.name, pa.nulls(len(rows), field.type)) for field in COMMITS], schema=COMMITS)


def to_stored(commits: pa.Table) -> pa.Table:
    """Return commits (`COMMITS`) as rows of `committed_offsets`."""
    return commits.select(STORED.names)


def from_stored(rows: pa.Table) -> tuple[pa.Table, Mapping[int, int]]:
    """Return rows of `committed_offsets` as commits (`COMMITS`), and the newest record offset by partition."""
    commits = rows.append_column("is_tombstone", pa.array(np.full(len(rows), False)))
    ends = rows.group_by("record_partition").aggregate([("record_offset", "max")]).to_pylist()
    return commits.select(COMMITS.names), {row["record_partition"]: row["record_offset_max"] for row in ends}
