"""All groups in memory, for the page that lists, filters and sorts them."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fnmatch import translate
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.query import freshness
from grouptrail.query.views import utc_now
from grouptrail.snapshot.reader import NO_DELETED, Snapshot, existing
from grouptrail.snapshot.summary import EXTENT, summarize, worst_by_group
from grouptrail.web.answers import STATUSES, Groups, GroupsQuery, GroupSummary, Notice
from grouptrail.web.notices import notices
from grouptrail.web.recent import NO_SAMPLES, Recent
from grouptrail.web.requests import of_cluster

if TYPE_CHECKING:
    from grouptrail.snapshot.reader import ServedCluster
    from grouptrail.snapshot.state import ClusterState

_NO_STATUS = STATUSES[-1]


@dataclass(frozen=True)
class ClusterGroups:
    """The groups of a cluster at one moment, as a table with the columns of `GroupSummary` but its trend.

    `lag` is the newest sample of each group and partition, and `extent` the topics of groups without rows in it, as
    in the exporter's snapshot: groups that were deleted since are in none. `as_of` is the time of that sample, or if
    there is none, of the newest batch; `is_stale`: it is too old to show the present, or no broker answers this
    process. `sampled_at` is the time of the newest sample for which a broker had answered."""

    cluster: str
    rows: pa.Table
    lag: pa.Table
    extent: pa.Table
    deleted: pa.Table
    sampled_at: datetime | None
    as_of: datetime | None = None
    is_stale: bool = False
    notices: tuple[Notice, ...] = ()

    def end_of(self, wanted: datetime | None) -> datetime:
        """Return the end of the time to show: a wanted one, by default now, or when the pipeline stopped."""
        return wanted or (self.as_of if self.is_stale else None) or utc_now()

    def deleted_at(self, group_id: str) -> datetime | None:
        """Return when a group was deleted, None if it was not."""
        times = self.deleted.filter(pc.equal(self.deleted["group_id"], group_id))["deleted_at"]
        return times[0].as_py() if len(times) else None


class GroupIndex:
    """The groups of all clusters, indexed again when the exporter has a new snapshot."""

    def __init__(self, clusters: Sequence[ServedCluster], state: Callable[[str], ClusterState]) -> None:
        self._served = {cluster.name: cluster for cluster in clusters}
        self._state = state
        self._recent = {cluster.name: Recent(cluster) for cluster in clusters}
        self._known: dict[str, tuple[Snapshot | None, ClusterGroups]] = {}
        self._indexing = {name: threading.Lock() for name in self._served}

    @property
    def clusters(self) -> list[str]:
        """The names of all clusters."""
        return list(self._served)

    def served(self, cluster: str) -> ServedCluster:
        """Return a cluster by its name."""
        return self._served[cluster]

    def of(self, cluster: str) -> ClusterGroups:
        """Return the groups of a cluster."""
        with self._indexing[cluster]:
            state = self._state(cluster)
            snapshot, known = self._known.get(cluster, (None, None))
            if known is None or snapshot is not state.snapshot:
                known = _indexed(cluster, state.snapshot, self._recent[cluster])
                self._known[cluster] = (state.snapshot, known)
        served = self._served[cluster]
        shown = notices(served, state, known.as_of, has_groups=len(known.rows) > 0)
        awaits_broker = state.snapshot is not None and state.snapshot.awaits_broker
        is_stale = known.as_of is not None and (
            awaits_broker or freshness.is_stale(served.sample_seconds, known.as_of)
        )
        return replace(known, is_stale=is_stale, notices=tuple(shown))

    def lag_of(self, cluster: str, column: Literal["group_id", "topic"], name: str) -> pa.Table:
        """Return the newest samples of a group or a topic, from the table if the snapshot has too many to hold."""
        known = self.of(cluster)
        if pc.any(pc.equal(known.extent[column], name)).as_py():
            return existing(self._recent[cluster].last_samples(column, name), known.deleted)
        return known.lag.filter(pc.equal(known.lag[column], name))

    def recent(self, cluster: str) -> Recent:
        """Return the reader of a cluster's recent rows."""
        return self._recent[cluster]

    def clusters_of(self, column: Literal["group_id", "topic"], name: str) -> list[str]:
        """Return the clusters that have a group or a topic of this name, last those that had it."""
        known = [self.of(cluster) for cluster in self._served]
        deleted = [one for one in known if column == "group_id" and one.deleted_at(name)]
        return list(
            dict.fromkeys(one.cluster for one in [*(one for one in known if _has(one, column, name)), *deleted])
        )

    def cluster_of(self, column: Literal["group_id", "topic"], name: str, wanted: str) -> str:
        """Return the wanted cluster, by default the first that has the group or topic, or else the first.

        Raises PageError if there is no cluster of the wanted name."""
        if wanted:
            return of_cluster(self._served, wanted).name
        return next(iter(self.clusters_of(column, name)), self.clusters[0])

    def summary(self, cluster: str, group_id: str) -> GroupSummary | None:
        """Return a group's row; None if it has neither a state nor lag."""
        known = self.of(cluster)
        rows = known.rows.filter(pc.equal(known.rows["group_id"], group_id))
        return next(iter(self._summaries(rows, [known])), None)

    def groups(self, query: GroupsQuery) -> Groups:
        """Return the groups that a query selects: one page of them."""
        wanted = [name for name in self._served if query.cluster in ("", name)]
        clusters = [self.of(name) for name in wanted]
        rows = pa.concat_tables([one.rows for one in clusters]) if clusters else _NO_ROWS
        rows = rows.filter(_selected(rows, query))
        counts = dict(zip(*(column.to_pylist() for column in pc.value_counts(rows["status"]).flatten()), strict=True))
        if query.status:
            rows = rows.filter(pc.is_in(rows["status"], pa.array(query.status)))
        shown = page_of_list(len(rows), query.page, query.per_page)
        rows_shown = rows.take(_ordered(rows, query.sort)[shown.before : shown.before + query.per_page])
        sampled = [one.sampled_at for one in clusters if one.sampled_at is not None]
        return Groups(
            notices=[notice for one in clusters for notice in one.notices],
            total=len(rows),
            page=shown.page,
            pages=shown.pages,
            statuses={status: counts[status] for status in STATUSES if status in counts},
            clusters=list(self._served),
            sampled_at=max(sampled, default=None),
            is_stale=any(one.is_stale for one in clusters),
            groups=self._summaries(rows_shown, clusters),
        )

    def _summaries(self, rows: pa.Table, clusters: Sequence[ClusterGroups]) -> list[GroupSummary]:
        listed = rows.to_pylist()
        known = {one.cluster: one for one in clusters}
        trends: dict[tuple[str, str], list[int | None]] = {}
        for cluster in {row["cluster"] for row in listed}:
            partitions = {row["group_id"]: row["partitions"] for row in listed if row["cluster"] == cluster}
            for name, trend in self._recent[cluster].trends(partitions, known[cluster].as_of).items():
                trends[cluster, name] = trend
        return [
            GroupSummary(
                **{**row, "status": None if row["status"] == _NO_STATUS else row["status"]},
                as_of=known[row["cluster"]].as_of,
                is_stale=known[row["cluster"]].is_stale,
                trend=trends.get((row["cluster"], row["group_id"]), []),
            )
            for row in listed
        ]


