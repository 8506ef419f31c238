"""Ask the group coordinators what became of groups after a stop in which tombstones may have been compacted.

Compaction removes a tombstone `delete.retention.ms` after it was written. What was deleted during a longer stop would
otherwise stay in the tables for ever.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.history.state import decode_state
from grouptrail.history.tasks import CHECKS, POSITIONS
from grouptrail.kafka.errors import ClusterError
from grouptrail.kafka.group import PolledGroup
from grouptrail.kafka.groups import Coordinators
from grouptrail.storage.engines.engine import Once
from grouptrail.storage.progress import PROGRESS
from grouptrail.storage.sql import datafusion_literal

if TYPE_CHECKING:
    from grouptrail.config.job_settings import HistorySettings
    from grouptrail.jobs import JobContext

_COMMITTED = "committed_offsets"
OF_GROUP = {"topic": "", "partition": -1}
"""The columns of a row of `tombstone_checks` that is about a group, and not about one of its commits."""
_COLUMNS = ("record_partition", "end_offset", "last_stable_offset", "holes", "lost", "landed_at", "source")
_ROWS_AT_A_TIME = 100_000
_SECONDS_A_CHECK = 20.0
_RETRY_SECONDS = 300.0
_NO_TIME = f"its coordinator was not asked within {_SECONDS_A_CHECK:.0f} s"


@dataclass(frozen=True)
class Stop:
    """A stop of decoding between two batches of a partition of the offsets topic.

    `offset`: what was read before it ends there; `target`: the last stable offset of then when it ended; `until`:
    when the first batch after it landed; `seconds`: how long it was.
    """

    offset: int
    target: int
    until: datetime
    seconds: float


class Stops:
    """The newest stop of each partition that was longer than tombstones are kept, until it has been dealt with."""

    def __init__(self, longer_than: timedelta) -> None:
        self._longer_than = longer_than
        self._landed: dict[int, tuple[int, datetime]] = {}
        self._missing: dict[int, int] = {}
        self._stops: dict[int, Stop] = {}

    def add(self, progress: pa.Table) -> None:
        """Add rows of `ingest_progress`, newer than all before, and skip those that were not read from the topic."""
        of_topic = progress.filter(pc.is_null(progress["source"])).select(_COLUMNS)
        for row in of_topic.sort_by([("record_partition", "ascending"), ("end_offset", "ascending")]).to_pylist():
            self._add(row)

    def _add(self, row: Mapping[str, Any]) -> None:
        partition, landed_at = row["record_partition"], row["landed_at"]
        end, before_at = self._landed.get(partition, (row["end_offset"], landed_at))
        if row["end_offset"] < end:
            return
        if landed_at - before_at > self._longer_than:
            target = row["last_stable_offset"] or row["end_offset"]
            if partition not in self._stops:
                self._missing[partition] = 0
            self._stops[partition] = Stop(end, target, landed_at, (landed_at - before_at).total_seconds())
        self._missing[partition] = self._missing.get(partition, 0) + row["holes"] + row["lost"]
        self._landed[partition] = row["end_offset"], landed_at

    def due(self) -> dict[int, Stop]:
        """Return the stops by partition in which records are missing, when all that was there at their end is read.

        A tombstone that was not read left a hole in the offsets.
        """
        read = [partition for partition, stop in self._stops.items() if self._landed[partition][0] >= stop.target]
        for partition in read:
            if not self._missing[partition]:
                del self._stops[partition]
        return {partition: self._stops[partition] for partition in read if partition in self._stops}

    def end_of(self, partition: int) -> int:
        """Return the offset up to which a partition has been read."""
        return self._landed[partition][0]

    def remove(self, partitions: Iterable[int]) -> None:
        """Forget the stops of partitions, which have been dealt with."""
        for partition in partitions:
            del self._stops[partition]


@dataclass(frozen=True)
class Unheard:
    """A group of which, or of some of whose commits, nothing was read since a stop.

    `kind` is None if only the commits of these partitions are in question.
    """

    record_partition: int
    kind: str | None
    partitions: frozenset[tuple[str, int]]


def unheard_groups(
    stops: Mapping[int, Stop],
    ends: Mapping[int, int],
    states: Iterable[Mapping[str, Any]],
    commits: Iterable[Mapping[str, Any]],
    checked: Iterable[Mapping[str, Any]],
) -> dict[str, Unheard]:
    """Return the groups to ask about by name: known before a stop, not heard of since, and not asked about since.

    `ends` are the offsets up to which partitions were read; `states`, `commits` and `checked` are rows of
    `history_positions`, `committed_offsets` and `tombstone_checks`. A group in `states` that exists is asked for
    itself if its coordinator can be asked for its kind.
    """
    asked = {
        row["group_id"]
        for row in checked
        if not row["topic"]
        and row["record_partition"] in stops
        and row["checked_at"] >= stops[row["record_partition"]].until
    }
    kinds: dict[str, tuple[int, str]] = {}
    for row in states:
        partition = row["record_partition"]
        if partition not in stops or row["waits"] or row["processed_to"] > stops[partition].offset:
            continue
        state = decode_state(row["group_id"], partition, row["state"], {})
        if state.group.kind in ("classic", "consumer") and row["processed_to"] < ends[partition]:
            kinds[row["group_id"]] = partition, state.group.kind
    partitions: dict[str, set[tuple[str, int]]] = {}
    of_group = {group_id: partition for group_id, (partition, _) in kinds.items()}
    for row in commits:
        stop = stops.get(row["record_partition"])
        if stop is not None and row["record_offset"] < stop.offset:
            partitions.setdefault(row["group_id"], set()).add((row["topic"], row["partition"]))
            of_group[row["group_id"]] = row["record_partition"]
    return {
        group_id: Unheard(
            partition,
            kinds[group_id][1] if group_id in kinds else None,
            frozenset(partitions.get(group_id, ())),
        )
        for group_id, partition in sorted(of_group.items())
        if group_id not in asked
    }


def answers(
    unheard: Mapping[str, Unheard], polled: Iterable[PolledGroup], ends: Mapping[int, int], at: datetime
) -> list[dict[str, Any]]:
    """Return rows of `tombstone_checks` for what coordinators have answered about groups (`unheard_groups`).

    Only an answer shows that something is gone. Without an answer about all of a group, it has no row of its own.
    """
    rows = []
    for group in polled:
        about = unheard[group.group_id]
        same = {
            "record_partition": about.record_partition,
            "record_offset": ends[about.record_partition] - 1,
            "group_id": group.group_id,
            "group_kind": about.kind,
            "checked_at": at,
        }
        is_gone = group.is_gone and not group.commits
        if why_open(about, group) is None:
            rows.append({**same, **OF_GROUP, "is_gone": is_gone})
        gone = about.partitions if is_gone else group.without_commit & about.partitions
        rows += [
            {**same, "topic": topic, "partition": partition, "is_gone": True} for topic, partition in sorted(gone)
        ]
    return rows


def why_open(about: Unheard, group: PolledGroup) -> str | None:
    """Return why it is not known what became of a group or of its commits; None if all is known."""
    has_commits = about.partitions <= {*(group.commits or ()), *group.without_commit}
    is_described = about.kind is None or group.described is not None
    if (is_described and has_commits) or (group.is_gone and not group.commits):
        return None
    return group.problem or "its coordinator is moving"


class TombstoneChecks:
    """Asks coordinators after each long stop until they have answered, and writes their answers."""

    def __init__(self, context: JobContext[HistorySettings]) -> None:
        self._warehouse = context.warehouse
        self._kafka = context.kafka
        self._log = context.log
        self._settings = context.settings
        self._stops: Stops | None = None
        self._next_at = 0.0
        self._logged = ""

    def ask(self, progress: pa.Table, once: Once) -> bool:
        """Ask what the stops before a batch of `ingest_progress` make necessary, when the batch has been folded.

        Returns whether something is gone, by rows that were written within the offsets of the batch.
        """
        if self._stops is None:
            self._stops = self._stops_before(progress)
        self._stops.add(progress)
        of_batch = set(progress["record_partition"].to_pylist())
        due = {partition: stop for partition, stop in self._stops.due().items() if partition in of_batch}
        if not due or time.monotonic() < self._next_at:
            return False
        ends = {partition: self._stops.end_of(partition) for partition in due}
        unheard = self._unheard(due, ends)
        at = datetime.now(UTC)
        try:
            polled = self._describe(unheard)
        except ClusterError as error:
            polled = [PolledGroup(group_id, "", "", "", problem=str(error)) for group_id in unheard]
        rows = answers(unheard, polled, ends, at)
        if rows:
            self._warehouse.table(CHECKS).append_rows(rows, once)
        why = {group.group_id: why_open(unheard[group.group_id], group) for group in polled}
        reasons = {group_id: why.get(group_id, _NO_TIME) for group_id in unheard}
        left = {group_id: reason for group_id, reason in reasons.items() if reason is not None}
        self._next_at = time.monotonic() + _RETRY_SECONDS if left else 0.0
        open_in = {unheard[group_id].record_partition for group_id in left}
        self._stops.remove(due.keys() - open_in)
        if unheard:
            self._log_once(_summary(max(stop.seconds for stop in due.values()), len(unheard), rows, left))
        return any(row["is_gone"] and not row["topic"] for row in rows)

    def _stops_before(self, progress: pa.Table) -> Stops:
        stops = Stops(timedelta(minutes=self._settings.history.tombstones_retention_minutes))
        landed_at = pc.min(progress["landed_at"]).as_py()
        before = f"AND landed_at < {datafusion_literal(landed_at)}"
        rows = list(self._warehouse.table(PROGRESS).select_arrow(_COLUMNS, before, rows_at_a_time=_ROWS_AT_A_TIME))
        if rows:
            stops.add(pa.concat_tables(rows))
        return stops

    def _unheard(self, due: Mapping[int, Stop], ends: Mapping[int, int]) -> dict[str, Unheard]:
        among = f"AND record_partition IN ({', '.join(map(str, due))})"
        since = datafusion_literal(min(stop.until for stop in due.values()))
        return unheard_groups(
            due,
            ends,
            self._rows(POSITIONS, ("record_partition", "group_id", "processed_to", "waits", "state"), among),
            self._rows(_COMMITTED, ("record_partition", "record_offset", "group_id", "topic", "partition"), among),
            self._rows(CHECKS, ("record_partition", "group_id", "topic", "checked_at"), f"AND checked_at >= {since}"),
        )

    def _rows(self, table: str, columns: Sequence[str], rest: str) -> Iterator[dict[str, Any]]:
        rows = self._warehouse.table(table)
        if rows.exists():
            for some in rows.select_arrow(columns, rest, rows_at_a_time=_ROWS_AT_A_TIME):
                yield from some.to_pylist()

    def _describe(self, unheard: Mapping[str, Unheard]) -> list[PolledGroup]:
        if not unheard:
            return []
        with closing(Coordinators(self._kafka, self._settings.requests_per_second)) as coordinators:
            return coordinators.describe(
                {group_id: about.kind or "" for group_id, about in unheard.items()},
                {group_id: about.record_partition for group_id, about in unheard.items()},
                {group_id: about.partitions for group_id, about in unheard.items()},
                seconds=_SECONDS_A_CHECK,
            )

    def _log_once(self, line: str) -> None:
        if line != self._logged:
            self._logged = line
            self._log(line)


def _summary(seconds: float, count: int, rows: Sequence[Mapping[str, Any]], left: Mapping[str, str]) -> str:
    groups = sum(row["is_gone"] and not row["topic"] for row in rows)
    offsets = sum(bool(row["topic"]) for row in rows)
    line = (
        f"history: decoding was stopped for {seconds / 3600:,.1f} h, longer than tombstones are kept: coordinators "
        f"were asked for {count:,} groups; {groups:,} groups and {offsets:,} committed offsets are gone"
    )
    if left:
        group_id, reason = next(iter(left.items()))
        more = f" and {len(left) - 1:,} more" if len(left) > 1 else ""
        line += f"; not known of {group_id!r}{more}: {reason}"
    return line
