"""The page of a group: its state at a time, and its history between two times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from difflib import get_close_matches
from http import HTTPStatus
from typing import Any

from grouptrail import contracts
from grouptrail.query import freshness, show_group
from grouptrail.query.errors import BeforeHistoryError, QueryError, UnknownGroupError
from grouptrail.query.show_verdict import facts_of
from grouptrail.query.show_why import endings_of
from grouptrail.query.views import expand, filled, utc_now, window_from
from grouptrail.report import group_rows
from grouptrail.report.group_rows import SECOND_US, GroupRows, moment, read_group
from grouptrail.snapshot.reader import ServedCluster
from grouptrail.storage.damage import damage_of
from grouptrail.storage.sql import Value
from grouptrail.storage.sql_snapshot import SqlSnapshot
from grouptrail.web.answers import (
    Ending,
    Group,
    GroupPartition,
    GroupQuery,
    GroupState,
    Handover,
    PartitionPoint,
    Rebalance,
    Reset,
)
from grouptrail.web.group_index import ClusterGroups, GroupIndex
from grouptrail.web.requests import PageError

Row = dict[str, Any]

MOST_REBALANCES = 500
MOST_PARTITIONS = 200
_MOST_REREADS = 100
_POINTS = 120
_AROUND = timedelta(hours=1)
_TABLES = {*show_group.TABLES, *group_rows.TABLES}
_STATUSES = contracts.statuses()

_OF_GROUP = "cluster = :cluster AND group_id = :group"
_SAMPLES_AT = f"""
SELECT topic, partition, sampled_at, status, status_reason, rule, ruled_out, committed_offset, commit_at,
  log_start_offset, log_end_offset, lag, lag_error, lag_seconds, time_to_loss_seconds, time_to_loss_most_seconds,
  time_to_loss_reason, lost_records, delivery_complete_count, awaiting_redelivery, most_deliveries,
  most_delivered_offset
FROM (
  SELECT *, row_number() OVER (PARTITION BY topic, partition ORDER BY sampled_at DESC) AS place
  FROM consumer_lag
  WHERE {_OF_GROUP} AND sampled_at <= :time AND sampled_at > :before
)
WHERE place = 1
"""
_POINTS_OF_SAMPLES = f"""
SELECT topic, partition, CAST(sampled_at AS BIGINT) / :step AS slot, max(lag) AS lag,
  last_value(committed_offset ORDER BY sampled_at) AS committed_offset,
  last_value(log_end_offset ORDER BY sampled_at) AS log_end_offset
FROM consumer_lag
WHERE {_OF_GROUP} AND sampled_at >= :since AND sampled_at <= :until
GROUP BY topic, partition, slot
ORDER BY slot
"""
_POINTS_OF_COMMITS = f"""
SELECT topic, partition, CAST(record_at AS BIGINT) / :step AS slot,
  last_value(committed_offset ORDER BY record_offset) AS committed_offset
FROM offset_commits
WHERE {_OF_GROUP} AND record_at >= :since AND record_at <= :until AND NOT is_tombstone
GROUP BY topic, partition, slot
ORDER BY slot
"""
_HANDOVERS = f"""
SELECT at, to_generation, handover['topic'] AS topic, handover['partition'] AS partition,
  handover['from_member'] AS from_member, handover['to_member'] AS to_member,
  handover['committed_offset'] AS committed_offset, handover['commit_age_ms'] AS commit_age_ms,
  handover['may_be_read_twice'] AS may_be_read_twice
FROM (
  SELECT at, to_generation, unnest(handed_over) AS handover
  FROM rebalances
  WHERE {_OF_GROUP} AND at >= :since AND at <= :until
)
WHERE handover['may_be_read_twice'] > 0
ORDER BY may_be_read_twice DESC, at DESC
LIMIT {_MOST_REREADS}
"""
_RESETS = f"""
SELECT at, topic, partition, kind, before_offset, after_offset, moved_by, owner_member_id, owner_client_id,
  group_state
