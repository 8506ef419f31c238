"""A warehouse whose tables an exporter reads: two groups, one of them with a hostile name."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from grouptrail.broker_log.status import FollowedFile, FollowStatus, write_status
from grouptrail.cluster_facts.sampler import Sampler
from grouptrail.cluster_facts.state import OpenRows
from grouptrail.config import Config, load_config
from grouptrail.exporter.text import Family
from grouptrail.jobs import BROKER_LOG, CLUSTER, Job
from grouptrail.lag.calculator import ROWS
from grouptrail.lag.state import PUBLISHED
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.storage.checkpoints import Checkpoint
from grouptrail.storage.last_sample import LastSample, write_last_sample
from grouptrail.storage.schema import table_schema
from support.deadlines import scaled
from support.fake_cluster import FakeCluster
from support.small_tables import lay

STRANGE = 'we"ird\n\\{group="billing"} 1'
LONG_TOPIC = "t" * 249
DEADLINE_SECONDS = scaled(30)
OPEN = {"is_open": True, "open_bucket": 1}


def now() -> datetime:
    return datetime.now(UTC)


def configured(warehouse: Path | str, **exporter: Any) -> Config:
    """Return a configuration whose exporter listens on a free port."""
    settings = {f"exporter.{name}": str(value) for name, value in {"listen": "127.0.0.1:0", **exporter}.items()}
    return load_config(None, {"warehouse": str(warehouse), **settings}, {})


def lag_row(partition: int = 0, **values: Any) -> dict[str, Any]:
    """Return a current row of consumer_lag: of 100 records, five times the partition number are unread."""
    lag = 5 * partition
    return {
        "topic": "orders", "partition": partition, "sampled_at": now(), "committed_offset": 100 - lag,
        "commit_at": now() - timedelta(seconds=2), "log_start_offset": 10, "log_end_offset": 100,
        "last_stable_offset": 100, "lag": lag, "lost_records": 0, "readable_lag": lag, "lag_seconds": 1.5 * partition,
        "lag_seconds_method": "observed", "lag_seconds_error": 1.0, "consume_rate": 2.0, "produce_rate": 1.0,
        "catch_up_seconds": float(lag), "status": "WARN" if lag else "OK", "status_reason": "by rule",
    } | values  # fmt: skip


def lag_table(*rows: dict[str, Any]) -> pa.Table:
    """Return rows of consumer_lag in memory, as the lag job publishes them."""
    schema = table_schema("consumer_lag")
    shared = {"cluster": "default", "group_id": "billing"}
    table = pa.Table.from_pylist([{name: (shared | row).get(name) for name in schema.names} for row in rows], schema)
    return table.cast(ROWS).select(PUBLISHED)


def lay_everything(config: Config, *lag: dict[str, Any]) -> None:
    """Write rows to every table that the exporter reads; `lag` are further ones of `consumer_lag`."""
    lay_groups(config, *lag)
    lay_cluster(config, cluster_of())
    note_followed_files(
        config, FollowedFile("/logs/server.log", lines=9, events=3, unread_bytes=0, last_line_at=10.0)
    )


def lay_groups(config: Config, *lag: dict[str, Any]) -> None:
    """Write rows to every table but those of the job `cluster`.

    Those of `consumer_lag` are written together: rows that are some seconds apart are not of one sample.
    """
    strange = lag_row(group_id=STRANGE, topic=LONG_TOPIC, status="UNKNOWN", lag=None, lag_seconds=None)
    lay(config, "consumer_lag", *(lag_row(number) for number in range(3)), strange, *lag)
    lay(
        config,
        "group_states",
        {**OPEN, "state": "Stable", "started_at": now()},
        {"state": "Empty", "started_at": now() - timedelta(hours=1)},
        {**OPEN, "group_id": "gone", "state": "Dead", "started_at": now()},
    )
    lay(
        config,
        "generations",
        {**OPEN, "generation": 4, "member_count": 2, "protocol_type": "consumer", "protocol": "range"},
    )
    lay(
        config,
        "rebalances",
        {"cause": "group_started", "at": now() - timedelta(minutes=2)},
        {**OPEN, "cause": "member_joined", "at": now(), "partitions_moved": 3, "seconds_since_previous": 120.0},
        {"cause": "member_left", "group_id": "gone", "partitions_moved": 7},
    )
    lay(config, "offset_commits", *(commit(offset, is_tombstone=offset == 3) for offset in range(5)))
    lay(config, "offset_commits", commit(5, group_id="gone"))
    lay(config, "ingest_progress", progress(0, 10))
    lay(
        config,
        "partition_ownership",
        *(
            {**OPEN, "topic": "orders", "partition": number, "member_id": "a", "owned_until": None}
            for number in (0, 1)
        ),
    )


def cluster_of(*, orders: int = 3) -> FakeCluster:
    """Return two brokers with a topic that billing reads, the offsets topic, and one that nobody reads."""
    cluster = FakeCluster()
    cluster.create("orders", orders)
    cluster.create("__consumer_offsets", 2, is_internal=True)
    cluster.create("audit", 1)
    return cluster


def lay_cluster(config: Config, cluster: FakeCluster, *, at: datetime | None = None, sizes: bool = True) -> None:
    """Sample the cluster into the tables, as the job `cluster` does, at a time that is now by default."""
    warehouse = warehouse_of(config)
    warehouse.ensure(CLUSTER.writes)
    rows = OpenRows(warehouse, lambda: "app")
    sampler = Sampler(cluster, log_sizes_seconds=float(sizes))
    rows.update(sampler.sample(rows.tables))
    found, problems = sampler.log_sizes()
    if found is not None:
        rows.replace_log_sizes(found)
    write_last_sample(cast("Checkpoint", _Folder(config, CLUSTER)), LastSample(at or now(), 60, problems))


def note_followed_files(config: Config, *files: FollowedFile, at: datetime | None = None) -> None:
    """Note what the job `broker-log` knows of the files that it follows, at a time that is now by default."""
    write_status(cast("Checkpoint", _Folder(config, BROKER_LOG)), FollowStatus(at or now(), 5, files))


class _Folder:
    """The folder of a job's checkpoint, which can be written without Spark."""

    def __init__(self, config: Config, job: Job) -> None:
        self._path = Path(warehouse_of(config).checkpoint_path(job.name))

    def write_text(self, name: str, text: str) -> None:
        self._path.mkdir(parents=True, exist_ok=True)
        (self._path / name).write_text(text)


