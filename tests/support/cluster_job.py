"""The job `cluster` on a real Kafka, sampled when a test wants it."""

from __future__ import annotations

from typing import Any

from grouptrail.cluster_facts.job import Sampling
from grouptrail.cluster_facts.sample import LOG_SIZES, TABLES
from grouptrail.cluster_facts.sampler import Sampler
from grouptrail.config import Config
from grouptrail.kafka.cluster_metadata import ClusterDescription
from grouptrail.runtime.warehouses import warehouse_of
from support import landed


class Job:
    """The job, sampled when a test wants it; `lines` is its log."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.lines: list[str] = []
        self.cluster = ClusterDescription(config.kafka_settings(), requests_per_second=100)
        warehouse = warehouse_of(config)
        warehouse.ensure((*TABLES, LOG_SIZES))
        sampler = Sampler(self.cluster, log_sizes_seconds=1e-9)
        self._sampling = Sampling(warehouse, sampler, app=lambda: "app", log=self.lines.append)

    def sample(self) -> None:
        self._sampling.process(batch=0)

    def valid(self, table: str) -> list[dict[str, Any]]:
        return [row for row in landed.rows(self.config, table) if row["is_open"]]

    def of(self, table: str, topic: str) -> list[dict[str, Any]]:
        """Return all rows of a topic in their order."""
        rows = [row for row in landed.rows(self.config, table) if row["topic"] == topic]
        return sorted(rows, key=lambda row: (row["valid_from"], row.get("partition", 0)))
