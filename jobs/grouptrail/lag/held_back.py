"""Find the partitions of __consumer_offsets that an open transaction holds back, and so whose commits are missing.

Reads nothing itself: it is given samples of the logs, in which such a partition has a row, and the decode job's
progress.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.lag.index import MICROS, UNKNOWN, Ints, Texts, ints, nulls

OFFSETS_TOPIC = "__consumer_offsets"

_KEPT_HOLDS = 100


@dataclass
class _Hold:
    """A last stable offset that is below its log's end.

    `since` is the time (microseconds) of the newest sample that showed another one, None without any; `until` that of
    the newest sample that showed this one.
    """

    stable: int
    end: int
    since: int | None
    until: int


@dataclass
class HeldBackPartitions:
    """The partitions that are held back at the newest sample; times are in microseconds.

    Short transactions are open at any time: one counts once it may have been open for longer than
    `tolerated_seconds`. Its partition stays held back until the decode job has written the records after it.
    """

    tolerated_seconds: float = 15
    _open: dict[int, _Hold] = field(default_factory=dict)
    _unwritten: dict[int, _Hold] = field(default_factory=dict)
    _ended: dict[int, list[_Hold]] = field(default_factory=dict)
    _sampled_at: int | None = None

    def add_sample(self, rows: pa.Table, at: int) -> None:
        """Add the rows of `log_offsets` of one sample; a partition of the offsets topic without a row is stable."""
        rows = rows.filter(pc.equal(rows["topic"], OFFSETS_TOPIC)).sort_by("sampled_at")
        columns = (ints(rows[name]).tolist() for name in ("partition", "last_stable_offset", "log_end_offset"))
        # After a late sample the next one may be so close that both count as one: its rows come last.
        bounds = {partition: (stable, end) for partition, stable, end in zip(*columns, strict=True)}
        before, self._open = self._open, {}
        for partition, (stable, end) in bounds.items():
            known = before.pop(partition, None)
            if UNKNOWN in (stable, end):  # the leader did not answer: keep what is known
                if known is not None:
                    self._open[partition] = known
            elif stable < end:
                is_same = known is not None and known.stable == stable
                since = known.since if known is not None and is_same else self._sampled_at
                self._open[partition] = _Hold(stable, end, since, at)
                if known is not None and not is_same:
                    self._end(partition, known)
        for partition, hold in before.items():
            self._end(partition, hold)
        self._sampled_at = at

    @property
    def progress_since(self) -> int | None:
        """The time of a sample since which the decode job's progress may `release` a partition; None: none waits.

        What is held back then cannot have been decoded before.
        """
        if not self.partitions():
            return None
        return min(hold.until for hold in (*self._unwritten.values(), *self._open.values()))

    def release(self, ends: Mapping[int, int]) -> None:
        """Release the partitions of the offsets topic that are decoded up to these offsets."""
        self._unwritten = {at: hold for at, hold in self._unwritten.items() if ends.get(at, 0) < hold.end}
        # The transaction may have ended since a sample that is processed late.
        for partition in [at for at, hold in self._open.items() if ends.get(at, 0) >= hold.end]:
            self._remember(partition, self._open.pop(partition))

    def partitions(self) -> frozenset[int]:
        """Return the partitions that are held back."""
        return frozenset(self._unwritten) | {at for at, hold in self._open.items() if self._is_long(hold)}

    def in_effect_at(self, partitions: Ints, offsets: Ints, written_at: Ints) -> Ints:
        """Return when these records of the offsets topic took effect.

        A commit in a transaction takes effect when the transaction ends, which may be long after it was written.
        """
        since = written_at.copy()
        for partition, holds in self._ended.items():
            rows = np.flatnonzero(partitions == partition)
            for hold in holds:
                behind = rows[offsets[rows] >= hold.stable]
                since[behind] = np.maximum(since[behind], hold.until)
        return since

    def _is_long(self, hold: _Hold) -> bool:
        return hold.since is None or hold.until - hold.since > self.tolerated_seconds * MICROS

    def _end(self, partition: int, hold: _Hold) -> None:
        if self._is_long(hold):
            self._unwritten[partition] = hold
        self._remember(partition, hold)

    def _remember(self, partition: int, hold: _Hold) -> None:
        if self._is_long(hold):
            self._ended[partition] = [*self._ended.get(partition, ()), hold][-_KEPT_HOLDS:]


Offsets = Mapping[tuple[str, int], int]
"""Committed offsets by topic and partition."""
FetchOffsets = Callable[[Mapping[str, int]], Mapping[str, "Offsets | str"]]
"""Returns the offsets that coordinators have for groups (given with their partition of the offsets topic), or why
there are none."""


class CoordinatorOffsets:
    """The offsets of groups whose commits are held back, as their coordinators have them."""

    def __init__(self) -> None:
        self._groups: dict[str, int] = {}
        self._offsets: dict[str, dict[tuple[str, int], tuple[int, int]]] = {}
        self._failures: dict[str, str] = {}

    def refresh(self, groups: Mapping[str, int], at: int, fetch: FetchOffsets | None) -> None:
        """Fetch the offsets of these groups, each with its partition of the offsets topic.

        `at` is the sample's time (microseconds). An unchanged offset keeps the time at which it was first seen.
        """
        before, self._groups = self._offsets, dict(groups)
        answers = fetch(groups) if fetch is not None and groups else {}
        self._failures = {group: why for group, why in answers.items() if isinstance(why, str)}
        self._offsets = {}
        for group, offsets in answers.items():
            if not isinstance(offsets, str):
                known = before.get(group, {})
                self._offsets[group] = {
                    partition: known[partition]
                    if partition in known and known[partition][0] == offset
                    else (offset, at)
                    for partition, offset in offsets.items()
                }

    def apply_to(self, commits: pa.Table) -> pa.Table:
        """Return commits (`positions.READ`) with those of these groups replaced by their coordinators' offsets.

        Where the coordinator has none, or did not answer, they have no offset.
        """
        if not self._groups:
            return commits
        is_held = self._are_held(commits)
        stored: dict[tuple[str, str, int], dict[str, Any]] = {
            (row["group_id"], row["topic"], row["partition"]): row for row in commits.filter(is_held).to_pylist()
        }
        rows = [{**row, **_NO_OFFSET} for position, row in stored.items() if not self._has_offset(*position)]
        for group, offsets in self._offsets.items():
            for (topic, partition), (offset, fetched_at) in offsets.items():
                row = stored.get((group, topic, partition))
                if row is None or row["committed_offset"] != offset:
                    position = {"group_id": group, "topic": topic, "partition": partition}
                    fetched = {"record_at": fetched_at, "commit_at": fetched_at, "committed_offset": offset}
                    row = {"record_partition": self._groups[group], "is_tombstone": False, **position, **fetched}
                rows.append(row)
        return pa.concat_tables([commits.filter(pc.invert(is_held)), pa.Table.from_pylist(rows, commits.schema)])

    def reasons(self, commits: pa.Table) -> pa.Array:
        """Return why the decoded commits of these positions are not up to date; null where they are."""
        if not self._groups:
            return nulls(len(commits))
        held = np.flatnonzero(self._are_held(commits))
        columns = (commits[name].take(pa.array(held)).to_pylist() for name in ("group_id", "topic", "partition"))
        texts = Texts(len(commits))
        texts.set(held, pa.array([self._reason(*position) for position in zip(*columns, strict=True)], pa.string()))
        return texts.array()

    def _are_held(self, commits: pa.Table) -> pa.ChunkedArray:
        return pc.is_in(commits["group_id"], pa.array(sorted(self._groups), pa.string()))

    def _reason(self, group: str, topic: str, partition: int) -> str:
        if self._has_offset(group, topic, partition):
            what = "this offset is from the group's coordinator"
        elif group in self._offsets:
            what = "the group's coordinator has no offset"
        else:
            what = self._failures.get(group, "the group's coordinator was not queried")
        return f"an open transaction holds back {OFFSETS_TOPIC}-{self._groups[group]}: {what}"

    def _has_offset(self, group: str, topic: str, partition: int) -> bool:
        return (topic, partition) in self._offsets.get(group, {})


_NO_OFFSET = dict.fromkeys(("committed_offset", "record_at", "commit_at", "topic_id"))
