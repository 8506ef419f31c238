"""Write what coordinators return of share groups to `share_group_offsets`, where `__share_group_state` is not read.

Only what has changed is written, all of a poll in one commit. After a failure the table says what was written.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from grouptrail.console.progress import Log
from grouptrail.decode.rows import Row
from grouptrail.kafka.errors import ClusterError
from grouptrail.memory import release_memory
from grouptrail.share_state.polled import Progress, progress
from grouptrail.share_state.poller import Place, PolledShareGroup, SharePoll, SharePoller
from grouptrail.storage.living_groups import living_groups
from grouptrail.storage.schema import table_schema
from grouptrail.storage.share_progress import GONE, RETURNED, SUPERSEDED

if TYPE_CHECKING:
    from grouptrail.storage.warehouse import Warehouse

TABLE = "share_group_offsets"
STATES = "group_states"

_Group = Mapping[Place, Progress | None]
"""The partitions of a share group; None where it has no offset any more."""

_ROWS = table_schema(TABLE, without=("cluster",))
_NEWEST = "QUALIFY row_number() OVER (PARTITION BY group_id, topic, partition ORDER BY polled_at DESC) = 1"
_READ_AT_A_TIME = 50_000


class SharePolling:
    """Polls share groups and writes what has changed. Problems are logged once; the next poll asks again."""

    def __init__(self, warehouse: Warehouse, poller: SharePoller, log: Log) -> None:
        self._table, self._states = warehouse.tables((TABLE, STATES))
        self._poller = poller
        self._log = log
        self._stored: dict[str, _Group] | None = None
        self._newest = datetime.min.replace(tzinfo=UTC)
        self._polled_at: dict[str, datetime] = {}
        self._problems: set[str] = set()

    def process(self, batch: int) -> None:
        """Poll once and write what has changed."""
        started = time.monotonic()
        stored = self._restored()
        # By the history, so that a group which no broker lists, as the principal may not see it, is noticed.
        groups = living_groups(self._states, ("share",))
        known = dict.fromkeys(groups, ()) | {
            group: tuple(place for place, one in places.items() if one) for group, places in stored.items()
        }
        try:
            poll = self._poller.poll(known)
        except ClusterError as error:
            self._log_problems([str(error)])
            return
        at = self._time_of_rows(poll.at)
        now = {group: _after_poll(stored.get(group, {}), polled, at) for group, polled in poll.groups.items()}
        rows = [
            self._row(group, place, at, GONE, one)
            for group, places in now.items()
            for place, one in places.items()
            if _columns(one) != _columns(stored.get(group, {}).get(place))
        ]
        self._append(rows, at)
        self._stored = stored | now
        self._polled_at |= dict.fromkeys(now, at)
        if rows:
            self._log(
                f"share-state batch {batch}: {len(rows):,} changes polled in {time.monotonic() - started:.1f} s"
            )
        self._log_problems(_problems(poll))
        release_memory(after_seconds=time.monotonic() - started)

    def supersede(self) -> None:
        """Let the records of the topic count from now on."""
        at, stored = self._time_of_rows(time.time()), self._restored()
        self._append([self._row(group, place, at, SUPERSEDED) for group in stored for place in stored[group]], at)
        self._stored = {}
        self._polled_at.clear()
        self._problems.clear()

    def _restored(self) -> dict[str, _Group]:
        """Return what the table has of each group, without what was superseded."""
        if self._stored is None:
            restored: dict[str, dict[Place, Progress | None]] = defaultdict(dict)
            for rows in self._table.select_arrow(_ROWS.names, _NEWEST, rows_at_a_time=_READ_AT_A_TIME):
                for row in rows.to_pylist():
                    self._newest = max(self._newest, row["polled_at"])
                    if row["outcome"] != SUPERSEDED:
                        one = Progress.of(row) if row["outcome"] == RETURNED else None
                        restored[row["group_id"]][row["topic"], row["partition"]] = one
            self._stored = dict(restored)
        return self._stored

    def _time_of_rows(self, seconds: float) -> datetime:
        """Return a time in milliseconds that is after those of the rows before, whatever the clock says."""
        at = datetime.fromtimestamp(int(seconds * 1000) / 1000, UTC)
        return max(at, self._newest + timedelta(milliseconds=1))

    def _row(self, group: str, place: Place, at: datetime, without: str, one: Progress | None = None) -> Row:
        """Return a row, whose outcome is `without` if there is no offset."""
        topic, partition = place
        return {
            "group_id": group,
            "topic": topic,
            "partition": partition,
            "polled_at": at,
            "not_before": self._polled_at.get(group),
            "outcome": without if one is None else RETURNED,
            **(_columns(one) or {}),
        }

    def _append(self, rows: list[Row], at: datetime) -> None:
        if rows:
            self._stored = None  # the table says what was written, should this fail
            self._table.append(pa.Table.from_pylist(rows, _ROWS))
            self._newest = at

    def _log_problems(self, problems: Iterable[str]) -> None:
        """Log the problems that the poll before did not have."""
        now = set(problems)
        for problem in sorted(now - self._problems):
            self._log(f"share-state: {problem}")
        self._problems = now


def _after_poll(before: _Group, polled: PolledShareGroup, at: datetime) -> _Group:
    """Return the partitions of a group after a poll that began at `at`."""
    after = dict(before) | dict.fromkeys(polled.gone)
    for place, returned in polled.offsets.items():
        one = progress(before.get(place), returned, polled.log_ends[place], at)
        if one is not None:
            after[place] = one
    return after


def _columns(one: Progress | None) -> Row | None:
    return None if one is None else one.columns()


def _problems(poll: SharePoll) -> Iterator[str]:
    """Yield the problems of a poll, groups that have the same one together."""
    yield from poll.problems
    groups: dict[str, list[str]] = defaultdict(list)
    for group, reason in poll.refused.items():
        groups[reason].append(group)
    for reason, refused in groups.items():
        more = f" and {len(refused) - 1:,} more" if len(refused) > 1 else ""
        yield f"no offsets of share group {min(refused)!r}{more}: {reason}"
