"""Serve metrics and web pages on one port."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from grouptrail.console import signals
from grouptrail.console.progress import Log, print_now
from grouptrail.console.text import harmless
from grouptrail.locations import shown
from grouptrail.query.clusters import UnknownClusterError, is_without_tables
from grouptrail.runtime.warehouses import stored, warehouse_of
from grouptrail.web.pages import Pages

if TYPE_CHECKING:
    from grouptrail.config import Config
    from grouptrail.exporter.service import Exporter


def exporter_with_pages(configs: Sequence[Config], log: Log = print_now, *, awaits_lag: bool = False) -> Exporter:
    """Return an exporter, not started, that also serves the pages unless the settings disable them."""
    from grouptrail.exporter.service import Exporter
    from grouptrail.snapshot.reader import ServedCluster

    clusters = [
        ServedCluster(
            warehouse_of(config),
            config.exporter,
            config.log_offsets.interval_seconds,
            config.cluster_facts.log_sizes_interval_seconds,
        )
        for config in configs
    ]
    web = configs[0].web
    exporter = Exporter(clusters, web, log, otlp=configs[0].otlp, awaits_lag=awaits_lag)
    if web.enabled:
        exporter.serve_pages(Pages(clusters, web, exporter.state, log))
    return exporter


def stored_clusters(configs: Sequence[Config], log: Log) -> list[Config]:
    """Return the configurations, with the clusters in the warehouse if none is configured.

    Clusters that the warehouse does not have are reported; they may get their first rows while they are served.
    """
    served = []
    for config in configs:
        try:
            one = stored(config)
            if one is not config:
                log(f"cluster {harmless(one.cluster)}, the only one in the warehouse")
            served.append(one)
        except UnknownClusterError as error:
            if "cluster" in config.model_fields_set:
                log(f"there are no figures of cluster {config.cluster}: {error}")
                served.append(config)
            else:
                log(f"clusters {harmless(', '.join(error.clusters))}, all that the warehouse has")
                served += [config.model_copy(update={"cluster": cluster}) for cluster in error.clusters]
    return served


def serve(configs: Sequence[Config], log: Log = print_now) -> None:
    """Serve the tables until SIGINT or SIGTERM, which end the process with 130 or 143."""
    await_end = signals.ending()
    configs = stored_clusters(configs, log)
    with exporter_with_pages(configs, log) as exporter:
        log(f"serving {exporter.url}/metrics from {shown(configs[0].warehouse)}")
        if exporter.serves_pages:
            log(f"web pages: {exporter.url}/")
        if is_without_tables(warehouse_of(configs[0])):
            log("there are no tables in it yet: grouptrail run writes them; otherwise check --warehouse")
        received = await_end()
    raise SystemExit(128 + received)
