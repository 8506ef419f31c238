"""What jobs are given, made from a configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grouptrail.config import Config, job_settings
from grouptrail.console.progress import Log
from grouptrail.jobs import Job, JobContext
from grouptrail.lag.shard import LagInputs
from grouptrail.runtime.warehouses import context_of, warehouse_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def context(
    job: Job, config: Config, spark: SparkSession | None = None, log: Log = print, **more: Any
) -> JobContext[Any]:
    """Return the context of a job."""
    return context_of(job, config, warehouse_of(config, spark), log, **more)


def lag_inputs(config: Config, spark: SparkSession | None = None) -> LagInputs:
    """Return what lag is computed from."""
    return LagInputs(warehouse_of(config, spark), config.kafka_settings(), job_settings.lag(config))
