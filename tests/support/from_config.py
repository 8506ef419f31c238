"""What commands make of the configuration: the context of queries, and what an exporter serves."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from grouptrail.config import Config
from grouptrail.console.progress import Log, print_now
from grouptrail.exporter.service import Exporter
from grouptrail.query.sql import DeltaRs, Engine, QueryContext
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.snapshot.reader import ServedCluster, SnapshotReader

SAMPLE_SECONDS = 10
"""The default of `log_offsets.interval_seconds`."""


def sql_context(config: Config, engine: Engine | None = None) -> QueryContext:
    """Return what queries are run with, by default with delta-rs."""
    warehouse = warehouse_of(config)
    return QueryContext(
        warehouse,
        engine or DeltaRs(warehouse),
        config.log_offsets.interval_seconds,
        is_cluster_named="cluster" in config.model_fields_set,
    )


def served_cluster(config: Config) -> ServedCluster:
    """Return the configured cluster as an exporter and its pages serve it."""
    return ServedCluster(
        warehouse_of(config),
        config.exporter,
        config.log_offsets.interval_seconds,
        config.cluster_facts.log_sizes_interval_seconds,
    )


def snapshot_reader(config: Config, lag_since: datetime | None = None) -> SnapshotReader:
    """Return a reader of the configured cluster's snapshots."""
    return SnapshotReader(served_cluster(config), lag_since)


def exporter_of(configs: Sequence[Config], log: Log = print_now, *, awaits_lag: bool = False) -> Exporter:
    """Return an exporter of the configured clusters, without pages and not started."""
    clusters = [served_cluster(config) for config in configs]
    return Exporter(clusters, configs[0].web, log, otlp=configs[0].otlp, awaits_lag=awaits_lag)
