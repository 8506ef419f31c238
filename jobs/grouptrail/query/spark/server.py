"""`grouptrail serve-sql`: Spark Connect and the Thrift server (JDBC, ODBC) in one Spark application."""

from __future__ import annotations

import os
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from grouptrail.config import Config, is_uri
from grouptrail.console import signals
from grouptrail.errors import GrouptrailError
from grouptrail.query.spark.catalog import Installed, install
from grouptrail.spark.jars import Report
from grouptrail.spark.session import start_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "grouptrail"


class ServeError(GrouptrailError):
    """A server that does not start."""


@dataclass(frozen=True)
class Listening:
    """The address of the servers; a server whose port is None does not run."""

    host: str
    connect_port: int | None
    thrift_port: int | None

    @property
    def settings(self) -> dict[str, str]:
        """Spark settings that bind both servers to the host."""
        settings: dict[str, str] = {}
        if self.connect_port is not None:
            settings |= {
                "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
                "spark.connect.grpc.binding.address": self.host,
                "spark.connect.grpc.binding.port": str(self.connect_port),
            }
        if self.thrift_port is not None:
            settings |= {
                "spark.hadoop.hive.server2.thrift.bind.host": self.host,
                "spark.hadoop.hive.server2.thrift.port": str(self.thrift_port),
            }
        return settings


def serve_sql(config: Config, listening: Listening, report: Report) -> None:
    """Serve the tables, views and functions of the schema `grouptrail` until SIGINT or SIGTERM."""
    if listening.connect_port is None and listening.thrift_port is None:
        raise ServeError("nothing is served: leave out --no-connect or --no-thrift")
    with TemporaryDirectory(prefix="grouptrail-serve-sql-") as folder:
        # With derby.system.home Derby cannot create a database in memory, and Hive retries for 20 s.
        own = {
            "spark.sql.warehouse.dir": folder,
            "spark.driver.extraJavaOptions": f"-Dderby.stream.error.file={folder}/derby.log",
        }
        settings = {**own, **config.spark, **listening.settings}
        spark = start_session(config.model_copy(update={"spark": settings}), "grouptrail-serve-sql", report)
        try:
            _serve(spark, config, listening, report)
        finally:
            spark.stop()


def _serve(spark: SparkSession, config: Config, listening: Listening, report: Report) -> None:
    # The signal handler that the Spark session installs fails if it interrupts a call of Spark.
    await_end = signals.ending()
    done = install(spark, config, schema=SCHEMA, tables_schema=f"{SCHEMA}_tables")
    if listening.thrift_port is not None:
        _start_thrift(spark)
    _report_addresses(config, listening, done, report)
    await_end()


def _start_thrift(spark: SparkSession) -> None:
    server = spark.sparkContext._jvm.org.apache.spark.sql.hive.thriftserver.HiveThriftServer2  # type: ignore[union-attr]
    try:
        server.startWithContext(spark._jsparkSession.sqlContext())
    except Exception as error:
        reason = str(error).strip().splitlines()[-1]
        raise ServeError(f"the Thrift server did not start ({reason}): choose another --thrift-port") from error


def _report_addresses(config: Config, listening: Listening, done: Installed, report: Report) -> None:
    if listening.connect_port is not None:
        report(f"Spark Connect: sc://{listening.host}:{listening.connect_port}")
    if listening.thrift_port is not None:
        report(f"JDBC: jdbc:hive2://{listening.host}:{listening.thrift_port}/{SCHEMA}")
    report(
        f"the schema {SCHEMA} has {len(done.tables)} tables, {len(done.views)} views, {len(done.functions)} functions"
    )
    if not is_uri(config.warehouse) and os.access(config.warehouse, os.W_OK):
        report(
            f"this user may write to {config.warehouse}, and so may every client: "
            "run it as a user with read-only access"
        )
