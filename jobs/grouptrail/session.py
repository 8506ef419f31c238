"""The Spark session: Java, jars, Delta, and the settings that decoding needs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from grouptrail.config import is_secret
from grouptrail.errors import GrouptrailError
from grouptrail.ivy import Report, fetch_jars, silent
from grouptrail.java import find_java, java_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from grouptrail.config import Config

_SCALA = "2.13"
_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")

# When a query is stopped in the middle of a batch, Spark looks for the reason in the Python traceback with a regular
# expression that takes some stack for each character.
_DEEP_STACK = "-Xss16m"

# Spark resolves these of its own; a second copy on the class path shadows the session's.
_PART_OF_SPARK = (
    "org.scala-lang:scala-library",
    "org.apache.hadoop:hadoop-client-runtime",
    "org.slf4j:slf4j-api",
)

_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Without it Spark's Kafka source drops internal topics, and reads nothing from __consumer_offsets in silence.
    "spark.sql.streaming.kafka.useDeprecatedOffsetFetching": "true",
    "spark.sql.session.timeZone": "UTC",
    # numpy works on whole batches: at the default of 10,000 rows its fixed costs show.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    # Into so many tasks VACUUM cuts what it lists: by default 10,000, for however small a table.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "32",
    # Lets a commit that replaces open rows add closed ones, too: see `tables.update`.
    "spark.databricks.delta.replaceWhere.constraintCheck.enabled": "false",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
}


class SessionError(GrouptrailError):
    """Spark did not start."""


def connector_dependencies() -> tuple[str, str]:
    """The Maven coordinates of Delta and of Spark's Kafka source that go with the installed packages."""
    return (
        f"io.delta:delta-spark_{_SCALA}:{version('delta-spark')}",
        f"org.apache.spark:spark-sql-kafka-0-10_{_SCALA}:{version('pyspark')}",
    )


def connector_jars(report: Report = silent) -> Path:
    """The folder of Delta's and the Kafka source's jars, downloaded the first time (about 60 MB)."""
    name = f"connectors/pyspark-{version('pyspark')}-delta-{version('delta-spark')}"
    return fetch_jars(name, connector_dependencies(), exclude=_PART_OF_SPARK, report=report)


def start_session(config: Config, app: str, report: Report = silent) -> SparkSession:
    """The Spark session of this process, by the configuration's `[spark]` section over grouptrail's defaults.

    Under spark-submit the cluster's Java and class path stand as they are. Otherwise Java and the jars are found
    (or fetched, which `report` tells about) and Spark runs in this process's JVM.
    """
    from pyspark.sql import SparkSession

    settings = {**_SETTINGS, **config.spark_settings()}
    is_embedded = "SPARK_ENV_LOADED" not in os.environ and "PYSPARK_GATEWAY_PORT" not in os.environ
    if is_embedded:
        settings = {**_embedded(report), **settings}
    builder = SparkSession.builder.appName(app)
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        if is_embedded:
            _start_jvm(settings)
        return builder.getOrCreate()
    except Exception as error:
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise SessionError(f"Spark did not start ({first_line}): grouptrail doctor looks for the reason") from error


def _start_jvm(settings: Mapping[str, str]) -> None:
    """Without secrets, which the session is given later: pyspark writes all it has into the JVM's command line,
    where everybody on the machine can read it (ps)."""
    from pyspark import SparkConf, SparkContext

    shown = [(name, value) for name, value in settings.items() if not is_secret(name)]
    SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(shown))


def _embedded(report: Report) -> dict[str, str]:
    os.environ.update(java_environment(find_java()))
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Spark's workers take python3 from PATH otherwise, which may lack numpy.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return {
        "spark.master": "local[*]",
        "spark.driver.extraClassPath": f"{connector_jars(report)}/*",
        "spark.driver.defaultJavaOptions": f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()} {_DEEP_STACK}",
    }