FROM resets(:window)
WHERE group_id = :group AND at >= :since AND at <= :until
ORDER BY at DESC
LIMIT {_MOST_REREADS}
"""


@dataclass(frozen=True)
class GroupPage:
    """A group's answer, and the rows of its timeline or why there are none."""

    answer: Group
    timeline: GroupRows | None
    no_timeline: str

    @property
    def anchors(self) -> dict[tuple[datetime, int], str]:
        """Return the id of each rebalance on the page, by its time and generation.

        Generations begin again at 1 after a group was deleted: only the newest one has the plain id."""
        anchors: dict[tuple[datetime, int], str] = {}
        taken: set[int] = set()
        for row in self.answer.rebalances:
            time = f"-{int(row.at.timestamp() * 1000)}" if row.to_generation in taken else ""
            anchors[row.at, row.to_generation] = f"generation-{row.to_generation}{time}"
            taken.add(row.to_generation)
        return anchors


def group_page(index: GroupIndex, group_id: str, query: GroupQuery) -> GroupPage:
    """Return what is known of a group. Raises PageError for an unknown one, and for a time before its history."""
    cluster = index.cluster_of("group_id", group_id, query.cluster)
    served, known = index.served(cluster), index.of(cluster)
    summary = index.summary(cluster, group_id)
    deleted_at = None if summary else known.deleted_at(group_id)
    is_known = summary is not None or deleted_at is not None
    since, until = _time_shown(query)
    state, timeline, no_timeline = None, None, ""
    tables = SqlSnapshot(served.warehouse, _TABLES)
    try:
        state = _state(tables, group_id, query.at)
        timeline = read_group(tables, group_id, since=since, until=until)
    except BeforeHistoryError as error:
        raise PageError(HTTPStatus.NOT_FOUND, str(error)) from error
    except UnknownGroupError as error:
        if not is_known:
            raise unknown_group(group_id, known, error.near) from error
        damaged = damage_of(served.warehouse.table("generations").path)
        no_timeline = (
            damaged[0] if damaged else "no record of its members has been read; it has only committed offsets"
        )
    except QueryError as error:
        # The history may be missing altogether, or have nothing in the time asked for.
        if not is_known and state is None:
            raise unknown_group(group_id, known, ()) from error
        no_timeline = str(error)
    since, until = _bounds(timeline, since, until, known)
    reader = _Reader(served, tables, group_id, since, until)
    answer = Group(
        notices=list(known.notices),
        cluster=cluster,
        group_id=group_id,
        at=query.at,
        as_of=known.as_of,
        is_stale=known.is_stale
        if query.at is None
        else known.as_of is not None and freshness.is_stale(served.sample_seconds, known.as_of, until=query.at),
        summary=summary,
        deleted_at=deleted_at,
        now=state,
        since=since,
        until=until,
        rebalances=_rebalances(timeline),
        partitions=reader.partitions(
            index.lag_of(cluster, "group_id", group_id).to_pylist()
            if query.at is None
            else reader.samples_at(query.at)
        ),
        handovers=reader.handovers(),
        resets=reader.resets(),
    )
    return GroupPage(answer, timeline, no_timeline)


def unknown_group(group_id: str, known: ClusterGroups, near: Sequence[str] = ()) -> PageError:
    """Return the error about a group that nothing names, with names that may have been meant."""
    names = [*near, *get_close_matches(group_id, known.rows["group_id"].to_pylist(), n=3)]
    return PageError(
        HTTPStatus.NOT_FOUND,
        f"there is no group {group_id!r} in cluster {known.cluster}: nothing that was read names it",
        list(dict.fromkeys(names))[:3],
    )


def _state(tables: SqlSnapshot, group_id: str, at: datetime | None) -> GroupState:
    """Return the state in the history. Raises QueryError if it has none."""
    group = show_group.describe_group(tables, group_id, at=at, generations=1)
    members = [{name: member[name] for name in _OF_MEMBER} for member in group["members"]]
    state = {name: group.get(name) for name in GroupState.model_fields}
    return GroupState.model_validate({**state, "members": members})


_OF_MEMBER = (
    *("member_id", "instance_id", "client_id", "client_host", "joined_at", "began", "partitions"),
    *("tasks", "process_id", "endpoint"),
)


def _time_shown(query: GroupQuery) -> tuple[datetime | None, datetime | None]:
    """Return the times of the address; around `at` if that is all there is."""
    if query.at is None or query.since or query.until:
        return query.since, query.until
    return query.at - _AROUND, query.at + _AROUND


def _bounds(
    timeline: GroupRows | None, since: datetime | None, until: datetime | None, known: ClusterGroups
) -> tuple[datetime, datetime]:
    if timeline is not None:
        return moment(timeline.since_us), moment(timeline.until_us)
    until = until or known.as_of or utc_now()
    if since is not None and since >= until:
        detail = (
            f"nothing is known after {since:%Y-%m-%d %H:%M:%S} UTC: the newest data are of {until:%Y-%m-%d %H:%M:%S}"
        )
        raise PageError(HTTPStatus.NOT_FOUND, detail)
    return since or until - timedelta(days=1), until


