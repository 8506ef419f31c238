"""The metric families of a snapshot, in the order of `schemas/metrics.yaml`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grouptrail import contracts
from grouptrail.broker_log.status import FollowedFile
from grouptrail.exporter.text import Family
from grouptrail.snapshot.reader import OUTCOMES, Snapshot
from grouptrail.snapshot.state import STATES, JobState
from grouptrail.snapshot.summary import SUMMARY, catch_up, combine, error_bound, worst_by_group

OTHER = "other"
# From the best to the worst.
STATUSES = contracts.statuses()[::-1]

Rows = Mapping[str, pa.Table]

_OF_TOPICS = {"lag": "sum", "lag_seconds": "max", "lost_records": "sum", "time_to_loss_seconds": "min"}

# Gauges that can be aggregated over groups; counters would fall when the set of groups changes.
_TOGETHER = (
    "sum_lag",
    "max_lag",
    "max_lag_seconds",
    "max_lag_error_seconds",
    "max_catch_up_seconds",
    "min_time_to_loss_seconds",
    "partitions",
    "members",
)


def group_families(snapshot: Snapshot) -> list[Family]:
    """Return the families of groups and of the topics they consume."""
    lag = _with_group(snapshot.lag)
    by_group = _lag_of_groups(snapshot.lag_by_group())
    rows = {**_partitions(lag), **_topics(lag), **by_group, **_history(snapshot), **_logs(lag)}
    return list(_families(snapshot.cluster, rows))


def other_families(snapshot: Snapshot) -> list[Family]:
    """Return the families of all groups of a snapshot as one group, named `OTHER`."""
    groups = snapshot.lag_by_group()
    together = combine(groups.set_column(0, SUMMARY.field("group_id"), pa.repeat(OTHER, len(groups))))
    members = pc.sum(snapshot.groups["member_count"]).as_py()
    rows = _lag_of_groups(together) | {"kafka_consumer_group_members": _table(group=[OTHER], value=[members])}
    kept = {name: rows[name] for name in (f"kafka_consumer_group_{name}" for name in _TOGETHER)}
    return list(_families(snapshot.cluster, kept))


def pipeline_families(snapshot: Snapshot, *, dropped: Mapping[str, int]) -> list[Family]:
    """Return the families of the cluster, the pipeline and the exporter, without those that change in between."""
    progress = snapshot.progress
    reads = [(*OUTCOMES[name], pc.sum(progress[name]).as_py() or 0) for name in OUTCOMES]
    behind = pc.subtract(progress["last_stable_offset"], progress["end_offset"])
    backlog = {
        "partition": progress["record_partition"],
        "value": pc.max_element_wise(behind, 0, skip_nulls=False),
    }
    partitions = {"partition": snapshot.stable["record_partition"]}
    totals = snapshot.facts.totals
    rows = {
        "kafka_cluster_brokers": _table(value=[totals.brokers]),
        "kafka_cluster_topics": _table(value=[totals.topics]),
        "kafka_cluster_partitions": _table(value=[totals.partitions]),
        "kafka_cluster_under_replicated_partitions": _table(value=[totals.under_replicated]),
        "kafka_cluster_leaderless_partitions": _table(value=[totals.without_leader]),
        "kafka_cluster_under_min_isr_partitions": _table(value=[totals.under_min_isr]),
        "grouptrail_records_total": _columns(["type", "outcome", "value"], reads),
        "grouptrail_source_backlog_records": pa.table(backlog),
        "grouptrail_coordinator_clock_offset_seconds": _table(
            value=[pc.max(pc.abs(snapshot.lag["clock_offset_seconds"])).as_py()]
        ),
        "grouptrail_last_stable_offset_lag": pa.table({**partitions, "value": snapshot.stable["lag"]}),
        "grouptrail_last_stable_offset": pa.table({**partitions, "value": snapshot.stable["last_stable_offset"]}),
        "grouptrail_expectation_failures": snapshot.failures.rename_columns(["table", "value"]),
        "grouptrail_damaged_files": _columns(
            ["table", "value"], [(name, len(snapshot.damage.get(name, ()))) for name in contracts.tables()]
        ),
        **_followed(snapshot.followed),
        "grouptrail_series_dropped": _columns(["reason", "value"], list(dropped.items())),
        "grouptrail_refresh_duration_seconds": _table(value=[snapshot.seconds]),
        "grouptrail_snapshot_timestamp_seconds": _table(value=[snapshot.made_at]),
        "grouptrail_ready": _table(value=[int(snapshot.not_ready is None)]),
        "grouptrail_build_info": _table(version=[version("grouptrail")], value=[1]),
    }
    return list(_families(snapshot.cluster, rows))


def momentary_families(
    snapshot: Snapshot,
    *,
    errors: int,
    jobs: Mapping[str, JobState] = MappingProxyType({}),
    started_at: float | None = None,
) -> list[Family]:
    """Return the families of the tables' ages now, of failed snapshots and of the jobs by name.

    `started_at` is when the exporter began to count, in seconds.
    """
    now = time.time()
    ages = [(table, max(0.0, now - at)) for table, at in snapshot.newest.items()]
    rows = {
        "grouptrail_freshness_seconds": _columns(["table", "value"], ages),
        "grouptrail_refresh_errors_total": _table(value=[errors]),
    }
    if jobs:
        names: list[object] = list(jobs)
        states = jobs.values()
        rows["grouptrail_job_running"] = _table(job_name=names, value=[int(job.is_running) for job in states])
        rows["grouptrail_job_restarts_total"] = _table(job_name=names, value=[job.restarts for job in states])
    families = _families(snapshot.cluster, rows)
    return [replace(family, created=started_at) if family.type == "counter" else family for family in families]


def _followed(files: Sequence[FollowedFile]) -> dict[str, pa.Table]:
    """Return the families of the brokers' log files that are followed; none if there are no files."""
    figures: dict[str, list[object]] = {
        "readable": [int(file.problem is None) for file in files],
        "lines_total": [file.lines for file in files],
        "events_total": [file.events for file in files],
        "unmatched_lines_total": [file.unmatched for file in files],
        "malformed_lines_total": [file.malformed for file in files],
        "unread_bytes": [file.unread_bytes for file in files],
        "last_line_timestamp_seconds": [file.last_line_at for file in files],
    }
    paths: list[object] = [file.path for file in files]
    rows = {f"grouptrail_broker_log_{name}": _table(file=paths, value=values) for name, values in figures.items()}
    return rows if files else {}