def _indexed(cluster: str, snapshot: Snapshot | None, recent: Recent) -> ClusterGroups:
    if snapshot is None:
        return ClusterGroups(cluster, _NO_ROWS, NO_SAMPLES, EXTENT.empty_table(), NO_DELETED, None)
    recent.refresh()
    # After the pipeline has stopped, the snapshot has no lag; the last samples show how it was then.
    is_current = len(snapshot.lag) + len(snapshot.extent) > 0
    lag = snapshot.lag if is_current else existing(recent.last_samples(), snapshot.deleted)
    sampled_at = snapshot.sampled_at if is_current else pc.max(lag["sampled_at"]).as_py()
    now = datetime.now(UTC)
    rebalances = recent.rebalances(now if is_current else sampled_at or now)
    by_group = worst_by_group(pa.concat_tables([summarize(lag), snapshot.summary]))
    landed_at = snapshot.newest.get("ingest_progress")
    return ClusterGroups(
        cluster,
        _rows(cluster, snapshot.groups, by_group, rebalances),
        lag,
        snapshot.extent,
        snapshot.deleted,
        sampled_at if snapshot.silence is None else snapshot.silence.since,
        as_of=sampled_at or (None if landed_at is None else datetime.fromtimestamp(landed_at, UTC)),
    )


def _has(known: ClusterGroups, column: str, name: str) -> bool:
    tables = [known.rows] if column == "group_id" else [known.lag, known.extent]
    return any(pc.any(pc.equal(rows[column], name)).as_py() for rows in tables)


