"""`grouptrail serve-sql`: Spark Connect and the Thrift server (JDBC, ODBC) in one Spark application."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from grouptrail.console import signals
from grouptrail.console.progress import Log
from grouptrail.errors import first_cause
from grouptrail.locations import is_uri
from grouptrail.query.spark.access import Access, ServeError
from grouptrail.query.spark.catalog import Installed, install
from grouptrail.query.spark.guard import Guard, Scope, prepare_session
from grouptrail.spark.session import SessionSettings, is_local, session
from grouptrail.storage.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "grouptrail"
_TABLES_SCHEMA = f"{SCHEMA}_tables"
_CATALOG = "spark_catalog"


@dataclass(frozen=True)
class Listening:
    """Where the servers listen and who may connect; a server whose port is None does not run."""

    access: Access
    connect_port: int | None
    thrift_port: int | None
    allow_writes: bool = False


def serve_sql(warehouse: Warehouse, settings: SessionSettings, listening: Listening, log: Log) -> None:
    """Serve the tables, views and functions of the schema `grouptrail` until SIGINT or SIGTERM."""
    if listening.connect_port is None and listening.thrift_port is None:
        raise ServeError("nothing is served: leave out --no-connect or --no-thrift")
    listening.access.check()
    token = secrets.token_hex(32)
    with TemporaryDirectory(prefix="grouptrail-serve-sql-") as folder:
        # With derby.system.home Derby cannot create a database in memory, and Hive retries for 20 s.
        own = {
            "spark.sql.warehouse.dir": folder,
            "spark.driver.extraJavaOptions": f"-Dderby.stream.error.file={folder}/derby.log",
        }
        of_server = {**own, **settings.spark, **_settings(listening, token)}
        if is_local(settings):
            # Otherwise every user of the machine can send to the ports of Spark's own protocol.
            of_server["spark.authenticate"] = "true"
        with session(replace(settings, spark=of_server), "grouptrail-serve-sql", log) as spark:
            _serve(warehouse.with_spark(spark), listening, token, log)


def _settings(listening: Listening, token: str) -> dict[str, str]:
    """Return the settings of Spark that override all others; only the gateway knows the token of Spark Connect."""
    settings = {"spark.hadoop.hive.server2.enable.doAs": "false"}
    if not listening.allow_writes:
        # ${env:...} and ${system:...} in the text of a query: see `guard.prepare_session`.
        settings["spark.sql.variable.substitute"] = "false"
    if listening.connect_port is not None:
        settings |= {
            "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": "0",
            "spark.connect.authenticate.token": token,
        }
    return settings


def _serve(warehouse: Warehouse, listening: Listening, token: str, log: Log) -> None:
    spark = warehouse.session
    # The signal handler that the Spark session installs fails if it interrupts a call of Spark.
    await_end = signals.ending()
    done = install(warehouse, schema=SCHEMA, tables_schema=_TABLES_SCHEMA)
    guard = None
    if not listening.allow_writes:
        prepare_session(spark)
        guard = Guard(spark, _scope(done))
    with contextlib.ExitStack() as running:
        if listening.thrift_port is not None:
            running.callback(_start_thrift(spark, listening.access, listening.thrift_port, guard))
        if listening.connect_port is not None:
            running.callback(_start_connect(spark, listening.access, listening.connect_port, token, guard))
        _report_addresses(warehouse.location, listening, done, log)
        await_end()


def _scope(done: Installed) -> Scope:
    """Return what clients may name in queries: what has been installed, with and without its schema and catalog."""
    tables = {*done.tables, *done.views, *(f"{SCHEMA}.{name}" for name in (*done.tables, *done.views))}
    tables |= {f"{_TABLES_SCHEMA}.{name}" for name in done.tables}
    schemas = {SCHEMA, _TABLES_SCHEMA, "default"}
    return Scope(
        tables=tables | {f"{_CATALOG}.{name}" for name in tables if "." in name},
        functions=set(done.functions),
        schemas={_CATALOG, *schemas, *(f"{_CATALOG}.{name}" for name in schemas)},
    )


def _start_thrift(spark: SparkSession, access: Access, port: int, guard: Guard | None) -> Callable[[], None]:
    from grouptrail.query.spark.thrift_gateway import ThriftGateway, ThriftService

    return ThriftGateway(access, port, ThriftService(spark, guard)).stop


def _start_connect(
    spark: SparkSession, access: Access, port: int, token: str, guard: Guard | None
) -> Callable[[], None]:
    try:
        from grouptrail.query.spark.connect_gateway import ConnectGateway
    except ImportError as error:
        raise ServeError(
            f"Spark Connect needs a package that is missing ({first_cause(error)}): pip install 'pyspark[connect]', "
            "or use --no-connect"
        ) from error

    jvm: Any = spark._jvm
    service = getattr(getattr(jvm.org.apache.spark.sql.connect.service, "SparkConnectService$"), "MODULE$")
    return ConnectGateway(access, port, spark_port=service.localPort(), spark_token=token, guard=guard).stop


def _report_addresses(location: str, listening: Listening, done: Installed, log: Log) -> None:
    access = listening.access
    host = f"[{access.host}]" if ":" in access.host else access.host
    if listening.connect_port is not None:
        log(f"Spark Connect: sc://{host}:{listening.connect_port}{'/;use_ssl=true' if access.tls else ''}")
    if listening.thrift_port is not None:
        log(f"JDBC: jdbc:hive2://{host}:{listening.thrift_port}/{SCHEMA}{';ssl=true' if access.tls else ''}")
    who = "this user" if access.token is None else "clients with the token"
    if listening.allow_writes:
        log(f"--allow-writes: {who} may also write, read any file and run programs, with this user's rights")
        if not is_uri(location) and os.access(location, os.W_OK):
            log(f"the tables in {location} can be changed and deleted")
    else:
        log(f"only {who} may connect, and only to run queries")
    log(
        f"the schema {SCHEMA} has {len(done.tables)} tables, {len(done.views)} views, {len(done.functions)} functions"
    )
