"""The warehouse that the settings describe, and Spark sessions to work on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from grouptrail.console.progress import Log, print_now
from grouptrail.jobs import BROKER_LOG, Job, JobContext

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from grouptrail.config import Config
    from grouptrail.query.sql import QueryContext
    from grouptrail.spark.session import SessionSettings
    from grouptrail.storage.warehouse import Warehouse


def warehouse_of(config: Config, spark: SparkSession | None = None) -> Warehouse:
    """Return the tables of the configured cluster, for work in a session if there is one."""
    from grouptrail.storage.warehouse import Warehouse

    return Warehouse(config.warehouse, config.cluster, config.storage_options(), config.checkpoints_folder(), spark)


def stored(config: Config) -> Config:
    """Return the configuration of the cluster that the warehouse has: the only one there, if none is configured.

    Raises UnknownClusterError.
    """
    from grouptrail.query.clusters import stored_cluster

    cluster = stored_cluster(warehouse_of(config), is_named="cluster" in config.model_fields_set)
    return config if cluster == config.cluster else config.model_copy(update={"cluster": cluster})


def session_settings(config: Config, *others: Config) -> SessionSettings:
    """Return what a Spark session is started with; `others` are the further clusters whose topics it reads."""
    from grouptrail.kafka.msk_iam import uses_msk_iam
    from grouptrail.kafka.oauthbearer import token_endpoint
    from grouptrail.spark.session import SessionSettings

    clients = [settings for one in (config, *others) if (settings := _kafka_settings(one)) is not None]
    endpoints = filter(None, map(token_endpoint, clients))
    return SessionSettings(
        config.spark_settings(),
        config.warehouse,
        config.storage_options(),
        tuple(dict.fromkeys(endpoints)),
        uses_msk_iam=any(map(uses_msk_iam, clients)),
    )


def _kafka_settings(config: Config) -> dict[str, str] | None:
    """Return the settings of Kafka's client; None if a secret cannot be read, which the jobs report."""
    from grouptrail.config.providers import SecretError

    try:
        return config.kafka_settings()
    except SecretError:
        return None


@contextmanager
def warehouse_in_session(config: Config, command: str, log: Log, *, is_varied: bool = False) -> Iterator[Warehouse]:
    """Yield the warehouse in a new Spark session for one command; `is_varied` is as for `session.settings_of`."""
    from grouptrail.spark.session import session

    with session(session_settings(config), f"grouptrail-{command}", log, is_varied=is_varied) as spark:
        yield warehouse_of(config, spark)


@contextmanager
def query_context(
    config: Config, engine: Literal["delta-rs", "spark"] = "delta-rs", log: Log = print_now
) -> Iterator[QueryContext]:
    """Yield what queries in SQL are run with, in a session of their own if Spark answers them."""
    from grouptrail.query.sql import DeltaRs, QueryContext

    of_config = (config.log_offsets.interval_seconds, "cluster" in config.model_fields_set)
    if engine == "delta-rs":
        warehouse = warehouse_of(config)
        yield QueryContext(warehouse, DeltaRs(warehouse), *of_config)
        return
    from grouptrail.query.spark.engine import SparkEngine

    with warehouse_in_session(config, "sql", log) as warehouse:
        yield QueryContext(warehouse, SparkEngine(warehouse), *of_config)


def context_of(job: Job, config: Config, warehouse: Warehouse, log: Log, **more: Any) -> JobContext[Any]:
    """Return what a job is given; `more` are further fields of the context."""
    if job is BROKER_LOG:
        from grouptrail.history.broker_log_update import apply_events

        more["apply_events"] = partial(apply_events, warehouse)
    return JobContext(warehouse, config.kafka_settings(), job.settings(config), log, **more)