def _families(cluster: str, rows: Rows) -> Iterator[Family]:
    for metric in contracts.metrics().values():
        if metric.name in rows:
            labels = {label: label for label in metric.labels if label != "cluster"}
            figures = (
                [*(f"le_{n}" for n in range(len(metric.buckets) + 1)), "seconds"] if metric.buckets else ["value"]
            )
            yield Family(
                name=metric.name,
                type=metric.type,
                help=metric.help,
                labels=labels,
                rows=rows[metric.name].select([*labels, *figures]).drop_null(),
                fixed={"cluster": cluster},
                buckets=metric.buckets,
            )


def _with_group(rows: pa.Table) -> pa.Table:
    return rows.rename_columns(["group" if name == "group_id" else name for name in rows.column_names])


def _partitions(lag: pa.Table) -> dict[str, pa.Table]:
    figures = {
        "lag": lag["lag"],
        "lag_seconds": lag["lag_seconds"],
        "lag_error_seconds": error_bound(lag),
        "usual_wait_seconds": lag["usual_wait_seconds"],
        "catch_up_seconds": catch_up(lag),
        "committed_offset": lag["committed_offset"],
        "lost_records": lag["lost_records"],
        "readable_lag": lag["readable_lag"],
        "time_to_loss_seconds": lag["time_to_loss_seconds"],
        "status": _ones(len(lag)),
    }
    names = ["group", "topic", "partition", "status"]
    return {
        f"kafka_consumer_group_{name}": pa.table({**{label: lag[label] for label in names}, "value": values})
        for name, values in figures.items()
    }


def _topics(lag: pa.Table) -> dict[str, pa.Table]:
    return {
        f"kafka_consumer_group_topic_{name}": grouped(lag, ["group", "topic"], name, how)
        for name, how in _OF_TOPICS.items()
    }


