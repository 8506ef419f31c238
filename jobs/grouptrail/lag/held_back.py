"""Which partitions of __consumer_offsets an open transaction holds back, and so whose commits have not landed.

Pure: it is given samples of the logs, in which such a partition has a row, and how far the decode job has come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.lag.index import UNKNOWN, Ints, ints

OFFSETS_TOPIC = "__consumer_offsets"

_MICROS = 1_000_000
_KEPT_HOLDS = 100


@dataclass
class _Hold:
    """A last stable offset that is behind its log's end.

    `since`: the newest sample that showed another one; None before the first. `until`: the newest that showed it.
    """

    stable: int
    end: int
    since: int | None
    until: int


@dataclass
class HeldBack:
    """The partitions that are held back at the newest sample; times are in microseconds.

    Transactions of a moment are open at any sample: one counts once it may have been open for `tolerated_seconds`.
    Its partition stays held back until the decode job has landed what lay behind it.
    """

    tolerated_seconds: float = 15
    _open: dict[int, _Hold] = field(default_factory=dict)
    _landing: dict[int, _Hold] = field(default_factory=dict)
    _ended: dict[int, list[_Hold]] = field(default_factory=dict)
    _sampled_at: int | None = None

    def sample(self, rows: pa.Table, at: int) -> None:
        """Rows of `log_offsets` of one sample; a partition of the offsets topic without a row is stable."""
        rows = rows.filter(pc.equal(rows["topic"], OFFSETS_TOPIC))
        told = (ints(rows[name]).tolist() for name in ("partition", "last_stable_offset", "log_end_offset"))
        before, self._open = self._open, {}
        for partition, stable, end in zip(*told, strict=True):
            known = before.pop(partition, None)
            if UNKNOWN in (stable, end):  # nobody told: what was so is so
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
    def waits(self) -> bool:
        """Whether it matters how far the decode job has come."""
        return bool(self._landing) or any(map(self._is_long, self._open.values()))

    def landed(self, ends: Mapping[int, int]) -> None:
        """Up to where each partition of the offsets topic has landed: what has is held back no more."""
        self._landing = {at: hold for at, hold in self._landing.items() if ends.get(at, 0) < hold.end}
        # A sample that waited may be of a transaction that has ended since.
        for partition in [at for at, hold in self._open.items() if ends.get(at, 0) >= hold.end]:
            self._remember(partition, self._open.pop(partition))

    def now(self) -> frozenset[int]:
        """The partitions that are held back."""
        return frozenset(self._landing) | {at for at, hold in self._open.items() if self._is_long(hold)}

    def in_effect_at(self, partitions: Ints, offsets: Ints, written_at: Ints) -> Ints:
        """When these records of the offsets topic took effect: a transaction's commit does when the transaction ends,
        which may be long after it was written."""
        found = written_at.copy()
        for partition, holds in self._ended.items():
            places = np.flatnonzero(partitions == partition)
            for hold in holds:
                behind = places[offsets[places] >= hold.stable]
                found[behind] = np.maximum(found[behind], hold.until)
        return found

    def _is_long(self, hold: _Hold) -> bool:
        return hold.since is None or hold.until - hold.since > self.tolerated_seconds * _MICROS

    def _end(self, partition: int, hold: _Hold) -> None:
        if self._is_long(hold):
            self._landing[partition] = hold
        self._remember(partition, hold)

    def _remember(self, partition: int, hold: _Hold) -> None:
        if self._is_long(hold):
            self._ended[partition] = [*self._ended.get(partition, ()), hold][-_KEPT_HOLDS:]


Offsets = Mapping[tuple[str, int], int]
"""By topic and partition."""
Fetch = Callable[[Mapping[str, int]], Mapping[str, "Offsets | str"]]
"""What groups, given with their partition of the offsets topic, have committed as their coordinators know, or why
that is not told."""


class CoordinatorOffsets:
    """What the coordinators told of groups whose commits are held back, in place of what has landed."""

    def __init__(self) -> None:
        self._groups: dict[str, int] = {}
        self._told: dict[str, dict[tuple[str, int], tuple[int, int]]] = {}
        self._untold: dict[str, str] = {}

    def refresh(self, groups: Mapping[str, int], at: int, fetch: Fetch | None) -> None:
        """Asks for these groups, each with its partition of the offsets topic, at a sample's time (microseconds).

        An offset that was told before keeps the time at which it was first.
        """
        before, self._groups = self._told, dict(groups)
        answers = fetch(groups) if fetch is not None and groups else {}
        self._untold = {group: why for group, why in answers.items() if isinstance(why, str)}
        self._told = {}
        for group, offsets in answers.items():
            if not isinstance(offsets, str):
                known = before.get(group, {})
                self._told[group] = {
                    place: known[place] if place in known and known[place][0] == offset else (offset, at)
                    for place, offset in offsets.items()
                }

    def in_place_of(self, commits: pa.Table) -> pa.Table:
        """The commits that stand (`positions.COMMITS`), those of these groups as their coordinators have them.

        Where that is not told they have no offset.
        """
        if not self._groups:
            return commits
        is_held = pc.is_in(commits["group_id"], pa.array(sorted(self._groups), pa.string()))
        landed: dict[tuple[str, str, int], dict[str, Any]] = {
            (row["group_id"], row["topic"], row["partition"]): row for row in commits.filter(is_held).to_pylist()
        }
        rows = [{**row, **_NOT_TOLD} for row in landed.values() if not self._tells(*_place(row))]
        for group, offsets in self._told.items():
            for (topic, partition), (offset, found_at) in offsets.items():
                row = landed.get((group, topic, partition))
                if row is None or row["committed_offset"] != offset:
                    place = {"group_id": group, "topic": topic, "partition": partition}
                    found = {"record_at": found_at, "commit_at": found_at, "committed_offset": offset}
                    row = {"record_partition": self._groups[group], "is_tombstone": False, **place, **found}
                rows.append(row)
        return pa.concat_tables([commits.filter(pc.invert(is_held)), pa.Table.from_pylist(rows, commits.schema)])

    def reasons(self, commits: pa.Table) -> list[str | None]:
        """Why the commits of these positions are not those that have landed; None where they are."""
        if not self._groups:
            return [None] * len(commits)
        columns = (commits[name].to_pylist() for name in ("group_id", "topic", "partition"))
        return [self._reason(*place) for place in zip(*columns, strict=True)]

    def _reason(self, group: str, topic: str, partition: int) -> str | None:
        if group not in self._groups:
            return None
        if self._tells(group, topic, partition):
            what = "its coordinator told this offset"
        elif group in self._told:
            what = "its coordinator tells no offset"
        else:
            what = self._untold.get(group, "its coordinator was not asked")
        return f"an open transaction holds back {OFFSETS_TOPIC}-{self._groups[group]}: {what}"

    def _tells(self, group: str, topic: str, partition: int) -> bool:
        return (topic, partition) in self._told.get(group, {})


_NOT_TOLD = dict.fromkeys(("committed_offset", "record_at", "commit_at", "topic_id"))


def _place(row: Mapping[str, Any]) -> tuple[str, str, int]:
    return row["group_id"], row["topic"], row["partition"]
