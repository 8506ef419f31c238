"""The page of all topics that groups consume."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from grouptrail import contracts
from grouptrail.web.answers import Topics, TopicsQuery, TopicSummary
from grouptrail.web.group_index import ClusterGroups, GroupIndex, are_named, ordered, page_of_list

_STATUSES = contracts.statuses()
_WORST: Mapping[str, str] = {"lag_seconds": "descending", "lag": "descending", "topic": "ascending"}


def topics_page(index: GroupIndex, query: TopicsQuery) -> Topics:
    """Return the topics that a query selects: one page of them."""
    clusters = [index.of(name) for name in index.clusters if query.cluster in ("", name)]
    rows = pa.concat_tables([_NO_ROWS, *map(_topics, clusters)])
    rows = rows.filter(are_named(rows["topic"], query.topic))
    shown = page_of_list(len(rows), query.page, query.per_page)
    rows_shown = rows.take(ordered(rows, query.sort, _WORST)[shown.before : shown.before + query.per_page])
    known = {one.cluster: one for one in clusters}
    sampled = [one.sampled_at for one in clusters if one.sampled_at is not None]
    return Topics(
        notices=[notice for one in clusters for notice in one.notices],
        total=len(rows),
        page=shown.page,
        pages=shown.pages,
        clusters=index.clusters,
        sampled_at=max(sampled, default=None),
        topics=[
            TopicSummary(
                **{name: row[name] for name in TopicSummary.model_fields if name in row},
                status=None if row["rank"] is None else _STATUSES[row["rank"]],
                is_stale=known[row["cluster"]].is_stale,
            )
            for row in rows_shown.to_pylist()
        ],
    )


def _topics(known: ClusterGroups) -> pa.Table:
    """Return a row for each topic of a cluster; of those whose positions are not held, only their groups."""
    figures = ["lag", "lag_seconds", "produce_rate", "lost_records", "most_deliveries"]
    lag = known.lag.select(["topic", "group_id", "partition", *figures])
    lag = lag.append_column("rank", pc.index_in(known.lag["status"], pa.array(_STATUSES)))
    most = {"rank": "min", "most_deliveries": "max"}
    by_group = _grouped(lag, ["topic", "group_id"], lag="sum", lag_seconds="max", lost_records="sum", **most)
    slowest = by_group.sort_by([("lag_seconds", "descending"), ("lag", "descending"), ("group_id", "ascending")])
    topics = _grouped(slowest, ["topic"], group_id="first", lag="first", lag_seconds="first")
    counts = _grouped(by_group, ["topic"], group_id="count", lost_records="max", **most)
    of_logs = _grouped(lag, ["topic", "partition"], produce_rate="max")
    logs = _grouped(of_logs, ["topic"], partition="count", produce_rate="sum")
    counts = counts.rename_columns({"group_id": "groups"})
    joined = topics.rename_columns({"group_id": "slowest_group_id"}).join(counts, "topic")
    joined = joined.join(logs.rename_columns({"partition": "partitions"}), "topic")
    held = pa.table({name: _column(joined, name, known) for name in _NO_ROWS.column_names}, schema=_NO_ROWS.schema)
    not_held = known.extent.filter(pc.invert(pc.is_in(known.extent["topic"], held["topic"].combine_chunks())))
    others = _grouped(not_held, ["topic"], group_id="count").rename_columns({"group_id": "groups"})
    return pa.concat_tables(
        [held, pa.table({name: _column(others, name, known) for name in held.column_names}, schema=held.schema)]
    )


def _grouped(rows: pa.Table, keys: list[str], **aggregates: str) -> pa.Table:
    grouped = rows.group_by(keys, use_threads=False).aggregate(list(aggregates.items()))
    return grouped.rename_columns({f"{name}_{how}": name for name, how in aggregates.items()})


def _column(rows: pa.Table, name: str, known: ClusterGroups) -> pa.Array | pa.ChunkedArray:
    if name == "cluster":
        return pa.array([known.cluster] * len(rows), pa.string())
    field = _NO_ROWS.schema.field(name)
    return rows[name].cast(field.type) if name in rows.column_names else pa.nulls(len(rows), field.type)


_NO_ROWS = pa.schema(
    {
        "cluster": pa.string(), "topic": pa.string(), "rank": pa.int32(), "groups": pa.int64(),
        "partitions": pa.int64(), "slowest_group_id": pa.string(), "lag": pa.int64(), "lag_seconds": pa.float64(),
        "produce_rate": pa.float64(), "lost_records": pa.int64(), "most_deliveries": pa.int64(),
    }
).empty_table()  # fmt: skip