def _lag_of_groups(summary: pa.Table) -> dict[str, pa.Table]:
    groups = worst_by_group(summary)
    group = groups["group_id"]
    values = {
        "sum_lag": groups["lag"],
        "max_lag": groups["max_lag"],
        "max_lag_seconds": groups["lag_seconds"],
        # By how much the true maximum may exceed the reported one.
        "max_lag_error_seconds": pc.subtract(groups["most_lag_seconds"], groups["lag_seconds"]),
        "max_catch_up_seconds": groups["catch_up_seconds"],
        "min_time_to_loss_seconds": groups["time_to_loss_seconds"],
        "awaiting_redelivery": groups["awaiting_redelivery"],
        "most_deliveries": groups["most_deliveries"],
        "last_commit_timestamp_seconds": pc.divide(pc.cast(groups["commit_at"], pa.int64()), 1e6),
    }
    rows = {name: pa.table({"group": group, "value": value}) for name, value in values.items()}
    counted = summary.select(["group_id", "status", "positions"])
    rows["partitions"] = counted.rename_columns(["group", "status", "value"])
    rows["group_status"] = pa.table({"group": group, "status": groups["status"], "value": _ones(len(groups))})
    return {f"kafka_consumer_group_{name}": table for name, table in rows.items()}


def _ones(count: int) -> pa.Array:
    return pa.array(np.ones(count, np.int64))


def _history(snapshot: Snapshot) -> dict[str, pa.Table]:
    groups = _with_group(snapshot.groups)
    rebalances = _with_group(snapshot.rebalances)
    intervals = _with_group(snapshot.intervals)
    deliveries = _with_group(snapshot.deliveries)
    rows = {
        "info": groups.append_column("value", _ones(len(groups))),
        "owner_info": _with_group(snapshot.owners).append_column("value", _ones(len(snapshot.owners))),
        "members": _valued(groups, "member_count"),
        "state": _states(groups),
        "generation": _valued(groups, "generation"),
        "rebalances_total": _valued(rebalances, "count"),
        "partitions_moved_total": grouped(rebalances, ["group"], "moved", "sum"),
        "last_rebalance_timestamp_seconds": _valued(intervals, "last_at"),
        "rebalance_interval_seconds": intervals,
        "deliveries_total": _valued(deliveries, "records"),
        "redeliveries_total": grouped(deliveries, ["group", "topic"], "redeliveries", "sum"),
        "offset_commits_total": grouped(_with_group(snapshot.commits), ["group"], "count", "sum"),
    }
    return {f"kafka_consumer_group_{name}": table for name, table in rows.items()}


def _states(groups: pa.Table) -> pa.Table:
    """Return 1 for each group's state and 0 for the others; unknown states are added."""
    states = list(dict.fromkeys([*STATES, *pc.unique(groups["state"]).to_pylist()]))
    every = np.repeat(np.arange(len(groups)), len(states))
    each = pa.array(states * len(groups), pa.string())
    own = groups.take(pa.array(every))
    return pa.table(
        {"group": own["group"], "state": each, "value": pc.cast(pc.equal(own["state"], each), pa.int64())}
    )


def _logs(lag: pa.Table) -> dict[str, pa.Table]:
    keys = ["topic", "partition"]
    return {f"kafka_topic_{name}": grouped(lag, keys, name, "max") for name in ("log_end_offset", "log_start_offset")}


def grouped(rows: pa.Table, keys: list[str], column: str, how: str) -> pa.Table:
    """Return one value for each key."""
    aggregated = rows.group_by(keys).aggregate([(column, how)])
    return aggregated.select([*keys, f"{column}_{how}"]).rename_columns([*keys, "value"])


def _valued(rows: pa.Table, column: str) -> pa.Table:
    return rows.rename_columns(["value" if name == column else name for name in rows.column_names])


def _table(**columns: list[object]) -> pa.Table:
    return pa.table(columns)


def _columns(names: list[str], rows: Sequence[tuple[object, ...]]) -> pa.Table:
    return pa.table({name: [row[number] for row in rows] for number, name in enumerate(names)})