def log_offsets_row(topic: str, partition: int = 0, end: int | None = 100, **values: Any) -> dict[str, Any]:
    """Return a row of log_offsets, without an error unless `end` is None."""
    offsets = {"log_start_offset": 10, "log_end_offset": end, "last_stable_offset": end}
    none = {"log_start_offset": None, "error": "leader not available"} if end is None else {"error": None}
    return {"topic": topic, "partition": partition, "asked_at": now(), "sampled_at": now()} | offsets | none | values


def commit(offset: int, **values: Any) -> dict[str, Any]:
    """Return a row of offset_commits."""
    return {"record_offset": offset, "topic": "orders", "partition": 0, "is_tombstone": False, **values}


def progress(start: int, end: int, stable: int | None = None, **values: Any) -> dict[str, Any]:
    """Return a row of ingest_progress: a batch that read up to the log end, unless `stable` is higher."""
    stable = end if stable is None else stable
    return {
        "start_offset": start, "end_offset": end, "last_stable_offset": stable, "log_end_offset": stable + 2,
        "offset_commits": end - start - 1, "holes": 1, "landed_at": now(),
    } | values  # fmt: skip


def figures(families: list[Family], name: str) -> dict[tuple[str, ...], float]:
    """Return a family's values by label values, without the cluster."""
    family = next(family for family in families if family.name == name)
    rows = family.rows.select([*family.labels.values(), "value"]).to_pylist()
    return {tuple(str(value) for value in row.values())[:-1]: row["value"] for row in rows}