def _rebalances(timeline: GroupRows | None) -> list[Rebalance]:
    if timeline is None:
        return []
    lives: dict[str, list[Row]] = {}
    for life in timeline.lives:
        lives.setdefault(life["member_id"], []).append(life)
    names = [name for name in Rebalance.model_fields if name not in ("at", "ended_at", "endings")]
    return [
        Rebalance.model_validate(
            {name: row[name] for name in names}
            | {"at": moment(row["at_us"]), "ended_at": None if row["ended_at"] is None else moment(row["ended_at"])}
            | {"endings": [{name: one[name] for name in Ending.model_fields} for one in endings_of(row, lives)]}
        )
        for row in timeline.rebalances[-MOST_REBALANCES:][::-1]
    ]


class _Reader:
    """Reads what the page of a group shows in addition to the timeline."""

    def __init__(
        self, cluster: ServedCluster, tables: SqlSnapshot, group_id: str, since: datetime, until: datetime
    ) -> None:
        self._cluster = cluster
        self._tables = tables
        self._values: dict[str, Value] = {
            "cluster": cluster.name,
            "group": group_id,
            "since": since,
            "until": until,
            "step": max(int((until - since).total_seconds() * SECOND_US) // _POINTS, SECOND_US),
        }

    def partitions(self, newest: list[Row]) -> list[GroupPartition]:
        """Return the partitions, the worst first; those without a new sample come last."""
        points = self._points()
        samples = {(row["topic"], row["partition"]): row for row in newest}
        keys = sorted(samples.keys() | points.keys(), key=lambda key: _badness(samples.get(key), key))
        return [
            GroupPartition.model_validate(
                {name: samples.get(key, {}).get(name) for name in GroupPartition.model_fields}
                | {"topic": key[0], "partition": key[1], "points": points[key]}
                | {"evidence": list(facts_of(samples[key])) if key in samples else []}
            )
            for key in keys[:MOST_PARTITIONS]
        ]

    def samples_at(self, time: datetime) -> list[Row]:
        """Return the newest sample of each partition at a time."""
        if "consumer_lag" not in self._tables.versions:
            return []
        before = time - timedelta(seconds=freshness.stale_seconds(self._cluster.sample_seconds))
        return self._tables.rows(filled(_SAMPLES_AT, self._values | {"time": time, "before": before}))

    def handovers(self) -> list[Handover]:
        """Return the partitions that changed owner, with what may be read twice."""
        return [Handover.model_validate(row) for row in self._rows(_HANDOVERS, "rebalances")]

    def resets(self) -> list[Reset]:
        """Return the commits that moved an offset back, or while the group had no members."""
        since = self._values["since"]
        assert isinstance(since, datetime)
        needed = ("offset_commits", "group_states", "partition_ownership")
        return [Reset.model_validate(row) for row in self._rows(_RESETS, *needed, window=window_from(since))]

    def _points(self) -> dict[tuple[str, int], list[PartitionPoint]]:
        rows = self._rows(_POINTS_OF_SAMPLES, "consumer_lag") or self._rows(_POINTS_OF_COMMITS, "offset_commits")
        step = self._values["step"]
        assert isinstance(step, int)
        points: dict[tuple[str, int], list[PartitionPoint]] = defaultdict(list)
        for row in rows:
            points[row["topic"], row["partition"]].append(
                PartitionPoint(
                    at=moment(row["slot"] * step),
                    committed_offset=row["committed_offset"],
                    log_end_offset=row.get("log_end_offset"),
                    lag=row.get("lag"),
                )
            )
        return points

    def _rows(self, sql: str, *tables: str, **values: Value) -> list[Row]:
        """Return the rows of a query; none if there is a table that it needs and that does not exist."""
        if not set(tables) <= self._tables.versions.keys():
            return []
        query = expand(filled(sql, self._values | values), self._cluster.name).text
        return self._tables.rows(query)


def _badness(sample: Row | None, key: tuple[str, int]) -> tuple[Any, ...]:
    if sample is None:
        return (len(_STATUSES), 0, 0, key)
    return (_STATUSES.index(sample["status"]), -(sample["lag_seconds"] or 0), -(sample["lag"] or 0), key)
