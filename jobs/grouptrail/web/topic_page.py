"""The page of a topic: its partitions, who consumes them, and how far retention is from the slowest."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from difflib import get_close_matches
from http import HTTPStatus
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.snapshot.summary import summarize, worst_by_group
from grouptrail.web.answers import LagPoint, Topic, TopicConsumer, TopicPartition, TopicQuery
from grouptrail.web.group_index import ClusterGroups, GroupIndex
from grouptrail.web.requests import PageError

Row = dict[str, Any]

_HOUR = timedelta(hours=1)


def topic_page(index: GroupIndex, topic: str, query: TopicQuery) -> Topic:
    """Return what is known of a topic. Raises PageError if no group consumes one of this name."""
    known = index.of(index.cluster_of("topic", topic, query.cluster))
    rows = index.lag_of(known.cluster, "topic", topic)
    if not len(rows):
        topics = {name for rows in (known.lag, known.extent) for name in pc.unique(rows["topic"]).to_pylist()}
        near = get_close_matches(topic, topics, n=3)
        detail = f"no group with committed offsets consumes a topic {topic!r} in cluster {known.cluster}"
        raise PageError(HTTPStatus.NOT_FOUND, detail, near, kind="topics")
    # Of a pipeline that has stopped, it is not known how far retention has come since.
    delete_rates = {} if known.is_stale else index.recent(known.cluster).delete_rates(topic)
    partitions: dict[int, list[Row]] = {}
    for row in rows.to_pylist():
        partitions.setdefault(row["partition"], []).append(row)
    shown = [_partition(number, partitions[number], delete_rates.get(number)) for number in sorted(partitions)]
    if known.is_stale:
        shown = [partition.model_copy(update={"time_to_loss_seconds": None}) for partition in shown]
    rates = [partition.produce_rate for partition in shown if partition.produce_rate is not None]
    until = known.end_of(query.until)
    since = query.since or until - _HOUR
    points = index.recent(known.cluster).lag_of_topic(topic, since, until)
    return Topic(
        notices=list(known.notices),
        cluster=known.cluster,
        topic=topic,
        sampled_at=known.sampled_at,
        is_stale=known.is_stale,
        produce_rate=sum(rates) if rates else None,
        since=since,
        until=until,
        consumers=_consumers(known, rows, points),
        partitions=shown,
    )


def _consumers(known: ClusterGroups, rows: pa.Table, points: Mapping[str, list[LagPoint]]) -> list[TopicConsumer]:
    worst = worst_by_group(summarize(rows)).join(
        known.rows.select(["group_id", "state", "member_count"]), "group_id", join_type="left outer"
    )
    names = [name for name in TopicConsumer.model_fields if name != "points"]
    consumers = [
        TopicConsumer(**row, points=points.get(row["group_id"], [])) for row in worst.select(names).to_pylist()
    ]
    return sorted(consumers, key=lambda one: (-(one.lag_seconds or 0), -(one.lag or 0), one.group_id))


def _partition(number: int, rows: list[Row], delete_rate: float | None) -> TopicPartition:
    start = max(_known(rows, "log_start_offset"), default=None)
    committed = [row for row in rows if row["committed_offset"] is not None]
    slowest = min(committed, key=lambda row: row["committed_offset"], default=None) or {}
    offset = slowest.get("committed_offset")
    headroom = None if offset is None or start is None else offset - start
    return TopicPartition(
        partition=number,
        log_start_offset=start,
        log_end_offset=max(_known(rows, "log_end_offset"), default=None),
        slowest_group_id=slowest.get("group_id"),
        committed_offset=offset,
        lag=slowest.get("lag"),
        headroom=headroom,
        produce_rate=max(_known(rows, "produce_rate"), default=None),
        delete_rate=delete_rate,
        time_to_loss_seconds=min(_known(rows, "time_to_loss_seconds"), default=None),
        seconds_to_loss=_seconds_to_loss(slowest, headroom, delete_rate),
    )


def _known(rows: list[Row], column: str) -> list[Any]:
    return [row[column] for row in rows if row[column] is not None]


def _seconds_to_loss(slowest: Row, headroom: int | None, delete_rate: float | None) -> float | None:
    if headroom is None or not slowest.get("lag") or delete_rate is None:
        return None
    closing = delete_rate - (slowest["consume_rate"] or 0)
    return max(headroom, 0) / closing if closing > 0 else None