def _rows(cluster: str, groups: pa.Table, by_group: pa.Table, rebalances: pa.Table) -> pa.Table:
    """Return a row for each group that has a state or lag."""
    all_of = by_group.join(
        groups.select(["group_id", "state", "generation", "member_count"]), "group_id", join_type="full outer"
    ).join(rebalances, "group_id", join_type="left outer")
    columns = {
        "cluster": pa.repeat(pa.scalar(cluster), len(all_of)),
        "group_id": all_of["group_id"],
        "status": pc.fill_null(all_of["status"], _NO_STATUS),
        "lag": all_of["lag"],
        "lag_is_least": pc.fill_null(all_of["lag_is_least"], False),
        "lag_seconds": all_of["lag_seconds"],
        "lag_seconds_is_least": pc.fill_null(all_of["lag_seconds_is_least"], False),
        "time_to_loss_seconds": all_of["time_to_loss_seconds"],
        "lost_records": all_of["lost_records"],
        "most_deliveries": all_of["most_deliveries"],
        "partitions": pc.fill_null(all_of["partitions"], 0),
        "state": all_of["state"],
        "generation": all_of["generation"],
        "member_count": all_of["member_count"],
        "rebalances_last_hour": pc.fill_null(all_of["rebalances"], 0),
        "commit_at": all_of["commit_at"],
    }
    return pa.table(columns).cast(_SCHEMA)


_SCHEMA = pa.schema(
    {
        "cluster": pa.string(), "group_id": pa.string(), "status": pa.string(), "lag": pa.int64(),
        "lag_is_least": pa.bool_(), "lag_seconds": pa.float64(), "lag_seconds_is_least": pa.bool_(),
        "time_to_loss_seconds": pa.float64(), "lost_records": pa.int64(),
        "most_deliveries": pa.int64(), "partitions": pa.int64(),
        "state": pa.string(), "generation": pa.int64(), "member_count": pa.int64(),
        "rebalances_last_hour": pa.int64(), "commit_at": pa.timestamp("us", "UTC"),
    }
)  # fmt: skip
_NO_ROWS = _SCHEMA.empty_table()


class ListPage(NamedTuple):
    """A page of a list: its number, that of all pages, and how many rows are before it."""

    page: int
    pages: int
    before: int


def page_of_list(total: int, page: int, per_page: int) -> ListPage:
    """Return a page of a list of so many rows, the last one if there are not so many."""
    pages = max(1, -(-total // per_page))
    page = min(page, pages)
    return ListPage(page, pages, (page - 1) * per_page)


def are_named(names: pa.ChunkedArray, wanted: str) -> pa.Array:
    """Return which names have a text, or match a shell pattern; all for an empty one."""
    if not wanted:
        return pa.array(np.ones(len(names), bool))
    pattern = re.compile(translate(wanted if re.search(r"[*?[]", wanted) else f"*{wanted}*"), re.IGNORECASE)
    return pa.array([bool(pattern.match(name)) for name in names.to_pylist()], pa.bool_())


def _selected(rows: pa.Table, query: GroupsQuery) -> pa.Array:
    mask = np.ones(len(rows), bool)
    if query.group:
        mask &= np.asarray(are_named(rows["group_id"], query.group))
    if query.state:
        mask &= np.asarray(pc.fill_null(pc.equal(rows["state"], query.state), False))
    return pa.array(mask)


def _ordered(rows: pa.Table, sort: str) -> pa.Array:
    """Return the order of the rows; unknown values come last, and equal ones by their lag and name."""
    rank = pc.index_in(rows["status"], pa.array(STATUSES))
    return ordered(rows.append_column("rank", rank), sort, _THEN)


def ordered(rows: pa.Table, sort: str, then: Mapping[str, str]) -> pa.Array:
    """Return the order of rows by `sort`, a column after which equal ones are in the order `then`.

    With - before it the greatest come first; `status` goes by the column `rank`. Unknown values come last.
    """
    name, order = sort.lstrip("-"), "descending" if sort.startswith("-") else "ascending"
    first = {"rank" if name == "status" else name: order}
    return pc.sort_indices(rows, list((first | {**then, **first}).items()))


_THEN: Mapping[str, str] = {
    "lag_seconds": "descending",
    "lag": "descending",
    "group_id": "ascending",
    "cluster": "ascending",
}
